// Package standby shows in tests what an example does while the synchronous standby is cut off.
package standby

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Cut calls ask with a pool to the test's own server. When ask takes the first connection, the standby is cut off. The
// test fails if ask returns before it waits for the standby. Then that is given up, and Cut returns ask's error.
func Cut(t *testing.T, url string, ask func(*pgxpool.Pool) error) error {
	t.Helper()
	look := must.Get(pgxpool.New(t.Context(), url))(t)
	defer look.Close()
	config := must.Get(pgxpool.ParseConfig(url))(t)
	var once sync.Once
	var isCut atomic.Bool // until then whoever waits is cut's probe
	config.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (whole bool, err error) {
		once.Do(func() { err = cut(ctx, look); isCut.Store(err == nil) })
		return err == nil, err
	}
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()
	defer func() { must.Note(t, name(context.WithoutCancel(t.Context()), look, "")) }()
	answer := must.Go(func() error { return ask(pool) })
	pgtest.Eventually(t, "a wait for the standby", func() (waits bool) {
		const commits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')"
		if isCut.Load() {
			must.Note(t, look.QueryRow(t.Context(), commits).Scan(&waits))
		}
		return waits || len(answer) > 0
	})
	if len(answer) > 0 {
		t.Error("it did not wait for the standby")
	}
	must.Note(t, name(t.Context(), look, ""))
	return <-answer
}

// cut makes every COMMIT wait for a standby that never comes.
func cut(ctx context.Context, look *pgxpool.Pool) error {
	if err := name(ctx, look, "nobody"); err != nil {
		return err
	}
	// It is in force when the checkpointer has read it, which no setting shows: a commit that waits does.
	for waits := 0; waits == 0; {
		probe := must.Go(func() error {
			_, err := look.Exec(ctx, "SELECT pg_logical_emit_message(true, 'probe', '')")
			return err
		})
		for waits == 0 && len(probe) == 0 {
			const end = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
			if err := look.QueryRow(ctx, end).Scan(&waits); err != nil {
				return err
			}
		}
		if err := <-probe; err != nil {
			return err
		}
	}
	return nil
}

func name(ctx context.Context, look *pgxpool.Pool, standby string) error {
	if _, err := look.Exec(ctx, "ALTER SYSTEM SET synchronous_standby_names = '"+standby+"'"); err != nil {
		return err
	}
	_, err := look.Exec(ctx, "SELECT pg_reload_conf()")
	return err
}
