package lockadmin_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// What is removed without a mark looks like a record that somebody has changed.
func TestNoEntryGoesWithoutTheMarkThatEntriesWerePruned(t *testing.T) {
	t.Parallel()
	for who, statement := range map[string]string{
		"an operator":   `SELECT pglock.advance_epoch('test', 'alice')`,
		"another prune": `SELECT pglock.prune_history(NULL, 3)`,
	} {
		t.Run(who, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
			setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
			for range 5 {
				grant(t, conn, "a", "one", "1 h", "").release(t, conn)
			}
			grant(t, conn, "a", "one", "1 h", "")
			execute(t, conn, `UPDATE pglock.installation SET history_keep = '0'`)
			slow := must.Get(db.Conn(t).Begin(t.Context()))(t)
			must.Get(slow.Exec(t.Context(), statement))(t)
			must.Get(slow.Exec(t.Context(), `SELECT set_config(name, '0', true) FROM pg_settings
				WHERE name IN ('idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout')`))(t)

			if got := column(t, conn, `SELECT pglock.sweep()::text`); got[0] != "0" {
				t.Errorf("a sweep removed %s entries", got[0])
			}
			waited := lockadmin.PruneOptions{OnInUse: func() { must.Do(t, slow.Rollback(t.Context())) }}
			p, err := admin.Prune(t.Context(), waited)
			if err != nil || p.Events != 6 || p.Waits == 0 {
				t.Errorf("%+v, %v; want six entries pruned after a wait", p, err)
			}
			v, err := admin.Verify(t.Context(), "a")
			if err != nil || v.Missing != 5 || len(v.Gaps) != 1 || v.Gaps[0].Cause != lockadmin.GapPruned {
				t.Errorf("%+v, %v; want five tenures missing, because they were pruned", v, err)
			}
		})
	}
}

func TestAPruneThatFindsNothingOldLocksNoRecord(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll}) // which leaves an entry
	prune := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(prune.Exec(t.Context(), `SELECT pglock.prune_history()`))(t)
	execute(t, conn, `SELECT FROM pglock.installation FOR UPDATE NOWAIT`)
	must.Do(t, prune.Commit(t.Context()))
}

// The clock was ahead when the first entries were written, and was set back.
func TestEntriesOfATimeToComeHoldUpNoPrune(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	entries := func(at string, n int) {
		execute(t, conn, `INSERT INTO pglock.events (kind, lock_name, token, at)
			SELECT 'takeover', 'a', n, $1::text::timestamptz FROM generate_series(1, $2::int) n`, at, n)
	}
	entries("2999-01-01", 1000)
	entries("2020-01-01", 10)
	for limit, want := range map[int]string{10: "0 100", 100: "0 1000"} { // ten times as many are passed over, and left
		if got := column(t, conn, fmt.Sprintf(`SELECT removed || ' ' || next - (SELECT min(id) - 1 FROM pglock.events)
			FROM pglock.prune_history(p_limit => %d)`, limit)); got[0] != want {
			t.Errorf("a step of %d answered %s, want %s", limit, got[0], want)
		}
	}
	if got := column(t, conn, `SELECT pglock.sweep()::text`); got[0] != "10" {
		t.Errorf("a sweep removed %s entries, want 10", got[0])
	}
	entries("2020-01-01", 10)
	if p, err := admin.Prune(t.Context(), lockadmin.PruneOptions{}); err != nil || p.Events != 10 {
		t.Errorf("%+v, %v; want ten entries pruned", p, err)
	}
}

// While somebody has locked the record of the installation, or the history, only the history has to wait.
func TestAPruneOfAHistoryThatWaitsIsInNobodysWay(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, db *pgtest.DB, statement string) pgx.Tx {
		tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
		must.Get(tx.Exec(t.Context(), statement))(t)
		return tx
	}
	old := func(t *testing.T, db *pgtest.DB) *pgx.Conn {
		conn := db.Conn(t)
		execute(t, conn, `INSERT INTO pglock.events (kind, lock_name, token, at) VALUES ('takeover', 'a', 1, '2020-01-01')`)
		return conn
	}
	t.Run("the record", func(t *testing.T) {
		db := pgtest.Parallel(t)
		conn := old(t, db)
		grant(t, conn, "free", "one", "1 h", "").release(t, conn)
		operator := begin(t, db, `SELECT FROM pglock.installation FOR UPDATE`)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		admin, done := newAdmin(t, db.Pool(t)), make(chan error, 1)
		var p lockadmin.Pruned
		go func() {
			var err error
			p, err = admin.Prune(ctx, lockadmin.PruneOptions{Idle: new(time.Duration)})
			done <- err
		}()
		pgtest.Eventually(t, "the free lock is pruned", func() bool {
			return column(t, conn, `SELECT count(*)::text FROM pglock.locks`)[0] == "0"
		})
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || p.Locks != 1 || p.Events != 0 || p.Waits == 0 {
			t.Errorf("%+v, %v; want the free lock pruned, and no entry", p, err)
		}
		must.Do(t, operator.Rollback(t.Context()))
	})
	t.Run("the history", func(t *testing.T) {
		db := pgtest.Parallel(t)
		conn := old(t, db)
		reader := begin(t, db, `LOCK TABLE pglock.events IN SHARE MODE`)
		admin, done := newAdmin(t, db.Pool(t)), make(chan error, 1)
		go func() {
			_, err := admin.Prune(t.Context(), lockadmin.PruneOptions{})
			done <- err
		}()
		pgtest.Eventually(t, "the prune waits for the history", func() bool {
			return column(t, conn, `SELECT count(*)::text FROM pg_locks
				WHERE NOT granted AND relation = 'pglock.events'::regclass`)[0] == "1"
		})
		execute(t, conn, `SELECT FROM pglock.installation FOR UPDATE NOWAIT`)
		must.Do(t, reader.Rollback(t.Context()))
		must.Do(t, <-done)
	})
}
