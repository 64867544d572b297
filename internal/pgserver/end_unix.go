//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// patience is how long a postmaster may take to heed one signal.
const patience = 5 * time.Second

// PID is the process of the latest postmaster; 0 for a server that was not
// started here.
func (s *Server) PID() int {
	if s.process == nil {
		return 0
	}
	return s.process.latest().pid
}

// DataDir is the server's data folder; empty for a server that was not started
// here.
func (s *Server) DataDir() string {
	if s.process == nil {
		return ""
	}
	return s.process.folder.data()
}

// LogFile is the server's log; empty for a server that was not started here.
func (s *Server) LogFile() string {
	if s.process == nil {
		return ""
	}
	return s.process.folder.log()
}

// Stop ends the server, closing its connections, and removes its folder. A
// second call does nothing, and so does any call for a server that was not
// started here.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	return s.process.stop()
}

// Kill ends the server as a crash would: SIGKILL for the postmaster and for all
// its children, which are gone when it returns. The folder stays, for Restart
// or Stop. The error is ErrNotOurs or ErrStopped where there is nothing to kill.
func (s *Server) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alterable(); err != nil {
		return err
	}
	return s.process.kill()
}

// Restart starts the server again, in the same folder and on the same port: at
// once after Kill, else after a fast stop. ctx governs the start. The error is
// ErrNotOurs or ErrStopped where there is nothing to restart.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.alterable(); err != nil {
		return err
	}
	p := s.process
	if err := p.end(p.latest(), syscall.SIGINT); err != nil {
		return err
	}
	return p.startOnSamePort(ctx)
}

func (s *Server) alterable() error {
	switch {
	case s.process == nil:
		return ErrNotOurs
	case s.process.stopped:
		return ErrStopped
	}
	return nil
}

// startOnSamePort tries again while somebody else has the port, until ctx ends
// or for patience.
func (p *process) startOnSamePort(ctx context.Context) error {
	deadline := time.Now().Add(patience)
	for {
		err := p.startPostmaster(ctx)
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
}

// stop ends what runs and lets the minder remove the folder.
func (p *process) stop() error {
	if p.stopped {
		return nil
	}
	p.stopped = true
	var errs []error
	if pm := p.latest(); pm != nil {
		errs = append(errs, p.end(pm, syscall.SIGINT))
	}
	errs = append(errs, p.minder.finish())
	// Nothing is left to remove unless somebody ended the minder.
	errs = append(errs, os.RemoveAll(string(p.folder)))
	return errors.Join(errs...)
}

// end asks the postmaster to end, first in the given way, then with growing
// force, and returns when it has.
func (p *process) end(pm *postmaster, first syscall.Signal) error {
	for _, signal := range []syscall.Signal{first, syscall.SIGQUIT} {
		if pm.ended() {
			return nil
		}
		// It may have ended just now; done tells.
		_ = syscall.Kill(pm.pid, signal)
		_ = syscall.Kill(pm.pid, syscall.SIGCONT)
		if pm.await(patience) {
			return nil
		}
	}
	return p.kill()
}

// kill stops the postmaster before it looks for the children, so that there can
// be no more of them.
func (p *process) kill() error {
	pm := p.latest()
	if pm.ended() {
		return nil
	}
	if err := syscall.Kill(pm.pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("pgserver: stop process %d: %w", pm.pid, err)
	}
	children, err := childrenOf(pm.pid)
	if err != nil {
		err = fmt.Errorf("pgserver: children of process %d: %w", pm.pid, err)
	}
	for _, pid := range append([]int{pm.pid}, children...) {
		if killErr := syscall.Kill(pid, syscall.SIGKILL); killErr != nil && !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, fmt.Errorf("pgserver: kill process %d: %w", pid, killErr))
		}
	}
	if !pm.await(patience) {
		err = errors.Join(err, fmt.Errorf("pgserver: process %d is still there %v after SIGKILL", pm.pid, patience))
	}
	return errors.Join(err, awaitGone(children))
}

func (pm *postmaster) await(d time.Duration) bool {
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-pm.done:
		return true
	case <-late.C:
		return false
	}
}
