package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The ways to end a lease, each with its name, its token, its grant ID and the key of its session.
var endWays = map[string]string{
	"release_lease": `SELECT released FROM pglock.release_lease($1, $2, $3) WHERE $4 <> ''`,
	"release_lease that waits": `SELECT r.released
		FROM pglock.release_otherwise($1, $2, $3, NULL, NULL, false) r WHERE $4 <> ''`,
	"release_leases": `SELECT released
		FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}') WHERE $4 <> ''`,
	"hand_over":  `SELECT outcome = 'handed over' FROM pglock.hand_over($1, $2, $3, 'heir') WHERE $4 <> ''`,
	"give_up":    `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid]) WHERE $2::bigint > 0`,
	"spending":   `SELECT ended FROM pglock.give_up($4, ARRAY[$1], ARRAY[$3::uuid], true) WHERE $2::bigint > 0`,
	"break_lock": `SELECT true FROM pglock.break_lock($1, 'test', 'test', $2) WHERE $3 <> $4`,
	"break_session": `SELECT b.new_token IS NOT NULL
		FROM pglock.locks l, pglock.break_session(l.session_id, 'test', 'test') b
		WHERE l.name = $1 AND $2::bigint > 0 AND $3 <> $4`,
}

const queueForHeir = `SELECT FROM pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'heir', '1 min',
	p_wait => true)`

// I4: whoever queues locks the lease's row. If another transaction does so too, or one of the lock and the end is in a
// subtransaction, the check would follow the row past the end. So such an end is refused.
func TestI4_ALeaseDoesNotEndWhereItWasLockedBefore(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	queues := func(t *testing.T, p *peer, f *fencedTx) { p.exec(t, queueForHeir, f.g.name) }
	fenced := func(t *testing.T, p *peer, f *fencedTx) {
		must.Do(t, p.fence(t.Context(), f.g, "another"))
		liftLimits(t, p)
		p.exec(t, `SET CONSTRAINTS ALL IMMEDIATE`)
	}
	for how, lock := range map[string]struct {
		before string
		locks  func(*testing.T, *peer, *fencedTx)
		after  string
		joined bool
	}{
		"queued beside another":             {`SELECT`, queues, `SELECT`, true},
		"queued, end in a subtransaction":   {`SELECT`, queues, `SAVEPOINT s`, false},
		"queued in a subtransaction":        {`SAVEPOINT s`, queues, `RELEASE s`, false},
		"checked, end in a subtransaction":  {`SELECT`, fenced, `SAVEPOINT s`, false},
		"checked before, beside who queues": {`SELECT`, fenced, `SELECT`, true},
	} {
		for what, sql := range endWays {
			t.Run(how+"/"+what, func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				other.exec(t, queueForHeir, f.g.name)
				f.begin(t, pgx.RepeatableRead)
				f.renew(t)
				look.exec(t, `BEGIN`)
				look.exec(t, lock.before)
				lock.locks(t, look, f)
				if lock.joined {
					other.exec(t, queueForHeir, f.g.name)
				}
				look.exec(t, lock.after)
				want, ended := endRefused(what), false
				args := []any{f.g.name, f.g.token, f.g.id.String(), f.key.String()}
				if err := look.QueryRow(t.Context(), sql, args...).Scan(&ended); state(err) != want {
					t.Errorf("I4: ended: %v, %v, want %s", ended, err, want)
				}
				look.exec(t, `COMMIT`)
				_, err := f.Exec(t.Context(), `COMMIT`)
				const over = `SELECT token <> $2 OR expires_at = '-infinity' FROM pglock.locks WHERE name = $1`
				if over := one[bool](t, look, over, f.g.name, f.g.token); over || err != nil {
					t.Errorf("I4: afterwards the lease has ended: %v, and COMMIT answers %v", over, err)
				}
			})
		}
	}
}

// I4: where one transaction alone has locked the row, and no part of it is a subtransaction, the end is a change of the
// key. So is one where all of it is in the same subtransaction, and one after joiners that have ended.
func TestI4_AnEndAfterALockOfOnesOwnIsSeenByTheCheck(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	for how, part := range map[string]struct {
		before, after string
		queues        bool
	}{
		"queued":                          {`BEGIN`, `SELECT`, true},
		"queued, all in a subtransaction": {`BEGIN; SAVEPOINT s`, `SELECT`, true},
		"queued in a subtransaction that was rolled back": {`BEGIN; SAVEPOINT s`, `ROLLBACK TO s`, true},
		"queued in a transaction before":                  {`BEGIN`, `COMMIT; BEGIN`, true},
		"alone in a subtransaction":                       {`BEGIN; SAVEPOINT s`, `RELEASE s; SAVEPOINT s`, false},
	} {
		for what, sql := range endWays {
			t.Run(how+"/"+what, func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				other.exec(t, queueForHeir, f.g.name)
				f.begin(t, pgx.RepeatableRead)
				f.renew(t)
				look.exec(t, part.before)
				if part.queues {
					look.exec(t, queueForHeir, f.g.name)
				}
				look.exec(t, part.after)
				var ended bool
				err := look.QueryRow(t.Context(), sql, f.g.name, f.g.token, f.g.id.String(), f.key.String()).
					Scan(&ended)
				if !ended || err != nil {
					t.Errorf("ended: %v, %v", ended, err)
				}
				look.exec(t, `COMMIT`)
				if _, err := f.Exec(t.Context(), `COMMIT`); state(err) != "40001" {
					t.Errorf("I4: COMMIT answers %v, want 40001", err)
				}
			})
		}
	}
}

// endRefused is the SQLSTATE by which a way to end a lease is refused.
func endRefused(what string) string {
	if what == "give_up" || what == "spending" {
		return "55P03"
	}
	return "55000"
}

// Whoever acquires and releases a lock again and again in one transaction, whatever the mode, is not refused.
func TestI4_OneTransactionMayAcquireAndReleaseInTurn(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	patientTransactions(t, p)
	for _, mode := range []string{"exclusive", "shared", "limit 2"} {
		t.Run(mode, func(t *testing.T) {
			for range 2 { // at first the row is new
				p.exec(t, `BEGIN`)
				for _, sql := range []string{
					`SELECT released FROM pglock.release_lease($1, $2, $3)`,
					`SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{NULL}')`,
					`SELECT ended FROM pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[$3::uuid]) WHERE $2::bigint > 0`,
					`SELECT released FROM pglock.release_lease($1, $2, $3)`,
				} {
					g := p.mustAsk(t, mode, mode)
					if !one[bool](t, p, sql, g.name, g.token, g.id.String()) {
						t.Errorf("%s has ended nothing", sql)
					}
				}
				p.exec(t, `COMMIT`)
			}
		})
	}
}

// I4: nor is a lease taken over that runs out after the transaction has queued for it, and another one has locked it
// too, here to take back an extension. The snapshot of the fenced transaction shows that one still.
func TestI4_ALeaseIsNotTakenOverWhereItWasLockedBefore(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look, other := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientTransactions(t, look)
	const renew = `SELECT expires_at FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}',
		NULL, $4::text[]::interval[], $5::timestamptz[])`
	for _, mode := range []string{"exclusive", "shared"} {
		t.Run(mode, func(t *testing.T) {
			f := newFencedTxOn(t, p, look, time.Minute)
			look.exec(t, `UPDATE pglock.locks SET ttl = '1 s' WHERE name = $1`, f.g.name)
			args := []any{f.g.name, f.g.token, f.g.id.String()}
			until := one[time.Time](t, look, renew, append(args, []string{"1 min"}, nil)...)
			f.begin(t, pgx.RepeatableRead)
			look.exec(t, `BEGIN`)
			q := look.mustEnqueue(t, f.g.name, mode, nil)
			one[time.Time](t, other, renew, append(args, nil, []time.Time{until})...)
			awaitExpiry(t, other, f.g.name)
			if again, err := look.enqueue(t.Context(), f.g.name, q.id, mode, nil); state(err) != "55P03" {
				t.Errorf("I4: granted: %v, %v, want 55P03", again.granted, err)
			}
			look.exec(t, `COMMIT`)
			_, err := f.Exec(t.Context(), `COMMIT`)
			next, errNext := other.ask(t, f.g.name, "exclusive", false)
			if err != nil || errNext != nil || !next.granted {
				t.Errorf("COMMIT answers %v, and the next request %v, %v", err, next.granted, errNext)
			}
		})
	}
}
