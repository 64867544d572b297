package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// newLedger makes the table that the fenced transactions of a test write to.
func newLedger(t *testing.T, db *pgtest.DB) {
	t.Helper()
	newPeer(t, db.URL()).exec(t, `CREATE TABLE IF NOT EXISTS ledger (
		n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL, writer int)`)
}

func begin(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx := must.Get(pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// Two locks guard one resource: a token below the one that has passed is refused although its own lease is fine.
func TestI3_NoWritePassesAfterAGreaterToken(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	c, store := newClient(t, pool), fencedstore.New(pool)
	low := must.Get(c.TryAcquire(t.Context(), "first"))(t)
	high := must.Get(c.TryAcquire(t.Context(), "second"))(t)
	write := func(l *pglock.Lease, again bool) error {
		fence := fencedstore.Fence{Lease: l, Resource: "account", SameToken: again}
		return store.Write(t.Context(), fence, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, l.Token())
			return err
		})
	}
	must.Do(t, write(high, false))
	for what, again := range map[string]bool{"plain": false, "SameToken": true} {
		var stale *fencedstore.StaleTokenError
		if err := write(low, again); !errors.Is(err, fencedstore.ErrStaleToken) || !errors.As(err, &stale) ||
			*stale != (fencedstore.StaleTokenError{Resource: "account", Token: low.Token(), LastToken: high.Token()}) {
			t.Errorf("I3: %s write with the lower token answered %v", what, err)
		}
	}
	if err := write(high, false); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("I3: the same token wrote twice: %v", err)
	}
	if err := write(high, true); err != nil {
		t.Errorf("SameToken: %v", err)
	}
	if tokens := one[string](t, newPeer(t, db.URL()),
		`SELECT string_agg(token::text, ' ' ORDER BY n) FROM ledger`); tokens != fmt.Sprint(high.Token(), " ",
		high.Token()) {
		t.Errorf("I3: the ledger has tokens %s", tokens)
	}
}

// Writers with short leases that pause at random: rows are numbered under the fence row's lock, so their order is the
// order of the commits, and tokens never go down along it; and no update is lost.
func TestI3_TokensNeverGoDownInCommitOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	look := newPeer(t, db.URL())
	patientWaits(t, look) // the first use of a name is waited for
	look.exec(t, `CREATE TABLE account (balance int); INSERT INTO account VALUES (0)`)
	ctx := underLoad(t, 3*time.Second, newPeer(t, db.URL()), `SELECT count(*) >= 20 FROM ledger`)
	var mu sync.Mutex
	acknowledged := 0
	wg := pgtest.Group(t)
	for i := range 6 {
		p := &peer{key: uuid.New()}
		level := levels[i%len(levels)]
		lease := 250 * time.Millisecond
		wg.Go(func() {
			defer func() {
				if p.Conn != nil {
					_ = p.Close(context.Background())
				}
			}()
			for ctx.Err() == nil {
				if p.Conn == nil || p.IsClosed() { // the server ended a transaction that outlived its lease
					conn, err := pgx.Connect(t.Context(), db.URL())
					if err != nil {
						t.Error(err)
						return
					}
					p.Conn = conn
				}
				g, err := p.acquire(context.Background(), "x", uuid.New(), lease, false)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.granted {
					time.Sleep(rand.N(40 * time.Millisecond)) // leaves a busy machine to the holder
					continue
				}
				// The read comes before the fence, as in a program that computes first: only the fence can save it.
				var balance int
				_ = p.QueryRow(context.Background(), `SELECT balance FROM account`).Scan(&balance)
				if rand.N(3) == 0 {
					// a pause, often past the lease
					_, _ = p.Exec(context.Background(), `SELECT pg_sleep($1)`, 0.12+0.25*rand.Float64())
				}
				tx, err := p.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: level})
				if err != nil {
					t.Error(err)
					return
				}
				if err = p.fence(context.Background(), g, "x"); err == nil {
					_, err = tx.Exec(context.Background(), `UPDATE account SET balance = $1`, balance+1)
				}
				if err == nil {
					_, err = tx.Exec(context.Background(), `INSERT INTO ledger (token, writer) VALUES ($1, $2)`,
						g.token, i)
				}
				if err == nil && rand.N(3) == 0 {
					_, err = tx.Exec(context.Background(), `SELECT pg_sleep($1)`, 0.25*rand.Float64())
				}
				if err == nil {
					err = tx.Commit(context.Background())
				}
				if err == nil {
					mu.Lock()
					acknowledged++
					mu.Unlock()
					_, _ = p.release(context.Background(), g)
				} else {
					_ = tx.Rollback(context.Background())
					lease += 25 * time.Millisecond // on a busy machine none would be long enough
				}
			}
		})
	}
	wg.Wait()
	wantCount(t, look, 0, "I3: %d writes passed after a greater or the same token",
		`SELECT count(*) FROM (SELECT token, lag(token) OVER (ORDER BY n) AS before FROM ledger) l WHERE token <= before`)
	if balance := one[int](t, look, `SELECT balance FROM account`); balance != acknowledged {
		t.Errorf("I3: %d writes were acknowledged and the balance is %d", acknowledged, balance)
	}
}

// What may end a lease between the fence and COMMIT.
var endings = map[string]func(t *testing.T, look *peer, g grant){
	"expired": func(t *testing.T, look *peer, g grant) { awaitExpiry(t, look, g.name) },
	"taken over": func(t *testing.T, look *peer, g grant) {
		awaitExpiry(t, look, g.name)
		look.mustAcquire(t, g.name, time.Minute)
	},
	"broken": func(t *testing.T, look *peer, g grant) {
		look.exec(t, `SELECT FROM pglock.break_lock($1, 'test', 'test')`, g.name)
	},
	"released": func(t *testing.T, look *peer, g grant) {
		if released, err := look.release(t.Context(), g); err != nil || !released {
			t.Fatal(released, err)
		}
	},
}

// A fence that had to wait for a transaction before it finds out what became of its lease meanwhile.
func TestI3_FenceThatHasWaitedLooksAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	before, p, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	first := before.mustAcquire(t, "before", time.Minute)
	for what, end := range map[string]string{
		"broken":   `SELECT pglock.break_lock($1, 'test', 'test')`,
		"released": `SELECT pglock.release_lease(name, token, grant_id) FROM pglock.locks WHERE name = $1`,
	} {
		g := p.mustAcquire(t, what, time.Minute)
		before.exec(t, `BEGIN`)
		must.Do(t, before.fence(t.Context(), first, "fence of "+what))
		p.exec(t, `BEGIN`) // no COMMIT checks it instead
		passed := must.Go(func() error { return p.fence(context.Background(), g, "fence of "+what) })
		p.awaitBlocked(t, look)
		look.exec(t, end, what)
		before.exec(t, `ROLLBACK`)
		if err := <-passed; state(err) != "LK003" || detail(err) != "reason="+what {
			t.Errorf("I3: a lease that was %s while it waited at the fence passes: %v", what, err)
		}
		p.exec(t, `ROLLBACK`)
	}
}

// A fence in a snapshot that is older than the next holder's write refuses as that snapshot shows it: by the clock if
// the lease has run out, else with 40001.
func TestI3_I18_FenceInAnOldSnapshotDoesNotSeeTheGreaterToken(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	for _, level := range levels {
		for how, ttl := range map[string]time.Duration{"expired": 200 * time.Millisecond, "released": time.Minute} {
			p := newPeer(t, db.URL())
			g := p.mustAcquire(t, how+" "+string(level), ttl)
			p.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
			p.exec(t, `SELECT FROM pglock.locks`)
			if how == "released" {
				if released, err := look.release(t.Context(), g); err != nil || !released {
					t.Fatal(released, err)
				}
			}
			awaitExpiry(t, look, g.name)
			must.Do(t, look.fence(t.Context(), look.mustAcquire(t, g.name, time.Minute), g.name))
			want := "LK002"
			switch {
			case level != pgx.ReadCommitted && how == "expired":
				want = "LK001"
			case level != pgx.ReadCommitted:
				want = "40001"
			}
			if err := p.fence(t.Context(), g, g.name); state(err) != want {
				t.Errorf("%s, %s: %v, want %s", level, how, err, want)
			}
		}
	}
}

// I4, I18: whatever ended the lease, and whatever the snapshot shows, COMMIT is refused; and the tricks that
// defer or switch off triggers open no hole.
func TestI4_I18_NothingCommitsAfterTheLeaseEnded(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, level := range levels {
		for how, end := range endings {
			for trick, sql := range map[string]string{
				"":                     "SELECT 1",
				"replica role":         "SET LOCAL session_replication_role = replica",
				"constraints deferred": "SET CONSTRAINTS ALL DEFERRED",
			} {
				t.Run(fmt.Sprintf("%s/%s/%s", level, how, trick), func(t *testing.T) {
					var f *fencedTx
					before := strings.Replace(sql, "LOCAL", "SESSION", 1)
					if how == "expired" || how == "taken over" {
						t.Parallel() // most of it is waiting for leases to end
						f = beginFenced(t, db.URL(), level, 700*time.Millisecond, before)
					} else {
						f = newFencedTxOn(t, p, look, time.Minute)
						f.exec(t, before)
						f.begin(t, level)
					}
					g, look := f.g, f.look
					f.exec(t, sql) // and again after it
					end(t, look, g)
					if _, err := f.Exec(t.Context(), `COMMIT`); err == nil {
						t.Errorf("I4: a transaction committed after its lease was %s", how)
					} else if s := state(err); s != "LK001" && s != "LK003" && s != "40001" {
						t.Errorf("I4: the COMMIT was refused with %v", err)
					}
					wantCount(t, look, 0, "I4: %d rows were written",
						`SELECT count(*) FROM ledger WHERE token = $1`, g.token)
				})
			}
		}
	}
}

// SET CONSTRAINTS ALL IMMEDIATE in the write uses up the check of COMMIT; Write queues it again at the end.
func TestI4_ConstraintsImmediateOpenNoHoleInWrite(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	c, look := newClient(t, pool), newPeer(t, db.URL())
	lease, err := c.TryAcquire(t.Context(), "x", pglock.WithTTL(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	err = fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{
			`SET LOCAL idle_in_transaction_session_timeout = 0`, // would end the transaction before its COMMIT
			`SET CONSTRAINTS ALL IMMEDIATE`,                     // passes now, and holds off a takeover until the end
			`INSERT INTO ledger (token) VALUES (1)`,
		} {
			if _, err := tx.Exec(ctx, sql); err != nil {
				return err
			}
		}
		look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp()`) // the server's clock has moved on
		return nil
	})
	if !errors.Is(err, pglock.ErrLost) || one[int](t, look, `SELECT count(*) FROM ledger`) != 0 {
		t.Fatalf("I4: the write answered %v", err)
	}
}

// In a transaction of the application's own, Seal closes the two holes that its own code can open after Guard: it used
// up the check, or rolled back to before the fence.
func TestI4_SealClosesWhatTheTransactionOpened(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	c, look := newClient(t, pool), newPeer(t, db.URL())
	for how, opened := range map[string]func(tx pgx.Tx, lease *pglock.Lease) (*fencedstore.Guarded, error){
		"constraints immediate": func(tx pgx.Tx, lease *pglock.Lease) (*fencedstore.Guarded, error) {
			g, err := fencedstore.Guard(t.Context(), tx, lease)
			if err == nil {
				_, err = tx.Exec(t.Context(), `SET CONSTRAINTS ALL IMMEDIATE`)
			}
			return g, err
		},
		"rolled back to before": func(tx pgx.Tx, lease *pglock.Lease) (*fencedstore.Guarded, error) {
			if _, err := tx.Exec(t.Context(), `SAVEPOINT before`); err != nil {
				return nil, err
			}
			g, err := fencedstore.Guard(t.Context(), tx, lease)
			if err == nil {
				_, err = tx.Exec(t.Context(), `ROLLBACK TO before`)
			}
			return g, err
		},
	} {
		t.Run(how, func(t *testing.T) {
			lease := must.Get(c.TryAcquire(t.Context(), how, pglock.WithTTL(time.Minute)))(t)
			tx := begin(t, pool, pgx.ReadCommitted)
			guarded := must.Get(opened(tx, lease))(t)
			must.Get(tx.Exec(t.Context(), `INSERT INTO ledger (token) VALUES (1)`))(t)
			look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1`, how)
			err := guarded.Seal(t.Context())
			if err == nil {
				err = guarded.Explain(tx.Commit(t.Context()))
			}
			_ = tx.Rollback(t.Context())
			if !errors.Is(err, pglock.ErrLost) && !errors.Is(err, fencedstore.ErrLeftFence) {
				t.Errorf("I4: the transaction answered %v", err)
			}
			wantCount(t, look, 0, "I4: %d rows were written", `SELECT count(*) FROM ledger`)
		})
	}
}

// A callback that leaves the transaction is told so.
func TestWriteThatLeftTheFenceIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	c, store := newClient(t, pool), fencedstore.New(pool)
	for _, sql := range []string{"COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK AND CHAIN"} {
		lease, err := c.TryAcquire(t.Context(), sql)
		if err != nil {
			t.Fatal(err)
		}
		err = store.Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, sql)
			return err
		})
		if !errors.Is(err, fencedstore.ErrLeftFence) {
			t.Errorf("%s inside the write: %v", sql, err)
		}
	}
}

// The check inside COMMIT and a takeover are ordered by the database: while the COMMIT of a fenced transaction hangs
// after the check (here: for a standby that never answers), nobody is granted the lock, although the lease has ended
// meanwhile.
func TestI4_NoTakeoverBetweenTheCheckAndTheCommit(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	a, b, look := newPeer(t, server.URL()), newPeer(t, server.URL()), newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	patientWaits(t, look)
	g := a.mustAcquire(t, "x", time.Minute)
	a.exec(t, "BEGIN")
	must.Do(t, a.fence(t.Context(), g, "x"))
	syncStandby(t, look, "nobody")
	committed := must.Go(func() error { _, err := a.Exec(context.Background(), "COMMIT"); return err })
	pgtest.Eventually(t, "COMMIT to wait for the standby", func() bool {
		return one[bool](t, look,
			`SELECT coalesce((SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1), false)`,
			a.PgConn().PID())
	})
	// as if a minute had passed: no key is changed
	look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp()`)
	b.exec(t, "BEGIN") // rolled back below: its own COMMIT would hang too
	taken := must.Get(b.acquire(t.Context(), "x", uuid.New(), time.Minute, false))(t)
	if taken.granted {
		t.Error("I4: the lock was granted while the fenced transaction of the holder before was committing")
	}
	b.exec(t, "ROLLBACK")
	syncStandby(t, look, "")
	must.Do(t, <-committed)
	if b.mustAcquire(t, "x", time.Minute).token <= g.token {
		t.Error("I2: the next token is not greater")
	}
}
