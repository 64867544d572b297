//go:build unix

package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestRunGivesItsCommandTheLeaseAndItsOwnFiles(t *testing.T) {
	db := pgtest.Parallel(t)
	p := prepared(t, db.URL(), line("a#b --limit 3 --holder tester", sh(`
		echo "$PGLOCK_NAME|$PGLOCK_RESOURCE|$PGLOCK_SLOT|$PGLOCK_SCHEMA|$PGLOCK_KEY|$ONE"
		echo "$PGLOCK_TOKEN"
		echo "$PGLOCK_GRANT_ID $PGLOCK_DATABASE_ID"
		read line; echo "it reads $line"; echo "it complains" >&2; kill -HUP $$; echo "nohup is as before"`))...)
	p.cmd.Env = append(p.cmd.Env, "ONE=of these", "PGLOCK_KEY=of another run")
	p.cmd.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$0" "$@"`, p.cmd.Path}, p.cmd.Args[1:]...)
	p.cmd.Path = "/bin/sh"
	p.start(t)
	p.says(t, "a#b|a#b#1|1|pglock||of these")
	token := p.number(t)
	secrets := strings.Fields(p.line(t))
	for _, id := range secrets {
		if len(id) != 36 {
			t.Errorf("%q is no UUID", id)
		}
	}
	v := decode[look.ShowView](t, in(t, db.URL(), "show", "a#b", "-o", "json").want(t, cli.ExitOK).stdout)
	if len(v.Holders) != 1 || int(v.Holders[0].Token) != token || v.Holders[0].Holder != "tester" ||
		v.Holders[0].Limit != 3 {
		t.Errorf("%+v, want token %d", v, token)
	}
	if secrets[1] != ask[string](t, db, "SELECT pglock.database_id()::text") {
		t.Error("another database ID")
	}
	p.goesOn(t)
	p.says(t, "it reads go")
	p.says(t, "nohup is as before")
	p.ends(t, 0, "it complains\n")
}

func TestRunSaysThatARowIsLockedOfALockThatNobodyHolds(t *testing.T) {
	db := pgtest.Parallel(t)
	running(t, db.URL(), line("a", sh("exit"))...).ends(t, 0)
	psql := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM pglock.locks WHERE name = 'a' FOR UPDATE"} {
		if state := written(t, psql, sql); state != "" {
			t.Fatal(state)
		}
	}
	p := running(t, db.URL(), line("a --try", sh("echo never"))...)
	p.ends(t, run.ExitHeld, "nobody holds lock a, and it is not free: a transaction has locked its row, or",
		"; pglock-admin why a tells more")
}

func TestOneOfTwoRunsHasTheLockAndTheOtherIsTold(t *testing.T) {
	db := pgtest.Parallel(t)
	first := running(t, db.URL(), line("a", sh("echo at work; read line; echo done"))...)
	first.says(t, "at work")
	for flags, code := range map[string]int{
		"--try": run.ExitHeld, "--wait 0s": run.ExitHeld, "--wait 100ms": run.ExitHeld, "--try --held-exit-code 0": 0,
		"--try --held-exit-code 1": 1,
	} {
		p := running(t, db.URL(), line("a "+flags, sh("echo never"))...)
		if out := p.ends(t, code, "lock a is held by ", "/sh[", "with token 1; COMMAND has not run",
			"try: --wait "); out != "" {
			t.Errorf("with %s the command says %q", flags, out)
		}
		quiet := running(t, db.URL(), line("a --quiet "+flags, sh("echo never"))...)
		if out := quiet.ends(t, code); out != "" || quiet.stderr.String() != "" {
			t.Errorf("with --quiet %s: %q, %s", flags, out, quiet.stderr.String())
		}
	}
	next := running(t, db.URL(), line("a", sh("echo my turn"))...)
	queued(t, db, "a", 1)
	first.goesOn(t)
	first.says(t, "done")
	next.says(t, "my turn")
	next.ends(t, 0)
	first.ends(t, 0)
}

func TestRunPassesSignalsOnAndTheSecondRequestToEndKills(t *testing.T) {
	db := pgtest.Parallel(t)
	// A shell that begins to read just when the signal arrives would read first, so these do not read.
	for name, s := range map[string]syscall.Signal{
		"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
	} {
		if !pgtest.Among(name, "HUP", "QUIT", "USR2") {
			continue // the others come below
		}
		p := running(t, db.URL(),
			line("sig --try", sh(`trap 'echo got `+name+`; exit 42' `+name+
				`; echo ready; while :; do sleep 0.05; done`))...)
		p.says(t, "ready")
		p.signal(t, s)
		p.says(t, "got "+name)
		p.ends(t, 42)
	}
	var p *errandProcess
	for tries := 5; ; tries-- {
		p = running(t, db.URL(), line("sig --try", sh(`
			trap 'echo not now; asked=1' INT TERM; trap 'echo still here' USR1; echo ready; until [ "$asked" ]; do sleep 0.05; done
			read line; echo "$line on"; while :; do sleep 0.05; done`))...)
		p.says(t, "ready")
		p.signal(t, syscall.SIGTERM)
		p.says(t, "not now")
		p.signal(t, syscall.SIGTERM) // the same request, as timeout(1) sends it, unless this machine stands still
		_, _ = io.WriteString(p.stdin, "go\n")
		if text, _ := p.stdout.ReadString('\n'); text == "go on\n" {
			p.signal(t, syscall.SIGUSR1) // of two signals that are under way, either may come first
			if text, _ = p.stdout.ReadString('\n'); text == "still here\n" {
				p.signal(t, syscall.SIGUSR1) // it comes after the second request
				text, _ = p.stdout.ReadString('\n')
			}
			if text == "still here\n" {
				break
			}
		}
		p.ends(t, run.ExitSignal+9)
		if tries == 0 {
			t.Fatal("a request that comes twice at once kills the command")
		}
	}
	p.signal(t, syscall.SIGINT)
	p.ends(t, run.ExitSignal+9)
	p = running(t, db.URL(), line("sig --try", sh(`echo $$; kill -STOP $$; echo goes on`))...)
	awaitStopped(t, p.number(t))
	p.signal(t, syscall.SIGTERM)
	p.ends(t, run.ExitSignal+15)
}

// awaitStopped waits until a process was stopped.
func awaitStopped(t *testing.T, pid int) {
	t.Helper()
	pgtest.Eventually(t, "the process is stopped", func() bool { return stateOfProcess(pid) == "T" })
}

func TestASignalEndsTheWaitForTheLock(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "somebody", "a")
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1} {
		p := running(t, db.URL(), line("a", sh("echo never"))...)
		queued(t, db, "a", 1)
		p.signal(t, s)
		if out := p.ends(t, run.ExitSignal+int(s), "COMMAND has not run"); out != "" {
			t.Errorf("the command says %q", out)
		}
		if n := ask[int](t, db, "SELECT count(*) FROM pglock.list_waiters('a')"); n != 0 {
			t.Errorf("%d are left in the queue", n)
		}
	}
}

func TestASignalEndsTheQuestionWhetherTheKeyIsDone(t *testing.T) {
	db := pgtest.Parallel(t)
	slow := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(slow.Exec(t.Context(), `LOCK TABLE pglock.done_keys IN SHARE ROW EXCLUSIVE MODE`))(t)
	p := running(t, db.URL(), line("a --once k --timeout 1m", sh("echo never"))...)
	pgtest.Eventually(t, "run asks whether the key is done", func() bool {
		return ask[bool](t, db,
			`SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'pglock.done_keys'::regclass AND NOT granted)`)
	})
	p.signal(t, syscall.SIGTERM)
	if out := p.ends(t, run.ExitSignal+15, "interrupted by terminated; COMMAND has not run"); out != "" {
		t.Errorf("the command says %q", out)
	}
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
	must.Do(t, slow.Rollback(t.Context()))
}

func TestWhatTheCommandLeavesRunningEndsBeforeTheLockIsFree(t *testing.T) {
	db := pgtest.Parallel(t)
	// The one that stays says when it was asked to end, and goes on until it is killed.
	p := running(t, db.URL(), line("a --ttl 6s --kill-after 1s", sh(`
		(trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done) & echo $!
		read line; exit 5`))...)
	var left int
	for range 2 {
		if text := p.line(t); text != "ready" {
			left, _ = strconv.Atoi(text)
		}
	}
	next := running(t, db.URL(),
		line("a", sh(fmt.Sprintf("echo begins; kill -0 %d 2>/dev/null && echo overlaps; exit 0", left)))...)
	queued(t, db, "a", 1)
	begin := time.Now()
	p.goesOn(t)
	p.says(t, "asked")
	next.says(t, "begins")
	if took := time.Since(begin); took < time.Second {
		t.Errorf("the next began after %v, while the one that was left had a second", took)
	}
	if out := next.ends(t, 0); out != "" {
		t.Error(out)
	}
	p.ends(t, 5, "COMMAND has ended and left processes running; they get TERM, and KILL in 1s")
	wantGone(t, left)
}

func TestNothingOutlivesARunThatIsKilled(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(),
		line("a", sh(`trap '' TERM; (trap '' TERM; echo $$; while :; do sleep 1; done) & echo $!; read line`))...)
	pids := []int{p.number(t), p.number(t)}
	p.signal(t, syscall.SIGKILL)
	p.ends(t, -1) // the output ends when all of them have ended
	wantGone(t, pids...)
}

func TestTheCommandIsKilledWhenItsMinderIs(t *testing.T) {
	db := pgtest.Parallel(t)
	p := running(t, db.URL(),
		line("a", sh(`trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $!; echo $PPID; read line`))...)
	left, minder := p.number(t), p.number(t)
	if minder == p.cmd.Process.Pid {
		t.Fatal("the command is a child of run itself")
	}
	must.Do(t, syscall.Kill(minder, syscall.SIGKILL))
	p.ends(t, run.ExitRunBase+cli.ExitFailure, "the process that minds COMMAND has ended; COMMAND was killed")
	wantGone(t, left)
	in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
}
