package lockadmin_test

import (
	"testing"

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
