package integration

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Whoever uses each name once, prunes and vacuums, has an index that stops growing: the names that are gone leave their
// pages to new ones. A page that a prune has emptied can be used after the next VACUUM but one. A name that a given-up
// request keeps for an hour keeps its page, until it goes: here one in ten, for a round.
func TestNamesThatWerePrunedLeaveTheirRoomInTheIndexToNewOnes(t *testing.T) {
	t.Parallel()
	const names, warm, all = 500, 4, 8
	// a server of its own: a transaction anywhere on it keeps emptied pages from being used
	p := newPeer(t, migrated(t, map[string]string{"autovacuum": "off"}).URL())
	patientTransactions(t, p) // one ends hundreds of leases
	var sizes []int64
	for round := range all {
		p.exec(t, `SELECT pglock.acquire_lease(format('run %s/%s', $1::int, i), gen_random_uuid(), gen_random_uuid(),
			'once', '1 min') FROM generate_series(1, $2::int) i`, round, names)
		p.exec(t, `SELECT pglock.release_lease(l.name, l.token, l.grant_id) FROM pglock.locks l
			WHERE l.expires_at > clock_timestamp()`)
		p.exec(t, `UPDATE pglock.locks SET spent_until = clock_timestamp() + interval '1 hour'
			WHERE split_part(name, '/', 1) = format('run %s', $1::int) AND split_part(name, '/', 2)::int % 10 = 0`, round)
		p.exec(t, `UPDATE pglock.locks SET spent_until = NULL WHERE split_part(name, '/', 1) <> format('run %s', $1::int)`,
			round)
		p.exec(t, `SELECT pglock.prune_locks('0', 100000)`)
		p.exec(t, `VACUUM pglock.locks`)
		if n := one[int](t, p, `SELECT count(*) FROM pglock.locks`); n != names/10 {
			t.Fatalf("%d names are left, want %d", n, names/10)
		}
		sizes = append(sizes, one[int64](t, p, `SELECT pg_relation_size('pglock.locks_pkey')`))
	}
	if sizes[all-1] > sizes[warm-1] {
		t.Errorf("after each round the index had %v bytes, want no more than after the fourth", sizes)
	}
}

// No index covers what a grant, a renewal or a release changes, and pages have room: so none of them writes to an
// index.
func TestGrantsRenewalsAndReleasesWriteToNoIndexOfLocks(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	patientTransactions(t, p)
	const releaseAll = `pglock.release_lease(l.name, l.token, l.grant_id) FROM pglock.locks l`
	p.exec(t, `SELECT pglock.acquire_lease(n, gen_random_uuid(), gen_random_uuid(), 'first', '1 min')
		FROM unnest(ARRAY['a', 'tree']) n`)
	p.exec(t, `SELECT `+releaseAll)
	updated := 0
	for _, step := range []string{
		`pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'second', '1 min')`,
		`pglock.acquire_subtree('tree', md5('2')::uuid, md5('me')::uuid, 'second', '1 min')`, // a ticket
		`pglock.acquire_subtree('tree', md5('2')::uuid, md5('me')::uuid, 'second', '1 min')`,
		`pglock.renew_leases(array_agg(l.name), array_agg(l.token), array_agg(l.grant_id), array_agg(0))
			FROM pglock.locks l`,
		releaseAll,
	} {
		p.exec(t, `BEGIN`)
		p.exec(t, `SELECT `+step)
		var updates, hot int
		if err := p.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_updated(c.oid),
				pg_stat_get_xact_tuples_hot_updated(c.oid)
			FROM pg_class c WHERE c.oid = 'pglock.locks'::regclass`).Scan(&updates, &hot); err != nil {
			t.Fatal(err)
		}
		p.exec(t, `COMMIT`)
		if hot != updates {
			t.Errorf("%s: %d of %d updates stayed in their page, want all", step, hot, updates)
		}
		updated = max(updated, updates)
	}
	granted := one[int](t, p, `SELECT count(*) FROM pglock.locks WHERE holder = 'second' AND ended_at IS NOT NULL`)
	if granted != 2 || updated == 0 {
		t.Errorf("%d locks were granted and released, with %d updates in a transaction; want 2, and some", granted,
			updated)
	}
}
