package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// fault is what a call may meet. inject makes the calls, and returns when the fault is over and the barrier open.
type fault struct {
	name   string
	long   bool // in the long tier alone
	fits   func(k *kind) bool
	want   func(k *kind) *answer // of the calls that are cancelled, or of all where none is
	inject func(x *cell)
}

// answer is what a call must answer.
type answer struct {
	what string
	is   func(error) bool
}

var (
	succeeds    = &answer{"success", func(err error) bool { return err == nil }}
	isCancelled = &answer{"context.Canceled", func(err error) bool { return errors.Is(err, context.Canceled) }}
	isClosed    = &answer{"ErrClosed", func(err error) bool { return errors.Is(err, pglock.ErrClosed) }}
	isReleased  = &answer{"ErrReleased", func(err error) bool { return errors.Is(err, pglock.ErrReleased) }}
	isBroken    = &answer{"ErrLost: broken", isLost(pglock.ReasonBroken)}
	isExpired   = &answer{"ErrLost: expired", isLost(pglock.ReasonExpired)}
	fails       = &answer{"the failure of the connection", func(err error) bool {
		var pgErr *pgconn.PgError
		return err != nil && (!errors.As(err, &pgErr) || pgErr.Code == "57P01") && !isCancelled.is(err) &&
			!isClosed.is(err) && !errors.Is(err, pglock.ErrOutcomeUnknown) && !errors.Is(err, pglock.ErrLost)
	}}
	isTold = &answer{"what became of it, or context.Canceled", func(err error) bool {
		return eitherWay.is(err) || isCancelled.is(err)
	}}
	eitherWay = &answer{"success, or the failure of the connection", func(err error) bool {
		return succeeds.is(err) || fails.is(err)
	}}
)

func isLost(reason pglock.Reason) func(error) bool {
	return func(err error) bool {
		var lost *pglock.LostError
		return errors.As(err, &lost) && lost.Reason == reason && errors.Is(err, pglock.ErrLost)
	}
}

func always(a *answer) func(*kind) *answer { return func(*kind) *answer { return a } }

// again is what a call answers that asks again by itself, and that which does not.
func again(not *answer) func(*kind) *answer {
	return func(k *kind) *answer {
		if k.once {
			return not
		}
		return succeeds
	}
}

// cancelledOrTold is the end of its context, and of a write what became of it, if that can be learned.
func cancelledOrTold(k *kind) *answer {
	if k.writes {
		return isTold
	}
	return isCancelled
}

func all(*kind) bool         { return true }
func sends(k *kind) bool     { return !k.reads }
func asksAgain(k *kind) bool { return !k.once }
func acquires(k *kind) bool  { return !k.leased }
func queues(k *kind) bool    { return k.queued }
func owns(k *kind) bool      { return k.leased && k.names == nil }

var faults = []*fault{
	{name: "none", fits: sends, want: always(succeeds), inject: func(x *cell) {
		x.heldUp()
		x.open()
	}},
	{name: "I6 the request is lost", fits: all, want: again(fails), inject: func(x *cell) {
		x.unsent(func() { x.n.cut(x.T, "upstream") })
		x.lineIsLost()
		x.n.mend()
	}},
	{name: "I6 the server ends its connection", fits: sends, want: again(fails), inject: func(x *cell) {
		x.heldUp()
		x.look.exec(x.T, `SELECT pg_terminate_backend($1, 10000)`, x.pid)
		x.open()
	}},
	{name: "I6 its connection is lost and it goes on", fits: sends, want: again(eitherWay), inject: func(x *cell) {
		x.heldUp()
		x.n.closeAll()
		if !x.k.once && !x.k.skipped {
			pgtest.Eventually(x.T, "a second attempt to wait for the first", func() bool {
				return one[int](x.T, x.look, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND pid <> $2
					AND $2 = ANY (pg_blocking_pids(pid))`, x.app, x.pid) > 0
			})
		}
		x.open()
	}},
	{name: "I6 I17 its connection is lost and it is rolled back", fits: sends, want: again(fails),
		inject: func(x *cell) {
			x.heldUp()
			x.n.closeAll()
			x.look.exec(x.T, `SELECT pg_terminate_backend($1, 10000)`, x.pid)
			x.open()
		}},
	{name: "I6 I17 the answer is lost", fits: sends, want: func(k *kind) *answer {
		switch {
		case k.writes:
			return succeeds
		case k.checks != nil && k.once:
			return eitherWay // it may have been sent again; whether it was done is checked
		}
		return again(fails)(k)
	}, inject: func(x *cell) {
		x.heldUp()
		x.n.cut(x.T, "downstream")
		x.open()
		x.awaitEnd()
		x.n.mend()
	}},
	{name: "Trap9 cancelled before it is sent", fits: acquires, want: always(isCancelled), inject: func(x *cell) {
		x.unsent(func() {
			x.cancel(false)
			x.awaitCancelled()
		})
		x.wantNotSent()
	}},
	{name: "Trap9 cancelled while it is under way", fits: sends, want: cancelledOrTold,
		inject: func(x *cell) {
			x.heldUp()
			x.cancel(false)
			if !x.k.writes { // which would wait for the outcome
				x.awaitCancelled()
			}
			x.open()
		}},
	{name: "Trap9 cancelled when its answer is lost", fits: asksAgain, want: always(isCancelled),
		inject: func(x *cell) {
			x.heldUp()
			x.n.cut(x.T, "downstream")
			x.open()
			x.awaitEnd()
			x.cancel(true)
			x.awaitCancelled()
		}},
	{name: "Trap9 cancelled when its answer is swallowed", fits: sends, want: cancelledOrTold,
		inject: func(x *cell) {
			x.heldUp()
			x.n.silence(x.T, "downstream")
			x.open()
			x.awaitEnd()
			x.cancel(true)
			if !x.k.writes {
				x.awaitCancelled()
			}
		}},
	{name: "Trap9 cancelled, and its statement hangs", long: true, want: always(isCancelled),
		fits: func(k *kind) bool { return k.names != nil && !k.leased && !k.queued }, inject: func(x *cell) {
			x.n.cancels.Store(true)
			x.heldUp()
			x.cancel(true)
			x.wantEndedInTime()
			x.open()
		}},
	{name: "the client is closed while it is under way", fits: func(k *kind) bool { return sends(k) && !k.writes },
		want: func(k *kind) *answer {
			if k.ends {
				return succeeds // Close waits for it
			}
			return isClosed
		}, inject: func(x *cell) {
			x.heldUp()
			done := must.Go(func() error { return x.c.Close(context.WithoutCancel(x.Context())) })
			pgtest.Eventually(x.T, "the client to be closed", func() bool {
				_, err := x.c.TryAcquire(x.Context(), "closed?")
				return isClosed.is(err)
			})
			x.open()
			x.closed, x.told = true, true
			if err := <-done; err != nil {
				x.Errorf("Close: %v", err)
			}
		}},
	{name: "the client is closed while the server is silent",
		fits: func(k *kind) bool { return sends(k) && !k.writes && k.names == nil },
		want: always(isClosed), inject: func(x *cell) {
			x.heldUp()
			x.n.silence(x.T, "downstream")
			x.open()
			x.closed = true
			ctx, cancel := context.WithTimeout(x.Context(), 500*time.Millisecond)
			defer cancel()
			began := time.Now()
			_ = x.c.Close(ctx)
			if took := time.Since(began); took > patience/2 {
				x.Errorf("Close returned after %v, and had 500ms", took)
			}
		}},
	{name: "Trap9 cancelled while it waits", fits: queues, want: always(isCancelled), inject: func(x *cell) {
		x.queued(true)
		x.cancel(false)
		x.awaitCancelled()
		x.wantToldWhoHolds()
	}},
	{name: "Trap9 cancelled while it is being granted", fits: func(k *kind) bool { return queues(k) && k.names == nil },
		want: always(isCancelled), inject: func(x *cell) {
			x.queued(false)
			x.b.close(x.T)
			work := pgtest.Group(x.T)
			work.Go(func() { mustRelease(x.T, x.theirs[0]) })
			x.b.await(x.T, "release_lease")
			x.cancel(false)
			x.awaitCancelled()
			x.open()
			work.Wait()
		}},
	{name: "I8 its connections are ended while it waits", fits: queues, want: always(succeeds),
		inject: func(x *cell) {
			x.queued(false)
			x.look.exec(x.T, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, x.app)
		}},
	{name: "the client is closed while it waits", fits: queues, want: always(isClosed), inject: func(x *cell) {
		x.queued(true)
		x.closed, x.told = true, true
		if err := x.c.Close(x.Context()); err != nil {
			x.Errorf("Close: %v", err)
		}
	}},
	{name: "I10 its lease was broken", fits: owns, want: always(isBroken), inject: func(x *cell) {
		if _, err := newAdmin(x.T, x.db.Pool(x.T)).Break(x.Context(), "m", "test",
			lockadmin.BreakOptions{}); err != nil {
			x.Fatal(err)
		}
		x.start()
	}},
	{name: "I7 its lease has run out", fits: owns, want: always(isExpired), inject: func(x *cell) {
		endNow(x.T, x.look, "m")
		x.start()
	}},
	{name: "I5 its lease was released", fits: owns, want: always(isReleased), inject: func(x *cell) {
		mustRelease(x.T, x.ours[0])
		x.start()
	}},
}

// lineIsLost returns when a connection of the client has met its end.
func (x *cell) lineIsLost() {
	x.Helper()
	pgtest.Eventually(x.T, "the connection to be cut", func() bool { return x.n.lost.Load() > 0 })
}

// queued makes the calls, and returns when they know their places. Another waits behind one that is alone, and maybe
// one ahead.
func (x *cell) queued(ahead bool) {
	x.Helper()
	if x.k.names == nil {
		if ahead {
			x.queueOther()
		}
		x.start()
	} else {
		free := x.c.hold()
		x.start()
		free()
	}
	pgtest.Eventually(x.T, "the calls to know their places", func() bool {
		return int(x.c.waits.Load()) == len(x.theirs)
	})
	if x.k.names == nil {
		x.queueOther()
	}
}

// awaitCancelled waits for the calls that were cancelled, while the others go on.
func (x *cell) awaitCancelled() {
	x.Helper()
	for _, a := range x.cancelled {
		a.wait(x.T)
	}
	for _, a := range x.calls {
		if !slices.Contains(x.cancelled, a) && !isOpener(a) && a.isDone() {
			x.Errorf("%q came back too: %v", a.name, a.err)
		}
	}
}

// wantNotSent checks that nothing was asked for the calls that were cancelled, and so nothing is taken back.
func (x *cell) wantNotSent() {
	x.Helper()
	for _, s := range x.c.sent.since() {
		for _, a := range x.cancelled {
			if x.k.names == nil || slices.Contains(s.names, a.name) {
				x.Errorf("%s was sent for %q", s.function, a.name)
			}
		}
	}
	if n := one[int](x.T, x.look, `SELECT count(*) FROM pglock.spent_grants`); n != x.spent {
		x.Errorf("%d grants were given back that were never asked for", n-x.spent)
	}
}

// wantEndedInTime checks that the server has ended the statement after the patience of the library.
func (x *cell) wantEndedInTime() {
	x.Helper()
	var age time.Duration // of the statement, by the server's clock, when it was last seen
	pgtest.Eventually(x.T, "the statement to end", func() bool {
		us := one[*int64](x.T, x.look,
			`SELECT (extract(epoch FROM max(clock_timestamp() - query_start)) * 1000000)::bigint `+underWay, x.k.function)
		if us != nil {
			age = time.Duration(*us) * time.Microsecond
		}
		return us == nil
	})
	if age < protocol.Patience/2 || age > protocol.Patience+3*time.Second { // a busy machine is late
		x.Errorf("the statement ended after %v, want %v", age, protocol.Patience)
	}
}

// wantToldWhoHolds checks that the error of a call that has waited says who held the lock, and its place.
func (x *cell) wantToldWhoHolds() {
	x.Helper()
	for _, a := range x.cancelled {
		var held *pglock.HeldError
		if isOpener(a) || !errors.Is(a.err, pglock.ErrHeld) || !errors.As(a.err, &held) {
			x.Errorf("%q: %v, want ErrHeld too", a.name, a.err)
			continue
		}
		place := 1
		if x.k.names == nil {
			place = 2
		}
		if got, want := fmt.Sprint(held.Lock, held.Holder, held.Place, held.ExpiresAt.IsZero()),
			fmt.Sprint(a.name, "the holder", place, false); got != want {
			x.Errorf("it says %s, want %s: %+v", got, want, held)
		}
		for _, l := range x.theirs {
			if l.Name() == a.name && l.Token() != held.Token {
				x.Errorf("it says token %d, want %d", held.Token, l.Token())
			}
		}
	}
}
