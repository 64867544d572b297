// Command pglock-admin looks after the locks of package pglock: it migrates the schema, shows who holds what, ends the
// lease of a holder that is stuck, and plays a demonstration.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() { os.Exit(mainWithSignals()) }

func mainWithSignals() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	return run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
}

// run executes one command line and gives the exit code. The end of ctx is an interrupt.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o := &options{getenv: getenv}
	root := newRoot(o)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	p := o.diagnose(ctx, err)
	p.print(stderr, o.output == outputJSON || wantsJSON(args))
	return p.Code
}
