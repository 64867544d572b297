package lockadmin_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
)

// posing makes a schema look like one of pglock. Its get_lock leaves a trace that survives a rollback.
func posing(schema string) string {
	return strings.ReplaceAll(`
	CREATE TABLE {{schema}}.fencing_token_seq ();
	CREATE FUNCTION {{schema}}.acquire_lease() RETURNS int LANGUAGE sql AS 'SELECT 1';
	CREATE FUNCTION {{schema}}.get_lock(text) RETURNS TABLE (name text, held bool, holder text, session_id uuid,
		token bigint, ttl_us bigint, acquired_at timestamptz, renewed_at timestamptz, expires_at timestamptz,
		ended_at timestamptz, remaining_us bigint, metadata jsonb, slot int, mode text, capacity int, waiting int,
		grants bigint, slowest_us bigint, longest_wait_us bigint, subtree bool)
	LANGUAGE plpgsql AS $f$ BEGIN
		PERFORM pg_advisory_lock_shared(4711);
		RETURN QUERY SELECT $1, false, 'h', gen_random_uuid(), 1::bigint, 1::bigint, now(), now(), now(), now(),
			0::bigint, '{}'::jsonb, 0, 'exclusive', NULL::int, 0, 1::bigint, NULL::bigint, NULL::bigint, false;
	END $f$;`, "{{schema}}", schema)
}

// Whoever looks for an unknown lock calls no function that somebody else could have made: it would run with their
// rights.
func TestALookElsewhereRunsNobodysCode(t *testing.T) {
	db := pgtest.Parallel(t)
	root := db.Conn(t)
	role, connect := login(t, db, "_mallory")
	execute(t, root, "GRANT CREATE ON DATABASE "+pgx.Identifier{db.Name()}.Sanitize()+" TO "+role)
	mallory := must.Get(pgx.Connect(t.Context(), connect))(t)
	t.Cleanup(func() { _ = mallory.Close(context.WithoutCancel(t.Context())) })

	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema("second")))
	execute(t, root, "ALTER SCHEMA second OWNER TO pg_database_owner")
	admin := newAdmin(t, db.Pool(t))
	schemas := func() (found []string) {
		t.Helper()
		for _, e := range must.Get(admin.Explain(t.Context(), "job-1x"))(t).Elsewhere {
			if e.Schema != "" {
				found = append(found, e.Schema)
			}
		}
		return found
	}
	ran := func() bool {
		return pgtest.One[bool](t, root, `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory'
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objid = 4711)`)
	}

	execute(t, mallory, posing("pg_temp"))
	execute(t, mallory, "CREATE SCHEMA hers; GRANT USAGE ON SCHEMA hers TO PUBLIC;"+posing("hers"))
	execute(t, root, "CREATE SCHEMA opened; GRANT CREATE ON SCHEMA opened TO PUBLIC;"+posing("opened"))
	execute(t, root, "CREATE SCHEMA lent; CREATE SCHEMA added; GRANT ALL ON SCHEMA lent, added TO "+role)
	execute(t, mallory, posing("lent")+"CREATE OPERATOR added.=== (LEFTARG = int, RIGHTARG = int, FUNCTION = int4eq)")
	execute(t, root, "REVOKE ALL ON SCHEMA lent, added FROM "+role+";"+posing("added"))
	if found := schemas(); !slices.Equal(found, []string{"second"}) || ran() {
		t.Errorf("schemas %q, and a function of somebody else ran: %t", found, ran())
	}
	places := must.Get(lockadmin.Places(t.Context(), db.Pool(t), lockadmin.WithSchema("nosuch")))(t)
	owned := map[string]string{}
	for _, e := range places {
		if e.Schema != "" {
			owned[e.Schema] = e.Owner
		}
	}
	root1 := root.Config().User
	if want := map[string]string{"pglock": "", "second": "", "hers": db.Name() + "_mallory", "opened": root1,
		"lent": root1, "added": root1}; !maps.Equal(owned, want) {
		t.Errorf("other places to look, and whom not to trust, are %v, want %v", owned, want)
	}

	// A role that both are members of is no reason to trust: code can go back to whoever has logged in.
	_, connect = login(t, db, "_oncall")
	pool := must.Get(pgxpool.New(t.Context(), connect+"&options=-c%20role%3Dpglock_user"))(t)
	defer pool.Close()
	for _, e := range must.Get(newAdmin(t, pool).Explain(t.Context(), "job-1x"))(t).Elsewhere {
		if e.Schema == "hers" || ran() {
			t.Errorf("with the role of both it is %v, and a function ran: %t", e, ran())
		}
	}

	// Who asks trusts the owner of the schema that they name.
	execute(t, root, "ALTER SCHEMA pglock OWNER TO "+role)
	found := schemas()
	execute(t, root, "ALTER SCHEMA pglock OWNER TO CURRENT_USER")
	if !slices.Equal(found, []string{"added", "hers", "lent", "second"}) || !ran() {
		t.Errorf("schemas %q; of the owner of pglock: %t", found, ran())
	}
}
