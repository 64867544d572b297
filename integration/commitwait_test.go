package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// committing runs statements in a transaction whose COMMIT waits for a standby.
func committing(t *testing.T, look *peer, statements ...string) (p *peer, ended chan error) {
	t.Helper()
	p = newPeer(t, look.Config().ConnString())
	for _, sql := range append([]string{`BEGIN`}, statements...) {
		p.exec(t, sql)
	}
	ended = must.Go(func() error {
		_, err := p.Exec(context.Background(), `COMMIT`)
		return err
	})
	pgtest.Eventually(t, "COMMIT to wait for the standby", func() bool {
		return one[bool](t, look,
			`SELECT coalesce(wait_event = 'SyncRep', false) FROM pg_stat_activity WHERE pid = $1`, p.PgConn().PID())
	})
	return p, ended
}

// spares reports a verdict that advises to end a process whose commit waits for a standby, or says too little of it.
func spares(t *testing.T, v lockadmin.Verdict, p *peer) {
	t.Helper()
	pid, standby := p.PgConn().PID(), 0
	for _, s := range v.Steps {
		if strings.Contains(s.Command, fmt.Sprintf("_backend(%d)", pid)) {
			t.Errorf("%s: to be ended: %+v", v.Kind, s)
		}
		if strings.Contains(s.Command, "pg_stat_replication") &&
			strings.Contains(s.Do, fmt.Sprintf("Do not end process %d", pid)) {
			standby++
		}
	}
	if standby != 1 || strings.Contains(v.Because, "a person or a script") {
		t.Errorf("%s: %s %+v", v.Kind, v.Because, v.Steps)
	}
}

// A commit that waits for a standby is committed here, and whoever ends its process ends the wait alone. So nobody is
// advised to.
func TestNobodyIsAdvisedToEndACommitThatWaitsForAStandby(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	admin := must.Get(lockadmin.New(t.Context(), newPool(t, server.URL())))(t)
	look.exec(t, `SET synchronous_commit = local; SET check_function_bodies = off; CREATE TABLE ledger (n int)`)
	look.change(t, "diagnose_transactions", "'10 minutes'", "'1 s'")
	g := look.mustAcquire(t, "report", time.Hour)
	must.Do(t, look.fence(t.Context(), g, "report")) // so it has a row
	syncStandby(t, look, "nobody")
	fence := fmt.Sprintf(`SELECT FROM pglock.fence('report', %d, '%s', 'report', true)`, g.token, g.id)
	until := func(kind string) (v lockadmin.Verdict) {
		t.Helper()
		pgtest.Eventually(t, "the verdict "+kind, func() bool {
			v = must.Get(admin.Explain(t.Context(), "report"))(t).Verdicts[0]
			return v.Kind == kind
		})
		return v
	}

	write, written := committing(t, look, fence, `INSERT INTO ledger VALUES (1)`)
	behind := newPeer(t, server.URL())
	behind.exec(t, `BEGIN`)
	passed := must.Go(func() error { _, err := behind.Exec(context.Background(), fence); return err })
	v := until("fence")
	spares(t, v, write)
	if !strings.Contains(v.Because, "waits for a synchronous standby") ||
		!strings.Contains(v.IfNothing, "when the standby answers. No time limit") {
		t.Errorf("%s %s", v.Because, v.IfNothing)
	}
	if f := findingOf(t, server.URL(), "oldest transaction"); !strings.Contains(f.Meaning, fmt.Sprintf("process %d, ",
		write.PgConn().PID())) || !strings.Contains(f.Meaning, "commits and waits for a standby: do not end it.") ||
		strings.Contains(f.Meaning, fmt.Sprintf("_backend(%d)", write.PgConn().PID())) {
		t.Errorf("%+v", f)
	}
	locks := newPeer(t, server.URL())
	locks.exec(t, `BEGIN`)
	locked := must.Go(func() error { _, err := locks.Exec(context.Background(), `LOCK TABLE pglock.locks`); return err })
	spares(t, until("table"), write)
	look.exec(t, `SELECT pg_terminate_backend($1)`, locks.PgConn().PID())
	if err := <-locked; err == nil {
		t.Error("the table was locked")
	}
	look.exec(t, `SELECT pg_terminate_backend($1)`, write.PgConn().PID())
	if err := <-written; err == nil || one[int](t, look, `SELECT count(*) FROM ledger`) != 1 {
		t.Errorf("the write: %v, want that its end leaves it committed", err)
	}
	must.Do(t, <-passed)
	behind.exec(t, `ROLLBACK`)

	alters, altered := committing(t, look, `LOCK TABLE pglock.locks`, `INSERT INTO ledger VALUES (2)`)
	spares(t, until("table"), alters)
	look.exec(t, `SELECT pg_cancel_backend($1)`, alters.PgConn().PID())
	must.Do(t, <-altered)

	row, ended := committing(t, look, `SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE`,
		`INSERT INTO ledger VALUES (3)`)
	if v := until("row"); v.Severity != lockadmin.SeverityBusy ||
		!strings.Contains(v.Steps[0].Do, "has still locked the row, a standby does not answer.") {
		t.Errorf("%s: %+v", v.Severity, v.Steps)
	}
	var refused *pgconn.PgError
	_, err := newPeer(t, server.URL()).Exec(t.Context(), `SELECT pglock.break_lock('report', 'why', 'me')`)
	if !errors.As(err, &refused) || !strings.Contains(refused.Message,
		fmt.Sprintf("locked by process %d, whose commit waits for a standby;", row.PgConn().PID())) ||
		refused.Hint != "Try again." {
		t.Errorf("the break: %+v", refused)
	}
	pgtest.Eventually(t, "the row to be locked for long", func() bool {
		v = until("row")
		return v.Severity != lockadmin.SeverityBusy
	})
	spares(t, v, row)
	syncStandby(t, look, "")
	must.Do(t, <-ended)
}
