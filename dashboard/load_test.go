package dashboard_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func withPace(poll, quiet, piece, whole time.Duration) setting {
	return func(c *dashboard.Config) { c.SetPace(poll, quiet, piece, whole) }
}

// fast is a page that reads a hundred times a second or so.
var fast = withPace(10*time.Millisecond, 500*time.Millisecond, time.Second, time.Hour)

// counter counts statements, and how many run at once.
type counter struct{ all, now, most atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.all.Add(1)
	for now := c.now.Add(1); ; {
		most := c.most.Load()
		if now <= most || c.most.CompareAndSwap(most, now) {
			return ctx
		}
	}
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) { c.now.Add(-1) }

// counted starts a page whose statements are counted.
func counted(t *testing.T, opts ...setting) (*stage, *counter) {
	t.Helper()
	c := &counter{}
	db := pgtest.Database(t)
	return startOver(t, db, db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = c }), opts...), c
}

func TestStreamsOfOneQueryShareItsReads(t *testing.T) {
	t.Parallel()
	s, statements := counted(t, withPace(200*time.Millisecond, time.Hour, time.Second, time.Hour))
	began, before := time.Now(), statements.all.Load()
	const readers = 50
	all := pgtest.Group(t)
	for range readers {
		e := s.stream("/api/stream?order=name")
		all.Go(func() {
			if _, _, err := e.read(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s.wantWatched(1, readers)
	const aLook = 12 // statements: the list, and a transaction each for the overview and for the verdicts of the list
	reads, most := statements.all.Load()-before, aLook*(int64(time.Since(began)/(200*time.Millisecond))+1)
	if reads > most {
		t.Errorf("%d streams took %d statements in %s, want at most %d", readers, reads, time.Since(began), most)
	}
}

func TestStreamsAndQueriesAreLimited(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *dashboard.Config) { c.Streams = dashboard.MaxFeeds + 1 })
	var last *events
	for n := range dashboard.MaxFeeds {
		last = s.stream(fmt.Sprintf("/api/stream?match=%d", n))
	}
	s.get("/api/stream?match=another").want(503, "Too many different views")
	s.stream("/api/stream?match=0") // the same as one before
	r := s.get("/api/stream?match=0").want(503, "Too many pages")
	if r.header.Get("Retry-After") == "" {
		t.Error("the refusal does not say when to come again")
	}
	last.cancel()
	s.wantWatched(dashboard.MaxFeeds-1, dashboard.MaxFeeds)
	s.stream("/api/stream?match=another")
}

func TestReadsUseFewConnections(t *testing.T) {
	t.Parallel()
	s, statements := counted(t, fast, func(c *dashboard.Config) { c.Connections = 2 })
	s.many(100, "")
	statements.most.Store(0)
	all := pgtest.Group(t)
	for n := range 10 {
		e := s.stream(fmt.Sprintf("/api/stream?match=%d", n))
		all.Go(func() {
			for range 3 {
				s.get("/api/locks?limit=1000").want(200)
			}
			if _, _, err := e.read(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if most := statements.most.Load(); most > 2 {
		t.Errorf("%d statements at once, want at most 2", most)
	}
}

// Readers that do not read are disconnected; meanwhile the others see every change.
func TestTwoHundredStreamsWithSlowReadersHoldUpNobody(t *testing.T) {
	t.Parallel()
	s := start(t, withPace(50*time.Millisecond, time.Hour, 3*time.Second, time.Hour))
	s.many(1000, "")
	const slow, quick = 150, 50
	address := strings.TrimPrefix(s.http.URL, "http://")
	for range slow {
		conn := must.Get(net.Dial("tcp", address))(t)
		t.Cleanup(func() { conn.Close() })
		must.Do(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
		fmt.Fprintf(conn, "GET /api/stream?limit=10000 HTTP/1.1\r\nHost: %s\r\n\r\n", address)
	}
	all := pgtest.Group(t)
	for range quick {
		e := s.stream("/api/stream?limit=10")
		all.Go(func() {
			for { // until somebody has changed the first lock
				event, data, err := e.read()
				if err != nil || event != "locks" {
					t.Errorf("event %q, %v", event, err)
					return
				}
				if strings.Contains(data, "somebody else") {
					return
				}
			}
		})
	}
	pgtest.Eventually(t, "every reader is there, or was disconnected", func() bool {
		_, n := s.page.Watched()
		return n >= quick
	})
	s.execute("UPDATE pglock.locks SET holder = 'somebody else' WHERE name = 'lock 00001'")
	all.Wait()
	s.wantWatched(1, quick) // the slow ones are gone
}

// stuck is the connection to a reader that does not read: a write lasts until its deadline.
type stuck struct {
	httptest.ResponseRecorder
	writing chan struct{} // closed by the first write of an event
	late    chan struct{} // closed by a deadline that is near
}

func (s *stuck) Write(text []byte) (int, error) {
	if !strings.HasPrefix(string(text), "event: ") {
		return len(text), nil
	}
	close(s.writing)
	<-s.late
	return 0, os.ErrDeadlineExceeded
}

func (s *stuck) FlushError() error { return nil }

func (s *stuck) SetReadDeadline(time.Time) error { return nil }

func (s *stuck) SetWriteDeadline(at time.Time) error {
	if time.Until(at) < time.Minute {
		close(s.late)
	}
	return nil
}

// Close does not wait for readers that do not read.
func TestCloseEndsAWriteToASlowReader(t *testing.T) {
	t.Parallel()
	s := start(t, withPace(time.Millisecond, time.Hour, time.Hour, time.Hour))
	w := &stuck{writing: make(chan struct{}), late: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/stream", nil))
	}()
	<-w.writing
	s.page.Close()
	<-ended
}

func TestALostDatabaseIsAProblemThatEnds(t *testing.T) {
	t.Parallel()
	var reported atomic.Int64
	s := start(t, fast, withOnError(func(error) { reported.Add(1) }))
	s.many(1, "")
	e := s.stream("/api/stream")
	e.next("locks")
	owner := must.Get(pgx.Connect(t.Context(), pgtest.Server(t).URL()))(t)
	defer owner.Close(context.WithoutCancel(t.Context()))
	exec := func(sql string, args ...any) {
		t.Helper()
		must.Get(owner.Exec(t.Context(), sql, args...))(t)
	}
	exec("ALTER DATABASE " + pgx.Identifier{s.db.Name()}.Sanitize() + " ALLOW_CONNECTIONS false")
	exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", s.db.Name())
	problem := strings.ReplaceAll(e.until("problem", `"error"`), s.admin.Place().String(), "") // as in every answer
	r := s.get("/api/locks").want(503, `"error"`)
	if r.header.Get("Retry-After") == "" {
		t.Error("the refusal does not say when to come again")
	}
	for _, text := range []string{problem, r.body, s.get("/api/lock?name=a").want(503).body,
		s.get("/api/history").want(503).body} {
		for _, secret := range []string{s.db.Name(), s.pool.Config().ConnConfig.User, s.pool.Config().ConnConfig.Host,
			"SQLSTATE", "FATAL"} {
			if strings.Contains(text, secret) {
				t.Errorf("%s tells %q", text, secret)
			}
		}
	}
	s.get("/").want(http.StatusOK)
	late := s.stream("/api/stream?match=late") // somebody who comes meanwhile
	late.next("problem")
	exec("ALTER DATABASE " + pgx.Identifier{s.db.Name()}.Sanitize() + " ALLOW_CONNECTIONS true")
	e.until("locks", `"lock 00001"`)
	late.until("locks", `"locks":[]`)
	s.get("/api/locks").want(200)
	if reported.Load() == 0 {
		t.Error("OnError has heard nothing")
	}
}

// Those who look at one lock learn who has locked all, too, and keep nobody from that.
func TestPagesOfOneLockSayWhoHasLockedAWholeTable(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.many(8, "")
	list := s.stream("/api/stream")
	list.next("locks")
	var single []*events
	for n := range 8 {
		single = append(single, s.stream(fmt.Sprintf("/api/stream?name=lock+%05d", n+1)))
		single[n].next("lock")
	}
	tx := must.Get(s.db.Conn(t).Begin(t.Context()))(t)
	defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is lost
	must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock.locks"))(t)
	began := time.Now()
	list.until("locks", `"kind":"table"`)
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the list has said it after %s", took)
	}
	for _, e := range single {
		got := decode[one](t, e.until("lock", `"kind":"table"`))
		if got.Lock != nil || got.Why.State != "hidden" || !strings.Contains(got.Why.Verdicts[0].Text, "locks") {
			t.Errorf("%+v", got)
		}
	}
	must.Do(t, tx.Rollback(t.Context()))
	single[0].until("lock", `"state":"held"`)
}

// texts keeps the texts of statements.
type texts struct {
	mu  sync.Mutex
	all []string
}

func (s *texts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, q.SQL)
	return ctx
}

func (*texts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAnUnknownLockCostsALookAlone(t *testing.T) {
	t.Parallel()
	said := &texts{}
	db := pgtest.Database(t)
	s := startOver(t, db, db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = said }))
	s.many(3, "")
	said.mu.Lock()
	said.all = nil
	said.mu.Unlock()
	s.get("/api/lock?name=none").want(404)
	said.mu.Lock()
	defer said.mu.Unlock()
	if len(said.all) > 3 || strings.Contains(strings.Join(said.all, ""), "list_locks") {
		t.Errorf("it takes the statements %q", said.all)
	}
}

// silence, once set, keeps every statement until its caller gives up.
type silence struct{ atomic.Bool }

func (s *silence) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if s.Load() {
		<-ctx.Done()
	}
	return ctx
}

func (*silence) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestThePageOfALockSaysSoonThatTheDatabaseIsSilent(t *testing.T) {
	t.Parallel()
	server := &silence{}
	db := pgtest.Database(t)
	s := startOver(t, db, db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = server }))
	s.many(1, "")
	e := s.stream("/api/stream?name=lock+00001")
	e.next("lock")
	began := time.Now()
	server.Store(true)
	e.until("problem", "in time")
	if took := time.Since(began); took > 13*time.Second {
		t.Errorf("it has said so after %s", took)
	}
}
