package lockadmin_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The same guard cannot be made again by a column that can be a key no more, so nobody is told to.
func TestAGuardWithoutItsKeyIsToBeDropped(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	admin := newAdmin(t, db.Pool(t))
	for table, change := range map[string]string{
		"gone":    "RENAME id TO number",
		"retyped": "ALTER id TYPE jsonb USING to_jsonb(id)",
		"two":     "DISABLE TRIGGER pglock_guard_truncate, ALTER id TYPE jsonb USING to_jsonb(id)",
	} {
		execute(t, conn, "CREATE TABLE public."+table+" (id bigint)")
		execute(t, conn, "SELECT pglock.guard_table('public."+table+"', p_key => 'id')")
		execute(t, conn, "ALTER TABLE public."+table+" "+change)
		again := "SELECT pglock.guard_table('public." + table + "', p_key => 'id')"
		if _, err := conn.Exec(t.Context(), again); err == nil {
			t.Fatalf("%s: the same guard was made again: this shows nothing", table)
		}
		e := must.Get(admin.Explain(t.Context(), table))(t)
		n := slices.IndexFunc(e.Verdicts, func(v lockadmin.Verdict) bool { return v.Kind == "guard" })
		if n < 0 {
			t.Errorf("%s: %+v", table, e)
			continue
		}
		v := e.Verdicts[n]
		if len(v.Steps) != 2 || v.Steps[0].Command != "guard drop public."+table+" --yes" || v.Steps[1].Command != "" ||
			!strings.Contains(v.Steps[1].Do, "another key") {
			t.Errorf("%s: the steps are %+v", table, v.Steps)
		}
		if open := strings.Contains(v.IfNothing, "lets others in"); open != (table == "two") ||
			!strings.HasPrefix(v.IfNothing, "Nobody can write a row") {
			t.Errorf("%s: %s", table, v.IfNothing)
		}
	}
}
