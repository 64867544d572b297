package fencedstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Refusals of guarded tables, for errors.Is.
var (
	// ErrUnfenced: a transaction that has not passed the fence tried to write to a guarded table. errors.As with
	// **UnfencedError gives the table and the fence.
	ErrUnfenced = errors.New("fencedstore: guarded table was written without its fence")
	// ErrOtherGuard: the table is under another guard already; nothing was changed.
	ErrOtherGuard = errors.New("fencedstore: table is under another guard")
	// ErrTriggerRight: somebody besides the table's owner may make triggers on it, and could switch the guard off;
	// nothing was changed. The error names the role and the REVOKE.
	ErrTriggerRight = errors.New("fencedstore: others may make triggers on the table")
	// ErrNotGuarded: the table is under no guard; nothing was changed.
	ErrNotGuarded = errors.New("fencedstore: table is not guarded")
)

// UnfencedError says which guarded table was written without which fence. It is an ErrUnfenced.
type UnfencedError struct {
	Table    string   // with its schema
	Resource string   // whose fence the transaction must pass
	Passed   []string // the resources of the fences that the transaction has passed
	Err      error    // the server's, with a hint

	guard, home string // the schemas of the guard and of the leases; "" if the driver does not tell
}

func (e *UnfencedError) Error() string {
	s := "fencedstore: " + failure.Bare(e.Err)
	switch n := len(e.Passed); {
	case e.guard != "" && e.guard != e.home:
		s += fmt.Sprintf("; schema %q guards the table, and the lease is of schema %q: acquire the lock with a client "+
			"of the former", e.guard, e.home)
	case slices.Contains(e.Passed, e.Resource):
		s += "; the write has passed it, but this statement ran outside its transaction, as through the pool " +
			"instead of the function's tx, or after a ROLLBACK TO or COMMIT that ended the fence"
	case n == 1 && strings.HasPrefix(e.Passed[0], e.Resource+"#"):
		s += fmt.Sprintf("; it has passed that of the slot %q of a shared or limited lock: take the lock alone, or "+
			"name Fence.Resource", e.Passed[0])
	case n == 1:
		s += fmt.Sprintf("; it has passed that of %q: the lock's name says which, or Fence.Resource", e.Passed[0])
	case n > 1:
		s += fmt.Sprintf("; it has passed those of %q and %d more: each Fence says which", e.Passed[0], n-1)
	}
	return s
}

// Is reports whether target is ErrUnfenced.
func (e *UnfencedError) Is(target error) bool { return target == ErrUnfenced }

func (e *UnfencedError) Unwrap() error { return e.Err }

// DB runs the statements that make and list guards: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// TableOption changes how a table is guarded.
type TableOption func(*tableConfig) error

type tableConfig struct {
	schema        string
	resource, key *string
}

// WithTableResource names what the table's fence protects, in 1 to 512 bytes. Writers must name the same resource in
// their Fence, or hold a lock of that name. Defaults to the table's name, without its schema.
func WithTableResource(name string) TableOption {
	return func(c *tableConfig) error {
		c.resource = &name
		return refuse.Text("resource", name, pglock.MaxNameBytes)
	}
}

// WithTableKey gives each row its own resource: the table's, '/', and the value of this column, as in accounts/42. The
// column must be stored, and its type must be an integer type, numeric, text, varchar, uuid, bool, date or an enum. The
// collation of a text must be deterministic, as all are that come with the server.
// Nobody can write a row whose key is NULL. TRUNCATE needs the fence of the resource without a key.
func WithTableKey(column string) TableOption {
	return func(c *tableConfig) error {
		c.key = &column
		return refuse.If(column == "", "key", `""`, "name a column")
	}
}

// WithSchema names the schema of pglock itself. Defaults to "pglock".
func WithSchema(name string) TableOption {
	return func(c *tableConfig) error {
		c.schema = name
		return refuse.Text("schema", name, argument.SchemaBytes)
	}
}

func newTableConfig(db DB, table string, opts []TableOption) (tableConfig, error) {
	c := tableConfig{schema: "pglock"}
	err := cmp.Or(refuse.If(refuse.IsNil(db), "db", "nil", "be a pool, a connection or a transaction"),
		refuse.If(table == "", "table", `""`, "name a table, as in public.accounts"), refuse.Options(&c, opts))
	return c, err
}

// GuardTable puts a table under guard. Every INSERT, UPDATE, DELETE, MERGE, COPY and TRUNCATE of it, by whatever
// program, then fails with SQLSTATE LK011 unless its transaction has passed the fence of the table's resource. Stores
// and Guarded.Explain make that an ErrUnfenced. The proof is the row of the fence, which no client can write. Names are
// as in SQL: public.accounts, public."Accounts".
//
// GuardTable also guards partitions and children. If you make a partition later, for which you need the role
// pglock_user, its rows are guarded at once; call GuardTable again to guard it against TRUNCATE. Guarding twice in the
// same way changes nothing. The user must own the table. GuardTable sends one statement. It waits for the table's
// writers and locks them out while it runs: set a lock_timeout.
//
// Triggers check each row, which costs some microseconds, and with a key (WithTableKey) several times as much.
//
// The owner of the table can remove the guard, or the table; so GuardTable refuses a table on which anybody else may
// make triggers. Operators can write past the guard with the SQL function bypass_guards, which leaves an entry in the
// history.
//
// Errors: ErrOtherGuard, ErrTriggerRight, pglock.ErrInvalid (a view, no such table or column, a key of another type),
// ErrPermission, ErrSchema.
func GuardTable(ctx context.Context, db DB, table string, opts ...TableOption) error {
	c, err := newTableConfig(db, table, opts)
	if err != nil {
		return err
	}
	err = db.QueryRow(ctx, protocol.GuardTable(c.schema), table, c.resource, c.key).Scan(new(int))
	return tableError(ctx, "guard", table, c.schema, err)
}

// UnguardTable removes the guard of a table. The user must own the table. Errors: ErrNotGuarded, pglock.ErrInvalid
// (no such table), ErrPermission, ErrSchema.
func UnguardTable(ctx context.Context, db DB, table string, opts ...TableOption) error {
	c, err := newTableConfig(db, table, opts)
	if err != nil {
		return err
	}
	err = db.QueryRow(ctx, protocol.UnguardTable(c.schema), table).Scan(new(int))
	return tableError(ctx, "unguard", table, c.schema, err)
}

// TableGuard describes a guarded table.
type TableGuard struct {
	Table    string `json:"table"` // with its schema
	Resource string `json:"resource,omitempty"`
	Key      string `json:"key,omitempty"`     // the key column; "" when the table has one resource
	Covered  int    `json:"covered"`           // tables under this guard: itself, its partitions and its children
	Problem  string `json:"problem,omitempty"` // what is missing, "" when nothing is; GuardTable again adds it
}

// TableGuards lists the guarded tables of the database. Of the options only WithSchema matters.
func TableGuards(ctx context.Context, db DB, opts ...TableOption) ([]TableGuard, error) {
	c, err := newTableConfig(db, "any", opts)
	if err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, protocol.ListGuards(c.schema))
	if err == nil {
		var guards []TableGuard
		if guards, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TableGuard]); err == nil {
			return guards, nil
		}
	}
	return nil, failure.At(ctx, pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, "", 0), "fencedstore: list guards")
}

// tableErrors are what SQLSTATEs of these functions mean.
var tableErrors = map[string]error{
	"42710": ErrOtherGuard, "55000": ErrTriggerRight, "42704": ErrNotGuarded,
	// No table, not a table, no column, its type, no name.
	"42P01": pglock.ErrInvalid, "42809": pglock.ErrInvalid, "42703": pglock.ErrInvalid, "42804": pglock.ErrInvalid,
	"42602": pglock.ErrInvalid, "42601": pglock.ErrInvalid, "0A000": pglock.ErrInvalid,
	"3F000": pglock.ErrInvalid, // the table's schema; if it is that of pglock itself, ErrSchema
}

func tableError(ctx context.Context, what, table, schema string, err error) error {
	if err == nil {
		return nil
	}
	state := protocol.State(err)
	is := tableErrors[state]
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch {
	case state == "42501" && !connecting:
		err = fmt.Errorf("%w: the user must own the table and have the role pglock_user: %w", pglock.ErrPermission, err)
	case is != nil && !connecting &&
		!(state == "3F000" && strings.Contains(protocol.Message(err), strconv.Quote(schema))):
		err = fmt.Errorf("%w: %w", is, err)
	default:
		err = pglock.ForSiblings(hooks.Key{}).ErrorFromSQL(err, "", 0)
	}
	return failure.At(ctx, err, "fencedstore: %s table %s", what, table)
}
