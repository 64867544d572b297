//go:build unix

package live

import (
	"context"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"
)

// suspends stops this program on Ctrl-Z and on SIGTSTP, with the terminal as it was. The suspension of bubbletea would
// hang here: a Go program that has once listened for SIGTSTP does not stop by it any more.
type suspends struct {
	program  *tea.Program
	heard    chan os.Signal
	stopping atomic.Bool
	echo     chan struct{} // the signal that suspend has sent to the group of this process
	done     chan struct{}
	joined   sync.WaitGroup
}

func newSuspends(program *tea.Program) *suspends {
	s := &suspends{program: program, heard: make(chan os.Signal, 1),
		echo: make(chan struct{}), done: make(chan struct{})}
	if !suspendable() {
		return s
	}
	signal.Notify(s.heard, syscall.SIGTSTP)
	s.joined.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case <-s.heard:
			}
			if s.stopping.Load() {
				select {
				case <-s.done:
				case s.echo <- struct{}{}:
				}
			} else {
				program.Send(liveSuspend{})
			}
		}
	})
	return s
}

// suspendable reports whether somebody can continue this process: a shell with job control.
func suspendable() bool {
	session, err := unix.Getsid(0)
	return err == nil && session != unix.Getpgrp() && !signal.Ignored(syscall.SIGTSTP)
}

// suspend stops this process and what is with it in its group, such as a script, and returns when it goes on. It runs
// in bubbletea's loop.
func (s *suspends) suspend() {
	if !suspendable() || s.program.ReleaseTerminal() != nil {
		return
	}
	continued := make(chan os.Signal, 1)
	signal.Notify(continued, syscall.SIGCONT)
	defer signal.Stop(continued)
	s.stopping.Store(true)
	_ = syscall.Kill(0, syscall.SIGTSTP)
	<-s.echo
	s.stopping.Store(false)
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	<-continued
	_ = s.program.RestoreTerminal() // without a terminal the program ends soon
}

func (s *suspends) stop() {
	signal.Stop(s.heard)
	close(s.done)
	s.joined.Wait()
}

// quitting ends with SIGQUIT too. Other commands leave it to Go, which writes stacks: here the screen would be lost.
func quitting(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGQUIT)
}
