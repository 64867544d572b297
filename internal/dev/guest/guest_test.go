package guest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// Without the roles it is a server on which nobody has made them yet: then they go with the schema.
func TestASchemaTakesOnlyRolesAwayThatItBrought(t *testing.T) {
	server := pgtest.Dedicated(t, nil)
	conn := must.Get(pgx.Connect(t.Context(), server.URL()))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	visit := func(roles, members int) {
		t.Helper()
		drop := must.Get(MakeSchema(t.Context(), server.URL(), "pglock_guest"))(t)
		if there := pgtest.One[bool](t, conn, "SELECT to_regclass('pglock_guest.locks') IS NOT NULL AND "+
			"to_regrole('pglock_user') IS NOT NULL"); !there {
			t.Error("no schema, or no role")
		}
		must.Do(t, drop(t.Context()))
		for what, left := range map[string]int{
			"pg_namespace WHERE nspname = 'pglock_guest'":                                          0,
			"pg_roles WHERE rolname LIKE 'pglock%'":                                                roles,
			"pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid WHERE r.rolname LIKE 'pglock%'": members,
		} {
			if n := pgtest.One[int](t, conn, "SELECT count(*) FROM "+what); n != left {
				t.Errorf("%d, want %d of %s", n, left, what)
			}
		}
	}
	visit(0, 0)
	must.Get(conn.Exec(t.Context(), "CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user; "+
		"CREATE ROLE app IN ROLE pglock_admin"))(t)
	visit(2, 2)
}
