package integration

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// newPartedVault is a vault whose accounts are partitioned, and one partition is again.
func newPartedVault(t *testing.T, db *pgtest.DB, keyed bool) *vault {
	t.Helper()
	return newPartedVaultOf(t, newPeer(t, db.URL()), keyed)
}

func newPartedVaultOf(t *testing.T, look *peer, keyed bool) *vault {
	t.Helper()
	v := newVaultOf(t, look, keyed)
	v.look.exec(t, `DROP TABLE accounts;
		CREATE TABLE accounts (id int, owner int DEFAULT 7, balance int, PRIMARY KEY (id, owner)) PARTITION BY RANGE (id);
		CREATE TABLE low PARTITION OF accounts FOR VALUES FROM (0) TO (10);
		CREATE TABLE middle PARTITION OF accounts FOR VALUES FROM (10) TO (20) PARTITION BY LIST (owner);
		CREATE TABLE middle7 PARTITION OF middle FOR VALUES IN (7);
		CREATE TABLE middle_rest PARTITION OF middle DEFAULT;
		INSERT INTO accounts VALUES (1, 7, 100), (11, 7, 100), (12, 8, 100)`)
	return v
}

// problem is what list_guards says of a table, "none" when it is not in the list.
func (v *vault) problem(t *testing.T, table string) string {
	t.Helper()
	return one[string](t, v.look,
		`SELECT coalesce((SELECT coalesce(problem, '') FROM pglock.list_guards() WHERE table_name = $1), 'none')`,
		v.schema+"."+table)
}

// try does something in a transaction without a fence, which is rolled back.
func (v *vault) try(t *testing.T, sql string) error {
	t.Helper()
	if v.stranger == nil {
		v.stranger = v.program(t)
	}
	v.stranger.exec(t, `BEGIN`)
	_, err := v.stranger.Exec(t.Context(), sql)
	v.stranger.exec(t, `ROLLBACK`)
	return err
}

// wantRefused fails unless the statement is refused to a program without a fence.
func (v *vault) wantRefused(t *testing.T, sql string) {
	t.Helper()
	wantUnfenced(t, sql, v.try(t, sql))
}

func (v *vault) wantAllowed(t *testing.T, sql string) {
	t.Helper()
	if err := v.try(t, sql); err != nil {
		t.Errorf("%s without a guard: %v", sql, err)
	}
}

func TestI3_EveryWayIntoAPartitionNeedsTheFence(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	version := serverVersion(t, look)
	for form, keyed := range guardForms {
		for name, w := range map[string]guardWay{
			"INSERT through the root":             {sql: `INSERT INTO accounts VALUES (2)`},
			"INSERT through the root and another": {sql: `INSERT INTO accounts VALUES (13)`},
			"INSERT into a leaf":                  {sql: `INSERT INTO low VALUES (2)`},
			"INSERT through a middle table":       {sql: `INSERT INTO middle VALUES (13)`},
			"INSERT into a leaf of it":            {sql: `INSERT INTO middle7 VALUES (13)`},
			"ON CONFLICT DO UPDATE":               {sql: `INSERT INTO accounts VALUES (1) ON CONFLICT (id, owner) DO UPDATE SET balance = 0`},
			"COPY into the root":                  {do: copyIn(`COPY accounts (id) FROM STDIN`, "2\n13\n")},
			"COPY into a leaf":                    {do: copyIn(`COPY middle7 (id) FROM STDIN`, "13\n")},
			"CopyFrom of pgx":                     {do: copyFrom},
			"UPDATE through the root":             {sql: `UPDATE accounts SET balance = 0`},
			"UPDATE through a middle table":       {sql: `UPDATE middle SET balance = 0`},
			"UPDATE of a leaf":                    {sql: `UPDATE middle_rest SET balance = 0`},
			"UPDATE ONLY of a leaf":               {sql: `UPDATE ONLY low SET balance = 0`},
			"UPDATE that moves a row":             {sql: `UPDATE accounts SET id = 13 WHERE id = 1`},
			"UPDATE that moves it below":          {sql: `UPDATE middle SET owner = 9 WHERE id = 11`},
			"UPDATE of zero rows":                 {sql: `UPDATE accounts SET balance = 0 WHERE id = 9`, noRow: true},
			"DELETE through the root":             {sql: `DELETE FROM accounts`},
			"DELETE from a leaf":                  {sql: `DELETE FROM low`},
			"MERGE": {since: 150000,
				sql: `MERGE INTO accounts a USING other o ON a.id = o.id WHEN MATCHED THEN UPDATE SET balance = 0`},
			"foreign key ON DELETE CASCADE": {
				setup: `ALTER TABLE accounts ADD FOREIGN KEY (owner) REFERENCES customers ON DELETE CASCADE`,
				sql:   `DELETE FROM customers WHERE id = 7`},
			"foreign key of one partition": {setup: `ALTER TABLE low ADD FOREIGN KEY (owner) REFERENCES customers ON UPDATE CASCADE`, sql: `UPDATE customers SET id = 70 WHERE id = 7`},
			"writable view of a leaf":      {setup: `CREATE VIEW v AS SELECT * FROM low`, sql: `DELETE FROM v`},
			"TRUNCATE of the root":         {sql: `TRUNCATE accounts`},
			"TRUNCATE of a middle table":   {sql: `TRUNCATE middle`},
			"TRUNCATE of a leaf":           {sql: `TRUNCATE middle7`},
			"replica role, leaf":           {sql: `SET LOCAL session_replication_role = replica; UPDATE middle7 SET balance = 0`},
			"replica role, moved": {sql: `SET LOCAL session_replication_role = replica;
				UPDATE accounts SET id = 13 WHERE id = 1`},
			"replica role, TRUNCATE": {sql: `SET LOCAL session_replication_role = replica; TRUNCATE low`},
		} {
			t.Run(form+"/"+name, func(t *testing.T) {
				if version < w.since {
					t.Skipf("PostgreSQL %d has no such statement", version)
				}
				w.try(t, newPartedVaultOf(t, look, keyed), p)
			})
		}
	}
}

// A row that moves to another partition leaves one key and takes another: both fences.
func TestI3_AMovedRowNeedsTheFencesOfBothKeys(t *testing.T) {
	db := pgtest.Parallel(t)
	for what, v := range map[string]*vault{"between partitions": newPartedVault(t, db, true),
		"in one table": newVault(t, db, true)} {
		v.guard(t)
		for _, c := range []struct {
			keys []string
			ok   bool
		}{{[]string{"/1"}, false}, {[]string{"/13"}, false}, {[]string{""}, false}, {[]string{"/1", "/13"}, true}} {
			t.Run(what+"/"+strings.Join(c.keys, " and "), func(t *testing.T) {
				p := v.program(t)
				p.exec(t, `BEGIN`)
				var resources []string
				for _, key := range c.keys {
					resources = append(resources, v.schema+key)
				}
				v.passThese(t, p, resources...)
				_, err := p.Exec(t.Context(), `UPDATE accounts SET id = 13 WHERE id = 1`)
				if !c.ok {
					wantUnfenced(t, "moved", err)
				} else if err != nil {
					t.Error(err)
				}
				p.exec(t, `ROLLBACK`)
			})
		}
	}
}

// A partition that comes after the guard is guarded but for its own TRUNCATE; the list of guards says so until
// guard_table is called again.
func TestPartitionThatComesLaterIsGuardedAtOnceButForTruncate(t *testing.T) {
	pgtest.Long(t, "TestI3_EveryWayIntoAPartitionNeedsTheFence")
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		for what, sql := range map[string]string{
			"created":          `CREATE TABLE late PARTITION OF accounts FOR VALUES FROM (20) TO (30)`,
			"created below":    `CREATE TABLE late PARTITION OF middle FOR VALUES IN (20)`,
			"default":          `CREATE TABLE late PARTITION OF accounts DEFAULT`,
			"attached":         `CREATE TABLE late (id int NOT NULL, owner int NOT NULL, balance int); ALTER TABLE accounts ATTACH PARTITION late FOR VALUES FROM (20) TO (30)`,
			"detached earlier": `ALTER TABLE accounts DETACH PARTITION low; ALTER TABLE low RENAME TO late; ALTER TABLE accounts ATTACH PARTITION late FOR VALUES FROM (0) TO (30)`,
		} {
			t.Run(form+"/"+what, func(t *testing.T) {
				t.Parallel()
				v := newPartedVault(t, db, keyed)
				if what == "detached earlier" {
					v.look.exec(t, `ALTER TABLE accounts DETACH PARTITION middle`)
				}
				v.guard(t)
				covered := one[int](t, v.look, `SELECT covered FROM pglock.list_guards() WHERE table_name = $1`,
					v.schema+".accounts")
				v.look.exec(t, sql)
				id := map[string]int{"created below": 13, "detached earlier": 3}[what]
				if id == 0 {
					id = 25
				}
				for _, table := range []string{"accounts", "late"} {
					insert := fmt.Sprintf(`INSERT INTO %s VALUES (%d, 20, 1)`, table, id)
					v.wantRefused(t, insert)
					v.wantRefused(t, `SET LOCAL session_replication_role = replica; `+insert)
				}
				v.wantRefused(t, `TRUNCATE accounts`)
				if what != "detached earlier" { // whose guard it has kept
					if got, want := v.problem(t, "accounts"), v.schema+".late has no guard for TRUNCATE"; got != want {
						t.Errorf("the list says %q, want %q", got, want)
					}
					v.wantAllowed(t, `TRUNCATE late`)
					covered++
				}
				v.guard(t)
				if got := v.problem(t, "accounts"); got != "" {
					t.Errorf("guarded again: %s", got)
				}
				if now := one[int](t, v.look, `SELECT covered FROM pglock.list_guards() WHERE table_name = $1`,
					v.schema+".accounts"); now != covered {
					t.Errorf("%d tables are covered, want %d", now, covered)
				}
				v.wantRefused(t, `TRUNCATE late`)
			})
		}
	}
}

// A partition that is detached is a table of its own: its rows are not guarded, and the list says that.
func TestDetachedPartitionIsShownUntilItsGuardIsDropped(t *testing.T) {
	pgtest.Long(t, "TestTheListTellsWhatTheOwnerDidToAGuard")
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newPartedVault(t, db, keyed)
			v.guard(t)
			v.look.exec(t, `ALTER TABLE accounts DETACH PARTITION low`)
			v.wantAllowed(t, `UPDATE low SET balance = 0`)
			v.wantRefused(t, `TRUNCATE low`)
			if got, want := v.problem(t, "low"), v.schema+".low has no guard for rows"; got != want {
				t.Errorf("the list says %q, want %q", got, want)
			}
			if got := v.problem(t, "accounts"); got != "" {
				t.Errorf("of the root: %s", got)
			}
			v.guardTable(t, "low")
			v.wantRefused(t, `UPDATE low SET balance = 0`)
			v.look.exec(t, `SELECT pglock.unguard_table('low')`)
			v.wantAllowed(t, `UPDATE low SET balance = 0; TRUNCATE low`)
			if got := v.problem(t, "low"); got != "none" {
				t.Errorf("after it was dropped the list says %q", got)
			}
			v.wantRefused(t, `UPDATE accounts SET balance = 0`)
		})
	}
}

// Whoever guards a partition or a child alone means its rows, by whichever name they are written.
func TestI3_ATableGuardedAloneIsNotWrittenThroughItsParent(t *testing.T) {
	pgtest.Long(t, "TestI3_EveryWayIntoAPartitionNeedsTheFence")
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	for form, keyed := range guardForms {
		for what, c := range map[string]struct {
			before, table, after string
			writes               []string
		}{
			"leaf of a root that is not guarded": {``, "low", ``, []string{
				`INSERT INTO accounts VALUES (2)`, `UPDATE accounts SET balance = 0`, `DELETE FROM accounts`,
				`UPDATE accounts SET id = 13 WHERE id = 1`,
				`UPDATE accounts SET id = 2 WHERE id = 11`, `INSERT INTO low VALUES (2)`, `UPDATE low SET balance = 0`,
				`TRUNCATE low`, `TRUNCATE accounts`}},
			"middle table": {``, "middle", ``, []string{
				`INSERT INTO accounts VALUES (13)`, `UPDATE accounts SET balance = 0`,
				`INSERT INTO middle7 VALUES (13)`, `DELETE FROM middle`, `TRUNCATE middle7`}},
			"child of a parent that is not guarded": {`CREATE TABLE child (extra int) INHERITS (other); INSERT INTO child VALUES (1, 1, 1)`, "child", ``, []string{
				`UPDATE other SET balance = 0`, `DELETE FROM other`, `UPDATE child SET balance = 0`,
				`INSERT INTO child VALUES (2)`, `TRUNCATE child`, `TRUNCATE other`}},
			"child of two parents, one guarded": {`CREATE TABLE two (id int, balance int); CREATE TABLE child () INHERITS (other, two); INSERT INTO child VALUES (1, 1)`, "two", ``, []string{
				`UPDATE two SET balance = 0`, `UPDATE child SET balance = 0`, `UPDATE other SET balance = 0`,
				`TRUNCATE other`}},
		} {
			t.Run(form+"/"+what, func(t *testing.T) {
				v := newPartedVault(t, db, keyed)
				if c.before != "" {
					v.look.exec(t, c.before)
				}
				v.guardTable(t, c.table)
				if got := v.problem(t, c.table); got != "" {
					t.Errorf("the list says %q", got)
				}
				for _, sql := range c.writes {
					v.wantRefused(t, sql)
				}
				p := v.program(t)
				for _, sql := range c.writes {
					p.exec(t, `BEGIN`)
					v.pass(t, p)
					p.exec(t, sql)
					p.exec(t, `ROLLBACK`)
				}
			})
		}
	}
}

// A table that is put below another after it was guarded, by its owner, is guarded against writes through that one too.
func TestI3_AGuardedTableThatGetsAParentLaterStaysGuarded(t *testing.T) {
	pgtest.Long(t, "TestI3_EveryWayIntoAPartitionNeedsTheFence")
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	for what, c := range map[string]struct{ table, sql, write string }{
		"partition": {"late",
			`CREATE TABLE late (id int NOT NULL, owner int NOT NULL, balance int)|ALTER TABLE accounts ATTACH PARTITION late FOR VALUES FROM (20) TO (30)`,
			`INSERT INTO accounts VALUES (25)`},
		"child": {"late",
			`CREATE TABLE late (id int, balance int); INSERT INTO late VALUES (1, 1)|ALTER TABLE late INHERIT other`,
			`UPDATE other SET balance = 0`},
	} {
		t.Run(what, func(t *testing.T) {
			v := newPartedVault(t, db, false)
			before, after, _ := strings.Cut(c.sql, "|")
			v.look.exec(t, before)
			v.guardTable(t, c.table)
			v.look.exec(t, after)
			if got := v.problem(t, c.table); got != "" {
				t.Errorf("the list says %q", got)
			}
			v.wantRefused(t, c.write)
		})
	}
}

// Children of a guarded table are guarded with it; the list shows one that is added later.
func TestChildrenAreGuardedWithTheirParent(t *testing.T) {
	pgtest.Long(t, "TestI3_EveryWayIntoAPartitionNeedsTheFence")
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.look.exec(t,
				`CREATE TABLE child (extra int) INHERITS (accounts); CREATE TABLE grandchild () INHERITS (child); INSERT INTO grandchild VALUES (3, 7, 1)`)
			v.guard(t)
			writes := []string{`UPDATE accounts SET balance = 0`, `UPDATE ONLY accounts SET balance = 0`,
				`INSERT INTO child VALUES (3)`, `DELETE FROM child WHERE id = 3`,
				`UPDATE grandchild SET balance = 0`, `TRUNCATE accounts`, `TRUNCATE ONLY accounts`, `TRUNCATE child`,
				`TRUNCATE grandchild`}
			for _, sql := range writes {
				v.wantRefused(t, sql)
			}
			p := v.program(t)
			for _, sql := range writes {
				p.exec(t, `BEGIN`)
				v.pass(t, p)
				p.exec(t, sql)
				p.exec(t, `ROLLBACK`)
			}
			v.look.exec(t, `CREATE TABLE late () INHERITS (accounts)`)
			v.wantAllowed(t, `INSERT INTO late VALUES (3)`)
			want := fmt.Sprintf("%[1]s.late has no guard for TRUNCATE; %[1]s.late has no guard for rows", v.schema)
			if got := v.problem(t, "accounts"); got != want {
				t.Errorf("the list says %q, want %q", got, want)
			}
			v.guard(t)
			if got := v.problem(t, "accounts"); got != "" {
				t.Errorf("guarded again: %s", got)
			}
			v.wantRefused(t, `INSERT INTO late VALUES (3)`)
		})
	}
}

// unguard_table takes every trigger away, of partitions and children too, and guarding again brings back what was
// there.
func TestUnguardedTableHasNoTriggerLeft(t *testing.T) {
	pgtest.Long(t, "TestTheListTellsWhatTheOwnerDidToAGuard")
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	for form, keyed := range guardForms {
		for what, setup := range map[string]string{
			"table": `SELECT 1`, "partitions": `parted`,
			"children": `CREATE TABLE child () INHERITS (accounts); CREATE TABLE grandchild () INHERITS (child)`,
		} {
			t.Run(form+"/"+what, func(t *testing.T) {
				var v *vault
				if setup == "parted" {
					v = newPartedVault(t, db, keyed)
				} else {
					v = newVault(t, db, keyed)
					v.look.exec(t, setup)
				}
				triggers := func() int {
					return one[int](t, v.look, `SELECT count(*) FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
						WHERE c.relnamespace = $1::text::regnamespace AND NOT tgisinternal`, v.schema)
				}
				v.guard(t)
				made := triggers()
				if again := one[int](t, v.look, `SELECT pglock.guard_table('accounts', $1, $2)`, v.schema,
					v.key()); again != 0 || triggers() != made {
					t.Errorf("guarded twice: %d and %d triggers", made, again)
				}
				v.look.exec(t, `SELECT pglock.unguard_table('accounts')`)
				if n := triggers(); n != 0 || v.problem(t, "accounts") != "none" {
					t.Errorf("%d triggers are left, the list says %q", n, v.problem(t, "accounts"))
				}
				v.wantAllowed(t, `UPDATE accounts SET balance = 0; TRUNCATE accounts`)
				if _, err := v.look.Exec(t.Context(),
					`SELECT pglock.unguard_table('accounts')`); state(err) != "42704" {
					t.Errorf("unguarded twice: %v", err)
				}
				v.guard(t)
				if n := triggers(); n != made {
					t.Errorf("guarded again: %d triggers, there were %d", n, made)
				}
			})
		}
	}
}

// unguard_table leaves what belongs to another table's guard: of a child that has come with its own, and of a partition
// that is guarded alone.
func TestUnguardingAParentLeavesTheGuardsOfOthers(t *testing.T) {
	db := pgtest.Parallel(t)
	for form, keyed := range guardForms {
		t.Run(form, func(t *testing.T) {
			v := newVault(t, db, keyed)
			v.look.exec(t, `CREATE TABLE child (LIKE accounts); INSERT INTO child SELECT * FROM accounts LIMIT 1;
				CREATE TABLE late () INHERITS (accounts); SELECT pglock.guard_table('child', 'of its own')`)
			v.guard(t)
			v.look.exec(t, `ALTER TABLE child INHERIT accounts`)
			wantCount(t, v.look, 4, "%d triggers were dropped, want two of each table",
				`SELECT pglock.unguard_table('accounts')`)
			v.wantAllowed(t, `UPDATE ONLY accounts SET balance = 0; TRUNCATE late`)
			v.wantRefused(t, `UPDATE accounts SET balance = 0`)
			v.wantRefused(t, `TRUNCATE child`)
			if got := v.problem(t, "child"); got != "" {
				t.Errorf("of the child that has its own guard the list says %q", got)
			}

			v = newPartedVault(t, db, keyed)
			v.guardTable(t, "low")
			if _, err := v.look.Exec(t.Context(), `SELECT pglock.unguard_table('accounts')`); state(err) != "42704" {
				t.Errorf("unguarded, though only a partition is guarded: %v", err)
			}
			v.wantRefused(t, `UPDATE low SET balance = 0`)
			v.wantRefused(t, `TRUNCATE low`)
		})
	}
}
