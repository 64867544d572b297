package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const Again = "the same command again"

// Advice gives the exit code of an error, and the next step.
func (o *Options) Advice(ctx context.Context, err error) (code int, hint string) {
	var own *Advised
	var step *migrations.StepError
	switch {
	case errors.As(err, &own):
		return own.Code, own.Hint
	case ctx.Err() != nil && errors.As(err, &step) && !step.Unknown:
		return ExitInterrupted, Again + ", which goes on from there"
	case ctx.Err() != nil:
		return ExitInterrupted, Again + "; the interrupted step may or may not be done"
	case !o.Started:
		return ExitUsage, "pglock-admin --help"
	}
	if code, hint := o.migrationAdvice(ctx, err); hint != "" {
		return code, hint
	}
	var schema *pglock.SchemaError
	switch {
	case errors.As(err, &schema):
		return ExitSchema, o.Migrate(ctx, schema.Have)
	case errors.Is(err, pglock.ErrSchema):
		return ExitSchema, "do what the message says, as the schema's owner"
	case errors.Is(err, lockadmin.ErrNotHeld):
		return ExitNotHeld, "pglock-admin list" + o.Same() + " to see what is held, and with which token"
	case errors.Is(err, lockadmin.ErrNotFound):
		return ExitNotHeld, "pglock-admin list --all" + o.Same() + " to see every name"
	case errors.Is(err, pglock.ErrInvalid):
		return ExitUsage, ValidInstead(err)
	case errors.Is(err, pglock.ErrReadOnly):
		return ExitUnreachable, primary
	}
	return o.serverAdvice(err)
}

// ValidInstead describes an argument that is valid.
func ValidInstead(err error) string {
	if argument, is := errors.AsType[*pglock.ArgumentError](err); is {
		return PieceOfAdvice(argument.Field, argument.Rule)
	}
	return "pglock-admin --help"
}

// PieceOfAdvice turns the rule "have 1 to 512 bytes" into "a name of 1 to 512 bytes".
func PieceOfAdvice(field, rule string) string {
	article := shown.Either(strings.ContainsRune("aeiou", rune(strings.ToLower(field)[0])), "an ", "a ")
	for _, way := range [][2]string{{"have no ", " without a "}, {"have ", " of "}, {"be valid ", " in valid "},
		{"be from ", " from "}, {"be ", " that is "}} {
		if rest, found := strings.CutPrefix(rule, way[0]); found {
			return article + field + way[1] + rest
		}
	}
	return "another " + field
}

const primary = "the primary's address, or target_session_attrs=read-write in the connection string"

// Migrate tells how to bring the schema to the version that this program needs. It checks first, so that it never
// advises something that the server would refuse.
func (o *Options) Migrate(ctx context.Context, have int) string {
	up := "pglock-admin migrate up" + o.Same()
	switch {
	case have > pglock.SchemaVersion:
		return fmt.Sprintf("a newer pglock-admin: this one knows version %d", pglock.SchemaVersion)
	case strings.HasPrefix(o.Schema, "pg_"):
		return "the --schema of the locks: this one belongs to PostgreSQL"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	there, _, err := migrations.Version(ctx, o.Config.ConnConfig, migrations.WithSchema(o.Schema))
	if have == 0 && there > 0 && err == nil {
		return fmt.Sprintf("ALTER SCHEMA %s RENAME TO the name under which it was made, where its functions look for "+
			"each other", pgx.Identifier{o.Schema}.Sanitize())
	}
	refused := migrations.Check(ctx, o.Config.ConnConfig, migrations.WithSchema(o.Schema))
	var right *migrations.RightError
	var dirty *migrations.DirtyError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(refused, &right) && right.Owner == "":
		return makeRoles + "; then " + up
	case errors.As(refused, &right) && right.Role == "":
		return fmt.Sprintf("%s, as user %s or a superuser", up, shown.Word(right.Owner))
	case errors.As(refused, &dirty):
		return o.Force(dirty.Before) + "; then " + up
	case errors.Is(refused, migrations.ErrForeign):
		return otherTool
	case errors.As(refused, &pgErr) && pgErr.Hint != "":
		return strings.TrimRight(pgErr.Hint, ".;") + "; then " + up
	}
	return up
}

// Force is advice to record the version that a schema has.
func (o *Options) Force(version int) string {
	return fmt.Sprintf("pglock-admin migrate force %d%s, if the schema really has that version", version, o.Same())
}

const (
	makeRoles = "let an administrator run: CREATE ROLE pglock_user NOLOGIN; CREATE ROLE pglock_admin NOLOGIN IN ROLE " +
		"pglock_user"
	asMember = "PGOPTIONS='-c role=%s': the user is a member of that role, but does not inherit its rights"

	otherTool = "the migration tool that made the schema, with the files of this release"
)

func (o *Options) migrationAdvice(ctx context.Context, err error) (code int, hint string) {
	var right *migrations.RightError
	var dirty *migrations.DirtyError
	var step *migrations.StepError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &right) && right.Code:
		return ExitPermission, fmt.Sprintf("%s as user %s; or with PGOPTIONS=%s, if that role is to be trusted: its "+
			"code could take the rights back", Again, shown.Word(right.Owner), shown.Argument("-c role="+right.Owner))
	case errors.As(err, &right) && right.Member:
		return ExitPermission, fmt.Sprintf(asMember, right.Role)
	case errors.As(err, &right) && right.Role != "":
		return ExitPermission, fmt.Sprintf("let an administrator run: GRANT %s TO %s", right.Role,
			pgx.Identifier{right.User}.Sanitize())
	case errors.As(err, &right):
		return ExitPermission, fmt.Sprintf("%s as user %s, or as a superuser", Again, shown.Word(right.Owner))
	case errors.As(err, &dirty):
		return ExitSchema, o.Force(dirty.Before) + "; then " + Again
	case errors.Is(err, migrations.ErrNewer):
		return ExitSchema, o.Migrate(ctx, pglock.SchemaVersion+1)
	case errors.Is(err, migrations.ErrForeign):
		return ExitSchema, otherTool
	case errors.Is(err, migrations.ErrGuarded):
		return ExitFailure, "pglock-admin guard drop TABLE --yes" + o.Same() + " for each table, once no program " +
			"relies on its guard"
	case errors.Is(err, migrations.ErrBusy):
		return ExitUnreachable, Again + " after the other program is done, or with a longer --timeout"
	case errors.As(err, &step) && Is[timeUp](err):
		return ExitUnreachable, Again + " with a longer --timeout: somebody is using the tables"
	case errors.As(err, &step) && step.Unknown:
		return ExitUnreachable, Again + ": it checks how far the last one came, and goes on from there"
	case errors.As(err, &step) && errors.As(err, &pgErr):
		code, _ = o.serverAdvice(err)
		switch {
		case pgErr.Hint != "":
			return code, strings.TrimRight(pgErr.Hint, ".;") + "; then " + Again
		case code == ExitFailure:
			return code, "fix what the message names, then " + Again
		}
	}
	return 0, ""
}

// serverAdvice is advice for errors of the server and of the connection.
func (o *Options) serverAdvice(err error) (code int, hint string) {
	var connect *pgconn.ConnectError
	state := StateOf(err)
	switch {
	case Is[*fs.PathError](err):
		return ExitFailure, "send the output where it can be written"
	case state == "42501" && errors.As(err, &connect):
		return ExitPermission, fmt.Sprintf("let an administrator run: GRANT CONNECT ON DATABASE %s TO %s",
			pgx.Identifier{cmp.Or(connect.Config.Database, connect.Config.User)}.Sanitize(),
			pgx.Identifier{connect.Config.User}.Sanitize())
	case state == "28P01", state == "28000":
		return ExitPermission, "another user or password: --database-url, DATABASE_URL, or PGUSER and PGPASSWORD"
	case errors.Is(err, pglock.ErrPermission), state == "42501":
		return ExitPermission, "run it as a user who has the right that the message names"
	case state == "3D000":
		return ExitUnreachable, "create the database with createdb, or name an existing one in --database-url or " +
			"PGDATABASE"
	case state == "25006":
		return ExitUnreachable, primary
	case Is[timeUp](err):
		return ExitUnreachable, "a longer --timeout; pglock-admin why" + o.Same() + " says whether somebody keeps " +
			"pglock's tables, and " + o.WhetherItHangs()
	case state == "55P03": // not available: locked
		return ExitFailure, Again + "; if it fails again, pglock-admin why" + o.Same() + " names whoever is in the way"
	case state == "57014": // somebody or the user's own settings have ended it
		return ExitFailure, Again + "; if statement_timeout has ended it, that is too short for this user: " +
			"PGOPTIONS='-c statement_timeout=0'"
	case state == "53300": // too many connections
		return ExitUnreachable, Again + " in a moment. Who has the connections only a connection can tell: some are " +
			"reserved for superusers, and from PostgreSQL 16 on reserved_connections for members of " +
			"pg_use_reserved_connections"
	case state == "53100": // no room on the disk
		return ExitFailure, "free room on the server's disk, then " + Again
	case state == "57P03": // the server starts or stops
		return ExitUnreachable, Again + " in a moment"
	case errors.As(err, &connect) && state != "" && !strings.HasPrefix(state, "57"):
		return ExitUsage, "other settings in the connection string or PGOPTIONS: the server refuses these"
	case errors.As(err, &connect):
		return ExitUnreachable, "check that the server runs and that the address is right: --database-url, " +
			"DATABASE_URL, or PGHOST and PGPORT"
	case Lost(err), errors.Is(err, context.DeadlineExceeded):
		return ExitUnreachable, Again + " once the server is back: the connection was lost"
	}
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is && pgErr.Hint != "" {
		return ExitFailure, strings.TrimRight(pgErr.Hint, ".;") + "; then " + Again
	}
	return ExitFailure, Again + "; if the error stays, look at the server's log"
}

// SlowLook is the error of why itself, which ran out of time: it does not advise to run why.
func (o *Options) SlowLook(err error) error {
	if Is[timeUp](err) && !Is[*Advised](err) {
		return &Advised{Err: err, Code: ExitUnreachable,
			Hint: "a longer --timeout; " + o.WhetherItHangs()}
	}
	return err
}

// WhetherItHangs is advice to see whether the server answers at all.
func (o *Options) WhetherItHangs() string {
	return o.Psql() + " -c 'SELECT 1' shows whether the server hangs"
}

// Lost reports whether the connection ended during a statement.
func Lost(err error) bool {
	state := StateOf(err)
	// a file that cannot be written looks like a network error
	if Is[*pgconn.ConnectError](err) || Is[*fs.PathError](err) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	isEnd := func(end error) bool { return errors.Is(err, end) }
	return slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, pgconn.ErrConnClosed}, isEnd) ||
		strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || Is[net.Error](err)
}
