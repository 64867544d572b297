//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// screen is where the run tells how it goes: lines on a log, one line that is redrawn at a terminal.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	drawn    bool
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out}
	if f, is := out.(*os.File); is {
		_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
		s.terminal = err == nil
	}
	return s
}

func (s *screen) say(format string, args ...any) {
	s.print(fmt.Sprintf(format, args...) + "\n")
}

func (s *screen) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drawn {
		fmt.Fprint(s.out, "\r\033[K")
		s.drawn = false
	}
	fmt.Fprint(s.out, text)
}

// draw shows a line of progress in the place of the one before.
func (s *screen) draw(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.terminal {
		fmt.Fprintln(s.out, text)
		return
	}
	fmt.Fprint(s.out, "\r\033[K"+text)
	s.drawn = true
}

// progress tells how it goes until ctx ends.
func (l *lab) progress(ctx context.Context) {
	every := 5 * time.Second
	if l.screen.terminal {
		every = 500 * time.Millisecond
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			faults := 0
			for _, n := range l.injected.Count() {
				faults += n
			}
			l.screen.draw(fmt.Sprintf("%5.0fs  %d operations, %d faults, %d violations  %s",
				time.Since(l.began).Seconds(), l.operations(), faults, l.evidence.count(),
				strings.Join(l.active(), ", ")))
		}
	}
}
