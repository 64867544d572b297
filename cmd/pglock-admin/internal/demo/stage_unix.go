//go:build unix

package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/charmbracelet/x/term"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/timeline"
)

const (
	plainWidth = 80
	mostWidth  = 110
	leastWidth = 60
	frame      = 60 * time.Millisecond
	shownLines = 5 // of the log, below a moving drawing
)

// stage shows the story: as a moving drawing on a terminal, or as lines. All output goes through it.
type stage struct {
	out    io.Writer
	live   bool
	colour bool

	stop chan struct{} // ends the redrawing; nil if there is none
	done chan struct{}

	mu    sync.Mutex
	err   error // of the first failed write
	begun time.Time
	line  *timeline.Timeline // of the act that is played
	log   []string
	drawn int // lines of the drawing above the cursor
}

func newStage(o options) *stage {
	s := &stage{out: o.out, begun: time.Now()}
	columns, rows, terminal := terminalSize(o.out)
	fits := columns >= leastWidth && rows >= o.workers+6+shownLines
	capable := terminal && os.Getenv("TERM") != "dumb"
	s.live = capable && fits && !o.plain
	s.colour = capable && !o.plain && !o.noColour
	return s
}

// terminalSize reports whether w is a terminal, and its present size.
func terminalSize(w io.Writer) (columns, rows int, terminal bool) {
	f, ok := w.(*os.File)
	if !ok {
		return 0, 0, false
	}
	columns, rows, err := term.GetSize(f.Fd())
	if err == nil && columns == 0 { // a terminal that hides its size
		columns, rows = plainWidth, 24
	}
	return columns, rows, err == nil
}

func (s *stage) width() int {
	columns, _, terminal := terminalSize(s.out)
	switch {
	case s.live:
		return min(max(columns-1, leastWidth), mostWidth)
	case terminal:
		return min(columns, plainWidth)
	}
	return plainWidth
}

// print writes lines between the acts.
func (s *stage) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(fmt.Sprintf(format, args...) + "\n")
}

// write needs mu held.
func (s *stage) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && s.err == nil {
		s.err = err
	}
}

// style returns the text in an ANSI style, if colour is on.
func (s *stage) style(code, text string) string {
	if !s.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

const (
	styleBold  = "1"
	styleFaint = "2"
	styleTitle = "1;36"
	styleGood  = "1;32"
	styleBad   = "1;31"
)

// open begins an act; shut must follow.
func (s *stage) open(t *timeline.Timeline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun, s.line, s.log, s.drawn = time.Now(), t, nil, 0
	if !s.live {
		return
	}
	s.write("\x1b[?25l")
	s.draw()
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	go s.redraw(s.stop, s.done)
}

func (s *stage) redraw(stop, done chan struct{}) {
	defer close(done)
	tick := time.NewTicker(frame)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.mu.Lock()
			s.draw()
			s.mu.Unlock()
		case <-stop:
			return
		}
	}
}

// shut ends an act and leaves its timeline on the screen. A second call does nothing.
func (s *stage) shut() {
	if s.stop != nil {
		close(s.stop)
		<-s.done
		s.stop = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.line == nil {
		return
	}
	if s.live {
		s.draw()
		s.write("\x1b[?25h")
	} else {
		s.write("\n" + strings.Join(append(s.line.Draw(s.now(), s.width(), s.colour), timeline.Legend(s.colour)),
			"\n") + "\n")
	}
	s.line = nil
}

func (s *stage) now() time.Duration { return time.Since(s.begun) }

// elapsed is now for callers without mu.
func (s *stage) elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

// tell shows what happens now, and changes the drawing accordingly.
func (s *stage) tell(who, what string, change func(now time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if change != nil {
		change(now)
	}
	line := fmt.Sprintf("%s  %s  %s", s.style(styleFaint, fmt.Sprintf("%6.3fs", now.Seconds())),
		s.style(styleBold, fmt.Sprintf("%-1s", who)), what)
	if s.live {
		s.log = append(s.log, line)
		s.draw()
	} else {
		s.write(line + "\n")
	}
}

// draw draws over the last drawing. It needs mu held.
func (s *stage) draw() {
	width := s.width()
	lines := append(s.line.Draw(s.now(), width, s.colour), timeline.Legend(s.colour), "")
	first := max(0, len(s.log)-shownLines)
	lines = append(lines, s.log[first:]...)
	for i := len(s.log) - first; i < shownLines; i++ {
		lines = append(lines, "")
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	for _, l := range lines {
		b.WriteString("\r" + ansi.Truncate(l, width, "…") + "\x1b[K\n")
	}
	s.drawn = len(lines)
	s.write(b.String())
}
