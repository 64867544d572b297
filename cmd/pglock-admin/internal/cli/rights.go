package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// OperatorRole is the role of those who break and prune.
const OperatorRole = "pglock_admin"

const standing = `SELECT current_user,
	EXISTS (SELECT FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = $1 AND p.proname = 'start_client'),
	EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'pglock_user') AND EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'pglock_admin'),
	(SELECT pg_catalog.bool_and(pg_catalog.has_schema_privilege(r.oid, n.oid, 'USAGE'))
		FROM pg_catalog.pg_roles r, pg_catalog.pg_namespace n
		WHERE r.rolname IN ('pglock_user', 'pglock_admin') AND n.nspname = $1) IS TRUE,
	coalesce((SELECT pg_catalog.pg_has_role(oid, 'USAGE') FROM pg_catalog.pg_roles WHERE rolname = 'pglock_user'), false),
	coalesce((SELECT pg_catalog.pg_has_role(oid, 'MEMBER') FROM pg_catalog.pg_roles WHERE rolname = 'pglock_user'), false),
	coalesce((SELECT pg_catalog.pg_has_role(oid, 'MEMBER') FROM pg_catalog.pg_roles WHERE rolname = 'pglock_admin'), false)`

// WithRights adds advice on the right that the user lacks, if err is a refusal. It does not suggest roles that do not
// exist.
func (o *Options) WithRights(ctx context.Context, pool *pgxpool.Pool, err error) error {
	if StateOf(err) != "42501" && !errors.Is(err, pglock.ErrPermission) || Is[*Advised](err) ||
		Is[*pgconn.ConnectError](err) {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var user string
	var made, roles, enter, mayUse, member, operator bool
	lookErr := pool.QueryRow(ctx, standing, pgx.QueryExecModeExec, o.Schema).Scan(&user, &made, &roles, &enter,
		&mayUse, &member, &operator)
	if lookErr != nil {
		return err
	}
	role := shown.Either(mayUse || o.Role == OperatorRole, OperatorRole, "pglock_user")
	hint := fmt.Sprintf("let an administrator run: GRANT %s TO %s", role, pgx.Identifier{user}.Sanitize())
	switch {
	case !made: // nobody could use such a schema
		return &pglock.SchemaError{Schema: o.Schema, Need: pglock.SchemaVersion}
	case !roles:
		hint = "let the owner of the schema make the roles pglock_user and pglock_admin again, with their rights: " +
			"restore them with pg_dumpall --roles-only"
	case !enter: // as after a restore without rights
		hint = fmt.Sprintf(`let the owner of the schema run in psql: SELECT mend FROM %s.wrong_rights() \gexec`,
			pgx.Identifier{o.Schema}.Sanitize())
	case !mayUse && member || mayUse && operator: // a member, but with NOINHERIT
		hint = fmt.Sprintf(asMember, role)
	}
	return &Advised{Err: err, Code: ExitPermission, Hint: hint}
}
