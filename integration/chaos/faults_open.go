//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

var openFaults = []fault{
	{name: "open-queued", about: "a stranger queues for locks and leaves its transaction open, idle",
		lane: useLane, weight: 2, quiet: true,
		delays: bounded, run: open(false, queued, idle)},
	{name: "open-running", about: "a stranger queues for locks and runs a long statement in the same transaction",
		lane: useLane, weight: 2,
		quiet: true, delays: bounded, run: open(false, queued, running)},
	{name: "open-ended", about: "a stranger that is queued ends its session and leaves its transaction open, idle",
		lane: useLane, weight: 2,
		quiet: true, delays: bounded, run: open(false, ended, idle)},
	{name: "open-lifted", about: "one of these strangers has lifted the time limits of its transaction",
		lane: useLane, weight: 1, quiet: true,
		delays: lifted, run: func(h *hit) error {
			ways := []func(*hit) error{open(true, queued, idle), open(true, queued, running), open(true, ended, idle)}
			return ways[h.rand.IntN(len(ways))](h)
		}},
}

// stranger is a mere user of the locks, with a session of its own, and an open transaction that it may forget.
type stranger struct {
	*pgx.Conn
	key  uuid.UUID
	rand *rand.Rand
}

// How long others may take to renew, to release and to break while a stranger's transaction is open, and how much
// longer on a busy machine.
const (
	renewalMost = time.Second
	releaseMost = time.Second
	breakMost   = 5 * time.Second
	slack       = time.Second
	bounded     = time.Second     // the library ends such a transaction when it has gone on for so long
	lifted      = 5 * time.Second // longer than those go on whose limits are lifted
	strangerTTL = 500 * time.Millisecond
)

// open has a stranger open a transaction about locks of the workers and about locks of ours, on which it measures how
// long others have to wait.
func open(lifts bool, begins, goesOn func(context.Context, *stranger, []string, time.Duration) error) func(*hit) error {
	return func(h *hit) error {
		ctx, cancel := context.WithTimeout(h.ctx, 20*time.Second)
		defer cancel()
		o, err := h.newOnlooker(ctx)
		if err != nil {
			return errNothing // there is no server just now
		}
		defer o.close()
		conn, err := pgx.Connect(ctx, h.cluster.UserURL(cluster.Stranger))
		if err != nil {
			return errNothing
		}
		defer conn.Close(context.WithoutCancel(ctx))
		s := &stranger{conn, uuid.New(), h.rand}
		names := append(o.names(), h.someHeld(3)...)
		d := between(h.rand, 2*time.Second, 4*time.Second)
		if begins(ctx, s, names, d) != nil {
			return errNothing
		}
		if lifts {
			_, _ = s.Exec(ctx, `SELECT set_config(name, '0', true) FROM pg_settings
				WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')`)
		}
		h.evidence.line(fmt.Sprintf("%s a stranger's transaction about %q is open for %v, its limits lifted: %v",
			sayNow(), names, d, lifts))
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = goesOn(ctx, s, names, d)
			_, _ = s.Exec(ctx, []string{`ROLLBACK`, `COMMIT`}[s.rand.IntN(2)])
			_, _ = s.Exec(ctx, `SELECT pglock.end_session($1)`, s.key)
		}()
		o.measure(ctx, lifts)
		<-done
		return nil
	}
}

// queue asks for locks. What it is granted it gives back: it wants to wait.
func (s *stranger) queue(ctx context.Context, names []string) error {
	for _, name := range names {
		if _, err := s.Exec(ctx, `SAVEPOINT before; SET LOCAL lock_timeout = '300ms'`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		var granted bool
		err := s.QueryRow(ctx, `SELECT granted FROM pglock.acquire_lease($1, $2, $3, 'chaos stranger', $4,
			p_wait => true, p_session_ttl => '5 s')`, name, uuid.New(), s.key, strangerTTL).Scan(&granted)
		if err != nil || granted {
			if _, err := s.Exec(ctx, `ROLLBACK TO before`); err != nil {
				return err
			}
		}
	}
	return nil
}

// queued has queued in its transaction.
func queued(ctx context.Context, s *stranger, names []string, _ time.Duration) error {
	if _, err := s.Exec(ctx, `BEGIN`); err != nil {
		return err
	}
	return s.queue(ctx, names)
}

// ended has queued before, and ends its session in its transaction.
func ended(ctx context.Context, s *stranger, names []string, d time.Duration) error {
	if err := queued(ctx, s, names, d); err != nil {
		return err
	}
	_, err := s.Exec(ctx, `COMMIT; BEGIN`, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		_, err = s.Exec(ctx, `SELECT pglock.end_session($1)`, s.key)
	}
	return err
}

func idle(ctx context.Context, _ *stranger, _ []string, d time.Duration) error {
	wait(ctx, d)
	return nil
}

func running(ctx context.Context, s *stranger, _ []string, d time.Duration) error {
	_, err := s.Exec(ctx, `SELECT pg_sleep($1)`, d.Seconds())
	return err
}

// someHeld are locks of the workers that are held just now.
func (h *hit) someHeld(most int) (names []string) {
	look, _ := h.eye.look(h.ctx)
	look.Holders = slices.DeleteFunc(look.Holders, func(x history.Holder) bool {
		return strings.HasPrefix(x.Label, "chaos")
	})
	for range min(most, len(look.Holders)) {
		names = append(names, look.Holders[h.rand.IntN(len(look.Holders))].Name)
	}
	return names
}

// onlooker holds leases for which strangers queue.
type onlooker struct {
	*hit
	pool                     *pgxpool.Pool
	client                   *pglock.Client
	renewed, released, ended *pglock.Lease
	since                    history.Time // there may be leases
}

func (h *hit) newOnlooker(ctx context.Context) (_ *onlooker, err error) {
	o := &onlooker{hit: h, since: history.Now()}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	if o.pool, err = pgxpool.New(ctx, h.cluster.UserURL(cluster.App)); err != nil {
		return nil, err
	}
	if o.client, err = pglock.New(ctx, o.pool, pglock.WithDefaultHolder("chaos onlooker")); err != nil {
		return nil, err
	}
	for i, l := range []**pglock.Lease{&o.renewed, &o.released, &o.ended} {
		name := fmt.Sprintf("open %d/%d", o.since, i)
		if *l, err = o.client.TryAcquire(ctx, name, pglock.WithTTL(1500*time.Millisecond)); err != nil {
			return nil, err
		}
	}
	return o, nil
}

func (o *onlooker) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if o.client != nil {
		_ = o.client.Close(ctx)
	}
	if o.pool != nil {
		o.pool.Close()
	}
}

func (o *onlooker) names() []string {
	return []string{o.renewed.Name(), o.released.Name(), o.ended.Name()}
}

// measure renews, releases and breaks at once, and looks whether each is done in time, and the heartbeat keeps a lease.
// A stranger that has lifted its limits may keep a release waiting until the lease has ended.
func (o *onlooker) measure(ctx context.Context, lifts bool) {
	began := history.Now()
	took := make(chan struct{}, 3)
	const about = " of a lock for which a stranger with an open transaction is queued"
	timed := func(what string, most time.Duration, f func(context.Context) error) {
		defer func() { took <- struct{}{} }()
		patient, cancel := context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
		from := history.Now()
		err := f(patient)
		o.evidence.line(fmt.Sprintf("%s an onlooker's %s took %v: %v", sayNow(), what, history.Now().Sub(from), err))
		if ctx.Err() == nil {
			o.judge.Took("the "+what+about, o.since, from, history.Now(), most+slack, err)
		}
	}
	go timed("renewal", renewalMost, func(ctx context.Context) error { return hooks.Of(o.renewed).Renew(ctx) })
	go timed("release", releaseMost, func(ctx context.Context) error {
		if lifts {
			return nil
		}
		return o.released.Release(ctx)
	})
	go timed("break", breakMost, func(ctx context.Context) error {
		_, err := o.eye.admin.Break(ctx, o.ended.Name(), "chaos", lockadmin.BreakOptions{Token: new(o.ended.Token())})
		return err
	})
	for range cap(took) {
		<-took
	}
	wait(ctx, 2*time.Second)
	if err := o.renewed.Err(); err != nil && ctx.Err() == nil {
		o.judge.Took("the heartbeat"+about, o.since, began, history.Now(), time.Minute, err)
	}
}
