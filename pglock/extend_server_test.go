package pglock_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// renewed is a call of renew_leases for one lease as it is: the microseconds that it then has left, and its expiry as
// SQL.
func renewed(t *testing.T, conn *pgx.Conn, l *pglock.Lease, lasting, noLonger string) (left time.Duration,
	expiry string) {
	t.Helper()
	g := l.Export()
	var outcome string
	var us int64
	if err := conn.QueryRow(t.Context(), `SELECT outcome, remaining_us, quote_literal(expires_at)
		FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[$4::int], '1 s',
			ARRAY[`+lasting+`]::interval[], ARRAY[`+noLonger+`]::timestamptz[])`,
		g.Lock, int64(g.Token), g.ID, g.Slot).Scan(&outcome, &us, &expiry); err != nil || outcome != "renewed" {
		t.Fatalf("renew_leases(%s, %s) = %q, %v", lasting, noLonger, outcome, err)
	}
	return time.Duration(us) * time.Microsecond, expiry
}

// The server keeps an extension until it has passed, or until its very expiry is named, of leases of every mode.
func TestServerKeepsAnExtensionUntilItIsUndone(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	c := startClient(t, db.Pool(t))
	for mode, opt := range map[string]pglock.AcquireOption{"exclusive": pglock.WithHolder("me"),
		"shared": pglock.WithShared(), "limit": pglock.WithLimit(3)} {
		t.Run(mode, func(t *testing.T) {
			const ttl, long = time.Minute, time.Hour
			l := mustAcquire(t, c, mode, pglock.WithTTL(ttl), opt)
			about := func(what string, left, want time.Duration) {
				t.Helper()
				if left > want || left < want-20*time.Second {
					t.Errorf("%s: %v left, want %v", what, left, want)
				}
			}
			left, first := renewed(t, conn, l, "'1 hour'", "NULL")
			about("extended", left, long)
			left, _ = renewed(t, conn, l, "NULL", "NULL")
			about("renewed", left, long)
			left, _ = renewed(t, conn, l, "'10 min'", "NULL")
			about("extended by less", left, long)
			left, _ = renewed(t, conn, l, "NULL", "'2020-01-01'")
			about("another expiry undone", left, long)
			left, second := renewed(t, conn, l, "'2 hours'", "NULL")
			about("extended by more", left, 2*time.Hour)
			left, _ = renewed(t, conn, l, "NULL", first)
			about("the first undone", left, 2*time.Hour)
			left, third := renewed(t, conn, l, "'30 min'", second)
			about("the second replaced", left, 30*time.Minute)
			left, _ = renewed(t, conn, l, "NULL", third)
			about("undone", left, ttl)
			renewed(t, conn, l, "'1 hour'", "NULL")
			must.Do(t, l.Release(t.Context()))
			again := mustAcquire(t, c, mode, pglock.WithTTL(ttl), opt)
			left, _ = renewed(t, conn, again, "NULL", "NULL")
			about("of the next grant", left, ttl)
			left, _ = renewed(t, conn, again, "'1 s'", "NULL")
			about("extended by less than the TTL", left, ttl)
		})
	}
}

// A repetition of the acquire may arrive late, when the lease has long been extended. It is answered with the same
// grant, and leaves the extension as it is: somebody else would be granted the lock in the middle of a long write.
func TestI1_I6_ALateRepetitionOfAnAcquireKeepsTheExtension(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	c := startClient(t, db.Pool(t))
	for mode, opt := range map[string]pglock.AcquireOption{"exclusive": pglock.WithHolder("me"),
		"shared": pglock.WithShared(), "limit": pglock.WithLimit(3)} {
		t.Run(mode, func(t *testing.T) {
			l := mustAcquire(t, c, mode, pglock.WithTTL(time.Minute), opt)
			g := l.Export()
			capacity := "NULL::int"
			if mode == "limit" {
				capacity = "3"
			}
			_, expiry := renewed(t, conn, l, "'1 hour'", "NULL")
			for _, repetition := range []string{
				"acquire_lease($1, $2, gen_random_uuid(), 'me', '1 min', p_mode => $3, p_capacity => " + capacity + ")",
				"acquire_lease($1, $2, gen_random_uuid(), 'me', '1 min', p_mode => $3, p_capacity => " + capacity +
					", p_retry => true)",
				"acquire_lease($1, $2, gen_random_uuid(), 'me', '1 min', p_mode => $3, p_capacity => " + capacity +
					", p_wait => true)",
				`acquire_leases(ARRAY[$1], ARRAY[$2::uuid], gen_random_uuid(), '{me}', '{1 min}', '{NULL}', '{true}', ARRAY[$3],
					ARRAY[` + capacity + `], '{true}', '10 s', '{NULL}', '{false}')`,
			} {
				var granted bool
				var token int64
				if err := conn.QueryRow(t.Context(), "SELECT granted, token FROM pglock."+repetition, mode, g.ID,
					mode).Scan(&granted, &token); err != nil ||
					!granted || token != int64(g.Token) {
					t.Fatalf("%s: %v with token %d, %v; want the grant with token %d", repetition, granted, token, err,
						g.Token)
				}
				var left time.Duration
				if err := conn.QueryRow(t.Context(), "SELECT expires_at - clock_timestamp() FROM pglock.locks WHERE "+
					"grant_id = $1", g.ID).Scan(&left); err != nil ||
					left < 50*time.Minute {
					t.Errorf("I1: %s leaves %v, %v; want nearly an hour", repetition, left, err)
				}
			}
			if left, _ := renewed(t, conn, l, "NULL", expiry); left > time.Minute {
				t.Errorf("the extension was undone, and %v are left", left)
			}
			var before, after time.Time
			const until = "SELECT expires_at FROM pglock.locks WHERE grant_id = $1"
			must.Do(t, conn.QueryRow(t.Context(), until, g.ID).Scan(&before))
			execute(t, conn, "SELECT pglock.acquire_lease($1, $2::text::uuid, gen_random_uuid(), 'me', '1 min', "+
				"p_mode => $3, p_capacity => "+capacity+")", mode, g.ID.String(), mode)
			if err := conn.QueryRow(t.Context(), until, g.ID).Scan(&after); err != nil || !after.After(before) {
				t.Errorf("I12: a repetition renews the lease, whose expiry was %v and is %v, %v", before, after, err)
			}
		})
	}
}

func TestI11_ExtensionsThatMakeNoSenseAreRefusedByTheServer(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	c := startClient(t, db.Pool(t))
	l := mustAcquire(t, c, "held", pglock.WithTTL(time.Hour))
	g := l.Export()
	for _, bad := range []struct{ lasting, noLonger, says string }{
		{"ARRAY['99 ms']::interval[]", "NULL", "lasting"}, {"ARRAY['24 hours 1 ms']::interval[]", "NULL", "lasting"},
		{"ARRAY['1 day']::interval[]", "NULL", "lasting"}, {"ARRAY['-1 h']::interval[]", "NULL", "lasting"},
		{"ARRAY['1 h', '1 h']::interval[]", "NULL", "1, 2, 1"}, {"NULL", "ARRAY[NULL, NULL]::timestamptz[]", "1, 1, 2"},
		{"'{}'", "NULL", "1, 0, 1"},
	} {
		_, err := conn.Exec(t.Context(),
			`SELECT pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[0], NULL, `+bad.lasting+
				`, `+bad.noLonger+`)`,
			g.Lock, int64(g.Token), g.ID)
		var refused *pgconn.PgError
		if !errors.As(err, &refused) || refused.Code != "22023" || !strings.Contains(refused.Message, bad.says) {
			t.Errorf("lasting %s, no longer %s: %v", bad.lasting, bad.noLonger, err)
		}
	}
}

// Guard extends the lease inside a transaction, which has a connection of the pool, and a write may check its lease:
// with every connection taken they must not wait.
func TestExtendAndCheckNeedNoConnectionOfThePool(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	c := startClient(t, pool)
	l := mustAcquire(t, c, "nightly", pglock.WithTTL(time.Minute))
	taken := must.Get(pool.Acquire(t.Context()))(t)
	defer taken.Release()
	end := must.Get(l.Extend(t.Context(), time.Hour))(t)
	expires := func() (left time.Duration) {
		seconds := pgtest.One[float64](t, taken, "SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM "+
			"pglock.locks")
		return time.Duration(seconds * float64(time.Second))
	}
	if left, trusted := expires(), time.Until(l.Deadline()); left < 59*time.Minute || trusted < 59*time.Minute {
		t.Errorf("taken for %v and trusted for %v, want nearly an hour", left, trusted)
	}
	end()
	pgtest.Eventually(t, "the lock is taken for its TTL again", func() bool { return expires() <= time.Minute })
	if trusted := time.Until(l.Deadline()); trusted > time.Minute || !l.Valid() {
		t.Errorf("afterwards trusted for %v: %v", trusted, l.Err())
	}
	if left, err := l.Check(t.Context()); err != nil || left <= 0 {
		t.Errorf("a check: %v, %v", left, err)
	}
}
