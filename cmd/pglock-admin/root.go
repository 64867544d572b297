package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/pglock"
)

// options are the flags that every command has.
type options struct {
	databaseURL string
	schema      string
	output      string
	timeout     time.Duration

	getenv  func(string) string
	started bool // the command line was understood: an error from here on is not one of usage
}

const defaultSchema = "pglock"

func newRoot(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:   "pglock-admin",
		Short: "Look after the locks of pglock in a PostgreSQL database",
		Long: `pglock-admin looks after the locks of pglock in a PostgreSQL database: who holds what, with which fencing token,
for how long, and who waits for it. It makes the schema, ends the lease of a holder that is stuck, puts tables under guard,
and tells what the server can and cannot do for the locks.

The database is the one that --database-url names, else DATABASE_URL, else the PG* variables (PGHOST, PGUSER,
PGPASSWORD, PGSERVICE, …), as libpq reads them.

` + exitCodesHelp,
		Example: `  pglock-admin demo                                  see what a fence is for; needs no database
  pglock-admin migrate up                            make the schema
  pglock-admin list                                  who holds what
  pglock-admin waiters                               who waits for it, in order
  pglock-admin break nightly-report --reason "stuck since 3:00"
  pglock-admin prune                                 remove what nobody needs any more
  pglock-admin guard add public.accounts             refuse writes that have not passed the fence
  pglock-admin doctor                                what this server can and cannot do`,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          needsSubcommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			o.started = true
			return nil
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.databaseURL, "database-url", "", "connection `string` (default $DATABASE_URL, else the PG* variables)")
	flags.StringVar(&o.schema, "schema", defaultSchema, "`name` of the database schema of the locks")
	flags.StringVarP(&o.output, "output", "o", outputTable, "`format` of the output: table or json")
	flags.DurationVar(&o.timeout, "timeout", 10*time.Second, "how long the command may take; the demo has its own bounds")
	root.AddCommand(newMigrate(o), newList(o), newShow(o), newWaiters(o), newBreak(o), newPrune(o), newGuard(o), newDoctor(o), newDemo(o), newDemoWorker(), newVersion(o))
	return root
}

// needsSubcommand is for commands that only hold others.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	return usageErrorf(cmd.CommandPath()+" --help", "%s needs a command", cmd.CommandPath())
}

// oneName is for commands about one lock.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageErrorf("pglock-admin "+cmd.Use+`; a name with spaces needs quotes`, "%s takes the name of one lock, not %d arguments", cmd.Name(), len(args))
	}
	return nil
}

func (o *options) check() error {
	switch {
	case o.output != outputTable && o.output != outputJSON:
		value := o.output
		o.output = outputTable
		return usageErrorf("-o table, or -o json", "--output is %q: it must be table or json", value)
	case o.timeout <= 0:
		return usageErrorf("--timeout 10s", "--timeout is %v: it must be greater than 0", o.timeout)
	}
	return nil
}

// url is the connection string; empty means the PG* variables.
func (o *options) url() string {
	if o.databaseURL != "" {
		return o.databaseURL
	}
	return o.getenv("DATABASE_URL")
}

// checkURL refuses a connection string that cannot be read, before anything is done.
func (o *options) checkURL() error {
	if _, err := pgx.ParseConfig(o.url()); err != nil { // pgx leaves the password out
		return usageErrorf(`--database-url "postgres://user@host:5432/database"`, "connection string: %v", err)
	}
	return nil
}

// bounded gives the time that the command may take.
func (o *options) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("no answer within %v (--timeout)", o.timeout))
}

// withClient runs f with a client of the locks.
func (o *options) withClient(ctx context.Context, f func(context.Context, *pglock.Client) error) error {
	return o.withPool(ctx, func(ctx context.Context, pool *pgxpool.Pool) error { return o.onPool(ctx, pool, f) })
}

// onPool runs f with a client over the pool. The client refuses a schema that does not fit.
func (o *options) onPool(ctx context.Context, pool *pgxpool.Pool, f func(context.Context, *pglock.Client) error) (err error) {
	client, err := pglock.New(ctx, pool, pglock.WithSchema(o.schema), pglock.WithHolder(actor()))
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := client.Close(context.WithoutCancel(ctx)); err == nil {
			err = closeErr
		}
	}()
	return f(ctx, client)
}

// withPool runs f with a pool, within the time that the command may take.
func (o *options) withPool(ctx context.Context, f func(context.Context, *pgxpool.Pool) error) error {
	if err := o.checkURL(); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(o.url())
	if err != nil {
		return usageErrorf("a connection string without the pool's settings", "connection string: %v", err)
	}
	config.MaxConns, config.MinConns, config.MinIdleConns = 2, 0, 0
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "pglock-admin"
	}
	ctx, cancel := o.bounded(ctx)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return because(ctx, f(ctx, pool))
}

// because adds why ctx ended, where that is why err came.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil && context.Cause(ctx) != ctx.Err() {
		return fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return err
}
