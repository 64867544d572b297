package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/internal/standby"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

var last = time.Date(2026, 11, 22, 2, 0, 0, 0, time.UTC)

// newReplica is a replica one second after the last night.
func newReplica(t *testing.T, pool *pgxpool.Pool) *Nightly {
	t.Helper()
	client := must.Get(pglock.New(t.Context(), pool))(t)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	return &Nightly{Name: "nightly",
		Client: client, Store: fencedstore.New(pool), Every: 24 * time.Hour, At: 2 * time.Hour,
		Now:     func() time.Time { return last.Add(time.Second) },
		Compute: func(context.Context, time.Time) (int64, error) { return 42, nil }}
}

func makeTable(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	must.Get(pool.Exec(t.Context(), "CREATE TABLE reports (night timestamptz PRIMARY KEY, total bigint NOT NULL)"))(t)
}

// lastNight is what Nights says of the last night, with which it begins.
func (n *Nightly) lastNight(t *testing.T) error {
	for night, err := range n.Nights(t.Context()) {
		if !night.Equal(last) {
			t.Errorf("it begins with %s, want %s", night, last)
		}
		return err
	}
	return errors.New("there is no night")
}

// A report that can be seen may be one that a failover loses: its COMMIT may not have waited for the standby.
func TestAReportIsDoneWhenTheStandbyHasIt(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	pool := must.Get(pgxpool.New(t.Context(), server.URL()))(t)
	t.Cleanup(pool.Close)
	makeTable(t, pool)
	n := newReplica(t, pool)
	must.Do(t, n.lastNight(t))
	err := standby.Cut(t, server.URL(), func(pool *pgxpool.Pool) error {
		n.Store = fencedstore.New(pool)
		return n.lastNight(t)
	})
	if !errors.Is(err, fencedstore.ErrDone) {
		t.Errorf("%v, want ErrDone", err)
	}
}

// committed calls end once COMMIT has been answered.
type committed struct{ end func() }

func (committed) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (committed) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (committed) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c committed) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	if q.SQL == "COMMIT" && q.Err == nil {
		c.end()
	}
}

func (committed) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// Somebody must hear that the report was made, also if the lease ends before the answer to COMMIT is read.
func TestWhoMakesAReportHearsSo(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *Nightly, *pgxpool.Pool){
		"lost": func(t *testing.T, _ *Nightly, pool *pgxpool.Pool) {
			must.Get(pool.Exec(t.Context(), "SELECT pglock.break_lock('nightly', 'test', 'test')"))(t)
		},
		"closed": func(t *testing.T, n *Nightly, _ *pgxpool.Pool) {
			must.Note(t, n.Client.Close(context.WithoutCancel(t.Context())))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			pool := db.Pool(t)
			makeTable(t, pool)
			n, ended := newReplica(t, pool), 0
			n.Store = fencedstore.New(db.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.Tracer = committed{func() { ended++; end(t, n, pool) }}
			}))
			if err := n.lastNight(t); err != nil || ended != 1 {
				t.Errorf("%v, after %d reports", err, ended)
			}
		})
	}
}

// As docs/recipes.md says, after an error: leave the loop, and range again.
func TestANightThatFailedIsTriedAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	n := newReplica(t, pool)
	if err := n.lastNight(t); err == nil {
		t.Error("a report was written into a table that does not exist")
	}
	makeTable(t, pool)
	if err := n.lastNight(t); err != nil {
		t.Error(err)
	}
	if err := n.lastNight(t); !errors.Is(err, fencedstore.ErrDone) {
		t.Errorf("%v, want ErrDone", err)
	}
}
