package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// newJobs makes the table in which a test sees how often work was done.
func newJobs(t *testing.T, db *pgtest.DB) *peer {
	t.Helper()
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE jobs (key text, worker text)`)
	return look
}

// job notes that worker has done the work of the key.
func job(key, worker string) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO jobs VALUES ($1, $2)`, key, worker)
		return err
	}
}

// onceAt is Once at an isolation level. A transaction of SERIALIZABLE may fail for its neighbours' sake: then again.
func onceAt(ctx context.Context, store *fencedstore.Store, lease *pglock.Lease, key string,
	work func(context.Context, pgx.Tx) error, level pgx.TxIsoLevel) error {
	for {
		err := store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Once(ctx, lease, key, work)
		if state(err) != "40001" || level != pgx.Serializable {
			return err
		}
	}
}

func wantDoneOnce(t *testing.T, look *peer, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if n := one[int](t, look, `SELECT count(*) FROM jobs WHERE key = $1`, key); n != 1 {
			t.Errorf("the work of %q was done %d times", key, n)
		}
		if n := one[int](t, look, `SELECT count(*) FROM pglock.done_keys WHERE key = $1`, key); n != 1 {
			t.Errorf("key %q is noted %d times", key, n)
		}
	}
}

// Three processes' worth of clients, each with its own locks and with shared places of one lock, ask for the same
// keys from many goroutines at every isolation level. Each key's work is done once, and everybody else learns who did
// it.
func TestOnceIsOnceWhoeverAsks(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newJobs(t, db)
	keys := []string{"a", "b", "c", "d", "e", "f"}
	type worker struct {
		store *fencedstore.Store
		lease *pglock.Lease
		level pgx.TxIsoLevel
	}
	var workers []worker
	for process := range 3 {
		pool := newPool(t, db.URL(), maxConnections(8))
		c := newClient(t, pool, pglock.WithDefaultTTL(time.Minute))
		own, shared := mustTry(t, c, fmt.Sprint("own ", process)), mustTry(t, c, "shared", pglock.WithShared())
		for i := range 6 {
			lease := own
			if i%2 == 1 {
				lease = shared
			}
			workers = append(workers, worker{fencedstore.New(pool), lease, levels[(process+i)%3]})
		}
	}
	workers = workers[:16]
	for _, key := range keys {
		var first atomic.Pointer[pglock.Lease]
		var done sync.Map
		start := make(chan struct{})
		wg := pgtest.Group(t)
		for i, w := range workers {
			wg.Go(func() {
				<-start
				err := onceAt(t.Context(), w.store, w.lease, key, job(key, fmt.Sprint(i)), w.level)
				var d *fencedstore.DoneError
				switch {
				case err == nil:
					if !first.CompareAndSwap(nil, w.lease) {
						t.Errorf("key %q: done by two", key)
					}
				case errors.As(err, &d) && errors.Is(err, fencedstore.ErrDone):
					done.Store(i, d)
				default:
					t.Errorf("key %q, worker %d at %s: %v", key, i, w.level, err)
				}
			})
		}
		close(start)
		wg.Wait()
		if first.Load() == nil {
			t.Fatalf("key %q: done by nobody", key)
		}
		done.Range(func(_, value any) bool {
			if d := value.(*fencedstore.DoneError); d.Key != key || d.Lock != first.Load().Name() ||
				d.Token != first.Load().Token() || time.Since(d.At).Abs() > time.Minute {
				t.Errorf("key %q: %+v, want %s", key, d, first.Load())
			}
			return true
		})
	}
	wantDoneOnce(t, look, keys...)
}

// A caller that comes while another does the work waits for the end of that transaction, and does the work if that
// was rolled back.
func TestOnceWaitsForWhoIsAtWork(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newJobs(t, db)
	pool := db.Pool(t)
	boom := errors.New("boom")
	for _, level := range levels {
		for what, end := range map[string]error{"commits": nil, "fails": boom} {
			for _, locks := range [][2]string{{"one", "other"}, {"same", "same"}} {
				t.Run(fmt.Sprintf("%s/%s/%v", level, what, locks), func(t *testing.T) {
					key := t.Name()
					c, store := newClient(t, pool, pglock.WithDefaultTTL(time.Minute)), fencedstore.New(pool)
					a := mustTry(t, c, key+locks[0])
					b := a
					if locks[0] != locks[1] {
						b = mustTry(t, c, key+locks[1])
					}
					second := make(chan error, 1)
					var asked sync.Once
					err := onceAt(t.Context(), store, a, key, func(ctx context.Context, tx pgx.Tx) error {
						if err := job(key, "first")(ctx, tx); err != nil {
							return err
						}
						asked.Do(func() {
							go func() {
								second <- onceAt(context.Background(), store, b, key, job(key, "second"), level)
							}()
						})
						pgtest.Eventually(t, "the second to wait for the first", func() bool {
							return one[bool](t, look,
								`SELECT EXISTS (SELECT FROM pg_stat_activity a WHERE $1 = ANY (pg_blocking_pids(a.pid)))`, tx.Conn().PgConn().PID())
						})
						return end
					}, level)
					if !errors.Is(err, end) {
						t.Errorf("the first: %v", err)
					}
					err, by := <-second, "second"
					if end == nil {
						by = "first"
					}
					if (end == nil) != errors.Is(err, fencedstore.ErrDone) || end != nil && err != nil {
						t.Errorf("the second: %v", err)
					}
					wantDoneOnce(t, look, key)
					if worker := one[string](t, look, `SELECT worker FROM jobs WHERE key = $1`, key); worker != by {
						t.Errorf("the %s did it", worker)
					}
				})
			}
		}
	}
}

// A key with an end is refused after it, and never done again: neither while its row is there nor when it is gone.
func TestOnceRefusesKeysThatAreOlderThanTheyAreKept(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newJobs(t, db)
	pool := db.Pool(t)
	c, store := newClient(t, pool, pglock.WithDefaultTTL(time.Hour)), fencedstore.New(pool)
	lease := mustTry(t, c, "x")
	now := one[time.Time](t, look, `SELECT clock_timestamp()`)
	once := func(key string, of time.Time, keep time.Duration) error {
		return store.With(fencedstore.WithRetention(of, keep)).Once(t.Context(), lease, key, job(key, "x"))
	}
	for what, err := range map[string]error{
		"long ago":     once("long ago", now.Add(-2*time.Hour), time.Hour),
		"just now":     once("just now", now.Add(-time.Hour), time.Hour),
		"a second ago": once("a second ago", now.Add(-time.Second), time.Second),
	} {
		if !errors.Is(err, fencedstore.ErrKeyTooOld) || errors.Is(err, fencedstore.ErrDone) ||
			errors.Is(err, pglock.ErrInvalid) || state(err) != "LK012" {
			t.Errorf("a key whose time was over %s: %v", what, err)
		}
	}
	for key, of := range map[string]time.Time{"soon over": now.Add(-time.Hour + time.Minute), "now": now,
		"to come": now.Add(24 * time.Hour)} {
		if err := once(key, of, time.Hour); err != nil {
			t.Errorf("a key that is %s: %v", key, err)
		}
	}
	// Two hours later.
	look.exec(t, `UPDATE pglock.done_keys SET keep_until = keep_until - interval '2 hours' WHERE key = 'now'`)
	if err := once("now", now.Add(-2*time.Hour), time.Hour); !errors.Is(err, fencedstore.ErrDone) {
		t.Errorf("while its row is there: %v", err)
	}
	look.exec(t, `DELETE FROM pglock.done_keys WHERE key = 'now'`)
	if err := once("now", now.Add(-2*time.Hour), time.Hour); !errors.Is(err, fencedstore.ErrKeyTooOld) {
		t.Errorf("when its row is gone: %v", err)
	}
	wantCount(t, look, 3, "%d jobs were done, want 3", `SELECT count(*) FROM jobs`)
}

// Sweeping removes keys that have been over for a day, the oldest first; a clock that is set back by less than a day
// brings nothing back. Nothing else removes any.
func TestOnceForgetsKeysADayAfterTheirEnd(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	pool := db.Pool(t)
	c, store := newClient(t, pool, pglock.WithDefaultTTL(time.Hour)), fencedstore.New(pool)
	lease := mustTry(t, c, "x")
	look.exec(t,
		`INSERT INTO pglock.done_keys SELECT 'over for a day ' || n, 'x', 1, now(), now() - interval '24 hours 1 second' - n * interval '1 s' FROM generate_series(1, 25) n
		UNION ALL SELECT 'over for less ' || n, 'x', 1, now(), now() - interval '23 hours 59 minutes' FROM generate_series(1, 5) n
		UNION ALL SELECT 'for ever ' || n, 'x', 1, '2000-01-01', NULL FROM generate_series(1, 5) n`)
	counts := func() string {
		return one[string](t, look,
			`SELECT concat_ws(' ', count(*) FILTER (WHERE key LIKE 'over for a day%'), count(*) FILTER (WHERE key LIKE 'over for less%'), count(*) FILTER (WHERE key LIKE 'for ever%')) FROM pglock.done_keys`)
	}
	nothing := func(context.Context, pgx.Tx) error { return nil }
	if err := store.Once(t.Context(), lease, "for ever 1", nothing); !errors.Is(err, fencedstore.ErrDone) ||
		counts() != "25 5 5" {
		t.Errorf("a call that finds its key: %v, %s", err, counts())
	}
	ends := store.With(fencedstore.WithRetention(time.Now(), time.Hour))
	for key, store := range map[string]*fencedstore.Store{"ends": ends, "never ends": store} {
		if err := store.Once(t.Context(), lease, key, nothing); err != nil || counts() != "25 5 5" {
			t.Errorf("a call for a key that %s: %v, %s are left", key, err, counts())
		}
	}
	for n, want := range []string{"15 5 5", "5 5 5", "0 5 5", "0 5 5"} {
		look.exec(t, `SELECT pglock.sweep(10)`)
		if counts() != want {
			t.Errorf("%s are left, want %s", counts(), want)
		}
		if n == 0 &&
			one[int](t, look,
				`SELECT count(*) FROM pglock.done_keys WHERE key IN ('over for a day 16', 'over for a day 25')`) != 0 {
			t.Error("the oldest are not the first to go")
		}
	}
}

// Sweeping waits for nobody, and neither do others that sweep at the same time.
func TestI25_SweepingWaitsForNobody(t *testing.T) {
	db := pgtest.Parallel(t)
	look, a, b := newPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientTransactions(t, look)
	look.exec(t,
		`INSERT INTO pglock.done_keys SELECT 'old ' || n, 'x', 1, now(), now() - interval '2 days' FROM generate_series(1, 40) n;
		INSERT INTO pglock.sessions SELECT gen_random_uuid(), 'dead', clock_timestamp() - interval '1 hour', clock_timestamp() - interval '1 hour' FROM generate_series(1, 40);
		INSERT INTO pglock.spent_grants SELECT gen_random_uuid(), clock_timestamp() - interval '2 hours' FROM generate_series(1, 40);
		INSERT INTO pglock.receipts SELECT gen_random_uuid(), gen_random_uuid(), clock_timestamp() - interval '8 days' FROM generate_series(1, 40);
		INSERT INTO pglock.waiters SELECT 'q', n, 'exclusive', NULL, gen_random_uuid(), gen_random_uuid(), NULL, false, 'dead', '1 s', NULL, clock_timestamp() - interval '1 hour' FROM generate_series(1, 40) n`)
	a.exec(t, `BEGIN`)
	for _, p := range []*peer{a, b} {
		wantCount(t, p, 50, "I25: one that sweeps while another does has removed %d rows, want 50",
			`SELECT pglock.sweep(10)`)
	}
	a.exec(t, `COMMIT`)
	look.exec(t, `INSERT INTO pglock.events (kind, lock_name, token, at) VALUES ('takeover', 'q', 1, '2020-01-01')`)
	a.exec(t, `BEGIN; LOCK TABLE pglock.events IN SHARE MODE`)
	wantCount(t, b, 100, "%d rows were left, want 100 beside the history that somebody has locked", `SELECT pglock.sweep()`)
	a.exec(t, `COMMIT`)
	wantCount(t, b, 1, "%d entries were left, want 1", `SELECT pglock.sweep()`)
}

// In SQL: what once answers, and that a key is done though the transaction forgets its fence's lock.
func TestOnceInSQL(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Hour)
	ask := func(key string, more string) string {
		t.Helper()
		return one[string](t, p,
			`SELECT concat_ws('|', is_first, xact IS NOT NULL, lock_name, token = $2, done_at BETWEEN now() - interval '1 minute' AND clock_timestamp())
			FROM pglock.once($1, 'x', $2, $3::text::uuid`+more+`)`, key, g.token, g.id.String())
	}
	if got := ask("k", ""); got != "t|t|x|t|t" {
		t.Errorf("first: %s", got)
	}
	if got := ask("k", ""); got != "f|f|x|t|t" {
		t.Errorf("again: %s", got)
	}
	if got := ask("k", ", p_of => '2000-01-01', p_keep => '1 s'"); got != "f|f|x|t|t" { // what is there is told
		t.Errorf("again, with an end that is over: %s", got)
	}
	for what, c := range map[string]struct{ call, want string }{
		"NULL key":        {`NULL, 'x', 1, NULL`, "22023"},
		"empty key":       {`'', 'x', 1, NULL`, "22023"},
		"long key":        {`repeat('x', 513), 'x', 1, NULL`, "22023"},
		"of alone":        {`'n', 'x', 1, NULL, p_of => now()`, "22023"},
		"keep alone":      {`'n', 'x', 1, NULL, p_keep => '1 h'`, "22023"},
		"infinite of":     {`'n', 'x', 1, NULL, p_of => 'infinity', p_keep => '1 h'`, "22023"},
		"keep too short":  {`'n', 'x', 1, NULL, p_of => now(), p_keep => '999 ms'`, "22023"},
		"keep negative":   {`'n', 'x', 1, NULL, p_of => now(), p_keep => '-1 h'`, "22023"},
		"keep too long":   {`'n', 'x', 1, NULL, p_of => now(), p_keep => '110 years'`, "22023"},
		"too old":         {`'n', 'x', 1, NULL, p_of => now() - interval '2 s', p_keep => '1 s'`, "LK012"},
		"no such lease":   {`'n', 'x', 1, gen_random_uuid()`, "LK003"},
		"another's lease": {fmt.Sprintf(`'n', 'x', %d, gen_random_uuid()`, g.token), "LK003"},
	} {
		if _, err := p.Exec(t.Context(), `SELECT pglock.once(`+c.call+`)`); state(err) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
		}
	}
	wantCount(t, p, 1, "I11: %d keys", `SELECT count(*) FROM pglock.done_keys`)
}

// A key whose commit the synchronous standby may not have is not said to be done: a failover could lose it. Whoever
// asks is told so when the standby has it.
func TestI17_AKeyIsSaidToBeDoneWhenTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	pool := newPool(t, server.URL(), func(c *pgxpool.Config) { pglock.ObserveCommits(c.ConnConfig) })
	c, store := newClient(t, pool), fencedstore.New(pool)
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	defer db.Close()
	ways := map[string]func(ctx context.Context, l *pglock.Lease, key string) error{
		"Once": func(ctx context.Context, l *pglock.Lease, key string) error {
			return store.Once(ctx, l, key, func(context.Context, pgx.Tx) error { return nil })
		},
		"OnceSQL": func(ctx context.Context, l *pglock.Lease, key string) error {
			return fencedstore.NewSQL(db).Once(ctx, l, key, func(context.Context, *sql.Tx) error { return nil })
		},
	}
	for how, once := range ways {
		first, second := mustTry(t, c, how+"1", pglock.WithTTL(10*time.Minute)), mustTry(t, c, how+"2",
			pglock.WithTTL(10*time.Minute))
		syncStandby(t, look, "nobody")
		done := must.Go(func() error { return once(t.Context(), first, how) })
		endCommit(t, look, "pg_cancel_backend")
		if err := <-done; !errors.Is(err, pglock.ErrOutcomeUnknown) {
			t.Fatalf("I17: %s answered %v", how, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- once(ctx, second, how) }()
		pgtest.Eventually(t, "the question to wait for the standby", func() bool {
			return waiting(t, look, "SyncRep") == 1 || len(done) > 0
		})
		cancel()
		if err := <-done; errors.Is(err, fencedstore.ErrDone) || !errors.Is(err, pglock.ErrOutcomeUnknown) {
			t.Errorf("I17: %s says %v of a key that no standby has", how, err)
		}
		syncStandby(t, look, "")
		if err := once(t.Context(), second, how); !errors.Is(err, fencedstore.ErrDone) {
			t.Errorf("%s says %v of a key that was done", how, err)
		}
	}
}

// A driver may ask the server to cancel what it does when ctx ends. In the wait for the standby that commits, and then
// nothing says that no standby has the work.
func TestI17_AWaitForTheStandbyThatTheDriverCancelsIsNoConfirmation(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	pool := newPool(t, server.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
	})
	c, store := newClient(t, pool), fencedstore.New(pool)
	db := stdlib.OpenDB(*pool.Config().ConnConfig)
	defer db.Close()
	ways := map[string]func(ctx context.Context, l *pglock.Lease, key string) error{
		"pgx": func(ctx context.Context, l *pglock.Lease, key string) error {
			return store.Once(ctx, l, key, func(context.Context, pgx.Tx) error { return nil })
		},
		"database/sql": func(ctx context.Context, l *pglock.Lease, key string) error {
			return fencedstore.NewSQL(db).Once(ctx, l, key, func(context.Context, *sql.Tx) error { return nil })
		},
	}
	for how, once := range ways {
		first, second := mustTry(t, c, how+"1", pglock.WithTTL(10*time.Minute)), mustTry(t, c, how+"2",
			pglock.WithTTL(10*time.Minute))
		syncStandby(t, look, "nobody")
		for _, step := range []struct {
			what string
			l    *pglock.Lease
		}{{"the write", first}, {"the question whether it was done", second}} {
			pgtest.Eventually(t, "the server's rest", func() bool { return waiting(t, look, "SyncRep") == 0 })
			ctx, cancel := context.WithCancel(t.Context())
			done := must.Go(func() error { return once(ctx, step.l, how) })
			pgtest.Eventually(t, step.what+" to wait for the standby", func() bool {
				return waiting(t, look, "SyncRep") > 0 || len(done) > 0
			})
			cancel()
			if err := <-done; errors.Is(err, fencedstore.ErrDone) || !errors.Is(err, pglock.ErrOutcomeUnknown) {
				t.Errorf("I17: %s: %s says %v of what no standby has", how, step.what, err)
			}
		}
		syncStandby(t, look, "")
	}
}
