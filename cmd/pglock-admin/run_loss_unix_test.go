//go:build unix

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// stubborn says when it gets TERM, and goes on. A child of its ignores it in silence.
const stubborn = `trap 'echo asked' TERM; (trap '' TERM; exec sleep 60) & echo $!; echo $$; ` + idle

// idle makes a shell wait until its end. A signal that it traps does not wait for that.
const idle = `while :; do sleep 0.5 & wait $!; done`

func TestACommandWhoseLockIsBrokenGetsTermAndThenKill(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a --ttl 9s --kill-after 3s", sh(stubborn))...)
	pids := []int{p.number(t), p.number(t)}
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	broken := time.Now()
	p.says(t, "asked")
	asked := time.Now()
	p.ends(t, run.ExitLost, "somebody has broken lock a; COMMAND gets TERM", "somebody has broken lock a; COMMAND was "+
		"ended by signal 9 (killed)", "try: the same command again")
	killed := time.Now()
	wantGone(t, pids...)
	// A heartbeat notices it in 3 s. What is more, or less between TERM and KILL, is what a busy machine may add.
	notice, took := asked.Sub(broken), killed.Sub(asked)
	if notice > 15*time.Second || took < 300*time.Millisecond || took > 15*time.Second {
		t.Errorf("TERM came after %v, and KILL %v later", notice, took)
	}
}

func TestACommandWhoseLockIsBrokenMayEndByItself(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a --ttl 9s", sh(`trap 'echo tidy; exit 0' TERM; echo $$; `+idle))...)
	p.number(t)
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	p.says(t, "tidy")
	p.ends(t, run.ExitLost, "COMMAND has ended with exit code 0")
}

// lives follows a process from outside, and tells when it has ended.
func lives(t *testing.T, pid int) <-chan time.Time {
	t.Helper()
	ended := must.Go(func() time.Time {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); !gone(pid) && time.Now().Before(deadline); <-tick.C {
		}
		return time.Now()
	})
	return ended
}

// The server's clock is this machine's.
func leaseEnd(t *testing.T, db *pgtest.DB, name string) time.Time {
	t.Helper()
	return ask[time.Time](t, db, "SELECT expires_at FROM pglock.get_lock($1)", name)
}

// inTime tries thrice what is right by less than a second, for this machine may stand still for as long.
func inTime(t *testing.T, try func() error) {
	t.Helper()
	for tries := 1; ; tries++ {
		err := try()
		if err == nil {
			return
		}
		if tries == 3 {
			t.Fatal(err)
		}
		t.Log(err)
	}
}

// lasting is a TTL whose margin, after which the holder does not trust the lease, is the longest: a second.
const lasting = 20 * time.Second

func TestI7_ACommandIsDeadBeforeTheLeaseEndsAlsoWhenRunIsStopped(t *testing.T) {
	db := pgtest.Parallel(t)
	inTime(t, func() error { return deadWhenRunIsStopped(t, db) })
}

func deadWhenRunIsStopped(t *testing.T, db *pgtest.DB) error {
	t.Helper()
	p := running(t, db.URL(), line("a --kill-after 2s --ttl "+lasting.String(), sh(stubborn))...)
	child, command := p.number(t), p.number(t)
	p.signal(t, syscall.SIGSTOP)
	awaitStopped(t, p.cmd.Process.Pid)
	ends := leaseEnd(t, db, "a")
	p.says(t, "asked")
	asked := time.Now()
	childEnds, commandEnds := lives(t, child), lives(t, command)
	killed := <-commandEnds
	if last := <-childEnds; last.After(killed) {
		killed = last
	}
	t.Logf("TERM %v, KILL %v before the lease ended on the server", ends.Sub(asked), ends.Sub(killed))
	p.signal(t, syscall.SIGCONT)
	p.ends(t, run.ExitLost, "COMMAND was ended by signal 9 (killed)")
	if !killed.Before(ends) || ends.Sub(killed) > 2*time.Second || killed.Sub(asked) < time.Second {
		return fmt.Errorf("TERM at %v, dead at %v, and the lease ended at %v", asked, killed, ends)
	}
	return nil
}

// When the whole machine stood still, the minder is the first to act.
func TestACommandIsKilledWhenRunAndItsMinderWakeUpTooLate(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(),
		line("a --ttl 6s", sh(`trap '' TERM; echo $PPID; echo $$; while :; do echo alive; sleep 0.05; done`))...)
	minder, command := p.number(t), p.number(t)
	for _, pid := range []int{command, p.cmd.Process.Pid, minder} {
		must.Do(t, syscall.Kill(pid, syscall.SIGSTOP))
		awaitStopped(t, pid)
	}
	next := running(t, db.URL(), line("a --holder next", sh("echo next; read line"))...)
	next.says(t, "next") // after the expiry
	woken := time.Now()
	ended := lives(t, command)
	for _, pid := range []int{p.cmd.Process.Pid, minder} {
		must.Do(t, syscall.Kill(pid, syscall.SIGCONT))
	}
	if err := syscall.Kill(command, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	t.Logf("killed %v after waking up", (<-ended).Sub(woken))
	since := cli.Moment(ask[time.Time](t, db, "SELECT acquired_at FROM pglock.get_lock('a')"))
	p.ends(t, run.ExitLost, "the program did not run for about ", "; next has held it since "+since+"; COMMAND was")
	next.goesOn(t)
	next.ends(t, 0)
}

func TestACommandIsKilledByRunWhenTheMinderIsStopped(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a --ttl 6s", sh(`trap '' TERM; trap 'echo here' USR1; echo $PPID; echo $$; `+
		idle))...)
	minder, command := p.number(t), p.number(t)
	p.signal(t, syscall.SIGUSR1) // through the minder, which has told before that the command runs
	p.says(t, "here")
	must.Do(t, syscall.Kill(minder, syscall.SIGSTOP))
	awaitStopped(t, minder)
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	p.ends(t, run.ExitLost, "COMMAND was killed")
	wantGone(t, command, minder)
}

func TestI7_ACommandIsDeadBeforeTheLeaseEndsWhenTheServerIsAway(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	url := server.URL()
	must.Do(t, migrations.Up(t.Context(), url))
	inTime(t, func() error {
		err := deadBeforeTheLeaseEnds(t, url, func() {
			must.Do(t, server.Kill())
		})
		if err != nil {
			must.Do(t, server.Restart(t.Context()))
		}
		return err
	})
}

func TestI7_ACommandIsDeadBeforeTheLeaseEndsWhenTheNetworkIsCutInSilence(t *testing.T) {
	db := pgtest.Parallel(t)
	inTime(t, func() error {
		address, cut := silentWay(t, db.URL())
		return deadBeforeTheLeaseEnds(t, address, cut)
	})
}

func TestACommandThatEndsWhileTheServerIsAwayKeepsItsExitCode(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	flags := "--ttl 1m --timeout 1s "
	plain := running(t, server.URL(), line(flags+"a", sh("echo ready; read line; exit 4"))...)
	once := running(t, server.URL(), line(flags+"b --once k", sh("echo ready; read line"))...)
	plain.says(t, "ready")
	once.says(t, "ready")
	must.Do(t, server.Kill())
	plain.goesOn(t)
	once.goesOn(t)
	plain.ends(t, 4, "it is unknown whether lock a was released: ", "it is free in 1m at the latest")
	once.ends(t, run.ExitUnmarked, `COMMAND has succeeded, but "b k" is not recorded as done: `)
}

// A key is recorded when the server is back, while the lease lasts.
func TestASuccessIsRecordedWhenTheServerIsBack(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	p := running(t, server.URL(), line("a --once k --ttl 1m", sh("echo ready; read line"))...)
	p.says(t, "ready")
	must.Do(t, server.Kill())
	p.goesOn(t)
	time.Sleep(300 * time.Millisecond) // for a first attempt, which fails
	must.Do(t, server.Restart(t.Context()))
	p.ends(t, 0)
	running(t, server.URL(), line("a --once k", sh("echo never"))...).ends(t, run.ExitDone)
}

// A server that is silent keeps run for no longer than its steps may take.
func TestRunEndsThoughTheServerIsSilent(t *testing.T) {
	t.Parallel()
	address, cut := silentWay(t, pgtest.Database(t).URL())
	p := running(t, address, line("a --ttl 1m --timeout 3s", sh("echo ready; read line; exit 4"))...)
	p.says(t, "ready")
	cut()
	began := time.Now()
	p.goesOn(t)
	p.ends(t, 4, "it is unknown whether lock a was released: ")
	if took := time.Since(began); took > 40*time.Second { // of the minute that the lease has
		t.Errorf("it took %v", took)
	}
}

// deadBeforeTheLeaseEnds runs a command that ignores TERM, and makes renewals fail.
func deadBeforeTheLeaseEnds(t *testing.T, url string, fail func()) error {
	t.Helper()
	p := running(t, url, line("a --kill-after 2s --ttl "+lasting.String(), sh(stubborn))...)
	child, command := p.number(t), p.number(t)
	fail()
	began := time.Now() // none of the renewals came later
	p.says(t, "asked")
	asked := time.Now()
	childEnds, commandEnds := lives(t, child), lives(t, command)
	killed := <-commandEnds
	if last := <-childEnds; last.After(killed) {
		killed = last
	}
	p.ends(t, run.ExitLost, "the lease of lock a has not been renewed, and ends soon; COMMAND gets TERM, and KILL in "+
		"2s",
		"the lease of lock a was not renewed in time", "COMMAND was ended by signal 9")
	if lived := killed.Sub(began); lived > lasting || killed.Sub(asked) < time.Second {
		return fmt.Errorf("the command was dead %v after the last renewal, TERM came %v before", lived,
			killed.Sub(asked))
	}
	return nil
}

// silentWay is a way to the database that passes nothing on any more, and closes no connection, after cut.
func silentWay(t *testing.T, address string) (way string, cut func()) {
	t.Helper()
	u := must.Get(url.Parse(address))(t)
	server := u.Host
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	u.Host = l.Addr().String()
	var silent atomic.Bool
	var all sync.WaitGroup
	pass := func(to io.WriteCloser, from io.Reader) {
		defer to.Close()
		for buffer := make([]byte, 1<<16); ; {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if !silent.Load() {
				_, _ = to.Write(buffer[:n])
			}
		}
	}
	all.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				client.Close()
				continue
			}
			all.Go(func() { pass(upstream, client) })
			all.Go(func() { pass(client, upstream) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		all.Wait() // run has ended, and its connections with it
	})
	return u.String(), func() { silent.Store(true) }
}

func TestACommandRunsForAsLongAsItsLeaseIsRenewed(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(), line("a --ttl 6s", sh(`echo ready; read line; echo "still here"`))...)
	p.says(t, "ready")
	first, conn := leaseEnd(t, db, "a"), db.Conn(t)
	pgtest.Eventually(t, "the lease has outlived its first end", func() (over bool) {
		must.Do(t, conn.QueryRow(t.Context(),
			"SELECT held AND clock_timestamp() > $1::timestamptz + interval '500 ms' "+
				"FROM pglock.get_lock('a')", first).Scan(&over))
		return over
	})
	p.goesOn(t)
	p.says(t, "still here")
	p.ends(t, 0)
}

// unread makes the standard error of a run that is prepared: a pipe that nobody reads. It gives both of its ends.
func (p *errandProcess) unread(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = reader.Close(), writer.Close() })
	p.cmd.Stderr = writer
	return reader, writer
}

func TestRunActsBeforeItSpeaksToAReaderWhoIsGone(t *testing.T) {
	db := pgtest.Parallel(t)
	// A shell may say that its sleep was terminated, and would die of that.
	p := prepared(t, db.URL(), line("a --ttl 9s", sh(`sh -c 'kill -PIPE $$'; echo "$? by a broken pipe"
		exec 2> /dev/null; trap 'echo tidy; exit 0' TERM; echo ready; `+idle))...)
	reader, _ := p.unread(t)
	_ = reader.Close()
	p.start(t)
	p.says(t, "141 by a broken pipe") // the command does not bear it
	p.says(t, "ready")
	in(t, db.URL(), "break", "a", "--reason", "test").want(t, cli.ExitOK)
	p.says(t, "tidy")
	p.ends(t, run.ExitLost)

	p = prepared(t, db.URL(), line("b --once k", sh(leftover))...)
	reader, _ = p.unread(t)
	_ = reader.Close()
	p.start(t)
	p.ends(t, 0)
	running(t, db.URL(), line("b --once k", sh("echo never"))...).ends(t, run.ExitDone)
}

// leftover leaves a process that ignores TERM.
const leftover = `(trap "" TERM; exec sleep 60) & exit 0`

// A terminal after Ctrl-S is such a reader.
func TestRunReleasesTheLockThoughNobodyReadsWhatItSays(t *testing.T) {
	db := pgtest.Parallel(t)
	p := prepared(t, db.URL(), line("a --once k --kill-after 100ms", sh("read line; "+leftover))...)
	_, writer := p.unread(t)
	_ = writer.SetWriteDeadline(time.Now().Add(time.Second)) // a pipe has one
	if n, err := writer.Write(make([]byte, 1<<22)); n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe takes %d bytes: %v", n, err)
	}
	p.start(t)
	p.goesOn(t)
	p.ends(t, 0)
	running(t, db.URL(), line("a --once k", sh("echo never"))...).ends(t, run.ExitDone)
}
