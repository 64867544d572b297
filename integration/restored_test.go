package integration

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A restored dump is another database than the one of the write, though its installation has the same ID and the
// database has the same OID.
func TestI17_ARestoredDumpRefusesTheReceiptsOfBefore(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	_ = clientProgram(t, primary, "pg_dump") // or skip before there is work
	const identities = `SELECT array[pglock.database_id()::text, oid::text] FROM pg_database
		WHERE datname = current_database()`
	p := newPeer(t, primary.url)
	was := one[[]string](t, p, identities)
	refuses := func(what string, of *node) {
		t.Helper()
		p := newPeer(t, of.url)
		is := one[[]string](t, p, identities)
		if is[0] == was[0] || is[1] != was[1] {
			t.Errorf("%s: identity and OID are %v, were %v: want another identity for the same OID", what, is, was)
		}
		if _, err := p.Exec(t.Context(), `SELECT pglock.outcome($1, $2, $3)`, uuid.New(), uuid.New(),
			was[0]); state(err) != "LK007" {
			t.Errorf("I17: %s: the outcome of a write of before: %v", what, err)
		}
	}
	server := pgtest.Dedicated(t, nil)
	restored := &node{server, server.URL()}
	newPeer(t, restored.url).exec(t, `CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user`)
	restore(t, primary, restored)
	refuses("another server", restored)
	restore(t, primary, primary, "--clean")
	refuses("the same server", primary)
	p.exec(t, `UPDATE pglock.installation SET id = DEFAULT`)
	if is := one[[]string](t, newPeer(t, primary.url), identities); is[0] == was[0] {
		t.Error("a new ID of the installation leaves the identity as it was")
	}
}

// Without the row of the installation nobody is granted anything or told what became of a write, and the hint is the
// statement that mends it.
func TestI17_WithoutTheRowOfTheInstallationNothingIsAnswered(t *testing.T) {
	p := newPeer(t, pgtest.Parallel(t).URL())
	home := one[uuid.UUID](t, p, `SELECT pglock.database_id()`)
	before := p.mustAcquire(t, "before", time.Minute)
	p.exec(t, `DELETE FROM pglock.installation`)
	calls := []string{`SELECT pglock.outcome(gen_random_uuid(), gen_random_uuid(), '` + home.String() + `')`,
		`SELECT pglock.start_client()`, `SELECT pglock.diagnose()`, `SELECT pglock.advance_epoch('restored', 'alice')`,
		`SELECT pglock.acquire_lease('new', gen_random_uuid(), gen_random_uuid(), 'peer', '1 min')`}
	const mend = "INSERT INTO pglock.installation DEFAULT VALUES"
	for _, call := range calls {
		_, err := p.Exec(t.Context(), call)
		var refusal *pgconn.PgError
		if !errors.As(err, &refusal) || refusal.Code != "55000" ||
			refusal.Hint != "As the owner of the schema: "+mend+"." {
			t.Errorf("I17: without the row %s said %+v", call, err)
		}
	}
	p.exec(t, mend)
	if g := p.mustAcquire(t, "after", time.Minute); g.token <= before.token {
		t.Errorf("I22: token %d after token %d", g.token, before.token)
	}
	for _, call := range calls[1:] {
		p.exec(t, call)
	}
}

// The statements of the page bring the locks from one server to another, which goes on where the first ended.
func TestI22_ThePageOfLogicalReplicationMovesTheLocks(t *testing.T) {
	t.Parallel() // it has servers of its own
	page := string(must.Get(os.ReadFile("../docs/failover.md"))(t))
	_, page, _ = strings.Cut(page, "\n## Logical replication\n")
	room := regexp.MustCompile("`(DELETE FROM [^`]*)`").FindAllStringSubmatch(page, -1)
	ends := regexp.MustCompile("(?s) *```sql\n(.*?)```").FindStringSubmatch(page)
	if room == nil || ends == nil {
		t.Fatalf("the page has the statements %q and %q", room, ends)
	}
	logical := map[string]string{"wal_level": "logical"}
	from, to := newPeer(t, migrated(t, logical).URL()), newPeer(t, migrated(t, logical).URL())
	held := from.mustAcquire(t, "held", time.Hour)
	from.mustEnqueue(t, "held", "exclusive", nil)
	for _, statement := range room {
		to.exec(t, statement[1])
	}
	from.exec(t, `CREATE PUBLICATION locks FOR ALL TABLES`)
	at := from.Config()
	to.exec(t, fmt.Sprintf(`CREATE SUBSCRIPTION locks
		CONNECTION 'host=%s port=%d user=%s password=%s dbname=%s' PUBLICATION locks`, at.Host, at.Port, at.User, at.Password, at.Database))
	left := func() int { return one[int](t, to, `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`) }
	if all := one[int](t, to, `SELECT count(*) FROM pg_subscription_rel`); all <= 5 {
		t.Errorf("%d tables are published, want those of pglock", all)
	}
	for n := left(); n > 0; n = left() {
		pgtest.Eventually(t, "one more table to be copied", func() bool { return left() < n })
	}
	last := from.mustAcquire(t, "last", time.Minute)
	pgtest.Eventually(t, "the last grant to arrive", func() bool {
		return one[bool](t, to, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = 'last' AND token = $1)`, last.token)
	})
	to.exec(t, `DROP SUBSCRIPTION locks`)
	for statement := range strings.SplitSeq(strings.TrimRight(ends[1], " \n;"), ";") {
		to.exec(t, statement)
	}
	if g := to.mustAcquire(t, "new", time.Minute); g.token <= last.token {
		t.Errorf("I22: token %d after token %d", g.token, last.token)
	}
	if err := to.fence(t.Context(), held, "of the first server"); err != nil {
		t.Error(err)
	}
	to.mustEnqueue(t, "held", "exclusive", nil)
}
