package migrations

import (
	"bytes"
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Everybody queues behind Down while it waits for a table.
func TestADownThatHasEndedWaitsForNoTable(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 1, nil)
	mustUp(t, db.URL(), files)
	reader := db.Conn(t)
	mustDo(t, reader, "BEGIN")
	mustDo(t, reader, "SELECT FROM pglock.rung1")
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	ended, dial, first := make(chan struct{}), config.DialFunc, true
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if !first { // the request to cancel is late
			select {
			case <-ended:
			case <-time.After(time.Second):
			}
		}
		first = false
		return dial(ctx, network, addr)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := must.Go(func() error { return Down(ctx, config, files) })
	blocked(t, db, 1)
	cancel()
	err := <-done
	var waiting int
	if err := reader.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
		WHERE NOT granted AND relation = 'pglock.rung1'::regclass`).Scan(&waiting); err != nil {
		t.Fatal(err)
	}
	close(ended)
	if wantStep(t, err, 1, 0, "context canceled"); waiting > 0 {
		t.Error("the server still waits for the table")
	}

	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wantStep(t, Down(ctx, db.URL(), files), 1, 0, "55P03") // it does not wait for ever
	mustDo(t, reader, "COMMIT")
	mustDown(t, db.URL(), files)
}

// hesitant is a connection of a program that stands still before COMMIT.
type hesitant struct {
	net.Conn
	over chan struct{}
}

func (h hesitant) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("commit\x00")) {
		<-h.over
	}
	return h.Conn.Write(b)
}

func TestADownThatStandsStillLetsGoOfTheTables(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 2, nil)
	mustUp(t, db.URL(), files)
	config, over := must.Get(pgx.ParseConfig(db.URL()))(t), make(chan struct{})
	config.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		return hesitant{conn, over}, nil
	}
	reader := db.Conn(t)
	mustDo(t, reader, "BEGIN")
	mustDo(t, reader, "SELECT FROM pglock.rung2")
	done := must.Go(func() error { return Down(t.Context(), config, files) })
	blocked(t, db, 1)
	mustDo(t, reader, "COMMIT")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := db.Conn(t).Exec(ctx, "SELECT FROM pglock.rung2"); err != nil {
		t.Error(err)
	}
	close(over)
	wantStep(t, <-done, 2, 1, "25P03")
}
