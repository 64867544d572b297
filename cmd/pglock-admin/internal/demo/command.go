package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/shown"
)

func New(o *cli.Options) *cobra.Command {
	d := options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a fence is for, with real processes and a real database",
		Long: `Show what a fence is for. Worker A takes the lock of an account and reads the balance. Then A is stopped (SIGSTOP)
until its lease has ended. Worker B gets the lock, with a greater token, and writes. Now A goes on and writes what it
computed before. Without the fence this destroys B's deposit; with the fence the database refuses it.

The demo starts a throwaway PostgreSQL server from installed programs, or downloads them. With --database-url it uses
your server instead: it makes a schema there and drops it at the end. It ignores DATABASE_URL, and without the flag
the PG* variables, too. It leaves no process and no schema behind, even after Ctrl-C.
What it keeps in the cache folder for the next time is in docs/servers.md.

NO_COLOR turns colours off, as --plain does.`,
		Example: `  pglock-admin demo
  pglock-admin demo --workers 5 --ttl 500ms
  pglock-admin demo --plain --seed 7`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for _, name := range []string{"schema", "timeout"} {
				if cmd.Flags().Changed(name) {
					return cli.UsageErrorf("pglock-admin demo without --"+name, "--%s means nothing to the demo, "+
						"which has a schema and bounds of its own", name)
				}
			}
			if o.Output != cli.OutputTable {
				return cli.UsageErrorf("pglock-admin demo --plain", "--output %s means nothing to the demo, which "+
					"tells a story", o.Output)
			}
			d.connString, d.out, d.noColour = o.DatabaseURL, cmd.OutOrStdout(), o.Getenv("NO_COLOR") != ""
			if d.connString != "" {
				if kind := o.Getenv(pgserver.Variable); kind != "" && kind != string(pgserver.KindURL) {
					return cli.UsageErrorf("unset "+pgserver.Variable, "--database-url does not go with %s=%q, which "+
						"allows no such server", pgserver.Variable, kind)
				}
				cmd.Annotations = cli.UsesDatabase
				o.Schema = cli.DefaultSchema
				if err := o.Aim(cmd); err != nil {
					return err
				}
				d.address = shown.Argument(cli.WithoutPassword(o.DatabaseURL, o.Config.ConnConfig))
				fmt.Fprintf(d.out, "at %s\n", o.At.Now())
			}
			// When its reader goes away (| head), this process must live on to tidy up.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGPIPE)
			defer stop()
			return explain(ctx, cmd.Context(), play(ctx, d))
		},
	}
	cmd.Flags().Uint64Var(&d.seed, "seed", 1, "`number` that chooses the names and amounts")
	cmd.Flags().IntVar(&d.workers, "workers", defaultWorkers, "`number` of worker processes, from 2 to 8")
	d.ttl = defaultTTL
	cli.DurationVar(cmd.Flags(), &d.ttl, "ttl", "`duration` of the leases, from 200ms to 2.5s")
	cmd.Flags().BoolVar(&d.plain, "plain", false, "print no colours")
	return cmd
}

// explain gives advice for the demo's own errors. ctx ends with interrupted, and when nobody reads the output any more.
func explain(ctx, interrupted context.Context, err error) error {
	advised := &cli.Advised{Err: err, Code: cli.ExitFailure}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errTidy):
		advised.Hint = "remove by hand what the message names"
	case ctx.Err() != nil:
		why, code := "nobody reads the output any more", cli.ExitFailure
		if interrupted.Err() != nil {
			why, code = "interrupted", cli.ExitInterrupted
		}
		return cli.Errorf(code, "pglock-admin demo, to see all of it",
			"%s; everything that the demo started is gone", why)
	case errors.Is(err, errStory):
		advised.Hint = "pglock-admin demo --ttl 2.5s, on a machine that is less busy; if that fails too, please " +
			"report it"
	case errors.Is(err, pgprograms.ErrNotFound):
		advised.Hint = "install PostgreSQL 14 or newer, or name a server with --database-url"
	default:
		return err
	}
	return advised
}

// workerCommand is the argument with which the demo starts this program again as a worker.
const workerCommand = "demo-worker"

func NewWorker() *cobra.Command {
	return &cobra.Command{
		Use:    workerCommand,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return work(cmd.Context(), os.Stdin, cmd.OutOrStdout())
		},
	}
}
