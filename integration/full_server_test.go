package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// fullServer is a server that has as many connections as it may have.
type fullServer struct {
	*pgserver.Server
	t    *testing.T
	look *peer // was there before

	mu    sync.Mutex
	taken []*pgx.Conn
}

// newFullServer starts a server that is not full yet.
func newFullServer(t *testing.T) *fullServer {
	t.Helper()
	server := migrated(t, map[string]string{"max_connections": "40", "max_wal_senders": "0", "autovacuum": "off"})
	s := &fullServer{Server: server, t: t, look: newPeer(t, server.URL())}
	t.Cleanup(func() { s.free(len(s.taken)) })
	return s
}

// fill takes every slot that is left, those for superusers too.
func (s *fullServer) fill(t *testing.T) {
	t.Helper()
	for {
		conn, err := pgx.Connect(t.Context(), s.URL())
		if err != nil {
			if state(err) != "53300" {
				t.Fatalf("the server refuses a connection, but not because it is full: %v", err)
			}
			return
		}
		s.mu.Lock()
		s.taken = append(s.taken, conn)
		s.mu.Unlock()
	}
}

// free gives slots back.
func (s *fullServer) free(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.taken[:n] {
		_ = conn.Close(context.Background())
	}
	s.taken = s.taken[n:]
}

// pool is an application's pool with so many idle connections, which may have more.
func (s *fullServer) pool(t *testing.T, idle int) *pgxpool.Pool {
	t.Helper()
	pool := newPool(t, s.URL(), func(c *pgxpool.Config) { c.MaxConns = int32(idle + 4) })
	s.hold(t, pool, idle)()
	return pool
}

// hold takes connections of a pool, as an application does, until give. It tries again when the server is full and the
// client of the pool uses the idle one at that moment.
func (s *fullServer) hold(t *testing.T, pool *pgxpool.Pool, n int) (give func()) {
	t.Helper()
	var held []*pgxpool.Conn
	for range n {
		var conn *pgxpool.Conn
		pgtest.Eventually(t, "a connection", func() bool {
			var err error
			if conn, err = pool.Acquire(t.Context()); err != nil && state(err) != "53300" {
				t.Fatal(err)
			}
			return err == nil
		})
		held = append(held, conn)
	}
	return func() {
		for _, conn := range held {
			conn.Release()
		}
	}
}

// is asks the server a question.
func (s *fullServer) is(sql string, args ...any) (yes bool) {
	must.Note(s.t, s.look.QueryRow(context.Background(), sql, args...).Scan(&yes))
	return yes
}

// held reports whether anybody holds the lock.
func (s *fullServer) held(name string) bool {
	return s.is(`SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp())`, name)
}

// knows reports whether the server has a session of that holder.
func (s *fullServer) knows(holder string) bool {
	return s.is(`SELECT EXISTS (SELECT FROM pglock.sessions WHERE holder = $1)`, holder)
}

// queues tells when so many wait for the lock.
func (s *fullServer) queues(name string, n int) func() bool {
	return func() bool { return s.is(`SELECT count(*) = $2 FROM pglock.waiters WHERE name = $1`, name, n) }
}

// A server without a free slot refuses every new connection. What keeps a lease, gives one back or hears of a grant
// uses what the process has.
func TestAServerWithoutAFreeSlot(t *testing.T) {
	t.Parallel()
	s := newFullServer(t)
	const ttl = 3 * time.Second
	holder := newPeer(t, s.URL())
	pools := make(map[string]*pgxpool.Pool)
	client := func(name string, idle int) *pglock.Client {
		pools[name] = s.pool(t, idle)
		return newClient(t, pools[name], pglock.WithDefaultHolder(name))
	}
	keeps, closes, lingers := client("keeps", 2), client("closes", 1), client("lingers", 1)
	comes, releases := client("comes", 1), client("releases", 1)
	waiters := []*pglock.Client{client("first", 1), client("second", 1), client("third", 1)}
	released := mustTry(t, releases, "released", pglock.WithTTL(time.Hour))
	if _, err := released.Extend(t.Context(), 2*time.Hour); err != nil { // the client's own connection is open
		t.Fatal(err)
	}
	s.fill(t)

	t.Run("costs no lease while the pool has an idle connection", func(t *testing.T) {
		l := mustTry(t, keeps, "kept", pglock.WithTTL(ttl))
		first := l.Deadline()
		pgtest.Eventually(t, "two renewals", func() bool {
			return l.Err() != nil || l.Deadline().After(first.Add(ttl/2))
		})
		must.Note(t, l.Err())
	})

	t.Run("keeps no live waiter from a lock that becomes free", func(t *testing.T) {
		g := holder.mustAcquire(t, "passed", time.Hour)
		results := make(chan error, len(waiters))
		for _, c := range waiters {
			go func() {
				l, err := c.Acquire(t.Context(), "passed", pglock.WithTTL(time.Hour))
				if err == nil {
					err = l.Release(t.Context())
				}
				results <- err
			}()
		}
		pgtest.Eventually(t, "all to queue", s.queues("passed", len(waiters)))
		must.Get(holder.release(t.Context(), g))(t)
		late := time.After(patience)
		for i := range waiters {
			select {
			case err := <-results:
				if err != nil {
					t.Error(err)
				}
			case <-late:
				t.Fatalf("%v after the lock became free, %d of %d live waiters have had it", patience, i, len(waiters))
			}
		}
	})

	t.Run("keeps no call that gives up in the queue", func(t *testing.T) {
		holder.mustAcquire(t, "left", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		result := must.Go(func() error { _, err := waiters[0].Acquire(ctx, "left"); return err })
		pgtest.Eventually(t, "the call to queue", s.queues("left", 1))
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		pgtest.Eventually(t, "its ticket to go", s.queues("left", 0))
	})

	t.Run("leaves nothing behind a Close", func(t *testing.T) {
		l := must.Get(closes.Acquire(t.Context(), "closed", pglock.WithLimit(2), pglock.WithTTL(time.Hour)))(t)
		if err := closes.Close(t.Context()); err != nil || s.held("closed") || s.knows("closes") {
			t.Errorf("%v: %v; %v is held: %v; the session is known: %v", l, err, l, s.held("closed"), s.knows("closes"))
		}
	})

	t.Run("makes Close wait for a connection", func(t *testing.T) {
		mustTry(t, lingers, "lingering", pglock.WithTTL(time.Hour))
		give := s.hold(t, pools["lingers"], 1)
		closed := must.Go(func() error { return lingers.Close(t.Context()) })
		s.refuses(t)
		give()
		if err := <-closed; err != nil || s.held("lingering") {
			t.Errorf("%v, held: %v", err, s.held("lingering"))
		}
	})

	t.Run("makes Acquire wait for a connection", func(t *testing.T) {
		give := s.hold(t, pools["comes"], 1)
		result := must.Go(func() error { _, err := comes.Acquire(t.Context(), "came"); return err })
		s.refuses(t)
		give()
		must.Note(t, <-result)
	})

	t.Run("lets a lease be released over the client's own connection", func(t *testing.T) {
		defer s.hold(t, pools["releases"], 1)()
		if err := released.Release(t.Context()); err != nil || s.held("released") {
			t.Errorf("%v, held: %v", err, s.held("released"))
		}
	})
}

// refuses fails the test if the server has a free slot. It takes as long as clients need to be refused some times.
func (s *fullServer) refuses(t *testing.T) {
	t.Helper()
	for range 20 {
		if conn, err := pgx.Connect(t.Context(), s.URL()); err == nil {
			_ = conn.Close(context.Background())
			t.Fatal("the server has a free slot: the test shows nothing")
		}
	}
}
