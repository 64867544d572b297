package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// The exit codes, which scripts may rely on.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitNotHeld     = 3
	exitUnreachable = 4
	exitSchema      = 5
	exitPermission  = 6
	exitAttention   = 7
	exitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
    0  done
    1  failed
    2  the command line or an argument is wrong; nothing was done
    3  the lock does not exist, or is not held; the table is not guarded
    4  the server cannot be reached, does not answer in time, or is a standby
    5  the schema is missing, older or newer than this program needs, or marked dirty
    6  the database refuses the user, or the user lacks a right
    7  doctor --strict has found something that needs attention
  130  interrupted

An error is told on standard error together with what to do next; with -o json as an object {"error", "code", "hint"}.`

// problem is an error as the user gets it.
type problem struct {
	Message string `json:"error"`
	Code    int    `json:"code"`
	Hint    string `json:"hint"`
}

func (p problem) print(w io.Writer, asJSON bool) {
	if asJSON {
		_ = writeJSON(w, p) // there is nowhere else to tell
		return
	}
	fmt.Fprintf(w, "pglock-admin: %s\ntry: %s\n", escapeText(p.Message), escapeText(p.Hint))
}

// advised is an error of this program that knows its exit code and what to do next.
type advised struct {
	err  error
	code int
	hint string
}

func (e *advised) Error() string { return e.err.Error() }
func (e *advised) Unwrap() error { return e.err }

func usageErrorf(hint, format string, args ...any) error {
	return &advised{err: fmt.Errorf(format, args...), code: exitUsage, hint: hint}
}

// diagnose finds the exit code of an error and what to do next.
func diagnose(ctx context.Context, err error, o *options) problem {
	code, hint := advice(ctx, err, o)
	message := strings.TrimSpace(err.Error())
	var own *advised
	if code == exitInterrupted && !errors.As(err, &own) {
		message = "interrupted: " + message
	}
	return problem{Message: message, Code: code, Hint: hint}
}

func advice(ctx context.Context, err error, o *options) (code int, hint string) {
	var own *advised
	var dirty *migrations.DirtyError
	var schema *pglock.SchemaError
	flags := o.sameDatabase()
	switch {
	case errors.As(err, &own):
		return own.code, own.hint
	case ctx.Err() != nil:
		return exitInterrupted, "the same command again; what was under way may or may not have been done"
	case !o.started:
		return exitUsage, "pglock-admin --help"
	case errors.As(err, &dirty):
		return exitSchema, fmt.Sprintf("mend the cause, then pglock-admin migrate force %d%s, then pglock-admin migrate up%s", dirty.Before, flags, flags)
	case errors.As(err, &schema) && schema.Have > schema.Need:
		return exitSchema, fmt.Sprintf("a newer pglock-admin: the schema has version %d, this program knows %d", schema.Have, schema.Need)
	case errors.As(err, &schema):
		return exitSchema, "pglock-admin migrate up" + flags
	case errors.Is(err, pglock.ErrSchema):
		return exitSchema, "what the message says, as the schema's owner"
	case errors.Is(err, migrations.ErrForeign):
		return exitSchema, "the migration tool that made the schema, with the files of this release"
	case errors.Is(err, migrations.ErrGuarded):
		return exitFailure, "pglock-admin guard drop TABLE --yes" + flags + " for each of them, when no program relies on their guards any more"
	case errors.Is(err, pglock.ErrNotHeld):
		return exitNotHeld, "pglock-admin list" + flags + " to see what is held, and with which token"
	case errors.Is(err, pglock.ErrNotFound):
		return exitNotHeld, "pglock-admin list --all" + flags + " to see every name"
	case errors.Is(err, pglock.ErrInvalid), errors.Is(err, migrations.ErrInvalid):
		return exitUsage, "a value within the rule that the message tells"
	case errors.Is(err, pglock.ErrReadOnly):
		return exitUnreachable, "the primary's address, or target_session_attrs=read-write in the connection string"
	}
	return serverAdvice(err)
}

// serverAdvice is for errors that come from the server or from the way to it.
func serverAdvice(err error) (code int, hint string) {
	var pgErr *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	var file *fs.PathError
	state := ""
	if errors.As(err, &pgErr) {
		state = pgErr.Code
	}
	switch {
	case errors.As(err, &file): // it looks like a network error
		return exitFailure, "an output that can be written"
	case state == "28P01", state == "28000":
		return exitPermission, "another user or password: --database-url, DATABASE_URL, or PGUSER and PGPASSWORD"
	case errors.Is(err, pglock.ErrPermission), state == "42501":
		return exitPermission, "let an administrator run GRANT pglock_admin TO the user (pglock_user is enough to look); " +
			"migrations need the right to create schemas and roles"
	case state == "3D000":
		return exitUnreachable, "createdb, or the name of a database that exists in --database-url or PGDATABASE"
	case state == "25006":
		return exitUnreachable, "the primary's address, or target_session_attrs=read-write in the connection string"
	case errors.Is(err, context.DeadlineExceeded):
		return exitUnreachable, "a longer --timeout, or look whether the server hangs: psql -c 'SELECT 1'"
	case errors.As(err, &connect), errors.As(err, &network), strings.HasPrefix(state, "08"), strings.HasPrefix(state, "57P"):
		return exitUnreachable, "see whether the server runs and the address is right: --database-url, DATABASE_URL, or PGHOST and PGPORT"
	case errors.Is(err, pglock.ErrOutcomeUnknown):
		return exitFailure, "pglock-admin show NAME, to see whether it was done"
	}
	return exitFailure, "the same command again; if it stays, the message and the server's log tell more"
}

// sameDatabase repeats, for a suggested command, the flags that lead to the same schema. The connection string is left
// out: it may hold a password.
func (o *options) sameDatabase() string {
	if o.schema == "" || o.schema == defaultSchema {
		return ""
	}
	return " --schema " + shellQuote(o.schema)
}

// wantsJSON looks for -o json in a command line that could not be parsed.
func wantsJSON(args []string) bool {
	for i, a := range args {
		switch a {
		case "-ojson", "-o=json", "--output=json":
			return true
		case "-o", "--output":
			if i+1 < len(args) && args[i+1] == outputJSON {
				return true
			}
		case "--":
			return false
		}
	}
	return false
}

// writeJSON writes v as one object. What could steer a terminal is written as \u escapes: JSON leaves part of it alone.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, escapeJSON(string(b))+"\n")
	return err
}
