//go:build unix

package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// player is a worker process as the storyteller sees it.
type player struct {
	name    string // A, B, …
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	reports chan report // closed when the process has finished its output
	ended   chan struct{}
	stderr  bytes.Buffer // read it only after the process has ended
}

// startPlayer starts this program again as a worker. end must be called.
func startPlayer(name string, s setup) (*player, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("demo: find this program: %w", err)
	}
	failed := func(err error) (*player, error) { return nil, fmt.Errorf("demo: start worker %s: %w", name, err) }
	// Not bound to a context: end kills it, however the run ends.
	p := &player{name: name, cmd: exec.Command(program, workerCommand), reports: make(chan report, 16),
		ended: make(chan struct{})}
	p.cmd.SysProcAttr = workerAttributes()
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = time.Second
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return failed(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return failed(err)
	}
	if err := p.cmd.Start(); err != nil {
		return failed(err)
	}
	go func() {
		defer close(p.ended)
		defer close(p.reports)
		receive(json.NewDecoder(stdout), p.reports) // few: the channel has room for all that nobody waits for
		_ = p.cmd.Wait()                            // its output shows how it ended
	}()
	if err := p.send(s); err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

func (p *player) send(message any) error {
	if err := json.NewEncoder(p.stdin).Encode(message); err != nil {
		return fmt.Errorf("demo: tell worker %s: %w", p.name, err)
	}
	return nil
}

// ask sends a command, and waits for the report about it.
func (p *player) ask(ctx context.Context, c command, kinds ...string) (report, error) {
	if err := p.send(c); err != nil {
		return report{}, err
	}
	return p.expect(ctx, patience, kinds...)
}

// expect waits for the next report, which must be of one of the given kinds.
func (p *player) expect(ctx context.Context, patience time.Duration, kinds ...string) (report, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case r, ok := <-p.reports:
		switch {
		case !ok:
			return r, fmt.Errorf("demo: worker %s has ended%s", p.name, p.said())
		case r.Says == saysFailed:
			return r, fmt.Errorf("demo: worker %s: %s", p.name, r.Message)
		}
		if slices.Contains(kinds, r.Says) {
			return r, nil
		}
		return r, fmt.Errorf("%w: worker %s says %q where %q was expected %s", errStory, p.name, r.Says, kinds,
			r.Message)
	case <-late.C:
		return report{}, fmt.Errorf("demo: worker %s did not answer within %v", p.name, patience)
	case <-ctx.Done():
		return report{}, ctx.Err()
	}
}

func (p *player) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("demo: send %v to worker %s: %w", s, p.name, err)
	}
	return nil
}

// end kills the process, stopped or not, and waits for its end.
func (p *player) end() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("demo: end worker %s: %w", p.name, err)
	}
	_ = p.stdin.Close()
	for range p.reports { // what nobody waits for any more
	}
	<-p.ended
	return nil
}

// said is the end of the worker's standard error.
func (p *player) said() string {
	text := p.stderr.String()
	text = strings.TrimSpace(text[max(0, len(text)-2000):])
	return shown.Either(text == "", "", ": "+text)
}
