package lockadmin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/lockadmin"
)

// Who lets others read a table of pglock, and not write to it, stops them as surely as whoever lets nobody read it. A
// waiter is not to blame. Whoever has locked the fences stops fenced writes alone, and hides no other lock.
func TestWhoeverClosesATableToWritersIsNamed(t *testing.T) {
	t.Parallel()
	for lock, c := range map[string]struct {
		nobody string // "": nobody is kept from anything
		others bool   // other locks are told of, too
	}{
		"CREATE INDEX ON pglock.locks (holder)":                        {nobody: "use any lock"},
		"LOCK TABLE pglock.locks IN SHARE ROW EXCLUSIVE MODE":          {nobody: "use any lock"},
		"LOCK TABLE pglock.waiters IN EXCLUSIVE MODE":                  {nobody: "wait for a lock"},
		"REINDEX INDEX pglock.sessions_pkey":                           {nobody: "begin to wait"},
		"LOCK TABLE pglock.fences IN SHARE MODE":                       {nobody: "write under a fence", others: true},
		"LOCK TABLE pglock.fences, pglock.locks IN SHARE MODE":         {nobody: "use any lock"},
		"LOCK TABLE pglock.done_keys, pglock.locks":                    {nobody: "use any lock"},
		"LOCK TABLE pglock.installation":                               {nobody: "get any lock"},
		"LOCK TABLE pglock.installation IN SHARE MODE":                 {others: true},
		"LOCK TABLE pglock.installation, pglock.waiters IN SHARE MODE": {nobody: "wait for a lock"},
		"LOCK TABLE pglock.locks IN SHARE UPDATE EXCLUSIVE MODE":       {others: true},
	} {
		t.Run(lock, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			conn := db.Conn(t)
			admin := newAdmin(t, db.Pool(t))
			for n, wait := range []bool{false, true} {
				execute(t, conn, `SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), $1, '1 h',
					p_wait => $2, p_session_ttl => '1 h')`, fmt.Sprint("app-", n+1), wait)
			}
			execute(t, conn, `UPDATE pglock.locks SET ended_at = clock_timestamp() - interval '10 s',
				expires_at = '-infinity'`) // it is the turn of app-2
			_, pid := openly(t, db, lock)
			pgtest.Eventually(t, "the transaction is older than a moment", func() bool {
				var old bool
				err := conn.QueryRow(t.Context(), `SELECT clock_timestamp() - xact_start > '1500 ms'
					FROM pg_stat_activity WHERE pid = $1`, pid).Scan(&old)
				return err == nil && old
			})
			var kinds []string
			e := must.Get(admin.Explain(t.Context(), "report"))(t)
			for _, v := range e.Verdicts {
				kinds = append(kinds, v.Kind)
				if v.Kind == "table" && (v.Severity != "stuck" || !strings.HasPrefix(v.Text, "Nobody can "+c.nobody) ||
					!strings.Contains(v.Text, fmt.Sprintf("server process %d ", pid)) ||
					v.Steps[len(v.Steps)-1].Command != fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)) {
					t.Errorf("%s: %s: %+v", v.Severity, v.Text, v.Steps)
				}
			}
			var names []string
			for _, s := range must.Get(admin.Overview(t.Context(), 20))(t).Locks {
				names = append(names, s.Lock+" "+s.Kind)
			}
			want, wantNames := "table", " table"
			switch {
			case c.nobody == "":
				want, wantNames = "turn", "report turn"
			case c.others:
				want, wantNames = "turn table", "report turn, table"
			}
			if got := strings.Join(kinds, " "); got != want {
				t.Errorf("the verdicts are %s, want %s", got, want)
			}
			if got := strings.Join(names, ","); got != wantNames {
				t.Errorf("the overview has %s, want %s", got, wantNames)
			}
		})
	}
}

// What a client asks when it starts waits for whoever has locked the record of the installation. An Admin does not.
func TestAnAdminStartsWhileTheRecordOfTheInstallationIsLocked(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	_, pid := openly(t, db, "LOCK TABLE pglock.installation")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	admin := must.Get(lockadmin.New(ctx, pool))(t)
	pgtest.Eventually(t, "the overview names the process", func() bool {
		all, err := admin.Overview(ctx, 20)
		return err == nil && len(all.Locks) == 1 && strings.Contains(all.Locks[0].Who, fmt.Sprint(pid))
	})
	if _, err := lockadmin.Diagnose(ctx, pool); protocol.State(err) != "55P03" {
		t.Errorf("the diagnosis says %v", err)
	}
}
