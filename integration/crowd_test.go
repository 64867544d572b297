package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// wantFree waits until nobody holds or waits for a lock.
func wantFree(t *testing.T, look *peer) {
	t.Helper()
	pgtest.Eventually(t, "every lock to be free and every queue empty", func() bool {
		return one[int](t, look,
			`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp())`) == 0
	})
}

// turnstile sees every lease of one lock, from all clients of the process.
type turnstile struct {
	holders atomic.Int32
	last    atomic.Int64
}

// pass notes a lease: nobody else has the lock meanwhile, and the token is greater than every one before.
func (ts *turnstile) pass(t *testing.T, l *pglock.Lease) {
	if n := ts.holders.Add(1); n != 1 {
		t.Errorf("I1: %d hold the lock", n)
	}
	if last := ts.last.Swap(int64(l.Token())); int64(l.Token()) <= last {
		t.Errorf("I2: token %d after %d", l.Token(), last)
	}
	ts.holders.Add(-1)
}

// Calls that are cancelled at every moment, among others that are not: every error is the context's, nobody holds a
// lock without knowing, every queue is empty at the end, and the others are all served.
func TestTrap9_StormOfCancelledWaits(t *testing.T) {
	t.Parallel()
	storm(t, false, pglock.WithTTL(forHours))
}

// The same while connections of the clients are ended all the time, whatever travels on them: requests, grants,
// releases, hints and heartbeats.
func TestTrap9_CallsWhoseConnectionsAreEnded(t *testing.T) {
	t.Parallel()
	storm(t, true)
}

func storm(t *testing.T, ends bool, opts ...pglock.AcquireOption) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	locks := make([]turnstile, 2)
	wg := pgtest.Group(t)
	var stop atomic.Bool
	var served, untold, cancelled atomic.Int64
	for range 3 {
		c := newClient(t, db.Pool(t, maxConnections(4)))
		for caller := range 10 {
			wg.Go(func() {
				for n := caller; !stop.Load(); n++ {
					ctx, cancel := context.WithCancel(t.Context())
					if n%3 == 0 {
						time.AfterFunc(rand.N(20*time.Millisecond), cancel) // the chaos of this test
					}
					acquire := c.Acquire
					if caller == 0 {
						acquire = c.TryAcquire
					}
					lock := n % len(locks)
					l, err := acquire(ctx, fmt.Sprint("x", lock), opts...)
					switch {
					case err == nil:
						locks[lock].pass(t, l)
						served.Add(1)
						if err := l.Release(ctx); err != nil && ends {
							untold.Add(1)
						} else if err != nil && !(errors.Is(err, context.Canceled) && ctx.Err() != nil) {
							t.Error(err) // where ctx ends meanwhile, the client goes on telling the server
						}
					case errors.Is(err, context.Canceled) && ctx.Err() != nil:
						cancelled.Add(1)
						time.Sleep(5 * time.Millisecond) // leaves the machine to those who are served
					case !errors.Is(err, pglock.ErrHeld) || caller != 0:
						t.Error(err)
					}
					cancel()
				}
			})
		}
	}
	ended, enough := 0, int64(200)
	few := func(enough int64) bool {
		return served.Load() < enough || cancelled.Load() < enough/20 || ends && ended < 10
	}
	began := time.Now()
	for time.Since(began) < lasting(2*time.Second) || few(enough) && time.Since(began) < patience {
		if ends {
			ended += one[int](t, look, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
				SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
				ORDER BY random() LIMIT 1) b`)
		}
		before := served.Load()
		time.Sleep(20 * time.Millisecond) // between two blows
		for wait := time.Now(); served.Load() == before && time.Since(wait) < time.Second; {
			time.Sleep(time.Millisecond) // a slow machine gets time for a lease between them
		}
	}
	stop.Store(true)
	wg.Wait()
	began = time.Now()
	wantFree(t, look)
	if took := time.Since(began); took > 5*time.Second && untold.Load() == 0 {
		t.Errorf("trap 9: the locks were free after %v: they were held for nobody", took)
	}
	t.Logf("%d leases, %d cancelled, %d releases not told, %d connections ended, %d grants", served.Load(),
		cancelled.Load(), untold.Load(), ended, checkGrants(t, look))
	if few(enough / 2) {
		t.Error("too little happened to show anything")
	}
}

// Close ends hundreds of calls that wait, while others are served, and leaves nothing in the tables.
func TestCloseEndsCrowdsAndLeavesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	for round := range rarely(4) {
		c, b := newClient(t, db.Pool(t, maxConnections(4))), newClient(t, db.Pool(t))
		wg := pgtest.Group(t)
		var served atomic.Int64
		for caller := range 200 {
			wg.Go(func() {
				for {
					l, err := c.Acquire(t.Context(), fmt.Sprint("x", caller%3))
					if err == nil {
						served.Add(1)
						err = l.Release(t.Context())
					}
					if errors.Is(err, pglock.ErrClosed) || errors.Is(err, pglock.ErrReleased) &&
						c.Close(t.Context()) == nil {
						return // released by Close, which has come before
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		if round%2 == 0 {
			must.Get(b.Acquire(t.Context(), "x0"))(t)
		}
		pgtest.Eventually(t, "leases", func() bool { return served.Load() > 100 })
		must.Note(t, c.Close(t.Context()))
		wg.Wait()
		wantCount(t, look, 0, "%d tickets and leases are left",
			`SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE name <> 'x0' AND expires_at > clock_timestamp())`)
		if round%2 == 0 {
			must.Note(t, b.Close(t.Context()))
		}
	}
}

// Callers of two clients release their leases while they write under them, or just before; some write nothing. Each
// reads before it writes: a write of an ended lease that took effect would be seen as one from a stale read.
func TestI3_I4_ReleasesThatRaceWithFencedWrites(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	look.exec(t, `CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0);
		CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY, token bigint, read bigint)`)
	until := time.Now().Add(lasting(3 * time.Second))
	var leases, written, refused, late atomic.Int64
	wg := pgtest.Group(t)
	for client := range 2 {
		pool := db.Pool(t, maxConnections(12))
		c := newClient(t, pool, pglock.WithDefaultTTL(5*time.Second))
		for caller := range 12 {
			level := levels[(client+caller)%2]
			wg.Go(func() {
				for enough := func() bool {
					return written.Load() > 20 && refused.Load() > 5
				}; time.Now().Before(until) ||
					!enough() && time.Now().Before(until.Add(patience)); {
					l, err := c.Acquire(t.Context(), "x")
					if err != nil {
						t.Error(err)
						return
					}
					leases.Add(1)
					if rand.N(3) == 0 {
						must.Note(t, l.Release(t.Context()))
						continue
					}
					var balance int64
					must.Note(t, pool.QueryRow(t.Context(), `SELECT balance FROM account`).Scan(&balance))
					released := make(chan error, 1)
					delay := rand.N([]time.Duration{time.Millisecond, 10 * time.Millisecond,
						100 * time.Millisecond}[rand.N(3)])
					delay *= time.Duration(1 + refused.Load()/(1+written.Load())) // a busy machine writes slowly
					go func() {
						time.Sleep(delay) // the chaos of this test
						released <- l.Release(t.Context())
					}()
					err = writeOnce(t, pool, level, l, balance)
					ended := l.Err() != nil
					switch {
					case err == nil && ended:
						late.Add(1)
						written.Add(1)
					case err == nil:
						written.Add(1)
					case errors.Is(err, pglock.ErrLost), errors.Is(err, pglock.ErrReleased), errors.Is(err,
						fencedstore.ErrStaleToken), state(err) == "40001":
						refused.Add(1)
					default:
						t.Error(err)
					}
					must.Note(t, <-released)
				}
			})
		}
	}
	wg.Wait()
	wantCount(t, look, 0, "I3: %d writes carry a token that is not greater than the one before",
		`SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM ledger) l WHERE token <= before`)
	wantCount(t, look, 0, "I4: %d writes were made from a stale read",
		`SELECT count(*) FROM (SELECT read, row_number() OVER (ORDER BY n) - 1 AS balance FROM ledger) l WHERE read <> balance`)
	if n := one[int](t, look, `SELECT count(*) FROM ledger`); n != int(written.Load()) ||
		one[int](t, look, `SELECT balance FROM account`) != n {
		t.Errorf("%d writes are there, %d were acknowledged", n, written.Load())
	}
	wantFree(t, look)
	t.Logf("%d leases, %d writes, %d of them before a release that was under way, %d refused; %d grants", leases.Load(),
		written.Load(), late.Load(),
		refused.Load(), checkGrants(t, look))
	if written.Load() == 0 || refused.Load() == 0 {
		t.Error("too little happened to show anything")
	}
}

// writeOnce makes one fenced write from what was read before.
func writeOnce(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel, l *pglock.Lease, read int64) error {
	return fencedstore.New(pool).With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Write(t.Context(), l,
		func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE account SET balance = $1`, read+1); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `INSERT INTO ledger (token, read) VALUES ($1, $2)`, l.Token(), read)
			return err
		})
}
