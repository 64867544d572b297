package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/charmbracelet/x/vt"
	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/screens"
)

// screen is a terminal with pglock-admin in it, and an emulator that tells what somebody sees there.
type screen struct {
	t        *testing.T
	terminal *os.File     // the master
	slave    *os.File     // stays open, so that its settings can be read at the end
	emulator *vt.Emulator // under mu, but for what it answers
	cmd      *exec.Cmd
	ended    chan error
	before   *unix.Termios

	changed chan struct{}
	mu      sync.Mutex
	raw     bytes.Buffer // everything that was written to the terminal
	joined  sync.WaitGroup
}

// onScreen starts a command line of pglock-admin in a terminal of that size. It reads the database of url.
func onScreen(t *testing.T, url string, columns, lines int, args ...string) *screen {
	t.Helper()
	file := must.Get(os.Executable())(t)
	return screenOf(t, url, columns, lines, exec.CommandContext(context.WithoutCancel(t.Context()), file, args...))
}

func screenOf(t *testing.T, url string, columns, lines int, cmd *exec.Cmd) *screen {
	t.Helper()
	s := emptyScreen(t, columns, lines)
	s.cmd = cmd
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+url, "TERM=xterm-256color")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.Do(t, cmd.Start())
	go func() { s.ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return s
}

// emptyScreen is a terminal in which nothing runs yet.
func emptyScreen(t *testing.T, columns, lines int) *screen {
	t.Helper()
	master, slave := pseudoTerminal(t)
	s := &screen{t: t, terminal: master, slave: slave, emulator: vt.NewEmulator(columns, lines),
		ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	s.size(columns, lines)
	s.before = s.settings()
	s.joined.Go(func() {
		for buffer := make([]byte, 4096); ; {
			n, err := master.Read(buffer)
			if n > 0 {
				s.mu.Lock()
				s.raw.Write(buffer[:n])
				_, _ = s.emulator.Write(buffer[:n])
				s.mu.Unlock()
				select {
				case s.changed <- struct{}{}:
				default:
				}
			}
			if err != nil {
				return
			}
		}
	})
	s.joined.Go(func() { _, _ = io.Copy(master, s.emulator) }) // what the terminal answers to questions
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
		if pipe, is := s.emulator.InputPipe().(io.Closer); is { // Close itself races with Read
			_ = pipe.Close()
		}
		s.joined.Wait()
	})
	return s
}

// size changes the size of the terminal, of which its program hears by SIGWINCH. What it then draws finds the new size.
func (s *screen) size(columns, lines int) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.emulator.Resize(columns, lines)
	if err := unix.IoctlSetWinsize(int(s.slave.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Col: uint16(columns), Row: uint16(lines)}); err != nil {
		s.t.Fatal(err)
	}
}

// settings are those of the terminal: whether it echoes, edits lines, makes signals of keys.
func (s *screen) settings() *unix.Termios {
	s.t.Helper()
	settings := must.Get(unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS))(s.t)
	return settings
}

// until waits until the screen is as it should be, and returns it.
func (s *screen) until(what string, is func(text string) bool) string {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		if text := s.text(); is(text) {
			return text
		}
		select {
		case <-s.changed:
		case <-deadline:
			s.t.Fatalf("the screen does not show %s:\n%s", what, s.text())
		}
	}
}

func (s *screen) shows(texts ...string) string {
	s.t.Helper()
	return s.until(strings.Join(texts, ", "), func(text string) bool {
		for _, want := range texts {
			if !strings.Contains(text, want) {
				return false
			}
		}
		return true
	})
}

func (s *screen) showsNoMore(gone string) string {
	s.t.Helper()
	return s.until("no more of "+gone, func(text string) bool { return !strings.Contains(text, gone) })
}

func (s *screen) types(keys string) {
	s.t.Helper()
	must.Get(s.terminal.WriteString(keys))(s.t)
}

// ends waits for the end of the program, and wants its exit code, and the terminal as it was.
func (s *screen) ends(code int) {
	s.t.Helper()
	s.exits(code)
	s.asItWas()
}

// exits waits for the end of the program, and wants its exit code.
func (s *screen) exits(code int) {
	s.t.Helper()
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(patience):
		s.t.Fatalf("it does not end:\n%s", s.text())
	}
	var exit *exec.ExitError
	got := 0
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		s.t.Fatal(err)
	}
	if got != code {
		s.t.Errorf("exit code %d, want %d:\n%s", got, code, s.text())
	}
}

func (s *screen) signal(sig syscall.Signal) {
	s.t.Helper()
	must.Do(s.t, s.cmd.Process.Signal(sig))
}

// child is the process that the program of the terminal, a shell, has started.
func (s *screen) child() int {
	s.t.Helper()
	pid := strconv.Itoa(s.cmd.Process.Pid)
	children := must.Get(os.ReadFile("/proc/" + pid + "/task/" + pid + "/children"))(s.t)
	return must.Get(strconv.Atoi(strings.Fields(string(children))[0]))(s.t)
}

// written is everything that was written to the terminal.
func (s *screen) written() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raw.String()
}

// asItWas checks that the terminal is left as it was.
func (s *screen) asItWas() {
	s.t.Helper()
	if now := s.settings(); *now != *s.before {
		s.t.Errorf("the settings of the terminal are %+v, and were %+v", now, s.before)
	}
	s.until("the screen of before", func(string) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return !s.emulator.IsAltScreen()
	})
	for _, pair := range [][2]string{{"\x1b[?1049h", "\x1b[?1049l"}, {"\x1b[?25l", "\x1b[?25h"},
		{"\x1b[?2004h", "\x1b[?2004l"}, {"\x1b[>4;2m", "\x1b[>4m"}, {"\x1b[>1u", "\x1b[<1u"},
		{"\x1b[?2027h", "\x1b[?2027l"}} {
		s.until(fmt.Sprintf("%q, which takes back %q", pair[1], pair[0]), func(string) bool {
			raw := s.written() // it may be read a moment after what leaves the screen
			return strings.LastIndex(raw, pair[0]) <= strings.LastIndex(raw, pair[1])
		})
	}
}

// text is what the screen shows.
func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return screens.Text(s.emulator)
}
