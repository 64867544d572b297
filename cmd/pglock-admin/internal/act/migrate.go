package act

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

type VersionView struct {
	Schema  string `json:"schema"`
	Before  *int   `json:"before,omitempty"` // of a change
	Version int    `json:"version"`          // 0 is missing
	Dirty   bool   `json:"dirty"`
	Needed  int    `json:"needed"`
}

func NewMigrate(o *cli.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make, check or remove the schema",
	}
	yes := false
	down := &cobra.Command{
		Use:   "down --yes",
		Short: "Remove the schema with every lock and fence in it",
		Long: `Delete the schema's tables and functions, with every lock, every fence and the history. Tokens then begin again at 1.
It refuses while a table is guarded, and leaves alone what others have made in the schema.

The roles pglock_user and pglock_admin go with all memberships, unless another database uses them or you may not drop
them. After a later migrate up, grant them again.

It waits no longer than five seconds for whoever uses a table, because programs wait behind it.`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return cli.UsageErrorf("pglock-admin migrate down --yes"+o.Same()+", after a look at pglock-admin list"+
					o.Same(),
					"migrate down deletes every lock, every fence and the history of schema %s: it needs --yes",
					shown.Word(o.Schema))
			}
			return explainDown(cmd.Context(), o, migration(o, cmd, migrations.Down))
		},
	}
	down.Flags().BoolVar(&yes, "yes", false, "confirm that every lock, every fence and the history are deleted")
	cmd.AddCommand(
		&cobra.Command{
			Use:   "up",
			Short: "Bring the schema to the version that this program needs",
			Long: `Bring the schema to the version that this program needs. A missing schema is created. When the version is right,
nothing is done, and you only need the right to look. Otherwise you must own the schema, or have the right to create
it. The first time on a server you also need the right to create the roles pglock_user and pglock_admin.

Each step is one transaction. A step that fails, or that --timeout or Ctrl-C ends, is rolled back. The same command
again goes on from there.`,
			Annotations: cli.UsesDatabase,
			RunE:        func(cmd *cobra.Command, _ []string) error { return migration(o, cmd, migrations.Up) },
		},
		down,
		&cobra.Command{
			Use:   "version",
			Short: "Show the version of the schema",
			Long: `Tell the version of the schema, and which version this program needs. Where they differ, or the schema is missing, or
golang-migrate has recorded another version than the schema has ("dirty"), the exit code is 5.`,
			Annotations: cli.UsesDatabase,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, cancel := o.Bounded(cmd.Context())
				defer cancel()
				view, err := schemaVersion(ctx, o)
				if err == nil {
					err = o.Show(cmd, view, func(w *cli.Page) { drawVersion(w, view) })
				}
				if err != nil {
					return cli.Because(ctx, err)
				}
				return fits(cmd.Context(), o, view)
			},
		},
		newForce(o),
	)
	return cmd
}

func newForce(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "force N",
		Short: "Record the version that the schema has, and run nothing",
		Long: `Record for golang-migrate that the schema has version N, and run nothing. Use this when migrate up says that one of
the two was changed by hand. N must be the version that the schema really has; pglock-admin migrate version shows it.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.UsageErrorf("pglock-admin migrate version, to see the version", "force takes one version, "+
					"not %d arguments", len(args))
			}
			return nil
		},
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil {
				return cli.UsageErrorf("pglock-admin migrate version"+o.Same()+", to see the version",
					"N is %q: it must be a whole number", args[0])
			}
			return migration(o, cmd, func(ctx context.Context, to *pgx.ConnConfig, opts ...migrations.Option) error {
				err := migrations.Force(ctx, to, n, opts...)
				if !errors.Is(err, migrations.ErrInvalid) || n < 1 || n > migrations.Latest {
					return err
				}
				if has, _, lookErr := migrations.Version(ctx, to, opts...); lookErr == nil && has == 0 {
					return &pglock.SchemaError{Schema: o.Schema, Need: migrations.Latest}
				}
				return err
			})
		},
	}
}

// migration runs a function of package migrations, and shows the version before and after it.
func migration(o *cli.Options, cmd *cobra.Command, f func(context.Context, *pgx.ConnConfig,
	...migrations.Option) error) error {
	ctx, cancel := o.Bounded(cmd.Context())
	defer cancel()
	view, err := schemaVersion(ctx, o)
	if err == nil {
		before := view.Version
		if err = f(ctx, o.Config.ConnConfig, migrations.WithSchema(o.Schema)); err == nil {
			view, err = schemaVersion(ctx, o)
			view.Before = &before
		}
	}
	if err != nil {
		return cli.Because(ctx, err)
	}
	return o.Changed(cmd, view, func(w *cli.Page) { drawVersion(w, view) })
}

// explainDown tells how to find who is in the way of a step down.
func explainDown(ctx context.Context, o *cli.Options, err error) error {
	step, is := errors.AsType[*migrations.StepError](err)
	if !is || step.Unknown || step.To >= step.From || cli.StateOf(err) != "55P03" &&
		!errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	code, _ := o.Advice(ctx, err)
	schema := "'" + strings.ReplaceAll(pgx.Identifier{o.Schema}.Sanitize(), "'", "''") + "'::regnamespace"
	return &cli.Advised{Code: code, Err: err, Hint: "a quieter time, because programs wait behind this command. Who " +
		"uses the tables now:\n" + whoUses("l.relation IN (SELECT c.oid FROM pg_class c WHERE c.relkind = 'r' AND "+
		"c.relnamespace = "+schema+")")}
}

func schemaVersion(ctx context.Context, o *cli.Options) (VersionView, error) {
	version, dirty, err := migrations.Version(ctx, o.Config.ConnConfig, migrations.WithSchema(o.Schema))
	return VersionView{Schema: o.Schema, Version: version, Dirty: dirty, Needed: migrations.Latest}, err
}

// fits gives advice for a schema that this program cannot use, or cannot migrate.
func fits(ctx context.Context, o *cli.Options, v VersionView) error {
	switch {
	case v.Version != v.Needed:
		return cli.Errorf(cli.ExitSchema, o.Migrate(ctx, v.Version), "this program needs version %d", v.Needed)
	case v.Dirty:
		return cli.Errorf(cli.ExitSchema, o.Force(v.Version),
			"golang-migrate has recorded another version: it or the schema was changed by hand")
	}
	return nil
}

func drawVersion(w *cli.Page, v VersionView) {
	fmt.Fprintf(w, "schema %s: %s", shown.Word(v.Schema), cli.VersionText(v.Version))
	if v.Dirty {
		fmt.Fprint(w, ", marked dirty")
	}
	switch {
	case v.Before == nil:
	case *v.Before == v.Version:
		fmt.Fprint(w, " (as before)")
	case *v.Before == 0:
		fmt.Fprint(w, " (it was missing)")
	default:
		fmt.Fprintf(w, " (it was version %d)", *v.Before)
	}
	fmt.Fprintln(w)
}
