package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/term"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

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
func (o *options) checkLive(cmd *cobra.Command, interval time.Duration, instead string) error {
	switch {
	case o.output != outputTable:
		return usageErrorf(instead+" -o "+o.output, "--output %s means nothing to a screen that moves", o.output)
	case interval < liveLeastInterval || interval > liveMostInterval:
		return usageErrorf("--interval 1s", "--interval is %s: it must be from %s to %s",
			durationText(interval), durationText(liveLeastInterval), durationText(liveMostInterval))
	}
	return o.checkTerminal(isTerminal(cmd.OutOrStdout()) && isTerminal(cmd.InOrStdin()), instead)
}

func (o *options) checkTerminal(is bool, instead string) error {
	switch {
	case !is:
		return usageErrorf(instead+", which writes to pipes and files too",
			"this needs a terminal: standard input and output must be one")
	case o.getenv("TERM") == "dumb":
		return usageErrorf(instead, "this terminal cannot show a screen: TERM is dumb")
	}
	return nil
}

// live shows a screen until somebody ends it, and returns with the terminal as it was.
func (o *options) live(cmd *cobra.Command, wish liveWish, interval time.Duration) error {
	ended, stop := quitting(cmd.Context()) // by a signal
	defer stop()
	ctx, cancel := context.WithCancel(ended)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, o.config)
	if err != nil {
		return err
	}
	defer closeSoon(pool)
	reader := &liveReader{o: o, pool: pool, interval: interval, wish: wish, wished: make(chan struct{}, 1)}
	if err := reader.open(ctx); err != nil {
		return err
	}
	begin := reader.read(ctx) // whatever is wrong from the start is told as by other commands
	switch {
	case begin.err != nil:
		return begin.err
	case begin.gone:
		return o.noSuchLock(wish.name, lockadmin.ErrNotFound)
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	model := &liveModel{o: o, interval: interval, watching: wish.name != "", ask: reader.ask, wish: wish}
	in, _ := cmd.InOrStdin().(*os.File)
	program := tea.NewProgram(model, tea.WithInput(in), tea.WithOutput(cmd.OutOrStdout()), tea.WithoutSignalHandler())
	var late []liveBroken // breaks whose answer nobody has seen
	var lateMu sync.Mutex
	model.breakIt = func(b liveBreak) {
		helpers.Go(func() {
			answer := reader.breakLease(ctx, b)
			lateMu.Lock()
			late = append(late, answer)
			lateMu.Unlock()
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
		return silent(exitInterrupted)
	}
	cancel()
	helpers.Wait()
	if model.asking != nil && model.asking.sent && len(late) > 0 { // it ended in the middle of a break
		fmt.Fprintln(cmd.ErrOrStderr(), cellLine(late[len(late)-1].told()))
	}
	switch {
	case ended.Err() != nil:
		return silent(exitInterrupted)
	case errors.Is(err, tea.ErrProgramPanic):
		return &advised{text: "the screen failed", err: err, code: exitFailure, hint: "pglock-admin list" + o.same()}
	case gone || err != nil:
		return &advised{text: "the terminal is gone", err: err, code: exitFailure, hint: again + ", at a terminal"}
	case model.code != exitOK:
		return silent(model.code)
	}
	return nil
}

// open checks the schema.
func (r *liveReader) open(ctx context.Context) error {
	bounded, cancel := r.o.bounded(ctx)
	defer cancel()
	var err error
	r.admin, err = r.o.onPrimary(bounded, r.pool)
	return because(bounded, r.o.withRights(bounded, r.pool, err))
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
			if !isTerminal(out) {
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
