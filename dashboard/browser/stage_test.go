package browser

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// prefix is where the page is mounted.
const prefix = "/back/office/locks"

// stage is the page on a server, over a database.
type stage struct {
	t      *testing.T
	pool   *pgxpool.Pool
	admin  *lockadmin.Admin
	home   string
	server *httptest.Server

	mu     sync.Mutex
	before func(http.ResponseWriter, *http.Request) (answered bool) // called with each request
}

// setting changes the Config of a page.
type setting func(*dashboard.Config)

// asAlice logs in everybody as somebody who may break locks.
func asAlice(c *dashboard.Config) {
	c.Breaks = true
	c.Auth = func(*http.Request) (dashboard.Identity, error) {
		return dashboard.Identity{Name: "alice", MayBreak: true}, nil
	}
}

func withTitle(text string) setting { return func(c *dashboard.Config) { c.Title = text } }

func newStage(t *testing.T, opts ...setting) *stage {
	t.Helper()
	chromium(t)
	return stageOn(t, pgtest.Database(t).Pool(t), opts...)
}

func stageOn(t *testing.T, pool *pgxpool.Pool, opts ...setting) *stage {
	t.Helper()
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	s := stageOf(t, admin, opts...)
	s.pool = pool
	return s
}

// stageOf is a stage without a pool of its own.
func stageOf(t *testing.T, admin *lockadmin.Admin, opts ...setting) *stage {
	t.Helper()
	config := dashboard.Config{OnError: func(err error) { t.Logf("the page: %v", err) }}
	for _, set := range opts {
		set(&config)
	}
	config.Anybody = config.Auth == nil
	page := must.Get(dashboard.New(admin, config))(t)
	s := &stage{t: t, admin: admin}
	mux := http.NewServeMux()
	mux.Handle(prefix+"/", http.StripPrefix(prefix, page))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		f := s.before
		s.mu.Unlock()
		if f != nil && f(w, r) {
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		page.Close()
		server.Close()
	})
	s.server, s.home = server, server.URL+prefix+"/"
	return s
}

// on has f called with each request before it is served.
func (s *stage) on(f func(*http.Request)) {
	s.answer(func(_ http.ResponseWriter, r *http.Request) bool { f(r); return false })
}

// answer has f called with each request. If it returns true, the page does not get the request.
func (s *stage) answer(f func(http.ResponseWriter, *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// client makes a client that is closed when the test ends.
func (s *stage) client(holder string, ttl time.Duration) *pglock.Client {
	s.t.Helper()
	client := must.Get(pglock.New(s.t.Context(), s.pool, pglock.WithDefaultHolder(holder),
		pglock.WithDefaultTTL(ttl)))(s.t)
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		must.Note(s.t, client.Close(ctx))
	})
	return client
}

// hold takes a lock until the test ends, or until somebody breaks it.
func (s *stage) hold(holder, name string, opts ...pglock.AcquireOption) *pglock.Lease {
	s.t.Helper()
	lease := must.Get(s.client(holder, time.Minute).TryAcquire(s.t.Context(), name, opts...))(s.t)
	return lease
}

// queue waits for a lock in the background until the test ends; it returns when the ticket is in the queue.
func (s *stage) queue(holder, name string, opts ...pglock.AcquireOption) {
	s.t.Helper()
	client := s.client(holder, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := client.Acquire(ctx, name, opts...); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("%s waits for %s: %v", holder, name, err)
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
	s.eventually(func() bool {
		waiters := must.Get(lists.All(s.admin.Waiters(s.t.Context(), lockadmin.WaitersQuery{Lock: name})))(s.t)
		for _, w := range waiters {
			if w.Holder == holder {
				return true
			}
		}
		return false
	})
}

func (s *stage) eventually(so func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("it did not happen in time")
		}
	}
}

// sql does what no client would.
func (s *stage) sql(text string, args ...any) {
	s.t.Helper()
	must.Get(s.pool.Exec(s.t.Context(), text, args...))(s.t)
}
