//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A postmaster is one run of the server: the process that owns all others.
type postmaster struct {
	pid  int
	done chan struct{} // closed when it has ended and was waited for
}

// errPortTaken is a start that failed because somebody else has the port.
var errPortTaken = errors.New("the port is taken")

const (
	portAttempts = 10
	pollEvery    = 5 * time.Millisecond
)

// startOnFreePort chooses a port, and another when somebody else was faster.
func (p *process) startOnFreePort(ctx context.Context) error {
	var err error
	for range portAttempts {
		if p.port, err = freePort(); err != nil {
			return err
		}
		if err = p.startPostmaster(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// freePort gives a port below those that systems give to outgoing connections:
// a client that tries to reach a killed server on such a port may be given that
// very port for its own end, connect to itself, and keep the server from
// coming back.
func freePort() (int, error) {
	const lowest, highest = 20000, 32000
	var err error
	for range 100 {
		port := lowest + rand.IntN(highest-lowest)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("pgserver: no free port on 127.0.0.1: %w", err)
}

// startPostmaster starts the server on p.port and returns when it takes
// connections. The postmaster is a child of this process, which waits for it.
func (p *process) startPostmaster(ctx context.Context) error {
	log, err := os.OpenFile(p.folder.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	// The life of the server is not bound to ctx.
	cmd := p.command(context.WithoutCancel(ctx), "postgres", "-D", p.folder.data(), "-p", strconv.Itoa(p.port))
	cmd.Env = append(cmd.Env, p.o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pgserver: start %s: %w", cmd.Path, err)
	}
	pm := &postmaster{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(pm.done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	p.setPostmaster(pm)
	if err := p.minder.mind(pm.pid); err != nil {
		return errors.Join(err, p.end(pm, syscall.SIGQUIT))
	}
	err = p.awaitReady(ctx, pm)
	if err == nil {
		return nil
	}
	if endErr := p.end(pm, syscall.SIGQUIT); endErr != nil {
		return errors.Join(err, endErr)
	}
	said := p.logSince(before.Size())
	if strings.Contains(said, "could not bind") || strings.Contains(said, "could not create any TCP/IP sockets") {
		err = errPortTaken
	}
	return fmt.Errorf("pgserver: start on port %d: %w\n%s", p.port, err, lastLines(said))
}

// awaitReady waits for the lock file to say that this very postmaster takes
// connections: a connection alone might have reached another server.
func (p *process) awaitReady(ctx context.Context, pm *postmaster) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if p.ready(pm.pid) {
			return nil
		}
		select {
		case <-tick.C:
		case <-pm.done:
			return errors.New("the server ended while starting")
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// The lines of postmaster.pid: the process first, its state eighth.
func (p *process) ready(pid int) bool {
	content, err := os.ReadFile(p.folder.pidFile())
	if err != nil {
		return false
	}
	lines := strings.Split(string(content), "\n")
	return len(lines) >= 8 && lines[0] == strconv.Itoa(pid) && strings.TrimSpace(lines[7]) == "ready"
}

func (p *process) logSince(offset int64) string {
	content, err := os.ReadFile(p.folder.log())
	if err != nil {
		return err.Error()
	}
	return string(content[min(offset, int64(len(content))):])
}

func (p *process) setPostmaster(pm *postmaster) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.postmaster = pm
}

func (p *process) latest() *postmaster {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.postmaster
}

func (pm *postmaster) ended() bool {
	select {
	case <-pm.done:
		return true
	default:
		return false
	}
}
