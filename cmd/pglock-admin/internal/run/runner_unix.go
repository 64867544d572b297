//go:build unix

package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/minder"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

type runner struct {
	options *cli.Options
	errand  *errand
	path    string
	lease   *pglock.Lease
	pool    *pgxpool.Pool
	store   *fencedstore.Store
	signals <-chan os.Signal
	note    func(format string, args ...any) bool

	group    *minder.Group
	terminal *terminal
	suspends chan os.Signal
	pid      int
	overdue  bool // TERM was sent because of the lease
	killed   bool
	outlives bool // a KILL
	failed   bool // to start
	stuck    bool // stopped for want of a terminal
	ended    *minder.Event

	request   syscall.Signal // to end, the first: INT or TERM
	requested time.Time
}

// minderPatience is how long a minder may take for what it does at once.
const minderPatience = 2 * time.Second

// run runs the command, and marks its key. What it gives has the exit code.
func (r *runner) run(ctx context.Context) error {
	if r.errand.marks {
		if err := heeding(ctx, r.signals, r.isDone); err != nil {
			return err
		}
	}
	var err error
	r.group, err = minder.Start(minder.Command{
		Minder: []string{minding}, Path: r.path, Args: r.errand.command,
		Env:      r.errand.environment(r.lease.Export()),
		Deadline: r.lease.Deadline(), KillAfter: r.errand.killAfter,
	})
	if err != nil {
		return &cli.Advised{Code: cli.ExitFailure, Hint: cli.Again, Err: err,
			Text: "the process that minds COMMAND cannot be started"}
	}
	r.terminal = openTerminal()
	err = r.watch()
	r.terminal.takeBack()
	if closeErr := r.group.Close(); err == nil && closeErr != nil {
		r.note("the process that minds COMMAND: %s", closeErr)
	}
	switch {
	case err != nil:
		return err
	case r.overdue || errors.Is(r.lease.Err(), pglock.ErrLost):
		return r.lost(r.lease.Err())
	case r.ended.Signal != 0:
		return cli.Silent(ExitSignal + int(r.ended.Signal))
	case r.ended.Code != 0:
		return cli.Silent(r.ended.Code)
	case r.errand.marks:
		return r.mark(ctx)
	}
	return nil
}

// watch goes on until none of the command's group are left.
func (r *runner) watch() error {
	r.suspends = make(chan os.Signal, 1)
	signal.Notify(r.suspends, syscall.SIGTSTP)
	defer signal.Stop(r.suspends)
	tick := time.NewTicker(max(10*time.Millisecond, min(time.Second, r.errand.ttl/20)))
	defer tick.Stop()
	lost, trusted := r.lease.Context().Done(), time.Time{}
	var late <-chan time.Time // when the minder should have killed
	for {
		select {
		case event, there := <-r.group.Events:
			if !there {
				return r.mindless()
			}
			if err := r.learn(event); err != nil || r.ended != nil {
				return err
			}
		case s := <-r.signals:
			r.passOn(s.(syscall.Signal))
		case <-r.suspends:
			r.group.Signal(syscall.SIGTSTP) // run stops when the command has
		case <-lost:
			lost = nil
			r.group.End()
			if !r.overdue {
				r.note("%s; COMMAND gets TERM", r.loss(r.lease.Err()))
			}
			r.overdue = true
			late = time.After(max(0, min(r.errand.killAfter, time.Until(r.lease.Deadline()))) + minderPatience)
		case <-tick.C:
			if deadline := r.lease.Deadline(); deadline.Sub(trusted) > time.Millisecond {
				trusted = deadline
				r.group.Trust(deadline)
			}
		case <-late:
			late = nil
			if !r.killed {
				r.group.Kill(r.pid)
			}
		}
	}
}

func (r *runner) learn(event minder.Event) error {
	switch event.Kind {
	case minder.Failed:
		r.failed = true
		if errors.Is(event.Err, syscall.ETIME) {
			return r.lost(r.lease.Err())
		}
		return cannotExecute(r.options, r.errand.command[0], event.Err)
	case minder.Started:
		r.pid = event.Pid
		r.terminal.give(r.pid)
	case minder.Stopped:
		r.stopped(event.Signal)
	case minder.Ending:
		if !r.overdue {
			r.note("the lease of lock %s has not been renewed, and ends soon; COMMAND gets TERM, and KILL in %s",
				shown.Name(r.errand.name), r.errand.killAfter)
		}
		r.overdue = true
	case minder.Killed:
		r.killed = true
	case minder.Left:
		r.note("COMMAND has ended and left processes running; they get TERM, and KILL in %s", r.errand.killAfter)
	case minder.Ended:
		r.ended = &event
	}
	return nil
}

// mindless is what is left to do when the minder is gone.
func (r *runner) mindless() error {
	if r.pid != 0 {
		_ = syscall.Kill(-r.pid, syscall.SIGKILL) // none may be left
		r.outlives = !awaitEnd(func() bool { return minder.Gone(r.pid) }, r.lease.Deadline())
	}
	if r.overdue {
		return r.lost(r.lease.Err())
	}
	return cli.Errorf(cli.ExitFailure, cli.Again+", if the work can be repeated",
		"the process that minds COMMAND has ended; %s", r.fate())
}

// awaitEnd waits until a group that was killed is gone: while the lease would last without a renewal, and if it has
// ended, for as long as the kernel may take. run may not kill what belongs to another user.
func awaitEnd(gone func() bool, deadline time.Time) bool {
	const longest = 100 * time.Millisecond
	if soonest := time.Now().Add(minderPatience); deadline.Before(soonest) {
		deadline = soonest
	}
	for pause := time.Millisecond; !gone(); pause = min(2*pause, longest) {
		if !time.Now().Before(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// sameRequest is how soon a request to end that comes again is the same one: timeout(1) sends TERM to its command, and
// at once to its process group.
const sameRequest = 500 * time.Millisecond

// passOn sends a signal to the command. The second request to end kills.
func (r *runner) passOn(s syscall.Signal) {
	if s == syscall.SIGINT || s == syscall.SIGTERM {
		now := time.Now()
		if s == r.request && now.Sub(r.requested) < sameRequest {
			return
		}
		if r.request != 0 {
			s = syscall.SIGKILL
		} else {
			r.request, r.requested = s, now
		}
	}
	r.group.Signal(s)
}

// fate is what became of the command when the lease was lost.
func (r *runner) fate() string {
	switch {
	case r.group == nil || r.failed:
		return "COMMAND has not run"
	case r.pid == 0:
		return "nobody knows whether COMMAND was started; if it was, it was killed"
	case r.outlives:
		return "COMMAND was sent KILL, and has not ended"
	case r.ended == nil:
		return "COMMAND was killed"
	case r.ended.Signal != 0:
		return fmt.Sprintf("COMMAND was ended by signal %d (%s)", int(r.ended.Signal), r.ended.Signal)
	}
	return fmt.Sprintf("COMMAND has ended with exit code %d", r.ended.Code)
}
