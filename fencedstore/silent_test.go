package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// mute is a connection over which nothing arrives once it is cut, and neither side hears of that.
type mute struct {
	net.Conn
	cut *atomic.Bool
}

func (c mute) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// mutes makes the connections of a configuration mute when cut is set.
func mutes(config *pgx.ConnConfig, cut *atomic.Bool) {
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return mute{conn, cut}, nil
	}
}

// A write whose ctx ends returns within a quarter of a second, wherever its network was cut before COMMIT: nobody
// answers the rollback then, and the connection is closed.
func TestAWriteReturnsSoonAfterItsContextHasEndedInSilence(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	config := must.Get(pgx.ParseConfig(b.db.URL()))(t)
	lease := b.acquire(t, "a")
	var cut atomic.Bool
	mutes(config, &cut)
	db := stdlib.OpenDB(*config)
	defer db.Close()
	pool := b.db.Pool(t, func(c *pgxpool.Config) { mutes(c.ConnConfig, &cut) })
	fence := fencedstore.Fence{Lease: lease, SameToken: true}
	for name, write := range map[string]func(context.Context, work) error{
		"Store": func(ctx context.Context, do work) error {
			return fencedstore.New(pool).Write(ctx, fence, inTx(do))
		},
		"SQLStore": func(ctx context.Context, do work) error {
			return fencedstore.NewSQL(db).Write(ctx, fence, func(ctx context.Context, tx *sql.Tx) error {
				return do(ctx, sqlTransaction{tx})
			})
		},
	} {
		for what, do := range map[string]work{
			"between two statements": func(ctx context.Context, _ transaction) error {
				<-ctx.Done()
				return ctx.Err()
			},
			"in a statement": does(`SELECT 1`),
			"that failed before": func(ctx context.Context, tx transaction) error {
				return errors.New("an error of its own")
			},
		} {
			soonest := time.Hour
			for try := 0; try < 10 && soonest > 250*time.Millisecond; try++ { // a busy machine may stand still
				cut.Store(false)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				var ended time.Time
				err := write(ctx, func(ctx context.Context, tx transaction) error {
					cut.Store(true)
					time.AfterFunc(100*time.Millisecond, func() { ended = time.Now(); cancel() })
					return do(ctx, tx)
				})
				if err == nil || ended.IsZero() {
					t.Fatalf("%s, %s: %v", name, what, err)
				}
				soonest = min(soonest, time.Since(ended))
			}
			if soonest > 250*time.Millisecond {
				t.Errorf("%s, %s: it returned %v after the end of its context", name, what, soonest)
			}
		}
	}
	pgtest.Eventually(t, "all connections to be given back", func() bool {
		return pool.Stat().AcquiredConns() == 0 && db.Stats().InUse == 0
	})
}
