package integration

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// One client sweeps for all: whoever finds that somebody has swept lately leaves it at that, unless something was left.
func TestWhoeverSweepsDoesSoForAll(t *testing.T) {
	t.Parallel()
	p := newHastyPeer(t, pgtest.Database(t).URL())
	const asClientsDo = `SELECT coalesce(pglock.sweep(10, p_every => '1 min'), -1)` // -1: left to others
	old := func(n int) {
		p.exec(t, `INSERT INTO pglock.spent_grants SELECT gen_random_uuid(), now() - interval '2 hours'
			FROM generate_series(1, $1)`, n)
	}
	sweeps := func(what, how string, want int) {
		t.Helper()
		if n := one[int](t, p, how); n != want {
			t.Errorf("%s: %d rows, want %d", what, n, want)
		}
	}
	old(25)
	for _, want := range []int{10, 10, 5, -1} {
		sweeps("25 rows, ten at once", asClientsDo, want)
	}
	old(3)
	sweeps("soon after", asClientsDo, -1)
	letPass(t, p, 55*time.Second)
	sweeps("within a minute", asClientsDo, -1)
	letPass(t, p, 10*time.Second)
	sweeps("after a minute", asClientsDo, 3)
	old(3)
	sweeps("who says nothing of others", `SELECT pglock.sweep(10)`, 3)
	old(3)
	sweeps("after that", asClientsDo, -1)
	p.exec(t, `UPDATE pglock.installation SET swept = now() + interval '1 hour'`)
	sweeps("a clock that was set back", asClientsDo, 3)

	letPass(t, p, 2*time.Minute)
	sweeps("without the history", `SELECT pglock.sweep(10, false)`, 0)
	old(3)
	sweeps("after that which was not all", asClientsDo, 3)
	letPass(t, p, 2*time.Minute)
	p.exec(t, `INSERT INTO pglock.events (at, kind, lock_name, token)
		SELECT now() - interval '91 days', 'takeover', 'x', n FROM generate_series(1, 15) n`)
	for _, want := range []int{10, 5, -1} {
		sweeps("15 entries of the history", asClientsDo, want)
	}
}
