package pglock

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestASweepSaysThatSomeMayBeLeft(t *testing.T) {
	db := pgtest.Parallel(t)
	c := must.Get(New(t.Context(), db.Pool(t)))(t)
	t.Cleanup(func() { must.Note(t, c.Close(t.Context())) })
	must.Get(db.Conn(t).Exec(t.Context(), `INSERT INTO pglock.done_keys (key, lock_name, token, done_at, keep_until)
		SELECT n, 'x', 1, now(), now() - interval '2 days' FROM generate_series(1, 2500) n`))(t)
	for n, more := range []bool{true, true, false} {
		if swept, left, err := c.backend.Sweep(t.Context(), 0); !swept || left != more || err != nil {
			t.Errorf("sweep %d: %v, %v, %v; want true, %v", n, swept, left, err, more)
		}
	}
	if swept, left, err := c.backend.Sweep(t.Context(), sweepEvery); swept || left || err != nil {
		t.Errorf("soon after: %v, %v, %v", swept, left, err)
	}
}
