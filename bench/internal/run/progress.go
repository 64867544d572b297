package run

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Progress shows what runs now, how many of how many, and the result. On a terminal it is one changing line.
type Progress struct {
	out      io.Writer
	terminal bool
	began    time.Time
}

// NewProgress tells to a file such as standard error.
func NewProgress(out *os.File) *Progress {
	info, err := out.Stat()
	return &Progress{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0, began: time.Now()}
}

// Say tells something between measurements.
func (p *Progress) Say(format string, args ...any) {
	if p.terminal {
		format = "\r\x1b[K" + format
	}
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Begins tells what is measured from now on.
func (p *Progress) Begins(n, of int, s step, repetitions int) {
	var peers []string
	for _, k := range s.kinds {
		peers = append(peers, k.Name)
	}
	line := fmt.Sprintf("[%d/%d, %s] %s, %s, turn %d: %s", n, of, time.Since(p.began).Round(time.Second),
		s.lines[0].Workload, s.lines[0].Where, s.repetition+1, strings.Join(peers, ", "))
	if p.terminal {
		const width = 118 // a longer line would be broken, and could not be taken back
		if len(line) > width {
			line = line[:width]
		}
		fmt.Fprint(p.out, "\r\x1b[K"+line)
		return
	}
	fmt.Fprintln(p.out, line)
}

// Ended tells what came of it, if that was nothing.
func (p *Progress) Ended(s step, err error) {
	if err != nil {
		p.Say("  %s, %s, %s FAILED: %v", s.lines[0].Workload, s.lines[0].Where, s.lines[0].Peer, err)
	}
}
