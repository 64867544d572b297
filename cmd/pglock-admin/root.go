package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/lockadmin"
)

// options has the flags of every command.
type options struct {
	databaseURL string
	schema      string
	output      string
	timeout     time.Duration

	getenv  func(string) string
	started bool               // the command line is valid: a later error is not one of usage
	config  *pgxpool.Config    // of a command that connects to a database
	at      *target            // the server and database
	role    string             // that the command needs; empty: pglock_user
	standby *lockadmin.Standby // of a command that only reads; nil: the server is none
}

const defaultSchema = "pglock"

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

// needsSubcommand refuses a command that only groups others.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	return usageErrorf(cmd.CommandPath()+" --help", "%s needs a command", cmd.CommandPath())
}

// oneName checks the arguments of commands about one lock.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageErrorf("pglock-admin "+cmd.Use+`; a name with spaces needs quotes`, "%s takes the name of one "+
			"lock, not %d arguments", cmd.Name(), len(args))
	}
	return nil
}

// upToOneName checks commands that take the name of a lock or none.
func upToOneName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return oneName(cmd, args)
}

// noArguments checks commands that take only flags, and commands that only group others.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		text := "there is no command " + strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "pglock-admin")+" "+
			shellQuote(escapeText(args[0])))
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return usageErrorf(cmd.CommandPath()+" "+strings.Join(near, ", or "+cmd.CommandPath()+" "), "%s", text)
		}
		return usageErrorf(cmd.CommandPath()+" --help", "%s", text)
	}
	return usageErrorf(cmd.CommandPath()+" --help", "%s takes no arguments, and got %q", cmd.CommandPath(), args)
}

// flagError names the flag, its value and the rule.
func flagError(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help"
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &missing):
		return usageErrorf(help, "--%s needs a value: %s", missing.GetFlag().Name, kindOf(missing.GetFlag()))
	case errors.As(err, &invalid):
		rule := "it must be " + kindOf(invalid.GetFlag())
		switch invalid.GetFlag().Value.(type) {
		case durationFlag, wordFlag:
			rule = errors.Unwrap(invalid).Error()
		}
		return usageErrorf(help, "--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), rule)
	}
	return usageErrorf(help, "%v", err)
}

// kindOf names the kind of a flag's value.
func kindOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number"
	case "uint64":
		return "a whole number from 0"
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	case "word":
		return f.Value.(wordFlag).rule()
	}
	return "a " + f.Value.Type()
}

func (o *options) check() error {
	switch {
	case !slices.Contains(outputs, o.output):
		value := o.output
		o.output = outputTable
		return usageErrorf("-o table, -o json or -o yaml", "--output is %q: it must be table, json or yaml", value)
	case o.timeout <= 0:
		return usageErrorf("--timeout 10s", "--timeout is %s: it must be greater than 0", durationText(o.timeout))
	}
	return nil
}
