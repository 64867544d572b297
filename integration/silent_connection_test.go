package integration

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// I8: the connection over which a client listens dies in silence. A waiter misses its hint, finds the grant by the next
// look, and keeps its turn although another waits behind it, also while the application holds its whole pool.
func TestI8_AConnectionThatDiesInSilenceCostsALook(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		holdsPool bool
		atMost    time.Duration // a second where looks take another connection, two where they must notice; and some
	}{
		"the pool has an idle connection":      {false, 3500 * time.Millisecond},
		"the application holds its whole pool": {true, 4500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			took := time.Hour
			for try := 0; try < 3 && took > tc.atMost; try++ { // this machine may stand still for a while
				took = grantedAfterSilence(t, tc.holdsPool)
			}
			if took > tc.atMost {
				t.Errorf("three times granted late, at last after %v, want %v at most", took, tc.atMost)
			}
		})
	}
}

// grantedAfterSilence is how long after a release a client is granted the lock whose connection has died in silence.
func grantedAfterSilence(t *testing.T, holdsPool bool) time.Duration {
	db := pgtest.Database(t)
	way := newLine(t, db.URL())
	u := must.Get(url.Parse(way.url))(t)
	port := must.Get(strconv.Atoi(u.Port()))(t)
	var through atomic.Bool // new connections go through the line
	pool := db.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(_ context.Context, config *pgx.ConnConfig) error {
			if through.Load() {
				config.Host, config.Port, config.Fallbacks = u.Hostname(), uint16(port), nil
				config.LookupFunc, config.DialFunc = net.DefaultResolver.LookupHost, new(net.Dialer).DialContext
			}
			return nil
		}
	})
	must.Do(t, pool.Ping(t.Context()))
	through.Store(true)
	look := newPeer(t, db.URL())
	holder, c := newClient(t, db.Pool(t)), newClient(t, pool, pglock.WithSessionTTL(time.Minute))
	held := must.Get(holder.Acquire(t.Context(), "x"))(t)
	got := make(chan *pglock.Lease, 1)
	pgtest.Group(t).Go(func() {
		lease, err := c.Acquire(t.Context(), "x", pglock.WithTTL(15*time.Second))
		if err != nil {
			t.Error(err)
		}
		got <- lease
	})
	awaitQueue(t, look, "x", 1)
	pgtest.Eventually(t, "the client is seen", func() bool { // its connection is marked by the first look
		return one[bool](t, look,
			`SELECT EXISTS (SELECT FROM pglock.sessions s JOIN pglock.waiters q USING (session_id) WHERE s.pid IS NOT NULL)`)
	})
	behind := must.Get(pglock.New(t.Context(), db.Pool(t)))(t)
	defer behind.Close(context.WithoutCancel(t.Context()))
	next := must.Go(func() error {
		return behind.Do(t.Context(), "x", func(context.Context, *pglock.Lease) error { return nil })
	})
	awaitQueue(t, look, "x", 2)
	if holdsPool {
		conn := must.Get(pool.Acquire(t.Context()))(t)
		defer conn.Release()
	}
	way.silence(t, "upstream")
	way.silence(t, "downstream")
	through.Store(false)
	token, began := held.Token(), time.Now()
	must.Do(t, held.Release(t.Context()))
	var lease *pglock.Lease
	select {
	case lease = <-got:
	case <-time.After(20 * time.Second):
	}
	if lease == nil {
		t.Fatal("it is not granted")
	}
	took := time.Since(began)
	if lease.Token() != token+1 {
		t.Errorf("token %d after %d: somebody else was before it", lease.Token(), token)
	}
	must.Note(t, lease.Release(t.Context()))
	must.Note(t, <-next)
	return took
}

// A write whose connection brings nothing any more, while the lease is renewed over another, ends with its time limit,
// and without one when the lease that it began with would have ended. Nobody need give it a context with a deadline.
func TestAWriteOverASilentConnectionEndsWithItsTimeLimit(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := must.Get(newClient(t, db.Pool(t)).Acquire(t.Context(), "x", pglock.WithTTL(5*time.Second)))(t)
	for name, opts := range map[string][]fencedstore.Option{
		"with a time limit": {fencedstore.WithTimeLimit(time.Second)}, "without": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			way := newLine(t, db.URL())
			config := must.Get(pgxpool.ParseConfig(way.url))(t)
			config.MaxConns = 1
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(pool.Close)
			store := fencedstore.New(pool)
			nothing := func(context.Context, pgx.Tx) error { return nil }
			must.Do(t, store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true}, nothing))
			way.silence(t, "upstream")
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err = store.With(opts...).Write(ctx, fencedstore.Fence{Lease: lease, SameToken: true}, nothing)
			if !errors.Is(err, fencedstore.ErrTimeLimit) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("after %v: %v, want ErrTimeLimit", time.Since(began), err)
			}
			way.mend()
		})
	}
}

// A write waits at its fence for as long as the server lets it, which a lease's grace makes longer than its client
// believes in the lease. And one whose lease ends while it waits for a connection says that, and not that it was slow.
func TestAWriteIsNotLateForWhatItHasWaited(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second // in which a busy machine renews it
	const waited = ttl + 2500*time.Millisecond
	nothing := func(context.Context, pgx.Tx) error { return nil }
	hold := func(t *testing.T, db *pgtest.DB, opts ...pglock.AcquireOption) *pglock.Lease {
		t.Helper()
		lease := must.Get(newClient(t, db.Pool(t)).Acquire(t.Context(), "x", append(opts, pglock.WithTTL(ttl))...))(t)
		return lease
	}
	t.Run("at its fence", func(t *testing.T) {
		db := pgtest.Parallel(t)
		lease := hold(t, db, pglock.WithGrace(20*time.Second))
		store, other := fencedstore.New(db.Pool(t)), newPeer(t, db.URL())
		must.Do(t, store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true}, nothing))
		other.exec(t, `BEGIN; SELECT FROM pglock.fences WHERE resource = 'x' FOR UPDATE`)
		done := make(chan error, 1)
		go func() { done <- store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true}, nothing) }()
		time.Sleep(waited)
		other.exec(t, `ROLLBACK`)
		must.Note(t, <-done)
	})
	t.Run("for a connection", func(t *testing.T) {
		db := pgtest.Parallel(t)
		lease := hold(t, db)
		pool := db.Pool(t, func(c *pgxpool.Config) {
			c.PrepareConn = func(ctx context.Context, _ *pgx.Conn) (bool, error) { // the write's wait
				err := lease.Release(ctx)
				time.Sleep(waited)
				return true, err
			}
		})
		err := fencedstore.New(pool).Write(t.Context(), lease, nothing)
		if !errors.Is(err, pglock.ErrReleased) || errors.Is(err, fencedstore.ErrTimeLimit) {
			t.Errorf("%v, want ErrReleased", err)
		}
	})
}
