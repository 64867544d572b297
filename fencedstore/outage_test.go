package fencedstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// outage is that of a server that goes down when it has written so many COMMITs: it answers none of them.
type outage struct {
	commits sync.WaitGroup
	down    atomic.Bool
	refused atomic.Int32
}

func (o *outage) over(config *pgx.ConnConfig) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if o.down.Load() {
			o.refused.Add(1)
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		return dial(ctx, network, address)
	}
}

// downgoing is a connection over which the server answers no COMMIT.
type downgoing struct {
	net.Conn
	*outage
}

func (w downgoing) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if !bytes.Contains(b[:n], []byte("COMMIT\x00")) {
		return n, err
	}
	w.commits.Done()
	w.commits.Wait()
	w.down.Store(true)
	return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
}

// Each write whose COMMIT was not answered asks for its outcome over a connection of the client's. They ask a server
// that refuses connections together, and all find it when the server is back.
func TestWritesWithoutAnAnswerAskARefusingServerTogether(t *testing.T) {
	t.Parallel()
	const writes, lasting = 20, 2 * time.Second
	var o outage
	o.commits.Add(writes)
	b := newBench(t).through(t, func(c *pgxpool.Config) { o.over(c.ConnConfig) })
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		return downgoing{conn, &o}, err
	}
	db := stdlib.OpenDB(*config)
	defer db.Close()
	var ended sync.WaitGroup
	for i := range writes {
		lease := b.acquire(t, fmt.Sprint("held ", i))
		ended.Go(func() {
			err := fencedstore.NewSQL(db).Write(t.Context(), lease, func(context.Context, *sql.Tx) error { return nil })
			must.Note(t, err)
		})
	}
	o.commits.Wait()
	time.Sleep(lasting)
	if n := o.refused.Load(); n < 5 || n > 100 {
		t.Errorf("the server was asked for a connection %d times in %v", n, lasting)
	}
	o.down.Store(false)
	ended.Wait()
}
