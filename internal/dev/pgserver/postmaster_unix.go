//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// errPortTaken: the start failed because somebody else has the port.
var errPortTaken = errors.New("the port is taken")

const (
	lowestPort, highestPort = 20000, 32000
	portAttempts            = 10
	pollEvery               = 5 * time.Millisecond
)

// startOnFreePort chooses a port, and another if somebody has it. The ports are below those that systems give to
// outgoing connections. Otherwise a client that tries to reach a killed server could get that very port for its own
// end, connect to itself, and keep the server from coming back.
func (p *process) startOnFreePort(ctx context.Context) (err error) {
	for range portAttempts {
		p.port = lowestPort + rand.IntN(highestPort-lowestPort)
		if err = p.startPostmaster(ctx); !errors.Is(err, errPortTaken) {
			break
		}
	}
	return err
}

// startPostmaster starts the server on p.port and returns when it takes connections. The postmaster is a child of this
// process, which waits for it.
func (p *process) startPostmaster(ctx context.Context) error {
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	defer log.Close()
	// The life of the server is not bound to ctx.
	cmd := p.command(context.WithoutCancel(ctx), p.programs.Path("postgres"), "-D", p.data, "-p", strconv.Itoa(p.port))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("pgserver: start %s: %w", cmd.Path, err)
	}
	pm := &postmaster{pid: cmd.Process.Pid, done: make(chan struct{})}
	go func() {
		defer close(pm.done)
		_ = cmd.Wait() // its log shows how it ended
	}()
	p.latest.Store(pm)
	if _, err = fmt.Fprintln(p.minder.pipe, pm.pid); err == nil {
		err = p.awaitReady(ctx, pm)
	}
	if err == nil {
		return nil
	}
	if endErr := p.end(pm, syscall.SIGQUIT); endErr != nil {
		return errors.Join(err, endErr)
	}
	content, _ := os.ReadFile(p.log) // the error is clear without it
	said := lastLines(string(content))
	if strings.Contains(said, "could not bind") || strings.Contains(said, "could not create any TCP/IP sockets") {
		err = errPortTaken
	}
	return fmt.Errorf("pgserver: start on port %d: %w\n%s", p.port, err, said)
}

// awaitReady waits until the lock file says that this very postmaster takes connections: a mere connection might
// reach another server.
func (p *process) awaitReady(ctx context.Context, pm *postmaster) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		// The process is in the first line, its state in the eighth.
		content, _ := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
		lines := strings.Split(string(content), "\n")
		if len(lines) >= 8 && lines[0] == strconv.Itoa(pm.pid) && strings.TrimSpace(lines[7]) == "ready" {
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

// ended reports whether the postmaster has ended, or does within d.
func (pm *postmaster) ended(d time.Duration) bool {
	select {
	case <-pm.done:
	case <-time.After(d):
	}
	select {
	case <-pm.done:
		return true
	default:
		return false
	}
}
