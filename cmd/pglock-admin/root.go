package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/act"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/demo"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/live"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/serve"
)

func newRoot(o *cli.Options) *cobra.Command {
	root := &cobra.Command{
		Use:   "pglock-admin",
		Short: "Look after the locks of pglock in a PostgreSQL database",
		Long: `pglock-admin looks after the locks of pglock in a PostgreSQL database. It shows who holds which lock, with which
fencing token and for how long, and who waits for it. It makes the schema, ends the lease of a holder that is stuck,
guards tables, runs commands under a lock, and checks what the server can do for the locks.

--database-url names the database. Without it DATABASE_URL does, and without that the PG* variables (PGHOST, PGUSER,
PGPASSWORD, PGSERVICE, …), as for libpq.

` + cli.NamesHelp + `

Write a duration as 90s, 36h, 1d12h, 90d or 2w.

` + cli.ExitCodesHelp,
		Example: `  pglock-admin demo                                  see what a fence is for; needs no database
  pglock-admin migrate up                            make the schema
  pglock-admin list                                  who holds what
  pglock-admin top                                   the same on a full screen that moves
  pglock-admin why nightly-report                    what is wrong with a lock, and what to do
  pglock-admin waiters                               who waits for it, in order
  pglock-admin sessions                              which clients there are, and which are silent
  pglock-admin break nightly-report --reason "stuck since 3:00"
  pglock-admin run nightly-report -- ./report.sh     run a command while holding a lock
  pglock-admin prune                                 remove what nobody needs any more
  pglock-admin guard add public.accounts             refuse writes that have not passed the fence
  pglock-admin doctor                                check what this server can do`,
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(cmd); err != nil {
				return err
			}
			o.Started = true
			return o.Aim(cmd)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.DatabaseURL, "database-url", "", "connection `string` (default $DATABASE_URL, else the PG* "+
		"variables)")
	flags.StringVar(&o.Schema, "schema", cli.DefaultSchema, "`name` of the database schema of the locks")
	flags.StringVarP(&o.Output, "output", "o", cli.OutputTable, "`format` of the output: table, json or yaml; "+
		"of list also tree")
	o.Timeout = 10 * time.Second
	cli.DurationVar(flags, &o.Timeout, "timeout", "`duration` that the command may take; run: each step of it; demo: "+
		"not used")
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetHelpFunc(help)
	root.SetHelpCommand(newHelp())
	root.AddCommand(
		act.NewMigrate(o),
		look.NewList(o),
		look.NewShow(o),
		explain.NewWhy(o),
		look.NewWaiters(o),
		look.NewSessions(o),
		look.NewFences(o),
		live.NewTop(o),
		live.NewWatch(o),
		look.NewHistory(o),
		explain.NewVerify(o),
		act.NewRecord(o),
		act.NewBreak(o),
		act.NewPrune(o),
		act.NewGuard(o),
		explain.NewDoctor(o),
		serve.New(o),
		run.New(o),
		run.NewMinder(),
		demo.New(o),
		demo.NewWorker(),
		newVersion(o),
	)
	root.InitDefaultCompletionCmd()
	o.Completes(root)
	cli.Arguments(root)
	return root
}
