package integration

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// vault is a guarded table, accounts with rows 1 and 2, in a schema of its own, beside tables that are not guarded. One
// lease passes its fences, as often as it likes.
type vault struct {
	url    string
	schema string // and the resource's name
	keyed  bool   // a resource for each row
	look   *peer  // another program, which sees everything
	g      grant

	stranger *peer // one that passes no fence
}

var vaults atomic.Int64

// newVault makes one that is not guarded yet.
func newVault(t *testing.T, db *pgtest.DB, keyed bool) *vault {
	t.Helper()
	return newVaultAt(t, db.URL(), keyed)
}

func newVaultAt(t *testing.T, url string, keyed bool) *vault {
	t.Helper()
	return newVaultOf(t, newPeer(t, url), keyed)
}

// newVaultOf makes one that others have looked after another before: connections are dear.
func newVaultOf(t *testing.T, look *peer, keyed bool) *vault {
	t.Helper()
	v := &vault{url: look.Config().ConnString(), schema: fmt.Sprint("vault", vaults.Add(1)), keyed: keyed, look: look}
	v.look.exec(t, fmt.Sprintf(`CREATE SCHEMA %[1]s; SET search_path = %[1]s, public;
		CREATE TABLE customers (id int PRIMARY KEY); INSERT INTO customers VALUES (0), (7), (8), (9);
		CREATE TABLE accounts (id int PRIMARY KEY, owner int DEFAULT 0, balance int); INSERT INTO accounts VALUES (1, 7, 100), (2, 8, 100);
		CREATE TABLE other (id int, balance int); INSERT INTO other VALUES (1, 1)`, v.schema))
	v.g = v.look.mustAcquire(t, v.schema, time.Hour)
	return v
}

func (v *vault) guard(t *testing.T) {
	t.Helper()
	v.guardTable(t, `accounts`)
}

func (v *vault) guardTable(t *testing.T, table string) {
	t.Helper()
	v.look.exec(t, `SELECT pglock.guard_table($1::text::regclass, $2, $3)`, table, v.schema, v.key())
}

func (v *vault) key() *string {
	if !v.keyed {
		return nil
	}
	id := "id"
	return &id
}

// program is a program that uses the vault.
func (v *vault) program(t *testing.T) *peer {
	t.Helper()
	p := newPeer(t, v.url)
	v.enter(t, p)
	return p
}

// enter makes p, which may have used another vault before, a program that uses this one.
func (v *vault) enter(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `ROLLBACK`) // of a test before that failed
	p.exec(t, `SET search_path = `+v.schema+`, public`)
}

// pass puts the program's transaction under the fences of the table: of the whole, or of its rows and of what is no
// row.
func (v *vault) pass(t *testing.T, p *peer) {
	t.Helper()
	resources := []string{v.schema}
	if v.keyed {
		for _, id := range []int{1, 2, 3, 11, 12, 13, 19, 99} {
			resources = append(resources, fmt.Sprint(v.schema, "/", id))
		}
	}
	v.passThese(t, p, resources...)
}

func (v *vault) passThese(t *testing.T, p *peer, resources ...string) {
	t.Helper()
	p.exec(t,
		`SELECT FROM pglock.fence_all(array_fill($1::text, ARRAY[$2::int]), array_fill($3::bigint, ARRAY[$2::int]), array_fill($4::text::uuid, ARRAY[$2::int]), $5,
		p_allow_same_token => true)`, v.g.name, len(resources), v.g.token, v.g.id.String(), resources)
}

// content is what is in the tables that the test may not, or must, change.
func (v *vault) content(t *testing.T) string {
	t.Helper()
	return one[string](t, v.look, `SELECT coalesce(string_agg(a::text, ' ' ORDER BY a::text), '') FROM accounts a`)
}

// wantUnfenced fails unless err is the guard's refusal, which names table and resource.
func wantUnfenced(t *testing.T, what string, err error) {
	t.Helper()
	if state(err) != "LK011" || !strings.HasPrefix(detail(err), "resource=") {
		t.Errorf("I3: %s: %v with DETAIL %q, want LK011", what, err, detail(err))
	}
}

// guardWay is one way to write to accounts.
type guardWay struct {
	setup string // what the application has made before the guard
	sql   string
	do    func(ctx context.Context, p *peer) error // instead of sql
	noRow bool                                     // it writes no row, which no guard minds
	since int                                      // the server's version that knows it
	// outside the long tier it meets the guard of rows, not that of statements
	rows  bool
	short string // how the guard's form begins that it meets in the short tier
}

const writeFunction = `CREATE FUNCTION write(change int) RETURNS int LANGUAGE sql %s AS $$ UPDATE accounts SET balance = balance + change WHERE id = 1 RETURNING balance $$;`

var guardWays = map[string]guardWay{
	"INSERT":                 {short: "o", sql: `INSERT INTO accounts VALUES (3, 9, 1)`},
	"INSERT of nothing":      {sql: `INSERT INTO accounts SELECT 3 WHERE false`, noRow: true},
	"INSERT SELECT":          {rows: true, sql: `INSERT INTO accounts SELECT 3, 9, balance FROM other`},
	"INSERT RETURNING":       {rows: true, sql: `INSERT INTO accounts VALUES (3) RETURNING id`},
	"ON CONFLICT DO NOTHING": {rows: true, sql: `INSERT INTO accounts VALUES (3) ON CONFLICT DO NOTHING`},
	"ON CONFLICT DO NOTHING, in vain": {rows: true, sql: `INSERT INTO accounts VALUES (1) ON CONFLICT DO NOTHING`,
		noRow: true},
	"ON CONFLICT DO UPDATE": {short: "a", rows: true,
		sql: `INSERT INTO accounts VALUES (1) ON CONFLICT (id) DO UPDATE SET balance = 0`},
	"ON CONFLICT DO UPDATE, in vain": {sql: `INSERT INTO accounts VALUES (1) ON CONFLICT (id) DO UPDATE SET balance = 0 WHERE false`, noRow: true},
	"UPDATE":                         {short: "o", sql: `UPDATE accounts SET balance = 0`},
	"UPDATE of zero rows": {short: "a", rows: true, sql: `UPDATE accounts SET balance = 0 WHERE id = 5`,
		noRow: true},
	"UPDATE FROM another table": {rows: true,
		sql: `UPDATE accounts a SET balance = o.balance FROM other o WHERE a.id = o.id`},
	"UPDATE RETURNING":           {sql: `UPDATE accounts SET balance = 0 WHERE id = 1 RETURNING balance`},
	"UPDATE of the key":          {short: "a", rows: true, sql: `UPDATE accounts SET id = 11 WHERE id = 1`},
	"DELETE":                     {short: "o", sql: `DELETE FROM accounts WHERE id = 1`},
	"DELETE of zero rows":        {sql: `DELETE FROM accounts WHERE id = 5`, noRow: true},
	"DELETE USING another table": {rows: true, sql: `DELETE FROM accounts a USING other o WHERE a.id = o.id`},
	"DELETE RETURNING":           {rows: true, sql: `DELETE FROM accounts RETURNING *`},
	"TRUNCATE":                   {short: "o", sql: `TRUNCATE accounts`},
	"TRUNCATE of two tables":     {short: "a", rows: true, sql: `TRUNCATE other, accounts`},
	"TRUNCATE CASCADE by a foreign key": {short: "o",
		setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers`, sql: `TRUNCATE customers CASCADE`},
	"TRUNCATE ONLY RESTART IDENTITY": {rows: true, sql: `TRUNCATE ONLY accounts RESTART IDENTITY`},

	"COPY in text": {short: "o", do: copyIn(`COPY accounts FROM STDIN`, "3\t9\t1\n")},
	"COPY in CSV":  {rows: true, do: copyIn(`COPY accounts (id, balance) FROM STDIN WITH (FORMAT csv)`, "3,1\n")},
	"COPY in binary": {do: copyIn(`COPY accounts (id) FROM STDIN WITH (FORMAT binary)`,
		"PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x04\x00\x00\x00\x03\xff\xff")},
	"COPY of no rows":    {do: copyIn(`COPY accounts FROM STDIN`, ""), noRow: true},
	"CopyFrom of pgx":    {short: "a", rows: true, do: copyFrom},
	"COPY a query to it": {rows: true, sql: `COPY (UPDATE accounts SET balance = 0 RETURNING id) TO STDOUT`},

	"MERGE that inserts": {since: 150000,
		sql: `MERGE INTO accounts a USING (VALUES (3, 1)) s (id, balance) ON a.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (s.id, 9, s.balance)`},
	"MERGE that updates": {short: "a", rows: true, since: 150000,
		sql: `MERGE INTO accounts a USING other o ON a.id = o.id WHEN MATCHED THEN UPDATE SET balance = 0`},
	"MERGE that deletes": {rows: true, since: 150000,
		sql: `MERGE INTO accounts a USING other o ON a.id = o.id WHEN MATCHED THEN DELETE`},

	"CTE":                   {sql: `WITH w AS (UPDATE accounts SET balance = 0 RETURNING id) SELECT count(*) FROM w`},
	"CTE that nobody reads": {short: "a", rows: true, sql: `WITH w AS (DELETE FROM accounts) SELECT 1`},
	"CTE in the write of another": {rows: true,
		sql: `WITH w AS (DELETE FROM accounts RETURNING id, balance) INSERT INTO other SELECT * FROM w`},
	"several statements in one": {sql: `INSERT INTO other VALUES (2, 2); UPDATE accounts SET balance = 0; SELECT 1`},
	"writable view": {short: "o",
		setup: `CREATE VIEW v AS SELECT id, balance FROM accounts WHERE balance > 0`,
		sql:   `UPDATE v SET balance = 5 WHERE id = 1`},
	"INSERT through a view": {rows: true, setup: `CREATE VIEW v AS SELECT * FROM accounts`,
		sql: `INSERT INTO v VALUES (3)`},
	"view of a view": {rows: true,
		setup: `CREATE VIEW v AS SELECT id, balance FROM accounts; CREATE VIEW w AS SELECT * FROM v WITH CHECK OPTION`,
		sql:   `DELETE FROM w`},
	"view with a trigger of its own": {setup: fmt.Sprintf(writeFunction, ``) + `CREATE VIEW v AS SELECT 1 AS change;
		CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM write(NEW.change); RETURN NEW; END $$;
		CREATE TRIGGER i INSTEAD OF INSERT ON v FOR EACH ROW EXECUTE FUNCTION instead()`,
		sql: `INSERT INTO v VALUES (5)`},

	"foreign key ON DELETE CASCADE": {short: "a", rows: true,
		setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE CASCADE`,
		sql:   `DELETE FROM customers WHERE id = 7`},
	"foreign key ON DELETE SET NULL": {rows: true,
		setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE SET NULL`,
		sql:   `DELETE FROM customers WHERE id = 7`},
	"foreign key ON DELETE SET DEFAULT": {setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE SET DEFAULT`, sql: `DELETE FROM customers WHERE id = 7`},
	"foreign key ON UPDATE CASCADE":     {setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON UPDATE CASCADE`, sql: `UPDATE customers SET id = 70 WHERE id = 7`},
	"foreign key of nobody": {rows: true,
		setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE CASCADE`,
		sql:   `DELETE FROM customers WHERE id = 9`, noRow: true},
	"foreign key that cascades over a table between": {rows: true,
		setup: `CREATE TABLE branches (id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE); INSERT INTO branches VALUES (7, 9);
		ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES branches ON DELETE CASCADE NOT VALID`,
		sql: `DELETE FROM customers WHERE id = 9`},

	"function": {setup: fmt.Sprintf(writeFunction, ``), sql: `SELECT write(5)`},
	"SECURITY DEFINER function": {short: "a", rows: true, setup: fmt.Sprintf(writeFunction, `SECURITY DEFINER`),
		sql: `SELECT write(5)`},
	"function in the WHERE of a SELECT": {setup: fmt.Sprintf(writeFunction, ``),
		sql: `SELECT FROM other WHERE write(5) > 0`},
	"function in a default": {rows: true, setup: fmt.Sprintf(writeFunction, ``) +
		`ALTER TABLE other ADD changed int; ALTER TABLE other ALTER changed SET DEFAULT write(5)`,
		sql: `INSERT INTO other VALUES (3)`},
	"DO block": {rows: true, sql: `DO $$ BEGIN EXECUTE 'UPDATE accounts SET balance = 0'; END $$`},
	"procedure": {setup: `CREATE PROCEDURE p() LANGUAGE plpgsql AS $$ BEGIN UPDATE accounts SET balance = 0; END $$`,
		sql: `CALL p()`},
	"trigger of another table": {rows: true, setup: fmt.Sprintf(writeFunction, ``) +
		`CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM write(5); RETURN NEW; END $$;
		CREATE TRIGGER f BEFORE INSERT ON other FOR EACH ROW EXECUTE FUNCTION f()`,
		sql: `INSERT INTO other VALUES (3)`},
	"rule DO ALSO": {rows: true,
		setup: `CREATE RULE r AS ON INSERT TO other DO ALSO UPDATE accounts SET balance = NEW.balance`,
		sql:   `INSERT INTO other VALUES (3, 3)`},
	"rule DO INSTEAD": {setup: `CREATE RULE r AS ON DELETE TO other DO INSTEAD DELETE FROM accounts WHERE id = OLD.id`,
		sql: `DELETE FROM other`},

	"cursor, UPDATE WHERE CURRENT OF": {sql: `DECLARE c CURSOR FOR SELECT * FROM accounts FOR UPDATE; FETCH c; UPDATE accounts SET balance = 0 WHERE CURRENT OF c`},
	"cursor, DELETE WHERE CURRENT OF": {short: "a", rows: true,
		sql: `DECLARE c CURSOR FOR SELECT * FROM accounts; FETCH c; DELETE FROM accounts WHERE CURRENT OF c`},
	"PREPARE and EXECUTE":    {rows: true, do: preparedByHand},
	"prepared by the driver": {do: preparedUpdate},
	"constraints immediate":  {rows: true, sql: `SET CONSTRAINTS ALL IMMEDIATE; UPDATE accounts SET balance = 0`},
	"constraints deferred":   {short: "o", sql: `SET CONSTRAINTS ALL DEFERRED; UPDATE accounts SET balance = 0`},
	"released savepoint":     {short: "a", rows: true, sql: `SAVEPOINT s; UPDATE accounts SET balance = 0; RELEASE s`},

	"replica role, INSERT": {rows: true,
		sql: `SET LOCAL session_replication_role = replica; INSERT INTO accounts VALUES (3)`},
	"replica role, UPDATE": {short: "o",
		sql: `SET LOCAL session_replication_role = replica; UPDATE accounts SET balance = 0`},
	"replica role, DELETE": {short: "a", rows: true,
		sql: `SET LOCAL session_replication_role = replica; DELETE FROM accounts`},
	"replica role, TRUNCATE": {short: "o", sql: `SET LOCAL session_replication_role = replica; TRUNCATE accounts`},
	"local role, UPDATE": {rows: true,
		sql: `SET LOCAL session_replication_role = local; UPDATE accounts SET balance = 0`},
}

func copyIn(sql, data string) func(ctx context.Context, p *peer) error {
	return func(ctx context.Context, p *peer) error {
		_, err := p.PgConn().CopyFrom(ctx, bytes.NewBufferString(data), sql)
		return err
	}
}

func copyFrom(ctx context.Context, p *peer) error {
	_, err := p.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"id", "balance"}, pgx.CopyFromRows([][]any{{3, 1}}))
	return err
}

func preparedUpdate(ctx context.Context, p *peer) error {
	_, err := p.Exec(ctx, `UPDATE accounts SET balance = $1`, 5)
	return err
}

func preparedByHand(ctx context.Context, p *peer) error {
	name := fmt.Sprint("s", vaults.Add(1)) // one that was refused stays prepared
	_, err := p.Exec(ctx, `PREPARE `+name+` AS UPDATE accounts SET balance = $1; EXECUTE `+name+` (5)`)
	return err
}

func (w guardWay) write(ctx context.Context, p *peer) error {
	if w.do != nil {
		return w.do(ctx, p)
	}
	_, err := p.Exec(ctx, w.sql)
	return err
}

// guardForms are the two forms of a guard.
var guardForms = map[string]bool{"one resource": false, "a resource for each row": true}

// Whatever writes to the table is refused without its fence, and changes nothing; with it, it does what it says.
func TestI3_EveryWayToWriteToAGuardedTableNeedsItsFence(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	version := serverVersion(t, look)
	for form, keyed := range guardForms {
		for name, w := range guardWays {
			if !pgtest.LargeLoads && w.rows != keyed || !pgtest.EveryTest && w.short != form[:1] {
				continue
			}
			t.Run(form+"/"+name, func(t *testing.T) {
				if version < w.since {
					t.Skipf("PostgreSQL %d has no such statement", version)
				}
				w.try(t, newVaultOf(t, look, keyed), p)
			})
		}
	}
}

// try writes without the fence, which is refused and changes nothing, and then with it.
func (w guardWay) try(t *testing.T, v *vault, p *peer) {
	t.Helper()
	if w.setup != "" {
		v.look.exec(t, w.setup)
	}
	v.guard(t)
	before := v.content(t)
	v.enter(t, p)
	p.exec(t, `BEGIN`)
	if err := w.write(t.Context(), p); !w.noRow {
		wantUnfenced(t, "without the fence", err)
	} else if err != nil {
		t.Errorf("without a row: %v", err)
	}
	p.exec(t, `ROLLBACK`)
	if after := v.content(t); after != before {
		t.Errorf("I3: a refused write has changed %q to %q", before, after)
	}
	p.exec(t, `BEGIN`)
	v.pass(t, p)
	if err := w.write(t.Context(), p); err != nil {
		t.Fatalf("with the fence: %v", err)
	}
	p.exec(t, `COMMIT`)
	if after := v.content(t); (after == before) != w.noRow {
		t.Errorf("with the fence: %q became %q", before, after)
	}
}

// What only reads, or locks, needs no fence.
func TestReadsAndLocksOfAGuardedTableNeedNoFence(t *testing.T) {
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.look.exec(t, `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE CASCADE`)
			v.guard(t)
			p := v.program(t)
			for _, sql := range []string{
				`SELECT * FROM accounts`, `SELECT * FROM accounts FOR UPDATE`,
				`SELECT * FROM accounts FOR NO KEY UPDATE`,
				`SELECT * FROM accounts FOR SHARE`, `SELECT * FROM accounts FOR KEY SHARE SKIP LOCKED`,
				`BEGIN; LOCK TABLE accounts IN ACCESS EXCLUSIVE MODE; COMMIT`, `COPY accounts TO STDOUT`,
				`TABLE accounts`,
				`EXPLAIN DELETE FROM accounts`, `PREPARE s AS DELETE FROM accounts`, `ANALYZE accounts`,
				`VACUUM accounts`, `REINDEX TABLE accounts`,
				`INSERT INTO customers VALUES (10)`, `UPDATE other SET balance = 2`, `TRUNCATE other`,
			} {
				if _, err := p.Exec(t.Context(), sql); err != nil {
					t.Errorf("%s: %v", sql, err)
				}
			}
			_, err := p.Exec(t.Context(), `EXPLAIN ANALYZE DELETE FROM accounts`) // which writes
			wantUnfenced(t, "EXPLAIN ANALYZE", err)
		})
	}
}

// A write that waits for COMMIT is refused there, and one of a transaction that is under the fence is done there.
func TestI3_WritesInsideCommitNeedTheFenceToo(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	for form, keyed := range guardForms {
		for what, sql := range map[string]string{
			"deferred trigger":            `INSERT INTO other VALUES (2, 2)`,
			"cursor that outlives COMMIT": `DECLARE c CURSOR WITH HOLD FOR SELECT write(5)`,
		} {
			t.Run(form+"/"+what, func(t *testing.T) {
				v := newVaultOf(t, look, keyed)
				v.look.exec(t, fmt.Sprintf(writeFunction, ``)+`
					CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM write(5); RETURN NULL; END $$;
					CREATE CONSTRAINT TRIGGER f AFTER INSERT ON other DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f()`)
				v.guard(t)
				before := v.content(t)
				p := v.program(t)
				p.exec(t, `BEGIN`)
				p.exec(t, sql)
				_, err := p.Exec(t.Context(), `COMMIT`)
				wantUnfenced(t, "COMMIT", err)
				if after := v.content(t); after != before {
					t.Errorf("I3: %q became %q", before, after)
				}
				p.exec(t, `BEGIN`)
				v.pass(t, p)
				p.exec(t, sql)
				p.exec(t, `COMMIT`)
				if v.content(t) == before {
					t.Error("nothing was written under the fence")
				}
			})
		}
	}
}

// A program that swallows the refusal has written nothing.
func TestI3_ARefusalThatIsSwallowedLeavesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.guard(t)
			before := v.content(t)
			v.program(t).exec(t, `DO $$ BEGIN UPDATE accounts SET balance = 0; EXCEPTION WHEN OTHERS THEN NULL; END $$`)
			if after := v.content(t); after != before {
				t.Errorf("I3: %q became %q", before, after)
			}
		})
	}
}

// Of a procedure that commits in between, what follows is another transaction.
func TestI3_AProcedureThatCommitsInBetweenHasToPassTheFenceAgain(t *testing.T) {
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.guard(t)
			v.look.exec(t, fmt.Sprintf(`CREATE PROCEDURE p(again boolean) LANGUAGE plpgsql AS $$
				DECLARE resource text := CASE WHEN %[5]v THEN '%[4]s/1' ELSE '%[4]s' END;
				BEGIN
					PERFORM pglock.fence('%[1]s', %[2]d, '%[3]s', resource, true);
					UPDATE accounts SET balance = balance + 1 WHERE id = 1;
					COMMIT;
					IF again THEN PERFORM pglock.fence('%[1]s', %[2]d, '%[3]s', resource, true); END IF;
					UPDATE accounts SET balance = balance + 10 WHERE id = 1;
				END $$`, v.g.name, v.g.token, v.g.id, v.schema, keyed))
			p := v.program(t)
			_, err := p.Exec(t.Context(), `CALL p(false)`)
			wantUnfenced(t, "the write after COMMIT", err)
			wantCount(t, p, 101, "the balance is %d, want what was written before COMMIT",
				`SELECT balance FROM accounts WHERE id = 1`)
			p.exec(t, `CALL p(true)`)
			wantCount(t, p, 112, "the balance is %d, want both writes", `SELECT balance FROM accounts WHERE id = 1`)
		})
	}
}
