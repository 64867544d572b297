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
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func oneConnection(c *pgxpool.Config) { c.MaxConns = 1 }

// withDefault sets a run-time setting for every connection of a pool.
func withDefault(setting, value string) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams[setting] = value }
}

// Whatever the sessions' default isolation, callers of acquire, renew and release never see a serialization failure or
// a deadlock; also when the default changes under a running client.
func TestI19_NoSerializationFailureReachesTheCaller(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			db := pgtest.Database(t)
			pool := db.Pool(t, withDefault("default_transaction_isolation", string(level)), func(c *pgxpool.Config) {
				c.MaxConns = 6
			})
			look := newPeer(t, db.URL())
			logGrants(t, look)
			least := 2 * 20
			began := time.Now()
			var mu sync.Mutex
			grants := 0
			enough := func() bool {
				mu.Lock()
				defer mu.Unlock()
				ran := time.Since(began)
				return ran > lasting(time.Second) && grants >= least || ran > patience
			}
			wg := pgtest.Group(t)
			for i := range 4 {
				c := newClient(t, pool)
				wg.Go(func() {
					for n := i; !enough(); n++ {
						lease, err := c.TryAcquire(context.Background(), fmt.Sprint("lock", n%2),
							pglock.WithTTL(time.Minute))
						if errors.Is(err, pglock.ErrHeld) {
							continue
						}
						if err == nil {
							if err = hooks.Of(lease).Renew(context.Background()); err == nil {
								_, err = lease.Check(context.Background())
							}
							err = errors.Join(err, lease.Release(context.Background()))
						}
						if err != nil {
							t.Errorf("I19: %v", err)
							return
						}
						mu.Lock()
						grants++
						mu.Unlock()
					}
				})
			}
			wg.Wait()
			checkGrants(t, look)
			if grants < least {
				t.Errorf("%d grants are too few to show anything", grants)
			}
		})
	}
}

func TestI19_DefaultIsolationMayChangeUnderTheClient(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t, oneConnection)
	c := newClient(t, pool)
	for _, level := range []string{"serializable", "read committed", "repeatable read"} {
		must.Get(pool.Exec(t.Context(), `SET default_transaction_isolation = '`+level+`'`))(t)
		lease, err := c.TryAcquire(t.Context(), "x")
		if err != nil {
			t.Fatalf("%s: %v", level, err)
		}
		if err := errors.Join(hooks.Of(lease).Renew(t.Context()), lease.Release(t.Context())); err != nil {
			t.Fatalf("%s: %v", level, err)
		}
	}
}

// Acquire never touches fences and rows are locked in one order: writers under two locks that contend for everything
// meet no deadlock.
func TestI25_NoDeadlockUnderTwoLocks(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	look := newPeer(t, db.URL())
	ctx := underLoad(t, 2*time.Second, newPeer(t, db.URL()), `SELECT count(*) >= 40 FROM ledger`)
	pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })
	store := fencedstore.New(pool)
	wg := pgtest.Group(t)
	for i := range 8 {
		c, admin := newClient(t, pool), newAdmin(t, pool)
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				lease, err := c.TryAcquire(context.Background(), fmt.Sprint("lock", n%2), pglock.WithTTL(time.Second))
				if err != nil {
					if !errors.Is(err, pglock.ErrHeld) && !errors.Is(err, pglock.ErrLost) { // an answer may come late
						t.Error(err)
					}
					time.Sleep(rand.N(2 * time.Millisecond)) // leaves a busy machine to the holders
					continue
				}
				err = store.Write(context.Background(), lease, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token())
					return err
				})
				if err != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, fencedstore.ErrStaleToken) &&
					!errors.Is(err, fencedstore.ErrTimeLimit) { // the lease was over, on a busy machine
					t.Error(err)
				}
				if n%3 == 0 { // an operator and the heartbeat go over the same rows
					_, _ = admin.Break(context.Background(), lease.Name(), "test", lockadmin.BreakOptions{})
				} else {
					_ = hooks.Of(lease).Renew(context.Background())
					_ = lease.Release(context.Background())
				}
			}
		})
	}
	wg.Wait()
	look.exec(t, `SELECT pg_stat_clear_snapshot()`)
	wantCount(t, look, 0, "I25: %d deadlocks", `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
	// The static half: no function reads or writes fences but those that pass them, guard with them, or show them to an
	// operator.
	if got, want := one[string](t, look,
		`SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND prosrc ~ '\mfences\M'`),
		"backend_pids broken_guards check_again diagnose diagnose_tokens fence guard_table guard_write list_fences "+
			"list_suspects locked_by own_objects pass_first refuse_fence require_fence seal seal_each "+
			"suspects touched_by"; got != want {
		t.Errorf("I25: %s touch fences, want %s", got, want)
	}
}

// I19: fenced transactions that are SERIALIZABLE pass fences of their own, new ones and others, by turns, and leave
// receipts. They are not in each other's way: all commit.
func TestI19_SerializableWritesPassTheirOwnFencesBesideOneAnother(t *testing.T) {
	db := pgtest.Parallel(t)
	var writers []*peer
	var grants []grant
	for n := range 4 {
		p := newPeer(t, db.URL())
		writers, grants = append(writers, p), append(grants, p.mustAcquire(t, fmt.Sprint("x", n), time.Minute))
	}
	for round, resources := range []string{"new", "newer", "new"} {
		for _, p := range writers {
			p.exec(t, "BEGIN ISOLATION LEVEL SERIALIZABLE")
		}
		for part := range 2 {
			for n, p := range writers {
				resource := fmt.Sprint(resources, n, part)
				p.exec(t, `SELECT FROM pglock.fence($1, $2, $3, $4, true,
					p_receipt_id => gen_random_uuid(), p_write_id => gen_random_uuid())`,
					grants[n].name, grants[n].token, grants[n].id.String(), resource)
				p.exec(t, `SELECT FROM pglock.once($1, $2, $3, $4) WHERE is_first`,
					fmt.Sprint("key ", n, part, round), grants[n].name, grants[n].token, grants[n].id.String())
			}
		}
		for n, p := range writers {
			p.exec(t, `SELECT pglock.seal($1)`, []string{fmt.Sprint(resources, n, 0), fmt.Sprint(resources, n, 1)})
		}
		for n, p := range writers {
			if _, err := p.Exec(t.Context(), "COMMIT"); err != nil {
				t.Errorf("%s, writer %d: %v", resources, n, err)
			}
		}
	}
}

// A request that waits finds a free lock, and somebody changes its row at that moment: the request has locked the new
// version, which its snapshot does not show. It then locks and awaits nothing else, not even its session: whoever has
// locked that may wait for this lock.
func TestI25_WhoeverHasTakenAFreeLockWaitsForNoSession(t *testing.T) {
	db := pgtest.Parallel(t)
	p, other, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	p.mustEnd(t, p.mustAcquire(t, "x", time.Minute))
	look.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until) VALUES ($1, 'peer', clock_timestamp())`,
		p.session().String())
	other.exec(t, `BEGIN; SELECT FROM pglock.sessions FOR NO KEY UPDATE`)
	if err := pausedIn(t, p, "x", "is_free", "AND NOT p_queued", "AND NOT p_queued AND pglock.pause_here('x')",
		func() error {
			var granted bool
			err := p.QueryRow(t.Context(), `SELECT granted FROM pglock.acquire_lease('x', gen_random_uuid(), $1, 'peer', '1 min',
				p_wait => true)`, p.key.String()).Scan(&granted)
			if err == nil && !granted {
				t.Error("I25: it is not granted")
			}
			return err
		}, func() {
			look.exec(t, `SELECT pglock.watch('x', '1 min')`)
		}); err != nil {
		t.Errorf("I25: %v", err)
	}
	other.exec(t, `ROLLBACK`)
}

// A request that finds the lock granted in between has locked the holder's row. It waits for nobody then: the holder's
// release would wait with it.
func TestI25_WhoeverIsTooLateForAFreeLockWaitsForNobody(t *testing.T) {
	db := pgtest.Parallel(t)
	other, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.change(t, "give_way", "LOOP", "RAISE 'it gives way'; LOOP")
	for what, c := range map[string]struct {
		more, session, beside string
		refused               bool
	}{
		"its session is noted":         {more: "p_wait", session: "1 h"},
		"its session is to be noted":   {more: "p_wait", session: "0"},
		"somebody locks its session":   {"p_wait", "0", `SELECT FROM pglock.sessions WHERE session_id = $1 FOR NO KEY UPDATE`, true},
		"its session is new":           {more: "p_wait", refused: true},
		"somebody writes its session":  {"p_wait", "", `INSERT INTO pglock.sessions VALUES ($1, 'peer', now())`, true},
		"it asks again, without queue": {more: "p_retry"},
	} {
		p := newPeer(t, db.URL())
		p.mustEnd(t, p.mustAcquire(t, what, time.Minute))
		look.exec(t, `INSERT INTO pglock.sessions (session_id, holder, alive_until)
			SELECT $1, 'peer', clock_timestamp() + l::interval FROM nullif($2, '') l WHERE l IS NOT NULL`,
			p.session(), c.session)
		other.exec(t, `BEGIN`)
		other.exec(t, strings.ReplaceAll(c.beside, "$1", "'"+p.session().String()+"'"))
		var ticket *int64
		err := pausedIn(t, p, "x", "is_free", "AND NOT p_queued", "AND NOT p_queued AND pglock.pause_here('x')",
			func() error {
				return p.QueryRow(t.Context(), `SELECT (more ->> 'ticket')::bigint FROM pglock.acquire_lease($1,
					gen_random_uuid(), $2, 'peer', '1 min', `+c.more+` => true)`, what, p.key.String()).Scan(&ticket)
			}, func() {
				look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '1 min',
					grant_id = gen_random_uuid() WHERE name = $1`, what)
			})
		refused := err != nil && strings.Contains(err.Error(), "is being written")
		if refused != c.refused || err != nil && !refused || (ticket != nil) != (c.more == "p_wait" && !refused) {
			t.Errorf("I25: %s: ticket %d, %v", what, orZero(ticket), err)
		}
		other.exec(t, `ROLLBACK`)
		look.change(t, "is_free", " AND pglock.pause_here('x')", "")
	}
}

// Requests that wait, releases and requests that are taken back wait for each other in no circle. Each has a minute
// where it has a second otherwise.
func TestI25_RequestsAreInTheWayOfNoReleaseForLong(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	patientWaits(t, look)
	look.change(t, "give_way", "'1 s'", "'1 min'")
	all, cancel := context.WithCancel(t.Context())
	defer cancel()
	clients := pgtest.Group(t)
	for range 6 {
		p := newPeer(t, db.URL())
		p.notes(t)
		clients.Go(func() {
			for round := range 500 {
				ctx, end := context.WithTimeout(all, 50*time.Second) // a circle lasts a minute
				q, err := p.enqueue(ctx, "x", uuid.New(), "exclusive", nil)
				if err == nil && q.granted {
					_, err = p.release(ctx, q.grant)
				} else if err == nil {
					_, err = p.Exec(ctx, `SELECT FROM pglock.give_up($1, ARRAY['x'], ARRAY[$2::uuid])`, p.key.String(),
						q.id.String())
				}
				end()
				if err != nil {
					t.Errorf("I25: round %d: %v", round, err)
					cancel()
					return
				}
			}
		})
	}
	clients.Wait()
}

// It has locked the row of a grant that came in between: its transaction must not keep that for long.
func TestI4_ATryThatComesTooLateKeepsNoHoldersRowForLong(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	p.mustEnd(t, p.mustAcquire(t, "x", time.Minute))
	p.exec(t, `BEGIN`)
	must.Do(t, pausedIn(t, p, "x", "is_free", "AND NOT p_queued", "AND NOT p_queued AND pglock.pause_here('x')",
		func() error {
			var granted bool
			err := p.QueryRow(t.Context(), `SELECT granted FROM pglock.acquire_lease('x', gen_random_uuid(), $1, 'peer', '1 min')`,
				p.key.String()).Scan(&granted)
			if granted {
				t.Error("it is granted")
			}
			return err
		}, func() {
			look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '1 min', grant_id = gen_random_uuid()
				WHERE name = 'x'`)
		}))
	if !one[bool](t, look, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_locks k USING (pid) WHERE l.pid = $1
		AND l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock')`, p.PgConn().PID()) {
		t.Error("it has locked no row: this test shows nothing")
	}
	for _, limit := range []string{"statement_timeout", "idle_in_transaction_session_timeout"} {
		if got := one[string](t, p, `SHOW `+limit); got == "0" {
			t.Errorf("%s does not bound its transaction", limit)
		}
	}
}
