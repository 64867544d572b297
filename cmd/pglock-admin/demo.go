package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/demo"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

func newDemo(o *cli.Options) *cobra.Command {
	d := demo.Options{}
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show what a fence is for, with real processes and a real database",
		Long: `Show what a fence is for. Worker A takes the lock of an account and reads the balance. Then A is stopped (SIGSTOP)
until its lease has ended. Worker B gets the lock, with a greater token, and writes. Now A goes on and writes what it
computed before. Without the fence this destroys B's deposit; with the fence the database refuses it.

The demo starts a throwaway PostgreSQL server from installed programs, or downloads them. With --database-url it uses
your server instead: it makes a schema there and drops it at the end. It ignores DATABASE_URL and the PG* variables.
It leaves no process, folder or schema behind, even after Ctrl-C.

NO_COLOR turns colours off.`,
		Example: `  pglock-admin demo
  pglock-admin demo --workers 5 --ttl 500ms
  pglock-admin demo --plain --seed 7`,
		Args: cli.NoArguments,
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
			d.ConnString, d.Out, d.NoColour = o.DatabaseURL, cmd.OutOrStdout(), o.Getenv("NO_COLOR") != ""
			if d.ConnString != "" {
				cmd.Annotations = cli.UsesDatabase
				o.Schema = cli.DefaultSchema
				if err := o.Aim(cmd); err != nil {
					return err
				}
				fmt.Fprintf(d.Out, "at %s\n", o.At.Now())
			}
			// When its reader goes away (| head), this process must live on to tidy up.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGPIPE)
			defer stop()
			return explainDemo(ctx, cmd.Context(), demo.Run(ctx, d))
		},
	}
	cmd.Flags().Uint64Var(&d.Seed, "seed", 1, "`number` that chooses the names and amounts")
	cmd.Flags().IntVar(&d.Workers, "workers", demo.DefaultWorkers, "`number` of worker processes, from 2 to 8")
	d.TTL = demo.DefaultTTL
	cli.DurationVar(cmd.Flags(), &d.TTL, "ttl", "`duration` of the leases, from 200ms to 2.5s")
	cmd.Flags().BoolVar(&d.Plain, "plain", false, "print lines for a log instead of an animation")
	return cmd
}

// explainDemo gives advice for the demo's own errors. ctx ends with interrupted, and when nobody reads the output any
// more.
func explainDemo(ctx, interrupted context.Context, err error) error {
	const again = "pglock-admin demo, to see all of it"
	var option *demo.OptionError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, demo.ErrTidy):
		return &cli.Advised{Err: err, Code: cli.ExitFailure, Hint: "remove by hand what the message names"}
	case interrupted.Err() != nil:
		return &cli.Advised{Text: "interrupted; everything that the demo started is gone", Code: cli.ExitInterrupted,
			Hint: again}
	case ctx.Err() != nil:
		return &cli.Advised{Text: "nobody reads the output any more; everything that the demo started is gone",
			Code: cli.ExitFailure, Hint: again}
	case errors.As(err, &option):
		return &cli.Advised{Err: err, Code: cli.ExitUsage, Hint: "pglock-admin demo --help"}
	case errors.Is(err, demo.ErrUnsupported):
		return &cli.Advised{Err: err, Code: cli.ExitFailure, Hint: "run the demo on Linux or macOS, or in a container"}
	case errors.Is(err, demo.ErrStory):
		return &cli.Advised{Err: err, Code: cli.ExitFailure, Hint: "pglock-admin demo --ttl 2.5s, on a machine that " +
			"is less busy; if that fails too, please report it"}
	case errors.Is(err, pgprograms.ErrNotFound):
		return &cli.Advised{Err: err, Code: cli.ExitFailure, Hint: "install PostgreSQL 14 or newer, or name a server " +
			"with --database-url"}
	}
	return err
}

// newDemoWorker is the command of the demo's workers: the demo starts this program again.
func newDemoWorker() *cobra.Command {
	return &cobra.Command{
		Use:    demo.WorkerCommand,
		Hidden: true,
		Args:   cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return demo.Work(cmd.Context(), os.Stdin, cmd.OutOrStdout())
		},
	}
}
