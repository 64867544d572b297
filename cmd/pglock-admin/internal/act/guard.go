package act

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type GuardView = fencedstore.TableGuard

type GuardsView struct {
	Guards []GuardView `json:"guards"`
}

// GuardedView is what guard add has found or made.
type GuardedView struct {
	GuardView
	Changed bool `json:"changed"`        // false: it was guarded in this way already
	Part    bool `json:"part,omitempty"` // a partition or a child of a guarded table, which has the rest

	mended bool // the guard was there, and lacked something
}

func NewGuard(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "guard",
		Short: "Guard tables: nobody writes to them without passing their fence",
		Long: `Guard tables. Every INSERT, UPDATE, DELETE, MERGE, COPY and TRUNCATE of a guarded table fails with SQLSTATE LK011
unless its transaction has passed the fence of the table's resource, whatever program sends it. So the database
refuses a writer that forgets the fence.`,
		Example: `  pglock-admin guard add public.accounts --key id
  pglock-admin guard list
  pglock-admin guard drop public.accounts --yes`,
	}
	cmd.AddCommand(newGuardAdd(o), newGuardDrop(o), newGuardList(o))
	return cmd
}

func newGuardAdd(o *cli.Options) *cobra.Command {
	var resource, key string
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "add TABLE",
		Short: "Guard a table, its partitions and its children",
		Long: `Guard a table, its partitions and its children. Write the name as in SQL: public.accounts, or with capitals
'public."Accounts"'. From then on a transaction must pass the fence of the table's resource before it can write to the
table. So first make all its writers pass that fence.

The resource is the table's name without its schema, unless --resource names another. With --key each row has its own
resource: the table's, a slash, and the value of that column, as in accounts/42. docs/guards.md says which types a key
may have, and whom guard add waits for. Run it again with the same resource and key to add what the guard lacks.

You need the role pglock_user, and you must own the table. Nobody else may have the privilege TRIGGER on it, which GRANT
ALL gives too: guard add refuses, and names the REVOKE.`,
		Example: `  pglock-admin guard add public.accounts
  pglock-admin guard add public.accounts --key id
  pglock-admin guard add reports --resource nightly-report --lock-timeout 1s`,
		Args:        cli.Takes("the name of one table", false),
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts := []fencedstore.TableOption{fencedstore.WithSchema(o.Schema)}
			if cmd.Flags().Changed("resource") {
				opts = append(opts, fencedstore.WithTableResource(resource))
			}
			if cmd.Flags().Changed("key") {
				opts = append(opts, fencedstore.WithTableKey(key))
			}
			return changeGuards(o, cmd, args[0], patience, drawGuarded,
				func(ctx context.Context, tx pgx.Tx) (GuardedView, error) { return addGuard(ctx, tx, args[0], opts) })
		},
	}
	cmd.Flags().StringVar(&resource, "resource", "", "`name` of the resource whose fence writers must pass (default "+
		"the table's name, without its schema)")
	cmd.Flags().StringVar(&key, "key", "", "`column` by which each row has its own resource")
	patienceFlag(cmd, &patience)
	return cmd
}

func newGuardDrop(o *cli.Options) *cobra.Command {
	var patience time.Duration
	yes := false
	cmd := &cobra.Command{
		Use:   "drop TABLE --yes",
		Short: "Remove the guard of a table",
		Long: `Remove the guard of a table, of its partitions and of its children. From then on everybody who has the rights to write
to the table may do so without a fence, even a holder that has lost its lease. The history does not record it.

For a single repair, leave the guard in place: the SQL function bypass_guards lets one transaction write past it.
docs/guards.md has an example, and says whom guard drop waits for.

You need the role pglock_user, and you must own the table.`,
		Example:     `  pglock-admin guard drop public.accounts --yes`,
		Args:        cli.Takes("the name of one table", false),
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes {
				return cli.UsageErrorf(fmt.Sprintf("pglock-admin guard drop %s --yes%s, after a look at pglock-admin "+
					"guard list%[2]s", shown.Argument(args[0]), o.Same()),
					"guard drop lets everybody write to table %s without a fence, even a holder that has lost its "+
						"lease: it needs --yes", shown.Text(args[0]))
			}
			return changeGuards(o, cmd, args[0], patience, drawUnguarded,
				func(ctx context.Context, tx pgx.Tx) (GuardView, error) { return dropGuard(ctx, tx, args[0], o) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm that everybody may write to the table without a fence")
	patienceFlag(cmd, &patience)
	return cmd
}

func newGuardList(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the guarded tables and what their guards lack",
		Long: `Show the guarded tables of the database. RESOURCE is what writers must pass the fence of; it ends in /<column> when
each row has its own. COVERS is how many tables the guard covers: the table, its partitions and its children. PROBLEM
is what the guard lacks, for instance after a partition was made or a trigger was disabled, and who may switch it off.`,
		Example: `  pglock-admin guard list
  pglock-admin guard list -o json | jq '.guards[] | select(.problem)'`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.Looking(cmd.Context(), func(ctx context.Context, _ *lockadmin.Admin) error {
				guards, err := fencedstore.TableGuards(ctx, o.Pool, fencedstore.WithSchema(o.Schema))
				if err != nil {
					return err
				}
				view := GuardsView{Guards: guards}
				return o.Show(cmd, view, func(w *cli.Page) { drawGuards(w, o, view) })
			})
		},
	}
}

// defaultPatience is the default of --lock-timeout, unless half of --timeout is less: --lock-timeout must end first, so
// that the error names the right one.
const defaultPatience = 5 * time.Second

func patienceFlag(cmd *cobra.Command, patience *time.Duration) {
	*patience = defaultPatience
	cli.DurationVar(cmd.Flags(), patience, "lock-timeout", "`duration` to wait for others to let go of the table, "+
		"but no longer than half of --timeout by default")
}

// fullName is a statement that only this program needs, and the library does not have.
const fullName = `SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
	FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
	WHERE c.oid OPERATOR(pg_catalog.=) $1::pg_catalog.text::pg_catalog.regclass::pg_catalog.oid`

// changeGuards runs f in one transaction, commits it and shows what it has done. The transaction waits for each lock
// for patience at most, and ends if this program stands still.
func changeGuards[T any](o *cli.Options, cmd *cobra.Command, table string, patience time.Duration,
	draw func(*cli.Page, *cli.Options, T), f func(context.Context, pgx.Tx) (T, error)) error {
	if !cmd.Flags().Changed("lock-timeout") {
		patience = max(time.Millisecond, min(defaultPatience, o.Timeout/2))
	}
	if patience < time.Millisecond || patience >= o.Timeout || patience > 24*time.Hour {
		return cli.UsageErrorf("--lock-timeout 1s, or a longer --timeout too",
			"--lock-timeout is %s: it must be from 1ms to 1d, and shorter than --timeout, which is %s",
			shown.Duration(patience), shown.Duration(o.Timeout))
	}
	var view T
	late := false // --timeout was over before COMMIT
	err := o.WithAdmin(cmd.Context(), func(ctx context.Context, _ *lockadmin.Admin) error {
		err := pgx.BeginTxFunc(ctx, o.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) (err error) {
			limits := fmt.Sprintf("SET LOCAL lock_timeout = %d; ", patience.Milliseconds()) + protocol.EndIdle
			if _, err := tx.Exec(ctx, limits); err != nil {
				return err
			}
			view, err = f(ctx, tx)
			late = errors.Is(err, context.DeadlineExceeded)
			return err
		})
		if late || cli.StateOf(err) == "55P03" {
			return inUse(o, table, patience, late)
		}
		return explainGuard(o, err, table)
	})
	if err != nil {
		return err
	}
	return o.Changed(cmd, view, func(w *cli.Page) { draw(w, o, view) })
}

func addGuard(ctx context.Context, tx pgx.Tx, table string, opts []fencedstore.TableOption) (GuardedView, error) {
	name, before, after, err := compared(ctx, tx, table, fencedstore.GuardTable, opts...)
	if err != nil {
		return GuardedView{}, err
	}
	was, had := guardOf(before, name)
	now, found := guardOf(after, name)
	if !found {
		return GuardedView{GuardView: GuardView{Table: name}, Part: true, Changed: !slices.Equal(before, after)}, nil
	}
	return GuardedView{GuardView: now, Changed: !had || was != now, mended: had}, nil
}

func dropGuard(ctx context.Context, tx pgx.Tx, table string, o *cli.Options) (GuardView, error) {
	name, before, after, err := compared(ctx, tx, table, fencedstore.UnguardTable, fencedstore.WithSchema(o.Schema))
	if err != nil {
		pgErr, is := errors.AsType[*pgconn.PgError](err)
		if is && pgErr.Code == "42809" && pgErr.TableName != "" { // of the guarded table that this one is a part of
			err = &cli.Advised{Code: cli.ExitUsage, Err: err, Hint: dropWhole(o, pgErr.TableName, table)}
		}
		return GuardView{}, err
	}
	if was, found := guardOf(before, name); found {
		return was, nil
	}
	return GuardView{}, partOfAnother(name, before, after, o)
}

// partOfAnother refuses to leave a gap in the guard of another table. That is the table whose guard now lacks more.
func partOfAnother(name string, before, after []GuardView, o *cli.Options) error {
	whole, hint := "another table", "pglock-admin guard list"+o.Same()+", and drop the guard of the whole"
	for _, g := range after {
		if was, found := guardOf(before, g.Table); found && was.Problem != g.Problem {
			whole, hint = "table "+g.Table, dropWhole(o, g.Table, name)
		}
	}
	return cli.UsageErrorf(hint, "table %s is guarded as a part of %s, and dropping its guard would leave a gap "+
		"there; nothing was changed", name, whole)
}

func dropWhole(o *cli.Options, whole, part string) string {
	return fmt.Sprintf("pglock-admin guard drop %s --yes%s, or detach %s from it first", shown.Argument(whole),
		o.Same(), part)
}

// compared makes a change, and gives the table's full name, and all guards before and after the change.
func compared(ctx context.Context, tx pgx.Tx, table string,
	change func(context.Context, fencedstore.DB, string, ...fencedstore.TableOption) error,
	opts ...fencedstore.TableOption) (name string, before, after []GuardView, err error) {
	if before, err = fencedstore.TableGuards(ctx, tx, opts...); err != nil {
		return "", nil, nil, err
	}
	if err := change(ctx, tx, table, opts...); err != nil {
		return "", nil, nil, err
	}
	if err := tx.QueryRow(ctx, fullName, table).Scan(&name); err != nil {
		return "", nil, nil, err
	}
	after, err = fencedstore.TableGuards(ctx, tx, opts...)
	return name, before, after, err
}

func guardOf(guards []GuardView, table string) (GuardView, bool) {
	i := slices.IndexFunc(guards, func(g GuardView) bool { return g.Table == table })
	if i < 0 {
		return GuardView{}, false
	}
	return guards[i], true
}

// inUse tells how to find who is in the way, also of a partition or a child.
func inUse(o *cli.Options, table string, patience time.Duration, late bool) error {
	code, longer := cli.ExitFailure, "--lock-timeout"
	text := fmt.Sprintf("table %s was in use for longer than %s", table, shown.Duration(patience))
	if late {
		code, longer = cli.ExitUnreachable, "--timeout"
		text = fmt.Sprintf("no answer within %s (--timeout)", shown.Duration(o.Timeout))
	}
	literal := "'" + strings.ReplaceAll(table, "'", "''") + "'"
	return cli.Errorf(code, "a quieter time, or a longer "+longer+"; others who want the table wait behind this "+
		"command. Who uses it now:\n"+whoUses("l.relation IN (WITH RECURSIVE t AS (SELECT "+literal+
		"::regclass::oid AS oid\n    UNION SELECT i.inhrelid FROM t JOIN pg_inherits i ON i.inhparent = t.oid) "+
		"SELECT oid FROM t)"), "%s; nothing was changed", text)
}

func explainGuard(o *cli.Options, err error, table string) error {
	state := cli.StateOf(err)
	argument, list := shown.Argument(table), "pglock-admin guard list"+o.Same()
	switch {
	case cli.Lost(err):
		return &cli.Advised{Text: "it is unknown whether it was done", Err: err, Code: cli.ExitUnreachable,
			Hint: list + ", to see whether it was done"}
	case state == "25P03": // this program stood still
		return &cli.Advised{Text: "nothing was changed", Err: err, Code: cli.ExitFailure, Hint: cli.Again}
	case state == "42710" && hintOf(err) == "": // the server's own words: this schema did not find a guard
		return &cli.Advised{Code: cli.ExitUsage, Err: err, Hint: "another schema of pglock guards the table, or " +
			"somebody has made a trigger of that name; its function tells which:\n  " + o.Psql() + " -c " +
			shown.Argument(`\d `+table)}
	case errors.Is(err, fencedstore.ErrOtherGuard):
		return &cli.Advised{Code: cli.ExitUsage, Err: err,
			Hint: fmt.Sprintf("%s, and then the --resource and --key that it shows; or first pglock-admin guard drop "+
				"%s --yes%s", list, argument, o.Same())}
	case errors.Is(err, fencedstore.ErrTriggerRight):
		hint := "take the right away"
		if revoke := hintOf(err); revoke != "" && shown.AllPrint(revoke) {
			hint = fmt.Sprintf("as the table's owner %s; then the same command", revoke)
		}
		return &cli.Advised{Code: cli.ExitFailure, Err: err, Hint: hint}
	case errors.Is(err, fencedstore.ErrNotGuarded):
		return &cli.Advised{Code: cli.ExitNotHeld, Err: err, Hint: list + " to see which tables are guarded"}
	case errors.Is(err, pglock.ErrPermission), state == "42501":
		return &cli.Advised{Code: cli.ExitPermission, Err: err, Hint: "run it as the table's owner, or a member of " +
			"that role; that user must be a member of pglock_user too"}
	case state == "42703": // no such column: the text has those that there are
		return &cli.Advised{Code: cli.ExitUsage, Err: err, Hint: "the same command, with --key and the name of a " +
			"column that the text shows; with capitals as they are, and without quotes of SQL"}
	// no such table, no such schema, no name at all
	case state == "42P01", state == "3F000", state == "42602", state == "42601", state == "0A000":
		return &cli.Advised{Code: cli.ExitUsage, Err: err,
			Hint: `the table's name with its schema, as in SQL: public.accounts, or with capitals 'public."Accounts"'`}
	}
	return err
}

// hintOf is the server's hint.
func hintOf(err error) string {
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is {
		return pgErr.Hint
	}
	return ""
}
