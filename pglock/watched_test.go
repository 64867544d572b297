package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// told is what a loop over a watch is given.
type told struct {
	pglock.Change
	err error
}

// watching reads a watch in a goroutine of its own; the channel is closed when the loop has ended.
func watching(ctx context.Context, c *pglock.Client, name string) <-chan told {
	out := make(chan told)
	go func() {
		defer close(out)
		for change, err := range c.Watch(ctx, name) {
			select {
			case out <- told{change, err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// hear waits for the change, passing over nothing.
func hear(t *testing.T, changes <-chan told, kind pglock.ChangeKind, token pglock.Token, held bool) pglock.Change {
	t.Helper()
	select {
	case got := <-changes:
		if got.Kind != kind || token != 0 && got.Lease.Token != token || held != (len(got.Holders) > 0) {
			t.Errorf("%s of token %d by %q with %d holders, want %s of token %d", got.Kind, got.Lease.Token,
				got.Lease.Holder, len(got.Holders), kind, token)
		}
		if got.err != nil {
			t.Fatal(got.err)
		}
		return got.Change
	case <-time.After(20 * time.Second):
		t.Fatalf("no change: want %s of token %d", kind, token)
		return pglock.Change{}
	}
}

func TestWatchFollowsALockThroughItsLife(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, watcher := db.Conn(t), startClient(t, db.Pool(t))
	a := startClient(t, db.Pool(t), pglock.WithDefaultTTL(time.Minute))
	changes := watching(t.Context(), watcher, "report")
	hear(t, changes, pglock.ChangeState, 0, false)

	l := mustAcquire(t, a, "report", pglock.WithHolder("first"))
	if got := hear(t, changes, pglock.ChangeGranted, l.Token(), true); got.Lease.Holder != "first" ||
		got.Lease.AcquiredAt.IsZero() {
		t.Errorf("%+v", got.Lease)
	}
	must.Do(t, l.Release(t.Context()))
	if got := hear(t, changes, pglock.ChangeReleased, l.Token(), false); got.Lease.EndedAt.IsZero() {
		t.Errorf("%+v", got.Lease)
	}

	l = mustAcquire(t, a, "report")
	hear(t, changes, pglock.ChangeGranted, l.Token(), true)
	must.Get(newAdmin(t, db.Pool(t)).Break(t.Context(), "report", "stuck", lockadmin.BreakOptions{}))(t)
	hear(t, changes, pglock.ChangeBroken, 0, false)

	// A waiter that is granted the lock, and dies: nobody ends its lease.
	runsOut := func() {
		l := mustAcquire(t, a, "report")
		hear(t, changes, pglock.ChangeGranted, l.Token(), true)
		execute(t, conn, "SELECT pglock.acquire_lease('report', $1::text::uuid, gen_random_uuid(), 'dies', '6 s', "+
			"p_wait => true)", uuid.NewString())
		must.Do(t, l.Release(t.Context()))
		dies := hear(t, changes, pglock.ChangeGranted, 0, true)
		if dies.Lease.Holder != "dies" || dies.Lease.Token <= l.Token() {
			t.Errorf("%+v, want the waiter's lease", dies.Lease)
		}
		got := hear(t, changes, pglock.ChangeExpired, dies.Lease.Token, false)
		if !got.Lease.EndedAt.IsZero() || !got.Lease.ExpiresAt.After(got.Lease.AcquiredAt) {
			t.Errorf("%+v: nobody has ended it", got.Lease)
		}
	}
	runsOut()

	for _, mode := range []pglock.AcquireOption{pglock.WithShared(), pglock.WithLimit(3)} {
		b, c := mustAcquire(t, a, "report", mode), (*pglock.Lease)(nil)
		hear(t, changes, pglock.ChangeGranted, b.Token(), true)
		c = mustAcquire(t, a, "report", mode)
		if got := hear(t, changes, pglock.ChangeGranted, c.Token(), true); len(got.Holders) != 2 ||
			got.Holders[0].Slot >= got.Holders[1].Slot {
			t.Errorf("holders %+v, want both by slot", got.Holders)
		}
		must.Do(t, b.Release(t.Context()))
		hear(t, changes, pglock.ChangeReleased, b.Token(), true)
		must.Do(t, c.Release(t.Context()))
		hear(t, changes, pglock.ChangeReleased, c.Token(), false)
	}

	runsOut()
}
