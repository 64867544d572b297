package fencedstore_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// crashing is the connection of a server that crashes when it has written the COMMIT: instead of answering it says why,
// or nothing if it has no severity.
type crashing struct {
	net.Conn
	severity, state string
	alone           bool // no severity that is never translated goes with it, as from old servers and pgpool-II
	armed           *atomic.Bool
	gone            atomic.Bool
}

func (c *crashing) Read(b []byte) (int, error) {
	if c.gone.Load() {
		return 0, io.EOF
	}
	n, err := c.Conn.Read(b)
	if !bytes.Contains(b[:n], []byte("COMMIT\x00")) || !c.armed.CompareAndSwap(true, false) {
		return n, err
	}
	c.gone.Store(true)
	if c.severity == "" {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	end := &pgproto3.ErrorResponse{Severity: c.severity, SeverityUnlocalized: c.severity, Code: c.state,
		Message: "the end"}
	if c.alone {
		end.SeverityUnlocalized = ""
	}
	last, err := end.Encode(nil)
	return copy(b, last), err
}

// crashes makes connections of the configuration crash like that.
func crashes(config *pgx.ConnConfig, like *crashing) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return &crashing{Conn: conn, severity: like.severity, state: like.state, alone: like.alone,
			armed: like.armed}, err
	}
}

// A server, or a pooler, that ends the connection with an error while it commits may have committed: it is asked what
// became of the write, and the write is not told as refused.
func TestI17_AConnectionThatEndsWithAnErrorAtCommitIsNoRefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE ledger (of text)`)
	for what, c := range map[string]struct {
		severity, state string
		alone           bool
	}{
		"a disk that fails":         {"PANIC", "58030", false},
		"a disk that is full":       {"PANIC", "53100", false},
		"a pooler without a server": {"FATAL", "XX000", false},
		"another pooler":            {"FATAL", "XX000", true},
		"a late time limit":         {"FATAL", "25P04", false},
	} {
		t.Run(what, func(t *testing.T) {
			var armed atomic.Bool
			pool := b.db.Pool(t, func(config *pgxpool.Config) {
				crashes(config.ConnConfig, &crashing{severity: c.severity, state: c.state, alone: c.alone,
					armed: &armed})
			})
			lease := b.acquire(t, what)
			err := fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO ledger VALUES ($1)`, what)
				armed.Store(true)
				return err
			})
			if n := b.number(t, `SELECT count(*) FROM ledger WHERE of = $1`, what); err != nil || n != 1 ||
				armed.Load() {
				t.Errorf("I17: the write says %v, and %d rows are there; cut off: %v", err, n, !armed.Load())
			}
		})
	}
}

// A transaction of Guard whose COMMIT gets no answer may be committed. Explain is called when the limit has passed,
// and that makes it no transaction that the limit has ended.
func TestI17_ExplainTakesNoLostAnswerForTheTimeLimit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE ledger (of text)`)
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	var armed atomic.Bool
	crashes(config, &crashing{armed: &armed})
	db := stdlib.OpenDB(*config)
	defer db.Close()
	pool := b.db.Pool(t, func(c *pgxpool.Config) { crashes(c.ConnConfig, &crashing{armed: &armed}) })
	const limit = time.Second
	options := []fencedstore.Option{fencedstore.WithTimeLimit(limit), fencedstore.WithReceipt()}
	for what, commit := range map[string]func(*pglock.Lease) (*fencedstore.Guarded, error){
		"pgx": func(l *pglock.Lease) (*fencedstore.Guarded, error) {
			tx := must.Get(pool.Begin(t.Context()))(t)
			g, err := fencedstore.Guard(t.Context(), tx, l, options...)
			if err == nil {
				_, err = tx.Exec(t.Context(), `INSERT INTO ledger VALUES ('pgx')`)
			}
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			return g, tx.Commit(t.Context())
		},
		"database/sql": func(l *pglock.Lease) (*fencedstore.Guarded, error) {
			tx := must.Get(db.BeginTx(t.Context(), nil))(t)
			g, err := fencedstore.GuardSQL(t.Context(), tx, l, options...)
			if err == nil {
				_, err = tx.ExecContext(t.Context(), `INSERT INTO ledger VALUES ('database/sql')`)
			}
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(true)
			return g, tx.Commit()
		},
	} {
		g, lost := commit(b.acquire(t, what))
		if lost == nil || armed.Load() {
			t.Fatalf("%s: the answer to COMMIT was not cut off: %v", what, lost)
		}
		time.Sleep(limit + limit/10) // until the limit has passed
		for _, err := range []error{lost, driver.ErrBadConn, context.DeadlineExceeded, net.ErrClosed} {
			if got := g.Explain(err); got != err { //nolint:errorlint // as it is
				t.Errorf("I17: %s: Explain(%v) = %v, want it as it is", what, err, got)
			}
		}
		became, err := b.store.Outcome(t.Context(), g.Receipt())
		if n := b.number(t, `SELECT count(*) FROM ledger WHERE of = $1`, what); err != nil || n != 1 ||
			became != fencedstore.OutcomeCommitted {
			t.Errorf("I17: %s: %d rows, and the receipt says %q, %v", what, n, became, err)
		}
		late := g.Explain(&pgconn.PgError{Severity: "FATAL", Code: "25P04"})
		if !errors.Is(late, fencedstore.ErrTimeLimit) {
			t.Errorf("%s: what the server says of the limit became %v", what, late)
		}
	}
}

// A connection that has ended before the last check has committed nothing: there the time that has passed tells.
func TestSealTellsTheTimeLimitOfAConnectionThatHasEnded(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const limit = time.Second
	tx := b.begin(t)
	g := must.Get(fencedstore.Guard(t.Context(), tx, b.acquire(t, "a"), fencedstore.WithTimeLimit(limit)))(t)
	_ = tx.Conn().PgConn().Conn().Close()
	time.Sleep(limit + limit/10) // until the limit has passed
	if err := g.Seal(t.Context()); !errors.Is(err, fencedstore.ErrTimeLimit) {
		t.Errorf("%v, want ErrTimeLimit", err)
	}
}

// The same of a refusal that leaves the connection: that was no commit.
func TestI17_ARefusalAtCommitIsFinal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE once (k int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	lease := b.acquire(t, "x")
	err := b.store.Write(t.Context(), lease, inTx(does(`INSERT INTO once VALUES (1), (1)`)))
	if n := b.number(t, `SELECT count(*) FROM once`); code(err) != "23505" || n != 0 {
		t.Errorf("I17: %v, %d rows", err, n)
	}
}
