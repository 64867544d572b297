package run

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// The exit codes of run. Those of the table in exit.go are moved out of the way of the command's.
const (
	ExitRunBase    = 110
	ExitHeld       = 117
	ExitDone       = 118
	ExitLost       = 119
	ExitUnmarked   = 120
	ExitCannotExec = 126
	ExitNoCommand  = 127
	ExitSignal     = 128 // and the number of the signal
)

const runHelp = `Take the lock NAME, run COMMAND, and release the lock. COMMAND inherits standard input, output and error, and run
exits with the exit code of COMMAND.

run renews the lease while COMMAND runs. If it cannot, or if somebody breaks the lock, it ends COMMAND and the
processes that COMMAND has started: first with TERM, then with KILL, before the lease ends. They also end when run
itself is killed. If COMMAND ends and leaves processes running, they get TERM too, and run releases the lock when they
have ended. run passes INT, TERM, HUP, QUIT, USR1 and USR2 on to COMMAND; the second INT or TERM that run gets kills it.
On a terminal Ctrl-C goes to COMMAND alone, which may go on.

COMMAND gets these environment variables: PGLOCK_NAME, PGLOCK_TOKEN, PGLOCK_RESOURCE, PGLOCK_SLOT, PGLOCK_SCHEMA,
PGLOCK_DATABASE_ID, PGLOCK_GRANT_ID, and PGLOCK_KEY with --once. PGLOCK_GRANT_ID is secret: whoever has it can renew,
release and write under the lease. COMMAND needs it to call the SQL function fence.

With --once, run runs COMMAND until it has succeeded once for KEY, such as 2026-11-22. If COMMAND exits with 0, run
records that KEY is done. Otherwise the next run tries again. Each NAME has its own keys: run records NAME, a space and
KEY. The record is kept for ever, unless you give --keep.

--timeout limits each step before and after COMMAND, and not COMMAND.

docs/run.md has examples for cron, systemd and Kubernetes.

Exit codes of run; every other code comes from COMMAND:
  111  failed
  112  the command line or an argument is wrong, or KEY is too old
  114  the server cannot be reached, does not answer in time, has no such database, or is a standby
  115  the schema is missing, older or newer than this program needs, or marked dirty
  116  the database refuses the user, or the user lacks a right
  117  somebody else holds the lock (--held-exit-code)
  118  KEY is done already (--done-exit-code)
  119  the lease was lost; COMMAND has ended, unless the message says otherwise
  120  COMMAND succeeded, but KEY could not be recorded as done
  126  COMMAND cannot be executed
  127  COMMAND was not found
  128+n  signal n ended COMMAND, or ended run before it started COMMAND

With 112, 114 to 118, 126 and 127 COMMAND has not run.`

// errand is what a command line of run asks for.
type errand struct {
	name    string
	command []string
	opts    []pglock.AcquireOption

	ttl, wait, killAfter time.Duration
	try, waits           bool // waits: no longer than wait
	shared, subtree      bool
	limit                int
	holder, metadata     string

	key, of      string
	record       string // NAME and KEY: what is recorded as done, so that each lock has keys of its own
	keep         time.Duration
	once         []fencedstore.Option
	heldCode     int
	doneCode     int
	quiet        bool
	limited      bool
	marks, keeps bool
	ofGiven      bool
	ends         bool // killAfter was given
}

func New(o *cli.Options) *cobra.Command {
	e := &errand{ttl: pglock.DefaultTTL}
	cmd := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARGUMENTS]",
		Short: "Run a command while holding a lock",
		Long:  runHelp,
		Example: `  pglock-admin run nightly-report -- ./report.sh
  pglock-admin run nightly-report --try --quiet -- ./report.sh
  pglock-admin run nightly-report --once "$(date +%F)" -- ./report.sh
  pglock-admin run gpu --limit 4 --wait 10m -- python3 train.py
  pglock-admin run tenants/7 --subtree -- ./move-tenant.sh              and every lock below: tenants/7/...
  pglock-admin run -- "$name" -- ./report.sh                           a name as it is, for scripts`,
		Args:                  runArguments,
		Annotations:           cli.UsesDatabase,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := e.read(cmd, args); err != nil {
				return err
			}
			return runUnderLock(o, cmd, e)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.BoolVar(&e.try, "try", false, "give up at once when somebody else holds the lock")
	cli.DurationVar(flags, &e.wait, "wait", "give up waiting for the lock after this `duration` (default never)")
	flags.BoolVar(&e.shared, "shared", false, "share the lock with others that use --shared")
	flags.BoolVar(&e.subtree, "subtree", false, "take every lock below NAME, too: each that begins with NAME and /")
	flags.IntVar(&e.limit, "limit", 0, "let this `number` of runs hold the lock together; use the same everywhere")
	cli.DurationVar(flags, &e.ttl, "ttl", "`duration` of the lease: how long the lock stays taken after this machine "+
		"dies")
	cli.DurationVar(flags, &e.killAfter, "kill-after",
		"`duration` between TERM and KILL (default a third of --ttl, at most 10s)")
	flags.StringVar(&e.holder, "holder", "", "show this `text` as the holder (default host/command[pid])")
	flags.StringVar(&e.metadata, "metadata", "", "show this `text`, in JSON, with the lock")
	flags.StringVar(&e.key, "once", "", "run COMMAND until it has succeeded once for this `text`, the KEY")
	cli.DurationVar(flags, &e.keep, "keep", "forget KEY after this `duration`, counted from --of (default never)")
	flags.StringVar(&e.of, "of", "",
		"`text` with the time of KEY: 2026-11-22 or 2026-11-22T03:00:00Z (default KEY itself)")
	flags.IntVar(&e.heldCode, "held-exit-code", ExitHeld, "exit with this `number` when somebody else holds the lock")
	flags.IntVar(&e.doneCode, "done-exit-code", ExitDone, "exit with this `number` when KEY is done already")
	flags.BoolVarP(&e.quiet, "quiet", "q", false, "print nothing when somebody else holds the lock, or KEY is done "+
		"already")
	flags.Lookup("kill-after").DefValue = "" // the text has it
	return cmd
}

// runArguments finds the name and the command: NAME -- COMMAND, or -- NAME -- COMMAND.
func runArguments(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	asItIs := dash == 0 && len(args) > 1 && args[1] == "--"
	switch {
	case len(args) == 0 || dash == 0 && !asItIs:
		return cli.UsageErrorf("pglock-admin "+cmd.Use, "run needs the NAME of a lock before --")
	case asItIs && len(args) == 2, !asItIs && dash == len(args), len(args) == 1:
		return cli.UsageErrorf("pglock-admin "+cmd.Use, "run needs a COMMAND after --")
	case dash < 0:
		return cli.UsageErrorf("pglock-admin "+cmd.Use, "run needs -- before the COMMAND")
	case dash > 1:
		return cli.UsageErrorf("pglock-admin "+cmd.Use+`; a name with spaces needs quotes`,
			"run takes the name of one lock, not %d", dash)
	}
	return nil
}

// read checks all that can be checked before anything is done.
func (e *errand) read(cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	e.waits, e.limited, e.ends = given("wait"), given("limit"), given("kill-after")
	e.marks, e.keeps, e.ofGiven = given("once"), given("keep"), given("of")
	var err error
	if e.name, err = cli.NameOf(cmd, args, 0); err != nil {
		return err
	}
	if e.command = args[1:]; cmd.ArgsLenAtDash() == 0 {
		e.command = args[2:]
	}
	if e.command[0] == "" {
		return cli.UsageErrorf("pglock-admin "+cmd.Use, "COMMAND is empty")
	}
	const either = "one of the two"
	switch {
	case e.try && e.waits:
		return cli.UsageErrorf(either, "--try does not wait, and --wait does")
	case e.shared && e.limited:
		return cli.UsageErrorf(either, "--shared lets any number of holders share the lock, and --limit a fixed number")
	case e.subtree && e.limited:
		return cli.UsageErrorf(either, "--subtree takes everything below NAME, and --limit one place of several")
	case e.subtree && slices.Contains(strings.Split(e.name, "/"), ""):
		return cli.UsageErrorf("--subtree with a name such as tenants/7", "NAME is %s: with --subtree it must not "+
			"begin or end with /, nor have two in a row", shown.Name(e.name))
	case e.marks && (e.shared || e.limited):
		return cli.UsageErrorf("--once without --shared and --limit", "--once needs the lock for itself: "+
			"others who share it could run COMMAND for the same KEY at the same time")
	case e.waits && e.wait < 0:
		return cli.UsageErrorf("--wait 10m, or --try", "--wait is %s: it must not be negative",
			shown.Duration(e.wait))
	case !e.marks && (e.keeps || e.ofGiven || given("done-exit-code")):
		return cli.UsageErrorf("--once KEY as well", "--keep, --of and --done-exit-code belong to --once")
	}
	for flag, code := range map[string]int{"held-exit-code": e.heldCode, "done-exit-code": e.doneCode} {
		if code < 0 || code > 255 {
			return cli.UsageErrorf("--"+flag+" 0", "--%s is %d: it must be from 0 to 255", flag, code)
		}
	}
	if p := argument.Text("NAME", e.name, pglock.MaxNameBytes); p != nil {
		return cli.UsageErrorf(cli.PieceOfAdvice("name", p.Rule), "NAME is %s: it must %s", p.Value, p.Rule)
	}
	if err := e.readLease(); err != nil {
		return err
	}
	return e.readKey()
}

// mostKillAfter is how long a command has after TERM where nobody says otherwise.
const mostKillAfter = 10 * time.Second

func (e *errand) readLease() error {
	if e.ttl < pglock.MinTTL || e.ttl > pglock.MaxTTL {
		return cli.UsageErrorf("--ttl 30s", "--ttl is %s: it must be from %s to %s",
			shown.Duration(e.ttl), shown.Duration(pglock.MinTTL), shown.Duration(pglock.MaxTTL))
	}
	third := e.ttl / 3 // a renewal at a third of the TTL has as long again before TERM
	if !e.ends {
		e.killAfter = min(third, mostKillAfter)
	}
	switch {
	case e.killAfter < 0:
		return cli.UsageErrorf("--kill-after 5s", "--kill-after is %s: it must not be negative",
			shown.Duration(e.killAfter))
	case e.killAfter > third:
		return cli.UsageErrorf("--ttl "+shown.Duration((3*e.killAfter+time.Second-1).Truncate(time.Second)),
			"--kill-after is %s: it must be at most a third of --ttl, here %s", shown.Duration(e.killAfter), third)
	}
	e.opts = append(e.opts, pglock.WithTTL(e.ttl))
	if e.shared {
		e.opts = append(e.opts, pglock.WithShared())
	}
	if e.subtree {
		e.opts = append(e.opts, pglock.WithSubtree())
	}
	if e.limited {
		if e.limit < 1 || e.limit > pglock.MaxLimit {
			return cli.UsageErrorf("--limit 4", "--limit is %d: it must be from 1 to %d", e.limit, pglock.MaxLimit)
		}
		e.opts = append(e.opts, pglock.WithLimit(e.limit))
	}
	if e.holder != "" {
		if p := argument.Text("--holder", e.holder, pglock.MaxHolderBytes); p != nil {
			return cli.UsageErrorf(cli.PieceOfAdvice("holder", p.Rule), "--holder is %s: it must %s", p.Value, p.Rule)
		}
		e.opts = append(e.opts, pglock.WithHolder(e.holder))
	}
	if e.metadata != "" {
		if !json.Valid([]byte(e.metadata)) || len(e.metadata) > pglock.MaxMetadataBytes {
			return cli.UsageErrorf(`--metadata '{"job": 4711}'`,
				"--metadata must be JSON of at most %d bytes", pglock.MaxMetadataBytes)
		}
		e.opts = append(e.opts, pglock.WithMetadata([]byte(e.metadata)))
	}
	return nil
}

func (e *errand) readKey() error {
	if !e.marks {
		return nil
	}
	if p := argument.Text("--once", e.key, pglock.MaxNameBytes); p != nil {
		return cli.UsageErrorf(cli.PieceOfAdvice("key", p.Rule), "--once is %s: it must %s", p.Value, p.Rule)
	}
	if e.record = e.name + " " + e.key; len(e.record) > pglock.MaxNameBytes {
		return cli.UsageErrorf("a shorter KEY", "NAME and KEY have %d bytes together: they must have at most %d",
			len(e.record)-1, pglock.MaxNameBytes-1)
	}
	if !e.keeps {
		if e.ofGiven {
			return cli.UsageErrorf("--keep 90d as well", "--of says from when on to keep KEY, and --keep for how long")
		}
		return nil
	}
	if e.keep < time.Second {
		return cli.UsageErrorf("--keep 90d", "--keep is %s: it must be at least 1s", shown.Duration(e.keep))
	}
	if !e.ofGiven {
		e.of = e.key
	}
	moment, err := momentOf(e.of)
	if err != nil && !e.ofGiven {
		return cli.UsageErrorf("--of with the time that KEY belongs to",
			"--keep counts from the time of KEY, and KEY is no time such as 2026-11-22 or 2026-11-22T03:00:00Z")
	} else if err != nil {
		return cli.UsageErrorf("--of 2026-11-22, or --of 2026-11-22T03:00:00Z",
			"--of is %q: it must be a date or a time", e.of)
	}
	e.once = append(e.once, fencedstore.WithRetention(moment, e.keep))
	return nil
}

// momentOf reads a date, which begins in UTC, or a time with its offset.
func momentOf(s string) (t time.Time, err error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339, "2006-01-02T15:04Z07:00", "2006-01-02T15Z07:00"} {
		if t, err = time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	return t, errors.New("no date and no time")
}

// ending is an error with an exit code of run itself.
func ending(code int, hint, format string, args ...any) error {
	err := cli.Errorf(code, hint, format, args...)
	err.Final = true
	return err
}

// Code is the exit code of an error for which run has none of its own.
func Code(err error, code int) int {
	own, is := errors.AsType[*cli.Advised](err)
	if is && own.Final || code < cli.ExitFailure || code > cli.ExitAttention {
		return code
	}
	return ExitRunBase + code
}

// Is says whether this is the command run, of which even a wrong flag has a code of its own.
func Is(cmd *cobra.Command) bool {
	return cmd != nil && cmd.Name() == "run" && strings.HasPrefix(cmd.CommandPath(), "pglock-admin run")
}
