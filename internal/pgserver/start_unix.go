//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/internal/pgprograms"
)

// own serializes Stop, Kill and Restart.
type own struct {
	mu      sync.Mutex
	process *process // nil for a server that was not started here
}

// process is a server on this machine that belongs to this process. It is not
// safe for concurrent use: Server serializes.
type process struct {
	o       Options
	user    *pgprograms.User
	folder  folder
	port    int
	minder  *minder
	stopped bool

	mu         sync.Mutex  // guards postmaster only, for PID
	postmaster *postmaster // the latest one, which may have ended
}

// Start makes a data folder and starts a server in it, which listens on
// 127.0.0.1 only and asks for a password of its own. As root, the server runs
// as pgprograms.Account. ctx governs the start, not the life of the server. The
// caller owns the server and ends it with Stop; should the caller's process end
// without, the server and its folder go too.
func Start(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Kind == "" {
		o.Kind = KindPrograms
	}
	if o.Programs.BinDir == "" {
		return nil, errors.New("pgserver: Options.Programs: must name a folder of server programs")
	}
	settings, err := settingsFile(o.Settings)
	if err != nil {
		return nil, err
	}
	user, err := pgprograms.Account()
	if err != nil {
		return nil, err
	}
	p := &process{o: o, user: user}
	if p.folder, err = makeFolder(o.BaseDir, user); err != nil {
		return nil, err
	}
	// From here on the minder removes what there is, so every failure below
	// only has to end it.
	if p.minder, err = startMinder(p.folder); err != nil {
		return nil, errors.Join(err, os.RemoveAll(string(p.folder)))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	password := rand.Text()
	if err := p.initdb(ctx, password); err != nil {
		return nil, err
	}
	if err := p.configure(settings); err != nil {
		return nil, err
	}
	if err := p.startOnFreePort(ctx); err != nil {
		return nil, err
	}
	return &Server{
		kind:        o.Kind,
		url:         serverURL(password, p.port),
		description: describe(o.Programs),
		own:         own{process: p},
	}, nil
}

// initdb makes the data folder. C.UTF-8 sorts alike everywhere; where the
// system does not know it, C does too.
func (p *process) initdb(ctx context.Context, password string) error {
	if err := p.writeFile(p.folder.password(), password); err != nil {
		return err
	}
	defer os.Remove(p.folder.password())
	var out string
	var err error
	for _, locale := range []string{"C.UTF-8", "C"} {
		out, err = p.run(ctx, "initdb",
			"-D", p.folder.data(), "-U", "postgres", "--pwfile="+p.folder.password(),
			"-A", "scram-sha-256", "-E", "UTF8", "--locale="+locale,
			"--no-sync", "--no-instructions")
		if err == nil {
			return nil
		}
		if ctx.Err() != nil || !strings.Contains(out, "locale") {
			break
		}
	}
	return fmt.Errorf("pgserver: %s: %w\n%s", p.o.Programs.Path("initdb"), err, lastLines(out))
}

// run runs one of the programs as the server's user, known to the minder.
func (p *process) run(ctx context.Context, name string, args ...string) (string, error) {
	var out strings.Builder
	cmd := p.command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return "", err
	}
	minded := p.minder.mind(cmd.Process.Pid)
	err := cmd.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return out.String(), errors.Join(err, minded)
}

// command prepares a program in a session of its own, so that an interrupt from
// the terminal reaches this process first, and without the variables that
// would point it at another server.
func (p *process) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, p.o.Programs.Path(name), args...)
	cmd.Dir = string(p.folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	p.user.RunAs(cmd)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C", "TZ=UTC", "TMPDIR="+string(p.folder))
	return cmd
}

// throwaway are the settings of a server whose data nobody needs after a crash
// of the machine. Dynamic shared memory is kept in the folder, to go with it.
var throwaway = map[string]string{
	"dynamic_shared_memory_type": "mmap",
	"fsync":                      "off",
	"max_connections":            "200",
	"unix_socket_directories":    "",
}

// fixed are what the rest of this package relies on.
var fixed = map[string]string{"listen_addresses": "127.0.0.1"}

// settingsFile gives the lines for postgresql.conf.
func settingsFile(given map[string]string) (string, error) {
	settings := maps.Clone(throwaway)
	for name, value := range given {
		switch name = strings.ToLower(name); name {
		case "listen_addresses", "port", "data_directory":
			return "", fmt.Errorf("pgserver: Options.Settings: %s=%q: the server chooses it itself", name, value)
		}
		if strings.ContainsAny(name+value, "\n\x00") {
			return "", fmt.Errorf("pgserver: Options.Settings: %s=%q: must be one line", name, value)
		}
		settings[name] = value
	}
	maps.Copy(settings, fixed)
	var lines strings.Builder
	escape := strings.NewReplacer(`'`, `''`, `\`, `\\`)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&lines, "%s = '%s'\n", name, escape.Replace(settings[name]))
	}
	return lines.String(), nil
}

// configure adds to the file that initdb wrote; of two lines for one setting
// the last one counts.
func (p *process) configure(settings string) error {
	f, err := os.OpenFile(filepath.Join(p.folder.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("pgserver: settings: %w", err)
	}
	_, err = f.WriteString("\n" + settings)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("pgserver: settings: %w", err)
	}
	return nil
}

// writeFile writes a file that only the server's user can read.
func (p *process) writeFile(name, content string) error {
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	if err := p.user.Own(name); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	return nil
}

// lastLines is the end of a program's output, for an error message.
func lastLines(text string) string {
	const most = 15
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

// serverURL is the connection string of a server on this machine.
func serverURL(password string, port int) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

func describe(p pgprograms.Programs) string {
	return fmt.Sprintf("PostgreSQL %s from %s", p.Version, p.BinDir)
}
