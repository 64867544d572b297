package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func init() { roles["turns"] = takeTurns }

// turnsFile names the file whose lock the holder of "x" takes for its turn, and that has the last token.
const turnsFile = "PGLOCK_INTEGRATION_TURNS"

// takeTurns has many goroutines take turns of the lock "x" until the process is killed. Each checks with a lock of the
// system's that nobody of any process has a turn beside it, and that its token is greater than the last one.
func takeTurns(ctx context.Context, url string, say func(report)) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	// On a busy machine a worker that is stopped for a look goes on before its lease has ended.
	c, err := pglock.New(ctx, pool, pglock.WithDefaultTTL(3*time.Second), pglock.WithSessionTTL(3*time.Second))
	if err != nil {
		return err
	}
	errs := make(chan error)
	turns := make(chan pglock.Token)
	for range 32 {
		go func() {
			for {
				l, err := c.Acquire(ctx, "x")
				if err != nil {
					errs <- err
					return
				}
				if err := turnOf(l); err != nil {
					errs <- err
					return
				}
				turns <- l.Token()
				if err := l.Release(ctx); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	for n := 0; ; n++ {
		select {
		case token := <-turns:
			if n%20 == 0 {
				say(report{Event: "turn", Token: int64(token)})
			}
		case err := <-errs:
			return err
		}
	}
}

func turnOf(l *pglock.Lease) error {
	file, err := os.OpenFile(os.Getenv(turnsFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // ends the lock
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("I1: somebody else has a turn beside token %d: %w", l.Token(), err)
	}
	var last pglock.Token
	if _, err := fmt.Fscan(file, &last); err == nil && l.Token() <= last {
		return fmt.Errorf("I2: token %d after %d", l.Token(), last)
	}
	_, err = file.WriteAt(fmt.Appendf(nil, "%020d\n", l.Token()), 0)
	return err
}

// Processes are killed in the middle of blocks: numbers are lost, and nothing else. Those of other processes go on when the
// lease is over, with tokens greater than the whole block.
func TestI2_I8_AProcessKilledInTheMiddleOfABlockLosesNumbersAlone(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	file := turnsFile + "=" + t.TempDir() + "/turn"
	workers := []*process{startProcess(t, "turns", db.URL(), file), startProcess(t, "turns", db.URL(), file)}
	for _, w := range workers {
		w.await("turn")
	}
	waits := newClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Second))
	for n, w := range workers {
		killHolder(t, look, w)
		l, err := waits.Acquire(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		if n == len(workers)-1 { // nobody else is left
			if n := one[int](t, look, `SELECT count(*) FROM public.grant_log WHERE new_token >= $1 AND new_token <> $2`, int64(l.Token()), int64(l.Token())); n != 0 {
				t.Errorf("I2: %d grants have tokens at or above %d", n, l.Token())
			}
		}
		mustRelease(t, l)
		for _, other := range workers[n+1:] {
			other.await("turn")
			other.await("turn")
		}
	}
	if n := one[int](t, look, `SELECT count(*) FROM pglock.events WHERE kind = 'takeover'`); n == 0 {
		t.Error("no process was killed while it had the lock")
	}
	t.Logf("%d grants", checkGrants(t, look))
}

// killHolder stops a worker again and again until it has the lock "x", and kills it then. A stopped process cannot
// release.
func killHolder(t *testing.T, look *peer, w *process) {
	t.Helper()
	for range 1000 {
		w.await("turn")
		w.signal(syscall.SIGSTOP)
		if one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.locks
			WHERE name = 'x' AND slot = 0 AND expires_at > clock_timestamp() AND holder LIKE $1)`, fmt.Sprintf("%%[%d]", w.cmd.Process.Pid)) {
			w.signal(syscall.SIGKILL)
			return
		}
		w.signal(syscall.SIGCONT)
	}
	t.Fatal("the worker never had the lock when it was stopped")
}

// The server crashes in the middle of blocks: turns go on, tokens ascend, and nobody fails but who was lost or could not be
// told.
func TestI2_I8_TurnsOutliveAServerCrash(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("a server of its own that crashes")
	}
	server := migrated(t, nil)
	ts := &turnstile{t: t}
	var wg sync.WaitGroup
	var stop atomic.Bool
	var turns [2]atomic.Int64
	for client := range 2 {
		c := newClient(t, newPool(t, server.URL(), maxConnections(4)), pglock.WithDefaultTTL(5*time.Second))
		for range 8 {
			wg.Go(func() {
				for !stop.Load() {
					l, err := c.Acquire(t.Context(), "x")
					if errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrOutcomeUnknown) {
						continue
					} else if err != nil {
						t.Error(err)
						return
					}
					ts.pass(client, l, 0)
					turns[client].Add(1)
					_ = l.Release(t.Context()) // which may not be told to the server
				}
			})
		}
	}
	goOn := func() {
		before := [2]int64{turns[0].Load(), turns[1].Load()}
		pgtest.Eventually(t, "both clients to go on", func() bool { return turns[0].Load() > before[0]+100 && turns[1].Load() > before[1]+100 })
	}
	for range 2 {
		goOn()
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	goOn()
	stop.Store(true)
	wg.Wait()
	wantFree(t, newPeer(t, server.URL()))
}

// Connections of the clients are ended all the time, whatever travels on them: requests of lines, grants, releases, hints and
// heartbeats. All calls are served, and when it is over nobody holds a lock that nobody knows of.
func TestTrap9_LinesWhoseConnectionsAreEnded(t *testing.T) {
	t.Parallel()
	chaos := lasting(2 * time.Second)
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	ts := &turnstile{t: t}
	var wg sync.WaitGroup
	var stop atomic.Bool
	var untold, cancelled atomic.Int64
	for client := range 3 {
		c := newClient(t, db.Pool(t, maxConnections(4)), pglock.WithTurns([]int{4, 64, 2}[client], 0))
		for caller := range 10 {
			wg.Go(func() {
				for !stop.Load() {
					ctx, cancel := context.WithCancel(t.Context())
					if caller%3 == 0 {
						time.AfterFunc(time.Duration(1+2*caller)*time.Millisecond, cancel) // the chaos of this test
					}
					l, err := c.Acquire(ctx, "x")
					cancel()
					if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
						cancelled.Add(1)
						continue
					} else if err != nil {
						t.Error(err)
						return
					}
					ts.pass(client, l, 0)
					if err := l.Release(t.Context()); err != nil {
						untold.Add(1)
					}
				}
			})
		}
	}
	cuts := 0
	for began := time.Now(); time.Since(began) < chaos || (ts.count() < 100 || cuts < 10) && time.Since(began) < patience; {
		cuts += one[int](t, look, `SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM (
			SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) b`)
		turns := ts.count()
		time.Sleep(20 * time.Millisecond) // between two blows
		for wait := time.Now(); ts.count() == turns && time.Since(wait) < time.Second; {
			time.Sleep(time.Millisecond) // a slow machine gets time for a turn between them
		}
	}
	stop.Store(true)
	wg.Wait()
	began := time.Now()
	wantFree(t, look)
	if took := time.Since(began); took > 5*time.Second && untold.Load() == 0 {
		t.Errorf("trap 9: the lock was free after %v: it was held for nobody", took)
	}
	t.Logf("%d turns, %d cancelled, %d releases not told, %d connections ended, %d grants", len(ts.turns), cancelled.Load(), untold.Load(), cuts, checkGrants(t, look))
	if len(ts.turns) < 50 || cuts < 10 || cancelled.Load() == 0 {
		t.Error("too little happened to show anything")
	}
}

// The answer to the line's request, or the request itself, is lost with its connection: it is asked again with the same grant
// ID, and yields one grant.
func TestI6_LostAnswerOfALineYieldsTheOneTrueGrant(t *testing.T) {
	t.Parallel()
	for _, direction := range []string{"downstream", "upstream"} {
		t.Run(direction, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			logGrants(t, look)
			line := newLine(t, db.URL())
			pool := newPool(t, line.url, maxConnections(2))
			c := newClient(t, pool, pglock.WithTurns(pglock.DefaultTurns, patience)) // the time of a block would end it early
			warm(t, c)
			held := mustTry(t, c, "x")
			idle := pool.Stat().AcquiredConns()
			got := make(chan fetched, 4)
			acquireInBackground(t.Context(), c, 0, "x", got)
			awaitQueue(t, look, "x", 1)
			pgtest.Eventually(t, "the first call to read the answer that gives it its ticket", func() bool { return pool.Stat().AcquiredConns() == idle })
			line.cut(t, direction)
			for n := range 3 {
				acquireInBackground(t.Context(), c, n+1, "x", got)
			}
			if direction == "downstream" {
				awaitQueue(t, look, "x", 2)
			} else {
				pgtest.Eventually(t, "the connections to be cut", func() bool {
					return one[int](t, look, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND query NOT ILIKE 'listen%'`) <= 1
				})
			}
			line.mend()
			awaitQueue(t, look, "x", 2)
			mustRelease(t, held)
			last := held.Token()
			for range 4 {
				f := await(t, got)
				if f.err != nil || f.lease.Token() <= last {
					t.Fatalf("%v after %d: %v", f.lease, last, f.err)
				}
				last = f.lease.Token()
				if left, err := f.lease.Check(t.Context()); err != nil || left <= 0 {
					t.Errorf("I6: check: %v, %v", left, err)
				}
				mustRelease(t, f.lease)
			}
			wantFree(t, look)
			if n := one[int](t, look, `SELECT count(DISTINCT new_token) FROM public.grant_log WHERE name = 'x'`); n > 4 {
				t.Errorf("I6: %d grants for five leases of one client", n)
			}
		})
	}
}

// An operator breaks a block by the token of the turn that has it: that turn is lost with the next heartbeat, and those that
// wait queue again. The turn before is not lost.
func TestI7_I10_ABreakEndsTheTurnAndTheLineGoesOn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	c, operator := newClient(t, db.Pool(t), pglock.WithTurns(pglock.DefaultTurns, time.Hour)), newAdmin(t, db.Pool(t))
	const behind = 5
	gone, now, got := passedOn(t, look, c, "x", behind, pglock.WithTTL(3*time.Second))
	if _, err := operator.Break(t.Context(), "x", "test", lockadmin.WithToken(now.Token()+1000)); !errors.Is(err, lockadmin.ErrNotHeld) {
		t.Errorf("a break by a token that is of no turn: %v", err)
	}
	broken, err := operator.Break(t.Context(), "x", "test", lockadmin.WithToken(now.Token()))
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	<-now.Context().Done()
	var lost *pglock.LostError
	if cause := context.Cause(now.Context()); !errors.As(cause, &lost) || lost.Token != now.Token() || lost.Reason != pglock.ReasonBroken || time.Since(began) > patience/2 {
		t.Errorf("I10: the turn ended with %v after %v", cause, time.Since(began))
	}
	if err := now.Release(t.Context()); !errors.Is(err, pglock.ErrLost) || gone.Err() != pglock.ErrReleased {
		t.Errorf("I10: Release: %v; the turn before: %v", err, gone.Err())
	}
	for range behind {
		f := await(t, got)
		if f.err != nil || f.lease.Token() <= broken.NewToken {
			t.Fatalf("I10: %v after the break drew %d: %v", f.lease, broken.NewToken, f.err)
		}
		mustRelease(t, f.lease)
	}
	wantFree(t, look)
	checkGrants(t, look)
}

// The line to the server falls silent while turns pass: no turn is trusted once the server has granted the lock to another,
// and when it speaks again the calls are served.
func TestI1_I7_TurnsAreNotTrustedOnceTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	line := newLine(t, db.URL())
	c := newClient(t, newPool(t, line.url, maxConnections(4)), pglock.WithTurns(pglock.MaxTurns, time.Hour),
		pglock.WithDefaultTTL(1200*time.Millisecond), pglock.WithSessionTTL(time.Second))
	other := newClient(t, db.Pool(t))
	var wg sync.WaitGroup
	var stop, others, silent atomic.Bool
	var turns, lost, after atomic.Int64
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				l, err := c.Acquire(t.Context(), "x")
				if t.Context().Err() != nil {
					return
				} else if err != nil {
					if !errors.Is(err, pglock.ErrLost) {
						t.Error(err)
					}
					continue
				}
				turns.Add(1)
				for began := time.Now(); time.Since(began) < 2*time.Millisecond; { // the work of this test
					if others.Load() && l.Valid() && others.Load() {
						t.Error("I7: a turn is trusted while another client has the lock")
						return
					}
				}
				if silent.Load() {
					after.Add(1)
				}
				if err := l.Release(t.Context()); errors.Is(err, pglock.ErrLost) {
					lost.Add(1)
				}
			}
		})
	}
	pgtest.Eventually(t, "turns", func() bool { return turns.Load() > 50 })
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), other, 0, "x", got)
	awaitQueue(t, look, "x", 1)
	line.silence(t, "upstream")
	line.silence(t, "downstream")
	silent.Store(true)
	f := await(t, got)
	if f.err != nil {
		t.Fatal(f.err)
	}
	others.Store(true)
	time.Sleep(300 * time.Millisecond) // in which no turn may be trusted
	others.Store(false)
	mustRelease(t, f.lease)
	line.mend() // ends the connections that hang
	before := turns.Load()
	pgtest.Eventually(t, "turns again", func() bool { return turns.Load() > before+20 })
	stop.Store(true)
	wg.Wait()
	t.Logf("%d turns, %d of them after the silence, %d lost", turns.Load(), after.Load(), lost.Load())
	wantFree(t, look)
}

// The heartbeat keeps a block alive for several TTLs, while its turns pass and while one holds it long.
func TestI7_ABlockIsRenewedWhileItsTurnsPass(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t), pglock.WithTurns(pglock.MaxTurns, time.Hour))
	const behind = 60
	_, now, got := passedOn(t, look, c, "x", behind, pglock.WithTTL(2500*time.Millisecond))
	logGrants(t, look)
	for n := range behind + 1 {
		hold := 50 * time.Millisecond
		if n == behind/2 {
			hold = 3 * time.Second
		}
		time.Sleep(hold) // the work of this test
		if err := now.Release(t.Context()); err != nil {
			t.Fatalf("I7: turn %d: %v", n, err)
		}
		if n == behind {
			break
		}
		f := await(t, got)
		if f.err != nil {
			t.Fatal(f.err)
		}
		now = f.lease
	}
	wantFree(t, look)
	// A renewal that is late on a busy machine ends a block, but loses nothing.
	if n := one[int](t, look, `SELECT count(DISTINCT grant_id) FROM public.grant_log`); n > behind/10 {
		t.Errorf("%d grants for %d turns", n, behind)
	}
}

// Calls that give up leave a line at once, those behind them move up, and a line that nobody is in has no ticket.
func TestCallsThatGiveUpLeaveALineAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	var waiting waits
	c := newClient(t, db.Pool(t), pglock.WithDefaultHolder("the holder"), pglock.WithObserver(&waiting))
	held := look.mustAcquire(t, "x", time.Minute)
	got := make(chan fetched, 12)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for n := range 12 {
		of := t.Context()
		if n%2 == 1 {
			of = ctx
		}
		acquireInBackground(of, c, n, "x", got)
		if n == 0 {
			awaitQueue(t, look, "x", 1)
		}
	}
	awaitQueue(t, look, "x", 2)
	pgtest.Eventually(t, "all to wait", func() bool { return waiting.Load() == 12 })
	pgtest.Eventually(t, "the line to know who holds the lock", func() bool {
		var h *pglock.HeldError
		_, err := c.Acquire(t.Context(), "x", pglock.WithMaxWait(time.Millisecond))
		return errors.As(err, &h) && h.Holder == "peer"
	})
	began := time.Now()
	cancel()
	for range 6 {
		f := await(t, got)
		var h *pglock.HeldError
		if !errors.Is(f.err, context.Canceled) || !errors.As(f.err, &h) || h.Holder != "peer" || h.Place < 2 || f.n%2 != 1 {
			t.Errorf("%d: %v", f.n, f.err)
		}
	}
	if took := time.Since(began); took > patience/4 {
		t.Errorf("they returned after %v", took)
	}
	if released, err := look.release(t.Context(), held); err != nil || !released {
		t.Fatal(released, err)
	}
	serve(t, got, 6)
	wantFree(t, look)

	held = look.mustAcquire(t, "y", time.Minute)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	for n := range 5 {
		acquireInBackground(ctx, c, n, "y", got)
	}
	awaitQueue(t, look, "y", 2)
	cancel()
	for range 5 {
		if f := await(t, got); !errors.Is(f.err, context.Canceled) {
			t.Errorf("%d: %v", f.n, f.err)
		}
	}
	began = time.Now()
	awaitQueue(t, look, "y", 0)
	if took := time.Since(began); took > patience/4 {
		t.Errorf("a ticket stayed for %v", took)
	}
	if released, err := look.release(t.Context(), held); err != nil || !released {
		t.Fatal(released, err)
	}
}

// Close ends hundreds of calls in lines, with a turn under way and blocks not used up, and leaves nothing in the tables.
func TestCloseEndsLinesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	for round := range 5 {
		c, b := newClient(t, db.Pool(t, maxConnections(4))), newClient(t, db.Pool(t))
		var wg sync.WaitGroup
		var turns atomic.Int64
		for caller := range 200 {
			wg.Go(func() {
				for {
					l, err := c.Acquire(t.Context(), fmt.Sprint("x", caller%3))
					if err == nil {
						turns.Add(1)
						err = l.Release(t.Context())
					}
					if errors.Is(err, pglock.ErrClosed) || errors.Is(err, pglock.ErrReleased) && c.Close(t.Context()) == nil {
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
			if _, err := b.Acquire(t.Context(), "x0"); err != nil {
				t.Fatal(err)
			}
		}
		pgtest.Eventually(t, "turns", func() bool { return turns.Load() > 600 })
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if n := one[int](t, look, `SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE name <> 'x0' AND expires_at > clock_timestamp())`); n != 0 {
			t.Errorf("%d tickets and leases are left", n)
		}
		if round%2 == 0 {
			if err := b.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}
