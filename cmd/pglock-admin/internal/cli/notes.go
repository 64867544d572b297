package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// Notes are the messages of a program that is at work. Whoever reads them may have stopped reading, as after Ctrl-S. So
// Write never waits for the reader.
type Notes struct {
	mu      sync.Mutex
	ended   bool
	lines   chan string   // has room for more than a run can say; what has no room is lost
	written chan struct{} // closed when all is written
}

// lastWords is how long a program waits at its end until its messages are read.
const lastWords = time.Second

// NewNotes begins to write on out. The caller calls End.
func NewNotes(out io.Writer) *Notes {
	n := &Notes{lines: make(chan string, 32), written: make(chan struct{})}
	go func() {
		defer close(n.written)
		for line := range n.lines {
			_, _ = io.WriteString(out, line) // nobody else can be told
		}
	}()
	return n
}

// Write reports whether there was room for the message.
func (n *Notes) Write(format string, args ...any) bool {
	line := "pglock-admin: " + shown.Lines(fmt.Sprintf(format, args...)) + "\n"
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended {
		return false
	}
	select {
	case n.lines <- line:
		return true
	default:
		return false
	}
}

// End waits until all is written, for lastWords at most. What is not written by then is lost when the program ends, and
// so is what comes later.
func (n *Notes) End() {
	n.mu.Lock()
	n.ended = true
	close(n.lines)
	n.mu.Unlock()
	select {
	case <-n.written:
	case <-time.After(lastWords):
	}
}
