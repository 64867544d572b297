package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a worker seen from the one who started it.
type Process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines *bufio.Reader
	said  *strings.Builder // standard error
	name  string
}

// Start starts a worker. It is killed when ctx ends; the caller ends it with Wait or Discard.
func Start(ctx context.Context, o Order) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, Role)
	cmd.WaitDelay = 5 * time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end what it has started with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	p := &Process{cmd: cmd, said: new(strings.Builder), name: o.Peer}
	cmd.Stderr = p.said
	if p.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.lines = bufio.NewReaderSize(out, 1<<20)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if err := p.send(o); err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	return p, nil
}

func (p *Process) send(what any) error { return json.NewEncoder(p.stdin).Encode(what) }

// line reads one line that the worker wrote; a worker that ended has none.
func (p *Process) line() ([]byte, error) {
	line, err := p.lines.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("the worker for %s has ended: %w: %s", p.name, err, p.said)
	}
	return line, nil
}

// Kill ends the worker at once.
func (p *Process) Kill() error { return p.cmd.Process.Kill() }

// Discard ends the worker and waits until it is gone.
func (p *Process) Discard() error {
	err := p.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	_ = p.cmd.Wait() // killed, as it should be
	return err
}

// Granted waits until the worker, a holder of W4, has the lock. From then until it ends, sent is called with the time
// of each of its requests, one call at a time; earlier requests are reported too. gone is closed after the last call.
func (p *Process) Granted(sent func(time.Time)) (gone <-chan struct{}, err error) {
	for {
		line, err := p.line()
		if err != nil {
			return nil, err
		}
		if strings.TrimSpace(string(line)) == "granted" {
			break
		}
		tell(line, sent)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			line, err := p.lines.ReadBytes('\n')
			if err != nil {
				return
			}
			tell(line, sent)
		}
	}()
	return done, nil
}

func tell(line []byte, sent func(time.Time)) {
	var ns int64
	if _, err := fmt.Sscanf(string(line), "sent %d", &ns); err == nil {
		sent(time.Unix(0, ns))
	}
}

// Group is workers that share a window.
type Group []*Process

// StartGroup starts one worker for each order.
func StartGroup(ctx context.Context, orders []Order) (g Group, err error) {
	for _, o := range orders {
		p, err := Start(ctx, o)
		if err != nil {
			return nil, errors.Join(err, g.Discard())
		}
		g = append(g, p)
	}
	return g, nil
}

// Discard ends all of them and waits until they are gone.
func (g Group) Discard() error {
	var errs []error
	for _, p := range g {
		errs = append(errs, p.Discard())
	}
	return errors.Join(errs...)
}

// Ready waits until all are ready; one that is not says why.
func (g Group) Ready() error { return g.said("ready") }

// Done waits until all have done their work. They keep open what they have opened until Wait.
func (g Group) Done() error { return g.said("done") }

func (g Group) said(word string) error {
	return g.all(func(_ int, p *Process) error {
		line, err := p.line()
		if err != nil {
			return err
		}
		if string(line) == strconv.Quote(word)+"\n" {
			return nil
		}
		var r Result
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("the worker for %s wrote %q: %w", p.name, line, err)
		}
		return errors.New(r.Error)
	})
}

// Go tells all of them the window.
func (g Group) Go(w Window) error {
	return g.all(func(_ int, p *Process) error { return p.send(w) })
}

// Wait ends all of them, which are done, and has the results.
func (g Group) Wait() ([]Result, error) {
	results := make([]Result, len(g))
	err := g.all(func(i int, p *Process) error {
		err := p.send("end")
		if err == nil {
			var line []byte
			if line, err = p.line(); err == nil {
				err = json.Unmarshal(line, &results[i])
			}
		}
		if err == nil && results[i].Error != "" {
			err = errors.New(results[i].Error)
		}
		closeErr := p.stdin.Close()
		if waitErr := p.cmd.Wait(); err == nil {
			err = errors.Join(closeErr, waitErr)
		}
		return err
	})
	return results, err
}

func (g Group) all(do func(i int, p *Process) error) error {
	errs := make([]error, len(g))
	var all sync.WaitGroup
	for i, p := range g {
		all.Go(func() { errs[i] = do(i, p) })
	}
	all.Wait()
	return errors.Join(errs...)
}
