package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// execModes are pgx's ways to send a statement; the first is its default, with prepared statements that it gives names.
var execModes = []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"}

// pooler is a PgBouncer in transaction mode that shares two connections to the server among all of its clients.
type pooler struct {
	port     int
	user, db string
}

// minding runs PgBouncer until the input ends, however this process came to its end, and leaves nothing behind.
const minding = `trap '' INT HUP TERM
"$1" "$2/pgbouncer.ini" & pid=$!
while kill -0 $pid && read -r line; do :; done
kill $pid; wait $pid; rm -rf "$2"`

// newPooler puts PgBouncer in front of the test's database. It skips the test where there is none.
func newPooler(t *testing.T, db *pgtest.DB) *pooler {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/pgbouncer"); err != nil {
			t.Skip("SKIPPED: needs PgBouncer, and there is no program pgbouncer in PATH or /usr/sbin")
		}
	}
	server := must.Get(pgx.ParseConfig(db.URL()))(t)
	const attempts = 5 // somebody else may take the port
	for range attempts {
		p := &pooler{port: 20000 + rand.IntN(12000), user: server.User, db: db.Name()}
		if p.start(t, program, server) {
			return p
		}
	}
	t.Fatalf("PgBouncer did not start on any of %d ports", attempts)
	return nil
}

// start reports whether PgBouncer takes connections; false when the port was taken.
func (p *pooler) start(t *testing.T, program string, server *pgx.ConnConfig) bool {
	t.Helper()
	if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port))); err != nil {
		return false
	} else if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	account, err := pgprograms.Account() // PgBouncer refuses root too
	if err != nil {
		t.Fatal(err)
	}
	folder := p.folder(t, account.TempDir(), server)
	for _, path := range []string{filepath.Join(folder, "pgbouncer.ini"), filepath.Join(folder, "users"), folder} {
		must.Do(t, account.Own(path))
	}
	cmd := exec.Command("/bin/sh", "-c", minding, "minding", program, folder)
	cmd.Dir = "/"
	account.RunAs(cmd)
	input := must.Get(cmd.StdinPipe())(t)
	must.Do(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop := func() {
		_ = input.Close()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Errorf("PgBouncer does not end")
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = os.RemoveAll(folder) // where it was not minded
	}
	log := func() string {
		text, _ := os.ReadFile(filepath.Join(folder, "log"))
		return string(text)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		conn, err := pgx.Connect(t.Context(), p.url("exec"))
		if err == nil {
			_ = conn.Close(t.Context())
			t.Cleanup(stop)
			return true
		}
		said := log()
		if strings.Contains(said, "Address already in use") {
			stop()
			return false
		}
		if time.Now().After(deadline) {
			stop()
			t.Fatalf("PgBouncer does not take connections: %v\n%s", err, said)
		}
	}
}

// folder writes what PgBouncer reads. Only the account that it runs as may look into it: the server's password is
// there.
func (p *pooler) folder(t *testing.T, base string, server *pgx.ConnConfig) string {
	t.Helper()
	folder := must.Get(os.MkdirTemp(base, "pglock-pooler-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	quoted := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	settings := fmt.Sprintf(`[databases]
%s = host=%s port=%d dbname=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
logfile = %s
pool_mode = transaction
default_pool_size = 2
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits,search_path
`, p.db, quoted(server.Host), server.Port, quoted(server.Database), quoted(server.User), quoted(server.Password),
		p.port,
		filepath.Join(folder, "users"), filepath.Join(folder, "log"))
	users := `"` + strings.ReplaceAll(server.User, `"`, `""`) + `" ""` + "\n"
	for name, text := range map[string]string{"pgbouncer.ini": settings, "users": users} {
		must.Do(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	return folder
}

// url leads through the pooler, with one of pgx's ways to send a statement.
func (p *pooler) url(execMode string) string {
	u := url.URL{Scheme: "postgres", User: url.User(p.user), Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)),
		Path:     p.db,
		RawQuery: url.Values{"sslmode": {"disable"}, "default_query_exec_mode": {execMode}}.Encode()}
	return u.String()
}

// both gives a transaction on each of the pooler's two connections at the same time.
func (p *pooler) both(t *testing.T) [2]*pgx.Conn {
	t.Helper()
	var conns [2]*pgx.Conn
	for n := range conns {
		conn, err := pgx.Connect(t.Context(), p.url("exec"))
		if err == nil {
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			_, err = conn.Exec(t.Context(), "BEGIN")
		}
		if err != nil {
			t.Fatal(err)
		}
		conns[n] = conn
	}
	return conns
}
