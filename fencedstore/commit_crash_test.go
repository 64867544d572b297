package fencedstore_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
)

// crashing is the connection of a server that crashes when it has written the COMMIT: it says why instead of answering.
type crashing struct {
	net.Conn
	severity, state string
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
	last, err := (&pgproto3.ErrorResponse{Severity: c.severity, SeverityUnlocalized: c.severity, Code: c.state,
		Message: "the end"}).Encode(nil)
	return copy(b, last), err
}

// A server, or a pooler, that ends the connection with an error while it commits may have committed: it is asked what
// became of the write, and the write is not told as refused.
func TestI17_AConnectionThatEndsWithAnErrorAtCommitIsNoRefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE TABLE ledger (of text)`)
	for what, c := range map[string]struct{ severity, state string }{
		"a disk that fails":         {"PANIC", "58030"},
		"a disk that is full":       {"PANIC", "53100"},
		"a pooler without a server": {"FATAL", "XX000"},
		"a late time limit":         {"FATAL", "25P04"},
	} {
		t.Run(what, func(t *testing.T) {
			var armed atomic.Bool
			pool := b.db.Pool(t, func(config *pgxpool.Config) {
				dial := config.ConnConfig.DialFunc
				config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := dial(ctx, network, address)
					return &crashing{Conn: conn, severity: c.severity, state: c.state, armed: &armed}, err
				}
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
