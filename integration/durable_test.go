package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
)

// A session default of synchronous_commit = off must not make a grant volatile: no token that was answered before a
// crash is answered again after it.
func TestI12_I2_GrantsSurviveACrash(t *testing.T) {
	t.Parallel() // most of it is waiting
	server := migrated(t, map[string]string{"synchronous_commit": "off", "wal_writer_delay": "10s",
		"wal_writer_flush_after": "1GB", "autovacuum": "off"})
	const workers = 8
	crashes := rarely(4)
	answered := make(map[string]int64) // the last token of each name
	for crash := range crashes {
		var mu sync.Mutex
		wg := pgtest.Group(t)
		var grants int
		enough := make(chan struct{})
		for i := range workers {
			p := newPeer(t, server.URL())
			wg.Go(func() {
				for n := 0; ; n++ {
					name := fmt.Sprintf("w%d-%d", i, n%5)
					g, err := p.acquire(context.Background(), name, uuid.New(), time.Minute, false)
					if err != nil {
						return // the crash
					}
					mu.Lock()
					if g.granted {
						if g.token <= answered[name] {
							t.Errorf("I12: %s was granted token %d after token %d", name, g.token, answered[name])
						}
						answered[name] = g.token
						if grants++; grants == 300 {
							close(enough)
						}
					}
					mu.Unlock()
					if g.granted {
						_, _ = p.release(context.Background(), g)
					} else {
						_, _ = p.Exec(context.Background(), `SELECT pglock.break_lock($1, 'next', 'test')`, name)
					}
				}
			})
		}
		<-enough
		must.Do(t, server.Kill())
		wg.Wait()
		must.Do(t, server.Restart(t.Context()))
		look := newPeer(t, server.URL())
		for name, token := range answered {
			if row := one[int64](t, look, `SELECT coalesce(max(token), 0) FROM pglock.locks WHERE name = $1`,
				name); row < token {
				t.Errorf("I12: crash %d: %s was answered token %d and its row has %d", crash, name, token, row)
			}
		}
	}
}

// A refused try writes nothing: no WAL, no row lock, no sequence value, no transaction ID.
func TestI13_RefusedTryWritesNothing(t *testing.T) {
	pgtest.Long(t, "TestI13_Trap6_RefusedTryInAnyWayWritesNothing")
	t.Parallel()
	server := migrated(t, map[string]string{"autovacuum": "off", "wal_level": "minimal", "max_wal_senders": "0"})
	p := newPeer(t, server.URL())
	p.mustAcquire(t, "x", time.Hour)
	p.exec(t, "CHECKPOINT")
	look := func() string {
		return one[string](t, p,
			`SELECT concat_ws(' ', pg_current_wal_insert_lsn(), l.xmax, l.xmin, l.ctid, s.last_value, s.is_called,
			pg_snapshot_xmax(pg_current_snapshot())) FROM pglock.locks l, pglock.fencing_token_seq s`)
	}
	refuse := func(times int) {
		for range times {
			if g, err := p.acquire(t.Context(), "x", uuid.New(), time.Minute, false); err != nil || g.granted {
				t.Fatal(g, err)
			}
		}
	}
	refuse(10) // the first to read a page of the catalog after the migration may tidy it up
	before := look()
	refuse(2000)
	if after := look(); after != before {
		t.Errorf("I13: WAL position, row and sequence were %s, and are %s after 2,000 refusals", before, after)
	}
}

// A refused try waits for nobody: not even for whoever is being granted the lock at the moment.
func TestI13_RefusedTryWaitsForNobody(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, a)
	g := a.mustAcquire(t, "x", time.Minute)
	must.Get(a.release(t.Context(), g))(t)
	a.exec(t, "BEGIN")
	a.mustAcquire(t, "x", time.Minute)
	b.exec(t, "SET lock_timeout = '1ms'")
	if g, err := b.acquire(t.Context(), "x", uuid.New(), time.Minute, false); err != nil || g.granted {
		t.Errorf("the try answered %+v, %v", g, err)
	}
}

// synchronous_commit is off for the library's own releases alone: it is as before on the connection afterwards, and the
// SQL function inside a caller's transaction never touches it.
func TestI24_ReleaseLeavesTheSettingAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	patientTransactions(t, p)
	g := p.mustAcquire(t, "x", time.Minute)
	p.exec(t, "BEGIN")
	if released, err := p.release(t.Context(), g); err != nil || !released {
		t.Fatal(released, err)
	}
	if setting := one[string](t, p, "SHOW synchronous_commit"); setting != "on" {
		t.Errorf("I24: synchronous_commit is %s after a release inside a transaction", setting)
	}
	p.exec(t, "SELECT pglock.release_leases('{x}', '{1}', ARRAY[$1::uuid], '{0}')", g.id.String())
	p.exec(t, "SELECT ended FROM pglock.give_up(gen_random_uuid(), '{x}', ARRAY[$1::uuid], true)", g.id.String())
	if setting := one[string](t, p, "SHOW synchronous_commit"); setting != "on" {
		t.Errorf("I24: synchronous_commit is %s after release_leases and give_up inside a transaction", setting)
	}
	p.exec(t, "ROLLBACK")

	for _, isolation := range []string{"read committed", "serializable"} {
		pool := db.Pool(t, oneConnection, withDefault("default_transaction_isolation", isolation))
		c := newClient(t, pool)
		lease := must.Get(c.TryAcquire(t.Context(), "y"))(t)
		must.Do(t, lease.Release(t.Context()))
		var setting string
		if err := pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&setting); err != nil || setting != "on" {
			t.Errorf("I24: synchronous_commit is %s after a release (%v)", setting, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		nextChange(t, watching(ctx, c, "y"))
		cancel()
		if err := pool.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&setting); err != nil || setting != "on" {
			t.Errorf("I20: synchronous_commit is %s after a watch (%v)", setting, err)
		}
	}
}

// The releases that the library sends do not wait for the disk, and its grants do.
func TestI24_ReleaseIsAsynchronousAndGrantIsNot(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB",
		"autovacuum": "off"})
	look := newPeer(t, server.URL())
	flushed := func() bool {
		return one[bool](t, look, `SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()`)
	}
	const rounds = 10
	for _, setting := range []string{"off", "on"} {
		c := newClient(t, newPool(t, server.URL(), withDefault("synchronous_commit", setting)))
		grants, renewals, releases := 0, 0, 0 // after how many of them the log was on disk
		count := func(n *int) {
			if flushed() {
				*n++
			}
		}
		for range rounds {
			lease := must.Get(c.TryAcquire(t.Context(), "x"))(t)
			count(&grants)
			must.Do(t, hooks.Of(lease).Renew(t.Context()))
			count(&renewals)
			must.Do(t, lease.Release(t.Context()))
			count(&releases)
		}
		// The server writes a little on its own account, which may come between.
		if grants < rounds-2 || renewals < rounds-2 {
			t.Errorf("I12: %d of %d grants and %d renewals were answered before their WAL was flushed, with "+
				"synchronous_commit = %s",
				rounds-grants, rounds, rounds-renewals, setting)
		}
		if releases > 2 {
			t.Errorf("I24: %d of %d releases waited for the disk, with synchronous_commit = %s", releases, rounds,
				setting)
		}
	}
}
