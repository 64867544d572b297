//go:build unix

package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	tea "charm.land/bubbletea/v2"
	"golang.org/x/sys/unix"
)

// suspends stops this program on Ctrl-Z and on SIGTSTP, with the terminal as it was.
type suspends struct {
	program *tea.Program
	heard   chan os.Signal
	done    chan struct{}
	joined  sync.WaitGroup
}

func newSuspends(program *tea.Program) *suspends {
	s := &suspends{program: program, heard: make(chan os.Signal, 1), done: make(chan struct{})}
	if !suspendable() {
		return s
	}
	s.resumed()
	s.joined.Go(func() {
		for {
			select {
			case <-s.done:
				return
			case <-s.heard:
				signal.Stop(s.heard) // or the signal that bubbletea sends would not stop this process
				s.program.Send(tea.SuspendMsg{})
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

func (s *suspends) suspend() func() tea.Cmd {
	if !suspendable() {
		return nil
	}
	return func() tea.Cmd {
		signal.Stop(s.heard)
		return tea.Suspend
	}
}

// resumed listens again.
func (s *suspends) resumed() { signal.Notify(s.heard, syscall.SIGTSTP) }

func (s *suspends) stop() {
	signal.Stop(s.heard)
	close(s.done)
	s.joined.Wait()
}
