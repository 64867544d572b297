package lockadmin_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// busy is a worker who takes locks in every mode and lets go of them in every way, with the functions of the schema
// alone.
type busy struct {
	conn    *pgx.Conn
	key     string
	granted atomic.Int64
}

// turn asks for a lock once. Errors of the server that say no, such as a lock timeout, are part of the play.
func (b *busy) turn(ctx context.Context) error {
	modes := []struct {
		name, mode string
		capacity   any
	}{
		{"one", "exclusive", nil}, {"two", "exclusive", nil}, {"mixed", "exclusive", nil}, {"mixed", "shared", nil},
		{"places", "limit", 3},
		{"places", "exclusive", nil},
	}
	m := modes[rand.IntN(len(modes))]
	m.name += fmt.Sprint(rand.IntN(6))
	var grantID string
	var token int64
	var slot int
	err := b.conn.QueryRow(ctx,
		`SELECT g::text, a.token, coalesce((a.more ->> 'slot')::int, 0) FROM gen_random_uuid() g,
		pglock.acquire_lease($1, g, $2::text::uuid, $3, $4::text::interval, NULL, false, $5, $6, $7, '1 s', NULL, false) a WHERE a.granted`,
		m.name, b.key, b.key[:4], fmt.Sprint(100+rand.IntN(100), " ms"), m.mode, m.capacity,
		rand.IntN(15) == 0).Scan(&grantID, &token, &slot)
	if err != nil {
		return err
	}
	b.granted.Add(1)
	args := []any{m.name, token, grantID, slot}
	switch way := rand.IntN(20); {
	case way < 10:
		_, err = b.conn.Exec(ctx, `SELECT pglock.release_lease($1, $2, $3::text::uuid, $4)`, args...)
	case way < 12:
		_, err = b.conn.Exec(ctx, `SELECT pglock.give_up($1::text::uuid, ARRAY[$2], ARRAY[$3::text::uuid])`, b.key,
			m.name, grantID)
	case way < 14:
		_, err = b.conn.Exec(ctx, `SELECT pglock.break_lock($1, 'play', 'player', $2)`, m.name, token)
	case way < 16 && slot == 0:
		if _, err = b.conn.Exec(ctx,
			`SELECT pglock.acquire_lease($1, g, g, 'heir', '100 ms', p_wait => true, p_session_ttl => '1 s') FROM gen_random_uuid() g`, m.name); err == nil {
			_, err = b.conn.Exec(ctx, `SELECT pglock.hand_over($1, $2, $3::text::uuid, 'heir')`, args[:3]...)
		}
	case way < 17:
		_, err = b.conn.Exec(ctx, `SELECT pglock.prune_locks('0 s')`)
	case way < 19:
		_, err = b.conn.Exec(ctx,
			`SELECT * FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::text::uuid], ARRAY[$4::int])`,
			args...)
	}
	return err // or the lease runs out
}

// A correct server leaves a history in which Verify finds nothing, also while it is written.
func TestVerifyFindsNothingWrongInABusyHistory(t *testing.T) {
	db := pgtest.Parallel(t)
	admin := newAdmin(t, db.Pool(t))
	setHistory(t, admin, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var workers sync.WaitGroup
	var players []*busy
	for n := range 6 {
		b := &busy{conn: db.Conn(t), key: fmt.Sprintf("%08d-0000-4000-8000-000000000000", n)}
		players = append(players, b)
		workers.Go(func() {
			for ctx.Err() == nil {
				_ = b.turn(t.Context()) // its own errors are no matter; the server's mistakes are
			}
		})
	}
	for range 2 { // and clients of the library
		c := must.Get(pglock.New(t.Context(), db.Pool(t), pglock.WithDefaultTTL(200*time.Millisecond)))(t)
		for range 3 {
			workers.Go(func() {
				for ctx.Err() == nil {
					if lease, err := c.Acquire(ctx, "one0"); err == nil {
						_ = lease.Release(t.Context())
					}
				}
			})
		}
		defer func() {
			stop()
			workers.Wait()
			closing, done := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer done()
			must.Note(t, c.Close(closing))
		}()
	}
	clean := func() lockadmin.Verification {
		t.Helper()
		v, err := admin.Verify(t.Context(), "")
		if err != nil || v.ViolationCount+v.GapCount+v.ClockCount != 0 {
			t.Errorf("%+v, %v; want nothing wrong", v, err)
		}
		return v
	}
	const load = 1500 * time.Millisecond
	kinds := map[lockadmin.EventKind]int{}
	everything := func() bool { // has been played
		clear(kinds)
		for e, err := range admin.History(t.Context(), lockadmin.HistoryQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			kinds[e.Kind]++
		}
		return kinds[lockadmin.EventRelease] > 0 && kinds[lockadmin.EventTakeover] > 0 &&
			kinds[lockadmin.EventBreak] > 0 && kinds[lockadmin.EventHandover] > 0 &&
			!slices.ContainsFunc(players, func(b *busy) bool { return b.granted.Load() == 0 })
	}
	for least := time.Now().Add(load); !t.Failed() && (time.Now().Before(least) || !everything()); {
		if clean(); ctx.Err() != nil {
			t.Fatalf("it takes too long until all has been played: %v", kinds)
		}
	}
	stop()
	workers.Wait()
	v := clean()
	t.Logf("%d tenures: %v", v.Tenures, kinds)
}
