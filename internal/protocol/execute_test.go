package protocol

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// text is a step that reads one text.
func text(sql string, into *[]string, args ...any) Step {
	return Step{SQL: sql, Args: args, Scan: func(rows pgx.Rows) error {
		var s string
		err := rows.Scan(&s)
		*into = append(*into, s)
		return err
	}}
}

// connect gives a connection of this mode.
func connect(t *testing.T, d *pgtest.DB, mode pgx.QueryExecMode) *pgx.Conn {
	t.Helper()
	config := d.Conn(t).Config()
	config.DefaultQueryExecMode = mode
	conn := must.Get(pgx.ConnectConfig(t.Context(), config))(t)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

var modes = []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
	pgx.QueryExecModeDescribeExec,
	pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}

// Every kind of argument arrives in every mode, and only the default mode prepares statements.
func TestStepsRunInEveryMode(t *testing.T) {
	d := pgtest.Database(t)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, d, mode)
			var e Executor
			seven, name := 7, "it's"
			const sql = `SELECT concat_ws('|', $1::text, $2::int8, $3::bool, $4::text[], $5::int8[], $6::int4[], $7::text[], $8::int4, $9::bool[])`
			var got []string
			for range 2 {
				if err := e.Run(t.Context(), conn, text(sql, &got, name, int64(5), true, []string{"a", "b,c"},
					[]int64{1, 2},
					[]*int{&seven, nil}, []*string{nil, &name}, (*int)(nil), []bool{true})); err != nil {
					t.Fatal(err)
				}
			}
			if want := `it's|5|t|{a,"b,c"}|{1,2}|{7,NULL}|{NULL,it's}|{t}`; !slices.Equal(got, []string{want, want}) {
				t.Errorf("%q, want %q twice", got, want)
			}
			var prepared int
			if err := conn.QueryRow(t.Context(),
				"select count(*) from pg_prepared_statements where name like 'pglock%'",
				pgx.QueryExecModeSimpleProtocol).Scan(&prepared); err != nil ||
				(prepared > 0) != (mode == pgx.QueryExecModeCacheStatement) {
				t.Errorf("%d statements are prepared, %v", prepared, err)
			}
		})
	}
}

// Whatever the session's default, a step runs at READ COMMITTED, and each is a transaction of its own.
func TestI19_StepsAreTransactionsAtReadCommitted(t *testing.T) {
	d := pgtest.Database(t)
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			conn := connect(t, d, mode)
			must.Get(conn.Exec(t.Context(), "set default_transaction_isolation = 'serializable'"))(t)
			var e Executor
			e.BeginExplicitly()
			var got, along []string
			const sql = `SELECT current_setting('transaction_isolation') || ' ' || pg_current_xact_id()`
			must.Do(t, e.Run(t.Context(), conn, text(sql, &got), text(sql+" ", &along)))
			all := append(got, along...)
			if want := 2; mode == pgx.QueryExecModeCacheStatement && len(all) != want ||
				mode != pgx.QueryExecModeCacheStatement && len(all) != 1 {
				t.Fatalf("%q", all)
			}
			for i, s := range all {
				if s[:14] != "read committed" || i > 0 && s == all[0] {
					t.Errorf("%q", all)
				}
			}
			if err := e.Run(t.Context(), conn, text("SELECT (1 / $1::int4)::text", &got, 0)); State(err) != "22012" ||
				conn.PgConn().TxStatus() != 'I' {
				t.Errorf("%v; the connection is left in state %c", err, conn.PgConn().TxStatus())
			}
		})
	}
}

// A failure in a step that goes along undoes nothing, and is not an error.
func TestALimitOnlyLowersTheTimeoutOfTheSession(t *testing.T) {
	conn := connect(t, pgtest.Database(t), pgx.QueryExecModeCacheStatement)
	for was, want := range map[string]string{
		"0": "10s", "999": "999ms", "9999": "9999ms", "10s": "10s", "10001": "10s", "61s": "10s", "2h": "10s",
		"24d": "10s", "2147483647": "10s",
	} {
		if _, err := conn.Exec(t.Context(), "SET IntervalStyle = iso_8601; SET statement_timeout = '"+was+
			"'"); err != nil {
			t.Fatal(err)
		}
		var e Executor
		var got []string
		limited := text("SELECT current_setting('statement_timeout')", &got)
		limited.Limit = 10 * time.Second
		err := e.Run(t.Context(), conn, limited)
		if err != nil || !slices.Equal(got, []string{want}) {
			t.Errorf("timeout %s: %v while the step ran, %v; want %s", was, got, err, want)
		}
	}
	must.Get(conn.Exec(t.Context(), "SET statement_timeout = 0"))(t)
	var e Executor
	var got []string
	year := text("SELECT setting FROM pg_settings WHERE name = 'statement_timeout'", &got)
	year.Limit = 365 * 24 * time.Hour
	if err := e.Run(t.Context(), conn, year); err != nil || !slices.Equal(got, []string{"2147483647"}) {
		t.Errorf("with a limit of a year: %v while the step ran, %v; want the greatest timeout that there is", got, err)
	}
}

func TestFailureOfAStepThatGoesAlongIsItsOwn(t *testing.T) {
	conn := connect(t, pgtest.Database(t), pgx.QueryExecModeCacheStatement)
	var e Executor
	var got, none []string
	if err := e.Run(t.Context(), conn, text("SELECT 'done'", &got), text("SELECT (1 / $1::int4)::text", &none,
		0)); err != nil || !slices.Equal(got, []string{"done"}) {
		t.Errorf("%q, %v", got, err)
	}
	if err := e.Run(t.Context(), conn, text("SELECT (1 / $1::int4)::text", &none, 0),
		text("SELECT 'done'", &none)); State(err) != "22012" || none != nil {
		t.Errorf("%q, %v", none, err)
	}
	if err := e.Run(t.Context(), conn, text("SELECT 'done'", &got)); err != nil || len(got) != 2 {
		t.Errorf("%q, %v", got, err)
	}
}

// A name that something between us and the server has lost is not asked for again, and its step runs all the same.
func TestStatementThatWasLostRunsWithoutAName(t *testing.T) {
	conn := connect(t, pgtest.Database(t), pgx.QueryExecModeCacheStatement)
	var e Executor
	var got []string
	step := text("SELECT 'done'", &got)
	for i := range 3 {
		if err := e.Run(t.Context(), conn, step); err != nil || len(got) != i+1 {
			t.Fatalf("%q, %v", got, err)
		}
		must.Get(conn.Exec(t.Context(), "deallocate all"))(t)
	}
	if e.names.usable(pgx.QueryExecModeCacheStatement) {
		t.Error("statements go on with names")
	}
}

// tracer notes what is traced.
type tracer struct{ all []string }

func (r *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.all = append(r.all, data.SQL)
	return ctx
}

func (r *tracer) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	r.all = append(r.all, State(data.Err))
}

func TestStepsAreTraced(t *testing.T) {
	config := pgtest.Database(t).Conn(t).Config()
	var r tracer
	config.Tracer = &r
	conn := must.Get(pgx.ConnectConfig(t.Context(), config))(t)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var e Executor
	_ = e.Run(t.Context(), conn, Step{SQL: "SELECT 1 / 0"})
	if !slices.Equal(r.all, []string{"SELECT 1 / 0", "22012"}) {
		t.Errorf("traced: %q", r.all)
	}
}
