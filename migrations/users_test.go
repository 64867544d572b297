package migrations

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Where the schema is another's, whoever migrates must be able to let the two roles use it: a GRANT without the right
// only warns, and nobody could use the locks.
func TestUpRefusesASchemaThatItCannotLetTheRolesUse(t *testing.T) {
	t.Parallel()
	mustUp(t, pgtest.EmptyDatabase(t).URL()) // so that the roles are there, and stay
	for what, c := range map[string]struct{ grant, refused string }{
		"all rights": {"GRANT ALL ON SCHEMA pglock TO T_ME",
			"cannot let the roles pglock_user and pglock_admin use schema pglock"},
		"the right to pass them on": {"GRANT ALL ON SCHEMA pglock TO T_ME WITH GRANT OPTION", ""},
		"the roles have it": {"GRANT CREATE ON SCHEMA pglock TO T_ME; " +
			"GRANT USAGE ON SCHEMA pglock TO pglock_user, pglock_admin, T_ME", ""},
		"everybody has it": {"GRANT CREATE ON SCHEMA pglock TO T_ME; GRANT USAGE ON SCHEMA pglock TO PUBLIC", ""},
	} {
		if !pgtest.Among(what, "all rights", "the right to pass them on") {
			continue
		}
		t.Run(what, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			conn := db.Conn(t)
			deploy, me := asUser(t, db, "_deploy")
			app, user := asUser(t, db, "_app")
			mustDo(t, conn, "CREATE SCHEMA pglock; "+strings.ReplaceAll(c.grant, "T_ME", me))
			if c.refused != "" {
				mend := "ALTER SCHEMA pglock OWNER TO " + me
				for way, err := range map[string]error{"Check": Check(t.Context(), deploy),
					"Up": Up(t.Context(), deploy)} {
					if err == nil || !strings.Contains(err.Error(), c.refused) || !strings.Contains(err.Error(), mend) {
						t.Errorf("%s: %v, want an error that says %s", way, err, mend)
					}
				}
				mustDo(t, conn, mend)
			}
			if err := Check(t.Context(), deploy); err != nil {
				t.Errorf("Check: %v", err)
			}
			mustUp(t, deploy)
			mustDo(t, conn, "GRANT pglock_user TO "+user)
			mustUp(t, app) // it may use what is there
			wantVersion(t, app, Latest, false)
		})
	}
}

// A pool's hooks do not run for migrations: a user that gets its role there is told where to put it.
func TestAMemberThatDoesNotInheritIsToldToSetTheRole(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	mustUp(t, db.URL())
	app, name := asUser(t, db, "_app")
	mustDo(t, db.Conn(t), "ALTER ROLE "+name+" NOINHERIT; GRANT pglock_user TO "+name)
	config, err := pgxpool.ParseConfig(app)
	if err != nil {
		t.Fatal(err)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "SET ROLE pglock_user")
		return err
	}
	var right *RightError
	err = Up(t.Context(), config)
	if !errors.As(err, &right) || !right.Member || right.Role != "pglock_user" ||
		!strings.Contains(err.Error(), "options=-c%20role%3Dpglock_user") || strings.Contains(err.Error(), "GRANT") {
		t.Errorf("%v, want a RightError that says how to set the role", err)
	}
	u := must.Get(url.Parse(app))(t)
	u.RawQuery += "&options=-c%20role%3Dpglock_user"
	mustUp(t, u.String())
	wantVersion(t, u.String(), Latest, false)
}
