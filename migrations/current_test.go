package migrations

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// migrating holds the lock of migrating programs for the length of the test.
func migrating(t *testing.T, db *pgtest.DB) {
	t.Helper()
	mustDo(t, db.Conn(t), "SELECT pg_advisory_lock(hashtextextended('pglock migrations pglock', 0))")
}

func TestUpOfACurrentSchemaNeedsNoRightAndWaitsForNobody(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	mustUp(t, db.URL())
	app, name := asUser(t, db, "_app")
	mustDo(t, db.Conn(t), "GRANT pglock_user TO "+name)
	migrating(t, db)
	mustUp(t, app)
	mustUp(t, db.URL())
	wantVersion(t, app, Latest, false)

	u := must.Get(url.Parse(app))(t)
	q := u.Query()
	q.Set("default_transaction_read_only", "on") // as on a standby
	u.RawQuery = q.Encode()
	mustUp(t, u.String())
}

func TestFiftyProgramsStartAtOnce(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	mustUp(t, db.URL(), ladder(t, 2, nil))
	files := ladder(t, 3, nil)
	app, name := asUser(t, db, "_app")
	mustDo(t, conn, "GRANT USAGE ON SCHEMA pglock TO "+name)
	const programs = 50
	start := func(wantErr bool, addresses ...string) {
		t.Helper()
		all := pgtest.Group(t)
		for n := range programs {
			all.Go(func() {
				err := Up(t.Context(), addresses[n%len(addresses)], files)
				var right *RightError
				if wantErr && !errors.As(err, &right) || !wantErr && err != nil {
					t.Errorf("program %d: %v", n, err)
				}
			})
		}
		all.Wait()
	}
	start(true, app)
	wantVersion(t, db.URL(), 2, false)
	start(false, db.URL())
	wantVersion(t, db.URL(), 3, false)
	start(false, db.URL(), app)
}

// Programs that may not migrate start while another migrates: they wait, and find nothing left to do.
func TestProgramsWithoutRightsWaitForTheOneThatMigrates(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	mustUp(t, db.URL(), ladder(t, 1, nil))
	app, name := asUser(t, db, "_app")
	mustDo(t, conn, "GRANT USAGE ON SCHEMA pglock TO "+name)
	keepBusy(t, conn)
	files := ladder(t, 2, map[int]string{2: "LOCK TABLE public.busy"})
	done := make(chan error, 2)
	go func() { done <- Up(t.Context(), db.URL(), files) }()
	blocked(t, db, 1)
	go func() { done <- Up(t.Context(), app, files) }()
	blocked(t, db, 2)
	mustDo(t, conn, "COMMIT")
	for range 2 {
		must.Note(t, <-done)
	}
}

// The user's time limits are for statements that do something: no limit ends the wait for another program's migration.
func TestProgramsTakeTurnsWhateverTimeLimitsTheirUserHas(t *testing.T) {
	t.Parallel()
	for limit, longer := range map[string]string{"lock_timeout=50ms": "200 ms", "statement_timeout=3s": "4 s"} {
		if !pgtest.Among(limit, "lock_timeout=50ms") {
			continue
		}
		t.Run(limit, func(t *testing.T) {
			db := pgtest.EmptyParallel(t)
			other := db.Conn(t)
			mustDo(t, other, "SELECT pg_advisory_lock(hashtextextended('pglock migrations pglock', 0))")
			u := must.Get(url.Parse(db.URL()))(t)
			name, value, _ := strings.Cut(limit, "=")
			q := u.Query()
			q.Set(name, value)
			u.RawQuery = q.Encode()
			done := must.Go(func() error { return Up(t.Context(), u.String(), ladder(t, 2, nil)) })
			pgtest.Eventually(t, "it waits for longer than its limit", func() (waits bool) {
				if err := other.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event = 'advisory'
						AND clock_timestamp() - query_start > $1::text::interval)`, longer).Scan(&waits); err != nil {
					t.Fatal(err)
				}
				return waits || len(done) > 0
			})
			mustDo(t, other, "SELECT pg_advisory_unlock_all()")
			must.Do(t, <-done)
			if name == "lock_timeout" {
				keepBusy(t, other)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				steps := ladder(t, 3, map[int]string{3: "LOCK TABLE public.busy"})
				err := Up(ctx, u.String(), steps)
				wantStep(t, err, 2, 3, "55P03")
				config := other.Config() // the session's own limit, which a hook has set
				config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
					return conn.Exec(ctx, "SET lock_timeout = '50ms'").Close()
				}
				err = Up(ctx, config, steps)
				wantStep(t, err, 2, 3, "55P03")
				mustDo(t, other, "COMMIT")
			}
		})
	}
}

func TestUpWithoutARightSaysWhichAndWhoHasIt(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	app, name := asUser(t, db, "_app")
	me := conn.Config().User
	wants := func(when string, err error, have int, texts ...string) {
		t.Helper()
		var right *RightError
		if !errors.As(err, &right) || right.Have != have || right.User != name || right.Owner != me {
			t.Errorf("%s: %v, want a RightError about version %d", when, err, have)
			return
		}
		for _, text := range append(texts, `"`+name+`"`) {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: no %q in %v", when, text, err)
			}
		}
	}
	wants("no schema", Up(t.Context(), app), 0, `"pglock" is missing`, `CREATE on database "`+db.Name()+`"`, `let "`+me+
		`" run`)
	mustDo(t, conn, "CREATE SCHEMA pglock")
	wants("empty schema", Up(t.Context(), app), 0, `"pglock" is missing`, "CREATE on it", `let "`+me+`" run`)
	mustDo(t, conn, "DROP SCHEMA pglock")

	mustUp(t, db.URL())
	_, _, err := Version(t.Context(), app)
	for what, err := range map[string]error{"Version": err, "Up": Up(t.Context(), app), "Down": Down(t.Context(), app),
		"Force": Force(t.Context(), app, Latest)} {
		wants(what+" without any right", err, -1, "may not be looked at", "the right to use it",
			`GRANT pglock_user TO "`+name+`"`)
	}
	mustDo(t, conn, "GRANT USAGE ON SCHEMA pglock TO "+name)
	_, _, err = Version(t.Context(), app)
	wants("with USAGE", err, -1, "may not be looked at", `the right EXECUTE on "pglock"."schema_version"()`)
	mustDo(t, conn, "DROP SCHEMA pglock CASCADE")
	mustUp(t, db.URL(), ladder(t, 2, nil))
	files := ladder(t, 3, nil)
	mustDo(t, conn, "GRANT USAGE ON SCHEMA pglock TO "+name)
	for what, err := range map[string]error{"Up": Up(t.Context(), app, files), "Down": Down(t.Context(), app, files),
		"Force": Force(t.Context(), app, 2, files)} {
		wants(what, err, 2, "has version 2", `the rights of its owner "`+me+`"`, `let "`+me+`" run`)
	}
	wantVersion(t, db.URL(), 2, false)
}

func TestANewerSchemaIsLeftAlone(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	mustUp(t, db.URL(), ladder(t, 3, nil))
	files := ladder(t, 2, nil)
	for what, err := range map[string]error{"Up": Up(t.Context(), db.URL(), files),
		"Down": Down(t.Context(), db.URL(), files)} {
		if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "has version 3") ||
			!strings.Contains(err.Error(), "knows 2") {
			t.Errorf("%s: %v, want ErrNewer", what, err)
		}
	}
	wantVersion(t, db.URL(), 3, false)
}

func TestAConfigurationServesAsWellAsAConnectionString(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	config := db.Pool(t).Config().ConnConfig
	before := config.ConnString() + config.DefaultQueryExecMode.String()
	files := ladder(t, 2, nil)
	mustUp(t, config, files)
	if err := Force(t.Context(), config, 2, files); err != nil {
		t.Errorf("Force: %v", err)
	}
	if version, dirty, err := Version(t.Context(), config); version != 2 || dirty || err != nil {
		t.Errorf("Version = %d, %v, %v", version, dirty, err)
	}
	if err := Down(t.Context(), config, files); err != nil {
		t.Errorf("Down: %v", err)
	}
	if after := config.ConnString() + config.DefaultQueryExecMode.String(); after != before {
		t.Errorf("the caller's configuration has changed to %s", after)
	}
}

func TestUpTakesWhatAProgramHas(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	asked := 0
	pool := db.Pool(t, func(config *pgxpool.Config) {
		config.MaxConns = 1
		config.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { // as for a password that changes
			asked++
			return nil
		}
	})
	busy, err := pool.Acquire(t.Context()) // migrations need none of its connections
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Release()
	asked = 0
	for what, up := range map[string]func() error{
		"a pool":                    func() error { return Up(t.Context(), pool) },
		"a pool's configuration":    func() error { return Up(t.Context(), pool.Config()) },
		"a connection":              func() error { return Up(t.Context(), db.Conn(t)) },
		"a connection in use":       func() error { return Up(t.Context(), busy.Conn()) },
		"a configuration":           func() error { return Up(t.Context(), pool.Config().ConnConfig) },
		"a connection string, last": func() error { return Up(t.Context(), db.URL()) },
	} {
		if err := up(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if asked != 2 {
		t.Errorf("the pool's BeforeConnect was called %d times, want it for the pool and for its configuration", asked)
	}
	wantVersion(t, db.URL(), Latest, false)
	var (
		noPool   *pgxpool.Pool
		noConn   *pgx.Conn
		noConfig *pgx.ConnConfig
	)
	for what, err := range map[string]error{
		"*pgxpool.Pool": Up(t.Context(), noPool), "*pgx.Conn": Up(t.Context(), noConn),
		"*pgx.ConnConfig": Up(t.Context(), noConfig),
		"*pgxpool.Config": Up(t.Context(), &pgxpool.Config{}), "made by hand": Up(t.Context(), &pgx.ConnConfig{}),
	} {
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), what) ||
			!strings.Contains(err.Error(), "it must be made by pgx") {
			t.Errorf("%s: %v, want ErrInvalid that names the rule", what, err)
		}
	}
}

// A connection string may say what pglock.Open takes from it for its pool.
func TestAConnectionStringMayBeThatOfAPool(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	u := must.Get(url.Parse(db.URL()))(t)
	q := u.Query()
	q.Set("pool_max_conns", "9")
	q.Set("pool_max_conn_idle_time", "1h")
	u.RawQuery = q.Encode()
	mustUp(t, u.String())
	wantVersion(t, u.String(), Latest, false)
	q.Set("pool_max_conns", "many")
	u.RawQuery = q.Encode()
	if err := Up(t.Context(), u.String()); err == nil ||
		!strings.Contains(err.Error(), "read the connection string: cannot parse") {
		t.Errorf("a pool of many: %v", err)
	}
}

func TestCheckSaysWhatUpWouldRefuse(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	app, name := asUser(t, db, "_app")
	files := ladder(t, 3, nil)
	wants := func(when, address string, right bool) {
		t.Helper()
		err := Check(t.Context(), address, files)
		if _, is := errors.AsType[*RightError](err); is != right || !right && err != nil {
			t.Errorf("%s: %v", when, err)
		}
		if up := Up(t.Context(), address, ladder(t, 3, nil)); (up != nil) != right {
			t.Errorf("%s: Check says %v, and Up %v", when, err, up)
		}
	}
	wants("missing, no right", app, true)
	mustUp(t, db.URL(), ladder(t, 2, nil))
	mustDo(t, conn, "GRANT USAGE ON SCHEMA pglock TO "+name)
	wants("older, no right", app, true)
	wants("older, the owner", db.URL(), false)
	wants("current, no right", app, false)
	mustDo(t, conn, "UPDATE pglock.pglock_schema_migrations SET version = 1")
	if err := Check(t.Context(), db.URL(), files); err != nil {
		t.Errorf("current, whatever is noted: %v", err)
	}
	var dirty *DirtyError
	if err := Check(t.Context(), db.URL(), ladder(t, 4, nil)); !errors.As(err, &dirty) {
		t.Errorf("older than another release, and noted by hand: %v", err)
	}
}
