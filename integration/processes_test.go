package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func init() { roles["turns"] = turns }

// turnsEach is how often each of many processes takes the lock.
const turnsEach = 3

// turns is a process with a pool of one connection. It takes the lock again and again, and notes in the database, under
// its fence, when it has come in and when it goes.
func turns(ctx context.Context, url string, say func(report)) error {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	store := fencedstore.New(pool)
	say(report{Event: "asks"})
	for range turnsEach {
		l, err := c.Acquire(ctx, "turn", pglock.WithTTL(time.Minute))
		if err != nil {
			return err
		}
		for _, in := range []bool{true, false} {
			fence := fencedstore.Fence{Lease: l, SameToken: true}
			if err := store.Write(l.Context(), fence, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO turns (token, process, comes) VALUES ($1, $2, $3)`, l.Token(),
					os.Getpid(), in)
				return err
			}); err != nil {
				return errors.Join(err, l.Release(ctx))
			}
		}
		if err := l.Release(ctx); err != nil {
			return err
		}
	}
	if err := c.Close(ctx); err != nil {
		return err
	}
	say(report{Event: "done"})
	return nil
}

// Many processes with a pool of one connection each want one lock at once. Their tenures do not overlap, tokens
// increase from one to the next, and everybody is served as often as anybody. Each process has one connection beside
// its pool.
func TestI1_I2_I9_ManyProcessesTakeTurns(t *testing.T) {
	processes := 12
	if pgtest.LargeLoads {
		processes = 200
	}
	server := migrated(t, map[string]string{"max_connections": fmt.Sprint(3*processes + 20)})
	holder, look := newPeer(t, server.URL()), newPeer(t, server.URL())
	look.exec(t, `CREATE TABLE turns (n bigserial PRIMARY KEY, token bigint NOT NULL, process bigint NOT NULL,
		comes boolean NOT NULL)`)
	held := holder.mustAcquire(t, "turn", time.Hour)
	all := make([]*process, processes)
	for i := range all {
		all[i] = startProcess(t, "turns", server.URL())
	}
	for _, p := range all {
		p.await("asks")
	}
	awaitQueue(t, look, "turn", processes)
	most := connectionsAtMost(t, newPeer(t, server.URL()))
	began := time.Now()
	must.Get(holder.release(t.Context(), held))(t)
	_, _ = holder.Exec(t.Context(), `SELECT FROM pglock.announce('{turn}', '{0}')`)
	for _, p := range all {
		p.awaitWithin("done", 10*patience)
	}
	took, connections := time.Since(began), most()

	rows := must.Get(look.Query(t.Context(), `SELECT token, process, comes FROM turns ORDER BY n`))(t)
	type turn struct {
		Token, Process int64
		Comes          bool
	}
	noted := must.Get(pgx.CollectRows(rows, pgx.RowToStructByPos[turn]))(t)
	var before int64
	round := make(map[int64]int) // how often each process was served
	for i, n := range noted {
		if n.Comes != (i%2 == 0) || !n.Comes && n.Token != noted[i-1].Token || n.Comes && n.Token <= before {
			t.Fatalf("I1, I2: after token %d: %+v", before, n)
		}
		if before = n.Token; !n.Comes {
			continue
		}
		if round[n.Process]++; round[n.Process] == 2 && len(round) < processes {
			t.Errorf("I9: process %d is served again, and %d not yet", n.Process, processes-len(round))
		}
	}
	if len(noted) != 2*turnsEach*processes || len(round) != processes {
		t.Errorf("%d entries by %d processes", len(noted), len(round))
	}
	if limit := 2*processes + 5; connections > limit { // three of this test, and a moment's
		t.Errorf("%d connections, want at most %d", connections, limit)
	}
	t.Logf("%d tenures by %d processes in %v, at most %d connections", len(noted)/2, processes, took, connections)
}

// connectionsAtMost counts the server's connections again and again, until the test ends or wants to know the most that
// there were.
func connectionsAtMost(t *testing.T, look *peer) (most func() int) {
	greatest, over := 0, make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			var n int
			if err := look.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
				WHERE backend_type = 'client backend'`).Scan(&n); err != nil {
				return
			}
			greatest = max(greatest, n)
			time.Sleep(20 * time.Millisecond) // between two looks
		}
	}()
	t.Cleanup(func() { cancel(); <-over })
	return func() int { cancel(); <-over; return greatest }
}
