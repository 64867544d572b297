package advisory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func insert(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "INSERT INTO written VALUES (1)")
	return err
}

func TestAWriteIsRolledBackWithItsSession(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	got := s.old("1").waiting()
	err := h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		if err := insert(ctx, tx); err != nil {
			return err
		}
		s.exec("SELECT pg_terminate_backend($1)", tx.Conn().PgConn().PID())
		return await(t, "the old program's lock", got)
	})
	if err == nil {
		t.Error("a write without a session was committed")
	}
	if !s.ask("SELECT count(*) = 0 FROM written") {
		t.Error("a write without a session is there")
	}
	wantLost(t, h)
}

func TestAWriteIsRefusedWhereItsSessionHasGivenTheLockBack(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	err := h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_unlock(1)")
		return errors.Join(err, insert(ctx, tx))
	})
	if !errors.Is(err, pglock.ErrLost) || !s.ask("SELECT count(*) = 0 FROM written") {
		t.Errorf("the write ended with %v, want ErrLost and no row", err)
	}
}

func TestAWriteIsUnderTheFence(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	must.Do(t, h.Write(t.Context(), insert))
	if err := h.Write(t.Context(), insert); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("a second write with the same token: %v, want ErrStaleToken", err)
	}
	s.exec("SELECT FROM pglock.break_lock('x', 'a test', 'a test')")
	if err := h.Under(fencedstore.Fence{SameToken: true}).Write(t.Context(), insert); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("a write after a break: %v, want ErrLost", err)
	}
	if !s.ask("SELECT count(*) = 1 FROM written") {
		t.Error("a refused write is there")
	}
}

// What the server refuses a statement of fn for is the application's affair.
func TestAWriteLeavesTheErrorsOfItsFunctionAsTheyAre(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	events := make(chan pglock.Event, 9)
	c := s.clientWith(pglock.WithObserver(pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
		if e.Kind == pglock.EventRefused {
			events <- e
		}
	})))
	h := s.hold(s.bridgeOver(c, advisory.Config{}), "x", advisory.Bigint(1))
	var own error
	err := h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, own = tx.Exec(ctx, "SELECT 'a'::text = 1")
		return own
	})
	if own == nil || err != own { //nolint:errorlint // as it is
		t.Errorf("%v, want %v as it is", err, own)
	}
	if err := c.Close(t.Context()); err != nil { // which joins the observer
		t.Fatal(err)
	}
	if len(events) > 0 {
		t.Errorf("the observer heard %+v", <-events)
	}
}

func TestAWriteTakesTheOptionsOfGuard(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	under := h.Under(fencedstore.Fence{Resource: "y"}, fencedstore.WithTimeLimit(time.Minute),
		fencedstore.WithReceipt())
	must.Do(t, under.Write(t.Context(), insert))
	if !s.ask("SELECT count(*) = 1 FROM pglock.receipts") {
		t.Error("the write has left no receipt")
	}
	y := h.Under(fencedstore.Fence{Resource: "y"})
	if err := y.Write(t.Context(), insert); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("a second write to the resource: %v, want ErrStaleToken", err)
	}
	if err := h.Write(t.Context(), insert); err != nil {
		t.Errorf("a write to another resource: %v", err)
	}
}

func TestGuardSQLLooksFromADatabaseSQLTransaction(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var cut atomic.Bool // then the bridge does not hear of the end of its session
	h := s.hold(s.bridgeBy(s.cuttable(&cut)), "x", advisory.Ints(-1, 1))
	db := stdlib.OpenDBFromPool(s.pool)
	defer db.Close()
	tx := must.Get(db.BeginTx(t.Context(), nil))(t)
	defer tx.Rollback()
	must.Note(t, h.GuardSQL(t.Context(), tx))
	cut.Store(true)
	s.exec("SELECT pg_terminate_backend($1, 5000)", s.bridgePID())
	var lost *advisory.LostError
	if err := h.GuardSQL(t.Context(), tx); !errors.As(err, &lost) {
		t.Errorf("without the session of the advisory lock: %v, want a LostError", err)
	}
}

// Writes take turns with each other and with the goroutine that watches, and a release waits for the one that is
// under way.
func TestWritesAndReleaseShareTheSession(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	h := s.hold(s.bridge(), "x", advisory.Bigint(1), pglock.WithTTL(4*time.Second))
	all := pgtest.Group(t)
	for range 4 {
		all.Go(func() {
			for range 20 {
				if err := h.Under(fencedstore.Fence{SameToken: true}).Write(t.Context(), insert); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	if !s.ask("SELECT count(*) = 80 FROM written") {
		t.Error("writes are missing")
	}
	within, wrote := make(chan struct{}), make(chan error, 1)
	go func() {
		again := h.Under(fencedstore.Fence{SameToken: true})
		wrote <- again.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			close(within)
			<-ctx.Done()
			return insert(context.WithoutCancel(ctx), tx)
		})
	}()
	await(t, "the write", within)
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := await(t, "the write", wrote); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a write whose locks were released: %v, want ErrReleased", err)
	}
	if !s.ask("SELECT count(*) = 80 FROM written") {
		t.Error("a write whose locks were released is there")
	}
	if err := h.Write(t.Context(), insert); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a write after the release: %v, want ErrReleased", err)
	}
}

// pgx gives up the connection of a statement whose ctx ends. Here it is the session of the advisory lock.
func TestAStatementThatIsCutShortEndsTheSession(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wrote := make(chan error, 1)
	go func() {
		wrote <- h.Write(ctx, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		})
	}()
	s.eventually("the statement to run", `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event = 'PgSleep')`)
	cancel()
	err := await(t, "the write", wrote)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the write ended with %v", err)
	}
	wantLost(t, h)
}

// A release that ends a write in the middle of a statement ends the session, and both locks were held until then.
func TestAReleaseThatIsInAWritesWayIsNoLoss(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	wrote := make(chan error, 1)
	go func() {
		wrote <- h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return err
		})
	}()
	s.eventually("the statement to run", `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event = 'PgSleep')`)
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := await(t, "the write", wrote); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a write whose locks were released: %v, want ErrReleased", err)
	}
	s.eventually("the advisory lock to be free", `SELECT NOT EXISTS (SELECT FROM advisory_locks)`)
}

// deafToCommit ends the lease, and then the connection, when COMMIT has been sent.
type deafToCommit struct {
	net.Conn
	lease *atomic.Pointer[pglock.Lease]
}

func (c deafToCommit) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if bytes.Contains(p, []byte("commit")) {
		_ = c.lease.Load().Release(context.Background())
		_ = c.Close()
	}
	return n, err
}

func TestI17_AWriteWhoseCommitIsNotAnsweredCanBeAskedAbout(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	var lease atomic.Pointer[pglock.Lease]
	deaf := s.config(func(c net.Conn) net.Conn { return deafToCommit{c, &lease} })
	h := s.hold(s.bridgeBy(deaf), "x", advisory.Bigint(1))
	lease.Store(h.Lease())
	err := h.Under(fencedstore.Fence{}, fencedstore.WithReceipt()).Write(t.Context(), insert)
	var unknown *fencedstore.OutcomeUnknownError
	if !errors.Is(err, pglock.ErrOutcomeUnknown) || !errors.As(err, &unknown) {
		t.Fatalf("%v, want an OutcomeUnknownError", err)
	}
	if errors.Is(err, pglock.ErrLost) || errors.Is(err, pglock.ErrReleased) {
		t.Errorf("%v: that the locks have ended would say that nothing was written", err)
	}
	outcome, err := fencedstore.New(s.pool).Outcome(t.Context(), unknown.Receipt)
	if err != nil || s.ask("SELECT count(*) = 1 FROM written") != (outcome == fencedstore.OutcomeCommitted) {
		t.Errorf("the receipt says %v, %v", outcome, err)
	}
}

// cancelling makes the server answer, once, that the statement which gives the advisory lock back was cancelled.
type cancelling struct {
	net.Conn
	did bool
}

func (c *cancelling) Write(p []byte) (int, error) {
	if c.did || !bytes.Contains(p, []byte("pg_advisory_unlock")) {
		return c.Conn.Write(p)
	}
	c.did = true
	instead, err := (&pgproto3.Query{String: `DO 'BEGIN RAISE query_canceled; END'`}).Encode(nil)
	if err == nil {
		_, err = c.Conn.Write(instead)
	}
	return len(p), err
}

// Whoever cancels the statement that gives the advisory lock back costs nobody anything.
func TestACancelledUnlockIsSentAgain(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var conn *cancelling
	h := s.hold(s.bridgeBy(s.config(func(c net.Conn) net.Conn {
		conn = &cancelling{Conn: c}
		return conn
	})), "x", advisory.Bigint(1))
	if err := h.Release(t.Context()); err != nil || !conn.did {
		t.Errorf("release: %v, cancelled: %v", err, conn.did)
	}
	s.eventually("the advisory lock to be free", `SELECT NOT EXISTS (SELECT FROM advisory_locks)`)
}

// A write that hangs keeps an old program out for no longer than the lease had left when it began.
func TestAWriteThatHangsFreesTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	const ttl = 4 * time.Second
	for try := range 3 { // this machine may stand still for longer than it has left
		h := s.hold(s.bridge(), fmt.Sprint("x", try), advisory.Bigint(int64(try)), pglock.WithTTL(ttl))
		got := s.old(fmt.Sprint(try)).waiting()
		var took time.Duration
		err := h.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			begun := time.Now() // after the fence: the lease had no more than its TTL left
			if err := insert(ctx, tx); err != nil {
				return err
			}
			err := await(t, "the old program's lock", got)
			took = time.Since(begun)
			return err
		})
		if err == nil || !s.ask("SELECT count(*) = 0 FROM written") {
			t.Errorf("a write that hung ended with %v", err)
		}
		wantLost(t, h)
		if took <= ttl+ttl/4 {
			return
		}
		t.Logf("the write hung for %v, want %v at most", took, ttl)
	}
	t.Errorf("three times a write hung for longer than its lease of %v", ttl)
}

func TestDoReleasesBoth(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE written (n int)")
	b := s.bridge()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	must.Do(t, b.Do(ctx, "x", advisory.Bigint(1), func(ctx context.Context, h *advisory.Held) error {
		if lease, ok := pglock.LeaseFromContext(ctx); !ok || lease != h.Lease() {
			t.Error("the context does not carry the lease")
		}
		return h.Write(ctx, insert)
	}))
	func() {
		defer func() { _ = recover() }()
		_ = b.Do(ctx, "x", advisory.Bigint(1), func(context.Context, *advisory.Held) error { panic("on purpose") })
	}()
	if !s.old("1").try() || !s.ask("SELECT NOT EXISTS (SELECT FROM pglock.list_locks())") {
		t.Error("a lock is left")
	}
}

// A Write whose context has ended sends nothing: pgx would close the session's connection, and both locks were lost.
func TestAWriteWhoseContextHasEndedLosesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	fails := func(ctx context.Context) {
		t.Helper()
		err := h.Write(ctx, func(context.Context, pgx.Tx) error {
			t.Error("fn was called")
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
	}
	for range 20 {
		fails(ended)
	}
	// The same of one whose context ends while another Write has the session.
	err := h.Write(t.Context(), func(context.Context, pgx.Tx) error {
		waiting, cancel := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, cancel)
		fails(waiting)
		return nil
	})
	if err != nil || h.Err() != nil {
		t.Errorf("a write after that: %v, and the locks: %v", err, h.Err())
	}
}
