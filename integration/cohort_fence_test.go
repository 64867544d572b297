package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// fences are the ways in which a program puts its transaction under the fence of a lease.
var fences = map[string]func(ctx context.Context, tx pgx.Tx, l *pglock.Lease, resource string) error{
	"Guard": func(ctx context.Context, tx pgx.Tx, l *pglock.Lease, resource string) error {
		return fencedstore.Guard(ctx, tx, l, fencedstore.WithResource(resource))
	},
	"SQL": func(ctx context.Context, tx pgx.Tx, l *pglock.Lease, resource string) error {
		_, err := tx.Exec(ctx, `SELECT FROM pglock.fence($1, $2, $3, $4)`, l.Name(), int64(l.Token()), exported(l).String(), resource)
		return err
	},
}

// endsOfTurns are how a turn with an open fenced transaction ends.
var endsOfTurns = map[string]func(t *testing.T, look *peer, operator *lockadmin.Admin, l *pglock.Lease){
	"released": func(t *testing.T, _ *peer, _ *lockadmin.Admin, l *pglock.Lease) { mustRelease(t, l) },
	"broken": func(t *testing.T, _ *peer, operator *lockadmin.Admin, l *pglock.Lease) {
		if _, err := operator.Break(t.Context(), l.Name(), "test", lockadmin.WithToken(l.Token())); err != nil {
			t.Fatal(err)
		}
	},
	"expired": runsOut,
	"taken over": func(t *testing.T, look *peer, operator *lockadmin.Admin, l *pglock.Lease) {
		runsOut(t, look, operator, l)
		look.exec(t, "ROLLBACK")
		pgtest.Eventually(t, "the next in the queue to be granted the lock", func() bool {
			return one[bool](t, look, `SELECT grant_id::text <> $2 AND expires_at > clock_timestamp() FROM pglock.locks WHERE name = $1`, l.Name(), exported(l).String())
		})
	},
}

// runsOut keeps the row from renewals and from the next holder, but not from a COMMIT that checks it, until the lease is over.
func runsOut(t *testing.T, look *peer, _ *lockadmin.Admin, l *pglock.Lease) {
	look.exec(t, "BEGIN")
	look.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR NO KEY UPDATE`, l.Name())
	awaitExpiry(t, look, l.Name())
}

// unlimited lifts the time limits that a fence sets, so that the check inside COMMIT is what refuses.
func unlimited(t *testing.T, look *peer, tx pgx.Tx) {
	t.Helper()
	limits := []string{"idle_in_transaction_session_timeout", "statement_timeout", "transaction_timeout"}
	if one[bool](t, look, `SELECT current_setting('server_version_num')::int < 170000`) {
		limits = limits[:2]
	}
	for _, name := range limits {
		if _, err := tx.Exec(t.Context(), `SET LOCAL `+name+` = 0`); err != nil {
			t.Fatal(err)
		}
	}
}

// A transaction that a turn has put under its fence commits while the turn lasts, and not after its end, whatever ended it,
// at every isolation level. The next turn's write passes, and the tokens at the fence ascend.
func TestI3_I4_I10_I18_NothingOfATurnCommitsAfterItsEnd(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	newLedger(t, db)
	pool := db.Pool(t, maxConnections(40))
	operator := newAdmin(t, pool)
	for _, level := range levels {
		for how, end := range endsOfTurns {
			for what, fence := range fences {
				t.Run(fmt.Sprintf("%s/%s/%s", level, how, what), func(t *testing.T) {
					t.Parallel()
					look := newPeer(t, db.URL())
					turns := map[string]int{"Guard": pglock.DefaultTurns, "SQL": 2}[what] // a token within a block, and the last of one
					c, name := newClient(t, pool, pglock.WithTurns(turns, time.Hour)), t.Name()
					gone, lease, got := passedOn(t, look, c, name, 2, pglock.WithTTL(4*time.Second))
					insert := func(tx pgx.Tx, l *pglock.Lease) {
						if _, err := tx.Exec(t.Context(), `INSERT INTO ledger (token) VALUES ($1)`, l.Token()); err != nil {
							t.Fatal(err)
						}
					}
					// A turn that has passed its grant on gets into no fence, while its grant goes on.
					tx := begin(t, pool, level)
					if err := fence(t.Context(), tx, gone, name); err == nil {
						t.Error("I4: the fence let a turn in that had passed its grant on")
					}
					_ = tx.Rollback(t.Context())

					tx = begin(t, pool, level)
					if err := fence(t.Context(), tx, lease, name); err != nil {
						t.Fatal(err)
					}
					insert(tx, lease)
					if err := tx.Commit(t.Context()); err != nil {
						t.Fatalf("a fenced transaction of a turn: %v", err)
					}
					tx = begin(t, pool, level)
					if err := fence(t.Context(), tx, lease, name+" again"); err != nil {
						t.Fatal(err)
					}
					insert(tx, lease)

					unlimited(t, look, tx)

					end(t, look, operator, lease)
					var next fetched
					if how == "released" { // the next has the lock while the transaction is open yet
						if next = await(t, got); next.err != nil {
							t.Fatal(next.err)
						}
					}
					if err := fencedstore.Explain(tx.Commit(t.Context()), lease); err == nil {
						t.Errorf("I4: a transaction committed after its turn was %s", how)
					} else if !errors.Is(err, pglock.ErrLost) && state(err) != "40001" {
						t.Errorf("I4: the refusal is %v", err)
					}
					if n := one[int](t, look, `SELECT count(*) FROM ledger WHERE token = $1`, lease.Token()); n != 1 {
						t.Errorf("I4: %d writes of the turn, want the one before its end", n)
					}
					if err := fence(t.Context(), begin(t, pool, level), lease, name+" late"); err == nil {
						t.Errorf("I4: the fence let a turn in that was %s", how)
					}
					if how == "expired" {
						look.exec(t, "ROLLBACK")
					}
					if how != "released" {
						if err := lease.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
							t.Errorf("I10: Release: %v", err)
						}
						if next = await(t, got); next.err != nil {
							t.Fatal(next.err)
						}
					}
					if next.lease.Token() <= lease.Token() || exported(next.lease) == exported(lease) {
						t.Errorf("I10: the next has token %d after %d", next.lease.Token(), lease.Token())
					}
					tx = begin(t, pool, level)
					if err := fence(t.Context(), tx, next.lease, name); err != nil {
						t.Fatalf("the next turn: %v", err)
					}
					if err := tx.Commit(t.Context()); err != nil {
						t.Fatalf("the next turn: %v", err)
					}
					if last := one[int64](t, look, `SELECT last_token FROM pglock.fences WHERE resource = $1`, name); last != int64(next.lease.Token()) {
						t.Errorf("I3: the fence has token %d, want %d", last, next.lease.Token())
					}
					mustRelease(t, next.lease)
					serve(t, got, 1)
				})
			}
		}
	}
}

// Callers of two clients release their turns while they write under them, or just before, or ask for the grant ID in that
// moment; some write nothing, so that blocks pass on. Each reads before it writes: a write of an ended turn that took effect
// would be seen as one from a stale read.
func TestI3_I4_ReleasesThatRaceWithFencedWrites(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	look.exec(t, `CREATE TABLE account (balance bigint); INSERT INTO account VALUES (0);
		CREATE TABLE ledger (n bigint GENERATED ALWAYS AS IDENTITY, token bigint, read bigint)`)
	until := time.Now().Add(lasting(3 * time.Second))
	var turns, passed, written, refused, late atomic.Int64
	var wg sync.WaitGroup
	for client := range 2 {
		pool := db.Pool(t, maxConnections(12))
		c := newClient(t, pool, pglock.WithDefaultTTL(5*time.Second))
		for caller := range 12 {
			level := levels[(client+caller)%2]
			wg.Go(func() {
				for enough := func() bool { return passed.Load() > 20 && written.Load() > 20 && refused.Load() > 5 }; time.Now().Before(until) ||
					!enough() && time.Now().Before(until.Add(patience)); {
					l, err := c.Acquire(t.Context(), "x")
					if err != nil {
						t.Error(err)
						return
					}
					turns.Add(1)
					if rand.N(3) > 0 { // passes on in memory, where it can
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
						if exported(l) == uuid.Nil {
							passed.Add(1)
						}
						continue
					}
					var balance int64
					if err := pool.QueryRow(t.Context(), `SELECT balance FROM account`).Scan(&balance); err != nil {
						t.Error(err)
					}
					released := make(chan error, 1)
					delay := rand.N([]time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond}[rand.N(3)])
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
					case errors.Is(err, pglock.ErrLost), errors.Is(err, pglock.ErrReleased), errors.Is(err, fencedstore.ErrStaleToken), state(err) == "40001":
						refused.Add(1)
					default:
						t.Error(err)
					}
					if err := <-released; err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	if n := one[int](t, look, `SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM ledger) l WHERE token <= before`); n != 0 {
		t.Errorf("I3: %d writes carry a token that is not greater than the one before", n)
	}
	if n := one[int](t, look, `SELECT count(*) FROM (SELECT read, row_number() OVER (ORDER BY n) - 1 AS balance FROM ledger) l WHERE read <> balance`); n != 0 {
		t.Errorf("I4: %d writes were made from a stale read", n)
	}
	if n := one[int](t, look, `SELECT count(*) FROM ledger`); n != int(written.Load()) || one[int](t, look, `SELECT balance FROM account`) != n {
		t.Errorf("%d writes are there, %d were acknowledged", n, written.Load())
	}
	wantFree(t, look)
	t.Logf("%d turns, %d passed on in memory, %d writes, %d of them before a release that was under way, %d refused; %d grants", turns.Load(), passed.Load(),
		written.Load(), late.Load(), refused.Load(), checkGrants(t, look))
	if passed.Load() == 0 || written.Load() == 0 || refused.Load() == 0 {
		t.Error("too little happened to show anything")
	}
}

// writeOnce makes one fenced write from what was read before.
func writeOnce(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel, l *pglock.Lease, read int64) error {
	return fencedstore.New(pool).Write(t.Context(), l, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `UPDATE account SET balance = $1`, read+1); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO ledger (token, read) VALUES ($1, $2)`, l.Token(), read)
		return err
	}, fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level}))
}

// A turn's grant ID is requested just when the turn is released. If the ID was given out, nobody else has had the
// grant; if the grant was passed on, the ID is not given out.
func TestI4_GrantIDThatRacesWithReleaseIsToldOrPassedOn(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t, maxConnections(4)))
	var wg sync.WaitGroup
	var mu sync.Mutex
	owners := make(map[uuid.UUID]pglock.Token) // who was told which ID
	var told, passed atomic.Int64
	for caller := range 16 {
		wg.Go(func() {
			for n := range 150 {
				l, err := c.Acquire(t.Context(), "x")
				if err != nil {
					t.Error(err)
					return
				}
				ids := make(chan uuid.UUID, 1)
				asks := (n+caller)%4 == 0
				if asks {
					go func() { ids <- exported(l) }()
				}
				if n%3 == 0 && asks {
					time.Sleep(rand.N(50 * time.Microsecond)) // the chaos of this test
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if !asks {
					continue
				}
				id := <-ids
				if after := exported(l); id != after && after != uuid.Nil && id != uuid.Nil {
					t.Errorf("I4: the grant ID was %v and is %v", id, after)
				}
				if id == uuid.Nil {
					passed.Add(1)
					continue
				}
				told.Add(1)
				mu.Lock()
				if other, known := owners[id]; known {
					t.Errorf("I4: the same grant ID was told to the turns with tokens %d and %d", other, l.Token())
				}
				owners[id] = l.Token()
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	wantFree(t, look)
	t.Logf("%d told, %d passed on before", told.Load(), passed.Load())
	if told.Load() == 0 || passed.Load() == 0 {
		t.Error("too little happened to show anything")
	}
}

// The turn that has ended can neither renew, nor check, nor release what its successor holds.
func TestI5_AnEndedTurnDoesNotTouchTheRow(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t), pglock.WithTurns(pglock.DefaultTurns, time.Hour))
	gone, now, got := passedOn(t, look, c, "x", 1)
	row := func() string { return one[string](t, look, `SELECT l::text FROM pglock.locks l`) }
	before := row()
	if err := gone.Release(t.Context()); err != pglock.ErrReleased {
		t.Errorf("I5: a second release: %v", err)
	}
	if err := gone.Renew(t.Context()); err != pglock.ErrReleased {
		t.Errorf("I5: Renew: %v", err)
	}
	if _, err := gone.Check(t.Context()); err != pglock.ErrReleased {
		t.Errorf("I5: Check: %v", err)
	}
	if err := fencedstore.New(db.Pool(t)).Write(t.Context(), gone, func(context.Context, pgx.Tx) error { return nil }); !errors.Is(err, pglock.ErrReleased) && !errors.Is(err, pglock.ErrLost) {
		t.Errorf("I4: a write: %v", err)
	}
	if row() != before {
		t.Errorf("I5: the ended turn changed the row:\n%s\n%s", before, row())
	}
	if left, err := now.Check(t.Context()); err != nil || left <= 0 || !now.Valid() {
		t.Errorf("I5: the turn after it: %v, %v", left, err)
	}
	mustRelease(t, now)
	serve(t, got, 1)
	wantFree(t, look)
}
