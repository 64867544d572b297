package pglock_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// Every function works in a schema whose name needs quotes: whatever it makes of that name, it finds what it looks for.
func TestEveryFunctionWorksInASchemaWhoseNameNeedsQuotes(t *testing.T) {
	t.Parallel()
	const odd = `We"ird 'Schema.x`
	schema := pgx.Identifier{odd}.Sanitize()
	db := pgtest.EmptyDatabase(t)
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema(odd)))
	conn, pool := db.Conn(t), db.Pool(t)
	// which the helpers need
	execute(t, conn, "CREATE TABLE accounts (id int); SET jit = off; SET search_path = "+schema+", pg_temp")
	c := startClient(t, pool, pglock.WithSchema(odd), pglock.WithDefaultTTL(time.Minute))
	if err := fencedstore.GuardTable(t.Context(), pool, "accounts", fencedstore.WithTableKey("id"),
		fencedstore.WithSchema(odd)); err != nil {
		t.Fatal(err)
	}
	held := mustAcquire(t, c, "x") // so that there is something to find
	execute(t, conn,
		fmt.Sprintf(`SELECT fence('x', %d, '%s'); SELECT acquire_lease('x', gen_random_uuid(), gen_random_uuid(), 'waiter', '1 min', p_wait => true, p_session_ttl => '1 min')`, held.Token(), exported(held)))

	rows, err := conn.Query(t.Context(),
		`SELECT p.oid::regprocedure::text, p.proname::text, p.pronargs - p.pronargdefaults,
		ARRAY(SELECT CASE WHEN y.typnamespace <> 'pg_catalog'::regnamespace THEN 'NULL::' || a::regtype ELSE a::regtype::text END FROM unnest(p.proargtypes::oid[]) WITH ORDINALITY AS u (a, n) JOIN pg_type y ON y.oid = a ORDER BY n)
		FROM pg_proc p WHERE p.pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1) AND p.prorettype <> 'trigger'::regtype ORDER BY 1`, odd)
	if err != nil {
		t.Fatal(err)
	}
	calls := make(map[string]bool)
	var signature, name string
	var required int
	var types []string
	more := map[string]string{"oid": `'accounts'::regclass::oid`, "regclass": `'accounts'`,
		"oid[]": `ARRAY['accounts'::regclass::oid]`, "record": `ROW(1)`, "tid": `'(0,1)'`, "xid": `'3'`,
		"xid[]": `'{3}'`, "json": `'{}'`,
		"jsonb": `'{"a": 1}'`}
	if _, err := pgx.ForEachRow(rows, []any{&signature, &name, &required, &types}, func() error {
		var arguments []string
		for _, of := range types {
			sample, ok := samples[of]
			switch {
			case strings.HasPrefix(of, "NULL::"):
				sample = of
			case !ok && more[of] == "":
				return fmt.Errorf("%s takes %s: give an example", signature, of)
			case !ok:
				sample = more[of] + "::" + of
			default:
				sample += "::" + of
			}
			arguments = append(arguments, sample)
		}
		switch name {
		case "bound_timeout":
			arguments = []string{`'lock_timeout'`, `3600000`}
		case "bound_transaction", "bound_transaction_timeout":
			arguments = []string{`3600000`}
		}
		for _, n := range []int{required, len(arguments)} {
			calls[fmt.Sprintf("SELECT * FROM %s.%s(%s)", schema, pgx.Identifier{name}.Sanitize(),
				strings.ReplaceAll(strings.Join(arguments[:n], ", "), "'accounts'", "'public.accounts'"))] = true
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(calls) < 150 {
		t.Fatalf("%d calls", len(calls))
	}
	for call := range calls {
		// At once: some end a transaction that is idle for a second.
		_, err := conn.Exec(t.Context(), "BEGIN; "+call+"; ROLLBACK", pgx.QueryExecModeSimpleProtocol)
		var refused *pgconn.PgError
		switch {
		// it refuses its arguments
		case errors.As(err, &refused) && strings.Contains(strings.SplitN(refused.Where, "\n", 2)[0], " at RAISE"):
		case errors.As(err, &refused): // no such thing, no such name, no right
			if strings.HasPrefix(refused.Code, "42") || slices.Contains([]string{"3F000", "22P02"}, refused.Code) {
				t.Errorf("%s: %v", call, err)
			}
		case err != nil:
			t.Fatalf("%s: %v", call, err)
		}
		if err != nil {
			execute(t, conn, "ROLLBACK")
		}
	}
}
