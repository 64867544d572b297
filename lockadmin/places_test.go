package lockadmin_test

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A program that is connected to another database shows nothing if it is connected here too: a lock of its that nobody
// knows here is misspelt, and no reason to look there.
func TestAProgramThatIsConnectedHereShowsNoOtherDatabase(t *testing.T) {
	t.Parallel()
	here, there := pgtest.Database(t), pgtest.Database(t)
	name := pgtest.One[string](t, there.Conn(t), "SELECT current_database()")
	as := func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "pglock app-1/" + name + "[4711]"
	}
	ping := func(db *pgtest.DB, n int) {
		t.Helper()
		for range n {
			must.Do(t, db.Pool(t, as).Ping(t.Context()))
		}
	}
	shown := func() bool {
		t.Helper()
		e := must.Get(newAdmin(t, here.Pool(t)).Explain(t.Context(), "job-1x"))(t)
		return slices.ContainsFunc(e.Elsewhere, func(p lockadmin.Elsewhere) bool { return p.Database == name })
	}
	ping(there, 5) // more than other tests have: the list has the twenty with the most
	if !shown() {
		t.Error("a program that is connected there alone does not show that database")
	}
	ping(here, 1)
	if shown() {
		t.Error("a program that is connected here shows another database")
	}
}
