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
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Wherever the savepoints of a transaction are, one whose fence was not rolled back is under it: the check inside
// COMMIT comes, with seal and without, and seal lets it pass.
func TestI4_A5_SavepointsKeepTheFence(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for what, sql := range map[string]string{ // $FENCE again is of the same grant
		"fence in a released savepoint":                `SAVEPOINT s; $FENCE; RELEASE s`,
		"fence in two released savepoints":             `SAVEPOINT s; SAVEPOINT u; $FENCE; RELEASE u; RELEASE s`,
		"ROLLBACK TO after the fence":                  `$FENCE; SAVEPOINT s; SELECT 1; ROLLBACK TO s`,
		"ROLLBACK TO a savepoint in a released one":    `SAVEPOINT s; $FENCE; SAVEPOINT u; SELECT 1; ROLLBACK TO u; RELEASE s`,
		"fence again after a rolled back one":          `SAVEPOINT s; $FENCE; ROLLBACK TO s; $FENCE`,
		"fence again, rolled back":                     `$FENCE; SAVEPOINT s; $FENCE; ROLLBACK TO s`,
		"constraints immediate in a rolled back one":   `$FENCE; SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO s`,
		"constraints immediate, fence again":           `$FENCE; SET CONSTRAINTS ALL IMMEDIATE; $FENCE`,
		"constraints immediate before the fence":       `SET CONSTRAINTS ALL IMMEDIATE; $FENCE`,
		"constraints immediate before two fences":      `SET CONSTRAINTS ALL IMMEDIATE; $FENCE; $FENCE`,
		"constraints immediate, fence, rolled back":    `SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; $FENCE; ROLLBACK TO s; $FENCE`,
		"constraints immediate, fence, released":       `SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; $FENCE; RELEASE s`,
		"fence, rolled back, constraints immediate":    `SAVEPOINT s; $FENCE; ROLLBACK TO s; SET CONSTRAINTS ALL IMMEDIATE; $FENCE`,
		"fence in an exception block that caught none": `DO $do$ BEGIN PERFORM $CALL; EXCEPTION WHEN OTHERS THEN RAISE; END $do$`,
	} {
		for _, sealed := range []bool{false, true} {
			for ended, want := range map[bool]string{false: "", true: "LK001"} {
				t.Run(fmt.Sprintf("%s/sealed=%v/ended=%v", what, sealed, ended), func(t *testing.T) {
					f := newFencedTxOn(t, p, look, time.Minute)
					call := fmt.Sprintf(`FROM pglock.fence('%s', %d, '%s', p_allow_same_token => true)`, f.g.name,
						f.g.token, f.g.id)
					f.exec(t, `BEGIN`)
					f.exec(t, strings.NewReplacer("$FENCE", "SELECT "+call, "$CALL", call).Replace(sql))
					f.exec(t, `INSERT INTO ledger (token) VALUES ($1)`, f.g.token)
					if sealed {
						f.exec(t, `SELECT pglock.seal(ARRAY[$1])`, f.g.name)
					}
					if ended {
						endNow(t, f.look, f.g.name)
					}
					f.wantCommit(t, want)
				})
			}
		}
	}
}

// The early check of a savepoint that was rolled back keeps nobody from the lock, and counts for nothing.
func TestI4_RolledBackEarlyCheckHoldsNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	f := beginFenced(t, db.URL(), pgx.ReadCommitted, time.Minute)
	hastyBreaks(t, f.look)
	f.exec(t, `SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE`)
	wantWaits(t, f.look, breakSQL, f.g.name)
	f.exec(t, `ROLLBACK TO s`)
	f.look.exec(t, breakSQL, f.g.name)
	f.wantCommit(t, "LK003")
}

// Nothing that a transaction may set, create or become, before its fence or after it, switches the check off: its
// COMMIT is refused when the lease has ended, and only then.
func TestI4_A5_NothingInTheTransactionSwitchesTheCheckOff(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	before := map[string]string{ // where the fence is what would be changed
		"session_replication_role=replica": `SET session_replication_role = replica`,
		"another search path":              `SET search_path = ''`,
	}
	for what, sql := range map[string]string{
		"session_replication_role=replica": `SET LOCAL session_replication_role = replica`,
		"constraints deferred":             `SET CONSTRAINTS ALL DEFERRED`,
		"another role, without rights":     `SET LOCAL ROLE pg_monitor`,
		"settings reset":                   `RESET ALL`,
		"settings of the library forged": `SELECT set_config('pglock.fenced', '1', true), set_config('pglock.checked',
			pg_current_xact_id()::text, true)`,
		"another search path": `SET LOCAL search_path = pg_temp`,
		"tables of our names": `CREATE TEMP TABLE locks ON COMMIT DROP AS TABLE pglock.locks;
			UPDATE pg_temp.locks SET expires_at = 'infinity'; CREATE TEMP TABLE fences ON COMMIT DROP AS TABLE pglock.fences`,
		"functions of our names": `CREATE OR REPLACE FUNCTION pg_temp.clock_timestamp() RETURNS timestamptz LANGUAGE sql
			AS 'SELECT ''-infinity''::timestamptz';
			SET LOCAL search_path = pg_temp, pg_catalog`,
		"the fence's row deleted":   `DELETE FROM pglock.fences`,
		"the fence's row rewritten": `UPDATE pglock.fences SET last_token = last_token + 1000000, fenced_xact = '1'`,
	} {
		for ended, want := range map[bool]string{false: "", true: "LK001"} {
			t.Run(fmt.Sprintf("%s/ended=%v", what, ended), func(t *testing.T) {
				f := newFencedTxOn(t, p, look, time.Minute)
				f.exec(t, before[what])
				f.begin(t, pgx.ReadCommitted)
				f.exec(t, sql)
				if ended {
					endNow(t, f.look, f.g.name)
				}
				f.wantCommit(t, want)
			})
		}
	}
}

// A transaction that a check is due for cannot switch it off, its tables' owner not excepted. Dropping it is another
// matter: see TestHole_OwnerMayDropTheCheck.
func TestI4_TriggerStaysWhileACheckIsDue(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, sql := range []string{
		`ALTER TABLE pglock.fences DISABLE TRIGGER fence_commit`, `TRUNCATE pglock.fences`,
		`DROP TABLE pglock.fences CASCADE`,
	} {
		t.Run(sql, func(t *testing.T) {
			f := newFencedTxOn(t, p, look, time.Minute)
			f.begin(t, pgx.ReadCommitted)
			if _, err := f.Exec(t.Context(), sql); state(err) != "55006" {
				t.Errorf("%s in a fenced transaction: %v", sql, err)
			}
		})
	}
}

// In Write, seal goes with COMMIT: games with savepoints and settings in the callback end in a checked commit or in an
// error, and never in an unchecked row.
func TestI4_CallbackOfWriteCannotLeaveTheFenceUnnoticed(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	look := newPeer(t, db.URL())
	c, store := newClient(t, pool), fencedstore.New(pool)
	for what, tc := range map[string]struct {
		sql     string
		refused string // for another reason than the lease: the SQLSTATE
	}{
		"savepoints":                       {`SAVEPOINT s; SELECT 1; ROLLBACK TO s; RELEASE s`, ""},
		"constraints immediate":            {`SET CONSTRAINTS ALL IMMEDIATE`, ""},
		"constraints immediate, roll back": {`SAVEPOINT s; SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK TO s`, ""},
		"session_replication_role=replica": {`SET LOCAL session_replication_role = replica`, ""},
		"settings reset":                   {`RESET ALL`, ""},
		"another role, without rights":     {`SET LOCAL ROLE pg_monitor`, "42501"},
	} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/ended=%v", what, ended), func(t *testing.T) {
				lease := mustTry(t, c, t.Name(), pglock.WithTTL(time.Minute))
				err := store.Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token()); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, tc.sql)
					if ended {
						endNow(t, look, lease.Name())
					}
					return err
				})
				rows := 0
				switch {
				case tc.refused != "":
					if state(err) != tc.refused {
						t.Errorf("Write answered %v, want SQLSTATE %s", err, tc.refused)
					}
				case ended:
					if !errors.Is(err, pglock.ErrLost) {
						t.Errorf("Write answered %v, want ErrLost", err)
					}
				default:
					rows = 1
					if err != nil {
						t.Error(err)
					}
				}
				if n := one[int](t, look, `SELECT count(*) FROM ledger WHERE token = $1`, lease.Token()); n != rows {
					t.Errorf("I4: %d rows were committed, want %d", n, rows)
				}
			})
		}
	}
}
