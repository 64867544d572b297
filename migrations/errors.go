package migrations

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
)

var (
	// ErrInvalid: an argument breaks a rule; nothing was changed. It is pglock.ErrInvalid.
	ErrInvalid = argument.ErrInvalid
	// ErrGuarded: there are guarded tables, which nobody could write to without the schema; nothing was changed.
	// errors.As with **GuardedError says which.
	ErrGuarded = errors.New("migrations: tables are under guard")
	// ErrForeign: another migration tool made the schema from the plain files; nothing was changed.
	ErrForeign = errors.New("migrations: schema was made by another migration tool")
	// ErrBusy: another program was migrating the schema for longer than the context allowed; nothing was changed.
	ErrBusy = errors.New("migrations: another program migrates this schema")
	// ErrNewer: the schema belongs to a newer release than this program; nothing was changed.
	ErrNewer = errors.New("migrations: schema is newer than this program")
)

// GuardedError names the guarded tables. It is an ErrGuarded.
type GuardedError struct {
	Tables string // as list_guards shows them
}

func (e *GuardedError) Error() string {
	return ErrGuarded.Error() + ": " + e.Tables + ": drop the guards first, with `pglock-admin guard drop TABLE`"
}

// Is reports whether target is ErrGuarded.
func (e *GuardedError) Is(target error) bool { return target == ErrGuarded }

// RightError says which right the user lacks, and who has it; nothing was changed.
type RightError struct {
	Schema string
	Have   int // the schema's version, 0 if it is missing, -1 if the user may not even look
	User   string
	Lacks  string // the right, in words
	Owner  string // who has it; "" means only administrators
	Role   string // the role that gives it, if any
	Member bool   // the user is a member of Role, and does not inherit its rights
	Code   bool   // the user has too many rights: code of Owner could run with them
}

func (e *RightError) Error() string {
	state := "may not be looked at"
	switch {
	case e.Have == 0:
		state = "is missing"
	case e.Have > 0:
		state = fmt.Sprintf("has version %d", e.Have)
	}
	s := fmt.Sprintf("migrations: schema %q %s: user %q lacks %s: ", e.Schema, state, e.User, e.Lacks)
	switch {
	case e.Code:
		return s + fmt.Sprintf("let %q do it, or put options='-c role=%[1]s' into the connection string, if "+
			"%[1]q is to be trusted", e.Owner)
	case e.Member:
		return s + fmt.Sprintf("it is a member of %s with NOINHERIT: put options='-c role=%[1]s' into the connection "+
			"string, or options=-c%%20role%%3D%[1]s into a URL; the hooks of a pool do not run here", e.Role)
	case e.Role != "":
		return s + fmt.Sprintf("GRANT %s TO %s", e.Role, pgx.Identifier{e.User}.Sanitize())
	case e.Owner == "":
		return s + "let an administrator make them"
	case e.Have < 0:
		return s + fmt.Sprintf("ask %q, who owns it", e.Owner)
	}
	return s + fmt.Sprintf("let %q run `pglock-admin migrate` or call this package", e.Owner)
}

// StepError says which change of the version failed. The step was rolled back, and the schema has the version From.
// With Unknown, the answer to the COMMIT is missing and the server could not be asked again: the step is then done
// completely or not at all. The next migration continues from what it finds.
type StepError struct {
	Schema   string
	From, To int
	Unknown  bool
	Err      error
}

func (e *StepError) Error() string {
	s := fmt.Sprintf("migrations: schema %q: the change from version %d to %d failed and was rolled back: ", e.Schema,
		e.From, e.To)
	if e.Unknown {
		s = fmt.Sprintf("migrations: schema %q: the change from version %d to %d may or may not have been done; "+
			"migrate again: ", e.Schema, e.From, e.To)
	}
	s += failure.Bare(e.Err)
	if pgErr, is := errors.AsType[*pgconn.PgError](e.Err); is {
		for _, more := range []string{pgErr.Detail, pgErr.Hint} {
			if more != "" {
				s += " (" + more + ")"
			}
		}
	}
	return s
}

func (e *StepError) Unwrap() error { return e.Err }

// DirtyError says that golang-migrate's table contradicts the schema in a way that no failed or interrupted step
// explains: somebody has changed one of them by hand. Nothing was changed. Force corrects the table.
type DirtyError struct {
	Schema  string
	Version int // what the table says
	Before  int // what the schema reports, 0 if it reports nothing
}

func (e *DirtyError) Error() string {
	return fmt.Sprintf("migrations: schema %q has version %d, and golang-migrate has noted %d: find out which was "+
		"changed by hand, then run `pglock-admin migrate force %[2]d` or migrations.Force, and migrate again", e.Schema,
		e.Before, e.Version)
}
