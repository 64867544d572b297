package integration

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// At level all the history of a busy lock has a release for each tenure. Whoever asks why a lock is as it is reads
// neither these to find the few takeovers and breaks, nor all of them to count the latest hand-overs.
func TestTheLossesOfALockAreFoundBehindAnyNumberOfReleases(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `ALTER TABLE pglock.events SET (autovacuum_enabled = off)`)
	add := func(kind string, n int) {
		look.exec(t, `INSERT INTO pglock.events (kind, lock_name, token, holder)
			SELECT $1, 'hot', n, 'holder' FROM generate_series(1, $2::int) n`, kind, n)
	}
	add("takeover", 2)
	add("break", 1)
	add("release", 100_000)
	handOvers := protocol.NewQueries("pglock").HandOvers
	for _, known := range []bool{false, true} {
		if known {
			look.exec(t, `ANALYZE pglock.events`)
		}
		const losses = `SELECT pglock.list_history('hot', 20, NULL, '{takeover,break}')`
		wantCount(t, p, 3, "the history has %d losses, want 3", `SELECT count(*) FROM (`+losses+`) l`)
		if rows, whole := p.rowsRead(t, losses); rows > 10 || whole != "" {
			t.Errorf("analyzed %v: the losses: %d rows were read; tables read whole: %s", known, rows, whole)
		}
		since := protocol.Timestamp(one[time.Time](t, p, `SELECT clock_timestamp()`))
		if rows, whole := p.rowsRead(t, handOvers, "hot", since); rows > 1010 || whole != "" {
			t.Errorf("analyzed %v: the hand-overs: %d rows were read; tables read whole: %s", known, rows, whole)
		}
	}
}
