package migrations_test

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

const (
	firstUp   = "000001_foundation.up.sql"
	queueUp   = "000002_queue.up.sql"
	queueDown = "000002_queue.down.sql"
)

// apply runs a plain file as its head says: in one transaction, with the schema's search_path.
func apply(t *testing.T, conn *pgx.Conn, name string) {
	t.Helper()
	if err := tryApply(t, conn, name); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func tryApply(t *testing.T, conn *pgx.Conn, name string) error {
	content, err := fs.ReadFile(migrations.Files(), name)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "SET LOCAL search_path = pglock, pg_temp;"+string(content), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// versionOne is a database as the release of version 1 has left it.
func versionOne(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.EmptyDatabase(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE SCHEMA pglock")
	apply(t, conn, firstUp)
	execute(t, conn, `CREATE TABLE pglock.pglock_schema_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL);
		INSERT INTO pglock.pglock_schema_migrations VALUES (1, false)`)
	return db, conn
}

// scan reads one row.
func scan(t *testing.T, conn *pgx.Conn, into []any, sql string, args ...any) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(into...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// text reads one text.
func text(t *testing.T, conn *pgx.Conn, sql string, args ...any) (s string) {
	t.Helper()
	scan(t, conn, []any{&s}, sql, args...)
	return s
}

// structure is the schema in every detail, but for what golang-migrate has in it.
func structure(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return text(t, conn, `
		WITH rels AS (SELECT c.* FROM pg_class c WHERE c.relnamespace = 'pglock'::regnamespace AND c.relname NOT LIKE 'pglock_schema_migrations%'),
		rights AS (
			SELECT 'relation ' || c.relname AS what, c.relacl AS acl FROM rels c
			UNION ALL SELECT 'function ' || p.oid::regprocedure, p.proacl FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
			UNION ALL SELECT 'schema', n.nspacl FROM pg_namespace n WHERE n.oid = 'pglock'::regnamespace)
		SELECT string_agg(x, E'\n' ORDER BY x) FROM (
			SELECT 'relation ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(c.reloptions::text, '') AS x FROM rels c
			UNION ALL SELECT 'column ' || c.relname || ' ' || row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) || ' ' || a.attname || ' '
					|| format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || a.attidentity::text || ' ' || a.attcollation::regcollation
					|| ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '')
				FROM rels c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind = 'r'
				LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
			UNION ALL SELECT 'constraint ' || c.relname || ' ' || k.conname || ' ' || pg_get_constraintdef(k.oid) || k.convalidated
				FROM rels c JOIN pg_constraint k ON k.conrelid = c.oid
			UNION ALL SELECT 'index ' || pg_get_indexdef(c.oid) FROM rels c WHERE c.relkind = 'i'
			UNION ALL SELECT 'sequence ' || c.relname || ' ' || format_type(s.seqtypid, NULL) || ' ' || s.seqmin || ' ' || s.seqincrement || ' ' || s.seqcache || s.seqcycle
				FROM rels c JOIN pg_sequence s ON s.seqrelid = c.oid
			UNION ALL SELECT 'trigger ' || g.tgenabled::text || ' ' || CASE WHEN NOT g.tgisinternal THEN pg_get_triggerdef(g.oid) END
				FROM rels c JOIN pg_trigger g ON g.tgrelid = c.oid
			UNION ALL SELECT 'type ' || y.typname || ' ' || y.typtype::text FROM pg_type y WHERE y.typnamespace = 'pglock'::regnamespace
					AND y.typname !~ 'pglock_schema_migrations'
			UNION ALL SELECT pg_get_functiondef(p.oid) FROM pg_proc p WHERE p.pronamespace = 'pglock'::regnamespace
			UNION ALL SELECT 'right ' || r.what || ' ' || coalesce(e.grantee::regrole::text, '') || ' ' || e.privilege_type || e.is_grantable
				FROM rights r CROSS JOIN LATERAL aclexplode(r.acl) e
			UNION ALL SELECT 'no rights given ' || r.what FROM rights r WHERE r.acl IS NULL) everything`)
}

// firstDifference is where two texts part, for people.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d: got  %s\nwant %s", i+1, a, b)
		}
	}
	return ""
}

// content is every row that version 1 knows, without the columns that came later.
func content(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return text(t, conn, `SELECT string_agg(x, E'\n' ORDER BY x) FROM (
		SELECT 'lock ' || (to_jsonb(l) - '{slot,top_slot,mode,capacity,ticket,owner_id,watched_until,block}'::text[])::text AS x FROM pglock.locks l
		UNION ALL SELECT 'fence ' || to_jsonb(f)::text FROM pglock.fences f
		UNION ALL SELECT 'event ' || (to_jsonb(e) - 'xact')::text FROM pglock.events e
		UNION ALL SELECT 'spent ' || to_jsonb(s)::text FROM pglock.spent_grants s
		UNION ALL SELECT 'installation ' || (to_jsonb(i) - 'epoch' - 'timeline' - 'timeline_since')::text FROM pglock.installation i
		UNION ALL SELECT 'sequence ' || q.last_value || q.is_called FROM pglock.fencing_token_seq q) everything`)
}

// program calls the functions with the statements of the library of version 1, on one connection that prepares them.
type program struct {
	t       *testing.T
	conn    *pgx.Conn
	session uuid.UUID
	label   string
}

func newProgram(t *testing.T, db *pgtest.DB, label string) *program {
	return &program{t, db.Conn(t), uuid.New(), label}
}

// claim is one grant.
type claim struct {
	name  string
	token int64
	id    uuid.UUID
}

func (p *program) acquire(name string, id uuid.UUID, retry bool) (granted bool, c claim, holder string) {
	p.t.Helper()
	var token, remaining *int64
	var by *string
	var at *int64
	scan(p.t, p.conn, []any{&granted, &token, &by, &at, &remaining}, `SELECT granted, token, holder, (EXTRACT(epoch FROM expires_at) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8, remaining_us
		FROM "pglock".acquire($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid, $3::pg_catalog.text::pg_catalog.uuid,
			$4::pg_catalog.text, $5::pg_catalog.text::pg_catalog.interval, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.bool)`,
		name, id.String(), p.session.String(), p.label, "3600 s", nil, retry)
	if remaining == nil || granted && (token == nil || at == nil || *remaining <= 0) {
		p.t.Fatalf("acquire %q: granted %v, token %v, until %v, remaining %v", name, granted, token, at, remaining)
	}
	if token != nil {
		c = claim{name, *token, id}
	}
	if by != nil {
		holder = *by
	}
	return granted, c, holder
}

func (p *program) mustAcquire(name string) claim {
	p.t.Helper()
	granted, c, holder := p.acquire(name, uuid.New(), false)
	if !granted {
		p.t.Fatalf("lock %q is held by %q", name, holder)
	}
	return c
}

func (p *program) wantRefused(name, holder string) {
	p.t.Helper()
	for _, retry := range []bool{false, true} {
		if granted, _, by := p.acquire(name, uuid.New(), retry); granted || by != holder {
			p.t.Errorf("acquire %q (retry %v): granted %v, holder %q; want a refusal that names %q", name, retry, granted, by, holder)
		}
	}
}

func (p *program) release(c claim) (released bool) {
	p.t.Helper()
	var setting string
	scan(p.t, p.conn, []any{&released, &setting}, `SELECT r.released, pg_catalog.set_config('synchronous_commit', 'off', true)
		FROM "pglock".release($1::pg_catalog.text, $2::pg_catalog.int8, $3::pg_catalog.text::pg_catalog.uuid) AS r (released)`, c.name, c.token, c.id.String())
	return released
}

func (p *program) releaseAll(claims ...claim) (ended string) {
	p.t.Helper()
	names, tokens, ids := split(claims)
	return text(p.t, p.conn, `SELECT coalesce(string_agg(x.name, ' ' ORDER BY x.name), '') FROM (SELECT r.name, pg_catalog.set_config('synchronous_commit', 'off', true)
		FROM "pglock".release_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[]) AS r (name)) x`, names, tokens, ids)
}

func (p *program) renewAll(claims ...claim) (outcomes string) {
	p.t.Helper()
	names, tokens, ids := split(claims)
	return text(p.t, p.conn, `SELECT coalesce(string_agg(x.name || ' ' || x.outcome, ', ' ORDER BY x.name), '') FROM (SELECT name, token, outcome, remaining_us
		FROM "pglock".renew_all($1::pg_catalog.text[], $2::pg_catalog.int8[], $3::pg_catalog.text[]::pg_catalog.uuid[])) x`, names, tokens, ids)
}

func (p *program) abandon(name string, id uuid.UUID) (ended bool) {
	p.t.Helper()
	var setting string
	scan(p.t, p.conn, []any{&ended, &setting}, `SELECT r.ended, pg_catalog.set_config('synchronous_commit', 'off', true)
		FROM "pglock".abandon($1::pg_catalog.text, $2::pg_catalog.text::pg_catalog.uuid) AS r (ended)`, name, id.String())
	return ended
}

func split(claims []claim) (names []string, tokens []int64, ids []string) {
	for _, c := range claims {
		names, tokens, ids = append(names, c.name), append(tokens, c.token), append(ids, c.id.String())
	}
	return names, tokens, ids
}

// write does a fenced write with the lease, to its own resource.
func (p *program) write(c claim) error {
	return pgx.BeginFunc(p.t.Context(), p.conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(p.t.Context(), "SELECT pglock.fence($1, $2, $3)", c.name, c.token, c.id)
		return err
	})
}

// request asks for a lock with the words of version 2: the slot and token of a grant, or the ticket of a place in the queue.
func request(t *testing.T, conn *pgx.Conn, name, holder, mode string, capacity int) (c claim, slot int, ticket int64) {
	t.Helper()
	c = claim{name: name, id: uuid.New()}
	var limit *int
	if mode == "limit" {
		limit = &capacity
	}
	var granted bool
	var token, place *int64
	var at *int
	scan(t, conn, []any{&granted, &token, &at, &place}, `SELECT a.granted, a.token, a.slot, a.ticket FROM pglock.acquire($1, $2, gen_random_uuid(), $3, '1 hour',
		p_mode => $4, p_capacity => $5, p_wait => true, p_session_ttl => '24 hours') a`, name, c.id, holder, mode, limit)
	if granted {
		c.token, slot = *token, *at
	} else if place != nil {
		ticket = *place
	}
	return c, slot, ticket
}

// queueUpFor queues for a lock that is held.
func queueUpFor(t *testing.T, conn *pgx.Conn, name, holder, mode string, capacity int) claim {
	t.Helper()
	c, _, ticket := request(t, conn, name, holder, mode, capacity)
	if ticket == 0 {
		t.Fatalf("%s was not queued for lock %q", holder, name)
	}
	return c
}

// holderOf is who holds the lock with this grant, and with which token; "" when nobody does.
func holderOf(t *testing.T, conn *pgx.Conn, c claim) (holder string, token int64) {
	t.Helper()
	err := conn.QueryRow(t.Context(), "SELECT holder, token FROM pglock.locks WHERE name = $1 AND grant_id = $2 AND expires_at > clock_timestamp()", c.name, c.id).Scan(&holder, &token)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return holder, token
}

func TestClientThatMeetsAnOlderSchemaSaysWhichItNeedsAndHowToGetIt(t *testing.T) {
	t.Parallel()
	db, _ := versionOne(t)
	_, err := pglock.New(t.Context(), db.Pool(t))
	var schema *pglock.SchemaError
	if !errors.As(err, &schema) || !errors.Is(err, pglock.ErrSchema) || schema.Have != 1 || schema.Need != migrations.Latest || schema.Schema != "pglock" {
		t.Fatalf("%v, want a SchemaError of version 1", err)
	}
	for _, says := range []string{"version 1", fmt.Sprint("needs ", migrations.Latest), "pglock-admin migrate up", "migrations.Up"} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v: no %q", err, says)
		}
	}
	if err := migrations.Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	c, err := pglock.New(t.Context(), db.Pool(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
