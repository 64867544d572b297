//go:build unix

package minder

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/trust"
)

// stubborn starts a command that ignores TERM, which is killed so long after TERM, and waits until it runs.
func stubborn(t *testing.T, killAfter time.Duration) *Group {
	t.Helper()
	ready := filepath.Join(t.TempDir(), "ready")
	g := must.Get(Start(Command{
		Minder: []string{mindful}, Path: "/bin/sh", KillAfter: killAfter, Deadline: time.Now().Add(time.Hour),
		Args: []string{"sh", "-c", `trap '' TERM; : > "$0"; while :; do sleep 0.05; done`, ready},
	}))(t)
	t.Cleanup(func() { _ = g.Close() }) // its events have told how it ended
	for began := time.Now(); time.Since(began) < patience; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(ready); err == nil {
			return g
		}
	}
	t.Fatal("the command does not run")
	return nil
}

// patience bounds a wait for what happens at once unless the code is broken.
const patience = 20 * time.Second

// isKilled waits until the command has been killed.
func (g *Group) isKilled(t *testing.T) {
	t.Helper()
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case e, more := <-g.Events:
			if e.Kind == Ended || !more {
				if e.Signal != syscall.SIGKILL {
					t.Errorf("the command has ended by %+v, want KILL", e)
				}
				return
			}
		case <-late.C:
			t.Fatalf("the group lives for %v longer than it should", patience)
		}
	}
}

// A minder that was stopped is late with TERM. It kills the group by the deadline all the same, or at once if the
// deadline has passed: the time from TERM to KILL never goes beyond it.
func TestALateMinderKillsTheGroupByTheDeadline(t *testing.T) {
	t.Parallel()
	const (
		killAfter = time.Minute // from TERM, if the deadline allows it
		left      = time.Second // until the deadline
	)
	for what, stopped := range map[string]time.Duration{"not late": 0, "late": left / 2,
		"after the deadline": 2 * left} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			g := stubborn(t, killAfter)
			if stopped > 0 {
				_ = g.minder.Signal(syscall.SIGSTOP)
			}
			deadline := time.Now().Add(left)
			g.Trust(deadline)
			if stopped > 0 {
				time.Sleep(stopped)
				_ = g.minder.Signal(syscall.SIGCONT)
			}
			g.isKilled(t) // a busy machine is late; a minder that counts from TERM is later
			if early := time.Until(deadline); early > 0 {
				t.Errorf("it was killed %v before the deadline", early)
			}
		})
	}
}

// A message that was long on its way, because the minder was stopped, gives no more time than was left when it was
// sent.
func TestADeadlineThatComesLateIsNoLater(t *testing.T) {
	t.Parallel()
	g := stubborn(t, time.Minute)
	g.tell(order{Trust: &span{Wall: time.Now().Add(-time.Hour).UnixNano(), Left: time.Hour}})
	g.isKilled(t)
}

// A group that was asked to end ends: a renewal that comes after TERM gives it no more time.
func TestAGroupThatGotTermIsKilledThoughTheDeadlineMoves(t *testing.T) {
	t.Parallel()
	g := stubborn(t, 200*time.Millisecond)
	g.End()
	g.Trust(time.Now().Add(time.Hour))
	g.isKilled(t)
}

// Timers do not follow the wall clock, which may jump, as when the machine was suspended: the minder looks at it every
// second, however far away the deadline is, and does what it says.
func TestTheMinderSeesAClockThatJumpsWithinASecond(t *testing.T) {
	t.Parallel()
	now := trust.Instant{Mono: time.Hour, Wall: time.Now().Round(0)}
	for what, m := range map[string]*minder{
		"before TERM": {killAfter: time.Minute}, "after TERM": {killAfter: time.Minute, warned: true},
		"after KILL": {warned: true, killed: true}, "after the command": {warned: true, ended: &Event{}},
	} {
		m.clock, m.deadline = func() trust.Instant { return now }, now.Add(24*time.Hour)
		if next := m.next(); next <= 0 || next > time.Second {
			t.Errorf("%s it looks again after %v", what, next)
		}
	}
	m := &minder{clock: func() trust.Instant { return now }, deadline: now.Add(time.Hour), killAfter: time.Minute}
	m.deadline.Wall = now.Wall // the wall clock has jumped, the other stood still
	if next := m.next(); next != 0 {
		t.Errorf("past the deadline it waits for %v", next)
	}
}
