package integration

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// From PostgreSQL 17 on a role, a database or an earlier fence may have started the clock of transaction_timeout with a
// higher limit. A lower one counts all the same: from when it is set, and for all later statements together. But it
// gives the transaction no more time than that higher limit has left.
func TestI16_AHigherTransactionTimeoutLiftsNoLimit(t *testing.T) {
	db := pgtest.Parallel(t)
	if version := serverVersion(t, newPeer(t, db.URL())); version < 170000 {
		t.Skipf("server version %d has no transaction_timeout", version)
	}
	passes := func(t *testing.T, p *peer, ttl time.Duration) {
		g := newPeer(t, db.URL()).mustAcquire(t, uuid.NewString(), ttl)
		must.Do(t, p.fence(t.Context(), g, g.name))
	}
	for _, tc := range []struct {
		what, setting string
		call          func(*testing.T, *peer)
		most          time.Duration // from BEGIN
	}{
		{"a request that waits", "1h", func(t *testing.T, p *peer) {
			held := newPeer(t, db.URL()).mustAcquire(t, uuid.NewString(), time.Minute)
			p.exec(t, `SELECT FROM pglock.acquire_lease($1, $2, $2, 'p', '1 min', p_wait => true)`, held.name, uuid.New())
		}, slack},
		{"a fence", "1min", func(t *testing.T, p *peer) { passes(t, p, 4*time.Second) }, slack + 2*time.Second},
		{"fences of a long lease and of a short one", "0", func(t *testing.T, p *peer) {
			passes(t, p, time.Minute)
			passes(t, p, 4*time.Second)
		}, slack + 2*time.Second},
		{"fences of a short lease and of a longer one", "1min", func(t *testing.T, p *peer) {
			passes(t, p, 12*time.Second)
			p.exec(t, `SELECT pg_sleep(6)`)
			passes(t, p, 11*time.Second) // less than the limit was, and more than is left of it
		}, 16 * time.Second},
		{"a fence that was rolled back, and another", "0", func(t *testing.T, p *peer) {
			p.exec(t, `SAVEPOINT s`)
			passes(t, p, time.Minute)
			p.exec(t, `ROLLBACK TO s`)
			passes(t, p, 4*time.Second)
		}, slack + 2*time.Second},
		{"a fence after a limit of the user's own for what is left", "0", func(t *testing.T, p *peer) {
			p.exec(t, `SELECT pg_sleep(4.5)`)
			p.exec(t, `SET LOCAL transaction_timeout = '4400ms'`)
			passes(t, p, 4*time.Second)
			p.exec(t, `SELECT 1`)
		}, 12 * time.Second},
		{"a fence beyond the higher limit", "12s", func(t *testing.T, p *peer) {
			p.exec(t, `SELECT pg_sleep(6)`)
			passes(t, p, 11*time.Second) // less than the limit was, and more than is left of it
		}, 16 * time.Second},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			p := newPeer(t, db.URL())
			p.exec(t, `SELECT set_config('transaction_timeout', $1, false)`, tc.setting)
			p.exec(t, `BEGIN`)
			began := time.Now()
			tc.call(t, p)
			var err error
			for range 50 {
				if _, err = p.Exec(t.Context(), `SELECT pg_sleep(0.2)`); err != nil {
					break
				}
			}
			if took := time.Since(began); state(err) != "25P04" || took > tc.most {
				t.Errorf("I16: short statements after it: %v after %v, want transaction_timeout within %v", err, took,
					tc.most)
			}
		})
	}
}

// The end of a limit is kept to the millisecond, whatever the session makes of numbers with a fraction.
func TestI16_TheEndOfALimitIsNotRounded(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	if version := serverVersion(t, p); version < 170000 {
		t.Skipf("server version %d has no transaction_timeout", version)
	}
	p.exec(t, `SET extra_float_digits = -15`)
	g := p.mustAcquire(t, "x", time.Minute)
	p.exec(t, `BEGIN`)
	must.Do(t, p.fence(t.Context(), g, "x"))
	var early, late int64 // the fence's own statement lies between
	if err := p.QueryRow(t.Context(), `
		SELECT e.ms - (extract(epoch FROM l.expires_at) * 1000)::bigint,
			e.ms - (extract(epoch FROM clock_timestamp()) * 1000)::bigint
		FROM pglock.locks l, (SELECT current_setting('pglock.ends')::float8::bigint AS ms) e WHERE l.name = 'x'`).Scan(
		&early, &late); err != nil {
		t.Fatal(err)
	}
	if early < 0 || late > 60_200 {
		t.Errorf("I16: the limit ends %d ms after the lease, and %d ms from now", early, late)
	}
}
