package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A transaction may have a snapshot from before a renewal. The check inside COMMIT then locks the version of the
// lease's row that it sees, which the renewal leaves open to it, and has to notice that a later version was ended: each
// way to end a lease is a change of the key for whoever follows the versions. A lock in a subtransaction, and the
// change outside it, would be none.
func TestI4_A5_TheCheckFollowsTheRowFromARenewalToTheEnd(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	for what, sql := range map[string]string{
		"release_lease":  `SELECT released FROM pglock.release_lease($1, $2, $3) WHERE $4 <> ''`,
		"release_leases": `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}') WHERE $4 <> ''`,
		"give_up":        `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid]) WHERE $2::bigint > 0`,
		"spending":       `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid], true) WHERE $2::bigint > 0`,
		"break_lock":     `SELECT true FROM pglock.break_lock($1, 'test', 'test', $2) WHERE $3 <> $4`,
		"break_session": `SELECT b.new_token IS NOT NULL FROM pglock.locks l, pglock.break_session(l.session_id, 'test', 'test') b
			WHERE l.name = $1 AND $2::bigint > 0 AND $3 <> $4`,
	} {
		for _, level := range fewLevels() {
			t.Run(what+"/"+string(level), func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				f.begin(t, level)
				f.renew(t)
				if !one[bool](t, f.look, sql, f.g.name, f.g.token, f.g.id.String(), f.key.String()) {
					t.Fatal("the lease has not ended")
				}
				_, err := f.Exec(t.Context(), `COMMIT`)
				want := []string{"LK001", "LK002", "LK003"}
				if level != pgx.ReadCommitted {
					want = []string{"40001"}
				}
				if !slices.Contains(want, state(err)) {
					t.Errorf("I4: COMMIT after the end answers %v", err)
				}
			})
		}
	}
}

// I4: a statement for many that also names a lease of the same lock which is over, as a reader's, ends the writer's by
// a change of the key too.
func TestI4_A5_ReleasesOfOneLockTogetherAreSeenByTheCheck(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	for _, level := range fewLevels() {
		t.Run(string(level), func(t *testing.T) {
			p := newPeer(t, db.URL())
			over := must.Get(p.ask(t, t.Name(), "shared", false))(t)
			if released, err := p.release(t.Context(), over); err != nil || !released {
				t.Fatalf("%v, released: %v", err, released)
			}
			f := newFencedTxOn(t, p, look, time.Minute)
			f.begin(t, level)
			f.renew(t)
			const both = `SELECT count(*) FROM pglock.release_leases(ARRAY[$1, $1], ARRAY[$2::bigint, $4],
				ARRAY[$3::uuid, $5], '{1,0}') WHERE released`
			if n := one[int](t, look, both,
				f.g.name, over.token, over.id.String(), f.g.token, f.g.id.String()); n != 1 {
				t.Fatalf("%d leases have ended, want 1", n)
			}
			want := []string{"LK001", "LK002", "LK003"}
			if level != pgx.ReadCommitted {
				want = []string{"40001"}
			}
			if _, err := f.Exec(t.Context(), `COMMIT`); !slices.Contains(want, state(err)) {
				t.Errorf("I4: COMMIT after the end answers %v", err)
			}
		})
	}
}

// I4: a renewal leaves its lock on the row. If one part of a transaction renews and another ends the lease, and only
// one of them is a subtransaction, the check would follow the row past the end. So such a transaction is refused.
func TestI4_ALeaseDoesNotEndWhereOneWasRenewed(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	const renew = `SELECT outcome = 'renewed' AND $4 <> ''
		FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`
	for what, sql := range map[string]string{
		"release_lease": `SELECT released FROM pglock.release_lease($1, $2, $3) WHERE $4 <> ''`,
		"release_leases": `SELECT released
			FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}') WHERE $4 <> ''`,
		"hand_over":  `SELECT outcome FROM pglock.hand_over($1, $2, $3, 'somebody') WHERE $4 <> ''`,
		"give_up":    `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid]) WHERE $2::bigint > 0`,
		"break_lock": `SELECT true FROM pglock.break_lock($1, 'test', 'test', $2) WHERE $3 <> $4`,
		"break_session": `SELECT b.new_token FROM pglock.locks l, pglock.break_session(l.session_id, 'test', 'test') b
			WHERE l.name = $1 AND $2::bigint > 0 AND $3 <> $4`,
	} {
		for how, around := range map[string][2]string{
			"end in a subtransaction":     {`SELECT`, `SAVEPOINT s`},
			"renewal in a subtransaction": {`SAVEPOINT s`, `RELEASE s`},
			"neither":                     {`SELECT`, `SELECT`},
		} {
			t.Run(what+"/"+how, func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				f.begin(t, pgx.RepeatableRead)
				args := []any{f.g.name, f.g.token, f.g.id.String(), f.key.String()}
				look.exec(t, `BEGIN`)
				look.exec(t, around[0])
				if !one[bool](t, look, renew, args...) {
					t.Fatal("not renewed")
				}
				look.exec(t, around[1])
				if _, err := look.Exec(t.Context(), sql, args...); state(err) != "55000" {
					t.Errorf("I4: %s: %v, want 55000", what, err)
				}
				look.exec(t, `COMMIT`)
				_, err := f.Exec(t.Context(), `COMMIT`)
				const over = `SELECT expires_at = '-infinity' FROM pglock.locks WHERE name = $1`
				ended := one[bool](t, look, over, f.g.name)
				if ended || err != nil {
					t.Errorf("I4: afterwards the lease has ended: %v, and COMMIT answers %v", ended, err)
				}
			})
		}
	}
	another := look.mustAcquire(t, "another", time.Minute)
	if released, err := look.release(t.Context(), another); err != nil || !released {
		t.Errorf("in a transaction by itself: %v, %v", released, err)
	}
}

// I4: nor is a lease taken over that ran out because the same transaction has taken back its extension: the snapshot of
// the fenced transaction shows the longer one.
func TestI4_ALeaseIsNotTakenOverWhereOneWasRenewed(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	patientTransactions(t, look)
	f := newFencedTxOn(t, p, look, time.Minute)
	look.exec(t, `UPDATE pglock.locks SET ttl = '2 s' WHERE name = $1`, f.g.name)
	const renew = `SELECT expires_at FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}',
		NULL, $4::text[]::interval[], $5::timestamptz[])`
	const take = `SELECT granted FROM pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'next', '1 min')`
	until := one[time.Time](t, look, renew, f.g.name, f.g.token, f.g.id.String(), []string{"1 min"}, nil)
	f.begin(t, pgx.RepeatableRead)
	look.exec(t, `BEGIN`)
	one[time.Time](t, look, renew, f.g.name, f.g.token, f.g.id.String(), nil, []time.Time{until})
	look.exec(t, `SELECT pg_sleep(2.1)`)
	if !one[bool](t, look, `SELECT expires_at <= clock_timestamp() FROM pglock.locks WHERE name = $1`, f.g.name) {
		t.Fatal("the lease has not run out")
	}
	look.exec(t, `SAVEPOINT s`)
	granted := one[bool](t, look, take, f.g.name)
	look.exec(t, `COMMIT`)
	if _, err := f.Exec(t.Context(), `COMMIT`); granted {
		t.Errorf("I4: the lease was taken over, and COMMIT answers %v", err)
	}
	if next := look.mustAcquire(t, f.g.name, time.Minute); next.token <= f.g.token {
		t.Errorf("I2: token %d after %d", next.token, f.g.token)
	}
}

// I4: a hand-over that finds nobody, or only looks, locks no row: else an end in another subtransaction would be no
// change of the key. One that hands the lock over is a change of the key.
func TestI4_AHandOverHidesNoEnd(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint NOT NULL)`)
	for what, heir := range map[string]struct {
		label    string
		looks    bool
		outcome  string
		releases bool
	}{
		"to nobody":   {"nobody", false, "nobody", true},
		"a look":      {"peer", true, "handed over", true},
		"to a waiter": {"peer", false, "handed over", false},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFencedTxOn(t, p, look, time.Minute)
			p.mustEnqueue(t, f.g.name, "exclusive", nil)
			f.begin(t, pgx.RepeatableRead)
			f.renew(t)
			look.exec(t, `BEGIN; SAVEPOINT one`)
			const sql = `SELECT outcome FROM pglock.hand_over($1, $2, $3, $4, $5)`
			if got := one[string](t, look, sql, f.g.name, f.g.token, f.g.id.String(), heir.label,
				heir.looks); got != heir.outcome {
				t.Fatalf("the hand-over answers %q, want %q", got, heir.outcome)
			}
			look.exec(t, `RELEASE one; SAVEPOINT two`)
			if released, err := look.release(t.Context(), f.g); err != nil || released != heir.releases {
				t.Fatal(released, err)
			}
			look.exec(t, `COMMIT`)
			if _, err := f.Exec(t.Context(), `COMMIT`); state(err) != "40001" {
				t.Errorf("I4: COMMIT after the next grant answers %v, want 40001", err)
			}
		})
	}
}

// I4: nor does an end that comes too late hide a takeover: whoever has no lease locks nothing. The snapshot of the
// fenced transaction shows an extension that was taken back.
func TestI4_AnEndThatIsTooLateHidesNoTakeover(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	for what, late := range map[string]string{
		"hand_over":     `SELECT outcome = 'handed over' FROM pglock.hand_over($1, $2, $3, 'somebody')`,
		"release_lease": `SELECT released FROM pglock.release_lease($1, $2, $3)`,
		"release_leases": `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid],
			'{0}')`,
	} {
		t.Run(what, func(t *testing.T) {
			f := newFencedTxOn(t, p, look, time.Minute)
			look.exec(t, `UPDATE pglock.locks SET ttl = '1 s' WHERE name = $1`, f.g.name)
			const renew = `SELECT expires_at FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}',
				NULL, $4::text[]::interval[], $5::timestamptz[])`
			args := []any{f.g.name, f.g.token, f.g.id.String()}
			until := one[time.Time](t, look, renew, append(args, []string{"1 min"}, nil)...)
			f.begin(t, pgx.RepeatableRead)
			one[time.Time](t, look, renew, append(args, nil, []time.Time{until})...)
			awaitExpiry(t, look, f.g.name)
			look.exec(t, `BEGIN; SAVEPOINT one`)
			if one[bool](t, look, late, args...) {
				t.Fatal("the lease ends again")
			}
			look.exec(t, `RELEASE one; SAVEPOINT two`)
			const take = `SELECT granted FROM pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'next', '1 h')`
			if !one[bool](t, look, take, f.g.name) {
				t.Fatal("the lease was not taken over")
			}
			look.exec(t, `COMMIT`)
			if _, err := f.Exec(t.Context(), `COMMIT`); state(err) != "40001" {
				t.Errorf("I4: COMMIT after the next grant answers %v, want 40001", err)
			}
		})
	}
}

// I4: a hand-over that finds its waiter gone when it has locked the row keeps that lock. Nothing ends after it in the
// same transaction.
func TestI4_NothingEndsAfterAHandOverThatHasLockedInVain(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waits, stop, ends := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, p)
	held := p.mustAcquire(t, "report", time.Minute)
	id := waits.queue(t, "report", uuid.New()).id
	stop.exec(t, `BEGIN; SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE`)
	ends.exec(t, `BEGIN; SAVEPOINT one`)
	type answer struct {
		outcome string
		err     error
	}
	answered := must.Go(func() answer {
		var a answer
		a.err = ends.QueryRow(t.Context(), `SELECT outcome FROM pglock.hand_over('report', $1, $2, 'peer')`, held.token,
			held.id.String()).Scan(&a.outcome)
		return a
	})
	ends.awaitBlocked(t, p)
	waits.exec(t, `SELECT FROM pglock.give_up($1, '{report}', ARRAY[$2::uuid])`, waits.key.String(), id.String())
	stop.exec(t, `COMMIT`)
	if a := <-answered; a.err != nil || a.outcome != "nobody" {
		t.Fatalf("the hand-over answers %q, %v, want nobody", a.outcome, a.err)
	}
	ends.exec(t, `RELEASE one; SAVEPOINT two`)
	if _, err := ends.release(t.Context(), held); state(err) != "55000" {
		t.Errorf("I4: a release after a lock of the row in another subtransaction: %v, want 55000", err)
	}
}
