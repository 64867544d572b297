package leader_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

func TestOneCandidateLeadsAtATimeAndTheNextFollowsWhenItResigns(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	first := e.join("a", false)
	now := first.leads()
	others := e.queue("b", "c")
	all := []*member{first, others[0], others[1]}
	for n := range 6 { // twice around
		was := all[n%3]
		s := was.Status()
		if s.State != leader.StateLeading || s.Token != now.lease.Token() || s.Err != nil || s.Lock != "x" {
			t.Errorf("the leader says of itself: %+v", s)
		}
		next := all[(n+1)%3]
		if s := next.Status(); s.State != leader.StateCampaigning || s.Token != 0 {
			t.Errorf("a candidate says of itself: %+v", s)
		}
		must.Do(t, was.Resign(t.Context()))
		if why := now.told(t); why != leader.ErrResigned || now.lease.Err() != pglock.ErrReleased {
			t.Errorf("the work ended with %v, and the lease with %v", why, now.lease.Err())
		}
		term := next.leads()
		if term.lease.Token() <= now.lease.Token() || term.lease.Holder() != next.label {
			t.Errorf("%v leads after %v", term.lease, now.lease)
		}
		now = term
		e.eventually("the one that resigned to queue again", func() bool { return e.waiting() == 2 })
	}
}

func TestLossEndsTheWorkAndTheCandidateCampaignsAgain(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false, leader.WithTTL(6*time.Second))
	now := m.leads()
	halfDone := errors.New("half of it is done")
	now.whenTold <- halfDone
	e.queue("b")
	e.breaks()
	if why := now.told(t); !errors.Is(why, pglock.ErrLost) {
		t.Errorf("the work ended with %v", why)
	}
	e.eventually("the old leader to queue", func() bool { return e.waiting() == 1 })
	s := m.Status()
	if s.State != leader.StateCampaigning || !errors.Is(s.Err, pglock.ErrLost) || !errors.Is(s.Err, halfDone) {
		t.Errorf("the old leader says of itself: %+v", s)
	}
}

// The lease is kept, and renewed, until the work has stopped; only then is it released.
func TestNobodyElseLeadsBeforeTheWorkHasStopped(t *testing.T) {
	t.Parallel()
	// ended has a call step down, whose ctx ends when the work is told.
	ended := func(m *member, now *term, what string, call func(context.Context) error) {
		m.e.t.Helper()
		ctx, cancel := context.WithCancel(m.e.t.Context())
		defer cancel()
		over := must.Go(func() error { return call(ctx) })
		now.told(m.e.t)
		cancel()
		if err := receive(m.e.t, over, what); !errors.Is(err, context.Canceled) {
			m.e.t.Errorf("%s, whose ctx has ended: %v", what, err)
		}
	}
	for name, stop := range map[string]func(m *member, now *term){
		"the end of ctx": func(m *member, _ *term) { m.leave() },
		"a resignation": func(m *member, now *term) {
			ended(m, now, "Resign", m.Resign)
			if err := m.Resign(m.e.t.Context()); !errors.Is(err, leader.ErrNotLeading) {
				m.e.t.Errorf("Resign while the leader stops: %v", err)
			}
		},
		"a hand-over": func(m *member, now *term) {
			ended(m, now, "HandOver", func(ctx context.Context) error { return m.HandOver(ctx, "b") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			m := e.join("a", true, leader.WithTTL(6*time.Second))
			now := m.leads()
			next := e.queue("b")[0]
			stop(m, now)
			now.told(t)
			renewed := now.lease.Deadline()
			e.eventually("the lease to be renewed twice", func() bool {
				return now.lease.Deadline().After(renewed.Add(3 * time.Second))
			})
			if s := m.Status(); len(next.terms) != 0 || s.State != leader.StateStopping ||
				s.Token != now.lease.Token() {
				t.Errorf("while the work has not stopped: %d others, %+v", len(next.terms), s)
			}
			close(now.free)
			next.leads()
			if name == "the end of ctx" {
				if err := m.ends(); !isCanceledAlone(err) {
					t.Errorf("Run: %v", err)
				}
			}
		})
	}
}

func TestWhatFnReturnsByItselfEndsRun(t *testing.T) {
	t.Parallel()
	broken := errors.New("the disk is full")
	for name, result := range map[string]error{"nil": nil, "an error": broken,
		"an error of a context": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			m := e.join("a", false)
			now := m.leads()
			next := e.queue("b")[0]
			now.returns <- result
			if err := m.ends(); !errors.Is(err, result) || (err == nil) != (result == nil) {
				t.Errorf("Run: %v", err)
			}
			next.leads()
			if s := m.Status(); s.State != leader.StateIdle || now.lease.Err() != pglock.ErrReleased {
				t.Errorf("after Run: %+v, %v", s, now.lease.Err())
			}
		})
	}
}

func TestWhatFnReturnsWhenItHadToStopIsJoinedAtTheEndOfCtx(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false)
	now := m.leads()
	unsaved := errors.New("the last file is not saved")
	now.whenTold <- unsaved
	m.leave()
	if err := m.ends(); !errors.Is(err, context.Canceled) || !errors.Is(err, unsaved) {
		t.Errorf("Run: %v", err)
	}
	if e.held() {
		t.Error("the lock is not released")
	}
}

// A write whose outcome is unknown says why, which may be the end of fn's context; its receipt is not forgotten.
func TestAnUnknownOutcomeIsNotOnlyTheEndOfTheWorksContext(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false)
	now := m.leads()
	now.whenTold <- &fencedstore.OutcomeUnknownError{Err: context.Canceled}
	next := e.queue("b")[0]
	must.Do(t, m.Resign(t.Context()))
	next.leads()
	e.eventually("the one that resigned to queue again", func() bool { return e.waiting() == 1 })
	if s := m.Status(); s.State != leader.StateCampaigning || !errors.Is(s.Err, pglock.ErrOutcomeUnknown) {
		t.Errorf("Status: %+v", s)
	}
	next.leave()
	now = m.leads()
	now.whenTold <- &fencedstore.OutcomeUnknownError{Err: context.Canceled}
	m.leave()
	if err := m.ends(); !errors.Is(err, context.Canceled) || !errors.Is(err, pglock.ErrOutcomeUnknown) {
		t.Errorf("Run: %v", err)
	}
}

// An operator breaks the lease, and fn returns before its heartbeat hears of that.
func TestRunSaysWhenLeadershipWasLostBeforeFnReturned(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false, leader.WithTTL(time.Hour))
	now := m.leads()
	e.breaks()
	now.returns <- nil
	if err := m.ends(); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("Run: %v", err)
	}
}

// A fence refuses the work before its context ends, and fn returns that error: it is a loss, and no end of Run.
func TestAnErrorOfALeaderThatHasLostItsLeaseIsALoss(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false, leader.WithTTL(time.Hour))
	now := m.leads()
	e.breaks()
	refused := errors.New("refused by a fence")
	now.returns <- refused
	again := m.leads()
	if again.lease.Token() <= now.lease.Token() || !again.lease.Valid() || m.Status().Err != nil {
		t.Errorf("%v leads after %v: %+v", again.lease, now.lease, m.Status())
	}
}

func TestAPanicOfFnReleasesTheLockAndGoesOn(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(){"panic": func() { panic("fn") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			c := e.candidate(e.client())
			asked, panicked := make(chan error, 1), make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				_ = c.Run(t.Context(), func(ctx context.Context, _ *pglock.Lease) error {
					go func() { asked <- c.Resign(context.WithoutCancel(t.Context())) }()
					<-ctx.Done()
					leave()
					return nil
				})
			}()
			if got := receive(t, panicked, "the end of Run"); (got != nil) != (name == "panic") {
				t.Errorf("recovered %v", got)
			}
			if err := receive(t, asked, "the end of Resign"); err != nil {
				t.Errorf("Resign: %v", err)
			}
			if s := c.Status(); e.held() || s.State != leader.StateIdle {
				t.Errorf("after Run: held is %v, %+v", e.held(), s)
			}
		})
	}
}

func TestCtxThatHasEndedCallsNoFn(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	fn := func(context.Context, *pglock.Lease) error { return errors.New("fn ran") }
	err := e.candidate(e.client()).Run(ctx, fn)
	if !isCanceledAlone(err) {
		t.Errorf("Run: %v", err)
	}
	m := e.join("a", false)
	m.leads()
	ctx, cancel = context.WithCancel(t.Context())
	over := make(chan error, 1)
	c := e.candidate(e.client())
	go func() { over <- c.Run(ctx, fn) }()
	e.eventually("the candidate to queue", func() bool { return e.waiting() == 1 })
	cancel()
	if err := receive(t, over, "Run"); !isCanceledAlone(err) {
		t.Errorf("Run of a candidate that waits: %v", err)
	}
	e.eventually("the candidate to leave the queue", func() bool { return e.waiting() == 0 })
}

func TestCloseOfTheClientEndsRun(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	client := e.client()
	over := make(chan error, 1)
	leads := make(chan struct{})
	c := e.candidate(client)
	go func() {
		over <- c.Run(t.Context(), func(ctx context.Context, _ *pglock.Lease) error {
			close(leads)
			<-ctx.Done()
			return nil
		})
	}()
	receive(t, leads, "the candidate leads")
	must.Do(t, client.Close(t.Context()))
	if err := receive(t, over, "Run"); !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
}

func TestBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	client := e.client()
	make := func(client *pglock.Client, name string, opts ...leader.Option) func() error {
		return func() error {
			c, err := leader.New(client, name, opts...)
			if (c == nil) != (err != nil) {
				t.Errorf("%v, with %v", c, err)
			}
			return err
		}
	}
	for name, run := range map[string]func() error{
		"no client":          make(nil, "x"),
		"made by hand":       func() error { return new(leader.Candidate).Run(t.Context(), nil) },
		"no fn":              func() error { return e.candidate(client).Run(t.Context(), nil) },
		"no name":            make(client, ""),
		"nil option":         make(client, "x", nil),
		"TTL":                make(client, "x", leader.WithTTL(time.Millisecond)),
		"label":              make(client, "x", leader.WithHolder("")),
		"metadata":           make(client, "x", leader.WithMetadata([]byte("{"))),
		"tolerance":          make(client, "x", leader.WithTolerance(-1)),
		"observe: no client": func() error { _, err := leader.Current(t.Context(), nil, "x"); return err },
		"observe: no name":   func() error { _, err := leader.Current(t.Context(), client, ""); return err },
	} {
		if err := run(); !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := e.admin.Get(t.Context(), "x"); err == nil {
		t.Error("something was sent")
	}
}

func TestRunOfACandidateIsOneAtATime(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false)
	now := m.leads()
	fn := func(context.Context, *pglock.Lease) error { return nil }
	if err := m.Run(t.Context(), fn); !errors.Is(err, leader.ErrRunning) {
		t.Errorf("a second Run: %v", err)
	}
	if !now.lease.Valid() {
		t.Error(now.lease.Err())
	}
	now.returns <- nil
	must.Do(t, m.ends())
	if err := m.Run(t.Context(), fn); err != nil {
		t.Errorf("Run after Run: %v", err)
	}
}

// isCanceledAlone says of an error of Run that ctx was canceled, and that there is nothing else to say.
func isCanceledAlone(err error) bool {
	return errors.Is(err, context.Canceled) && err.Error() == `leader: run for lock "x": context canceled`
}
