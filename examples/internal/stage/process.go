package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// workerArgument is the first argument of a process that a story starts.
const workerArgument = "worker"

var errEnded = errors.New("it has ended by itself")

// setup is the first line that a process reads. It comes through the pipe and not as an argument: it may hold a
// password.
type setup struct {
	URL, Schema, Tables, Name string
	Args                      []string
}

// Process is a process that a story has started: this same program, as a worker.
type Process struct {
	Name string

	stage *Stage
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{} // closed when the process has ended

	killed bool  // by end; under stage.mu
	over   bool  // under stage.mu
	err    error // how it ended; under stage.mu
}

// Start starts this program again, as a worker. Stage ends it if nothing else does.
func (s *Stage) Start(name string, args ...string) (*Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	// Not bound to a context: end kills it, on every way out.
	p := &Process{Name: name, stage: s, cmd: exec.Command(program, workerArgument), ended: make(chan struct{})}
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	s.processes = append(s.processes, p)
	go p.listen(stdout) // ends with the process; end waits for it
	line, err := json.Marshal(setup{URL: s.url, Schema: s.Schema, Tables: s.tables(), Name: name, Args: args})
	if err != nil {
		return nil, err
	}
	return p, p.Tell(string(line))
}

// StartAll starts processes with the given names and no arguments.
func (s *Stage) StartAll(names ...string) ([]*Process, error) {
	var all []*Process
	for _, name := range names {
		p, err := s.Start(name)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (p *Process) listen(stdout io.Reader) {
	defer close(p.ended)
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		p.stage.note(func() {
			p.stage.Say(p.Name, "%s", lines.Text())
			p.stage.said = append(p.stage.said, &line{from: p, text: lines.Text()})
		})
	}
	err := p.cmd.Wait()
	p.stage.note(func() {
		p.over, p.err = true, err
		if err != nil && !p.killed {
			p.stage.fail(fmt.Errorf("%s: %w", p.Name, err))
		}
	})
}

// Tell sends the process a line, which Worker.Orders gives it.
func (p *Process) Tell(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("tell %s: %w", p.Name, err)
	}
	return nil
}

// Kill kills the process with SIGKILL: it cannot clean up anything.
func (p *Process) Kill() error {
	p.stage.Say(p.Name, "is KILLED (SIGKILL)")
	return p.end()
}

// Stop lets go of the process: its ctx ends. It waits for its end, which must be an orderly one.
func (p *Process) Stop(ctx context.Context) error {
	_ = p.stdin.Close() // it may have ended by itself
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w", p.Name, p.err)
		}
		return nil
	case <-late.C:
		return fmt.Errorf("%s has not ended for %v", p.Name, patience)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end kills the process and waits for its end.
func (p *Process) end() error {
	p.stage.note(func() { p.killed = true })
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.Name, err)
	}
	<-p.ended
	_ = p.stdin.Close()
	return nil
}
