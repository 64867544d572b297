package schedulers_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
	"github.com/pglock-dev/pglock/schedulers/internal/scene"
)

// A run under the context of a lost lease says that it is lost, and not only that a context was canceled.
func TestRunUnderTheContextOfALostLeaseSaysThatItIsLost(t *testing.T) {
	db := pgtest.Parallel(t)
	replica := scene.Replicas(t, db, 1)[0]
	slots := newSlots(t, replica)
	admin := must.Get(lockadmin.New(t.Context(), db.Pool(t)))(t)
	outer, err := replica.Client.Acquire(t.Context(), "outer")
	if err == nil {
		_, err = admin.Break(t.Context(), "outer", "a test", lockadmin.BreakOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := outer.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	for name, call := range map[string]func(ctx context.Context) error{
		"Do": func(ctx context.Context) error {
			return slots.Do(ctx, "report", func(context.Context, pgx.Tx, time.Time) error { return nil })
		},
		"Begin": func(ctx context.Context) error {
			_, err := slots.Begin(ctx, "report")
			return err
		},
	} {
		err := call(outer.Context())
		if err == nil || !errors.Is(err, pglock.ErrLost) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want ErrLost and context.Canceled", name, err)
		} else if wrong := pgtest.PrefixedOnce(err); wrong != nil {
			t.Errorf("%s: %v", name, wrong)
		}
	}
}
