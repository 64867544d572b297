package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const again = "the same command again"

// advice gives the exit code of an error, and the next step.
func (o *options) advice(ctx context.Context, err error) (code int, hint string) {
	var own *advised
	var step *migrations.StepError
	switch {
	case errors.As(err, &own):
		return own.code, own.hint
	case ctx.Err() != nil && errors.As(err, &step) && !step.Unknown:
		return exitInterrupted, again + ", which goes on from there"
	case ctx.Err() != nil:
		return exitInterrupted, again + "; the interrupted step may or may not be done"
	case !o.started:
		return exitUsage, "pglock-admin --help"
	}
	if code, hint := o.migrationAdvice(ctx, err); hint != "" {
		return code, hint
	}
	var schema *pglock.SchemaError
	switch {
	case errors.As(err, &schema):
		return exitSchema, o.migrate(ctx, schema.Have)
	case errors.Is(err, pglock.ErrSchema):
		return exitSchema, "do what the message says, as the schema's owner"
	case errors.Is(err, lockadmin.ErrNotHeld):
		return exitNotHeld, "pglock-admin list" + o.same() + " to see what is held, and with which token"
	case errors.Is(err, lockadmin.ErrNotFound):
		return exitNotHeld, "pglock-admin list --all" + o.same() + " to see every name"
	case errors.Is(err, pglock.ErrInvalid):
		return exitUsage, validInstead(err)
	case errors.Is(err, pglock.ErrReadOnly):
		return exitUnreachable, primary
	}
	return serverAdvice(err)
}

// validInstead describes an argument that is valid.
func validInstead(err error) string {
	var argument *pglock.ArgumentError
	if !errors.As(err, &argument) {
		return "pglock-admin --help"
	}
	return pieceOfAdvice(argument.Field, argument.Rule)
}

// pieceOfAdvice turns the rule "have 1 to 512 bytes" into "a name of 1 to 512 bytes".
func pieceOfAdvice(field, rule string) string {
	article := "a "
	if strings.ContainsRune("aeiou", rune(strings.ToLower(field)[0])) {
		article = "an "
	}
	for _, way := range [][2]string{{"have no ", " without a "}, {"have ", " of "}, {"be valid ", " in valid "},
		{"be from ", " from "}, {"be ", " that is "}} {
		if rest, found := strings.CutPrefix(rule, way[0]); found {
			return article + field + way[1] + rest
		}
	}
	return "another " + field
}

const primary = "the primary's address, or target_session_attrs=read-write in the connection string"

// migrate tells how to bring the schema to the version that this program needs. It checks first, so that it never
// advises something that the server would refuse.
func (o *options) migrate(ctx context.Context, have int) string {
	up := "pglock-admin migrate up" + o.same()
	switch {
	case have > pglock.SchemaVersion:
		return fmt.Sprintf("a newer pglock-admin: this one knows version %d", pglock.SchemaVersion)
	case strings.HasPrefix(o.schema, "pg_"):
		return "the --schema of the locks: this one belongs to PostgreSQL"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	refused := migrations.Check(ctx, o.config.ConnConfig, migrations.WithSchema(o.schema))
	var right *migrations.RightError
	var dirty *migrations.DirtyError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(refused, &right) && right.Owner == "":
		return makeRoles + "; then " + up
	case errors.As(refused, &right) && right.Role == "":
		return fmt.Sprintf("%s, as user %s or a superuser", up, named(right.Owner))
	case errors.As(refused, &dirty):
		return fmt.Sprintf("pglock-admin migrate force %d%s, if the schema really has that version; then %s",
			dirty.Before, o.same(), up)
	case errors.Is(refused, migrations.ErrForeign):
		return otherTool
	case errors.As(refused, &pgErr) && pgErr.Hint != "":
		return fmt.Sprintf("%s; then %s", strings.TrimRight(pgErr.Hint, ".;"), up)
	}
	return up
}

const (
	makeRoles = "let an administrator run: CREATE ROLE pglock_user NOLOGIN; CREATE ROLE pglock_admin NOLOGIN IN ROLE " +
		"pglock_user"
	otherTool = "the migration tool that made the schema, with the files of this release"
)

func (o *options) migrationAdvice(ctx context.Context, err error) (code int, hint string) {
	var right *migrations.RightError
	var dirty *migrations.DirtyError
	var step *migrations.StepError
	var late timeUp
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &right) && right.Role != "":
		return exitPermission, fmt.Sprintf("let an administrator run: GRANT %s TO %s", right.Role,
			pgx.Identifier{right.User}.Sanitize())
	case errors.As(err, &right):
		return exitPermission, fmt.Sprintf("%s as user %s, or as a superuser", again, named(right.Owner))
	case errors.As(err, &dirty):
		return exitSchema, fmt.Sprintf("pglock-admin migrate force %d%s, if the schema really has that version; then "+
			"%s", dirty.Before, o.same(), again)
	case errors.Is(err, migrations.ErrNewer):
		return exitSchema, o.migrate(ctx, pglock.SchemaVersion+1)
	case errors.Is(err, migrations.ErrForeign):
		return exitSchema, otherTool
	case errors.Is(err, migrations.ErrGuarded):
		return exitFailure, "pglock-admin guard drop TABLE --yes" + o.same() + " for each table, once no program " +
			"relies on its guard"
	case errors.Is(err, migrations.ErrBusy):
		return exitUnreachable, again + " after the other program is done, or with a longer --timeout"
	case errors.As(err, &step) && errors.As(err, &late):
		return exitUnreachable, again + " with a longer --timeout: somebody is using the tables"
	case errors.As(err, &step) && step.Unknown:
		return exitUnreachable, again + ": it checks how far the last one came, and goes on from there"
	case errors.As(err, &step) && errors.As(err, &pgErr):
		code, _ = serverAdvice(err)
		switch {
		case pgErr.Hint != "":
			return code, fmt.Sprintf("%s; then %s", strings.TrimRight(pgErr.Hint, ".;"), again)
		case code == exitFailure:
			return code, "fix what the message names, then " + again
		}
	}
	return 0, ""
}

// serverAdvice is advice for errors of the server and of the connection.
func serverAdvice(err error) (code int, hint string) {
	var connect *pgconn.ConnectError
	var file *fs.PathError
	state := stateOf(err)
	var lack *lacking
	var late timeUp
	switch {
	case errors.As(err, &file):
		return exitFailure, "send the output where it can be written"
	case errors.As(err, &lack):
		return exitPermission, lack.hint
	case state == "42501" && errors.As(err, &connect):
		return exitPermission, fmt.Sprintf("let an administrator run: GRANT CONNECT ON DATABASE %s TO %s",
			pgx.Identifier{databaseOf(connect.Config)}.Sanitize(), pgx.Identifier{connect.Config.User}.Sanitize())
	case state == "28P01", state == "28000":
		return exitPermission, "another user or password: --database-url, DATABASE_URL, or PGUSER and PGPASSWORD"
	case errors.Is(err, pglock.ErrPermission), state == "42501":
		return exitPermission, "run it as a user who has the right that the message names"
	case state == "3D000":
		return exitUnreachable, "create the database with createdb, or name an existing one in --database-url or " +
			"PGDATABASE"
	case state == "25006":
		return exitUnreachable, primary
	case errors.As(err, &late):
		return exitUnreachable, "a longer --timeout; pglock-admin why says whether somebody keeps pglock's tables, " +
			"and psql -c 'SELECT 1' whether the server hangs"
	case state == "53300", state == "57P03": // too many connections; the server starts or stops
		return exitUnreachable, again + " in a moment"
	case errors.As(err, &connect) && state != "" && !strings.HasPrefix(state, "57"):
		return exitUsage, "other settings in the connection string or PGOPTIONS: the server refuses these"
	case errors.As(err, &connect):
		return exitUnreachable, "check that the server runs and that the address is right: --database-url, " +
			"DATABASE_URL, or PGHOST and PGPORT"
	case lost(err), errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable, again + " once the server is back: the connection was lost"
	}
	return exitFailure, again + "; if the error stays, look at the server's log"
}

// lost reports whether the connection ended during a statement.
func lost(err error) bool {
	state := stateOf(err)
	var connect *pgconn.ConnectError
	var network net.Error
	var file *fs.PathError // a file that cannot be written looks like a network error
	if errors.As(err, &connect) || errors.As(err, &file) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed} {
		if errors.Is(err, end) {
			return true
		}
	}
	return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || errors.As(err, &network)
}

func databaseOf(c *pgconn.Config) string {
	if c.Database == "" {
		return c.User
	}
	return c.Database
}
