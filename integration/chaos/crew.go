//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
)

// member is a worker, through all its lives, and its line to the server.
type member struct {
	n     int
	line  *wire.Line
	hear  func(history.Event)
	ended func(l *life) // hears of the end of every process
	setup func(who int64) load.Setup

	faults sync.Mutex // held while a fault concerns this worker

	mu   sync.Mutex
	life *life // the present one
}

// life is one process.
type life struct {
	who    int64
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	ended  chan struct{} // closed when the process has ended and all its output was read
	stderr *tail
	ready  <-chan history.Event // comes when it has a client

	mu       sync.Mutex
	expected bool                                  // its end
	said     map[history.Kind][]chan history.Event // who waits for an event of the kind
}

// start begins the next life.
func (m *member) start() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	who := int64(m.n) * history.Lives
	if m.life != nil {
		who = m.life.who + 1
	}
	l := &life{who: who, cmd: exec.Command(program), ended: make(chan struct{}), stderr: &tail{},
		said: make(map[history.Kind][]chan history.Event)}
	l.cmd.Env = append(os.Environ(), roleVariable+"=worker")
	l.cmd.SysProcAttr = workerAttributes()
	l.cmd.Stderr = l.stderr
	l.cmd.WaitDelay = time.Second
	if l.stdin, err = l.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := l.cmd.Start(); err != nil {
		return err
	}
	l.ready = l.next(history.Ready)
	m.life = l
	go func() {
		defer close(l.ended)
		l.listen(out, m.hear)
		_ = l.cmd.Wait() // how it ended is seen in what it said
		m.ended(l)
	}()
	return l.tell(m.setup(who))
}

func (l *life) listen(out io.Reader, hear func(history.Event)) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		var e history.Event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue // cut short by a kill
		}
		hear(e)
		l.mu.Lock()
		for _, c := range l.said[e.Kind] {
			c <- e
		}
		delete(l.said, e.Kind)
		l.mu.Unlock()
	}
}

// next has the next event of the kind when it is heard.
func (l *life) next(kind history.Kind) <-chan history.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := make(chan history.Event, 1)
	l.said[kind] = append(l.said[kind], c)
	return c
}

func (l *life) tell(v any) error {
	line, err := json.Marshal(v)
	if err == nil {
		_, err = l.stdin.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("tell %s: %w", label(l.who), err)
	}
	return nil
}

// await waits for what next has returned. False: it did not come, because the process has ended or the time is over.
func (l *life) await(ctx context.Context, said <-chan history.Event,
	patience time.Duration) (e history.Event, came bool) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case e = <-said:
		return e, true
	case <-l.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case e = <-said: // and then it has ended
		return e, true
	default:
		return e, false
	}
}

func (m *member) now() *life {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.life
}

func (m *member) signal(s syscall.Signal) error {
	if err := m.now().cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to worker %d: %w", s, m.n, err)
	}
	return nil
}

// kill ends the process, stopped or not, and returns when its output has ended.
func (m *member) kill() *life {
	l := m.now()
	if l == nil {
		return nil
	}
	l.expect()
	_ = l.cmd.Process.Kill()
	_ = l.stdin.Close()
	<-l.ended
	return l
}

// expect notes that we cause the end of the process, which comes soon.
func (l *life) expect() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.expected = true
}

func (l *life) isExpected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected
}

// label is the holder's label that the server shows for a process.
func label(who int64) string { return fmt.Sprintf("w%d.%d", who/history.Lives, who%history.Lives) }

// tail keeps the end of what a worker writes to standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - 20_000; n > 0 {
		t.text = t.text[n:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// owns reports whether a label belongs to the process: its own, or that of one of its calls or clients.
func owns(process, label string) bool {
	rest, is := strings.CutPrefix(label, process)
	return is && (rest == "" || rest[0] == '/' || rest[0] == '+')
}
