package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// roleVariable makes the test binary play a worker instead of running tests; its value names the role.
const roleVariable = "PGLOCK_INTEGRATION_ROLE"

// A worker gets its parameters in the environment and reports in lines of JSON on stdout.
type report struct {
	Event string        `json:"event"`
	Token int64         `json:"token,omitempty"`
	Valid bool          `json:"valid,omitempty"`
	Gap   time.Duration `json:"gap,omitempty"`
	Err   string        `json:"err,omitempty"`
	PID   uint32        `json:"pid,omitempty"` // of the backend
	At    time.Time     `json:"at,omitzero"`
}

var roles = map[string]func(ctx context.Context, url string, say func(report)) error{}

func playRole(role string) int {
	f := roles[role]
	if f == nil {
		fmt.Fprintf(os.Stderr, "unknown role %q\n", role)
		return 2
	}
	encoder := json.NewEncoder(os.Stdout)
	if err := f(context.Background(), os.Getenv("PGLOCK_INTEGRATION_URL"), func(r report) {
		_ = encoder.Encode(r)
	}); err != nil {
		_ = encoder.Encode(report{Event: "error", Err: err.Error()})
		return 1
	}
	return 0
}

// process is a worker process.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	reports chan report
}

// startProcess starts a worker; it is killed at the end of the test at the latest.
func startProcess(t *testing.T, role, url string, env ...string) *process {
	t.Helper()
	self := must.Get(os.Executable())(t)
	p := &process{t: t, cmd: exec.Command(self), reports: make(chan report, 1024)}
	p.cmd.Env = append(append(os.Environ(), roleVariable+"="+role, "PGLOCK_INTEGRATION_URL="+url), env...)
	p.cmd.Stderr = os.Stderr
	out := must.Get(p.cmd.StdoutPipe())(t)
	must.Do(t, p.cmd.Start())
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.reports)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				p.reports <- r
			}
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // ends a stopped process too
		for range p.reports {    // a worker that talks a lot must not block its reader
		}
		<-read
		_ = p.cmd.Wait()
	})
	return p
}

// await returns the next report with the event.
func (p *process) await(event string) report { return p.awaitWithin(event, patience) }

func (p *process) awaitWithin(event string, limit time.Duration) report {
	p.t.Helper()
	timeout := time.After(limit)
	for {
		select {
		case r, open := <-p.reports:
			switch {
			case !open:
				p.t.Fatalf("the worker ended before it reported %q", event)
			case r.Event == "error":
				p.t.Fatalf("the worker failed: %s", r.Err)
			case r.Event == event:
				return r
			}
		case <-timeout:
			p.t.Fatalf("the worker did not report %q", event)
		}
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	must.Do(p.t, p.cmd.Process.Signal(s))
}

// zombieVariable tells the zombie role how to hang.
const zombieVariable = "PGLOCK_INTEGRATION_ZOMBIE"

func modeOfZombie() string { return os.Getenv(zombieVariable) }
