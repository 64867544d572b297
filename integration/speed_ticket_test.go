package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// known makes the peer's session one that the server has heard of lately: its tickets are then written in a short way.
func (p *peer) known(t *testing.T) *peer {
	t.Helper()
	p.exec(t, `SELECT pglock.look($1, 'peer', '1 hour')`, p.session.String())
	return p
}

// mustTicket queues with acquire_lease for a lock that is held.
func (p *peer) mustTicket(t *testing.T, name string, turns int) block {
	t.Helper()
	b, err := p.askBlock(t.Context(), name, uuid.New(), turns, false)
	if err != nil || b.granted || b.ticket == 0 {
		t.Fatalf("a ticket for %q: %+v, %v", name, b, err)
	}
	return b
}

// I8: a ticket of a session that is known, which is being written when the holder releases, is waited for and served, or
// passed over by the call for many.
func TestI8_ShortTicketThatIsBeingWrittenIsSeen(t *testing.T) {
	db := pgtest.Database(t)
	for _, turns := range []int{1, 8} {
		holder, waiter, look := newShortPeer(t, db.URL()), newShortPeer(t, db.URL()).known(t), newShortPeer(t, db.URL())
		g := holder.mustAcquire(t, "x", time.Minute)
		waiter.exec(t, `BEGIN`)
		b := waiter.mustTicket(t, "x", turns)
		if released, err := holder.shortRelease(t.Context(), "release_many", g); err != nil || released || !isHeld(t, look, g) {
			t.Errorf("I8: release_many beside the ticket: %v, %v, and held is %v", released, err, isHeld(t, look, g))
		}
		done := make(chan error, 1)
		go func() {
			_, err := holder.shortRelease(t.Context(), "release_lease", g)
			done <- err
		}()
		holder.awaitBlocked(t, look)
		waiter.exec(t, `COMMIT`)
		if err := <-done; err != nil {
			t.Error(err)
		}
		token := grantOf(t, look, "x", b.id)
		if token < g.token+int64(turns) {
			t.Errorf("I8: after the release the waiter has token %d, after %d", token, g.token)
		}
		look.mustShortRelease(t, "release_lease", b.with(token))
	}
}

// I8, the other order: who would write a ticket while the holder releases waits for that, and does not queue for a free lock.
func TestI8_NoShortTicketForALockThatIsBeingReleased(t *testing.T) {
	db := pgtest.Database(t)
	for way := range shortReleases {
		holder, waiter, look := newShortPeer(t, db.URL()), newShortPeer(t, db.URL()).known(t), newShortPeer(t, db.URL())
		g := holder.mustAcquire(t, way, time.Minute)
		holder.exec(t, `BEGIN`)
		holder.mustShortRelease(t, way, g)
		type answer struct {
			block
			err error
		}
		answered := make(chan answer, 1)
		id := uuid.New()
		go func() {
			b, err := waiter.askBlock(t.Context(), way, id, 1, false)
			answered <- answer{b, err}
		}()
		waiter.awaitBlocked(t, look)
		holder.exec(t, `COMMIT`)
		a := <-answered
		if a.err != nil || a.ticket != 0 {
			t.Errorf("I8: %s: %+v; want no ticket for a lock that is free", way, a)
		}
		if !a.granted { // it said to ask again
			if again, err := waiter.askBlock(t.Context(), way, id, 1, false); err != nil || !again.granted {
				t.Errorf("%s, asked again: %+v, %v", way, again, err)
			}
		}
	}
}

// A ticket in the short way has its place behind those before it, above every ticket that was served, and is the same when it
// is asked for again; who cannot be told is queued with care, and made known.
func TestI9_ShortTicketsStandInOrder(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	p.exec(t, `UPDATE pglock.locks SET ticket = 5000 WHERE name = 'x'`) // as after a failover that set the sequence back
	var tickets []block
	for n := range 3 {
		q := newShortPeer(t, db.URL())
		if n > 0 {
			q.known(t)
		}
		b := q.mustTicket(t, "x", 1+n)
		if b.ticket <= 5000 || n > 0 && b.ticket <= tickets[n-1].ticket {
			t.Errorf("I9: ticket %d of %v", b.ticket, tickets)
		}
		var place int
		var first bool
		var again int64
		if err := q.QueryRow(t.Context(), `SELECT place, is_first, ticket FROM pglock.acquire_lease('x', $1, $2, 'peer', '1 min', p_wait => true, p_turns => $3)`,
			b.id.String(), q.session.String(), 1+n).Scan(&place, &first, &again); err != nil || place != n+1 || first != (n == 0) || again != b.ticket {
			t.Errorf("ticket %d again: ticket %d, place %d, first %v, %v", b.ticket, again, place, first, err)
		}
		if alive := one[bool](t, p, `SELECT alive_until > clock_timestamp() + interval '40 min' FROM pglock.sessions WHERE session_id = $1`, q.session.String()); !alive {
			t.Error("the session counts as dead soon")
		}
		tickets = append(tickets, b)
	}
	// A session that would be dead soon says that it is alive with its next ticket.
	q := newShortPeer(t, db.URL()).known(t)
	p.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() + interval '10 min' WHERE session_id = $1`, q.session.String())
	tickets = append(tickets, q.mustTicket(t, "x", 1))
	if alive := one[bool](t, p, `SELECT alive_until > clock_timestamp() + interval '40 min' FROM pglock.sessions WHERE session_id = $1`, q.session.String()); !alive {
		t.Error("the session counts as dead soon, in spite of its ticket")
	}
	for _, b := range tickets {
		p.mustShortRelease(t, "release_lease", g)
		token := grantOf(t, p, "x", b.id)
		if token <= g.token {
			t.Fatalf("I9: ticket %d was not served in its turn", b.ticket)
		}
		g = b.with(token)
	}
	// A grant ID has one place, in one queue.
	p.mustAcquire(t, "y", time.Minute)
	b := q.mustTicket(t, "y", 1)
	if again := q.mustTicket(t, "y", 1); again.ticket <= b.ticket {
		t.Errorf("tickets %d and %d", b.ticket, again.ticket)
	}
	p.exec(t, `SELECT pglock.give_back('y', $1)`, b.id.String())
	if again, err := q.askBlock(t.Context(), "y", b.id, 1, false); state(err) != "LK008" {
		t.Errorf("a ticket that was given up: %+v, %v; want LK008", again, err)
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.waiters WHERE grant_id = $1`, b.id.String()); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}

// A request to wait that comes to write its ticket after it was given up, and that was told twice, leaves no ticket.
func TestTrap9_LateShortTicketOfAnAbandonedRequestIsTakenBack(t *testing.T) {
	db := pgtest.Database(t)
	p, look, waiter := newShortPeer(t, db.URL()), newShortPeer(t, db.URL()), newShortPeer(t, db.URL()).known(t)
	p.mustAcquire(t, "x", time.Minute)
	// Whoever writes a ticket is held up in its INSERT, when it has looked already.
	p.exec(t, `CREATE FUNCTION public.held_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NEW; END $$;
		CREATE TRIGGER held_up BEFORE INSERT ON pglock.waiters FOR EACH ROW WHEN (NEW.ticket > 0) EXECUTE FUNCTION public.held_up()`)
	look.exec(t, `SELECT pg_advisory_lock(1)`)
	id := uuid.New()
	done := make(chan error, 1)
	go func() {
		_, err := waiter.askBlock(t.Context(), "x", id, 1, false)
		done <- err
	}()
	eventually(t, "the ticket to be held up", func() bool {
		return one[bool](t, look, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`)
	})
	for range 2 {
		p.exec(t, `SELECT pglock.give_back('x', $1)`, id.String())
	}
	look.exec(t, `SELECT pg_advisory_unlock(1)`)
	err := <-done
	if n := one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE grant_id = $1`, id.String()); n != 0 || state(err) != "LK008" {
		t.Errorf("%d tickets are left of a request that was given up; it was answered %v, want LK008", n, err)
	}
}

// An owner that holds the lock itself is told so, and gets no ticket behind itself.
func TestI9_NoShortTicketForWhoHoldsTheLock(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL()).known(t)
	owner := uuid.New()
	p.exec(t, `SELECT pglock.acquire_lease('x', gen_random_uuid(), $1, 'peer', '1 min', p_owner_id => $2)`, p.session.String(), owner.String())
	_, err := p.Exec(t.Context(), `SELECT pglock.acquire_lease('x', gen_random_uuid(), $1, 'peer', '1 min', p_wait => true, p_session_ttl => '1 hour', p_owner_id => $2, p_nested => true)`,
		p.session.String(), owner.String())
	if state(err) != "LK004" {
		t.Errorf("%v, want LK004", err)
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.waiters`); n != 0 {
		t.Errorf("%d tickets", n)
	}
}
