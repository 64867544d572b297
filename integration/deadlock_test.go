package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// An owner that asks again for what it holds gets the error at once, in every mode and from every call.
func TestSelfDeadlockFailsAtOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	c, other := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	for name, mode := range map[string][]pglock.AcquireOption{"exclusive": nil, "shared": {pglock.WithShared()},
		"limit": {pglock.WithLimit(3)}} {
		t.Run(name, func(t *testing.T) {
			l := mustTry(t, c, name, mode...)
			mode := append([]pglock.AcquireOption{pglock.WithMaxWait(patience / 4)}, mode...)
			for what, ask := range map[string]func() error{
				"Acquire":    func() error { _, err := c.Acquire(l.Context(), name, mode...); return err },
				"TryAcquire": func() error { _, err := c.TryAcquire(l.Context(), name, mode...); return err },
				"Do": func() error {
					return c.Do(l.Context(), name, func(context.Context, *pglock.Lease) error { return nil }, mode...)
				},
				"AcquireAll": func() error {
					_, err := c.AcquireAll(l.Context(), []string{"free", name}, mode...)
					return err
				},
				"Acquire of another client": func() error {
					_, err := other.Acquire(l.Context(), name, mode...)
					return err
				},
			} {
				if err := ask(); !errors.Is(err, pglock.ErrSelfDeadlock) || !errors.Is(err, pglock.ErrHeld) {
					t.Errorf("%s: %v, want ErrSelfDeadlock", what, err)
				}
			}
			mustRelease(t, l)
			mustRelease(t, mustTry(t, c, name, mode...))
		})
	}
	var free *pglock.Lease
	pgtest.Eventually(t, "what a call for all had got to be given back", func() (got bool) {
		var err error
		free, err = c.TryAcquire(t.Context(), "free")
		return err == nil
	})
	mustRelease(t, free)
}

// Owners of several clients wait for each other in a circle: the newest gets the error within a second, with the
// whole circle, and the others continue when it lets go.
func TestCircleOfWaitersIsFoundWithinASecond(t *testing.T) {
	t.Parallel()
	fastest := patience // of several, because this machine may be busy
	for _, size := range []int{2, 3, 4, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			var leases []*pglock.Lease
			var clients []*pglock.Client
			for n := range size {
				c := newClient(t, db.Pool(t), pglock.WithDefaultHolder(fmt.Sprint("holder", n)))
				clients = append(clients, c)
				leases = append(leases, mustTry(t, c, fmt.Sprint("x", n)))
			}
			got := make(chan fetched, size)
			for n := range size - 1 {
				acquireInBackground(leases[n].Context(), clients[n], n, fmt.Sprint("x", n+1), got)
				awaitQueue(t, look, fmt.Sprint("x", n+1), 1)
			}
			began := time.Now()
			_, err := clients[size-1].Acquire(leases[size-1].Context(), "x0", pglock.WithMaxWait(patience))
			took := time.Since(began)
			var deadlock *pglock.DeadlockError
			if !errors.Is(err, pglock.ErrDeadlock) || !errors.As(err, &deadlock) {
				t.Fatalf("%v after %v, want ErrDeadlock", err, took)
			}
			t.Logf("found after %v: %v", took, err)
			fastest = min(fastest, took)
			if len(deadlock.Circle) != size {
				t.Fatalf("%+v has not %d links", deadlock.Circle, size)
			}
			for i, l := range deadlock.Circle {
				waiter := (size - 1 + i) % size
				if l.Waiter != fmt.Sprint("holder", waiter) || l.Lock != fmt.Sprint("x", (waiter+1)%size) ||
					l.Holder != fmt.Sprint("holder", (waiter+1)%size) {
					t.Errorf("link %d is %+v", i, l)
				}
			}
			mustRelease(t, leases[size-1])
			for range size - 1 { // from the one that waits for what was let go, backwards
				f := await(t, got)
				if f.err != nil {
					t.Fatal(f.err)
				}
				mustRelease(t, f.lease, leases[f.n])
			}
		})
	}
	if fastest > 1200*time.Millisecond {
		t.Errorf("the fastest of several circles was found after %v, want a second", fastest)
	}
}

// A circle that closes through the queue: a reader behind a waiting writer waits for the writer too.
func TestCircleThroughTheQueueIsFound(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	a, b, c := newClient(t, db.Pool(t), pglock.WithDefaultHolder("a")), newClient(t, db.Pool(t),
		pglock.WithDefaultHolder("b")), newClient(t, db.Pool(t), pglock.WithDefaultHolder("c"))
	read := mustTry(t, a, "x", pglock.WithShared()) // a reads x, and will wait for y, which b holds
	y := mustTry(t, b, "y")
	z := mustTry(t, c, "z")
	got := make(chan fetched, 3)
	acquireInBackground(z.Context(), c, 2, "x", got) // the writer c waits for a
	awaitQueue(t, look, "x", 1)
	acquireInBackground(y.Context(), b, 1, "x", got, pglock.WithShared()) // the reader b waits behind c
	awaitQueue(t, look, "x", 2)
	began := time.Now()
	_, err := a.Acquire(read.Context(), "y") // a waits for b: b -> c -> a -> b
	if deadlock, is := errors.AsType[*pglock.DeadlockError](err); !is || deadlock.Circle[0].Waiter != "a" ||
		deadlock.Circle[len(deadlock.Circle)-1].Holder != "a" {
		t.Fatalf("%v, want a circle that begins and ends with a", err)
	}
	t.Logf("found after %v", time.Since(began))
	mustRelease(t, read)
	f := await(t, got)
	if f.n != 2 || f.err != nil {
		t.Fatalf("%d: %v", f.n, f.err)
	}
	mustRelease(t, f.lease)
	t.Logf("writer granted after %v", time.Since(began))
	if f = await(t, got); f.n != 1 || f.err != nil {
		t.Fatalf("%d: %v", f.n, f.err)
	}
	t.Logf("reader granted after %v", time.Since(began))
}

// Long chains of owners that hold one lock and wait for the next are no circle, also while they move and while holders
// of a semaphore that are not stuck can let them go on.
func TestChainsWithoutACircleRaiseNoAlarm(t *testing.T) {
	pgtest.Long(t, "TestHolderOfASemaphoreThatIsNotStuckIsNoCircle")
	db := pgtest.Parallel(t)
	const chains, length, rounds = 4, 12, 4
	wg := pgtest.Group(t)
	for chain := range chains {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		for n := range length {
			wg.Go(func() {
				for range rounds {
					// Everybody takes its locks in rising order: no circle can close.
					err := c.Do(t.Context(), fmt.Sprintf("c%02d", n), func(ctx context.Context, _ *pglock.Lease) error {
						return c.Do(ctx, fmt.Sprintf("c%02d", n+1+chain%2),
							func(ctx context.Context, _ *pglock.Lease) error {
								return c.Do(ctx, "pool", func(context.Context, *pglock.Lease) error {
									return nil
								}, pglock.WithLimit(2))
							})
					})
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// One of two holders of a semaphore is part of what looks like a circle; the other can let the waiter go on: no alarm.
func TestHolderOfASemaphoreThatIsNotStuckIsNoCircle(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	a, b := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	stuck, free := mustTry(t, a, "pool", pglock.WithLimit(2)), mustTry(t, a, "pool", pglock.WithLimit(2))
	y := mustTry(t, b, "y")
	got := make(chan fetched, 2)
	acquireInBackground(stuck.Context(), a, 0, "y", got) // a holder of the pool waits for b
	awaitQueue(t, look, "y", 1)
	acquireInBackground(y.Context(), b, 1, "pool", got, pglock.WithLimit(2)) // b waits for the pool
	awaitQueue(t, look, "pool", 1)
	look.exec(t, `SET search_path = pglock, pg_temp`)
	wantCount(t, look, 0, "%d circles found where there is none",
		`SELECT count(circle) FROM pglock.waiters w, LATERAL (SELECT pglock.find_circle(w, pglock.stuck_waits(ARRAY[w.owner_id])) AS circle) c`)
	mustRelease(t, free)
	f := await(t, got)
	if f.n != 1 || f.err != nil {
		t.Fatalf("%d: %v", f.n, f.err)
	}
	mustRelease(t, f.lease, y)
	if f = await(t, got); f.err != nil {
		t.Error(f.err)
	}
}

// However many owners hold locks and wait for one more, a look reads some rows for each of them, and finds a circle
// through the last and the first. So it is under a slash, too, where there are no subtrees.
func TestALookReadsSomeRowsForEachOwnerThatWaits(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"x", "a/x"} {
		t.Run(name, func(t *testing.T) { readsSomeRows(t, name) })
	}
}

func readsSomeRows(t *testing.T, name string) {
	db := pgtest.Database(t)
	p, holder := newPeer(t, db.URL()), newPeer(t, db.URL())
	const owners, each = 100, 20
	holder.mustAcquire(t, name, time.Hour)
	p.mustAcquire(t, "y", time.Hour)
	wait := func(name string, owner int) { // a ticket whose owner holds something
		p.exec(t, `INSERT INTO pglock.waiters
				(name, ticket, mode, grant_id, session_id, owner_id, nested, holder, ttl, enqueued_at)
			VALUES ($1, nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), $2, md5($3)::uuid, true, $3,
				'30 s', now())`, name, p.session().String(), fmt.Sprint("o", owner))
	}
	for owner := range owners {
		wait(name, owner)
	}
	look := fmt.Sprintf(`SELECT count(circle) FROM pglock.look('%s', 'p', '1 min',
		ARRAY(SELECT w.ticket FROM pglock.waiters w))`, p.key)
	if rows, _ := p.rowsRead(t, look); rows > each*owners {
		t.Errorf("%d rows were read for %d owners, want at most %d for each", rows, owners, each)
	}
	wantCount(t, p, 0, "%d circles found where there is none", look)
	p.exec(t, `UPDATE pglock.locks SET owner_id = md5('o99')::uuid WHERE name = 'y'`)
	wait("y", 0) // o0 waits for o99, which waits behind o0
	wantCount(t, p, 1, "%d circles found, want 1", look)
}

// AcquireAll callers that name locks in any order never wait in a circle, and get all or none.
func TestAcquireAllInAnyOrderNeverDeadlocks(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	wg := pgtest.Group(t)
	for n := range 6 {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		names := []string{"a", "b", "c", "d"}
		wg.Go(func() {
			for round := range 10 {
				for i := range names {
					j := (i*(n+1) + round) % len(names)
					names[i], names[j] = names[j], names[i]
				}
				leases, err := c.AcquireAll(t.Context(), names)
				if err != nil {
					t.Error(err)
					return
				}
				tokens := make(map[pglock.Token]bool)
				for i, l := range leases.All() {
					if l.Name() != names[i] || !l.Valid() {
						t.Errorf("lease %d is %v, want %q", i, l, names[i])
					}
					tokens[l.Token()] = true
				}
				if len(tokens) != len(names) {
					t.Errorf("tokens %v", tokens)
				}
				must.Note(t, leases.Release(t.Context()))
			}
		})
	}
	wg.Wait()
	holder := mustTry(t, newClient(t, db.Pool(t)), "c")
	_, err := newClient(t, db.Pool(t)).AcquireAll(t.Context(), []string{"d", "c", "b", "a"},
		pglock.WithMaxWait(5*time.Second))
	if !errors.Is(err, pglock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want ErrHeld and context.DeadlineExceeded", err)
	}
	pgtest.Eventually(t, "the one that was in the way to be held alone", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`) == 1
	})
	mustRelease(t, holder)
}

// The search for circles reads everything at one moment: hand-overs that happen while it reads raise no alarm. Owners
// that hold a lock each hand another to and fro, while somebody searches all the time.
func TestHandOversDuringTheSearchRaiseNoAlarm(t *testing.T) {
	pgtest.Long(t, "TestHolderOfASemaphoreThatIsNotStuckIsNoCircle", "TestAcquireAllInAnyOrderNeverDeadlocks")
	db := pgtest.Parallel(t)
	wg := pgtest.Group(t)
	done := make(chan struct{})
	for n := range 2 {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		for m := range 3 {
			own := mustTry(t, c, fmt.Sprintf("own %d %d", n, m))
			wg.Go(func() {
				for range 150 {
					l, err := c.Acquire(own.Context(), "x", pglock.WithMaxWait(patience))
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	go func() { wg.Wait(); close(done) }()
	search := newPeer(t, db.URL())
	search.exec(t, `SET search_path = pglock, pg_temp`)
	searches := 0
	for searching := true; searching; searches++ {
		if n := one[int](t, search,
			`SELECT count(s.circle) FROM pglock.waiters w CROSS JOIN LATERAL (SELECT pglock.find_circle(w, pglock.stuck_waits(ARRAY[w.owner_id])) AS circle) s`); n != 0 {
			t.Errorf("%d circles found where there is none", n)
			break
		}
		select {
		case <-done:
			searching = false
		default:
		}
	}
	<-done
	t.Logf("%d searches", searches)
}

// A circle that closes through a queued writer that holds nothing itself: the reader behind it waits for the readers
// that the writer waits for.
func TestCircleThroughAWriterThatHoldsNothingIsFound(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]pglock.AcquireOption{"shared": pglock.WithShared(),
		"limit": pglock.WithLimit(2)} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			h, r := newClient(t, db.Pool(t), pglock.WithDefaultHolder("h")), newClient(t, db.Pool(t),
				pglock.WithDefaultHolder("r"))
			reads, holds := mustTry(t, h, "l", mode), mustTry(t, r, "x")
			got := make(chan fetched, 2)
			acquireInBackground(t.Context(), newClient(t, db.Pool(t)), 0, "l", got) // the writer
			awaitQueue(t, look, "l", 1)
			acquireInBackground(holds.Context(), r, 1, "l", got, mode) // queues behind it
			awaitQueue(t, look, "l", 2)
			_, err := h.Acquire(reads.Context(), "x", pglock.WithMaxWait(patience))
			if !errors.Is(err, pglock.ErrDeadlock) {
				t.Fatalf("%v, want ErrDeadlock", err)
			}
			mustRelease(t, reads)
			for range 2 {
				mustRelease(t, served(t, got))
			}
		})
	}
}
