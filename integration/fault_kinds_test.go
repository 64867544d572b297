package integration

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// kind is a kind of call, all of which are for the lock "m", or for that and others.
type kind struct {
	name     string
	does     string // what its success is
	function string // the SQL, a part of it, of the statement that is held up at the barrier
	names    []string
	before   func(x *cell)
	call     func(x *cell, a *attempt)
	checks   func(x *cell, a *attempt)

	short   bool // the short tier has it
	fresh   bool // the names of the locks are new
	queued  bool // it waits in the queue
	leased  bool // it needs a lease
	ends    bool // it ends that lease
	writes  bool // it commits a transaction of the application's
	once    bool // it asks the server once, and answers that the connection was lost
	reads   bool // it writes nothing, and so nothing can hold it up
	skipped bool // the server lets a second attempt pass the first
}

var kinds = []*kind{
	{name: "TryAcquire", short: true, does: "granted", function: "acquire_lease", call: try()},
	{name: "TryAcquire, new name", does: "granted", function: "acquire_lease", fresh: true, call: try()},
	{name: "TryAcquire, shared", does: "granted", function: "acquire_lease",
		call: try(pglock.WithShared())},
	{name: "Acquire", does: "granted", function: "acquire_lease", call: acquire()},
	{name: "Acquire, queued", short: true, does: "granted", function: "acquire_lease", queued: true, call: acquire(),
		before: taken},
	{name: "Acquire, queued for a place", does: "granted", function: "acquire_lease", queued: true,
		call: acquire(pglock.WithLimit(1)), before: takenPlace},
	{name: "AcquireAll", does: "granted", function: "acquire_lease", call: func(x *cell, a *attempt) {
		var all *pglock.Leases
		if all, a.err = x.c.AcquireAll(a.ctx, []string{"z", "m", "a"}, pglock.WithTTL(forHours)); a.err == nil {
			a.leases = all.All()
		}
	}},
	{name: "leader", does: "elected", function: "acquire_lease", call: lead},
	{name: "Check", does: "checked", leased: true, once: true, reads: true, before: leased,
		call: func(_ *cell, a *attempt) { a.left, a.err = a.lease.Check(a.ctx) }},
	{name: "Renew", does: "renewed", function: "renew_leases", leased: true, once: true, before: leased,
		call: func(_ *cell, a *attempt) { a.err = hooks.Of(a.lease).Renew(a.ctx) }, checks: renewedIfItSaysSo},
	{name: "Extend", does: "extended", function: "renew_leases", leased: true, skipped: true, before: leased,
		call: func(_ *cell, a *attempt) { _, a.err = a.lease.Extend(a.ctx, 2*forHours) }, checks: extendedOrNot},
	{name: "Release", does: "released", function: "release_lease", leased: true, ends: true,
		before: leased,
		call:   func(_ *cell, a *attempt) { a.err = a.lease.Release(a.ctx) }},
	{name: "Release, others wait", does: "released", function: "release_lease", leased: true, ends: true,
		before: wanted,
		call:   func(_ *cell, a *attempt) { a.err = a.lease.Release(a.ctx) }},
	{name: "HandOver", short: true, does: "handed over", function: "hand_over", leased: true, ends: true,
		before: wanted,
		call:   func(_ *cell, a *attempt) { a.err = a.lease.HandOver(a.ctx, "heir") }},
	{name: "Write", short: true, does: "written", function: "COMMIT", leased: true, writes: true, once: true,
		before: leased,
		checks: writtenOrNot, call: func(x *cell, a *attempt) {
			again := fencedstore.Fence{Lease: a.lease, SameToken: true}
			a.err = fencedstore.New(x.c.pool).Write(a.ctx, again, x.work(a))
		}},
	{name: "WriteSQL", does: "written", function: "commit", leased: true, writes: true, once: true, before: leased,
		checks: writtenOrNot, call: func(x *cell, a *attempt) {
			db := stdlib.OpenDBFromPool(x.c.pool)
			defer db.Close()
			again := fencedstore.Fence{Lease: a.lease, SameToken: true}
			a.err = fencedstore.NewSQL(db).Write(a.ctx, again, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO ledger (token) VALUES ($1)`, int64(a.lease.Token()))
				x.atWork()
				return err
			})
		}},
	{name: "Once", does: "done", function: "COMMIT", leased: true, writes: true, once: true, before: leased,
		call: func(x *cell, a *attempt) {
			a.err = fencedstore.New(x.c.pool).Once(a.ctx, a.lease, x.app, x.work(a))
		}, checks: doneOnce},
}

var kindsOfMany = []*kind{
	{name: "TryAcquire, new names", does: "granted", function: "acquire_leases", names: around(3), fresh: true,
		call: try()},
	{name: "TryAcquire, used names", does: "granted", function: "acquire_leases",
		names: around(3), call: try()},
	{name: "TryAcquire, with metadata", does: "granted", function: "acquire_leases", names: around(3),
		call: try(pglock.WithMetadata([]byte(`1`)))},
	{name: "Acquire, queued", does: "granted", function: "acquire_leases", names: around(3), queued: true,
		before: taken, call: acquire(pglock.WithMetadata([]byte(`1`)))},
	{name: "Release", does: "released", function: "release_leases", names: around(3), leased: true, ends: true,
		before: leased, call: func(_ *cell, a *attempt) { a.err = a.lease.Release(a.ctx) }},
}

func try(opts ...pglock.AcquireOption) func(*cell, *attempt) {
	return func(x *cell, a *attempt) {
		a.lease, a.err = x.c.TryAcquire(a.ctx, a.name, append(opts, pglock.WithTTL(forHours))...)
	}
}

func acquire(opts ...pglock.AcquireOption) func(*cell, *attempt) {
	return func(x *cell, a *attempt) {
		a.lease, a.err = x.c.Acquire(a.ctx, a.name, append(opts, pglock.WithTTL(forHours))...)
	}
}

// lead campaigns, and returns when it leads.
func lead(x *cell, a *attempt) {
	candidate, err := leader.New(x.c.Client, "m", leader.WithTTL(forHours))
	if err != nil {
		a.err = err
		return
	}
	leads, ended := make(chan *pglock.Lease, 1), make(chan error, 1)
	pgtest.Group(x.T).Go(func() {
		ended <- candidate.Run(a.ctx, func(ctx context.Context, l *pglock.Lease) error {
			leads <- l
			<-ctx.Done()
			return nil
		})
	})
	select {
	case a.lease = <-leads:
	case a.err = <-ended:
	}
}

// taken lets the other client hold what is asked for.
func taken(x *cell) {
	for _, a := range x.calls {
		if x.k.names == nil || !isOpener(a) {
			x.theirs = append(x.theirs, mustTry(x.T, x.other, a.name, pglock.WithTTL(forHours)))
		}
	}
}

// takenPlace lets the other client hold the only place.
func takenPlace(x *cell) {
	x.theirs = append(x.theirs, mustTry(x.T, x.other, "m", pglock.WithTTL(forHours), pglock.WithLimit(1)))
}

// leased gives each call its lease.
func leased(x *cell) {
	for _, a := range x.calls {
		a.lease = mustTry(x.T, x.c.Client, a.name, pglock.WithTTL(forHours))
		x.ours = append(x.ours, a.lease)
	}
}

// wanted is leased, and another waits for the lock.
func wanted(x *cell) {
	leased(x)
	x.queueOther()
}

func renewedIfItSaysSo(x *cell, a *attempt) {
	if n := one[int](x.T, x.look, `SELECT count(*) FROM public.grant_log WHERE new_expires > old_expires`); n == 0 &&
		a.err == nil {
		x.Error("nothing was renewed")
	}
}

// extendedOrNot checks that a lease lasts for as long as the extension says, here and on the server, and that one that
// failed is undone.
func extendedOrNot(x *cell, a *attempt) {
	if x.closed || a.lease.Err() != nil {
		return
	}
	pgtest.Eventually(x.T, "the lease to last for as long as it says", func() bool {
		left := one[time.Duration](x.T, x.look, `SELECT expires_at - clock_timestamp() FROM pglock.locks WHERE name = 'm'`)
		long := left > forHours*3/2
		return long == (a.err == nil) && time.Until(a.lease.Deadline()) > forHours*3/2 == long
	})
}

// atWork is where a write meets what comes before its COMMIT.
func (x *cell) atWork() {
	if x.writes != nil {
		x.writes()
	}
}

func (x *cell) work(a *attempt) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, a.lease.Token())
		x.atWork()
		return err
	}
}

// writtenOrNot checks that a write says what is true: I17.
func writtenOrNot(x *cell, a *attempt) {
	rows := one[int](x.T, x.look, `SELECT count(*) FROM ledger`)
	unknown := errors.Is(a.err, pglock.ErrOutcomeUnknown)
	if (a.err == nil) != (rows == 1) && !unknown || unknown && !errors.Is(a.err, context.Canceled) {
		x.Errorf("I17: it answered %v, and the ledger has %d rows", a.err, rows)
	}
}

// doneOnce is writtenOrNot, and asks again, as another does: the work is done once.
func doneOnce(x *cell, a *attempt) {
	writtenOrNot(x, a)
	if a.lease.Err() != nil || errors.Is(a.err, pglock.ErrLost) {
		return
	}
	another := mustTry(x.T, x.other, "another")
	defer mustRelease(x.T, another)
	store := fencedstore.New(x.db.Pool(x.T))
	again := store.Once(x.Context(), another, x.app, x.work(a))
	if (a.err == nil) != errors.Is(again, fencedstore.ErrDone) && !errors.Is(a.err, pglock.ErrOutcomeUnknown) {
		x.Errorf("it answered %v, and then %v", a.err, again)
	}
	if err := store.Once(x.Context(), a.lease, x.app, x.work(a)); !errors.Is(err, fencedstore.ErrDone) {
		x.Errorf("the one after: %v", err)
	}
	if n := one[int](x.T, x.look, `SELECT count(*) FROM ledger`); n != 1 {
		x.Errorf("the work was done %d times", n)
	}
}
