//go:build unix

package run

import (
	"fmt"
	"io"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// notes are the messages of a run whose command is at work. Whoever reads them may have stopped reading, as after
// Ctrl-S. So write never waits for the reader.
type notes struct {
	lines   chan string   // has room for more than a run can say
	written chan struct{} // closed when all is written
}

// lastWords is how long run waits at its end until its messages are read.
const lastWords = time.Second

// newNotes begins to write on out. The caller calls end.
func newNotes(out io.Writer) *notes {
	n := &notes{lines: make(chan string, 32), written: make(chan struct{})}
	go func() {
		defer close(n.written)
		for line := range n.lines {
			_, _ = io.WriteString(out, line) // nobody else can be told
		}
	}()
	return n
}

func (n *notes) write(format string, args ...any) {
	n.lines <- "pglock-admin: " + shown.Lines(fmt.Sprintf(format, args...)) + "\n"
}

// end waits until all is written, for lastWords at most. What is not written by then is lost when the program ends.
func (n *notes) end() {
	close(n.lines)
	select {
	case <-n.written:
	case <-time.After(lastWords):
	}
}
