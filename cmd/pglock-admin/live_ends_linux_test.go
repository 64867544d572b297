package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// gate stands between a program and its server, and can cut the connections.
type gate struct {
	listen net.Listener
	mu     sync.Mutex
	to     string
	shut   bool
	still  chan struct{} // while it is open, nothing passes
	open   map[net.Conn]bool
	joined sync.WaitGroup
}

// newGate gives the connection string that leads through it.
func newGate(t *testing.T, connString string) (*gate, string) {
	t.Helper()
	u := must.Get(url.Parse(connString))(t)
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	g := &gate{to: u.Host, listen: l, open: map[net.Conn]bool{}}
	g.joined.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.joined.Go(func() { g.pass(conn) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.cut(true)
		g.flow()
		g.joined.Wait()
	})
	u.Host = l.Addr().String()
	return g, u.String()
}

func (g *gate) pass(conn net.Conn) {
	defer conn.Close()
	g.mu.Lock()
	to := g.to
	g.mu.Unlock()
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	g.mu.Lock()
	shut := g.shut
	g.open[conn], g.open[server] = true, true
	g.mu.Unlock()
	if shut {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { g.copy(server, conn) })
	both.Go(func() { g.copy(conn, server) })
	both.Wait()
}

func (g *gate) copy(to, from net.Conn) {
	defer to.Close()
	for buffer := make([]byte, 4096); ; {
		n, err := from.Read(buffer)
		g.mu.Lock()
		still := g.still
		g.mu.Unlock()
		if still != nil {
			<-still
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// lead brings new connections to another server.
func (g *gate) lead(to string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.to = to
}

// stall lets nothing pass, as a network that drops every packet.
func (g *gate) stall() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.still = make(chan struct{})
}

// flow lets everything pass again, also what was stalled.
func (g *gate) flow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.still != nil {
		close(g.still)
		g.still = nil
	}
}

// cut ends every connection, and lets new ones through or not.
func (g *gate) cut(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut = shut; shut {
		for conn := range g.open {
			_ = conn.Close()
		}
		clear(g.open)
	}
}

// A screen that shows what it knew does not look like one that knows.
func TestALostConnectionIsShownAndTriedAgain(t *testing.T) {
	t.Parallel()
	atBothSizes(t, func(t *testing.T, columns, lines int) {
		db := pgtest.Database(t)
		hold(t, db, "worker-1", "jobs/a")
		g, through := newGate(t, db.URL())
		for _, args := range [][]string{{"top", "--interval", "200ms"}, {"watch", "jobs/a"}} {
			g.cut(false)
			s := onScreen(t, through, columns, lines, args...)
			s.shows("jobs/a", "every ")
			g.cut(true)
			s.shows("NO ANSWER", "OLD: of ", " ago", "jobs/a")
			hold(t, db, "worker-2", args[0])
			g.cut(false)
			s.until("fresh data", func(text string) bool {
				return strings.Contains(text, "every ") && !strings.Contains(text, "OLD: ") &&
					!strings.Contains(text, "NO ANSWER")
			})
			s.types("q")
			s.ends(cli.ExitOK)
		}
	})
}

// A server that does not answer is asked once at a time, and given up after --timeout.
func TestAServerThatFallsSilentMakesTheScreenOld(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	g, through := newGate(t, db.URL())
	s := onScreen(t, through, 80, 24, "top", "--interval", "100ms", "--timeout", "9s")
	s.shows("jobs/a", "every ")
	g.stall()
	s.shows("No answer yet. This is OLD: of ", "jobs/a")
	g.mu.Lock()
	open := len(g.open) / 2
	g.mu.Unlock()
	if open != 1 {
		t.Errorf("%d connections, want 1: it asks while it waits for an answer", open)
	}
	s.shows("NO ANSWER, trying again", "no answer within 9s (--timeout)")
	g.flow()
	s.types("a") // it would pause for four times as long as it has waited
	s.shows("every ")
	g.stall()
	s.types("q") // does not wait for the server
	began := time.Now()
	s.ends(cli.ExitOK)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to end", took)
	}
}

// silentSoon is how long a command may take to end while the server is silent. The driver waits for 15 s until such a
// server has ended a statement that was given up.
const silentSoon = 8 * time.Second

func TestACommandEndsInTimeThoughTheServerFallsSilent(t *testing.T) {
	t.Parallel()
	for limit, code := range map[string]int{"3s": cli.ExitUnreachable, "1m": cli.ExitInterrupted} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			g, through := newGate(t, db.URL())
			must.Get(db.Conn(t).Exec(t.Context(), "BEGIN; LOCK TABLE pglock.locks"))(t)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			ended := make(chan int, 1)
			go func() {
				ended <- obey(ctx, []string{"list", "--timeout", limit}, environment(through), io.Discard, io.Discard)
			}()
			blocked(t, db)
			g.stall()
			if code == cli.ExitInterrupted {
				interrupt()
			}
			select {
			case got := <-ended:
				if got != code {
					t.Errorf("exit code %d, want %d", got, code)
				}
			case <-time.After(silentSoon):
				t.Error("it does not end")
			}
		})
	}
}

func TestServeEndsInTimeThoughTheServerFallsSilent(t *testing.T) {
	db := pgtest.Parallel(t)
	g, through := newGate(t, db.URL())
	s := serveTo(t, through, nil, io.Discard)
	must.Get(db.Conn(t).Exec(t.Context(), "BEGIN; LOCK TABLE pglock.locks"))(t)
	got := must.Get(s.client.Get(s.url + "api/stream"))(t)
	defer got.Body.Close()
	blocked(t, db)
	g.stall()
	s.endsWithin(silentSoon)
}

func TestAScreenLeavesTheTerminalAsItWas(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	for name, c := range map[string]struct {
		end  func(t *testing.T, s *screen)
		code int
	}{
		"q":       {func(_ *testing.T, s *screen) { s.types("q") }, cli.ExitOK},
		"Ctrl-C":  {func(_ *testing.T, s *screen) { s.types("\x03") }, cli.ExitInterrupted},
		"SIGINT":  {func(t *testing.T, s *screen) { s.signal(syscall.SIGINT) }, cli.ExitInterrupted},
		"SIGTERM": {func(t *testing.T, s *screen) { s.signal(syscall.SIGTERM) }, cli.ExitInterrupted},
		"SIGHUP":  {func(t *testing.T, s *screen) { s.signal(syscall.SIGHUP) }, cli.ExitInterrupted},
		"SIGQUIT": {func(t *testing.T, s *screen) { s.signal(syscall.SIGQUIT) }, cli.ExitInterrupted},
		"Ctrl-C while it asks": {func(_ *testing.T, s *screen) {
			s.types("b")
			s.shows("BREAK THIS LEASE")
			s.types("rea\x03")
		}, cli.ExitInterrupted},
		"SIGTERM while the terminal takes no output": {func(t *testing.T, s *screen) {
			must.Do(t, unix.IoctlSetInt(int(s.slave.Fd()), unix.TCXONC, unix.TCOOFF))
			s.size(100, 30) // so that there is something to write
			time.Sleep(200 * time.Millisecond)
			s.signal(syscall.SIGTERM)
		}, cli.ExitInterrupted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onScreen(t, db.URL(), 80, 24, "watch", "jobs/a")
			s.shows("● worker-1")
			c.end(t, s)
			if strings.Contains(name, "no output") {
				s.exits(c.code)
				if now := s.settings(); *now != *s.before {
					t.Errorf("the settings of the terminal are %+v, and were %+v", now, s.before)
				}
				return
			}
			s.ends(c.code)
		})
	}
}

func TestAScreenEndsWithItsTerminal(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	s := onScreen(t, db.URL(), 80, 24, "watch", "jobs/a")
	s.shows("● worker-1")
	_ = s.slave.Close()
	_ = s.terminal.Close()
	s.exits(cli.ExitInterrupted)

	file := must.Get(os.Executable())(t)
	// as nohup does
	deaf := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `trap '' HUP; exec "$0" "$@"`, file,
		"watch", "jobs/a")
	s = screenOf(t, db.URL(), 80, 24, deaf)
	s.shows("● worker-1")
	_ = s.slave.Close()
	_ = s.terminal.Close()
	s.exits(cli.ExitFailure)
}

// Ctrl-Z and SIGTSTP give the terminal back to the shell, and fg brings the screen back.
func TestAScreenIsSuspendedAndGoesOn(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	file := must.Get(os.Executable())(t)
	shell := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", `set -m
		"$0" watch jobs/a; echo "stopped $?"; stty -a | grep -o ' [-]*echo '; read line
		fg; echo "stopped $?"; read line
		fg; echo "ended $?"`, file)
	s := screenOf(t, db.URL(), 80, 24, shell)
	s.shows("● worker-1")
	s.types("\x1a")
	s.shows("stopped ", " echo")
	s.asItWas()
	s.types("\n")
	s.shows("● worker-1")
	must.Do(t, syscall.Kill(s.child(), syscall.SIGTSTP))
	s.until("the shell", func(text string) bool { return strings.Count(text, "stopped ") == 2 })
	s.asItWas()
	s.types("\n")
	s.shows("● worker-1")
	s.types("q")
	s.shows("ended 0")
	s.ends(cli.ExitOK)
}

// A screen that no shell can continue, as in a container, does not stop.
func TestAScreenWithoutAShellIgnoresCtrlZ(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	s := onScreen(t, db.URL(), 80, 24, "watch", "jobs/a")
	s.shows("● worker-1")
	s.types("\x1ab")
	s.shows("BREAK THIS LEASE")
	s.types("\x1b")
	s.showsNoMore("BREAK")
	s.types("q")
	s.ends(cli.ExitOK)
}

// Somebody who ends the screen in the middle of a break learns that it may be done.
func TestAScreenThatEndsInTheMiddleOfABreakSaysSo(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a")
	tx := must.Get(db.Conn(t).Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), "SELECT FROM pglock.locks WHERE name = 'jobs/a' FOR UPDATE"))(t)
	s := onScreen(t, db.URL(), 120, 40, "watch", "jobs/a")
	s.shows("● worker-1")
	s.types("bstuck\r")
	s.shows("breaking it …")
	s.types("\x1b\r")
	s.types("\x03")
	s.ends(cli.ExitInterrupted)
	s.shows("Token 1: it is unknown whether the lease was broken", "Try: pglock-admin")
	must.Do(t, tx.Rollback(t.Context()))
	if _, err := lease.Check(t.Context()); err != nil {
		t.Errorf("the server went on with what nobody waits for: %v", err)
	}
}

// What the screen has started is joined: the package's check for goroutines would find the rest.
func TestAScreenInThisProcessLeavesNothingRunning(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	for _, end := range []string{"q", "\x03", "the context"} {
		s := emptyScreen(t, 80, 24)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		root := newRoot(&cli.Options{Getenv: environment(db.URL())})
		root.SetArgs([]string{"watch", "jobs/a"})
		root.SetIn(s.slave)
		root.SetOut(s.slave)
		root.SetErr(s.slave)
		go func() { s.ended <- root.ExecuteContext(ctx) }()
		s.shows("● worker-1")
		want := error(cli.Silent(cli.ExitInterrupted))
		switch end {
		case "q":
			want = nil
			fallthrough
		case "\x03":
			s.types(end)
		default:
			cancel()
		}
		select {
		case err := <-s.ended:
			if !errors.Is(err, want) {
				t.Errorf("%q: %v, want %v", end, err, want)
			}
		case <-time.After(patience):
			t.Fatalf("%q does not end it", end)
		}
		s.asItWas()
	}
}
