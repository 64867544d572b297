package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// scene is where the cells of a kind play, one after the other.
type scene struct {
	db    *pgtest.DB
	look  *peer
	b     *barrier
	other *pglock.Client // whose connections meet no fault
}

// cell is a kind of call that meets a fault.
type cell struct {
	*testing.T
	*scene
	k         *kind
	n         *network
	c         *crowd     // the client whose calls meet the fault
	app       string     // the name of its connections
	calls     []*attempt // of c
	cancelled []*attempt
	ours      []*pglock.Lease
	// of the other client: the leases for which the calls wait, and calls that wait beside them
	theirs []*pglock.Lease
	others []*attempt
	writes func() // called by the work of a write, if it is set
	// the fault, too: its statements are held up (function), the client is closed, its Close has said everything
	pid          uint32
	spent        int // grants, before
	closed, told bool
}

const forHours = 10 * time.Hour // the TTL of all leases: what only its end gives back is never given back here

func (s *scene) cell(t *testing.T, k *kind) *cell {
	t.Helper()
	s.look.exec(t, `DELETE FROM pglock.locks`) // what the cell before has left, where it could not tell
	s.look.exec(t, `DELETE FROM pglock.waiters`)
	x := &cell{T: t, scene: s, k: k, n: newNetwork(t, s.db), app: fmt.Sprint("cell ", time.Now().UnixNano())}
	x.c = newCrowd(t, x.n.url, 5, func(p *pgxpool.Config) {
		p.ConnConfig.DialFunc = x.n.dial
		p.ConnConfig.RuntimeParams["application_name"] = x.app
	})
	t.Cleanup(func() { // if the cell has failed
		_, _ = s.b.keeper.Exec(context.Background(), `SELECT pg_advisory_unlock_all()`)
	})
	if k.names != nil {
		x.calls = attempts(k.names)
	} else {
		x.calls = []*attempt{newAttempt(t, "m")}
	}
	for _, a := range x.calls {
		if !k.fresh && !isOpener(a) {
			mustRelease(t, mustTry(t, s.other, a.name))
		}
	}
	if k.before != nil {
		k.before(x)
	}
	s.look.exec(t, `DELETE FROM public.grant_log`)
	s.look.exec(t, `DELETE FROM ledger`)
	x.spent = one[int](t, s.look, `SELECT count(*) FROM pglock.spent_grants`)
	x.c.sent.since()
	return x
}

func newAttempt(t *testing.T, name string) *attempt {
	a := &attempt{name: name, done: make(chan struct{})}
	a.ctx, a.cancel = context.WithTimeout(context.Background(), forHours)
	t.Cleanup(a.cancel)
	return a
}

// isOpener reports whether it is one of the calls that gather makes first.
func isOpener(a *attempt) bool { return strings.HasPrefix(a.name, "opener") }

// queueOther makes a call of the other client wait for the lock "m", under the label "heir".
func (x *cell) queueOther() {
	x.Helper()
	before := one[int](x.T, x.look, `SELECT count(*) FROM pglock.waiters`)
	work := pgtest.Group(x.T)
	a := newAttempt(x.T, "m")
	x.others = append(x.others, a)
	work.Go(func() {
		defer close(a.done)
		a.lease, a.err = x.other.Acquire(a.ctx, "m", pglock.WithTTL(forHours), pglock.WithHolder("heir"))
	})
	awaitQueue(x.T, x.look, "m", before+1)
}

// start makes the calls.
func (x *cell) start() {
	x.Helper()
	if x.k.names != nil {
		x.c.gather(x.calls, func(a *attempt) { x.k.call(x, a) })
		return
	}
	go func() {
		defer close(x.calls[0].done)
		x.k.call(x, x.calls[0])
	}()
}

// heldUp makes the calls, and returns when their statement is held up at the barrier.
func (x *cell) heldUp() {
	x.Helper()
	x.b.close(x.T)
	if x.k.names != nil {
		free := x.c.hold()
		x.start()
		free()
	} else {
		x.start()
	}
	x.pid = x.b.await(x.T, x.k.function)
}

// open lets the statement go on.
func (x *cell) open() { x.Helper(); x.b.open(x.T) }

// awaitEnd returns when the statement that was held up is over on the server.
func (x *cell) awaitEnd() {
	x.Helper()
	pgtest.Eventually(x.T, "the statement to be over", func() bool {
		return one[bool](x.T, x.look,
			`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND state = 'active')`, x.pid)
	})
}

// unsent makes the calls, and calls f before their statement is sent: in a write before its COMMIT.
func (x *cell) unsent(f func()) {
	x.Helper()
	switch {
	case x.k.writes:
		x.writes = sync.OnceFunc(f)
		x.start()
	case x.k.leased && x.k.names == nil:
		f()
		x.start()
	default:
		free := x.c.hold()
		x.start()
		pgtest.Eventually(x.T, "the call to wait for a connection", func() bool { return x.c.door.keeps.Load() > 0 })
		f()
		free()
	}
}

// cancel cancels the calls: of those that travel together after the openers every second, or all of them.
func (x *cell) cancel(all bool) {
	x.Helper()
	for i, a := range x.calls {
		if all || x.k.names == nil || !isOpener(a) && i%2 == 0 {
			a.cancel()
			x.cancelled = append(x.cancelled, a)
		}
	}
}

// letGo gives the calls that wait what they wait for, once just they are queued.
func (x *cell) letGo() {
	x.Helper()
	if !x.k.queued || x.closed {
		return
	}
	want := []string{}
	for _, a := range slices.Concat(x.calls, x.others) {
		if !slices.Contains(x.cancelled, a) && slices.ContainsFunc(x.theirs, func(l *pglock.Lease) bool {
			return l.Name() == a.name && l.Valid()
		}) {
			want = append(want, a.name)
		}
	}
	slices.Sort(want)
	pgtest.Eventually(x.T, fmt.Sprintf("just %q to be queued", want), func() bool {
		return slices.Equal(want, one[[]string](x.T, x.look,
			`SELECT coalesce(array_agg(name::text ORDER BY name), '{}') FROM pglock.waiters`))
	})
	for _, l := range x.theirs {
		if slices.Contains(want, l.Name()) && l.Valid() {
			mustRelease(x.T, l)
		}
	}
}
