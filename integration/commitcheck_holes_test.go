package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A hole is what the code of a fenced transaction can do to get a write past the check inside COMMIT. Each is pinned
// here as it is, beside what closes it: whoever closes one will see its test fail, and can strike it from the
// documentation.

// SET CONSTRAINTS ... IMMEDIATE makes the check run before its time. A transaction that ends without seal commits after
// its lease then. It commits before any other grant even so: from the early check on it holds the lock's row.
func TestHole_ConstraintsImmediateUseUpTheCheck(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	hastyBreaks(t, newPeer(t, db.URL()))
	for what, sql := range map[string]string{
		"all":                     `SET CONSTRAINTS ALL IMMEDIATE`,
		"by name":                 `SET CONSTRAINTS pglock.fence_commit IMMEDIATE`,
		"and deferred again":      `SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED`,
		"in a released savepoint": `SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; RELEASE s`,
	} {
		for end, want := range map[string]string{
			"raw COMMIT": "",
			"sealed":     "LK001", // closed
		} {
			t.Run(what+"/"+end, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				f := beginFenced(t, db.URL(), pgx.ReadCommitted, time.Minute)
				f.exec(t, sql)
				wantWaits(t, f.look, breakSQL, f.g.name)
				endNow(t, f.look, f.g.name)
				wantNotGranted(t, f.look, f.g)
				if end == "sealed" {
					if _, err := f.Exec(t.Context(), `SELECT pglock.seal(ARRAY[$1])`, f.g.name); state(err) != want {
						t.Errorf("I4: seal: %v, want %s", err, want)
					}
					f.exec(t, `ROLLBACK`)
				} else {
					f.wantCommit(t, want)
				}
				if next := f.look.mustAcquire(t, f.g.name, time.Minute); next.token <= f.g.token {
					t.Errorf("I2: token %d after %d", next.token, f.g.token)
				}
			})
		}
	}
}

// seal closes it for every fence that it names: it refuses when one of the leases has ended, and holds them to the end.
func TestI4_SealChecksAndHoldsTheLeaseOfEveryFence(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	for _, ended := range []int{0, 1, 2} {
		f := beginFenced(t, db.URL(), pgx.ReadCommitted, time.Minute)
		gs := [2]grant{f.g, f.look.mustAcquire(t, t.Name()+"/other", time.Minute)}
		must.Do(t, f.fence(t.Context(), gs[1], gs[1].name))
		f.exec(t, `SET CONSTRAINTS ALL IMMEDIATE`)
		if ended < 2 {
			endNow(t, f.look, gs[ended].name)
		}
		_, err := f.Exec(t.Context(), `SELECT pglock.seal(ARRAY[$1, $2])`, gs[1].name, gs[0].name)
		if want := map[bool]string{true: "LK001"}[ended < 2]; state(err) != want {
			t.Errorf("I4: seal with lease %d ended: %v, want %q", ended, err, want)
		}
		if err == nil {
			for _, g := range gs {
				endNow(t, f.look, g.name)
				wantNotGranted(t, f.look, g)
			}
		}
		f.exec(t, `ROLLBACK`)
		endNow(t, f.look, gs[0].name)
		endNow(t, f.look, gs[1].name)
	}
}

// seal has to be the last statement: what comes after it may use up the check inside COMMIT. Write sends it in one
// message with COMMIT. Nobody is granted the lock even so.
func TestHole_ConstraintsImmediateAfterSeal(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	f := beginFenced(t, db.URL(), pgx.ReadCommitted, time.Minute)
	f.exec(t, `SELECT pglock.seal(ARRAY[$1])`, f.g.name)
	f.exec(t, `SET CONSTRAINTS ALL IMMEDIATE`)
	endNow(t, f.look, f.g.name)
	wantNotGranted(t, f.look, f.g)
	f.wantCommit(t, "")
}

// A transaction of REPEATABLE READ or SERIALIZABLE cannot see that somebody has ended its lease by hand, without a new
// token: this is why break_lock draws one, and why release locks the row FOR UPDATE.
func TestHole_LeaseEndedByHandIsHiddenFromASnapshot(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	for level, want := range map[pgx.TxIsoLevel]string{pgx.ReadCommitted: "LK003", pgx.RepeatableRead: "",
		pgx.Serializable: ""} {
		t.Run(string(level), func(t *testing.T) {
			f := beginFenced(t, db.URL(), level, time.Minute)
			f.look.exec(t, `UPDATE pglock.locks SET expires_at = '-infinity' WHERE name = $1`, f.g.name)
			f.wantCommit(t, want)
		})
	}
}

// PostgreSQL lets the owner of a table drop a trigger that is due. Nobody else may.
func TestHole_OwnerMayDropTheCheck(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	const drop = `DROP TRIGGER fence_commit ON pglock.fences`
	f := beginFenced(t, db.URL(), pgx.ReadCommitted, time.Minute)
	f.exec(t, `SAVEPOINT s; SET LOCAL ROLE pg_monitor`)
	if _, err := f.Exec(t.Context(), drop); state(err) != "42501" {
		t.Errorf("I4: who does not own the fences dropped their check: %v", err)
	}
	f.exec(t, `ROLLBACK TO s`)
	f.exec(t, drop)
	endNow(t, f.look, f.g.name)
	f.wantCommit(t, "")
}

// unfenced are ways to write in a transaction whose fence is gone. The write comes after the one of the next holder,
// with a token that is stale by then.
var unfenced = map[string]string{
	"ROLLBACK TO before the fence":  `SAVEPOINT s; SELECT $FENCE; ROLLBACK TO s`,
	"released, then rolled back":    `SAVEPOINT u; SAVEPOINT s; SELECT $FENCE; RELEASE s; ROLLBACK TO u`,
	"exception block":               `DO $do$ BEGIN PERFORM $FENCE; RAISE 'undone'; EXCEPTION WHEN raise_exception THEN NULL; END $do$`,
	"COMMIT on the way":             `SELECT $FENCE; COMMIT; BEGIN`,
	"COMMIT AND CHAIN on the way":   `SELECT $FENCE; COMMIT AND CHAIN`,
	"ROLLBACK AND CHAIN on the way": `SELECT $FENCE; ROLLBACK AND CHAIN`,
	"no fence at all":               ``,
}

// A write without the fence commits, whatever became of the lease and whoever has written since. Seal tells before
// COMMIT; the guard of a table refuses the write itself.
func TestHole_WriteInATransactionThatLostItsFence(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for what, sql := range unfenced {
		for closing, want := range map[string]string{
			"raw COMMIT":    "", // the hole
			"sealed":        "LK009",
			"guarded table": "LK011",
		} {
			t.Run(what+"/"+closing, func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				if closing == "guarded table" {
					f.look.exec(t, `SELECT pglock.guard_table('ledger', $1)`, f.g.name)
					defer f.look.exec(t, `SELECT pglock.unguard_table('ledger')`)
				}
				f.exec(t, `BEGIN`)
				// Several statements in one message take no arguments.
				f.exec(t, strings.ReplaceAll(sql, "$FENCE", fmt.Sprintf(`FROM pglock.fence('%s', %d, '%s')`, f.g.name,
					f.g.token, f.g.id)))
				f.look.exec(t, breakSQL, f.g.name)
				next := f.look.mustAcquire(t, f.g.name, time.Minute)
				if err := f.look.fence(t.Context(), next, next.name); err != nil { // commits by itself
					t.Fatal(err)
				}
				tag, err := f.Exec(t.Context(), `INSERT INTO ledger (token) VALUES ($1)`, f.g.token)
				if err == nil {
					tag, err = f.Exec(t.Context(),
						map[bool]string{false: `COMMIT`, true: fmt.Sprintf(`SELECT pglock.seal(ARRAY['%s']); COMMIT`,
							f.g.name)}[closing == "sealed"])
				}
				f.exec(t, `ROLLBACK`)
				wantAnswer(t, f.look, f.g, tag.String(), err, want)
			})
		}
	}
}

// What Write's callback wrote after a raw COMMIT stays, although Write fails, the lock was broken and the next holder
// has written. What was written before it was checked. The guard of a table refuses the later row.
func TestHole_WritesAfterARawCommitInTheCallbackStay(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint, what text)`)
	c, store := newClient(t, pool), fencedstore.New(pool)
	for commit, stay := range map[string]string{
		"COMMIT":           "after before", // what follows commits by itself
		"COMMIT; BEGIN":    "before",       // what follows is in a second transaction, which seal aborts
		"COMMIT AND CHAIN": "before",
	} {
		for _, guarded := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/guarded=%v", commit, guarded), func(t *testing.T) {
				lease := mustTry(t, c, t.Name(), pglock.WithTTL(time.Minute))
				wantErr, wantRows := fencedstore.ErrLeftFence, stay
				if guarded {
					if err := fencedstore.GuardTable(t.Context(), pool, "ledger",
						fencedstore.WithTableResource(lease.Resource())); err != nil {
						t.Fatal(err)
					}
					defer look.exec(t, `SELECT pglock.unguard_table('ledger')`)
					wantErr, wantRows = fencedstore.ErrUnfenced, "before"
				}
				err := store.Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
					const insert = `INSERT INTO ledger VALUES ($1, $2)`
					if _, err := tx.Exec(ctx, insert, lease.Token(), "before"); err != nil {
						return err
					}
					if _, err := tx.Exec(ctx, commit); err != nil {
						return err
					}
					look.exec(t, breakSQL, lease.Name())
					next := look.mustAcquire(t, lease.Name(), time.Minute)
					if err := look.fence(ctx, next, next.name); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, insert, lease.Token(), "after")
					return err
				})
				if !errors.Is(err, wantErr) {
					t.Errorf("Write answered %v, want %v", err, wantErr)
				}
				rows := one[string](t, look,
					`SELECT coalesce(string_agg(what, ' ' ORDER BY what), '') FROM ledger WHERE token = $1`,
					lease.Token())
				if rows != wantRows {
					t.Errorf("the ledger has %q, want %q", rows, wantRows)
				}
			})
		}
	}
}
