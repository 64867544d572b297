package advisory_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// keys are keys of the new release, and the SQL that the old one has for them.
var keys = []struct {
	key advisory.Key
	sql string
}{
	{advisory.Bigint(42), "42"},
	{advisory.Bigint(-7_000_000_000), "-7000000000"},
	{advisory.Ints(-3, 9), "-3, 9"},
	{advisory.Hashtext("nightly"), "hashtext('nightly')"},
	{advisory.Hashtext("report"), "hashtext('report')"}, // a negative number
	{advisory.HashtextExtended("nightly", 5), "hashtextextended('nightly', 5)"},
	{advisory.IntsHashtext(12, "nightly"), "12, hashtext('nightly')"},
}

func TestEveryKeyIsTheOneThatOldProgramsUse(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	b := s.bridge()
	for n, k := range keys {
		name, o := fmt.Sprint("lock ", n), s.old(k.sql)
		h := s.hold(b, name, k.key)
		if o.try() {
			t.Errorf("an old program locks %s beside %v", k.sql, k.key)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("release %v: %v", k.key, err)
		}
		if !o.try() {
			t.Errorf("an old program cannot lock %s after the release of %v", k.sql, k.key)
		}
		var held *advisory.HeldError
		_, err := b.TryAcquire(t.Context(), name, k.key)
		if !errors.As(err, &held) || held.PID != o.pid() || !errors.Is(err, pglock.ErrHeld) {
			t.Errorf("try %v while an old program has it: %v, want the backend %d", k.key, err, o.pid())
		}
		if !s.ask("SELECT NOT EXISTS (SELECT FROM pglock.list_locks())") {
			t.Errorf("a refused try of %v has left the lease", k.key)
		}
	}
}

// Old programs of every kind and new ones work on one number, which each reads and writes in two transactions: a
// moment in which two hold loses an addition.
func TestOldAndNewNeverHoldTogether(t *testing.T) {
	t.Parallel()
	turns := 12
	if !pgtest.EveryTest {
		turns = 4
	}
	for _, k := range keys[2:5] {
		if !pgtest.Among(k.sql, keys[2].sql, keys[3].sql) {
			continue
		}
		t.Run(k.sql, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			s.exec("CREATE TABLE numbers (n int)")
			s.exec("INSERT INTO numbers VALUES (0)")
			var inside, done atomic.Int32
			work := func(ctx context.Context, read, write func(sql string, args ...any) error) error {
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				defer inside.Add(-1)
				err := errors.Join(read("SELECT n FROM numbers"), write("UPDATE numbers SET n = $1"))
				done.Add(1)
				return err
			}
			on := func(ctx context.Context, conn interface {
				QueryRow(context.Context, string, ...any) pgx.Row
			}) (read, write func(sql string, args ...any) error) {
				var n int
				return func(sql string, args ...any) error { return conn.QueryRow(ctx, sql, args...).Scan(&n) },
					func(sql string, args ...any) error { return conn.QueryRow(ctx, sql+" RETURNING n", n+1).Scan(&n) }
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
			defer cancel()
			all := pgtest.Group(t)
			// Of the old ones two wait in the server's queue, and one asks again and again.
			for _, blocks := range []bool{true, true, false} {
				o := s.old(k.sql)
				all.Go(func() {
					for range turns {
						if blocks {
							if err := o.lock(ctx); err != nil {
								t.Error(err)
								return
							}
						} else {
							for !o.try() {
								time.Sleep(time.Millisecond)
							}
						}
						read, write := on(ctx, o.conn)
						if err := errors.Join(work(ctx, read, write), o.unlock(ctx)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			siblings := s.bridgeOver(s.client(), advisory.Config{}) // of one client
			for _, b := range []*advisory.Bridge{s.bridge(), siblings, siblings} {
				all.Go(func() {
					for range turns {
						err := b.Do(ctx, "numbers", k.key, func(ctx context.Context, h *advisory.Held) error {
							read, write := on(ctx, s.pool)
							return work(ctx, read, write)
						})
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			if want := 6 * turns; int(done.Load()) != want || !s.ask("SELECT n = $1 FROM numbers", want) {
				t.Errorf("%d turns, want %d, and the number has lost additions", done.Load(), want)
			}
		})
	}
}

func TestAnOldProgramThatWaitsIsServedBeforeTheNextNewOne(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	first, second := s.hold(s.bridge(), "x", advisory.Bigint(1)), s.bridge()
	next := make(chan *advisory.Held, 1)
	pgtest.Group(t).Go(func() {
		h, err := second.Acquire(t.Context(), "x", advisory.Bigint(1))
		if err != nil {
			t.Error(err)
		}
		next <- h
	})
	s.eventually("the second bridge to queue", "SELECT count(*) = 1 FROM pglock.list_waiters()")
	if !s.ask("SELECT count(*) = 0 FROM advisory_locks WHERE NOT granted") {
		t.Error("a bridge without the lease waits for the advisory lock")
	}
	o := s.old("1")
	got := o.waiting()
	began := time.Now()
	must.Do(t, first.Release(t.Context()))
	must.Do(t, await(t, "the old program's lock", got))
	t.Logf("the old program had the lock %v after the release began", time.Since(began))
	s.eventually("the second bridge to wait for the advisory lock",
		"SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted")
	must.Do(t, o.unlock(t.Context()))
	if h := await(t, "the second bridge", next); h != nil {
		must.Note(t, h.Release(t.Context()))
	}
}

// The bridge steps back now and then, so that nothing waits for its snapshot, in each of pgx's ways to send a
// statement.
func TestAWaitGoesOnForManyRounds(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			config := s.config(func(conn net.Conn) net.Conn { return conn })
			config.DefaultQueryExecMode = mode
			o, b := s.holding("1"), s.bridgeBy(config)
			got := make(chan error, 1)
			go func() {
				got <- b.Do(t.Context(), "x", advisory.Bigint(1), func(ctx context.Context, h *advisory.Held) error {
					return h.Write(ctx, func(context.Context, pgx.Tx) error { return nil })
				})
			}()
			const waiting = "SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted"
			for range 3 {
				s.eventually("the bridge to wait", waiting)
				s.eventually("the bridge to step back", "SELECT NOT ("+waiting+")")
			}
			must.Do(t, o.unlock(t.Context()))
			must.Note(t, await(t, "the bridge", got))
		})
	}
}

func TestAWaitThatEndsLeavesNeitherLock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	o, b := s.holding("1"), s.bridge()
	ended := func(ways string, acquire func(context.Context) error, want error) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := must.Go(func() error { return acquire(ctx) })
		s.eventually("the bridge to wait", "SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted")
		if want == context.Canceled {
			cancel()
		}
		err := await(t, "the end of the wait", got)
		var held *advisory.HeldError
		if !errors.Is(err, want) || !errors.Is(err, pglock.ErrHeld) || !errors.As(err, &held) || held.PID != o.pid() {
			t.Errorf("%s: %v, want a HeldError of backend %d and %v", ways, err, o.pid(), want)
		}
		s.eventually("the bridge's backend to leave", "SELECT count(*) = 1 FROM advisory_locks")
		s.eventually(ways+": the lease to end", "SELECT NOT EXISTS (SELECT FROM pglock.list_locks())")
	}
	take := func(opts ...pglock.AcquireOption) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := b.Acquire(ctx, "x", advisory.Bigint(1), opts...)
			return err
		}
	}
	ended("cancelled", take(), context.Canceled)
	ended("WithMaxWait", take(pglock.WithMaxWait(4*time.Second)), context.DeadlineExceeded)
}

// The limit ends the wait for whichever of the two locks.
func TestAWaitThatWithMaxWaitEndsSaysSo(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.hold(s.bridge(), "x", advisory.Bigint(1))
	s.holding("2")
	b := s.bridge()
	for name, key := range map[string]advisory.Key{"x": advisory.Bigint(1), "y": advisory.Bigint(2)} {
		_, err := b.Acquire(t.Context(), name, key, pglock.WithMaxWait(300*time.Millisecond))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "300ms in vain (WithMaxWait)") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReadersOfBothKindsHoldTogether(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1), pglock.WithShared())
	o := s.old("1")
	if !s.ask("SELECT pg_try_advisory_lock_shared(1)") {
		t.Error("an old reader is kept out by a new one")
	}
	if o.try() {
		t.Error("an old writer holds beside readers")
	}
	must.Note(t, h.Release(t.Context()))
}
