//go:build unix

package main

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// stubborn says when it gets TERM, and goes on. A child of its does the same in silence.
const stubborn = `trap 'echo asked' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo $!; echo $$; while :; do sleep 0.05; done`

func TestACommandWhoseLockIsBrokenGetsTermAndThenKill(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a --ttl 3s --kill-after 500ms", sh(stubborn))...)
	pids := []int{p.number(t), p.number(t)}
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, exitOK)
	broken := time.Now()
	p.says(t, "asked")
	asked := time.Now()
	p.ends(t, exitLost, "somebody has broken lock a; COMMAND gets TERM", "somebody has broken lock a; COMMAND was ended by signal 9 (killed)", "try: the same command again")
	killed := time.Now()
	wantGone(t, pids...)
	if notice, took := asked.Sub(broken), killed.Sub(asked); notice > 2*time.Second || took < 400*time.Millisecond || took > 2*time.Second {
		t.Errorf("TERM came after %v, and KILL %v later", notice, took)
	}
}

func TestACommandWhoseLockIsBrokenMayEndByItself(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a --ttl 600ms", sh(`trap 'echo tidy; exit 0' TERM; echo $$; while :; do sleep 0.05; done`))...)
	p.number(t)
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, exitOK)
	p.says(t, "tidy")
	p.ends(t, exitLost, "COMMAND has ended with exit code 0")
}

// lives follows a process from outside, and tells when it has ended.
func lives(t *testing.T, pid int) <-chan time.Time {
	t.Helper()
	ended := make(chan time.Time, 1)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); !gone(pid) && time.Now().Before(deadline); <-tick.C {
		}
		ended <- time.Now()
	}()
	return ended
}

// The server's clock is this machine's.
func leaseEnd(t *testing.T, db *pgtest.DB, name string) time.Time {
	t.Helper()
	return ask[time.Time](t, db, "SELECT expires_at FROM pglock.get_lock($1)", name)
}

func TestI7_ACommandIsDeadBeforeTheLeaseEndsAlsoWhenRunIsStopped(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a --ttl 3s --kill-after 1s", sh(stubborn))...)
	child, command := p.number(t), p.number(t)
	p.signal(t, syscall.SIGSTOP)
	awaitStopped(t, p.cmd.Process.Pid)
	ends := leaseEnd(t, db, "a")
	childEnds, commandEnds := lives(t, child), lives(t, command)
	p.says(t, "asked")
	asked := time.Now()
	killed := <-commandEnds
	if last := <-childEnds; last.After(killed) {
		killed = last
	}
	t.Logf("TERM %v, KILL %v before the lease ended on the server", ends.Sub(asked), ends.Sub(killed))
	if !killed.Before(ends) || ends.Sub(killed) > time.Second || killed.Sub(asked) < 900*time.Millisecond {
		t.Errorf("TERM at %v, dead at %v, and the lease ended at %v", asked, killed, ends)
	}
	p.signal(t, syscall.SIGCONT)
	p.ends(t, exitLost, "COMMAND was ended by signal 9 (killed)")
}

// When the whole machine stood still, the minder is the first to act.
func TestACommandIsKilledWhenRunAndItsMinderWakeUpTooLate(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a --ttl 1s", sh(`trap '' TERM; echo $PPID; echo $$; while :; do echo alive; sleep 0.05; done`))...)
	minder, command := p.number(t), p.number(t)
	for _, pid := range []int{command, p.cmd.Process.Pid, minder} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		awaitStopped(t, pid)
	}
	next := running(t, db.URL(), line("a", sh("echo next"))...)
	next.says(t, "next") // after the expiry
	next.ends(t, 0)
	woken := time.Now()
	ended := lives(t, command)
	for _, pid := range []int{p.cmd.Process.Pid, minder} {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(command, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	t.Logf("killed %v after waking up", (<-ended).Sub(woken))
	p.ends(t, exitLost)
	if took := time.Since(woken); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestACommandIsKilledByRunWhenTheMinderIsStopped(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := running(t, db.URL(), line("a --ttl 900ms", sh(`trap '' TERM; echo $PPID; echo $$; while :; do sleep 0.05; done`))...)
	minder, command := p.number(t), p.number(t)
	if err := syscall.Kill(minder, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	awaitStopped(t, minder)
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, exitOK)
	p.ends(t, exitLost, "COMMAND was killed")
	wantGone(t, command, minder)
}

func TestI7_ACommandIsDeadBeforeTheLeaseEndsWhenTheServerIsAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	url := server.URL()
	if err := migrations.Up(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	p := running(t, url, line("a --ttl 3s --kill-after 500ms", sh(stubborn))...)
	child, command := p.number(t), p.number(t)
	began := time.Now()
	childEnds, commandEnds := lives(t, child), lives(t, command)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	p.says(t, "asked")
	asked := time.Now()
	killed := <-commandEnds
	if last := <-childEnds; last.After(killed) {
		killed = last
	}
	if lived := killed.Sub(began); lived > 3*time.Second || killed.Sub(asked) < 400*time.Millisecond {
		t.Errorf("the command was dead %v after the server, TERM came %v before", lived, killed.Sub(asked))
	}
	p.ends(t, exitLost, "the lease of lock a has not been renewed, and ends soon; COMMAND gets TERM, and KILL in 500ms",
		"the lease of lock a was not renewed in time", "COMMAND was ended by signal 9")
}
