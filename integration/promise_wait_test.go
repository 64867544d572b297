package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// sight is what a look tells of one ticket.
type sight struct {
	first bool
	left  *int64 // microseconds until the ticket should ask, where it is first
}

// look asks how the party's ticket stands; false: it stands no more.
func (a *party) look(t *testing.T) (s sight, queued bool) {
	t.Helper()
	must.Do(t, a.on.QueryRow(t.Context(), `SELECT coalesce(bool_or(ahead = 0), false), max(remaining_us), count(*) = 1
		FROM pglock.look($1, $2, '1 min') WHERE ticket = $3`,
		a.key, a.label, a.ticket).Scan(&s.first, &s.left, &queued))
	return s, queued
}

// The first live waiter is told that it is first, and when to ask: when the lock can be its own, by the leases that are
// held. Nobody else is. Dead ones before it do not count.
func TestI8_TheFirstLiveWaiterIsToldWhenToAsk(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	const short, long = 10 * time.Minute, 30 * time.Minute
	for _, c := range []struct {
		holders []string // the first holds the lock for longer
		waits   string
		until   time.Duration
	}{
		{[]string{"exclusive"}, "exclusive", long},
		{[]string{"exclusive"}, "shared", long},
		{[]string{"exclusive"}, "limit 2", long},
		{[]string{"shared", "shared"}, "exclusive", long},
		{[]string{"shared", "shared"}, "limit 2", long},
		{[]string{"limit 2", "limit 2"}, "exclusive", long},
		{[]string{"limit 2", "limit 2"}, "shared", long},
		{[]string{"limit 2", "limit 2"}, "limit 2", short}, // one place is enough
	} {
		for _, dead := range []int{0, 2} {
			name := fmt.Sprint(c.waits, " behind ", c.holders, " and ", dead, " dead")
			for n, mode := range c.holders {
				p.party(fmt.Sprint("holder ", n), mode, []time.Duration{long, short}[n]).mustGet(t, name)
			}
			for n := range dead {
				d := p.party(fmt.Sprint("dead ", n), c.waits, time.Minute).mustQueue(t, name)
				die(t, p, d)
			}
			first := p.party("first", c.waits, time.Minute).mustQueue(t, name)
			second := p.party("second", c.waits, time.Minute).mustQueue(t, name)
			s, queued := first.look(t)
			if !queued || !s.first || s.left == nil {
				t.Errorf("I8: %s: the first is told %+v, queued: %v", name, s, queued)
			} else if left := time.Duration(*s.left) * time.Microsecond; left > c.until || left < c.until-time.Minute {
				t.Errorf("I8: %s: the first is to ask in %v, want %v", name, left, c.until)
			}
			if s, queued := second.look(t); !queued || s.first || s.left != nil {
				t.Errorf("I8: %s: the second is told %+v, queued: %v", name, s, queued)
			}
			// A ticket that is taken back makes the next the first.
			p.exec(t, `SELECT pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, first.key, name, first.id)
			if s, _ := second.look(t); !s.first || s.left == nil {
				t.Errorf("I8: %s: behind one that has left the next is told %+v", name, s)
			}
		}
	}
}

// The holder and the first waiter die together, as on one host: the next waiter has the lock soon after the lease has
// ended.
func TestI8_TheHolderAndTheFirstWaiterDieTogether(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	held := p.party("holder", "exclusive", time.Minute).mustGet(t, "x")
	dead := p.party("first", "exclusive", time.Minute).mustQueue(t, "x")
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), newClient(t, db.Pool(t)), 0, "x", got)
	awaitQueue(t, p, "x", 2)
	die(t, p, dead)
	p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '100 ms'`) // nobody renews it
	f := await(t, got)
	if f.err != nil || int64(f.lease.Token()) <= held.token {
		t.Fatalf("%v, %v, after token %d", f.lease, f.err, held.token)
	}
	wantCount(t, p, 1, "%d notes of the takeover", `SELECT count(*) FROM pglock.list_history('x')
		WHERE kind = 'takeover' AND token = $1 AND new_token = $2`, held.token, int64(f.lease.Token()))
}

// A renewal waits for the row of its own lease alone. Where somebody else has the lock, it says at once that the lease
// is lost, though their row is locked.
func TestI14_ARenewalWaitsForNoRowOfAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	lost := p.party("lost", "exclusive", time.Minute).mustGet(t, "x")
	waysToEnd["break_lock"](t, lost)
	own := p.party("own", "exclusive", time.Minute).mustGet(t, "y")
	now := p.party("now", "exclusive", time.Minute).mustGet(t, "x")
	other.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'x' FOR UPDATE`)
	rows, _ := p.Query(t.Context(),
		`SELECT outcome FROM pglock.renew_leases('{x,y}', $1, $2, '{0,0}', '5 s') ORDER BY n`,
		[]int64{lost.token, own.token}, []uuid.UUID{lost.id, own.id})
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(got, []string{"broken", "renewed"}) {
		t.Errorf("I14: beside a locked row of somebody else: %v, %v", got, err)
	}
	// It does wait for its own.
	_, err = p.Exec(t.Context(), `SELECT pglock.renew_leases('{x}', ARRAY[$1::bigint],
		ARRAY[$2::uuid], '{0}', '50 ms')`, now.token, now.id)
	if state(err) != "55P03" {
		t.Errorf("a renewal that waits for its row: %v, want 55P03", err)
	}
	other.exec(t, `ROLLBACK`)
}

// A look counts the live tickets before each, up to eight. Of a session's tickets for one lock it counts those before
// the first.
func TestI8_ALookCountsTheLiveOnesBeforeATicket(t *testing.T) {
	t.Parallel()
	p := newHastyPeer(t, pgtest.Database(t).URL())
	p.party("holder", "exclusive", time.Hour).mustGet(t, "x")
	var queue []*party
	for n := range 11 {
		queue = append(queue, p.party(fmt.Sprint("waiter ", n), "exclusive", time.Minute).mustQueue(t, "x"))
	}
	ahead := func() (all string) {
		for _, a := range queue {
			all += one[string](t, p,
				`SELECT string_agg(ahead::text, '' ORDER BY ticket) FROM pglock.look($1, $2, '1 min')`, a.key, a.label)
		}
		return all
	}
	if got := ahead(); got != "01234567888" {
		t.Errorf("I8: %s", got)
	}
	p.exec(t, `SELECT pglock.give_up($1, ARRAY['x'], ARRAY[$2::uuid])`, queue[2].key, queue[2].id)
	queue = append(queue[:2], queue[3:]...)
	if got := ahead(); got != "0123456788" {
		t.Errorf("I8: when one has left: %s", got)
	}
	die(t, p, queue[0])
	queue = queue[1:]
	if got := ahead(); got != "012345678" {
		t.Errorf("I8: when one has died: %s", got)
	}
	second := p.party(queue[0].label, "exclusive", time.Minute)
	second.key = queue[0].key
	second.mustQueue(t, "x")
	queue = queue[:1]
	if got := ahead(); got != "08" {
		t.Errorf("I8: of a session with two tickets: %s", got)
	}
}
