package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The bounds of --interval.
const (
	liveInterval      = time.Second
	liveWatchInterval = 500 * time.Millisecond
	liveLeastInterval = 100 * time.Millisecond
	liveMostInterval  = time.Minute
)

// checkLive refuses what a screen cannot do, with the command that can.
func checkLive(o *cli.Options, cmd *cobra.Command, interval time.Duration, instead string) error {
	switch {
	case o.Output != cli.OutputTable:
		return cli.UsageErrorf(instead+" -o "+o.Output, "--output %s means nothing to a screen that moves", o.Output)
	case interval < liveLeastInterval || interval > liveMostInterval:
		return cli.UsageErrorf("--interval 1s", "--interval is %s: it must be from %s to %s",
			shown.Duration(interval), shown.Duration(liveLeastInterval), shown.Duration(liveMostInterval))
	}
	return checkTerminal(o, cli.IsTerminal(cmd.OutOrStdout()) && cli.IsTerminal(cmd.InOrStdin()), instead)
}

func checkTerminal(o *cli.Options, is bool, instead string) error {
	switch {
	case !is:
		return cli.UsageErrorf(instead+", which writes to pipes and files too",
			"this needs a terminal: standard input and output must be one")
	case o.Getenv("TERM") == "dumb":
		return cli.UsageErrorf(instead, "this terminal cannot show a screen: TERM is dumb")
	}
	return nil
}

// live shows a screen until somebody ends it, and returns with the terminal as it was. Where it cannot, it names the
// command to use instead.
func live(o *cli.Options, cmd *cobra.Command, wish liveWish, interval time.Duration, instead string) error {
	if err := checkLive(o, cmd, interval, instead); err != nil {
		return err
	}
	ended, stop := quitting(cmd.Context()) // by a signal
	defer stop()
	ctx, cancel := context.WithCancel(ended)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, o.Config)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(pool)
	reader := &liveReader{o: o, pool: pool, interval: interval, wished: make(chan struct{}, 1)}
	reader.wish.Store(&wish)
	if err := reader.open(ctx); err != nil {
		return err
	}
	begin := reader.read(ctx) // whatever is wrong from the start is told as by other commands
	switch {
	case begin.err != nil:
		return begin.err
	case begin.gone:
		return look.NoSuchLock(o, wish.name, lockadmin.ErrNotFound)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	model := &liveModel{o: o, interval: interval, watching: wish.name != "", ask: reader.ask, wish: wish}
	in, _ := cmd.InOrStdin().(*os.File)
	program := tea.NewProgram(model, tea.WithInput(in), tea.WithOutput(cmd.OutOrStdout()), tea.WithoutSignalHandler())
	var answered atomic.Pointer[liveBroken] // the last break, whose answer perhaps nobody has seen
	model.breakIt = func(b liveBreak) {
		helpers.Go(func() {
			answer := reader.breakLease(ctx, b)
			answered.Store(&answer)
			program.Send(answer)
		})
	}
	suspends := newSuspends(program)
	defer suspends.stop()
	model.suspend = suspends.suspend
	helpers.Go(func() {
		program.Send(begin)
		reader.run(ctx, func(s liveShot) { program.Send(s) })
	})
	var gone bool
	helpers.Go(func() { gone = liveClock(ctx, program, cmd.OutOrStdout()) })
	if err = runProgram(ctx, program, in); errors.Is(err, errTerminalBlocked) {
		return cli.Silent(cli.ExitInterrupted)
	}
	cancel()
	helpers.Wait()
	if last := answered.Load(); last != nil && model.asking != nil && model.asking.sent { // in the middle of a break
		fmt.Fprintln(cmd.ErrOrStderr(), cellLine(last.told()))
	}
	switch {
	case ended.Err() != nil:
		return cli.Silent(cli.ExitInterrupted)
	case errors.Is(err, tea.ErrProgramPanic):
		return &cli.Advised{Text: "the screen failed", Err: err, Code: cli.ExitFailure, Hint: "pglock-admin list" +
			o.Same()}
	case gone || err != nil:
		return &cli.Advised{Text: "the terminal is gone", Err: err, Code: cli.ExitFailure, Hint: cli.Again +
			", at a terminal"}
	case model.code != cli.ExitOK:
		return cli.Silent(model.code)
	}
	return nil
}

func (r *liveReader) open(ctx context.Context) error {
	bounded, cancel := r.o.Bounded(ctx)
	defer cancel()
	var err error
	r.admin, err = r.o.OnPrimary(bounded, r.pool)
	return cli.Because(bounded, r.o.WithRights(bounded, r.pool, err))
}

// liveClock tells the screen the time, and ends it with ctx, or when the terminal is gone, of which it tells.
func liveClock(ctx context.Context, program *tea.Program, out io.Writer) (gone bool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			program.Quit()
			return false
		case now := <-tick.C:
			if !cli.IsTerminal(out) {
				program.Quit()
				return true
			}
			program.Send(liveTick(now))
		}
	}
}

// liveEnding limits how long the end of a screen waits for a terminal that takes no output.
const liveEnding = 2 * time.Second

var errTerminalBlocked = errors.New("the terminal takes no output")

// runProgram returns when the program has ended, and at the latest soon after ctx has. It leaves the settings of the
// terminal as they were.
func runProgram(ctx context.Context, program *tea.Program, in *os.File) error {
	if before, err := term.GetState(in.Fd()); err == nil {
		defer func() { _ = term.Restore(in.Fd(), before) }()
	}
	ended := make(chan error, 1)
	go func() {
		_, err := program.Run()
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(liveEnding):
		go program.Kill() // it blocks where the program does; this process ends without them
		return errTerminalBlocked
	}
}
