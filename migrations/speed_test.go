package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

const (
	speedUp   = "000004_speed.up.sql"
	speedDown = "000004_speed.down.sql"
)

// blocked asks for a lock with the words of version 4, for a block of tokens: the first and the last, or 0 and 0 when it was
// queued.
func blocked(t *testing.T, conn *pgx.Conn, name, holder string, turns int) (c claim, first int64) {
	t.Helper()
	c = claim{name: name, id: uuid.New()}
	var from, last *int64
	scan(t, conn, []any{&from, &last}, `SELECT first_token, CASE WHEN granted THEN token END FROM pglock.acquire_lease($1, $2, gen_random_uuid(), $3, '1 hour',
		p_wait => true, p_session_ttl => '24 hours', p_turns => $4)`, name, c.id, holder, turns)
	if last != nil && from != nil {
		c.token, first = *last, *from
	}
	return c, first
}

// renewed is what renew_leases says of a lease.
func renewed(t *testing.T, conn *pgx.Conn, c claim, slot int) string {
	t.Helper()
	return text(t, conn, "SELECT outcome FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[$4::int])", c.name, c.token, c.id, slot)
}

func wantState(t *testing.T, what string, err error, state string) {
	t.Helper()
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Code != state {
		t.Errorf("%s: %v, want %s", what, err, state)
	}
}

func TestUpToSpeedKeepsEveryRowAndEveryLease(t *testing.T) {
	t.Parallel()
	db, p, claims := versionThree(t)
	var heir claim
	scan(t, p.conn, []any{&heir.name, &heir.id}, "SELECT name, grant_id FROM pglock.waiters WHERE name = 'ex' ORDER BY ticket LIMIT 1")
	free := p.mustAcquire("free")
	if !p.release(free) {
		t.Fatal("not released")
	}
	p.mustAcquire("expired")
	execute(t, p.conn, "UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'expired'")
	before := everything(t, p.conn)
	for _, what := range []string{"fence ", "waiter ", "session ", "spent ", `"kind": "break"`, `"slot": 2`, `"mode": "limit"`, `"expires_at": "-infinity"`} {
		if !strings.Contains(before, what) {
			t.Fatalf("there is no %s in\n%s", what, before)
		}
	}
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db.URL(), migrations.Latest)
	if after := everything(t, p.conn); after != before {
		t.Errorf("rows: %s", firstDifference(after, before))
	}
	if odd := text(t, p.conn, `SELECT (SELECT count(*) FROM pglock.locks WHERE block IS NOT NULL) || ' ' || (SELECT count(*) FROM pglock.waiters WHERE turns <> 1)`); odd != "0 0" {
		t.Errorf("locks with blocks and waiters for more than one turn: %s", odd)
	}

	// Every lease goes on, for the old ways and for the new.
	if got := p.renewAll(claims["ex"], claims["pool1"], claims["readers before"]); got != "ex renewed, pool renewed, readers before renewed" {
		t.Errorf("renewals: %s", got)
	}
	for what, slot := range map[string]int{"ex": 0, "sh0": 1, "pool1": 2, "readers before": 0} {
		if got := renewed(t, p.conn, claims[what], slot); got != "renewed" {
			t.Errorf("renewal of %s by its slot: %s", what, got)
		}
	}
	c := claims["ex"]
	if n := text(t, p.conn, "SELECT count(*)::text FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid])", c.name, c.token, c.id); n != "1" {
		t.Error("check_leases does not know a lease from before")
	}
	wantState(t, "a fence that was passed before", p.write(c), "LK002")
	if err := p.write(claims["readers before"]); err != nil {
		t.Errorf("a fence that was not: %v", err)
	}
	// A ticket from before is served by the new release.
	var handed []int64
	scan(t, p.conn, []any{&handed}, "SELECT handed FROM pglock.release_lease($1, $2, $3)", c.name, c.token, c.id)
	if holder, token := holderOf(t, p.conn, heir); holder != "waiter 0" || token <= free.token || len(handed) != 1 || handed[0] != token {
		t.Errorf("released: %q holds it with token %d, handed %d", holder, token, handed)
	}
	// A lock that was free before is granted many at once; one that ran out needs care, and one that is waited for its turn.
	got := text(t, p.conn, `SELECT string_agg(n || ' ' || granted || ' ' || (token > $1), ',' ORDER BY n) FROM pglock.acquire_many(ARRAY['free', 'expired', 'ex'],
		ARRAY[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], ARRAY[gen_random_uuid(), NULL, NULL], gen_random_uuid(), 'h', '1 hour')`, free.token)
	if got != "1 true true,3 false true" {
		t.Errorf("acquire_many: %s", got)
	}
	if next, first := blocked(t, p.conn, "expired", "next", 8); next.token <= free.token || first > next.token {
		t.Errorf("a lease that ran out before: tokens %d to %d", first, next.token)
	}
}

// versionFour is version 3 with blocks of tokens, one in use and one asked for by a waiter.
func versionFour(t *testing.T) (db *pgtest.DB, p *program, claims map[string]claim, first int64) {
	t.Helper()
	db, p, claims = versionThree(t)
	apply(t, p.conn, speedUp)
	claims["block"], first = blocked(t, p.conn, "block", "session", 8)
	if c := claims["block"]; c.token != first+7 {
		t.Fatalf("the block has tokens %d to %d", first, c.token)
	}
	c, _ := blocked(t, p.conn, "block", "next", 8)
	claims["block's heir"] = c
	ended, _ := blocked(t, p.conn, "block that ended", "session", 8)
	if !p.release(ended) {
		t.Fatal("not released")
	}
	claims["block that ended"] = ended
	return db, p, claims, first
}

func TestDownFromSpeedIsExactlyVersionThreeAndKeepsItsRows(t *testing.T) {
	t.Parallel()
	_, fresh, _ := versionThree(t)
	_, p, claims, first := versionFour(t)
	four := structure(t, p.conn)
	last, heir := claims["block"], claims["block's heir"]
	if err := p.write(claim{last.name, first, last.id}); err != nil {
		t.Fatalf("a fenced write with the first token: %v", err)
	}
	before := everything(t, p.conn)
	apply(t, p.conn, speedDown)
	got, want := structure(t, p.conn), structure(t, fresh.conn)
	if got != want {
		t.Errorf("after the way down: %s", firstDifference(got, want))
	}
	if four == want {
		t.Error("this test does not see what version 4 adds")
	}
	if after := everything(t, p.conn); after != before {
		t.Errorf("rows: %s", firstDifference(after, before))
	}
	// A block that was in use is one grant, with its last token.
	if got := p.renewAll(last, claims["ex"]); got != "block renewed, ex renewed" {
		t.Errorf("renewals: %s", got)
	}
	if err := p.write(claim{last.name, last.token - 1, last.id}); err == nil {
		t.Error("a token inside the block passes the fence at version 3")
	}
	if err := p.write(last); err != nil {
		t.Errorf("a fenced write with the last token: %v", err)
	}

	apply(t, p.conn, speedUp)
	if again := structure(t, p.conn); again != four {
		t.Errorf("up again: %s", firstDifference(again, four))
	}
	if got := p.renewAll(last, claims["ex"]); got != "block renewed, ex renewed" {
		t.Errorf("renewals, up again: %s", got)
	}
	if err := p.write(claim{last.name, last.token - 1, last.id}); err == nil {
		t.Error("up again a token inside the block that was forgotten passes the fence")
	}
	if !p.release(last) {
		t.Error("up again the block was not released")
	}
	if holder, token := holderOf(t, p.conn, heir); holder != "next" || token <= last.token {
		t.Errorf("up again %q holds the lock with token %d, after %d", holder, token, last.token)
	}
	if c, from := blocked(t, p.conn, "block that ended", "again", 8); from <= claims["block that ended"].token || c.token != from+7 {
		t.Errorf("up again a new block has tokens %d to %d, after %d", from, c.token, claims["block that ended"].token)
	}
}

// At version 3 a program may be granted a lock again that had a block; no token of that block is one of its own.
func TestABlockFromBeforeTheWayDownIsOfNobodyAfterANewGrant(t *testing.T) {
	t.Parallel()
	_, p, claims, first := versionFour(t)
	old := claims["block"]
	apply(t, p.conn, speedDown)
	scan(t, p.conn, []any{new(bool)}, "SELECT released FROM pglock.release_lease($1, $2, $3)", old.name, old.token, old.id)
	apply(t, p.conn, speedUp)
	for token := first; token <= old.token; token++ {
		if err := p.write(claim{old.name, token, old.id}); err == nil {
			t.Errorf("token %d of the block passes", token)
		}
	}
}

// libraryThree calls the functions with the statements of the library of version 3, prepared on one connection.
type libraryThree struct {
	t       *testing.T
	conn    *pgx.Conn
	session uuid.UUID
	label   string
}

func (p *libraryThree) acquire(name string, id uuid.UUID, mode string, wait, retry bool) (c claim, granted bool, ticket int64) {
	p.t.Helper()
	var token, at, remaining, ticketed *int64
	var by, setting *string
	var slot, place *int
	var first, watched *bool
	var hints []string
	var handed []int64
	scan(p.t, p.conn, []any{&granted, &token, &by, &at, &remaining, &slot, &ticketed, &place, &first, &hints, &handed, &watched, &setting},
		`SELECT a.granted, a.token, a.holder, (EXTRACT(epoch FROM a.expires_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, a.remaining_us, a.slot, a.ticket, a.place, a.is_first,
			a.hints, a.handed, a.watched,
			CASE WHEN a.ticket IS NOT NULL AND NOT a.granted AND a.hints IS NULL AND a.handed IS NULL
				THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
		FROM "pglock".acquire($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid,
			$4::pg_catalog.text, $5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool,
			$8::pg_catalog.text, $9::pg_catalog.int4, $10::pg_catalog.bool, $11::pg_catalog.text::pg_catalog.interval,
			$12::pg_catalog.text::pg_catalog.uuid, $13::pg_catalog.bool) a`,
		name, id.String(), p.session.String(), p.label, "3600 s", nil, retry, mode, nil, wait, "3600 s", p.session.String(), false)
	c = claim{name: name, id: id}
	if granted {
		c.token = *token
	}
	if ticketed != nil {
		ticket = *ticketed
	}
	return c, granted, ticket
}

func (p *libraryThree) mustAcquire(name string) claim {
	p.t.Helper()
	c, granted, _ := p.acquire(name, uuid.New(), "exclusive", false, false)
	if !granted {
		p.t.Fatalf("lock %q was refused", name)
	}
	return c
}

func (p *libraryThree) release(c claim) (released bool, handed []int64) {
	p.t.Helper()
	var hints []string
	var watched *bool
	var setting *string
	scan(p.t, p.conn, []any{&released, &hints, &handed, &watched, &setting}, `SELECT r.released, r.hints, r.handed, r.watched,
			CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
		FROM "pglock".release_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, $4::pg_catalog.int4) r`, c.name, c.token, c.id.String(), 0)
	return released, handed
}

// beat renews leases and looks for tickets, in one statement.
func (p *libraryThree) beat(claims ...claim) (outcomes string) {
	p.t.Helper()
	names, tokens, ids := split(claims)
	return text(p.t, p.conn, `SELECT string_agg(concat_ws(' ', x.name, x.outcome, x.is_first), ', ' ORDER BY x.name) FROM (
			SELECT name, token, outcome, remaining_us, NULL::pg_catalog.bool AS is_first, NULL::pg_catalog.text
			FROM "pglock".renew_all($5::pg_catalog.text[], $6::pg_catalog.int8[], $7::pg_catalog.text[]::pg_catalog.uuid[])
			UNION ALL
			SELECT NULL::pg_catalog.text, ticket, NULL::pg_catalog.text, remaining_us, is_first, circle
			FROM "pglock".look($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text, $3::pg_catalog.text::pg_catalog.interval, $4::pg_catalog.int8[])) x`,
		p.session.String(), p.label, "3600 s", []int64{}, names, tokens, ids)
}

// others are the statements that answer for one lease or lock, each with a text that tells what came of it.
func (p *libraryThree) other(sql string, args ...any) string {
	p.t.Helper()
	return text(p.t, p.conn, sql, args...)
}

const (
	leaveThree = `SELECT concat_ws(' ', r.ended, r.place, r.holder) FROM (SELECT r.ended, r.place, r.token, r.holder, r.handed, r.watched,
			CASE WHEN r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END
		FROM "pglock".leave($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) r) r`
	giveBackThree = `SELECT concat_ws(' ', r.ended, r.handed IS NOT NULL) FROM "pglock".give_back($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) r`
	leaveAllThree = `SELECT count(*)::text FROM "pglock".leave_all($1::pg_catalog.text::pg_catalog.uuid, $2::pg_catalog.text[], $3::pg_catalog.text[]::pg_catalog.uuid[]) r`
	announceThree = `SELECT a.told::text FROM "pglock".announce($1::pg_catalog.text[], $2::pg_catalog.int8[]) AS a (told)`
	nextThree     = `SELECT a.told::text FROM "pglock".announce_next($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid) AS a (told)`
	renewThree    = `SELECT (remaining_us > 0)::text FROM "pglock".renew($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`
	checkThree    = `SELECT (remaining_us > 0)::text FROM "pglock".check_lease($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid)`
	releasesThree = `SELECT coalesce(string_agg(r.name, ' ' ORDER BY r.name), '') FROM (SELECT r.name, r.handed, r.watched
		FROM "pglock".release_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[]) r) r`
	breakThree = `SELECT concat_ws(' ', holder, token, new_token > token) FROM "pglock".break_lock($1::pg_catalog.text, 'r', 'a', NULL::pg_catalog.int8)`
	fenceThree = `SELECT (("pglock".fence($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid, NULL, false, NULL)).remaining_us > 0)::text`
)

func TestAProgramOfVersionThreeGoesOnBesideTheShortWays(t *testing.T) {
	t.Parallel()
	db, p, _ := versionThree(t)
	old := &libraryThree{t, db.Conn(t), uuid.New(), "old"}
	conn := p.conn // speaks version 4
	// Its statements are prepared and planned, its leases held and its tickets queued, when the schema changes under it.
	for range 7 { // more often than a plan stays a custom one
		warm := old.mustAcquire("warm")
		_, _, queued := old.acquire("warm", uuid.New(), "exclusive", true, false)
		if queued == 0 {
			t.Fatal("not queued")
		}
		old.beat(warm)
		old.other(renewThree, warm.name, warm.token, warm.id.String())
		old.other(checkThree, warm.name, warm.token, warm.id.String())
		old.other(fenceThree, warm.name, warm.token, warm.id.String())
		if released, _ := old.release(warm); !released {
			t.Fatal("not released")
		}
		execute(t, conn, "DELETE FROM pglock.waiters WHERE name = 'warm'; UPDATE pglock.locks SET expires_at = '-infinity' WHERE name = 'warm'")
		old.other(leaveThree, "warm", uuid.New().String())
		old.other(giveBackThree, "warm", uuid.New().String())
		old.other(leaveAllThree, uuid.New().String(), []string{"warm"}, []string{uuid.New().String()})
		old.other(announceThree, []string{"warm"}, []int64{0})
		old.other(nextThree, "warm", int64(0), old.session.String())
		old.other(releasesThree, []string{"warm"}, []int64{warm.token}, []string{warm.id.String()})
		old.mustAcquire("to break")
		old.other(breakThree, "to break")
	}
	a, b, c, d := old.mustAcquire("a"), old.mustAcquire("b"), old.mustAcquire("c"), old.mustAcquire("d")
	newer := p.mustAcquire("newer")
	waits := claim{name: "newer", id: uuid.New()}
	if _, _, ticket := old.acquire("newer", waits.id, "exclusive", true, false); ticket == 0 {
		t.Fatal("not queued")
	}
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}

	if got := old.beat(a, b, c, d); got != "a renewed, b renewed, c renewed, d renewed, t" {
		t.Errorf("a heartbeat: %s", got)
	}
	if again, granted, _ := old.acquire("a", a.id, "exclusive", false, true); !granted || again != a {
		t.Errorf("the same grant ID again: %v, %+v, want %+v", granted, again, a)
	}
	for _, sql := range []string{renewThree, checkThree, fenceThree} {
		if got := old.other(sql, a.name, a.token, a.id.String()); got != "true" {
			t.Errorf("%.60s: %s", sql, got)
		}
	}
	// A new program waits for an old one's lock, for a block, and is handed it.
	heir, _ := blocked(t, conn, "a", "heir", 8)
	released, handed := old.release(a)
	holder, token := holderOf(t, conn, heir)
	if !released || holder != "heir" || len(handed) != 1 || handed[0] != token {
		t.Errorf("released %v, handed %d: %q holds the lock with token %d", released, handed, holder, token)
	}
	if told := old.other(announceThree, []string{"a"}, handed) + old.other(nextThree, "a", a.token, old.session.String()); told != "11" {
		t.Errorf("told of the hand-over: %s", told)
	}
	if width := text(t, conn, "SELECT (upper(block) - lower(block))::text FROM pglock.locks WHERE name = 'a' AND upper(block) = token + 1"); width != "8" {
		t.Errorf("the heir has a block of %s", width)
	}
	// An old program that waits is handed a lock by a new release.
	scan(t, conn, []any{&released}, "SELECT released FROM pglock.release_lease($1, $2, $3)", newer.name, newer.token, newer.id)
	mine, granted, _ := old.acquire("newer", waits.id, "exclusive", true, true)
	if !released || !granted || mine.token <= newer.token {
		t.Errorf("released %v; its own ask again: granted %v, %+v", released, granted, mine)
	}
	// Refused by each other's leases, of every kind.
	if _, granted, _ := old.acquire("a", uuid.New(), "exclusive", false, false); granted {
		t.Error("the old way grants what is held with a block")
	}
	if n := text(t, conn, `SELECT count(*)::text FROM pglock.acquire_many(ARRAY['b', 'newer'], ARRAY[gen_random_uuid(), gen_random_uuid()], ARRAY[NULL, NULL]::uuid[],
		gen_random_uuid(), 'h', '1 hour') WHERE NOT granted AND holder = 'old'`); n != "2" {
		t.Errorf("acquire_many is refused %s of 2 locks of the old program", n)
	}
	// What the new ways have granted it can end, break and wait for, and the other way round.
	execute(t, conn, "SELECT pglock.acquire_many(ARRAY['many'], ARRAY[gen_random_uuid()], ARRAY[NULL]::uuid[], gen_random_uuid(), 'many', '1 hour')")
	if got := old.other(breakThree, "many"); !strings.HasPrefix(got, "many ") || !strings.HasSuffix(got, " t") {
		t.Errorf("broke %q", got)
	}
	execute(t, conn, "SELECT pglock.acquire_many(ARRAY['many'], ARRAY[gen_random_uuid()], ARRAY[NULL]::uuid[], gen_random_uuid(), 'many', '1 hour')")
	left := uuid.New()
	if _, _, ticket := old.acquire("many", left, "exclusive", true, false); ticket == 0 {
		t.Error("not queued behind a grant of acquire_many")
	}
	if got := old.other(leaveThree, "many", left.String()); got != "f 1 many" {
		t.Errorf("leave: %s", got)
	}
	if got := old.other(giveBackThree, "d", d.id.String()); got != "t f" {
		t.Errorf("give_back: %s", got)
	}
	if _, err := conn.Exec(t.Context(), "SELECT pglock.acquire_lease('d', $1, gen_random_uuid(), 'h', '1 hour')", d.id); err == nil {
		t.Error("a grant ID that the old program gave up is granted again")
	}
	if n := text(t, conn, "SELECT count(*)::text FROM pglock.release_many(ARRAY['b'], ARRAY[$1::bigint], ARRAY[$2::uuid])", b.token, b.id); n != "1" {
		t.Error("release_many does not end a lease of the old program")
	}
	if got := old.beat(b, c); got != "b released, c renewed" {
		t.Errorf("a heartbeat after that: %s", got)
	}
	if got := old.other(releasesThree, []string{"b", "c", "newer"}, []int64{b.token, c.token, mine.token}, []string{b.id.String(), c.id.String(), mine.id.String()}); got != "c newer" {
		t.Errorf("release_all ended %q", got)
	}
	if got := old.mustAcquire("b"); got.token <= mine.token {
		t.Errorf("token %d after %d", got.token, mine.token)
	}
}

func TestNewFunctionsGiveNobodyMoreRightsThanTheyNeed(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	conn := db.Conn(t)
	if open := text(t, conn, `SELECT coalesce(string_agg(p.oid::regprocedure::text, ', '), '') FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
		AND (p.proacl IS NULL OR EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = 0))`); open != "" {
		t.Errorf("everybody may call %s", open)
	}
	if open := text(t, conn, `SELECT coalesce(string_agg(c.relname, ', '), '') FROM pg_class c CROSS JOIN unnest('{pglock_user,pglock_admin,public}'::text[]) r
		WHERE c.relnamespace = 'pglock'::regnamespace AND c.relkind IN ('r', 'v') AND has_table_privilege(r, c.oid, 'SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER')`); open != "" {
		t.Errorf("tables or views that a role may touch: %s", open)
	}
	for _, role := range []string{"pglock_user", "pglock_admin"} {
		for _, sql := range []string{
			"SELECT * FROM pglock.token_base", "SELECT pglock.release_carefully('n', 1, gen_random_uuid(), 0)", "SELECT pglock.widen('n', 1, 2)",
			"SELECT pglock.last_of_block(1, 2)", "SELECT pglock.row_token('n', 1, gen_random_uuid())", "SELECT pglock.check_batch(1, 1, 1)",
			"SELECT pglock.hint(gen_random_uuid(), 1, 0, '1 s', NULL::int8range)",
		} {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), fmt.Sprintf("SET LOCAL ROLE %s; %s", role, sql), pgx.QueryExecModeSimpleProtocol)
				return err
			})
			wantState(t, sql+" as "+role, err, "42501")
		}
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), fmt.Sprintf(`SET LOCAL ROLE %s; SELECT pglock.acquire_lease('%[1]s', gen_random_uuid(), gen_random_uuid(), 'h', '1 s', p_turns => 2)`, role), pgx.QueryExecModeSimpleProtocol)
			return err
		})
		if err != nil {
			t.Errorf("acquire_lease as %s: %v", role, err)
		}
	}
}

// meets runs a step beside a program that has begun a transaction on a lock, and then a statement that reads tables in another
// order than the step locks them.
func meets(t *testing.T, db *pgtest.DB, step func() error, statement string, args ...any) {
	t.Helper()
	look, other := db.Conn(t), db.Conn(t)
	if _, err := other.Exec(t.Context(), statement, args...); err != nil { // planned before
		t.Fatal(err)
	}
	busy, err := db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Rollback(t.Context()) //nolint:errcheck // after a commit
	if _, err := busy.Exec(t.Context(), "SELECT pglock.check_lease(name, token, grant_id) FROM pglock.locks WHERE name = 'ex' AND slot = 0"); err != nil {
		t.Fatal(err)
	}
	waiting := func(n int) func() bool {
		return func() bool {
			return text(t, look, "SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'") == fmt.Sprint(n)
		}
	}
	stepped, asked := make(chan error, 1), make(chan error, 1)
	go func() { stepped <- step() }()
	eventually(t, "the step to wait", waiting(1))
	go func() {
		_, err := other.Exec(t.Context(), statement, args...)
		asked <- err
	}()
	eventually(t, "the statement to wait", waiting(2))
	if err := busy.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-stepped; err != nil {
		t.Errorf("the step: %v", err)
	}
	if err := <-asked; err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}

// The statements that a program sends all the time must not make the step fail, nor fail themselves.
func TestSpeedMeetsRunningProgramsWithoutADeadlock(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"look":  "SELECT pglock.look(gen_random_uuid(), 'h', '10 s')",
		"leave": "SELECT pglock.leave('ex', gen_random_uuid())",
		"wait":  "SELECT pglock.acquire('ex', gen_random_uuid(), gen_random_uuid(), 'h', '1 hour', p_wait => true)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, p, _ := versionThree(t)
			meets(t, db, func() error { return tryApply(t, p.conn, speedUp) }, statement)
			meets(t, db, func() error { return tryApply(t, p.conn, speedDown) }, statement)
		})
	}
}
