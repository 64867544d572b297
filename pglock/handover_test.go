package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// queueing calls that wait for the lock, each under its label and behind the one before it.
func queueing(t *testing.T, pool *pgxpool.Pool, name string, clients []*pglock.Client, labels []string,
	opts ...pglock.AcquireOption) []chan *pglock.Lease {
	t.Helper()
	admin := newAdmin(t, pool)
	waiting := func() (n int) {
		for _, err := range admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: name}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	before := waiting()
	got := make([]chan *pglock.Lease, len(labels))
	for i, label := range labels {
		got[i] = make(chan *pglock.Lease, 1)
		c := clients[i%len(clients)]
		go func() {
			lease, err := c.Acquire(context.WithoutCancel(t.Context()), name, append(opts, pglock.WithHolder(label))...)
			if err != nil && !errors.Is(err, pglock.ErrClosed) {
				t.Errorf("%s: %v", label, err)
			}
			got[i] <- lease
		}()
		pgtest.Eventually(t, label+" to queue", func() bool { return waiting() == before+i+1 })
	}
	return got
}

func someClients(t *testing.T, pool *pgxpool.Pool, n int, opts ...pglock.Option) (clients []*pglock.Client) {
	t.Helper()
	for range n {
		clients = append(clients, startClient(t, pool, opts...))
	}
	return clients
}

// within takes a lease that has to come soon.
func within(t *testing.T, limit time.Duration, who string, got chan *pglock.Lease) *pglock.Lease {
	t.Helper()
	select {
	case lease := <-got:
		if lease == nil {
			t.Fatalf("%s has no lease", who)
		}
		return lease
	case <-time.After(limit):
		t.Fatalf("%s was not granted the lock within %v", who, limit)
	}
	return nil
}

// The third in the queue is named: it is next, with a greater token, and the others are served after it in their order.
func TestHandOverGrantsTheNamedWaiterAndTheOthersKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	for name, sessions := range map[string]int{"each in a client of its own": 5, "all in one client": 1} {
		t.Run(name, func(t *testing.T) {
			clients := someClients(t, pool, sessions)
			held := mustAcquire(t, clients[0], name, pglock.WithHolder("a"))
			labels := []string{"b", "c", "d", "e"}
			got := queueing(t, pool, name, clients, labels)
			if err := hooks.Of(held).CanHandOver(t.Context(), "d"); err != nil || !held.Valid() {
				t.Fatalf("CanHandOver: %v, then %v", err, held.Err())
			}
			began := time.Now()
			must.Do(t, held.HandOver(t.Context(), "d"))
			if err := held.Err(); err != pglock.ErrReleased || !errors.Is(context.Cause(held.Context()),
				pglock.ErrReleased) {
				t.Errorf("the lease that was handed over: %v, %v", err, context.Cause(held.Context()))
			}
			if err := held.Release(t.Context()); !errors.Is(err, pglock.ErrReleased) {
				t.Errorf("Release after HandOver: %v", err)
			}
			last := held
			for n, i := range []int{2, 0, 1, 3} { // d, then b, c, e
				next := within(t, 20*time.Second, labels[i], got[i])
				if n == 0 {
					t.Logf("handed over within %v", time.Since(began))
				}
				if next.Token() <= last.Token() || next.Holder() != labels[i] {
					t.Errorf("I2: %v after %v", next, last)
				}
				for j, other := range got {
					if len(other) > 0 {
						t.Errorf("I9: %s was granted the lock before its turn", labels[j])
					}
				}
				must.Do(t, next.Release(t.Context()))
				last = next
			}
		})
	}
}

func TestHandOverToNobodyChangesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	clients := someClients(t, pool, 4)
	held := mustAcquire(t, clients[0], "x")
	got := queueing(t, pool, "x", clients[1:2], []string{"b"})
	readers := queueing(t, pool, "x", clients[2:3], []string{"reader"}, pglock.WithShared())
	elsewhere := mustAcquire(t, clients[0], "y")
	others := queueing(t, pool, "y", clients[3:], []string{"d"})
	for _, to := range []string{"nobody", "reader", "d", "B"} {
		for _, err := range []error{held.HandOver(t.Context(), to), hooks.Of(held).CanHandOver(t.Context(), to)} {
			if !errors.Is(err, pglock.ErrNoWaiter) || errors.Is(err, pglock.ErrLost) {
				t.Errorf("to %q: %v", to, err)
			}
		}
	}
	if left, err := held.Check(t.Context()); err != nil || left == 0 || !held.Valid() {
		t.Fatalf("the lease that was not handed over: %v, %v", left, err)
	}
	if len(got)+len(readers) != 2 || len(got[0])+len(readers[0]) != 0 {
		t.Error("somebody was granted the lock")
	}
	must.Do(t, held.Release(t.Context()))
	b := within(t, 20*time.Second, "b", got[0])
	must.Do(t, b.Release(t.Context()))
	reader := within(t, 20*time.Second, "the reader", readers[0])
	for what, err := range map[string]error{
		"a shared lease":     reader.HandOver(t.Context(), "b"),
		"an empty label":     elsewhere.HandOver(t.Context(), ""),
		"asking of it":       hooks.Of(elsewhere).CanHandOver(t.Context(), ""),
		"asking of a reader": hooks.Of(reader).CanHandOver(t.Context(), "b"),
	} {
		if !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	must.Do(t, elsewhere.HandOver(t.Context(), "d"))
	within(t, 20*time.Second, "d", others[0])
	if err := held.HandOver(t.Context(), "b"); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a lease that was released: %v", err)
	}
}

// Of several waiters with one label the first is meant, and none of those whose session is dead.
func TestHandOverMeansTheFirstLivingWaiterOfThatLabel(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	clients := someClients(t, pool, 3)
	held := mustAcquire(t, clients[0], "x")
	conn := must.Get(pgx.Connect(t.Context(), db.URL()))(t)
	defer func() { _ = conn.Close(context.Background()) }()
	execute(t, conn, `SELECT FROM pglock.acquire_lease('x', $1, $2, 'twin', '30 s', p_wait => true,
		p_session_ttl => '100 ms')`, uuid.NewString(), uuid.NewString())
	pgtest.Eventually(t, "the first twin to be dead", func() bool {
		dead := pgtest.One[int](t, conn, `SELECT count(*) FROM pglock.list_waiters('x') WHERE NOT alive`)
		return dead == 1
	})
	if err := held.HandOver(t.Context(), "twin"); !errors.Is(err, pglock.ErrNoWaiter) || !held.Valid() {
		t.Fatalf("the only one is dead: %v, then %v", err, held.Err())
	}
	got := queueing(t, pool, "x", clients[1:], []string{"twin", "twin"})
	must.Do(t, held.HandOver(t.Context(), "twin"))
	within(t, 20*time.Second, "the second twin", got[0])
	if len(got[1]) != 0 {
		t.Error("the third twin was granted the lock too")
	}
}

// Only whoever knows the grant ID hands over, with the token of the lease, while it lasts. Everybody else changes
// nothing.
func TestHandOverByWhoeverHasNotTheLeaseChangesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	clients := someClients(t, pool, 2)
	conn := must.Get(pgx.Connect(t.Context(), db.URL()))(t)
	defer func() { _ = conn.Close(context.Background()) }()
	held := mustAcquire(t, clients[0], "x")
	got := queueing(t, pool, "x", clients[1:], []string{"b"})
	token, id := int64(held.Token()), exported(held).String()
	ask := func(token int64, id string) (outcome string) {
		t.Helper()
		must.Do(t, conn.QueryRow(t.Context(), `SELECT outcome FROM pglock.hand_over('x', $1, $2, 'b')`, token,
			id).Scan(&outcome))
		return outcome
	}
	for what, outcome := range map[string]string{
		"another grant": ask(token, uuid.NewString()),
		"another token": ask(token+1, id),
	} {
		if outcome != "unknown" {
			t.Errorf("%s: %s", what, outcome)
		}
	}
	execute(t, conn, `BEGIN`)
	execute(t, conn, `SET LOCAL synchronous_commit = off`)
	if outcome := ask(token, id); outcome != "handed over" {
		t.Errorf("with the grant: %s", outcome)
	}
	var commits string
	if err := conn.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&commits); err != nil || commits != "on" {
		t.Errorf("I12: the hand-over commits with synchronous_commit %s, %v", commits, err)
	}
	execute(t, conn, `COMMIT`)
	within(t, 20*time.Second, "b", got[0])
	if outcome := ask(token, id); outcome != "released" {
		t.Errorf("a second time: %s", outcome)
	}
	for call, state := range map[string]string{
		`SELECT pglock.hand_over('x', 1, gen_random_uuid(), '')`:                          "22023",
		`SELECT pglock.hand_over('x', 1, gen_random_uuid(), NULL)`:                        "22023",
		`SELECT pglock.hand_over('x', 1, gen_random_uuid(), repeat('x', 257), true)`:      "22023",
		`SELECT pglock.hand_over('x', 1, gen_random_uuid(), 'b', NULL)`:                   "22023",
		`BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT pglock.hand_over('x', 1, NULL, 'b');`: "LK005",
		`BEGIN TRANSACTION READ ONLY; SELECT pglock.hand_over('x', 1, NULL, 'b', true);`:  "25006",
	} {
		_, err := conn.Exec(t.Context(), call)
		if sqlState(err) != state {
			t.Errorf("%s: %v, want %s", call, err, state)
		}
		_, _ = conn.Exec(t.Context(), `ROLLBACK`)
	}
}

// A fenced transaction that is under way when the lock is handed over does not commit after it, at any isolation level.
func TestI4_I18_NothingOfTheOldHolderIsCommittedAfterAHandOver(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, conn := db.Pool(t), db.Conn(t)
	clients := someClients(t, pool, 2)
	execute(t, conn, `CREATE TABLE written (token bigint)`)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			held := mustAcquire(t, clients[0], string(level))
			got := queueing(t, pool, string(level), clients[1:], []string{"b"})
			err := fencedstore.New(pool).With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Write(
				t.Context(), held,
				func(ctx context.Context, tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO written VALUES ($1)`, held.Token()); err != nil {
						return err
					}
					if err := held.HandOver(t.Context(), "b"); err != nil {
						return fmt.Errorf("hand over: %w", err)
					}
					return nil
				})
			var rows int
			if scan := conn.QueryRow(t.Context(), `SELECT count(*) FROM written`).Scan(&rows); scan != nil {
				t.Fatal(scan)
			}
			if err == nil || rows != 0 {
				t.Errorf("I4: the write answered %v, and %d rows were committed", err, rows)
			}
			within(t, 20*time.Second, "b", got[0])
		})
	}
}

// Somebody watches: a hand-over is one change, from the one holder to the next.
func TestWatchTellsAHandOverAsOneGrant(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	clients := someClients(t, pool, 3)
	held := mustAcquire(t, clients[0], "x")
	got := queueing(t, pool, "x", clients[1:2], []string{"b"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := watching(ctx, clients[2], "x")
	hear(t, changes, pglock.ChangeState, held.Token(), true)
	must.Do(t, held.HandOver(t.Context(), "b"))
	b := within(t, 20*time.Second, "b", got[0])
	hear(t, changes, pglock.ChangeGranted, b.Token(), true)
}
