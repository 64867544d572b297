package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// queueMany queues a session of the peer's, as a look keeps it, for so many locks that somebody holds, or for one.
func (p *peer) queueMany(t *testing.T, name, mode string, queues, tickets int) {
	t.Helper()
	p.exec(t, `INSERT INTO pglock.sessions VALUES ($1::uuid, 'many', clock_timestamp() + interval '1 h')
		ON CONFLICT (session_id) DO NOTHING`, p.session().String())
	p.exec(t,
		`INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, owner_id, nested, holder, ttl, enqueued_at)
		SELECT CASE $2::int WHEN 1 THEN $1 ELSE $1 || n % $2 END, nextval('pglock.ticket_seq'), $3, md5($1 || n)::uuid, $4::uuid, md5('owner')::uuid, $2 > 1, 'many', '1 h', clock_timestamp()
		FROM generate_series(1, $5::int) n`, name, queues, mode, p.session().String(), tickets)
	if queues > 1 {
		p.exec(t,
			`INSERT INTO pglock.locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
			SELECT $1 || n, nextval('pglock.fencing_token_seq'), gen_random_uuid(), gen_random_uuid(), 'holder', '1 h', now(), now(), now() + interval '1 h'
			FROM generate_series(0, $2::int - 1) n`, name, queues)
	}
}

// A look takes time in proportion to its tickets, in however many queues they are, and though they are of owners that
// hold locks: also where a connection has planned it when the tables were empty.
func TestALookTakesTimeInProportionToItsTickets(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	for _, table := range []string{"locks", "sessions", "waiters"} {
		p.exec(t, `ALTER TABLE pglock.`+table+` SET (autovacuum_enabled = off)`)
		p.exec(t, `VACUUM ANALYZE pglock.`+table)
	}
	const look = `SELECT count(*)::int FROM pglock.look($1, 'many', '1 h', ARRAY(SELECT ticket FROM pglock.waiters WHERE $2))`
	const tickets = 20_000
	var took time.Duration
	for _, n := range []int{2, tickets / 20, tickets} {
		p.queueMany(t, fmt.Sprint("some ", n, " "), "exclusive", n, n)
		if n == tickets { // each ticket with each takes 400 times as long, and more than a minute
			p.exec(t, fmt.Sprintf(`SET statement_timeout = %d`, max(20*time.Second, 100*took).Milliseconds()))
		}
		began := time.Now()
		for _, nested := range []bool{false, true} {
			if seen := one[int](t, p, look, p.key.String(), nested); seen < n {
				t.Fatalf("%d tickets of %d were seen", seen, n)
			}
		}
		took = time.Since(began)
		t.Logf("%d tickets: %v", n, took)
	}
}

// A release grants the lock to a thousand readers that wait, so that it ends in time however many there are. The next
// one is told to ask, and is granted it with the next thousand.
func TestAThousandReadersAreGrantedALockAtOnceAndTheNextIsToldToAsk(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, waiter := newPeer(t, db.URL()), newPeer(t, db.URL())
	g := holder.mustAcquire(t, "x", time.Minute)
	const readers = 2500
	waiter.queueMany(t, "x", "shared", 1, readers)
	waiter.listen(t)
	told := holder.handing(t, `SELECT more -> 'handed' FROM pglock.release_lease($1, $2, $3)`, g.name, g.token,
		g.id.String())
	for have := 0; ; {
		n := one[int](t, holder, `SELECT count(*)::int FROM pglock.locks
			WHERE name = 'x' AND slot > 0 AND expires_at > clock_timestamp()`)
		if n <= have || n > have+1000 {
			t.Fatalf("%d readers have the lock after %d, want a thousand more at most", n, have)
		}
		if have = n; have == readers {
			return
		}
		holder.exec(t, `SELECT pglock.announce(array_fill('x'::text, ARRAY[cardinality($1::int[])]), $1)`, told.slots)
		var ticket string
		for ask := false; !ask; {
			_, said, _ := strings.Cut(waiter.hear(t), " ")
			ticket, said, _ = strings.Cut(said, " ")
			ask = said == "0 0 0"
		}
		told = waiter.handing(t, `SELECT more -> 'handed' FROM pglock.waiters q, pglock.acquire_lease('x', q.grant_id, $1, 'many', '1 min',
			p_mode => 'shared', p_wait => true, p_retry => true) WHERE q.ticket = $2`, waiter.key.String(), ticket)
	}
}

// Behind a thousand readers one waits that does not act, and still counts as alive: those behind it are told to ask as
// well.
func TestAReaderThatDoesNotActHoldsUpNobodyBehindAThousand(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, many, waiter := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	g := holder.mustAcquire(t, "x", time.Minute)
	many.queueMany(t, "x", "shared", 1, 1000)
	holder.party("does not act", "shared", time.Minute).mustQueue(t, "x")
	next := waiter.mustEnqueue(t, "x", "shared", nil)
	waiter.mustEnqueue(t, "x", "shared", nil)
	waiter.listen(t)
	told := holder.handing(t, `SELECT more -> 'handed' FROM pglock.release_lease($1, $2, $3)`, g.name, g.token,
		g.id.String())
	holder.exec(t, `SELECT pglock.announce(array_fill('x'::text, ARRAY[cardinality($1::int[])]), $1)`, told.slots)
	if _, said, _ := strings.Cut(waiter.hear(t), " "); said != fmt.Sprint(next.ticket, " 0 0 0") {
		t.Errorf("heard %q, want that ticket %d is to ask", said, next.ticket)
	}
	if a := waiter.request(t, "acquire_lease", "x", next.id, ", p_mode => 'shared', p_wait => true"); !a.granted {
		t.Errorf("it asks: %+v", a)
	}
}

// An owner below its own subtree goes before the queue. If its grant has taken all the time that one call has, the next
// in the queue is told to ask.
func TestTheQueueGoesOnBehindAnOwnersGrantThatTookLong(t *testing.T) {
	db := pgtest.Parallel(t)
	owner, waiter := newPeer(t, db.URL()), newPeer(t, db.URL())
	owner.exec(t, `SET search_path = pglock`)
	owner.change(t, "serve", "interval '250 ms'", "interval '0'")
	line := fmt.Sprintf(", p_mode => 'shared', p_owner_id => '%s', p_nested => ", uuid.New())
	outer := uuid.New()
	owner.request(t, "acquire_subtree", "t", outer, line+"false")
	if a := owner.request(t, "acquire_subtree", "t", outer, line+"false"); !a.granted {
		t.Fatalf("the subtree: %+v", a)
	}
	owner.mustEnd(t, owner.request(t, "acquire_lease", "t/a", uuid.New(), line+"true").grant)
	waiter.queueMany(t, "t/a", "shared", 1, 1)
	told := owner.handing(t, `SELECT more -> 'handed' FROM pglock.acquire_lease('t/a', gen_random_uuid(), $1, 'owner', '1 min'`+
		line+`true)`, owner.key.String())
	if !slices.Equal(told.slots, []int{0}) {
		t.Errorf("handed on: %v, want that the next is told to ask", told.slots)
	}
}
