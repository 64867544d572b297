package integration

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// holdsAsGranted checks that the lease is the one that the row shows, and the only one that was ever granted.
func holdsAsGranted(t *testing.T, look *peer, lease *pglock.Lease) {
	t.Helper()
	row := one[string](t, look,
		`SELECT grant_id || ' ' || token || ' ' || (expires_at > clock_timestamp()) FROM pglock.locks WHERE name = $1`,
		lease.Name())
	if want := fmt.Sprintf("%s %d true", exported(lease), lease.Token()); row != want {
		t.Errorf("I6: the row shows %q, the lease is %q", row, want)
	}
	wantCount(t, look, 1, "I6: %d grants were made for one lease",
		`SELECT count(DISTINCT new_token) FROM public.grant_log WHERE name = $1`,
		lease.Name())
}

// Nobody who may use locks holds up a holder's renewals: a try locks nothing, and whoever queues, asks again or leaves
// the queue locks nothing that a renewal needs. Whoever spends a grant ID or watches does; the server ends a
// transaction that forgets itself after that in a second.
func TestI13_NobodyHoldsUpARenewal(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	holder, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	for what, c := range map[string]struct {
		sql  string
		ends bool
	}{
		"a try":        {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min')`, false},
		"a second try": {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min', p_retry => true)`, false},
		"a ticket":     {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min', p_wait => true)`, false},
		"giving up": {`SELECT pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[gen_random_uuid()])`,
			false},
		"a release without a lease": {`SELECT pglock.release_lease($1, 1, gen_random_uuid())`, false},
		"spending":                  {`SELECT pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[gen_random_uuid()], true)`, true},
		"watching":                  {`SELECT pglock.watch($1, '1 min')`, true},
	} {
		t.Run(what, func(t *testing.T) {
			holder, other := holder, other
			if c.ends { // which takes a second, and other's connection
				t.Parallel()
				holder, other = newPeer(t, db.URL()), newPeer(t, db.URL())
			}
			g := holder.mustAcquire(t, what, time.Minute)
			other.exec(t, "BEGIN")
			other.exec(t, c.sql, what)
			wait := patience
			if !c.ends {
				wait = time.Millisecond
			}
			if outcome, err := holder.renew(t.Context(), g, wait); err != nil || outcome != "renewed" {
				t.Errorf("renewed beside %s: %s, %v", what, outcome, err)
			}
			if _, err := other.Exec(t.Context(), `COMMIT`); (err != nil) != c.ends {
				t.Errorf("the transaction that was forgotten: %v", err)
			}
		})
	}
}

// The connection ends while the grant waits for its standby. The grant is visible then, as the wait is cancelled with
// the connection; but it is answered only when a commit of the retry's own has been confirmed.
func TestI6_RetryIsConfirmedByTheStandby(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	logGrants(t, look)
	sockets := make(chan net.Conn, 100)
	c := newClient(t, newPool(t, server.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			socket, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				sockets <- socket
			}
			return socket, err
		}
	}))
	syncStandby(t, look, "nobody")
	type result struct {
		lease *pglock.Lease
		err   error
	}
	done := must.Go(func() result { lease, err := c.TryAcquire(context.Background(), "x"); return result{lease, err} })
	waiter := func(other uint32) (pid uint32) {
		pgtest.Eventually(t, "a grant to wait for the standby", func() bool {
			return look.QueryRow(t.Context(),
				`SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> $1`, other).Scan(&pid) == nil
		})
		return pid
	}
	first := waiter(0)
	must.Do(t, (<-sockets).Close())
	waiter(first)
	if len(done) != 0 {
		t.Fatalf("I6: a grant that no standby has was answered: %+v", <-done)
	}
	syncStandby(t, look, "")
	r := <-done
	if r.err != nil {
		t.Fatalf("I6: the retry answered %v", r.err)
	}
	holdsAsGranted(t, look, r.lease)
}
