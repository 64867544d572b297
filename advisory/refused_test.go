package advisory_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func TestBadArgumentsAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	invalid := func(what string, err error) {
		t.Helper()
		var refused *pglock.ArgumentError
		if !errors.Is(err, pglock.ErrInvalid) || !errors.As(err, &refused) || refused.Field == "" {
			t.Errorf("%s: %v, want an ArgumentError", what, err)
		}
	}
	c := s.client()
	_, err := advisory.New(c, advisory.Config{ConnConfig: &pgx.ConnConfig{}})
	invalid("config made by hand", err)
	_, err = advisory.New(nil, advisory.Config{})
	invalid("nil client", err)
	b := must.Get(advisory.New(c, advisory.Config{}))(t)
	try := func(name string, key advisory.Key, opts ...pglock.AcquireOption) error {
		_, err := b.TryAcquire(t.Context(), name, key, opts...)
		return err
	}
	invalid("no name", try("", advisory.Bigint(1)))
	invalid("no key", try("x", advisory.Key{}))
	invalid("empty text", try("x", advisory.Hashtext("")))
	invalid("long text", try("x", advisory.IntsHashtext(1, strings.Repeat("a", 8193))))
	invalid("NUL", try("x", advisory.HashtextExtended("a\x00", 0)))
	invalid("limit", try("x", advisory.Bigint(1), pglock.WithLimit(2)))
	invalid("nil acquire option", try("x", advisory.Bigint(1), nil))
	invalid("nil fn", b.Do(t.Context(), "x", advisory.Bigint(1), nil))
	h := s.hold(b, "x", advisory.Bigint(1))
	invalid("nil fn of Write", h.Write(t.Context(), nil))
	other := must.Get(c.TryAcquire(t.Context(), "other"))(t)
	invalid("another lease", h.Under(fencedstore.Fence{Lease: other}).Write(t.Context(), insert))
	invalid("nil tx", h.Guard(t.Context(), nil))
	invalid("nil *pgxpool.Tx", h.Guard(t.Context(), (*pgxpool.Tx)(nil)))
	invalid("nil sql tx", h.GuardSQL(t.Context(), nil))
	invalid("nil *sql.Tx", h.GuardSQL(t.Context(), (*sql.Tx)(nil)))
}

// pooledConn names another backend than the one that answers, as a pooler does.
type pooledConn struct{ net.Conn }

func (c pooledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if at := bytes.Index(b[:n], []byte{'K', 0, 0, 0, 12}); at >= 0 && at+8 < n {
		b[at+8] ^= 1
	}
	return n, err
}

func TestAPoolerIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	config := s.config(func(conn net.Conn) net.Conn { return pooledConn{conn} })
	b := s.bridgeBy(config)
	if _, err := b.TryAcquire(t.Context(), "x", advisory.Bigint(1)); !errors.Is(err, advisory.ErrPooler) {
		t.Fatalf("through a pooler: %v, want ErrPooler", err)
	}
	if !s.ask("SELECT NOT EXISTS (SELECT FROM pglock.list_locks()) AND NOT EXISTS (SELECT FROM advisory_locks)") {
		t.Error("a refused call has left a lock")
	}
	allowed := s.bridgeOver(s.client(), advisory.Config{ConnConfig: config, SessionPooler: true})
	h := s.hold(allowed, "x", advisory.Bigint(1))
	must.Note(t, h.Release(t.Context()))
}

// An advisory lock of another database excludes no old program.
func TestAConnectionToAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	for what, other := range map[string]*pgtest.DB{
		"another with pglock": pgtest.Database(t), "another without it": pgtest.EmptyDatabase(t),
	} {
		b := s.bridgeBy(must.Get(pgx.ParseConfig(other.URL()))(t))
		_, err := b.TryAcquire(t.Context(), "x", advisory.Bigint(1))
		if !errors.Is(err, pglock.ErrWrongDatabase) || !strings.Contains(err.Error(), other.Name()) {
			t.Errorf("%s: %v, want an ErrWrongDatabase that names it", what, err)
		}
		if !s.ask(`SELECT NOT EXISTS (SELECT FROM pglock.list_locks()) AND NOT EXISTS (SELECT FROM pg_locks l
			JOIN pg_database d ON d.oid = l.database WHERE l.locktype = 'advisory' AND d.datname = $1)`, other.Name()) {
			t.Errorf("%s: the refused call has left a lock", what)
		}
	}
}

func TestAConnectionThatCannotBeMadeLeavesNoLease(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	config := must.Get(pgx.ParseConfig(s.db.URL()))(t)
	refused := errors.New("refused on purpose")
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, refused }
	b := s.bridgeBy(config)
	if _, err := b.Acquire(t.Context(), "x", advisory.Bigint(1)); !errors.Is(err, refused) {
		t.Errorf("without a connection: %v", err)
	}
	if !s.ask("SELECT NOT EXISTS (SELECT FROM pglock.list_locks())") {
		t.Error("the lease is left")
	}
}

func TestAnOwnerThatAsksAgainIsRefused(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	b := s.bridge()
	h := s.hold(b, "x", advisory.Bigint(1))
	if _, err := b.Acquire(h.Context(), "x", advisory.Bigint(1)); !errors.Is(err, pglock.ErrSelfDeadlock) {
		t.Errorf("an owner that asks for what it holds: %v, want ErrSelfDeadlock", err)
	}
}

// What waits for a write from within it would wait for itself. What outlives the write may use its context.
func TestAWriteAndAReleaseWithinAWriteAreRefusedAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	h := s.hold(s.bridge(), "x", advisory.Bigint(1))
	write := h.Under(fencedstore.Fence{SameToken: true}).Write
	nothing := func(context.Context, pgx.Tx) error { return nil }
	var kept context.Context
	must.Do(t, write(t.Context(), func(ctx context.Context, _ pgx.Tx) error {
		kept = context.WithoutCancel(ctx)
		ctx, cancel := context.WithTimeout(ctx, patience/4)
		defer cancel()
		for what, err := range map[string]error{"a write": write(ctx, nothing), "a release": h.Release(ctx)} {
			if !errors.Is(err, pglock.ErrInvalid) {
				t.Errorf("%s within a write: %v, want ErrInvalid", what, err)
			}
		}
		return nil
	}))
	must.Do(t, write(kept, nothing))
	must.Do(t, h.Release(kept))
}

// A statement that waits for a lock holds a snapshot, and CREATE INDEX CONCURRENTLY waits for it: of an old program
// that holds the lock that would be a circle.
func TestAWaitingBridgeIsNoCircleWithAnIndexThatTheHolderCreates(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.exec("CREATE TABLE big (n int)")
	// The holder alone looks for circles, after the second that is the server's default: who finds one is its victim.
	s.exec(`ALTER DATABASE ` + pgx.Identifier{s.db.Name()}.Sanitize() + ` SET deadlock_timeout = '1h'`)
	o, b := s.holding("1"), s.bridge()
	must.Get(o.conn.Exec(t.Context(), "SET deadlock_timeout = '1s'"))(t)
	got := must.Go(func() error {
		return b.Do(t.Context(), "x", advisory.Bigint(1), func(context.Context, *advisory.Held) error { return nil })
	})
	s.eventually("the bridge to wait", "SELECT count(*) = 1 FROM advisory_locks WHERE NOT granted")
	for tries := 1; ; tries++ {
		_, err := o.conn.Exec(t.Context(), "CREATE INDEX CONCURRENTLY big_n ON big (n)")
		var refused *pgconn.PgError
		if errors.As(err, &refused) && refused.Code == "40P01" && tries < 3 {
			// A machine that stood still has ended the bridge's round and the holder's second at once. A round that is
			// longer than the second would be a circle each time.
			s.exec("DROP INDEX IF EXISTS big_n")
			continue
		}
		if err != nil {
			t.Error(err)
		}
		break
	}
	must.Do(t, o.unlock(t.Context()))
	must.Note(t, await(t, "the bridge", got))
}
