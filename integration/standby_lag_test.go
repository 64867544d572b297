package integration

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A standby that lags knows neither a lease that its primary has granted meanwhile, nor a release, nor a key that is
// done. So it says of none of them that it is lost, held or too old.
func TestI23_AStandbyThatLagsTakesNoLeaseForLost(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look, there := newPeer(t, primary.url), newPeer(t, standby.url)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	was := look.mustAcquire(t, "was held", time.Hour)
	standby.catchUp(t, look)
	there.exec(t, `SELECT pg_wal_replay_pause()`)
	pgtest.Eventually(t, "the standby to stand still", func() bool {
		return one[string](t, there, `SELECT pg_get_wal_replay_pause_state()`) == "paused"
	})
	if released, err := look.release(t.Context(), was); err != nil || !released {
		t.Fatalf("released: %v, %v", released, err)
	}
	g := look.mustAcquire(t, "x", time.Hour)
	look.exec(t, `INSERT INTO pglock.done_keys (key, lock_name, token, done_at, keep_until)
		VALUES ('done', 'x', 1, clock_timestamp() - interval '1 h', clock_timestamp() - interval '1 min')`)
	lease := must.Get(newClient(t, newPool(t, primary.url)).TryAcquire(t.Context(), "y", pglock.WithTTL(time.Hour)))(t)

	for _, tc := range []struct {
		call string
		args []any
	}{
		{`fence($1, $2, $3)`, []any{g.name, g.token, g.id.String()}},
		{`fence($1, $2, $3)`, []any{was.name, was.token, uuid.NewString()}},
		{`fence_all(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid])`, []any{g.name, g.token, g.id.String()}},
		{`once('new', $1, $2, $3)`, []any{g.name, g.token, g.id.String()}},
		{`once('done', 'x', 1, gen_random_uuid(), p_of => clock_timestamp() - interval '1 h', p_keep => '1 s')`, nil},
		{`check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`, []any{g.name, g.token, g.id.String()}},
		{`acquire_subtree('was held', gen_random_uuid(), gen_random_uuid(), 'h', '1 s', p_wait => false)`, nil},
	} {
		if _, err := there.Exec(t.Context(), `SELECT * FROM pglock.`+tc.call, tc.args...); state(err) != "25006" {
			t.Errorf("I23: %s on a standby that lags: %v, want 25006", tc.call, err)
		}
	}
	if err := <-write(newPool(t, standby.url), lease); !errors.Is(err, pglock.ErrReadOnly) {
		t.Errorf("I23: Write on a standby that lags: %v, want ErrReadOnly", err)
	}
	if err := lease.Err(); err != nil {
		t.Errorf("I23: a standby ended the lease: %v", err)
	}
}
