package integration

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// A row's xmax is the number of a transaction or of a group of them. On a young server both numbers are small: an open
// transaction is in many groups that have the number of a transaction which once wrote a row. It keeps only the rows
// that it has locked.
func TestAnOpenTransactionIsNotBlamedForRowsOfTheNumberOfItsGroups(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"max_prepared_transactions": "1"})
	c := newClient(t, newPool(t, server.URL()), pglock.WithDefaultTTL(time.Hour))
	look := newPeer(t, server.URL())
	names := []string{"free", "held", "queued", "locked"}
	for _, name := range names {
		for again := range 2 { // the second grant finds a row, and locks it
			lease, err := c.TryAcquire(t.Context(), name)
			if err == nil && (name == "free" || again == 0) {
				err = lease.Release(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	waiter := newPeer(t, server.URL())
	waiter.exec(t, `SELECT pglock.acquire_lease('queued', gen_random_uuid(), $1, 'waiter', '1 h', p_wait => true)`,
		waiter.key)
	if !one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.waiters)`) {
		t.Fatal("nobody waits")
	}

	half := newPeer(t, server.URL())
	half.exec(t, `BEGIN`)
	half.exec(t, `SELECT FROM pglock.locks WHERE name = 'locked' FOR KEY SHARE`)
	half.exec(t, `PREPARE TRANSACTION 'half'`)
	const members = `SELECT EXISTS (SELECT FROM pg_get_multixact_members(l.xmax) m JOIN pg_prepared_xacts p
		ON p.transaction = m.xid) FROM pglock.locks l WHERE name = $1`
	const highest = `SELECT max(xmax::text::int) FROM pglock.locks WHERE name <> 'locked'`
	const group = `SELECT xmax::text::int FROM pglock.locks WHERE name = 'locked'`
	for end := one[int](t, look, highest); ; {
		look.exec(t, `DO $$ BEGIN FOR i IN 1..500 LOOP
			BEGIN
				PERFORM FROM pglock.locks WHERE name = 'locked' FOR KEY SHARE;
				RAISE EXCEPTION '';
			EXCEPTION WHEN OTHERS THEN END;
		END LOOP; END $$`)
		if one[int](t, look, group) > end {
			break
		}
	}
	for _, name := range names {
		if one[int](t, look, `SELECT xmax::text::int FROM pglock.locks WHERE name = $1`, name) == 0 {
			t.Errorf("%s was locked by nobody", name)
		}
		if !one[bool](t, look, members, name) {
			t.Errorf("%s: no group of this number has the prepared transaction", name)
		}
		blamed := one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.list_backends($1) WHERE gid = 'half')`, name)
		if blamed != (name == "locked") {
			t.Errorf("%s: locked by the prepared transaction: %v", name, blamed)
		}
	}
	look.exec(t, `ROLLBACK PREPARED 'half'`)
}
