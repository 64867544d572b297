package leader_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// The third in the queue is named: it leads within a second, and the others keep their places before it was named.
func TestHandOverMakesTheNamedCandidateLead(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false)
	now := m.leads()
	others := e.queue("b", "c", "d", "e")
	began := time.Now()
	must.Do(t, m.HandOver(t.Context(), "d"))
	if why := now.told(t); why != leader.ErrHandOver || now.lease.Err() != pglock.ErrReleased {
		t.Errorf("the work ended with %v, and the lease with %v", why, now.lease.Err())
	}
	d := others[2].leads()
	if took := time.Since(began); took > 10*time.Second { // a second; the rest is for a busy machine
		t.Errorf("the named candidate led after %v", took)
	} else {
		t.Logf("the named candidate led after %v", took)
	}
	e.eventually("the old leader to queue", func() bool { return e.waiting() == 4 })
	last := d
	was := others[2]
	for _, next := range []*member{others[0], others[1], others[3], m} {
		must.Do(t, was.Resign(t.Context()))
		term := next.leads()
		if term.lease.Token() <= last.lease.Token() {
			t.Errorf("%v leads after %v", term.lease, last.lease)
		}
		was, last = next, term
	}
}

func TestHandOverToNobodyDoesNotDisturbTheWork(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false)
	now := m.leads()
	other := e.queue("b")[0]
	for name, tc := range map[string]struct {
		to   string
		want error
	}{"nobody": {"c", pglock.ErrNoWaiter}, "itself": {"a", pglock.ErrNoWaiter}, "no label": {"", pglock.ErrInvalid}} {
		if err := m.HandOver(t.Context(), tc.to); !errors.Is(err, tc.want) {
			t.Errorf("to %s: %v", name, err)
		}
	}
	if err := now.ctx.Err(); err != nil || len(m.terms)+len(other.terms) != 0 ||
		m.Status().State != leader.StateLeading {
		t.Errorf("the work was disturbed: %v, %+v", err, m.Status())
	}
	if err := other.HandOver(t.Context(), "a"); !errors.Is(err, leader.ErrNotLeading) {
		t.Errorf("from a candidate that does not lead: %v", err)
	}
	if err := other.Resign(t.Context()); !errors.Is(err, leader.ErrNotLeading) {
		t.Errorf("a resignation of a candidate that does not lead: %v", err)
	}
	if err := m.HandOver(now.ctx, "b"); !errors.Is(err, pglock.ErrInvalid) {
		t.Errorf("with the context of the work: %v", err)
	}
	if err := m.Resign(now.ctx); !errors.Is(err, pglock.ErrInvalid) {
		t.Errorf("a resignation with the context of the work: %v", err)
	}
	if err := now.ctx.Err(); err != nil {
		t.Errorf("the work was disturbed: %v", err)
	}
}

// The named candidate gives up while the work stops: the leader stays leader, with the same lease.
func TestHandOverToACandidateThatLeavesMeanwhileLetsTheLeaderGoOn(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", true)
	now := m.leads()
	other := e.queue("b", "c")[1]
	handed := must.Go(func() error { return m.HandOver(t.Context(), "c") })
	now.told(t)
	other.leave()
	if err := other.ends(); err == nil {
		t.Fatal("the named candidate has led")
	}
	e.eventually("the named candidate to leave the queue", func() bool { return e.waiting() == 1 })
	halfDone := errors.New("half of it is done")
	now.whenTold <- halfDone
	close(now.free)
	if err := receive(t, handed, "the end of HandOver"); !errors.Is(err, pglock.ErrNoWaiter) {
		t.Errorf("HandOver: %v", err)
	}
	again := m.leads()
	if again.lease != now.lease || !again.lease.Valid() || again.ctx.Err() != nil {
		t.Errorf("the leader goes on with %v, %v", again.lease, again.ctx.Err())
	}
	if s := m.Status(); s.State != leader.StateLeading || s.Err != halfDone {
		t.Errorf("the leader says of itself: %+v", s)
	}
	close(again.free)
	if err := m.HandOver(t.Context(), "b"); err != nil {
		t.Errorf("a second HandOver: %v", err)
	}
}

// Somebody asks to hand over, and the leader loses its lease while the work stops.
func TestHandOverOfALeadershipThatWasLostSaysSo(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", true)
	now := m.leads()
	other := e.queue("b", "c")[0]
	handed := must.Go(func() error { return m.HandOver(t.Context(), "c") })
	now.told(t)
	e.breaks()
	other.leads() // the break serves the queue in its order
	close(now.free)
	if err := receive(t, handed, "the end of HandOver"); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("HandOver: %v", err)
	}
	e.eventually("the old leader to queue", func() bool { return e.waiting() == 2 })
}

// fn does not return to hand the lock over: it is released, and goes to the first in the queue.
func TestHandOverByWorkThatPanicsSaysThatTheLockWasReleased(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(){"panic": func() { panic("fn") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			c := e.candidate(e.client())
			leads, over := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(over)
				defer func() { _ = recover() }()
				_ = c.Run(t.Context(), func(ctx context.Context, _ *pglock.Lease) error {
					close(leads)
					<-ctx.Done()
					leave()
					return nil
				})
			}()
			receive(t, leads, "the candidate leads")
			others := e.queue("b", "c")
			err := c.HandOver(t.Context(), "c")
			if !errors.Is(err, leader.ErrNotLeading) || !strings.Contains(err.Error(), "released, not handed over") {
				t.Errorf("HandOver: %v", err)
			}
			receive(t, over, "the end of Run")
			others[0].leads()
			if len(others[1].terms) != 0 {
				t.Error("the named candidate leads")
			}
		})
	}
}
