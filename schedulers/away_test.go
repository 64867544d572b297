package schedulers_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers"
	"github.com/pglock-dev/pglock/schedulers/internal/scene"
)

// A server that restarts at the end of a job refuses the note for a while, and not only the release.
func TestARunIsEndedAlsoWhileTheServerIsAway(t *testing.T) {
	db := pgtest.Parallel(t)
	replica := scene.Replicas(t, db, 1)[0]
	var refuses atomic.Int32 // so many attempts to connect
	pool := db.Pool(t, func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if refuses.Add(-1) >= 0 {
				return nil, syscall.ECONNREFUSED
			}
			return dial(ctx, network, address)
		}
	})
	replica.Store = fencedstore.New(pool)
	endsOnce(t, newSlots(t, replica), func() {
		refuses.Store(10)
		pool.Reset()
	})
	if n := refuses.Load(); n >= 0 {
		t.Errorf("%d attempts were not made", n)
	}
}

// endsOnce ends a run after a fault, and begins it again.
func endsOnce(t *testing.T, slots *schedulers.Slots, fault func()) {
	t.Helper()
	run := must.Get(slots.Begin(t.Context(), "report"))(t)
	fault()
	must.Note(t, run.End(t.Context()))
	if again, err := slots.Begin(t.Context(), "report"); !errors.Is(err, fencedstore.ErrDone) {
		t.Errorf("the slot of a run that has ended: %v, %v; want ErrDone", again, err)
	}
}

// unanswered is a connection whose server answers a COMMIT, and nobody hears that.
type unanswered struct {
	net.Conn
	away *atomic.Bool
}

func (c unanswered) Write(b []byte) (int, error) {
	if !bytes.Contains(b, []byte("COMMIT")) || !c.away.Load() {
		return c.Conn.Write(b)
	}
	n, err := c.Conn.Write(b)
	for answer := make([]byte, 1<<16); err == nil && !bytes.Contains(answer, []byte{'Z', 0, 0, 0, 5, 'I'}); {
		_, err = c.Conn.Read(answer) // until it is committed
	}
	return n, errors.Join(err, c.Conn.Close())
}

func TestARunKnowsItsOwnNoteWhoseAnswerWasLost(t *testing.T) {
	db := pgtest.Parallel(t)
	var away atomic.Bool
	unknown := 0
	observer := pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
		if errors.Is(e.Err, pglock.ErrOutcomeUnknown) {
			unknown++
			away.Store(false)
		}
	})
	client := must.Get(pglock.New(t.Context(), db.Pool(t), pglock.WithObserver(observer)))(t)
	t.Cleanup(func() { _ = client.Close(context.WithoutCancel(t.Context())) })
	store := fencedstore.New(db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // COMMIT is one message
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			if away.Load() {
				return nil, syscall.ECONNREFUSED
			}
			conn, err := dial(ctx, network, address)
			return unanswered{conn, &away}, err
		}
	}))
	endsOnce(t, newSlots(t, scene.Replica{Client: client, Store: store}), func() { away.Store(true) })
	if unknown != 1 {
		t.Errorf("the outcome was unknown %d times", unknown)
	}
}
