package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestUpToTheQueueKeepsEveryRowAndEveryLease(t *testing.T) {
	t.Parallel()
	db, conn := versionOne(t)
	old := newProgram(t, db, "old")
	held, fenced, last := old.mustAcquire("held"), old.mustAcquire("fenced"), old.mustAcquire("last")
	if err := old.write(fenced); err != nil {
		t.Fatal(err)
	}
	if !old.release(old.mustAcquire("free")) {
		t.Fatal("not released")
	}
	expired := old.mustAcquire("expired")
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 s' WHERE name = 'expired'")
	old.mustAcquire("taken")
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'taken'")
	old.mustAcquire("taken")
	old.mustAcquire("broken")
	execute(t, conn, "SELECT pglock.break_lock('broken', 'stuck', 'operator')")
	spent := uuid.New()
	old.abandon("never", spent)
	before := content(t, conn)
	for _, what := range []string{"fence ", `"kind": "takeover"`, `"kind": "break"`, "spent "} {
		if !strings.Contains(before, what) {
			t.Fatalf("there is no %s in\n%s", what, before)
		}
	}

	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	if after := content(t, conn); after != before {
		t.Errorf("rows: %s", firstDifference(after, before))
	}
	if odd := text(t, conn, `SELECT count(*)::text FROM pglock.locks WHERE (slot, top_slot, mode, ticket) <> (0, 0, 'exclusive', 0)
		OR capacity IS NOT NULL OR owner_id IS NOT NULL OR watched_until IS NOT NULL`); odd != "0" {
		t.Errorf("%s rows are not plain exclusive locks", odd)
	}

	heir := queueUpFor(t, conn, "held", "heir", "exclusive", 0)
	if got, want := old.renewAll(held, fenced, last, expired), "expired expired, fenced renewed, held renewed, last renewed"; got != want {
		t.Errorf("renewals: %s, want %s", got, want)
	}
	if err := old.write(held); err != nil {
		t.Errorf("a fenced write of a lease from before: %v", err)
	}
	var lk *pgconn.PgError
	if err := old.write(fenced); !errors.As(err, &lk) || lk.Code != "LK002" {
		t.Errorf("the fence that a lease from before has passed: %v, want LK002", err)
	}
	var released bool
	scan(t, conn, []any{&released}, "SELECT released FROM pglock.release_lease($1, $2, $3)", held.name, held.token, held.id)
	if holder, token := holderOf(t, conn, heir); !released || holder != "heir" || token <= last.token {
		t.Errorf("released %v; then %q holds it with token %d, after %d", released, holder, token, last.token)
	}
	if got := old.releaseAll(fenced, last, expired); got != "fenced last" {
		t.Errorf("release_all ended %q", got)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pglock.acquire('never', $1, gen_random_uuid(), 'h', '1 s')", spent); !errors.As(err, &lk) || lk.Code != "LK008" {
		t.Errorf("a grant ID that was given up before: %v, want LK008", err)
	}
	for _, name := range []string{"free", "expired", "broken"} {
		if c, slot, _ := request(t, conn, name, "next", "shared", 0); slot != 1 || c.token <= last.token {
			t.Errorf("lock %q: slot %d, token %d", name, slot, c.token)
		}
	}
}

// versionTwo is a database with rows of every kind that version 2 has.
func versionTwo(t *testing.T) (*pgtest.DB, *program, map[string]claim) {
	t.Helper()
	db, conn := versionOne(t)
	apply(t, conn, queueUp)
	p := newProgram(t, db, "exclusive holder")
	claims := map[string]claim{"ex": p.mustAcquire("ex"), "watched": p.mustAcquire("watched")}
	execute(t, conn, "SELECT pglock.watch('watched', '1 hour'); SELECT pglock.watch('only watched', '1 hour')")
	for n := range 3 {
		queueUpFor(t, conn, "ex", fmt.Sprint("waiter ", n), []string{"exclusive", "shared", "limit"}[n], 2)
	}
	long := strings.Repeat("x", 512)
	for _, name := range []string{"sh", "ended", long} {
		for n := range 3 {
			c, slot, _ := request(t, conn, name, fmt.Sprint("reader ", n), "shared", 0)
			if slot != n+1 {
				t.Fatalf("slot %d of %.10s", slot, name)
			}
			claims[fmt.Sprint(name, n)] = c
		}
	}
	queueUpFor(t, conn, "sh", "writer", "exclusive", 0)
	for n := range 2 {
		claims[fmt.Sprint("pool", n)], _, _ = request(t, conn, "pool", fmt.Sprint("worker ", n), "limit", 2)
	}
	queueUpFor(t, conn, "pool", "worker 2", "limit", 2)
	// A lock that readers had, and that a writer has now; and one that they have left.
	for n := range 3 {
		c := claims[fmt.Sprint("ended", n)]
		scan(t, conn, []any{new(bool)}, "SELECT released FROM pglock.release_lease($1, $2, $3, $4)", c.name, c.token, c.id, n+1)
	}
	for n := range 2 {
		c, slot, _ := request(t, conn, "readers before", "reader", "shared", 0)
		scan(t, conn, []any{new(bool)}, "SELECT released FROM pglock.release_lease($1, $2, $3, $4)", c.name, c.token, c.id, slot)
		if n == 0 {
			claims["early reader"] = c
		}
	}
	claims["readers before"] = p.mustAcquire("readers before")
	for _, c := range []claim{claims["ex"], claims["sh0"], claims["sh1"], claims["pool1"], claims[long+"0"]} {
		if err := p.write(c); err != nil {
			t.Fatal(err)
		}
	}
	execute(t, conn, fmt.Sprintf("SELECT pglock.break_lock('sh', 'stuck', 'operator', %d)", claims["sh2"].token))
	p.abandon("never", uuid.New())
	return db, p, claims
}

func TestDownFromTheQueueIsExactlyVersionOne(t *testing.T) {
	t.Parallel()
	_, fresh := versionOne(t)
	_, p, _ := versionTwo(t)
	two := structure(t, p.conn)
	apply(t, p.conn, queueDown)
	got, want := structure(t, p.conn), structure(t, fresh)
	if got != want {
		t.Errorf("after the way down: %s", firstDifference(got, want))
	}
	apply(t, p.conn, queueUp)
	if again := structure(t, p.conn); again != two {
		t.Errorf("up again: %s", firstDifference(again, two))
	}
	if two == want {
		t.Error("this test does not see what version 2 adds")
	}
}

func TestDownFromTheQueueKeepsExclusiveLeasesAndTheOrderOfTokens(t *testing.T) {
	t.Parallel()
	_, p, claims := versionTwo(t)
	conn := p.conn
	names := []string{"ex", "watched", "readers before", "sh", "pool", "ended", "only watched", strings.Repeat("x", 512)}
	greatest := make(map[string]int64)
	for _, name := range names {
		var token int64
		scan(t, conn, []any{&token}, "SELECT max(token) FROM pglock.locks WHERE name = $1", name)
		greatest[name] = token
	}
	heads := text(t, conn, "SELECT string_agg(name, ' ' ORDER BY name) FROM pglock.locks WHERE slot = 0")
	fences := text(t, conn, "SELECT string_agg(to_jsonb(f)::text, ' ' ORDER BY resource) FROM pglock.fences f WHERE octet_length(resource) <= 512")
	events := text(t, conn, "SELECT string_agg(to_jsonb(e)::text, ' ' ORDER BY id) FROM pglock.events e")
	spent := text(t, conn, "SELECT string_agg(to_jsonb(s)::text, ' ' ORDER BY grant_id) FROM pglock.spent_grants s")

	apply(t, conn, queueDown)
	if after := text(t, conn, "SELECT string_agg(name, ' ' ORDER BY name) FROM pglock.locks"); after != heads {
		t.Errorf("locks %.200s, want %.200s", after, heads)
	}
	if after := text(t, conn, "SELECT string_agg(to_jsonb(f)::text, ' ' ORDER BY resource) FROM pglock.fences f"); after != fences {
		t.Errorf("fences %s, want %s", after, fences)
	}
	if after := text(t, conn, "SELECT string_agg(to_jsonb(e)::text, ' ' ORDER BY id) FROM pglock.events e"); after != events {
		t.Errorf("events %s, want %s", after, events)
	}
	if after := text(t, conn, "SELECT string_agg(to_jsonb(s)::text, ' ' ORDER BY grant_id) FROM pglock.spent_grants s"); after != spent {
		t.Errorf("spent grants %s, want %s", after, spent)
	}
	for _, name := range []string{"sh", "pool", "ended", strings.Repeat("x", 512)} { // of slots: nobody has the head's token
		var token int64
		scan(t, conn, []any{&token}, "SELECT token FROM pglock.locks WHERE name = $1", name)
		if token <= greatest[name] {
			t.Errorf("lock %.10s keeps token %d, a slot had %d", name, token, greatest[name])
		}
	}

	exclusive := []claim{claims["ex"], claims["readers before"], claims["watched"]}
	if got, want := p.renewAll(exclusive...), "ex renewed, readers before renewed, watched renewed"; got != want {
		t.Errorf("renewals of exclusive leases: %s", got)
	}
	if err := p.write(claims["readers before"]); err != nil {
		t.Errorf("a fenced write of an exclusive lease: %v", err)
	}
	for _, what := range []string{"sh0", "pool1", "early reader"} {
		var lk *pgconn.PgError
		if err := p.write(claims[what]); !errors.As(err, &lk) || !strings.HasPrefix(lk.Code, "LK00") {
			t.Errorf("a fenced write of %s, which version 1 does not know: %v", what, err)
		}
		if got := p.renewAll(claims[what]); strings.Contains(got, "renewed") {
			t.Errorf("renewal of %s: %s", what, got)
		}
	}
	if got := p.releaseAll(exclusive...); got != "ex readers before watched" {
		t.Errorf("released %q", got)
	}
	grant := func(when string) {
		t.Helper()
		for _, name := range names {
			c := p.mustAcquire(name)
			if c.token <= greatest[name] {
				t.Errorf("%s lock %.10s is granted token %d, it had %d", when, name, c.token, greatest[name])
			}
			greatest[name] = c.token
			if err := p.write(c); err != nil {
				t.Errorf("%s lock %.10s: a fenced write: %v", when, name, err)
			}
			if !p.release(c) {
				t.Errorf("%s lock %.10s: not released", when, name)
			}
		}
	}
	grant("at version 1")
	apply(t, conn, queueUp)
	grant("up again")
	for _, name := range names {
		c, slot, _ := request(t, conn, name, "again", "shared", 0)
		if slot != 1 || c.token <= greatest[name] {
			t.Errorf("up again lock %.10s: slot %d, token %d after %d", name, slot, c.token, greatest[name])
		}
		if err := p.write(c); err != nil {
			t.Errorf("up again lock %.10s: a fenced write of a reader: %v", name, err)
		}
	}
	heir := queueUpFor(t, conn, "sh", "heir", "exclusive", 0)
	execute(t, conn, "SELECT pglock.break_lock('sh', 'r', 'a')")
	if holder, _ := holderOf(t, conn, heir); holder != "heir" {
		t.Errorf("up again the queue hands over to %q", holder)
	}
}

func TestDownFromTheQueueMeetsATransactionWithoutADeadlock(t *testing.T) {
	t.Parallel()
	db, p, claims := versionTwo(t)
	tx, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // after a commit
	if _, err := tx.Exec(t.Context(), "SELECT pglock.check_lease($1, $2, $3)", "ex", claims["ex"].token, claims["ex"].id); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- tryApply(t, p.conn, queueDown) }()
	look := db.Conn(t)
	eventually(t, "the way down to wait", func() bool {
		return text(t, look, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'") == "1"
	})
	if _, err := tx.Exec(t.Context(), "SELECT pglock.acquire('ex', gen_random_uuid(), gen_random_uuid(), 'h', '1 hour', p_wait => true)"); err != nil {
		t.Errorf("a request that came before: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Errorf("the way down: %v", err)
	}
}

func TestAProgramOfTheVersionBeforeWorksOnTheQueue(t *testing.T) {
	t.Parallel()
	db, conn := versionOne(t)
	old := newProgram(t, db, "old")
	// Its statements are prepared, and its leases held, when the schema changes under it.
	warm := old.mustAcquire("warm")
	old.renewAll(warm)
	old.releaseAll(warm)
	old.release(old.mustAcquire("warm"))
	old.abandon("warm", uuid.New())
	a, b, c := old.mustAcquire("a"), old.mustAcquire("b"), old.mustAcquire("c")
	apply(t, conn, queueUp)

	if got := old.renewAll(a, b, c); got != "a renewed, b renewed, c renewed" {
		t.Errorf("renewals: %s", got)
	}
	if granted, again, _ := old.acquire("a", a.id, true); !granted || again != a {
		t.Errorf("the same grant ID again: %v, %+v, want %+v", granted, again, a)
	}
	heirs := make(map[string]claim)
	for _, name := range []string{"a", "b", "c"} {
		heirs[name] = queueUpFor(t, conn, name, "heir of "+name, "exclusive", 0)
		queueUpFor(t, conn, name, "last of "+name, "exclusive", 0)
		old.wantRefused(name, "old")
	}
	// Each of its three ways to end a lease hands the lock over.
	if !old.release(a) || old.releaseAll(b) != "b" || !old.abandon("c", c.id) {
		t.Error("a lease was not ended")
	}
	for name, heir := range heirs {
		holder, token := holderOf(t, conn, heir)
		if holder != "heir of "+name || token <= c.token {
			t.Errorf("lock %q: %q holds it with token %d, after %d", name, holder, token, c.token)
		}
		old.wantRefused(name, "heir of "+name)
	}
	if old.release(a) || old.releaseAll(b) != "" || old.abandon("c", c.id) {
		t.Error("a lease was ended twice")
	}
	// It finds a lease that ran out: the first in the queue gets the lock, and not it.
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'a'")
	old.wantRefused("a", "last of a")
	// Nobody waits any more.
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'a'")
	if next := old.mustAcquire("a"); next.token <= c.token {
		t.Errorf("token %d", next.token)
	}
}

func TestAProgramOfTheVersionBeforeRespectsReadersAndSemaphores(t *testing.T) {
	t.Parallel()
	db, conn := versionOne(t)
	apply(t, conn, queueUp)
	old := newProgram(t, db, "old")
	for name, capacity := range map[string]int{"shared": 0, "limit": 3} {
		c, slot, _ := request(t, conn, name, "one of many", name, capacity)
		old.wantRefused(name, "one of many")
		if got := old.renewAll(c); got != name+" renewed" {
			t.Errorf("renewal of a slot: %s", got)
		}
		heir := queueUpFor(t, conn, name, "heir", "exclusive", 0)
		scan(t, conn, []any{new(bool)}, "SELECT released FROM pglock.release_lease($1, $2, $3, $4)", c.name, c.token, c.id, slot)
		old.wantRefused(name, "heir")
		holder, token := holderOf(t, conn, heir)
		if heir.token = token; holder != "heir" || !old.release(heir) {
			t.Errorf("%q holds the lock after the slots", holder)
		}
		if next := old.mustAcquire(name); next.token <= token {
			t.Errorf("token %d after %d", next.token, token)
		}
	}
	reader := queueUpFor(t, conn, "shared", "reader", "shared", 0)
	execute(t, conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'shared' AND slot = 0")
	old.wantRefused("shared", "reader")
	if _, token := holderOf(t, conn, reader); !old.release(claim{"shared", token, reader.id}) {
		t.Error("the release of version 1 does not end the lease of a slot")
	}
}

func TestViewsHaveTheColumnsThatAProgramOfTheVersionBeforeReads(t *testing.T) {
	t.Parallel()
	_, p, claims := versionTwo(t)
	const columns = `name, held, holder, session_id::pg_catalog.text, token, ttl_us, acquired_at, renewed_at, expires_at, ended_at, remaining_us, metadata::pg_catalog.text`
	execute(t, p.conn, "SELECT "+columns+" FROM pglock.get_lock('ex')")
	execute(t, p.conn, "SELECT "+columns+" FROM pglock.list_locks('', true, '', 1000)")
	var holder string
	var token, newToken int64
	scan(t, p.conn, []any{&holder, &token, &newToken}, "SELECT holder, token, new_token FROM pglock.break_lock('watched', 'r', 'a', NULL::pg_catalog.int8)")
	if holder != "exclusive holder" || token != claims["watched"].token || newToken <= token {
		t.Errorf("broke token %d of %q, new token %d", token, holder, newToken)
	}
}
