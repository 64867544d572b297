package dashboard_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// stage is a page on a server of its own, over a database of its own.
type stage struct {
	t     *testing.T
	db    *pgtest.DB
	pool  *pgxpool.Pool
	admin *lockadmin.Admin
	page  *dashboard.Dashboard
	http  *httptest.Server
}

func start(t *testing.T, opts ...setting) *stage {
	t.Helper()
	db := pgtest.Database(t)
	return startOver(t, db, db.Pool(t), opts...)
}

func startOver(t *testing.T, db *pgtest.DB, pool *pgxpool.Pool, opts ...setting) *stage {
	t.Helper()
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	page := must.Get(dashboard.New(admin, configOf(opts)))(t)
	server := httptest.NewUnstartedServer(page)
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		_ = c.(*net.TCPConn).SetWriteBuffer(16 << 10) // so that a reader that does not read is noticed soon
		return ctx
	}
	server.Start()
	t.Cleanup(func() {
		page.Close()
		server.Close()
		server.Client().CloseIdleConnections()
	})
	return &stage{t, db, pool, admin, page, server}
}

// hold takes a lock for the length of the test.
func (s *stage) hold(holder, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	s.t.Helper()
	client := must.Get(pglock.New(s.t.Context(), s.pool, pglock.WithDefaultHolder(holder),
		pglock.WithDefaultTTL(time.Minute)))(s.t)
	s.t.Cleanup(func() {
		must.Note(s.t, client.Close(context.Background()))
	})
	lease := must.Get(client.TryAcquire(s.t.Context(), name, opts...))(s.t)
	return lease
}

// reply is what the server answered.
type reply struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// ask sends a request. Each header is "Name: value"; "Host: …" sets the host.
func (s *stage) ask(method, path, body string, headers ...string) reply {
	s.t.Helper()
	r := must.Get(http.NewRequestWithContext(s.t.Context(), method, s.http.URL+path, strings.NewReader(body)))(s.t)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	client := *s.http.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	got := must.Get(client.Do(r))(s.t)
	defer got.Body.Close()
	text := must.Get(io.ReadAll(got.Body))(s.t)
	return reply{s.t, got.StatusCode, got.Header, string(text)}
}

func (s *stage) get(path string, headers ...string) reply {
	s.t.Helper()
	return s.ask(http.MethodGet, path, "", headers...)
}

// want checks the status, and that the body has the texts.
func (r reply) want(status int, texts ...string) reply {
	r.t.Helper()
	if r.status != status {
		r.t.Errorf("status %d, want %d: %s", r.status, status, r.body)
	}
	for _, text := range texts {
		if !strings.Contains(r.body, text) {
			r.t.Errorf("no %q in %s", text, r.body)
		}
	}
	return r
}

// setting changes the Config of a page.
type setting func(*dashboard.Config)

func configOf(opts []setting) (c dashboard.Config) {
	for _, set := range opts {
		set(&c)
	}
	c.Anybody = c.Auth == nil && c.People == nil
	return c
}

func withPerson(p dashboard.Person) setting {
	return func(c *dashboard.Config) { c.People = append(c.People, p) }
}

func withBreaks(c *dashboard.Config) { c.Breaks = true }

func withTitle(text string) setting { return func(c *dashboard.Config) { c.Title = text } }

func withOnError(f func(error)) setting { return func(c *dashboard.Config) { c.OnError = f } }

// alice may break locks on a page that has Breaks; her password is in the header.
var (
	withAlice = withPerson(dashboard.Person{Name: "alice", Secret: "correct horse"})
	asAlice   = basic("alice", "correct horse")
)

func basic(name, password string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
}

// tryBreak sends what the page's script sends.
func (s *stage) tryBreak(body any, headers ...string) reply {
	s.t.Helper()
	text := must.Get(json.Marshal(body))(s.t)
	all := append([]string{"Content-Type: application/json", asAlice}, headers...)
	return s.ask(http.MethodPost, "/api/break", string(text), all...)
}

func (s *stage) execute(sql string, args ...any) {
	s.t.Helper()
	s.db.Look(s.t, func(conn *pgx.Conn) {
		must.Get(conn.Exec(s.t.Context(), sql, args...))(s.t)
	})
}

func decode[T any](t *testing.T, body string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return v
}
