package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// reply is what a peer is told about a request.
type reply struct {
	grant
	by     string // the lock that is in the way, if it is another
	holder string
	ticket int64
}

// ask requests a lock or a subtree with a ticket, or asks again.
func (p *peer) request(t *testing.T, function, name string, id uuid.UUID, more string) reply {
	t.Helper()
	a := reply{grant: grant{name: name, id: id}}
	var token *int64
	if err := p.QueryRow(t.Context(), `SELECT granted, token, coalesce(more ->> 'by', ''), coalesce(more ->> 'holder', ''),
		coalesce((more ->> 'ticket')::bigint, 0) FROM pglock.`+function+`($1, $2, $3, 'peer', '30 s', p_retry => true`+more+`)`,
		name, id.String(), p.key.String()).Scan(&a.granted, &token, &a.by, &a.holder, &a.ticket); err != nil {
		t.Fatalf("%s(%q): %v", function, name, err)
	}
	a.token = orZero(token)
	return a
}

func (p *peer) subtree(t *testing.T, name string, id uuid.UUID) reply {
	t.Helper()
	return p.request(t, "acquire_subtree", name, id, "")
}

func (p *peer) queue(t *testing.T, name string, id uuid.UUID) reply {
	t.Helper()
	return p.request(t, "acquire_lease", name, id, ", p_wait => true")
}

// mustSubtree takes a subtree: the second time that it asks, its ticket is known.
func (p *peer) mustSubtree(t *testing.T, name string) reply {
	t.Helper()
	id := uuid.New()
	p.subtree(t, name, id)
	a := p.subtree(t, name, id)
	if !a.granted {
		t.Fatalf("subtree %q: %+v", name, a)
	}
	return a
}

// liftLimits lets the peer's transaction last for as long as the test needs.
func (p *peer) liftLimits(t *testing.T) {
	t.Helper()
	p.exec(t, `SELECT set_config(name, '0', true) FROM pg_settings
		WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')`)
}

func (p *peer) mustEnd(t *testing.T, g grant) {
	t.Helper()
	if released, err := p.release(t.Context(), g); err != nil || !released {
		t.Fatalf("release %q: %v, %v", g.name, released, err)
	}
}

// A grant below that nobody sees yet, because its transaction is open, is waited for: of a lock that was free, of a new
// one, and of several together.
func TestASubtreeWaitsForGrantsThatAreUnderWay(t *testing.T) {
	db := pgtest.Parallel(t)
	below, above := newPeer(t, db.URL()), newPeer(t, db.URL())
	below.mustEnd(t, below.mustAcquire(t, "t/used", time.Minute))
	for what, sql := range map[string]string{
		"a free lock": `SELECT granted FROM pglock.acquire_lease('t/used', gen_random_uuid(), $1, 'below', '1 min')`,
		"a new lock":  `SELECT granted FROM pglock.acquire_lease('t/new', gen_random_uuid(), $1, 'below', '1 min')`,
		"several": `SELECT bool_and(granted) FROM pglock.acquire_leases('{t/used,t/x}', ARRAY[gen_random_uuid(),
			gen_random_uuid()], $1, '{below,below}', '{1 min,1 min}', '{NULL,NULL}', '{f,f}', '{exclusive,exclusive}',
			'{NULL,NULL}', '{f,f}', '10 s', '{NULL,NULL}', '{f,f}')`,
	} {
		tx := must.Get(below.Begin(t.Context()))(t)
		var granted bool
		if err := tx.QueryRow(t.Context(), sql, below.key.String()).Scan(&granted); err != nil || !granted {
			t.Fatal(what, granted, err)
		}
		below.liftLimits(t)
		id := uuid.New()
		first := above.subtree(t, "t", id)
		second := above.subtree(t, "t", id)
		if first.granted || second.granted || second.ticket != first.ticket || second.by != "" {
			t.Errorf("%s: %+v, then %+v; want a ticket, and nobody known in the way", what, first, second)
		}
		must.Do(t, tx.Commit(t.Context()))
		if third := above.subtree(t, "t", id); third.granted || third.by == "" || third.holder != "below" {
			t.Errorf("%s: %+v after its commit, want a lease below in the way", what, third)
		}
		above.exec(t, `SELECT r.* FROM pglock.locks l, pglock.release_lease(l.name, l.token, l.grant_id) r
			WHERE l.expires_at > clock_timestamp()`)
		if last := above.subtree(t, "t", id); !last.granted {
			t.Errorf("%s: %+v after its end", what, last)
		} else {
			above.mustEnd(t, last.grant)
		}
	}
}

// Of two subtrees, one below the other, the later ticket waits for the lower one, though that is committed after it.
func TestI9_ASubtreeWaitsForALowerTicketThatIsUnderWay(t *testing.T) {
	db := pgtest.Parallel(t)
	newPeer(t, db.URL()).mustSubtree(t, "elsewhere") // the first one of all notes that there are some
	for _, order := range [][2]string{{"t", "t/a/b"}, {"t/a/b", "t"}} {
		first, second := newPeer(t, db.URL()), newPeer(t, db.URL())
		mine, other := uuid.New(), uuid.New()
		first.exec(t, `BEGIN`)
		low := first.subtree(t, order[0], mine)
		first.liftLimits(t)
		high := second.subtree(t, order[1], other)
		if a := second.subtree(t, order[1], other); a.granted || low.ticket >= high.ticket {
			t.Errorf("%q is granted before the lower ticket for %q is known: %+v", order[1], order[0], a)
		}
		first.exec(t, `COMMIT`)
		if a := second.subtree(t, order[1], other); a.granted || a.by != order[0] {
			t.Errorf("%+v, want %q in the way", a, order[0])
		}
		a := first.subtree(t, order[0], mine)
		if !a.granted {
			t.Fatalf("%+v", a)
		}
		first.mustEnd(t, a.grant)
		if a = second.subtree(t, order[1], other); !a.granted {
			t.Fatalf("%+v", a)
		}
		second.mustEnd(t, a.grant)
	}
}

// Whoever is granted a lock locks the table before it takes its snapshot: a subtree's ticket that was committed while
// it waited for the table is seen. The wait of a subtree for grants under way rests on that.
func TestAGrantLocksTheTableBeforeItLooks(t *testing.T) {
	db := pgtest.Parallel(t)
	above := newPeer(t, db.URL())
	above.mustEnd(t, above.mustAcquire(t, "t/used", time.Minute))
	for what, sql := range map[string]string{
		"a free lock": `SELECT granted FROM pglock.acquire_lease('t/used', gen_random_uuid(), $1, 'below', '1 min')`,
		"a new lock":  `SELECT granted FROM pglock.acquire_lease('t/' || gen_random_uuid(), gen_random_uuid(), $1, 'below', '1 min')`,
		"several": `SELECT bool_or(granted) FROM pglock.acquire_leases('{t/used}', ARRAY[gen_random_uuid()], $1, '{below}',
			'{1 min}', '{NULL}', '{f}', '{exclusive}', '{NULL}', '{f}', '10 s', '{NULL}', '{f}')`,
	} {
		for _, planned := range []bool{false, true} {
			below := newPeer(t, db.URL())
			if planned { // in this session, and with a free row
				below.exec(t, `SELECT `+sql[len("SELECT "):], below.key.String())
				below.exec(t, `SELECT r.* FROM pglock.locks l, pglock.release_lease(l.name, l.token, l.grant_id) r
					WHERE l.expires_at > clock_timestamp()`)
			}
			tx := must.Get(above.Begin(t.Context()))(t)
			must.Get(tx.Exec(t.Context(), `LOCK TABLE pglock.locks IN SHARE MODE`))(t)
			result := make(chan error, 1)
			var granted bool
			go func() { result <- below.QueryRow(t.Context(), sql, below.key.String()).Scan(&granted) }()
			look := newPeer(t, db.URL())
			below.awaitBlocked(t, look)
			id := uuid.New()
			if a := above.subtree(t, "t", id); a.granted || a.ticket == 0 {
				t.Fatalf("%+v", a)
			}
			must.Do(t, tx.Commit(t.Context()))
			if err := <-result; err != nil || granted {
				t.Errorf("%s, planned before %v: granted %v (%v) after the subtree's ticket was committed", what,
					planned, granted, err)
			}
			if a := above.subtree(t, "t", id); !a.granted {
				t.Errorf("%+v", a)
			} else {
				above.mustEnd(t, a.grant)
			}
		}
	}
}

// A lease that has run out is in the way until its row can be locked, as by a COMMIT that has passed its check: below a
// subtree, and above.
func TestI4_ACommitUnderWayKeepsSubtreesAndWhatIsBelowApart(t *testing.T) {
	db := pgtest.Parallel(t)
	first, two := newPeer(t, db.URL()), newPeer(t, db.URL())
	commit := newPeer(t, db.URL())
	keeps := func(name string, then func() bool) {
		commit.exec(t, `BEGIN`)
		commit.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR KEY SHARE`, name)
		first.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE name = $1`, name)
		if then() {
			t.Errorf("granted while a COMMIT may be under way that has checked the lease of %q", name)
		}
		commit.exec(t, `COMMIT`)
		if !then() {
			t.Errorf("not granted after the lease of %q was over", name)
		}
	}
	first.mustAcquire(t, "t/a", time.Minute)
	id := uuid.New()
	var a reply
	two.subtree(t, "t", id)
	keeps("t/a", func() bool { a = two.subtree(t, "t", id); return a.granted })
	id = uuid.New()
	keeps("t", func() bool { a = first.queue(t, "t/a", id); return a.granted })
}

// A ticket whose session is dead is passed over only by deleting it. So two can never pass over each other, and one
// that somebody has locked, as whoever grants it does, is in the way.
func TestADeadTicketInTheTreeIsDeletedByWhoeverPassesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, two, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	die := func(p *peer) {
		look.exec(t, `UPDATE pglock.sessions SET alive_until = clock_timestamp() - interval '1 ms' WHERE session_id = $1`,
			p.session().String())
	}
	passes := func(dead *peer, ticket int64, ask func() reply) reply {
		t.Helper()
		die(dead)
		look.exec(t, `BEGIN`)
		look.exec(t, `SELECT FROM pglock.waiters WHERE ticket = $1 FOR UPDATE`, ticket)
		if a := ask(); a.granted {
			t.Errorf("ticket %d was passed over while it was locked: %+v", ticket, a)
		}
		look.exec(t, `COMMIT`)
		a := ask()
		if !a.granted {
			t.Fatalf("dead ticket %d is in the way: %+v", ticket, a)
		}
		if n := one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE ticket = $1`, ticket); n != 0 {
			t.Errorf("ticket %d is still there", ticket)
		}
		return a
	}
	// a dead subtree above: its client comes back, and has to queue again
	held := holder.mustAcquire(t, "t/held", time.Minute)
	id := uuid.New()
	above := two.subtree(t, "t", id)
	mine := uuid.New()
	a := passes(two, above.ticket, func() reply { return holder.queue(t, "t/a", mine) })
	if again := two.subtree(t, "t", id); again.granted || again.ticket <= above.ticket {
		t.Errorf("%+v, want a new ticket", again)
	}
	holder.mustEnd(t, held)
	holder.mustEnd(t, a.grant)
	if again := two.subtree(t, "t", id); !again.granted {
		t.Errorf("%+v", again)
	} else {
		two.mustEnd(t, again.grant)
	}
	// a dead waiter below
	holder.mustAcquire(t, "t/held", time.Minute)
	other := newPeer(t, db.URL())
	waiter := other.queue(t, "t/held", uuid.New())
	id = uuid.New()
	two.subtree(t, "t", id)
	holder.exec(t, `UPDATE pglock.locks SET expires_at = '-infinity' WHERE name = 't/held'`) // a release that serves nobody
	a = passes(other, waiter.ticket, func() reply { return two.subtree(t, "t", id) })
	if again := other.queue(t, "t/held", waiter.id); again.granted || again.by != "t" {
		t.Errorf("%+v, want the subtree in the way", again)
	}
	two.mustEnd(t, a.grant)
}

// Whoever has waited for a subtree keeps its turn when that has ended, though its lock is free: no newcomer overtakes
// it, neither alone nor with several.
func TestI9_NobodyOvertakesThoseBelowWhenASubtreeEnds(t *testing.T) {
	db := pgtest.Parallel(t)
	above, below, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	held := below.mustAcquire(t, "t/held", time.Minute)
	subtree := uuid.New()
	above.subtree(t, "t", subtree)
	ids := map[string]uuid.UUID{"t/free": uuid.New(), "t/held": uuid.New(), "t/new/x": uuid.New()}
	for name, id := range ids {
		if a := below.queue(t, name, id); a.granted || a.ticket == 0 {
			t.Fatalf("%q: %+v", name, a)
		}
	}
	below.mustEnd(t, held)
	var a reply
	for _, phase := range []struct {
		name string
		is   func()
	}{
		{"waits", func() {}},
		{"is held", func() { a = above.subtree(t, "t", subtree) }},
		{"has ended", func() { above.mustEnd(t, a.grant) }},
		{"is swept away", func() { above.exec(t, `SELECT pglock.sweep()`) }},
	} {
		phase.is()
		for name := range ids {
			if g, err := other.acquire(t.Context(), name, uuid.New(), time.Minute, false); err != nil || g.granted {
				t.Errorf("%q: %+v, %v: a newcomer overtakes when the subtree %s", name, g, err, phase.name)
			}
			if one[bool](t, other, `SELECT bool_or(granted) FROM pglock.acquire_leases(ARRAY[$1], ARRAY[gen_random_uuid()],
				gen_random_uuid(), '{x}', '{1 min}', '{NULL}', '{f}', '{exclusive}', '{NULL}', '{f}', '10 s', '{NULL}',
				'{f}')`, name) {
				t.Errorf("%q: a newcomer in a set overtakes when the subtree %s", name, phase.name)
			}
		}
	}
	for name, id := range ids {
		if a := below.queue(t, name, id); !a.granted {
			t.Errorf("%q: %+v, want its turn", name, a)
		}
	}
}

// The end of a lease below is announced to the subtree that waits for it, and the end of a subtree to the first of
// each queue below it.
func TestI8_TheEndOfWhatIsInTheWayIsAnnounced(t *testing.T) {
	db := pgtest.Parallel(t)
	c := newClient(t, db.Pool(t))
	above, below := newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, p := range []*peer{above, below} {
		p.exec(t, `LISTEN "`+p.channel()+`"`)
	}
	heard := func(p *peer, a reply) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			n, err := p.WaitForNotification(ctx)
			if err != nil {
				t.Fatalf("nobody told the waiter of %q: %v", a.name, err)
			}
			if n.Payload == one[string](t, p, `SELECT pglock.hint($1, 0, 0, 0, $2)`, a.ticket, a.id.String()) {
				return
			}
		}
	}
	first, second := mustTry(t, c, "t/first"), mustTry(t, c, "t/second/x", pglock.WithShared())
	id := uuid.New()
	above.subtree(t, "t", id)
	a := above.subtree(t, "t", id)
	queued := below.queue(t, "t/new", uuid.New())
	for range 2 { // whichever of them is marked
		l := first
		if a.by == "t/second/x" {
			l = second
		}
		mustRelease(t, l)
		heard(above, a)
		last := a
		if a = above.subtree(t, "t", id); a.by == last.by && !a.granted {
			t.Fatalf("%+v after %+v", a, last)
		}
	}
	if !a.granted {
		t.Fatalf("%+v", a)
	}
	above.mustEnd(t, a.grant)
	above.exec(t, `SELECT pglock.announce('{t}', '{NULL}')`)
	heard(below, queued)
	if got := below.queue(t, "t/new", queued.id); !got.granted {
		t.Errorf("%+v", got)
	}
	if _, err := c.TryAcquire(t.Context(), "t", pglock.WithSubtree()); !errors.Is(err, pglock.ErrHeld) {
		t.Error(err)
	}
}

// Two leases end in one statement, and the first serves a request for the subtree above the second. That looks below,
// and marks the second lock's row. The second lock's next waiter is granted it all the same, and not only told so.
func TestI1_AReleaseOfManyGrantsWhatItTells(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	upper, lower := p.mustAcquire(t, "t", time.Minute), p.mustAcquire(t, "t/a", time.Minute)
	next := newPeer(t, db.URL()).party("next", "exclusive", time.Minute).mustQueue(t, "t/a")
	above, id := newPeer(t, db.URL()), uuid.New()
	for range 2 { // the second time it has waited out whoever may not have seen its ticket
		if a := above.subtree(t, "t", id); a.granted || a.ticket == 0 {
			t.Fatalf("the subtree: %+v", a)
		}
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.release_leases(ARRAY[$1, $2], ARRAY[$3, $4]::bigint[],
		ARRAY[$5, $6]::uuid[], '{0,0}') WHERE released`, upper.name, lower.name, upper.token, lower.token,
		upper.id.String(), lower.id.String()); n != 2 {
		t.Fatalf("%d leases were released, want 2", n)
	}
	if holder := one[string](t, look, `SELECT coalesce(max(holder), 'nobody') FROM pglock.get_lock('t/a')
		WHERE held`); holder != next.label {
		t.Errorf("I1: after the release t/a is held by %s, want %s: its ticket is gone: %v", holder, next.label,
			one[bool](t, look, `SELECT count(*) = 0 FROM pglock.waiters WHERE name = 't/a'`))
	}
}

// A request for a subtree is sent again while an earlier attempt is under way, and both find that nobody is left who
// has not seen its ticket. The later one then waits for the head of the lock, and whoever has that waits for nothing
// that it has locked.
func TestAnAttemptForASubtreeAndAReleaseDoNotWaitForEachOther(t *testing.T) {
	db := pgtest.Parallel(t)
	holder, first, again := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	look, stop := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	held, below := holder.mustAcquire(t, "t", time.Minute), look.mustAcquire(t, "t/a", time.Minute)
	a := first.subtree(t, "t", uuid.New())
	look.change(t, "wait_out", "BEGIN\n  LOOP", `BEGIN
		WHILE current_setting('test.stops', true) = 'here' AND NOT pg_try_advisory_xact_lock_shared(1) LOOP
			PERFORM pg_sleep(0.01);
		END LOOP;
		LOOP`)
	stop.exec(t, `SELECT pg_advisory_lock(1)`)
	again.exec(t, `SET test.stops = 'here'`)
	asked := must.Go(func() error {
		_, err := again.Exec(t.Context(), `SELECT FROM pglock.acquire_subtree('t', $1, $2, 'peer', '30 s',
			p_retry => true)`, a.id.String(), first.key.String())
		return err
	})
	pgtest.Eventually(t, "the attempt to have read the request", func() bool {
		return one[bool](t, look, `SELECT coalesce(wait_event = 'PgSleep', false) FROM pg_stat_activity WHERE pid = $1`,
			again.PgConn().PID())
	})
	first.subtree(t, "t", a.id)
	holder.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 't' AND slot = 0 FOR UPDATE`)
	stop.exec(t, `SELECT pg_advisory_unlock(1)`)
	again.awaitBlocked(t, look)
	holder.mustEnd(t, held) // it serves the request, and notes what is in its way
	holder.exec(t, `COMMIT`)
	if err := <-asked; err != nil {
		t.Errorf("the attempt and the release waited for each other: %v", err)
	}
	if got := first.subtree(t, "t", a.id); got.by != below.name || got.ticket != a.ticket {
		t.Errorf("%+v, want %q in the way", got, below.name)
	}
}
