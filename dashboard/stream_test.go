package dashboard_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func escape(s string) string { return url.QueryEscape(s) }

// events is an open stream.
type events struct {
	s      *stage
	body   io.ReadCloser
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// stream opens a stream, which ends with the test.
func (s *stage) stream(path string, headers ...string) *events {
	s.t.Helper()
	e, got := s.tryStream(path, headers...)
	if got.StatusCode != http.StatusOK || got.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
		s.t.Fatalf("%s: %s, %v", path, got.Status, got.Header)
	}
	return e
}

func (s *stage) tryStream(path string, headers ...string) (*events, *http.Response) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	r := must.Get(http.NewRequestWithContext(ctx, http.MethodGet, s.http.URL+path, nil))(s.t)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	got := must.Get(s.http.Client().Do(r))(s.t)
	s.t.Cleanup(func() { got.Body.Close() })
	return &events{s, got.Body, bufio.NewReader(got.Body), cancel}, got
}

// read returns the next event, or io.EOF and the like.
func (e *events) read() (event, data string, err error) {
	for {
		line, err := e.lines.ReadString('\n')
		if err != nil {
			return "", "", err
		}
		line = strings.TrimSuffix(line, "\n")
		switch name, value, _ := strings.Cut(line, ": "); {
		case name == "event":
			event = value
		case name == "data":
			data = value
		case line == "" && event != "":
			return event, data, nil
		}
	}
}

// next returns the data of the next event, which has this name.
func (e *events) next(name string) string {
	e.s.t.Helper()
	event, data, err := e.read()
	if err != nil || event != name {
		e.s.t.Fatalf("event %q, %v: %.300s", event, err, data)
	}
	return data
}

// until reads events of this name until one has the text.
func (e *events) until(name, text string) string {
	e.s.t.Helper()
	for {
		if data := e.next(name); strings.Contains(data, text) {
			return data
		}
	}
}

func (s *stage) wantWatched(feeds, streams int) {
	s.t.Helper()
	pgtest.Eventually(s.t, "the feeds and streams that are open", func() bool {
		f, n := s.page.Watched()
		return f == feeds && n == streams
	})
}

func TestAStreamShowsAChangeWithinASecond(t *testing.T) {
	t.Parallel()
	s := start(t)
	list, single := s.stream("/api/stream"), s.stream("/api/stream?name=nightly")
	if got := decode[locks](t, list.next("locks")); len(got.Locks) != 0 {
		t.Errorf("%+v", got)
	}
	unknown := decode[struct { // there is no such lock yet
		Status int
		Place  string
	}](t, single.next("problem"))
	if unknown.Status != 404 || unknown.Place != s.admin.Place().String() {
		t.Errorf("%+v, want 404, and that it says where", unknown)
	}
	lease := s.hold("app-1", "nightly")
	list.until("locks", `"holder":"app-1"`)
	for tries := 1; ; tries++ { // on a busy machine one of ten is as soon
		name := fmt.Sprint("another ", tries)
		s.hold("app-2", name)
		began := time.Now()
		list.until("locks", `"`+name+`"`)
		took := time.Since(began)
		if took < 1500*time.Millisecond {
			break
		}
		if tries == 10 {
			t.Fatalf("the change took %s", took)
		}
	}
	single.until("lock", `"holder":"app-1"`)
	must.Do(t, lease.Release(t.Context()))
	single.until("lock", `"holders":[]`)
	for strings.Contains(list.next("locks"), `"nightly"`) {
	}
}

func TestAStreamSaysNothingWhileNothingChanges(t *testing.T) {
	t.Parallel()
	s := start(t, fast)
	s.many(3, "")
	e := s.stream("/api/stream")
	e.next("locks")
	for comments := 0; comments < 2; { // each after 50 reads or so
		line, err := e.lines.ReadString('\n')
		switch {
		case err != nil || strings.HasPrefix(line, "event"):
			t.Fatalf("%q, %v", line, err)
		case line == ":\n":
			comments++
		}
	}
}

// The page lets ages grow by itself. One may become less: who had waited for longest has gone, and another has come.
func TestAStreamTellsThatAnAgeHasAnotherBeginning(t *testing.T) {
	t.Parallel()
	s := start(t, fast)
	const take = "SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 h', p_wait => $3, " +
		"p_session_ttl => '1 h')"
	s.execute(take, "nightly", "app-1", false)
	s.execute(take, "nightly", "app-2", true)
	s.execute(take, "report", "app-3", false) // whose page of the list nobody sees
	s.execute(`INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at, holds_until)
		SELECT session_id, holder, later, later, later FROM pglock.locks, (SELECT now() + interval '1 h' AS later) l
		WHERE name = 'nightly'`)
	const since = "clock_timestamp() - interval '20 min'"
	s.execute("UPDATE pglock.waiters SET enqueued_at = " + since)
	s.execute("UPDATE pglock.locks SET acquired_at = " + since + " WHERE name = 'report'")
	e := s.stream("/api/stream?match=nightly")
	wants := func(wait, ill time.Duration) { // for how long the first waits, and what is wrong lasts
		t.Helper()
		for {
			got := decode[locks](t, e.next("locks"))
			if len(got.Locks) != 1 || len(got.Ill.Locks) != 1 {
				t.Fatalf("%+v", got)
			}
			longest := time.Duration(got.Locks[0].LongestWait) * time.Millisecond
			lasts := got.At.Sub(got.Ill.Locks[0].Since)
			if longest.Round(20*time.Minute) == wait && lasts.Round(20*time.Minute) == ill {
				return
			}
		}
	}
	wants(20*time.Minute, 20*time.Minute)
	s.execute("UPDATE pglock.waiters SET enqueued_at = clock_timestamp()")
	wants(0, 20*time.Minute)
	s.execute("UPDATE pglock.locks SET acquired_at = acquired_at - interval '40 min' WHERE name = 'report'")
	wants(0, 60*time.Minute)
}

func TestAPageThatJoinsLaterGetsTheTimesOfThisMoment(t *testing.T) {
	t.Parallel()
	s := start(t, fast, func(c *dashboard.Config) { c.SetAgain(time.Hour) })
	s.hold("app-1", "nightly")
	for path, event := range map[string]string{"/api/stream": "locks", "/api/stream?name=nightly": "lock"} {
		join := func() (e *events, remaining int64) {
			e = s.stream(path)
			got := decode[struct {
				Locks []lock
				Lock  lock
				Why   *struct{ State string }
			}](t, e.next(event))
			if event == "locks" {
				return e, got.Locks[0].Remaining
			}
			if got.Why == nil || got.Why.State != "held" {
				t.Errorf("the lock is explained as %+v", got.Why)
			}
			return e, got.Lock.Remaining
		}
		_, was := join()
		pgtest.Eventually(t, "another reader of the same feed gets a later time: "+path, func() bool {
			late, now := join()
			defer late.cancel()
			return now < was-900
		})
	}
}

func TestAClientThatLeavesEndsItsPart(t *testing.T) {
	t.Parallel()
	s := start(t, fast)
	one, two, other := s.stream("/api/stream"), s.stream("/api/stream"), s.stream("/api/stream?match=x")
	for _, e := range []*events{one, two, other} {
		e.next("locks")
	}
	s.wantWatched(2, 3)
	one.cancel()
	s.wantWatched(2, 2)
	other.cancel()
	s.wantWatched(1, 1)
	two.cancel()
	s.wantWatched(0, 0)
}

func TestCloseEndsStreamsAndRefusesMore(t *testing.T) {
	t.Parallel()
	s := start(t, fast)
	e := s.stream("/api/stream")
	e.next("locks")
	s.page.Close()
	if _, _, err := e.read(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	s.get("/api/stream").want(503, "shutting down")
	s.get("/api/locks").want(200)
	s.page.Close()
}

func TestAStreamEndsSoThatBrowsersLogInAgain(t *testing.T) {
	t.Parallel()
	s := start(t, withPace(100*time.Millisecond, time.Hour, time.Second, 3*time.Second))
	e := s.stream("/api/stream")
	e.next("locks")
	if _, _, err := e.read(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ended with %v", err)
	}
	s.wantWatched(0, 0)
}

// A hook of the application's that panics ends the streams that wait for it, and no other request.
func TestAPanicInAFeedIsItsStreams(t *testing.T) {
	t.Parallel()
	s := start(t, withOnError(func(error) { panic("on purpose") }))
	s.pool.Close()
	for _, path := range []string{"/api/stream", "/api/stream?name=nightly"} {
		if event, _, err := s.stream(path).read(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: event %q, %v; want that the stream breaks off", path, event, err)
		}
		s.wantWatched(0, 0)
		s.get("/").want(200)
	}
}
