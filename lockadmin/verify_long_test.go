package lockadmin_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A million tenures of a thousand locks, one of them with half of all.
func TestVerifyReadsAMillionTenuresInLittleMemory(t *testing.T) {
	pgtest.Long(t, "TestVerifyFindsNothingWrongInABusyHistory")
	db := pgtest.Database(t)
	conn, admin := db.Conn(t), newAdmin(t, db.Pool(t))
	execute(t, conn,
		`INSERT INTO pglock.events (lock_name, holder, token, slot, mode, granted_at, ended_at, at, number, kind, session_id)
		SELECT CASE WHEN n % 2 = 0 THEN 'busy' ELSE 'lock/' || n % 2000 END, 'host/program[' || n % 100 || ']', n, 0, 'exclusive', m + n * interval '1 s', m + n * interval '1 s' + interval '900 ms',
			m + n * interval '1 s' + interval '900 ms', CASE WHEN n % 2 = 0 THEN n / 2 ELSE 1 + n / 2000 END, 'release', gen_random_uuid()
		FROM generate_series(1, 1000000) n, (SELECT timestamptz '2026-01-01 10:00 UTC') x (m)`)
	execute(t, conn, `UPDATE pglock.events SET ended_at = ended_at + interval '20 s' WHERE token = 777778`)
	var most uint64
	stop, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			var m runtime.MemStats
			if runtime.ReadMemStats(&m); m.HeapInuse > most {
				most = m.HeapInuse
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	began := time.Now()
	v, err := admin.Verify(t.Context(), "")
	took := time.Since(began)
	close(stop)
	<-sampled
	if err != nil || v.Tenures != 1_000_000 || v.Locks != 1001 || v.GapCount != 0 || v.ViolationCount != 10 ||
		v.Violations[0].Kind != lockadmin.ViolationOverlap {
		t.Errorf("%d tenures of %d locks, %d gaps, %d violations, %v; want the one tenure that lasted too long "+
			"beside 10 others", v.Tenures, v.Locks, v.GapCount, v.ViolationCount, err)
	}
	if most > 100<<20 {
		t.Errorf("%d MiB of memory, want less than 100", most>>20)
	}
	t.Logf("%v, %d MiB", took, most>>20)
	began = time.Now()
	page, _, err := lists.First(100, admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "lock/77", PageSize: 101}))
	if took := time.Since(began); err != nil || len(page) != 100 || took > 5*time.Second {
		t.Errorf("a page of one lock: %d events in %v, %v", len(page), took, err)
	}
	t.Logf("a page of one lock in %v", time.Since(began))
	began = time.Now()
	if _, err := lists.All(admin.History(t.Context(),
		lockadmin.HistoryQuery{Kinds: []lockadmin.EventKind{lockadmin.EventBreak}})); err != nil ||
		time.Since(began) > 20*time.Second {
		t.Errorf("breaks that are not there: %v, %v", time.Since(began), err)
	}
	t.Logf("no breaks in %v", time.Since(began))
}
