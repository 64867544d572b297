package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// From PostgreSQL 17 on a role, a database or an earlier fence may have started the clock of transaction_timeout with a
// higher limit. A lower one counts all the same: from when it is set, and for all later statements together.
func TestI16_AHigherTransactionTimeoutLiftsNoLimit(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	if version := serverVersion(t, look); version < 170000 {
		t.Skipf("server version %d has no transaction_timeout", version)
	}
	held, long := look.mustAcquire(t, "held", time.Minute), look.mustAcquire(t, "long", time.Minute)
	short, other := look.mustAcquire(t, "short", 4*time.Second), look.mustAcquire(t, "other", 4*time.Second)
	passes := func(t *testing.T, p *peer, g grant) {
		if err := p.fence(t.Context(), g, g.name); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		what, setting string
		call          func(*testing.T, *peer)
	}{
		{"a request that waits", "1h", func(t *testing.T, p *peer) {
			p.exec(t, `SELECT FROM pglock.acquire_lease($1, $2, $2, 'p', '1 min', p_wait => true)`, held.name, uuid.New())
		}},
		{"a fence", "1min", func(t *testing.T, p *peer) { passes(t, p, short) }},
		{"fences of a long lease and of a short one", "0", func(t *testing.T, p *peer) {
			passes(t, p, long)
			passes(t, p, other)
		}},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			p := newPeer(t, db.URL())
			p.exec(t, `SELECT set_config('transaction_timeout', $1, false)`, tc.setting)
			p.exec(t, `BEGIN`)
			tc.call(t, p)
			var err error
			for range 50 {
				if _, err = p.Exec(t.Context(), `SELECT pg_sleep(0.2)`); err != nil {
					break
				}
			}
			if state(err) != "25P04" {
				t.Errorf("I16: short statements after it: %v, want transaction_timeout", err)
			}
		})
	}
}
