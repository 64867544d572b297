package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

const guardedWrite = `UPDATE accounts SET balance = balance + 1 WHERE id = 1`

// row is the resource that guardedWrite needs.
func (v *vault) row() string {
	if v.keyed {
		return v.schema + "/1"
	}
	return v.schema
}

// call is a call of fence, for use where arguments cannot be bound.
func (v *vault) call(resource string) string {
	return fmt.Sprintf(`pglock.fence('%s', %d, '%s', '%s', true)`, v.g.name, v.g.token, v.g.id, resource)
}

// guardProofs are what a transaction may have done before it writes, and whether that proves that it is under the
// fence.
var guardProofs = map[string]struct {
	holds bool
	do    func(t *testing.T, v *vault, p *peer) // after BEGIN; it may begin anew
}{
	"nothing": {false, func(*testing.T, *vault, *peer) {}},
	"fence":   {true, func(t *testing.T, v *vault, p *peer) { p.exec(t, `SELECT `+v.call(v.row())) }},
	"fence of another resource": {false, func(t *testing.T, v *vault, p *peer) {
		v.passThese(t, p, v.schema+"x", v.schema+"/2", v.schema+"/", v.row()+"1", strings.ToUpper(v.row()), v.row()+" ")
	}},
	// whose token is greater: resources are not locks
	"fence by another lock": {true, func(t *testing.T, v *vault, p *peer) {
		g := v.look.mustAcquire(t, "another of "+v.schema, time.Minute)
		must.Do(t, p.fence(t.Context(), g, v.row()))
	}},
	"fence of another transaction that is open": {false, func(t *testing.T, v *vault, p *peer) {
		other := v.program(t)
		other.exec(t, `BEGIN`)
		v.pass(t, other)
	}},
	"fence of another transaction that has committed": {false, func(t *testing.T, v *vault, p *peer) {
		v.pass(t, v.program(t))
	}},
	"fence before BEGIN": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `COMMIT`)
		v.pass(t, p)
		p.exec(t, `BEGIN`)
	}},
	"fence before COMMIT AND CHAIN": {false, func(t *testing.T, v *vault, p *peer) {
		v.pass(t, p)
		p.exec(t, `COMMIT AND CHAIN`)
	}},
	"fence before ROLLBACK AND CHAIN": {false, func(t *testing.T, v *vault, p *peer) {
		v.pass(t, p)
		p.exec(t, `ROLLBACK AND CHAIN`)
	}},
	"forged settings": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t,
			`SELECT set_config('pglock.fenced', pg_current_xact_id()::text, true), set_config('pglock.checked', pg_current_xact_id()::text, true),
			set_config('pglock.together', '[{"name": "x", "token": 1}]', true)`)
	}},
	"tables of the same names": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `CREATE TEMP TABLE fences ON COMMIT DROP AS SELECT '`+v.row()+
			`'::text AS resource, pg_current_xact_id() AS fenced_xact, clock_timestamp() AS advanced_at;
			CREATE TEMP TABLE events ON COMMIT DROP AS SELECT 1::bigint AS id, ''::text AS resource, pg_current_xact_id() AS xact, 'bypass'::text AS kind, clock_timestamp() AS at;
			CREATE FUNCTION pg_temp.require_fence(text, text, text, text DEFAULT NULL) RETURNS boolean LANGUAGE sql AS 'SELECT true';
			SET LOCAL search_path = pg_temp, `+v.schema)
	}},
	"subtransaction that rolled back": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		v.pass(t, p)
		p.exec(t, `ROLLBACK TO s`)
	}},
	"subtransaction that was released": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		v.pass(t, p)
		p.exec(t, `RELEASE s`)
	}},
	"released into one that rolled back": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT outside; SAVEPOINT s`)
		v.pass(t, p)
		p.exec(t, `RELEASE s; ROLLBACK TO outside`)
	}},
	"before a subtransaction that rolled back": {true, func(t *testing.T, v *vault, p *peer) {
		v.pass(t, p)
		p.exec(t, `SAVEPOINT s; `+guardedWrite+`; ROLLBACK TO s`)
	}},
	"exception block that failed": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `DO $$ BEGIN PERFORM `+v.call(v.row())+
			`; RAISE 'undone'; EXCEPTION WHEN raise_exception THEN NULL; END $$`)
	}},
	"again, after one that rolled back": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		v.pass(t, p)
		p.exec(t, `ROLLBACK TO s`)
		v.pass(t, p)
	}},
	"after a write that was refused": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		_, err := p.Exec(t.Context(), guardedWrite)
		wantUnfenced(t, "the write before the fence", err)
		p.exec(t, `ROLLBACK TO s`)
		v.pass(t, p)
	}},
	"refused fence": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		if _, err := p.Exec(t.Context(), `SELECT `+strings.Replace(v.call(v.row()), v.g.id.String(), uuid.NewString(),
			1)); state(err) != "LK003" {
			t.Fatalf("a foreign grant ID: %v", err)
		}
		p.exec(t, `ROLLBACK TO s`)
	}},
	"sealed without a fence": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s`)
		if _, err := p.Exec(t.Context(), `SELECT pglock.seal(ARRAY[$1])`, v.row()); state(err) != "LK009" {
			t.Fatal(err)
		}
		p.exec(t, `ROLLBACK TO s`)
	}},
	"constraints immediate": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SET CONSTRAINTS ALL IMMEDIATE`)
		v.pass(t, p)
	}},

	// What a dump brings that was restored into a server whose transaction IDs have come to the same number.
	"older row with this transaction's ID": {false, func(t *testing.T, v *vault, p *peer) {
		v.forge(t, p, `- interval '1 microsecond'`)
	}},
	// as a superuser can
	"row with this transaction's ID": {true, func(t *testing.T, v *vault, p *peer) { v.forge(t, p, ``) }},
	"older bypass with this transaction's ID": {false, func(t *testing.T, v *vault, p *peer) {
		v.forgeBypass(t, p, `- interval '1 microsecond'`)
	}},
	"bypass with this transaction's ID": {true, func(t *testing.T, v *vault, p *peer) { v.forgeBypass(t, p, ``) }},
	"event of another kind": {false, func(t *testing.T, v *vault, p *peer) {
		v.forgeBypass(t, p, ``)
		v.look.exec(t, `UPDATE pglock.events SET kind = 'epoch' WHERE actor = $1`, v.schema)
	}},
	"bypass": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SELECT pglock.bypass_guards('because', 'alice')`)
	}},
	"bypass of another transaction that is open": {false, func(t *testing.T, v *vault, p *peer) {
		other := v.program(t)
		other.exec(t, `BEGIN; SELECT pglock.bypass_guards('because', 'alice')`)
	}},
	"bypass of the transaction before": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SELECT pglock.bypass_guards('because', 'alice')`)
		p.exec(t, `COMMIT; BEGIN`)
	}},
	"bypass that was taken back": {false, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s; SELECT pglock.bypass_guards('because', 'alice'); ROLLBACK TO s`)
	}},
	"bypass in a released savepoint": {true, func(t *testing.T, v *vault, p *peer) {
		p.exec(t, `SAVEPOINT s; SELECT pglock.bypass_guards('because', 'alice'); RELEASE s`)
	}},
}

// forge lets the fence's row say that it was passed by the program's transaction, so much after its begin.
func (v *vault) forge(t *testing.T, p *peer, after string) {
	t.Helper()
	v.pass(t, v.look) // there is a row
	xact, began := one[string](t, p, `SELECT pg_current_xact_id()::text`), one[string](t, p,
		`SELECT transaction_timestamp()::text`)
	v.look.exec(t, `UPDATE pglock.fences SET fenced_xact = $1::text::xid8, advanced_at = $2::text::timestamptz `+after+
		` WHERE resource = $3`, xact, began, v.row())
}

func (v *vault) forgeBypass(t *testing.T, p *peer, after string) {
	t.Helper()
	xact, began := one[string](t, p, `SELECT pg_current_xact_id()::text`), one[string](t, p,
		`SELECT transaction_timestamp()::text`)
	v.look.exec(t,
		`INSERT INTO pglock.events (kind, at, lock_name, token, actor, xact) VALUES ('bypass', $2::text::timestamptz `+
			after+`, '', 0, $3, $1::text::xid8)`,
		xact, began, v.schema)
}

// guardLevels are the isolation levels, each with the form of guard that it meets outside the long tier.
var guardLevels = map[pgx.TxIsoLevel]bool{pgx.ReadCommitted: false, pgx.RepeatableRead: true, pgx.Serializable: false}

// A guarded table takes the fence's own row for proof, of this very transaction, and nothing else.
func TestI3_I18_OnlyThisTransactionsFenceProvesAGuardedWrite(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	for form, keyed := range guardForms {
		for what, proof := range guardProofs {
			for _, level := range levels {
				if level != pgx.ReadCommitted && strings.Contains(what, "with this transaction's ID") ||
					what == "event of another kind" && level != pgx.ReadCommitted {
					continue // a snapshot does not see what another session forges
				}
				if !pgtest.LargeLoads && guardLevels[level] != keyed &&
					!strings.Contains(what, "with this transaction's ID") {
					continue
				}
				if short := map[bool]pgx.TxIsoLevel{true: pgx.ReadCommitted,
					false: pgx.RepeatableRead}[proof.holds]; !pgtest.EveryTest &&
					level != short && what != "nothing" && !strings.HasPrefix(what, "fence") &&
					!strings.Contains(what, "with this transaction's ID") {
					continue
				}
				t.Run(form+"/"+what+"/"+string(level), func(t *testing.T) {
					v := newVaultOf(t, look, keyed)
					v.guard(t)
					before := v.content(t)
					v.enter(t, p)
					// alone: one message is one transaction
					p.exec(t, `SET default_transaction_isolation = '`+string(level)+`'`)
					p.exec(t, `BEGIN`)
					proof.do(t, v, p)
					_, err := p.Exec(t.Context(), guardedWrite)
					if !proof.holds {
						wantUnfenced(t, what, err)
						p.exec(t, `ROLLBACK`)
					} else if err != nil {
						t.Fatal(err)
					} else if _, err := p.Exec(t.Context(), `COMMIT`); err != nil &&
						!strings.HasPrefix(what, "row with") {
						t.Fatal(err)
					}
					if after := v.content(t); (after != before) != (proof.holds && err == nil) {
						t.Errorf("I3: %q became %q", before, after)
					}
				})
			}
		}
	}
}

// The fence may be passed in the statement of the write itself: the guard looks when the statement has ended, and the
// transaction is under the fence by then.
func TestFenceInTheStatementOfTheWrite(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	for form, keyed := range guardForms {
		for what, sql := range map[string]string{
			"fence first": `WITH f AS MATERIALIZED (SELECT xact FROM %s) UPDATE accounts SET balance = balance + 1 FROM f WHERE id = 1 AND f.xact IS NOT NULL`,
			"write first": `WITH w AS (UPDATE accounts SET balance = balance + 1 WHERE id = 1 RETURNING id) SELECT f.xact FROM w, %s f`,
		} {
			t.Run(form+"/"+what, func(t *testing.T) {
				v := newVaultOf(t, look, keyed)
				v.guard(t)
				v.enter(t, p)
				if _, err := p.Exec(t.Context(), fmt.Sprintf(sql, v.call(v.row()))); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// A guarded write is a fenced write: COMMIT refuses all of it when the lease has ended.
func TestI4_GuardedWritesAreRefusedInCommitWhenTheLeaseHasEnded(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	for form, keyed := range guardForms {
		for how, want := range map[string]string{
			`UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1`: "LK001",
			`SELECT FROM pglock.break_lock($1, 'test', 'test')`:                      "LK003",
		} {
			t.Run(form+"/"+want, func(t *testing.T) {
				v := newVaultOf(t, look, keyed)
				v.guard(t)
				before := v.content(t)
				v.enter(t, p)
				p.exec(t, `BEGIN; INSERT INTO other VALUES (5, 5)`)
				v.pass(t, p)
				p.exec(t, guardedWrite)
				v.look.exec(t, how, v.g.name)
				if _, err := p.Exec(t.Context(), `COMMIT`); state(err) != want {
					t.Errorf("I4: COMMIT: %v, want %s", err, want)
				}
				if after := v.content(t); after != before || one[int](t, v.look, `SELECT count(*) FROM other`) != 1 {
					t.Errorf("I4: %q became %q", before, after)
				}
			})
		}
	}
}

// What Write's callback writes after a raw COMMIT of its own is refused by the guard.
func TestI3_TheGuardRefusesWhatAWriteDoesAfterARawCommit(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	v := newVault(t, db, false)
	v.guard(t)
	c, store := newClient(t, pool), fencedstore.New(pool)
	for _, commit := range []string{"COMMIT", "COMMIT; BEGIN", "COMMIT AND CHAIN"} {
		lease := mustTry(t, c, commit, pglock.WithTTL(time.Minute))
		before := one[int](t, v.look, `SELECT balance FROM accounts WHERE id = 1`)
		err := store.Write(t.Context(), fencedstore.Fence{Lease: lease, Resource: v.schema},
			func(ctx context.Context, tx pgx.Tx) error {
				for _, sql := range []string{`SET LOCAL search_path = ` + v.schema, guardedWrite, commit,
					`SET search_path = ` + v.schema, guardedWrite} {
					if _, err := tx.Exec(ctx, sql); err != nil {
						return err
					}
				}
				return nil
			})
		wantUnfenced(t, commit, err)
		if after := one[int](t, v.look, `SELECT balance FROM accounts WHERE id = 1`); after != before+1 {
			t.Errorf("I3: after %s the balance is %d, want what was written before it", commit, after)
		}
	}
}

// A prepared transaction was checked when it was prepared; what its session writes next is another transaction's.
func TestGuardedWritesInAPreparedTransaction(t *testing.T) {
	t.Parallel()
	server := migrated(t, map[string]string{"max_prepared_transactions": "10"})
	for form, keyed := range guardForms {
		for what, bypassed := range map[string]bool{"fence": false, "bypass": true} {
			t.Run(form+"/"+what, func(t *testing.T) {
				v := newVaultAt(t, server.URL(), keyed)
				v.guard(t)
				p := v.program(t)
				p.exec(t, `BEGIN`)
				if bypassed {
					p.exec(t, `SELECT pglock.bypass_guards('because', 'alice')`)
				} else {
					v.pass(t, p)
				}
				p.exec(t, guardedWrite+`; PREPARE TRANSACTION '`+v.schema+`'`)
				_, err := p.Exec(t.Context(), `UPDATE accounts SET balance = 0 WHERE id = 2`)
				wantUnfenced(t, "the write after PREPARE TRANSACTION", err)
				p.exec(t, `COMMIT PREPARED '`+v.schema+`'`)
				wantCount(t, p, 101, "the balance is %d", `SELECT balance FROM accounts WHERE id = 1`)
			})
		}
	}
}

// A bypass says who, why, and to which tables, each once, and only what was committed.
func TestABypassIsInTheHistoryWithEveryTableThatItWroteTo(t *testing.T) {
	db := pgtest.Parallel(t)
	v := newVault(t, db, false)
	v.look.exec(t,
		`CREATE SCHEMA xpublic; CREATE TABLE xpublic.t (id int); CREATE TABLE public.t (id int); CREATE TABLE public."t u" (id int);
		CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)`)
	for _, table := range []string{"accounts", "xpublic.t", "public.t", `public."t u"`, "p"} {
		v.guardTable(t, table)
	}
	p := v.program(t)
	p.exec(t, `BEGIN; INSERT INTO other VALUES (1); SELECT pglock.bypass_guards('the host is gone', 'alice');
		SAVEPOINT s; INSERT INTO p VALUES (1); ROLLBACK TO s;
		INSERT INTO xpublic.t VALUES (1); INSERT INTO public."t u" VALUES (1); INSERT INTO public.t SELECT generate_series(1, 100); INSERT INTO public.t VALUES (1); INSERT INTO p VALUES (1); COMMIT`)
	want := fmt.Sprintf(`bypass|alice|%s|the host is gone|xpublic.t public."t u" public.t %s.p1`,
		one[string](t, p, `SELECT session_user::text`), v.schema)
	if got := one[string](t, p,
		`SELECT concat_ws('|', kind, actor, db_user, reason, resource) FROM pglock.list_history() WHERE kind = 'bypass'`); got != want {
		t.Errorf("the history has %q, want %q", got, want)
	}
	p.exec(t, `BEGIN; SELECT pglock.bypass_guards('nothing', 'bob'); TRUNCATE p; ROLLBACK`)
	wantCount(t, p, 1, "%d bypasses in the history, want the one that was committed",
		`SELECT count(*) FROM pglock.list_history() WHERE kind = 'bypass'`)
	if !pgtest.EveryTest {
		return // 79 partitions are dear
	}
	// Of very many tables it has the first, and says that there were more.
	v.look.exec(t, `DO $$ BEGIN FOR n IN 2..80 LOOP EXECUTE format('CREATE TABLE %I PARTITION OF p FOR VALUES IN (%s)',
		rpad('p' || n, 60, 'x'), n); END LOOP; END $$`)
	v.guardTable(t, "p")
	p.exec(t, `BEGIN; SELECT pglock.bypass_guards('very many', 'carol'); INSERT INTO p SELECT generate_series(2, 80);
		INSERT INTO accounts VALUES (99); INSERT INTO public.t VALUES (1); COMMIT`)
	many := one[string](t, p, `SELECT resource FROM pglock.list_history('', 1)`)
	if n := strings.Count(many, " "); n < 40 || n > 75 || !strings.HasSuffix(many, "x ...") {
		t.Errorf("of 82 tables the history has %d, and at the end %q", n, many[max(0, len(many)-80):])
	}
}

func TestI11_ABypassNeedsAReasonAndAnActor(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	for _, c := range []struct {
		reason, actor any
		names         string
	}{
		{nil, "a", "reason"}, {"", "a", "reason"}, {" \t\n", "a", "reason"}, {strings.Repeat("x", 1025), "a", "reason"},
		{"r", nil, "actor"}, {"r", "", "actor"}, {"r", strings.Repeat("x", 257), "actor"},
	} {
		if _, err := p.Exec(t.Context(), `SELECT pglock.bypass_guards($1, $2)`, c.reason,
			c.actor); state(err) != "22023" || !strings.Contains(err.Error(), c.names+" is ") {
			t.Errorf("%v, %v: %v", c.reason, c.actor, err)
		}
	}
	wantCount(t, p, 0, "I11: %d events", `SELECT count(*) FROM pglock.events`)
}

// Who owns the table can take its guard away: no guard covers that, but the list tells, and guard_table again mends it.
func TestTheListTellsWhatTheOwnerDidToAGuard(t *testing.T) {
	db := pgtest.Parallel(t)
	look, stranger := newPeer(t, db.URL()), newPeer(t, db.URL())
	const row, truncate = `DROP TRIGGER pglock_guard ON accounts; CREATE %s pglock_guard AFTER %s FOR EACH ROW %s EXECUTE FUNCTION %s; ALTER TABLE accounts ENABLE ALWAYS TRIGGER pglock_guard`,
		`CREATE OR REPLACE TRIGGER pglock_guard_truncate %s TRUNCATE ON accounts %s EXECUTE FUNCTION %s; ALTER TABLE accounts ENABLE ALWAYS TRIGGER pglock_guard_truncate`
	const all, guard, nothing = `INSERT OR UPDATE OR DELETE ON accounts`, `pglock.guard_write(ARGS)`, `nothing()`
	const odd, oddTruncate = "trigger pglock_guard of accounts is not as guard_table makes it", "trigger " +
		"pglock_guard_truncate of accounts is not as guard_table makes it"
	for what, c := range map[string]struct {
		sql       string // ARGS is the guard's arguments
		says      string
		unguarded string // what can be written until it is mended
	}{
		"drop of rows": {`DROP TRIGGER pglock_guard ON accounts`, "accounts has no guard for rows",
			guardedWrite},
		"drop of TRUNCATE": {`DROP TRIGGER pglock_guard_truncate ON accounts`,
			"accounts has no guard for TRUNCATE", `TRUNCATE accounts`},
		"disable": {`ALTER TABLE accounts DISABLE TRIGGER pglock_guard`,
			"trigger pglock_guard of accounts is disabled", guardedWrite},
		"disable all": {`ALTER TABLE accounts DISABLE TRIGGER ALL`, "trigger pglock_guard_truncate " +
			"of accounts is disabled", `TRUNCATE accounts`},
		"disable all and enable all": {`ALTER TABLE accounts DISABLE TRIGGER ALL, ENABLE TRIGGER ALL`,
			"is not ENABLE ALWAYS", `SET LOCAL session_replication_role = replica; ` + guardedWrite},
		"enable for replicas": {`ALTER TABLE accounts ENABLE REPLICA TRIGGER pglock_guard`,
			"is not ENABLE ALWAYS", guardedWrite},
		"another name": {`ALTER TRIGGER pglock_guard_truncate ON accounts RENAME TO mine; ALTER TABLE accounts DISABLE TRIGGER mine`, "trigger mine of accounts is not as guard_table makes it", `TRUNCATE accounts`},
		"a condition": {fmt.Sprintf(row, `CONSTRAINT TRIGGER`, all, `WHEN (false)`, guard), odd,
			guardedWrite},
		"fewer events": {fmt.Sprintf(row, `CONSTRAINT TRIGGER`, `INSERT OR DELETE ON accounts`, ``,
			guard), odd, guardedWrite},
		"UPDATE of some columns": {fmt.Sprintf(row, `CONSTRAINT TRIGGER`,
			`INSERT OR UPDATE OF owner OR DELETE ON accounts`, ``, guard), odd, guardedWrite},
		"deferred": {fmt.Sprintf(row, `CONSTRAINT TRIGGER`, all+` DEFERRABLE INITIALLY DEFERRED`,
			``, guard), odd, guardedWrite},
		"one that can be replaced": {fmt.Sprintf(row, `TRIGGER`, all, ``, guard), odd, ``},
		"another function":         {fmt.Sprintf(row, `CONSTRAINT TRIGGER`, all, ``, nothing), odd, guardedWrite},
		"another, with its arguments": {fmt.Sprintf(row, `CONSTRAINT TRIGGER`, all, ``, `nothing(ARGS)`), odd,
			guardedWrite},
		"another function of TRUNCATE": {fmt.Sprintf(truncate, `BEFORE`, ``, nothing), oddTruncate,
			`TRUNCATE accounts`},
		"another fence of TRUNCATE": {fmt.Sprintf(truncate, `BEFORE`, ``, `pglock.guard_write('zzz')`), oddTruncate,
			``},
		"one more": {`CREATE TRIGGER more AFTER INSERT ON accounts FOR EACH ROW WHEN (NEW.id = 99) EXECUTE FUNCTION pglock.guard_write('zzz')`, "trigger more of accounts is not as guard_table makes it", ``},
	} {
		for form, keyed := range guardForms {
			if !pgtest.EveryTest && keyed != strings.HasPrefix(c.says, "accounts has") {
				continue // in the short tier each with one form
			}
			t.Run(form+"/"+what, func(t *testing.T) {
				v := newVaultOf(t, look, keyed)
				v.stranger = stranger
				v.enter(t, stranger)
				v.guard(t)
				args := `'` + v.schema + `'`
				if keyed {
					args += `, 'id'`
				}
				v.look.exec(t,
					`CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';`+
						strings.ReplaceAll(c.sql, `ARGS`, args))
				if got := strings.ReplaceAll(v.problem(t, "accounts"), v.schema+".", ""); !strings.Contains(got,
					c.says) {
					t.Errorf("the list says %q, want %q", got, c.says)
				}
				if c.unguarded != "" {
					v.wantAllowed(t, c.unguarded)
				}
				v.guard(t)
				if got := v.problem(t, "accounts"); got != "" {
					t.Errorf("guarded again: %s", got)
				}
				for _, sql := range []string{guardedWrite, `TRUNCATE accounts`,
					`SET LOCAL session_replication_role = replica; ` + guardedWrite,
					`SET LOCAL session_replication_role = replica; TRUNCATE accounts`} {
					v.wantRefused(t, sql)
				}
			})
		}
	}
}

// A guard goes with its table, whatever that is called later, and keeps its resource.
func TestI3_AGuardSurvivesOtherNames(t *testing.T) {
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.guard(t)
			v.look.exec(t, `CREATE SCHEMA new_`+v.schema+
				`; ALTER TABLE accounts RENAME TO funds; ALTER TABLE funds SET SCHEMA new_`+v.schema)
			table := `new_` + v.schema + `.funds`
			v.wantRefused(t, `UPDATE `+table+` SET balance = 0`)
			v.wantRefused(t, `TRUNCATE `+table)
			p := v.program(t)
			p.exec(t, `BEGIN`)
			v.pass(t, p)
			p.exec(t, `UPDATE `+table+` SET balance = 0`)
			p.exec(t, `COMMIT`)
			if got := one[string](t, v.look,
				`SELECT coalesce(problem, '') FROM pglock.list_guards() WHERE table_name = $1`, table); got != "" {
				t.Errorf("the list says %q", got)
			}
		})
	}
}

// Without its key column a row has no fence: nothing can be written, whatever was passed, and the list says why.
func TestGuardOfRowsFailsClosedWithoutItsKeyColumn(t *testing.T) {
	db := pgtest.Parallel(t)
	for what, sql := range map[string]string{"renamed": `ALTER TABLE accounts RENAME id TO number`,
		"dropped": `ALTER TABLE accounts DROP id`} {
		t.Run(what, func(t *testing.T) {
			v := newVault(t, db, true)
			v.guard(t)
			v.look.exec(t, sql)
			if got, want := v.problem(t, "accounts"), v.schema+".accounts has no column id"; got != want {
				t.Errorf("the list says %q, want %q", got, want)
			}
			p := v.program(t)
			for _, sql := range []string{`INSERT INTO accounts (owner) VALUES (3)`, `UPDATE accounts SET balance = 0`,
				`DELETE FROM accounts`} {
				if what == "renamed" {
					sql = strings.Replace(strings.Replace(sql, `(owner)`, `(number)`, 1), `WHERE id`, `WHERE number`, 1)
				}
				p.exec(t, `BEGIN`)
				v.pass(t, p)
				_, err := p.Exec(t.Context(), sql)
				wantUnfenced(t, sql, err)
				p.exec(t, `ROLLBACK`)
			}
			if _, err := v.look.Exec(t.Context(), `SELECT pglock.guard_table('accounts', $1, 'id')`,
				v.schema); state(err) != "42703" {
				t.Errorf("guarded again by the column that is gone: %v", err)
			}
			v.look.exec(t, `SELECT pglock.unguard_table('accounts')`)
			v.wantAllowed(t, `UPDATE accounts SET balance = 0`)
		})
	}
}
