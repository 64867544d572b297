package leader_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// patience bounds every wait for something that happens at once unless the code is broken.
const patience = 20 * time.Second

// election is a lock that candidates of a test campaign for.
type election struct {
	t     *testing.T
	pool  *pgxpool.Pool
	admin *lockadmin.Admin
	acts  atomic.Int32 // how many work as leaders

	broken atomic.Bool // by the test: the old leader works on until its next heartbeat
}

func newElection(t *testing.T) *election {
	t.Helper()
	pool := pgtest.Database(t).Pool(t)
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	return &election{t: t, pool: pool, admin: admin}
}

func (e *election) client(opts ...pglock.Option) *pglock.Client {
	e.t.Helper()
	c := must.Get(pglock.New(e.t.Context(), e.pool, opts...))(e.t)
	e.t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// member is a candidate with a client of its own, whose Run is under way.
type member struct {
	*leader.Candidate
	e     *election
	label string
	terms chan *term
	over  chan error // of Run
	leave context.CancelFunc
}

// term is one call of fn, which returns what it is given, or the error of its context when that has ended and it is
// free to stop.
type term struct {
	ctx      context.Context
	lease    *pglock.Lease
	returns  chan error // now
	whenTold chan error // when its context has ended, in place of the context's error
	free     chan struct{}
}

// candidate makes a candidate for the lock of the election.
func (e *election) candidate(client *pglock.Client, opts ...leader.Option) *leader.Candidate {
	e.t.Helper()
	c := must.Get(leader.New(client, "x", opts...))(e.t)
	return c
}

// join starts a candidate. Its work stops when its context has ended, and where it is stubborn only when it is freed.
func (e *election) join(label string, stubborn bool, opts ...leader.Option) *member {
	e.t.Helper()
	ctx, leave := context.WithCancel(context.WithoutCancel(e.t.Context()))
	m := &member{e: e, label: label, terms: make(chan *term, 16), over: make(chan error, 1), leave: leave,
		Candidate: e.candidate(e.client(), append([]leader.Option{leader.WithHolder(label)}, opts...)...)}
	ended := make(chan struct{})
	abandoned := make(chan struct{}) // the test is over
	go func() {
		defer close(ended)
		m.over <- m.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
			if n := e.acts.Add(1); n != 1 && !e.broken.Load() {
				e.t.Errorf("%d candidates act", n)
			}
			defer e.acts.Add(-1)
			now := &term{ctx, lease, make(chan error, 1), make(chan error, 1), make(chan struct{})}
			if !stubborn {
				close(now.free)
			}
			m.terms <- now
			select {
			case err := <-now.returns:
				return err
			case <-ctx.Done():
			}
			select {
			case <-now.free:
			case <-abandoned:
			}
			select {
			case err := <-now.whenTold:
				return err
			default:
				return ctx.Err()
			}
		})
	}()
	e.t.Cleanup(func() { close(abandoned); leave(); <-ended })
	return m
}

// queue starts candidates, each behind the one before it.
func (e *election) queue(labels ...string) (members []*member) {
	e.t.Helper()
	for _, label := range labels {
		before := e.waiting()
		m := e.join(label, false)
		e.eventually(label+" to queue", func() bool { return e.waiting() == before+1 })
		members = append(members, m)
	}
	return members
}

func (e *election) waiting() (n int) {
	e.t.Helper()
	for _, err := range e.admin.Waiters(e.t.Context(), lockadmin.WaitersQuery{Lock: "x"}) {
		if err != nil {
			e.t.Fatal(err)
		}
		n++
	}
	return n
}

func (e *election) eventually(what string, done func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// breaks ends the leadership as an operator does.
func (e *election) breaks() {
	e.t.Helper()
	e.broken.Store(true)
	must.Get(e.admin.Break(e.t.Context(), "x", "a test", lockadmin.BreakOptions{}))(e.t)
}

func (e *election) held() bool {
	e.t.Helper()
	info, err := e.admin.Get(e.t.Context(), "x")
	if err != nil && !errors.Is(err, lockadmin.ErrNotFound) {
		e.t.Fatal(err)
	}
	return info.Held
}

// leads waits until the member leads.
func (m *member) leads() *term {
	m.e.t.Helper()
	return receive(m.e.t, m.terms, m.label+" leads")
}

// ends waits for Run.
func (m *member) ends() error {
	m.e.t.Helper()
	return receive(m.e.t, m.over, "Run of "+m.label+" ends")
}

func receive[T any](t *testing.T, from <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("waited %v in vain: %s", patience, what)
	}
	return v
}

// told waits until the context of the work has ended, and says why.
func (n *term) told(t *testing.T) error {
	t.Helper()
	receive(t, n.ctx.Done(), "the context of the work ends")
	return context.Cause(n.ctx)
}
