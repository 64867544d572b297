package main

import (
	"time"

	"github.com/spf13/cobra"
)

func newRoot(o *options) *cobra.Command {
	root := &cobra.Command{
		Use:   "pglock-admin",
		Short: "Look after the locks of pglock in a PostgreSQL database",
		Long: `pglock-admin looks after the locks of pglock in a PostgreSQL database. It shows who holds which lock, with which
fencing token and for how long, and who waits for it. It makes the schema, ends the lease of a holder that is stuck,
guards tables, runs commands under a lock, and checks what the server can do for the locks.

--database-url names the database. Without it DATABASE_URL does, and without that the PG* variables (PGHOST, PGUSER,
PGPASSWORD, PGSERVICE, …), as for libpq.

` + namesHelp + `

Write a duration as 90s, 36h, 1d12h, 90d or 2w.

` + exitCodesHelp,
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
		Args:          noArguments,
		RunE:          needsSubcommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return err
			}
			o.started = true
			return o.aim(cmd)
		},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&o.databaseURL, "database-url", "", "connection `string` (default $DATABASE_URL, else the PG* "+
		"variables)")
	flags.StringVar(&o.schema, "schema", defaultSchema, "`name` of the database schema of the locks")
	flags.StringVarP(&o.output, "output", "o", outputTable, "`format` of the output: table, json or yaml")
	o.timeout = 10 * time.Second
	durationVar(flags, &o.timeout, "timeout", "`duration` that the command may take; run: each step of it; demo: not "+
		"used")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpFunc(help)
	root.SetHelpCommand(newHelp())
	root.AddCommand(
		newMigrate(o),
		newList(o),
		newShow(o),
		newWhy(o),
		newWaiters(o),
		newSessions(o),
		newFences(o),
		newTop(o),
		newWatch(o),
		newHistory(o),
		newVerify(o),
		newRecord(o),
		newBreak(o),
		newPrune(o),
		newGuard(o),
		newDoctor(o),
		newServe(o),
		newRun(o),
		newRunMinder(),
		newDemo(o),
		newDemoWorker(),
		newVersion(o),
	)
	root.InitDefaultCompletionCmd()
	o.completes(root)
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args, c.RunE = noArguments, needsSubcommand
		}
	}
	return root
}
