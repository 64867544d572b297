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
)

func main() { os.Exit(mainWithSignals()) }

func mainWithSignals() int {
	ctx := context.Background()
	if heard := heeded(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP); len(heard) > 0 {
		var stop context.CancelFunc
		ctx, stop = signal.NotifyContext(ctx, heard...)
		defer stop()
	}
	return obey(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
}

// obey executes one command line and returns the exit code. The end of ctx interrupts it.
func obey(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o := &options{getenv: getenv}
	root := newRoot(o)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	executed, err := root.ExecuteContextC(ctx)
	var quiet silent
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &quiet):
		return int(quiet)
	}
	p := o.diagnose(ctx, err)
	if isRun(executed) {
		p.Code = runCode(err, p.Code)
	}
	format := o.output
	if !slices.Contains(outputs, format) || format == outputTable {
		format = wanted(args)
	}
	p.print(stderr, format)
	return p.Code
}
