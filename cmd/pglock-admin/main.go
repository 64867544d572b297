// Command pglock-admin looks after the locks of package pglock: it migrates the schema, shows who holds what, ends the
// lease of a holder that is stuck, runs commands under a lock, and shows a demonstration.
package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
)

func main() { os.Exit(mainWithSignals()) }

func mainWithSignals() int {
	ctx := context.Background()
	heard := cli.Heeded(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	if len(heard) > 0 && !run.CatchesNothing(os.Args[1:]) {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, heard...)
		defer stop()
	}
	return obey(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
}

// obey executes one command line and returns the exit code. The end of ctx interrupts it.
func obey(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o := &cli.Options{Getenv: getenv}
	root := newRoot(o)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	executed, err := root.ExecuteContextC(ctx)
	var quiet cli.Silent
	switch {
	case err == nil:
		return cli.ExitOK
	case errors.As(err, &quiet):
		return int(quiet)
	}
	p := o.Diagnose(ctx, err)
	if run.Is(executed) {
		p.Code = run.Code(err, p.Code)
	}
	format := o.Output
	if !slices.Contains(cli.Outputs, format) || format == cli.OutputTable {
		format = cli.Wanted(args)
	}
	p.Print(stderr, format)
	return p.Code
}
