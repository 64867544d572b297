package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

type versionView struct {
	Schema  string `json:"schema"`
	Before  *int   `json:"before,omitempty"` // of a change
	Version int    `json:"version"`          // 0 is missing
	Dirty   bool   `json:"dirty"`
	Needed  int    `json:"needed"`
}

func newMigrate(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make, inspect or remove the schema",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	yes := false
	down := &cobra.Command{
		Use:   "down --yes",
		Short: "Remove the schema with every lock and fence in it",
		Long: `Remove the schema: every lock, every fence and the audit. Holders lose their leases. Tokens begin again at 1 when the
schema is made again, so nothing that an old holder may still write must be fenced by the new one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !yes {
				return usageErrorf("pglock-admin migrate down --yes"+o.sameDatabase()+", after a look at pglock-admin list",
					"migrate down deletes every lock, every fence and the audit of schema %q: it needs --yes", o.schema)
			}
			return o.migrate(cmd, migrations.Down)
		},
	}
	down.Flags().BoolVar(&yes, "yes", false, "yes, delete every lock, every fence and the audit")
	cmd.AddCommand(
		&cobra.Command{
			Use:   "up",
			Short: "Bring the schema to the version that this program needs",
			Long: `Bring the schema to the version that this program needs. It is created where it is missing; where it is right already
nothing is done. The user needs the right to create schemas and, once a cluster, the roles pglock_user and pglock_admin.`,
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return o.migrate(cmd, migrations.Up) },
		},
		down,
		&cobra.Command{
			Use:   "version",
			Short: "Tell the version of the schema",
			Long:  `Tell the version of the schema, whether a failed step left it marked dirty, and which version this program needs.`,
			Args:  cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				ctx, cancel := o.bounded(cmd.Context())
				defer cancel()
				view, err := o.schemaVersion(ctx)
				if err != nil {
					return because(ctx, err)
				}
				return o.show(cmd, view, func(w io.Writer) { drawVersion(w, o, view) })
			},
		},
		newForce(o),
	)
	return cmd
}

func newForce(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "force N",
		Short: "Note a version and take the dirty mark away, running nothing",
		Long: `Note that the schema has version N and take the dirty mark away, without running anything. This is the way back after
a failed migrate up, whose message tells N.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageErrorf("pglock-admin migrate version, to see the version", "force takes one version, not %d arguments", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil {
				return usageErrorf("pglock-admin migrate version, to see the version", "N is %q: it must be a whole number", args[0])
			}
			err = o.migrate(cmd, func(ctx context.Context, url string, opts ...migrations.Option) error {
				if err := migrations.Force(ctx, url, n, opts...); err != nil {
					return err
				}
				version, _, err := migrations.Version(ctx, url, opts...)
				if err == nil && version != n {
					err = &pglock.SchemaError{Schema: o.schema, Have: version, Need: pglock.SchemaVersion}
				}
				return err
			})
			return err
		},
	}
}

// migrate runs one of the package's functions and tells the version before and after.
func (o *options) migrate(cmd *cobra.Command, f func(context.Context, string, ...migrations.Option) error) error {
	ctx, cancel := o.bounded(cmd.Context())
	defer cancel()
	view, err := o.schemaVersion(ctx)
	if err != nil {
		return because(ctx, err)
	}
	if view.Version > migrations.Latest {
		return &pglock.SchemaError{Schema: o.schema, Have: view.Version, Need: migrations.Latest}
	}
	before := view.Version
	if err := f(ctx, o.url(), migrations.WithSchema(o.schema)); err != nil {
		return because(ctx, err)
	}
	if view, err = o.schemaVersion(ctx); err != nil {
		return because(ctx, err)
	}
	view.Before = &before
	return o.show(cmd, view, func(w io.Writer) { drawVersion(w, o, view) })
}

func (o *options) schemaVersion(ctx context.Context) (versionView, error) {
	if err := o.checkURL(); err != nil {
		return versionView{}, err
	}
	version, dirty, err := migrations.Version(ctx, o.url(), migrations.WithSchema(o.schema))
	return versionView{Schema: o.schema, Version: version, Dirty: dirty, Needed: migrations.Latest}, err
}

func drawVersion(w io.Writer, o *options, v versionView) {
	state := fmt.Sprintf("version %d", v.Version)
	if v.Version == 0 {
		state = "missing"
	}
	if v.Dirty {
		state += ", marked dirty"
	}
	fmt.Fprintf(w, "schema %s: %s", printable(v.Schema), state)
	switch {
	case v.Before != nil && *v.Before == v.Version:
		fmt.Fprint(w, " (as before)")
	case v.Before != nil && *v.Before == 0:
		fmt.Fprint(w, " (it was missing)")
	case v.Before != nil:
		fmt.Fprintf(w, " (it was version %d)", *v.Before)
	case v.Dirty:
		fmt.Fprint(w, "; a step failed and was rolled back: pglock-admin migrate up tells more")
	case v.Version < v.Needed:
		fmt.Fprintf(w, "; this program needs version %d: pglock-admin migrate up%s", v.Needed, o.sameDatabase())
	case v.Version > v.Needed:
		fmt.Fprintf(w, "; this program knows version %d: use a newer one", v.Needed)
	}
	fmt.Fprintln(w)
}
