package advisory_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// wantLost waits for the end of the context, and says how long it took.
func wantLost(t *testing.T, h *advisory.Held) time.Duration {
	t.Helper()
	began := time.Now()
	await(t, "the end of the context", h.Context().Done())
	took := time.Since(began)
	var lost *advisory.LostError
	cause := context.Cause(h.Context())
	if !errors.As(cause, &lost) || !errors.Is(cause, pglock.ErrLost) || lost.Lock != h.Lease().Name() {
		t.Errorf("the context ended with %v, want a LostError", cause)
	}
	if err := h.Err(); !errors.As(err, &lost) {
		t.Errorf("Err is %v, want a LostError", err)
	}
	return took
}

func TestATerminatedSessionEndsTheContextAndTheLease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	s.exec("SELECT pg_terminate_backend($1)", s.bridgePID())
	took := wantLost(t, h)
	t.Logf("the context ended %v after the session", took)
	if took > 4*time.Second { // pings come every five
		t.Error("only a ping has noticed")
	}
	await(t, "the end of the lease", h.Lease().Context().Done())
	s.eventually("the lease to be released", "SELECT NOT EXISTS (SELECT FROM pglock.list_locks())")
	if o := s.old("1"); !o.try() {
		t.Error("an old program cannot take the lock")
	}
	var lost *advisory.LostError
	for range 2 {
		if err := h.Release(t.Context()); !errors.As(err, &lost) {
			t.Errorf("release: %v, want a LostError", err)
		}
	}
}

func TestABrokenLeaseFreesTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1), pglock.WithTTL(6*time.Second))
	got := s.old("1").waiting()
	admin := must.Get(lockadmin.New(t.Context(), s.pool))(t)
	must.Get(admin.Break(t.Context(), "x", "a test", lockadmin.BreakOptions{}))(t)
	must.Do(t, await(t, "the old program's lock", got))
	var lost *pglock.LostError
	if err := h.Err(); !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken {
		t.Errorf("Err is %v, want that the lease is broken", err)
	}
	if err := h.Release(t.Context()); !errors.As(err, &lost) {
		t.Errorf("release: %v, want that the lease is broken", err)
	}
}

func TestALeaseThatIsLostDuringTheWaitEndsIt(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.holding("1")
	b := s.bridge()
	got := must.Go(func() error {
		_, err := b.Acquire(t.Context(), "x", advisory.Bigint(1), pglock.WithTTL(6*time.Second))
		return err
	})
	s.eventually("the bridge to wait", "SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted")
	s.exec("SELECT FROM pglock.break_lock('x', 'a test', 'a test')")
	if err := await(t, "the end of the wait", got); !errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrHeld) {
		t.Errorf("the wait ended with %v, want ErrLost", err)
	}
}

func TestAClosedClientFreesTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := s.client()
	b := must.Get(advisory.New(c, advisory.Config{}))(t)
	h := s.hold(b, "x", advisory.Bigint(1))
	got := s.old("1").waiting()
	must.Do(t, c.Close(t.Context()))
	must.Do(t, await(t, "the old program's lock", got))
	if err := h.Err(); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("Err is %v, want ErrReleased", err)
	}
}

// Close ends both locks while fn works: what fn did after that it did without them, whatever it returns.
func TestDoTellsThatCloseHasTakenBothLocks(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for releases, want := range map[bool]error{false: pglock.ErrClosed, true: nil} {
		c := s.client()
		b := must.Get(advisory.New(c, advisory.Config{}))(t)
		err := b.Do(t.Context(), "x", advisory.Bigint(1), func(ctx context.Context, h *advisory.Held) (err error) {
			if releases {
				err = h.Release(ctx)
			}
			return errors.Join(err, c.Close(t.Context()))
		})
		if !errors.Is(err, want) {
			t.Errorf("Do = %v, want %v; fn had released both: %v", err, want, releases)
		}
	}
}

// cutConn is a connection that one can cut in silence: neither side hears of it, nor of the other's end.
type cutConn struct {
	net.Conn
	nothing net.Conn // from which nothing ever comes
	cut     *atomic.Bool
}

func (c cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.cut.Load() {
		return c.nothing.Read(b)
	}
	return n, err
}

func (c cutConn) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c cutConn) SetDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetDeadline(t), c.nothing.SetDeadline(t))
}

func (c cutConn) SetReadDeadline(t time.Time) error {
	return errors.Join(c.Conn.SetReadDeadline(t), c.nothing.SetReadDeadline(t))
}

func (c cutConn) Close() error { return errors.Join(c.Conn.Close(), c.nothing.Close()) }

// cuttable leads to the scene's database by connections that one can cut.
func (s *scene) cuttable(cut *atomic.Bool) *pgx.ConnConfig {
	return s.config(func(conn net.Conn) net.Conn {
		if cut.Load() { // to cancel a statement: there is no network for that either
			_ = conn.Close()
			return conn
		}
		nothing, _ := net.Pipe()
		s.t.Cleanup(func() { _ = nothing.Close() }) // pgx reads for a while from a connection that it has given up
		return cutConn{conn, nothing, cut}
	})
}

// A session whose network is cut in silence ends here before it ends on the server: nobody else has the advisory lock
// by then.
func TestACutSessionEndsTheContextBeforeTheServerFreesTheLock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var cut atomic.Bool
	const ttl = 6 * time.Second
	h := s.hold(s.bridgeBy(s.cuttable(&cut)), "x", advisory.Bigint(1), pglock.WithTTL(ttl))
	got := s.old("1").waiting()
	cut.Store(true)
	took := wantLost(t, h)
	select {
	case <-got:
		t.Error("an old program had the lock before the context ended")
	default:
	}
	// After three quarters of the TTL; the rest is for a busy machine. The server frees the lock at the earliest half
	// a TTL after the latest end of the lease.
	if most := ttl * 6 / 5; took > most {
		t.Errorf("the context ended after %v, want at most %v", took, most)
	}
	began := time.Now()
	must.Do(t, await(t, "the old program's lock", got))
	t.Logf("the context ended after %v, the server freed the lock %v later", took, time.Since(began))
}

func TestASessionThatIsQuietStays(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const ttl = 6 * time.Second
	h := s.hold(s.bridge(), "x", advisory.Bigint(1), pglock.WithTTL(ttl))
	select {
	case <-h.Context().Done():
		t.Errorf("the context ended: %v", context.Cause(h.Context()))
	case <-time.After(2 * ttl): // longer than the server lets a session be idle
	}
	if s.old("1").try() {
		t.Error("an old program holds beside")
	}
	must.Note(t, h.Release(t.Context()))
}

func TestALostAdvisoryLockIsNoticedByTheNextPing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1), pglock.WithTTL(8*time.Second))
	err := h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_unlock_all()"); err != nil {
			return err
		}
		return errors.New("rolled back")
	})
	if err == nil || err.Error() != "rolled back" {
		t.Fatal(err)
	}
	wantLost(t, h)
}

// The session has ended on the server, and this process cannot know: its network is cut.
func TestGuardRefusesWhereTheSessionHasEnded(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	store := fencedstore.New(s.pool)
	var cut atomic.Bool
	h := s.hold(s.bridgeBy(s.cuttable(&cut)), "x", advisory.Bigint(1))
	write := func(before func()) error {
		return store.Write(t.Context(), fencedstore.Fence{Lease: h.Lease(), SameToken: true},
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, "INSERT INTO written VALUES (1)"); err != nil {
					return err
				}
				before()
				return h.Guard(ctx, tx)
			})
	}
	must.Do(t, write(func() {}))
	cut.Store(true)
	var lost *advisory.LostError
	if err := write(func() { s.exec("SELECT pg_terminate_backend($1, 5000)", s.bridgePID()) }); !errors.As(err, &lost) {
		t.Errorf("the write ended with %v, want a LostError", err)
	}
	if !s.ask("SELECT count(*) = 1 FROM written") {
		t.Error("a write after the end of the session was committed")
	}
}
