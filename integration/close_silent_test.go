package integration

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Close waits for no call that goes on asking a silent server: it ends the call with ErrClosed, however long that may
// take by its own context.
func TestCloseEndsAReleaseThatAsksASilentServer(t *testing.T) {
	t.Parallel()
	closesOnASilentServer(t, func(ctx context.Context, l *pglock.Lease) error { return l.Release(ctx) })
}

func TestCloseEndsAHandOverThatAsksASilentServer(t *testing.T) {
	t.Parallel()
	closesOnASilentServer(t, func(ctx context.Context, l *pglock.Lease) error { return l.HandOver(ctx, "heir") })
}

func closesOnASilentServer(t *testing.T, call func(context.Context, *pglock.Lease) error) {
	t.Helper()
	db := pgtest.Database(t)
	other := newClient(t, newPool(t, db.URL()))
	line, look := newLine(t, db.URL()), newPeer(t, db.URL())
	queue := func(n int) {
		t.Helper()
		pgtest.Eventually(t, "so many calls in the queue", func() bool {
			return one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE name = $1`, t.Name()) == n
		})
	}
	var dials atomic.Int32
	pool := newPool(t, line.url, func(c *pgxpool.Config) {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { dials.Add(1); return nil }
	})
	c := newClient(t, pool)
	first := mustTry(t, other, t.Name())
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	got, next := make(chan fetched, 1), make(chan fetched, 1)
	acquireInBackground(ctx, c, 0, t.Name(), got, pglock.WithTTL(time.Hour))
	queue(1)
	acquireInBackground(ctx, other, 0, t.Name(), next, pglock.WithHolder("heir"))
	queue(2)
	mustRelease(t, first)
	l := await(t, got)
	if l.err != nil {
		t.Fatal(l.err)
	}
	line.silence(t, "downstream")
	before := dials.Load()
	defer line.mend()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx, l.lease) }()
	pgtest.Eventually(t, "the call to be under way", func() bool {
		// If somebody else's statement hangs on the pool's connection, the call needs another, which hangs too.
		served := one[int](t, look, `SELECT count(*) FROM pglock.waiters WHERE name = $1`, t.Name()) == 0
		return served || dials.Load() > before
	})
	closing, done := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer done()
	closed := make(chan struct{})
	go func() { defer close(closed); _ = c.Close(closing) }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatalf("Close has not returned after %v, and had 500ms", patience)
	}
	if err := <-ended; !errors.Is(err, pglock.ErrClosed) {
		t.Errorf("%v; want ErrClosed", err)
	}
	cancel()
	_ = await(t, next)
}
