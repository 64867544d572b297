//go:build unix

package demo

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/timeline"
)

// stage shows the story as lines. All output goes through it, from one goroutine.
type stage struct {
	out    io.Writer
	colour bool

	err   error // of the first failed write
	begun time.Time
	line  *timeline.Timeline // of the act that is played
}

func newStage(o options) *stage {
	return &stage{out: o.out, begun: time.Now(),
		colour: cli.IsTerminal(o.out) && os.Getenv("TERM") != "dumb" && !o.plain && !o.noColour}
}

func (s *stage) print(format string, args ...any) {
	if _, err := fmt.Fprintf(s.out, format+"\n", args...); s.err == nil {
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
func (s *stage) open(t *timeline.Timeline) { s.begun, s.line = time.Now(), t }

// shut ends an act and draws its timeline. A second call does nothing.
func (s *stage) shut() {
	if s.line == nil {
		return
	}
	width := min(cmp.Or(cli.Columns(s.out), cli.TerminalWidth), cli.TerminalWidth)
	lines := append(s.line.Draw(s.elapsed(), width, s.colour), timeline.Legend(width, s.colour)...)
	s.print("\n%s", strings.Join(lines, "\n"))
	s.line = nil
}

func (s *stage) elapsed() time.Duration { return time.Since(s.begun) }

// tell says what happens now, and changes the timeline accordingly.
func (s *stage) tell(who, what string, change func(now time.Duration)) {
	now := s.elapsed()
	if change != nil {
		change(now)
	}
	s.print("%s  %s  %s", s.style(styleFaint, fmt.Sprintf("%6.3fs", now.Seconds())),
		s.style(styleBold, fmt.Sprintf("%-1s", who)), what)
}
