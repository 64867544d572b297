//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/lockadmin"
)

var guardFaults = []fault{
	{name: history.Tampered,
		about: "the owner of a guarded table, or a superuser, makes its guard useless for a moment",
		lane:  serverLane, weight: 3, quiet: true, run: tamper},
}

// tampering is what somebody does to a guard: a format for the table.
type tampering struct {
	does   string
	before string // what its repair needs before guard_table
	super  bool   // it needs a superuser; else the owner does it
	moved  bool   // the guard is now of another resource, so broken_guards has nothing of the lock
}

var tamperings = []tampering{
	{does: `DROP TRIGGER pglock_guard ON %s`},
	{does: `DROP TRIGGER pglock_guard_truncate ON %s`},
	{does: `ALTER TABLE %s DISABLE TRIGGER pglock_guard`},
	{does: `ALTER TABLE %s DISABLE TRIGGER pglock_guard_truncate`},
	{does: `ALTER TABLE %s ENABLE REPLICA TRIGGER pglock_guard`},
	{does: `ALTER TABLE %s ENABLE TRIGGER pglock_guard`},
	{does: `ALTER TRIGGER pglock_guard ON %s RENAME TO harmless`},
	{does: `DROP TRIGGER pglock_guard ON %[1]s; CREATE CONSTRAINT TRIGGER pglock_guard AFTER INSERT OR UPDATE OR DELETE
		ON %[1]s FOR EACH ROW EXECUTE FUNCTION public.lets_all_pass();
		ALTER TABLE %[1]s ENABLE ALWAYS TRIGGER pglock_guard`},
	{does: `DROP TRIGGER pglock_guard ON %[1]s; CREATE CONSTRAINT TRIGGER pglock_guard AFTER INSERT OR UPDATE OR DELETE
		ON %[1]s FOR EACH ROW EXECUTE FUNCTION pglock.guard_write('elsewhere');
		ALTER TABLE %[1]s ENABLE ALWAYS TRIGGER pglock_guard`, before: `DROP TRIGGER pglock_guard ON %s`, moved: true},
	{does: `GRANT TRIGGER ON %s TO ` + cluster.Stranger,
		before: `REVOKE TRIGGER ON %s FROM ` + cluster.Stranger + ` CASCADE`},
	{super: true, does: `ALTER TABLE %s DISABLE TRIGGER ALL`},
	{super: true, does: `UPDATE pg_catalog.pg_trigger SET tgtype = 1 + 16
		WHERE tgrelid = '%s'::regclass AND tgname = 'pglock_guard'`},
}

// guardedTable is a table under guard, a lock whose writes meet the guard, and how it is guarded.
type guardedTable struct {
	table, lock string
	opts        []fencedstore.TableOption
}

var guarded = []guardedTable{
	{"public.guarded_rows", "guarded_rows/0", []fencedstore.TableOption{fencedstore.WithTableKey("id")}},
	{"public.guarded_whole", "guarded_whole", nil},
}

// tamper makes a guard useless for a while, checks that it is named, repairs it, and checks that it refuses again.
func tamper(h *hit) error {
	return h.tamper(guarded[h.rand.IntN(len(guarded))], tamperings[h.rand.IntN(len(tamperings))],
		between(h.rand, 300*time.Millisecond, 2*time.Second))
}

func (h *hit) tamper(g guardedTable, w tampering, d time.Duration) (err error) {
	url := h.cluster.UserURL(cluster.Owner)
	if w.super {
		url = h.cluster.URL()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.ctx), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	does := fmt.Sprintf(w.does, g.table)
	if !free(ctx, conn, 3*time.Second, func() error { _, err = conn.Exec(ctx, does); return err }) {
		return errNothing // whoever writes to the table keeps us from it
	}
	h.evidence.line(sayNow() + " " + does)
	h.looksForTampering(ctx, g.table, does)
	if !w.moved {
		h.looksForBrokenGuard(ctx, g.table, g.lock, does)
	}
	wait(h.ctx, d)
	if !free(ctx, conn, 20*time.Second, func() error {
		if w.before != "" {
			if _, err = conn.Exec(ctx, fmt.Sprintf(w.before, g.table)); err != nil {
				return err
			}
		}
		err = fencedstore.GuardTable(ctx, conn, g.table, g.opts...)
		return err
	}) || err != nil {
		return errors.Join(errors.New("the guard was not repaired"), err)
	}
	return h.looksForRepair(ctx, conn, g.table, does)
}

// free tries again while others have locked the table, and gives false if they always have.
func free(ctx context.Context, conn *pgx.Conn, patience time.Duration, try func() error) bool {
	_, _ = conn.Exec(ctx, `SET lock_timeout = '200ms'`) // so that writers do not queue behind us for long
	for deadline := time.Now().Add(patience); ; wait(ctx, 30*time.Millisecond) {
		var pgErr *pgconn.PgError
		if err := try(); !errors.As(err, &pgErr) || pgErr.Code != "55P03" {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// looksForTampering checks that whoever looks at all guards finds that this one was tampered with.
func (h *hit) looksForTampering(ctx context.Context, table, does string) {
	findings, err := lockadmin.Diagnose(ctx, h.eye.pool)
	if err == nil && !slices.ContainsFunc(findings, func(f lockadmin.Finding) bool {
		return f.Item == "guard of "+table && f.Severity == lockadmin.SeverityWarning
	}) {
		h.judge.Blame("guards", fmt.Sprintf("Diagnose does not name the guard of %s after: %s", table, does))
	}
	if problem, err := h.problemOf(ctx, table); err == nil && problem == "" {
		h.judge.Blame("guards", fmt.Sprintf("TableGuards has no problem of %s after: %s", table, does))
	}
}

// looksForBrokenGuard checks that whoever looks at a lock finds that the guard that its writes meet was tampered with.
func (h *hit) looksForBrokenGuard(ctx context.Context, table, lock, does string) {
	rows, _ := h.eye.pool.Query(ctx, `SELECT table_name FROM pglock.broken_guards($1)`, lock)
	if broken, err := pgx.CollectRows(rows, pgx.RowTo[string]); err == nil && !slices.Contains(broken, table) {
		h.judge.Blame("guards", fmt.Sprintf("broken_guards('%s') does not name %s after: %s", lock, table, does))
	}
}

// problemOf is what the list of guards says of a table.
func (h *hit) problemOf(ctx context.Context, table string) (string, error) {
	guards, err := fencedstore.TableGuards(ctx, h.eye.pool)
	if err != nil {
		return "", err
	}
	for _, g := range guards {
		if g.Table == table {
			return g.Problem, nil
		}
	}
	return "", nil
}

// looksForRepair checks that nothing is left of the tampering, and that even the owner of the table is refused.
func (h *hit) looksForRepair(ctx context.Context, conn *pgx.Conn, table, did string) error {
	problem, err := h.problemOf(ctx, table)
	if err == nil && problem != "" {
		h.judge.Blame("guards", fmt.Sprintf("guard_table has not repaired %s: %s; after: %s", table, problem, did))
	}
	var pgErr *pgconn.PgError
	if !free(ctx, conn, 20*time.Second, func() error {
		_, err = conn.Exec(ctx, fmt.Sprintf(`UPDATE %s SET head = head`, table))
		return err
	}) {
		return nil
	}
	if !errors.As(err, &pgErr) || pgErr.Code != "LK011" && !strings.HasPrefix(pgErr.Code, "40") {
		h.judge.Blame("guards", fmt.Sprintf(
			"an unfenced write to %s after the repair: %v, want LK011; after: %s", table, err, did))
	}
	return nil
}
