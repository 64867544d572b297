package integration

import (
	"errors"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A lease ends while the COMMIT of its last write is under way: nobody is granted the lock before that has ended.
// Meanwhile whoever comes is queued, and is served in that order afterwards; none of them waits in the server with a
// connection of its pool; and a try answers at once.
func TestI9_WhoeverComesDuringTheLastCommitIsServedInOrder(t *testing.T) {
	t.Parallel()
	for _, shared := range []bool{false, true} {
		t.Run(map[bool]string{false: "exclusive", true: "shared"}[shared], func(t *testing.T) {
			db := pgtest.Database(t)
			newLedger(t, db)
			look, writer := newPeer(t, db.URL()), newPeer(t, db.URL())
			mode := map[bool]string{false: "exclusive", true: "shared"}[shared]
			token := pgtest.One[int64](t, writer, `SELECT token FROM pglock.acquire_lease('x', $1, gen_random_uuid(), 'writer', '1 min', p_mode => $2)`,
				writer.key.String(), mode)
			writer.exec(t, `BEGIN`)
			writer.exec(t, `SET LOCAL idle_in_transaction_session_timeout = 0`)
			if _, err := writer.Exec(t.Context(), `SELECT pglock.fence('x', $1, $2)`, token,
				writer.key.String()); err != nil {
				t.Fatal(err)
			}
			// The commit is checked, and not yet done, like one that waits for the disk or for a standby.
			writer.exec(t,
				`SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout', 'statement_timeout');
				INSERT INTO ledger (token) VALUES (1); SET CONSTRAINTS ALL IMMEDIATE`)
			endNow(t, look, "x")
			const clients = 3
			got := make(chan fetched, clients)
			var pools []*pglock.Client
			for n := range clients {
				c := newClient(t, db.Pool(t, maxConnections(1)), pglock.WithDefaultHolder(string(rune('A'+n))))
				pools = append(pools, c)
				acquireInBackground(t.Context(), c, n, "x", got)
				awaitQueue(t, look, "x", n+1)
			}
			for _, c := range pools { // over the one connection of each pool
				mustRelease(t, mustTry(t, c, "another lock"))
			}
			_, err := pools[0].TryAcquire(t.Context(), "x")
			if held, is := errors.AsType[*pglock.HeldError](err); !is || held.Holder != "" {
				t.Errorf("a try: %v, want a HeldError that names nobody", err)
			}
			pgtest.Eventually(t, "nobody to wait in the server", func() bool {
				return blocked(t, look) == 0
			})
			if len(got) != 0 {
				t.Fatalf("I4: granted beside a commit under way: %+v", <-got)
			}
			writer.exec(t, `COMMIT`)
			for n := range clients {
				f := await(t, got)
				if f.err != nil || f.n != n {
					t.Fatalf("I9: turn %d is that of caller %d, %v", n, f.n, f.err)
				}
				wantCount(t, look, 1, "I4: a successor does not see what was committed", `SELECT count(*) FROM ledger`)
				mustRelease(t, f.lease)
			}
		})
	}
}
