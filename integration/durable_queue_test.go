package integration

import (
	"testing"

	"github.com/pglock-dev/pglock/pglock"
)

// I12: a hand-over is a grant: its token is on disk before anybody learns of it, whatever the session's default. A
// ticket waits for no disk.
func TestI12_HandOverWaitsForTheDiskAndTicketsDoNot(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB",
		"autovacuum": "off"})
	look := newPeer(t, server.URL())
	flushed := func() bool {
		return one[bool](t, look, `SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()`)
	}
	const rounds = 10
	for _, setting := range []string{"off", "on"} {
		// A session that says seldom that it is alive writes little else.
		c := newClient(t, newPool(t, server.URL(), withDefault("synchronous_commit", setting)),
			pglock.WithSessionTTL(pglock.MaxTTL))
		tickets, handOvers := 0, 0 // after how many of them the log was on disk
		for range rounds {
			holder := mustTry(t, c, "x")
			got := make(chan fetched, 1)
			acquireInBackground(t.Context(), c, 1, "x", got)
			awaitQueue(t, look, "x", 1)
			if flushed() {
				tickets++
			}
			mustRelease(t, holder)
			if flushed() {
				handOvers++
			}
			mustRelease(t, await(t, got).lease)
		}
		// the server and the listener write a little on their own account, which may come between
		if handOvers < rounds-3 {
			t.Errorf("I12: %d of %d hand-overs were answered before their WAL was flushed, with synchronous_commit = "+
				"%s", rounds-handOvers, rounds, setting)
		}
		if tickets > 3 {
			t.Errorf("%d of %d tickets waited for the disk, with synchronous_commit = %s", tickets, rounds, setting)
		}
	}
}
