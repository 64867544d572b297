//go:build unix

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
)

// process is a folder with a server's data, and the programs that run in it, one after the other.
type process struct {
	programs pgprograms.Programs
	user     *pgprograms.User
	folder   string // holds everything; removing it leaves nothing behind
	data     string
	log      string
	password string
	port     int
	minder   *minder

	mu     sync.Mutex // serializes Stop, Kill and Restart
	over   error      // why there is nothing to kill
	latest atomic.Pointer[postmaster]
}

// Start makes a data folder and starts a server in it, which listens only on 127.0.0.1 and requires a password that
// only this process's user, and the server's, can read. If this process is root, the server runs as
// pgprograms.Account. ctx governs the start, not the life of the server. The caller owns the server and ends it with
// Stop; if the caller's process ends without that, the server and its folder go too.
//
// The data folder is a copy of one in the cache (pgprograms.Cache), if there is a cache; the first start keeps it
// there.
func Start(ctx context.Context, o Options) (*Server, error) {
	cache, _ := pgprograms.Cache() // "" if there is none
	return start(ctx, o, cache)
}

func start(ctx context.Context, o Options, cache string) (*Server, error) {
	p, err := newProcess(o.Programs, o.InMemory)
	if err != nil {
		return nil, err
	}
	if err = p.fill(ctx, cache); err == nil {
		err = p.configure(o.Settings)
	}
	if err == nil {
		err = p.startOnFreePort(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	at := fmt.Sprintf("postgres://postgres:%s@127.0.0.1:%d/postgres?sslmode=disable", p.password, p.port)
	description := fmt.Sprintf("PostgreSQL %s from %s", p.programs.Version, p.programs.BinDir)
	return &Server{cmp.Or(o.Kind, KindPrograms), at, description, p}, nil
}

// newProcess makes the folder, which only the server's user can read, and starts its minder. Root makes it where that
// user can reach it; backends see the real name, so the minder must too.
func newProcess(programs pgprograms.Programs, inMemory bool) (_ *process, err error) {
	p := &process{programs: programs}
	if p.user, err = pgprograms.Account(); err != nil {
		return nil, err
	}
	bases := []string{p.user.TempDir()}
	if dir := memory(); inMemory && dir != "" {
		bases = append([]string{dir}, bases...)
	}
	if p.folder, err = makeFolder(bases...); err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	p.data, p.log = filepath.Join(p.folder, "data"), filepath.Join(p.folder, "log")
	if err = p.user.Own(p.folder); err == nil {
		p.minder, err = startMinder(p.folder)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("pgserver: %w", err), os.RemoveAll(p.folder))
	}
	return p, nil
}

// makeFolder makes a folder in the first of bases where that can be done: the one in memory may be there for others
// only.
func makeFolder(bases ...string) (folder string, err error) {
	for _, base := range bases {
		if base, err = filepath.EvalSymlinks(base); err == nil {
			folder, err = os.MkdirTemp(base, "pglock-server-")
		}
		if err == nil {
			return folder, nil
		}
	}
	return "", err
}

func (p *process) run(ctx context.Context, program string, args ...string) (string, error) {
	out, err := p.command(ctx, program, args...).CombinedOutput()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("pgserver: %s: %w\n%s", program, err, lastLines(string(out)))
	}
	return string(out), err
}

// command prepares a program in its own session, so that an interrupt from the terminal reaches this process first.
// It removes the variables that would point the program at another server.
func (p *process) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = p.folder
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.user.RunAs(cmd)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC", "TMPDIR="+p.folder)
	return cmd
}

// throwaway are the settings of a server whose data nobody needs after a crash of the machine. Its dynamic shared
// memory is in the folder, and goes with it.
const throwaway = `
dynamic_shared_memory_type = mmap
fsync = off
max_connections = 400
shared_preload_libraries = 'plpgsql'
unix_socket_directories = ''
`

// configure adds to the file that initdb wrote; of two lines for one setting the last one counts.
func (p *process) configure(settings map[string]string) error {
	f, err := os.OpenFile(filepath.Join(p.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("pgserver: settings: %w", err)
	}
	lines := []byte(throwaway)
	for name, value := range settings {
		lines = fmt.Appendf(lines, "%s = '%s'\n", name, strings.NewReplacer(`'`, `''`, `\`, `\\`).Replace(value))
	}
	_, err = f.Write(append(lines, "listen_addresses = '127.0.0.1'\n"...))
	return errors.Join(err, f.Close())
}

// lastLines is the end of a program's output, for an error message.
func lastLines(text string) string {
	const most = 15
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}
