//go:build unix

// Chaos runs many processes that lock and write with every kind of fault at once, and checks from outside that every
// promise of the library is kept: by its public API, the wire, the server's log and the order of commits.
//
//	go -C integration run ./chaos --seed 7 --duration 10m --faults all
//
// It starts and ends everything that it needs. It exits with 0 when every promise was kept, with 1 and the evidence
// when one was not, with 2 for bad flags, and with 3 when the laboratory itself could not work.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
)

// roleVariable makes this program a worker.
const roleVariable = "PGLOCK_CHAOS_ROLE"

// usage is what --help shows before the flags, and exitCodes what it shows after them.
const (
	usage = `chaos injects every kind of fault into processes that lock and write, their connections and their server, and
checks from outside that every promise of the library is kept.

    go -C integration run ./chaos --seed 7 --duration 10m
    go -C integration run ./chaos --faults all,-cancel,-promote-lossy
    go -C integration run ./chaos --faults late-hints --until-violation --duration 1h
    go -C integration run ./chaos --duration 30m --report /tmp/endurance

It starts its servers and its workers by itself, and ends them. It shows how it goes while it runs, each violation when it
is found, and in the end tables of faults, operations and violations. A folder that is named at the end has the evidence.
The same seed gives the same choices, not the same timing. Flags:

`
	exitCodes = `
Exit codes: 0 every promise was kept; 1 violations; 2 bad flags; 3 the laboratory itself could not work; 130 interrupted.
`
)

// Exit codes.
const (
	exitKept        = 0
	exitViolated    = 1
	exitUsage       = 2
	exitFailed      = 3
	exitInterrupted = 130
)

func main() {
	if os.Getenv(roleVariable) != "" {
		os.Exit(work())
	}
	if err := pgserver.UnsetPG(); err != nil { // the workers inherit this
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(exitFailed)
	}
	ctx, stop := signal.NotifyContext(context.Background(), pgserver.Ending()...)
	defer stop()
	os.Exit(command(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// work is the life of a worker process.
func work() int {
	if err := load.Run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// options are what a run is told.
type options struct {
	seed           uint64
	duration       time.Duration
	faults         []fault
	workers        int
	goroutines     int
	pace           time.Duration // the mean pause of a goroutine between two calls
	stormCalls     int
	crowd          int // long leases
	throng         int // clients
	sessionTTL     time.Duration
	clusterName    string
	oneRound       bool // of the faults; for servers of its own, until each has taken effect
	untilViolation bool
	sweep          bool
	keep           bool
	report         string // folder; "" measures nothing beside
	sampleEvery    time.Duration
	programs       pgprograms.Programs
}

// parse reads the flags. A nil error with done means that there is nothing to run.
func parse(ctx context.Context, args []string, out, problems io.Writer) (o options, done bool, err error) {
	o.sessionTTL, o.sampleEvery = 2*time.Second, 5*time.Second
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.Uint64Var(&o.seed, "seed", 0, "draws which fault comes when and who does what; 0 draws a seed, which is "+
		"printed")
	flags.DurationVar(&o.duration, "duration", time.Minute, "for how long faults are injected")
	flags.IntVar(&o.workers, "workers", 8, "processes, 1 to 64; every other does without prepared statements")
	flags.IntVar(&o.goroutines, "goroutines", 4, "of each process that take locks, 1 to 256")
	flags.DurationVar(&o.pace, "pace", 120*time.Millisecond, "mean pause of a goroutine between two calls")
	flags.IntVar(&o.stormCalls, "storm", 2000, "calls that the fault cancel cancels at once, 1 to 10000")
	flags.IntVar(&o.crowd, "crowd", 3000, "long leases that the fault crowd keeps beside short ones, 1 to 10000")
	flags.IntVar(&o.throng, "throng", 200, "clients that the fault throng has ask for one lock, 1 to 200")
	flags.BoolVar(&o.untilViolation, "until-violation", false, "stop at the first violation")
	flags.BoolVar(&o.sweep, "sweep", false, "in the end wait a minute, sweep the sessions of the dead away, and "+
		"check that nothing is left in the tables")
	flags.BoolVar(&o.keep, "keep", false, "keep the folder with everything that was written down, also when nothing "+
		"was found")
	flags.StringVar(&o.report, "report", "", "folder for report.md and report.svg: measure through the run, spare "+
		"half of the workers from kills, and call it a violation if their memory or goroutines, the connections, or "+
		"tables and indexes grow; that takes three minutes or more")
	flags.StringVar(&o.clusterName, "cluster", ownCluster, "the servers: own, patroni (with a synchronous standby) or "+
		"patroni-async; the latter two have faults of their own and need patroni, etcd and haproxy")
	names := flags.String("faults", "all", "comma-separated names of faults, all or none; a name after a minus is "+
		"left out")
	programs := flags.String("programs", "", "folder of initdb and postgres; default: where they are found, as the "+
		"tests do")
	list := flags.Bool("list", false, "show the faults and the checks, and exit")
	flags.Usage = func() {
		fmt.Fprint(problems, usage)
		flags.PrintDefaults()
		fmt.Fprint(problems, exitCodes)
	}
	if err := flags.Parse(args); err != nil {
		return o, errors.Is(err, flag.ErrHelp), err
	}
	if *list {
		showLists(out, o.clusterName)
		return o, true, nil
	}
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{flags.NArg() > 0, fmt.Sprintf("argument %q: there are flags only", flags.Arg(0))},
		{o.workers < 1 || o.workers > 64, fmt.Sprintf("--workers %d: must be 1 to 64", o.workers)},
		{o.goroutines < 1 || o.goroutines > 256, fmt.Sprintf("--goroutines %d: must be 1 to 256", o.goroutines)},
		{o.stormCalls < 1 || o.stormCalls > 10_000, fmt.Sprintf("--storm %d: must be 1 to 10000", o.stormCalls)},
		{o.crowd < 1 || o.crowd > 10_000, fmt.Sprintf("--crowd %d: must be 1 to 10000", o.crowd)},
		{o.throng < 1 || o.throng > 200, fmt.Sprintf("--throng %d: must be 1 to 200", o.throng)},
		{o.report != "" && o.workers < 2, fmt.Sprintf("--report with --workers %d: must be 2 to 64", o.workers)},
		{o.duration <= 0, fmt.Sprintf("--duration %v: must be positive", o.duration)},
		{!slices.Contains(clusters, o.clusterName), fmt.Sprintf("--cluster %s: must be %s", o.clusterName,
			strings.Join(clusters, ", "))},
		{o.pace <= 0, fmt.Sprintf("--pace %v: must be positive", o.pace)},
	} {
		if rule.broken {
			return o, false, errors.New(rule.text)
		}
	}
	if o.faults, err = selectFaults(*names, faultsOf(o.clusterName)); err != nil {
		return o, false, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64N(1_000_000) + 1
	}
	if *programs != "" {
		o.programs, err = pgprograms.FindIn(ctx, *programs)
		return o, false, err
	}
	o.programs, _, err = pgserver.LocatePrograms(ctx, "", problems)
	return o, false, err
}

// selectFaults reads the value of --faults, names of some of all.
func selectFaults(names string, all []fault) (chosen []fault, err error) {
	for name := range strings.SplitSeq(names, ",") {
		name, without := strings.CutPrefix(strings.TrimSpace(name), "-")
		var group []fault
		switch name {
		case "all":
			group = all
		case "none", "":
		default:
			at := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
			if at < 0 {
				return nil, fmt.Errorf("--faults: %q is no fault; --list shows them", name)
			}
			group = all[at : at+1]
		}
		named := func(f fault) bool {
			return slices.ContainsFunc(group, func(g fault) bool { return g.name == f.name })
		}
		chosen = slices.DeleteFunc(chosen, named)
		if !without {
			chosen = append(chosen, group...)
		}
	}
	return chosen, nil
}

func showLists(out io.Writer, cluster string) {
	fmt.Fprintln(out, "Faults:")
	for _, f := range faultsOf(cluster) {
		fmt.Fprintf(out, "  %-22s %s\n", f.name, f.about)
	}
	fmt.Fprintln(out, "\nChecks:")
	for _, c := range check.Names {
		fmt.Fprintf(out, "  %-22s %s\n", c.Name, c.About)
	}
}

// command is the program. It gives the exit code.
func command(ctx context.Context, args []string, out, problems io.Writer) int {
	o, done, err := parse(ctx, args, out, problems)
	switch {
	case done:
		return exitKept
	case err != nil:
		fmt.Fprintln(problems, "chaos:", err)
		return exitUsage
	}
	result, err := run(ctx, o, newScreen(out), problems)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(problems, "chaos: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(problems, "chaos: the laboratory failed:", err)
		return exitFailed
	case result.violations > 0:
		return exitViolated
	}
	return exitKept
}
