package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// KeeperRole is the first argument that makes this program a keeper: a process that runs one server in its own
// folder. It ends the server and removes the folder when its standard input ends, which happens however the process
// that started it ends.
const KeeperRole = "keep-a-server"

// order is what a keeper is to run; a line of JSON on its standard input.
type order struct {
	Folder  string
	Program string
	Args    []string
	Env     []string // added to that of this process
}

// patience is how long a server may take to start, and how long to end.
const patience = 20 * time.Second

// kept is a server that a keeper runs.
type kept struct {
	keeper *exec.Cmd
	stdin  io.Closer
	pid    int // of the server
	folder string
	gone   chan struct{} // closed when the keeper has ended
}

// logFile is where a server writes.
func (o order) logFile() string { return filepath.Join(o.Folder, "log") }

// keep starts a keeper and returns when that has started the server. From then on the folder belongs to the keeper.
func keep(o order) (*kept, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	what, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, KeeperRole)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a signal from the terminal is for the one who started it
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k := &kept{keeper: cmd, stdin: stdin, folder: o.Folder, gone: make(chan struct{})}
	said := make(chan string, 1)
	go func() {
		defer close(k.gone)
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		said <- line
		_ = cmd.Wait() // that the folder is gone shows how it ended
	}()
	_, err = stdin.Write(append(what, '\n'))
	if line := <-said; err == nil {
		if _, scanErr := fmt.Sscanf(line, "pid %d\n", &k.pid); scanErr != nil {
			err = errors.New(strings.TrimSpace(line))
		}
	}
	if err != nil {
		return nil, errors.Join(err, k.stop())
	}
	return k, nil
}

// await asks again and again whether the server is ready, for as long as it may take.
func (k *kept) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		once, end := context.WithTimeout(ctx, time.Second)
		err := ready(once)
		end()
		if err == nil {
			return nil
		}
		if ended(k.pid) {
			return fmt.Errorf("it ended while starting: %s", k.said())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w: %s", err, k.said())
		}
	}
}

// ended says whether a process is gone, or is dead and not yet waited for.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z")
}

// said is the end of the server's log.
func (k *kept) said() string {
	log, err := os.ReadFile(order{Folder: k.folder}.logFile())
	if err != nil {
		return err.Error()
	}
	const most = 600
	return strings.TrimSpace(string(log[max(0, len(log)-most):]))
}

// stop ends the server and removes its folder.
func (k *kept) stop() error {
	err := k.stdin.Close()
	late := time.NewTimer(2 * patience)
	defer late.Stop()
	select {
	case <-k.gone:
	case <-late.C:
		return errors.Join(err, fmt.Errorf("the keeper of %s has not ended", k.folder))
	}
	if _, statErr := os.Stat(k.folder); statErr == nil {
		return errors.Join(err, fmt.Errorf("folder %s is still there", k.folder))
	}
	return err
}

// Keeper is the life of a keeper.
func Keeper() error {
	// Caught and not obeyed: the server would inherit ignored signals.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	defer os.RemoveAll(o.Folder)
	log, err := os.OpenFile(o.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		fmt.Println(err)
		return err
	}
	defer log.Close()
	cmd := exec.Command(o.Program, o.Args...)
	cmd.Dir = o.Folder
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		fmt.Println(err)
		return err
	}
	fmt.Printf("pid %d\n", cmd.Process.Pid)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is in its log
	}()
	_, _ = io.Copy(io.Discard, in)
	for _, s := range []os.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		_ = cmd.Process.Signal(s) // it may have ended by itself
		late := time.NewTimer(patience / 2)
		select {
		case <-done:
			late.Stop()
			return nil
		case <-late.C:
		}
	}
	return fmt.Errorf("%s did not end", o.Program)
}
