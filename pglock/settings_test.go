package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// exercised is the TTL of leases that exercise and exerciseQueue take: none of them ends by itself on a busy machine.
const exercised = 6 * time.Second

// exercise uses everything once, under whatever settings the pool's connections have.
func exercise(t *testing.T, pool *pgxpool.Pool, schema string) {
	t.Helper()
	c, err := pglock.New(t.Context(), pool, pglock.WithSchema(schema), pglock.WithDefaultTTL(exercised))
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	defer func() {
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("Close: %v", err)
		}
	}()
	l, err := c.TryAcquire(t.Context(), "report", pglock.WithMetadata([]byte(`{"a": 1}`)))
	if err != nil {
		t.Fatalf("TryAcquire: %v", err)
	}
	var held *pglock.HeldError
	if _, err := c.TryAcquire(t.Context(), "report"); !errors.As(err, &held) || time.Until(held.ExpiresAt) > exercised+
		time.Second || time.Until(held.ExpiresAt) < 0 {
		t.Errorf("TryAcquire while held: %v", err)
	}
	if left, err := l.Check(t.Context()); err != nil || left <= 0 || left > exercised {
		t.Errorf("Check = %v, %v", left, err)
	}
	if err := hooks.Of(l).Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	if end, err := l.Extend(t.Context(), time.Hour); err != nil {
		t.Errorf("Extend: %v", err)
	} else {
		if left, err := l.Check(t.Context()); err != nil || left < 59*time.Minute {
			t.Errorf("extended, Check = %v, %v", left, err)
		}
		end()
		pgtest.Eventually(t, "the lease is trusted for its TTL again", func() bool {
			return time.Until(l.Deadline()) <= exercised
		})
		pgtest.Eventually(t, "the lock is taken for its TTL again", func() bool {
			left := must.Get(l.Check(t.Context()))(t)
			return left <= exercised
		})
	}
	store := fencedstore.New(pool)
	if err := store.With(fencedstore.WithTimeLimit(time.Minute)).Write(t.Context(),
		fencedstore.Fence{Lease: l, SameToken: true},
		func(context.Context, pgx.Tx) error {
			return nil
		}); err != nil {
		t.Errorf("Write with a time limit: %v", err)
	}
	for range 2 {
		err := store.Write(t.Context(), fencedstore.Fence{Lease: l, SameToken: true},
			func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "SELECT 1")
				return err
			})
		if err != nil {
			t.Errorf("Write: %v", err)
		}
	}
	if err := store.Write(t.Context(), l, func(context.Context, pgx.Tx) error {
		return nil
	}); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("second Write without AllowSameToken: %v, want ErrStaleToken", err)
	}
	admin := newAdmin(t, pool, lockadmin.WithSchema(schema))
	if info, err := admin.Get(t.Context(), "report"); err != nil || !info.Held || info.TTL != exercised ||
		time.Since(info.AcquiredAt) > time.Minute {
		t.Errorf("Get = %+v, %v", info, err)
	}
	if fences, err := lists.All(admin.Fences(t.Context(), lockadmin.FencesQuery{Lock: "report"})); err != nil ||
		len(fences) != 1 ||
		fences[0].LastToken != l.Token() {
		t.Errorf("Fences = %+v, %v", fences, err)
	}
	if _, err := admin.Diagnose(t.Context()); err != nil {
		t.Errorf("Diagnose: %v", err)
	}
	deadline := l.Deadline()
	pgtest.Eventually(t, "a heartbeat", func() bool {
		return l.Deadline().After(deadline.Add(exercised/6)) || !l.Valid()
	})
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := c.Do(t.Context(), "report", func(ctx context.Context, _ *pglock.Lease) error {
		return ctx.Err()
	}); err != nil {
		t.Errorf("Do: %v", err)
	}
	exerciseQueue(t, c, admin, "report")
	mustAcquire(t, c, "broken")
	if _, err := admin.Break(t.Context(), "broken", "stuck", lockadmin.BreakOptions{}); err != nil {
		t.Errorf("Break: %v", err)
	}
	if events, err := lists.All(admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "broken"})); err != nil ||
		len(events) != 1 ||
		time.Since(events[0].At) > time.Minute {
		t.Errorf("Events = %+v, %v", events, err)
	}
	if infos, err := lists.All(admin.Locks(t.Context(), lockadmin.LocksQuery{Free: true})); err != nil ||
		len(infos) != 2 {
		t.Errorf("List = %+v, %v", infos, err)
	}
}

// exerciseQueue waits for a lock that is then released, watches it, and leaves a queue.
func exerciseQueue(t *testing.T, c *pglock.Client, admin *lockadmin.Admin, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := watching(ctx, c, name)
	if first := <-changes; first.err != nil || first.Kind != pglock.ChangeState || len(first.Holders) != 0 {
		t.Errorf("the state of a free lock: %+v", first)
	}
	l := mustAcquire(t, c, name)
	if _, err := c.Acquire(l.Context(), name); !errors.Is(err, pglock.ErrSelfDeadlock) {
		t.Errorf("the holder's own lock: %v, want ErrSelfDeadlock", err)
	}
	queue := func(ctx context.Context, length int) chan error {
		done := make(chan error, 1)
		go func() {
			done <- c.Do(ctx, name, func(context.Context, *pglock.Lease) error {
				return nil
			}, pglock.WithMetadata([]byte(`{"b": 2}`)))
		}()
		pgtest.Eventually(t, "a ticket", func() bool {
			waiters, err := lists.All(admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: name}))
			if err != nil {
				t.Fatalf("Waiters: %v", err)
			}
			return len(waiters) == length && waiters[0].Place == 1 && waiters[0].TTL == exercised &&
				time.Since(waiters[0].Since) < time.Minute
		})
		return done
	}
	impatient, giveUp := context.WithCancel(ctx)
	next, other := queue(ctx, 1), queue(impatient, 2)
	giveUp()
	if err := <-other; !errors.Is(err, context.Canceled) {
		t.Errorf("a call that gives up: %v, want context.Canceled", err)
	}
	pgtest.Eventually(t, "the end of the other ticket", func() bool {
		waiters, err := lists.All(admin.Waiters(ctx, lockadmin.WaitersQuery{Lock: name}))
		return err == nil && len(waiters) == 1
	})
	if err := l.Release(ctx); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := <-next; err != nil {
		t.Errorf("the waiting call: %v", err)
	}
	for change := range changes {
		if change.Kind == pglock.ChangeReleased && change.Lease.Token > l.Token() {
			cancel() // ends the loop
		}
	}
	for _, mode := range []pglock.AcquireOption{pglock.WithShared(), pglock.WithLimit(2)} {
		a, b := mustAcquire(t, c, name, mode), mustAcquire(t, c, name, mode)
		if a.Slot() == b.Slot() || a.Token() >= b.Token() {
			t.Errorf("%v and %v, in slots %d and %d", a, b, a.Slot(), b.Slot())
		}
		for _, l := range []*pglock.Lease{a, b} {
			if err := l.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	}
}

// hostile makes a schema whose objects have the names of those that the library and PostgreSQL use.
const hostile = `CREATE SCHEMA hostile;
	CREATE TABLE hostile.locks (nothing int);
	CREATE TABLE hostile.fences (nothing int);
	CREATE DOMAIN hostile.text AS pg_catalog.int4;
	CREATE DOMAIN hostile.uuid AS pg_catalog.int4;
	CREATE DOMAIN hostile.interval AS pg_catalog.int4;
	CREATE FUNCTION hostile.trap() RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.clock_timestamp() RETURNS pg_catalog.timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.set_config(pg_catalog.text, pg_catalog.text, pg_catalog.bool) RETURNS pg_catalog.text
		LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.acquire() RETURNS pg_catalog.int4 LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.op(pg_catalog.text, pg_catalog.text) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.op(pg_catalog.int8, pg_catalog.int8) RETURNS pg_catalog.bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE FUNCTION hostile.op(pg_catalog.timestamptz, pg_catalog.timestamptz) RETURNS pg_catalog.bool
		LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
	CREATE OPERATOR hostile.= (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = hostile.op);
	CREATE OPERATOR hostile.<> (LEFTARG = pg_catalog.text, RIGHTARG = pg_catalog.text, FUNCTION = hostile.op);
	CREATE OPERATOR hostile.= (LEFTARG = pg_catalog.int8, RIGHTARG = pg_catalog.int8, FUNCTION = hostile.op);
	CREATE OPERATOR hostile.> (LEFTARG = pg_catalog.timestamptz, RIGHTARG = pg_catalog.timestamptz, FUNCTION = hostile.op);
	CREATE OPERATOR hostile.<= (LEFTARG = pg_catalog.timestamptz, RIGHTARG = pg_catalog.timestamptz, FUNCTION = hostile.op);`

func TestEverythingWorksUnderOddSessionSettings(t *testing.T) {
	t.Parallel()
	params := func(pairs ...string) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) {
			for i := 0; i < len(pairs); i += 2 {
				c.ConnConfig.RuntimeParams[pairs[i]] = pairs[i+1]
			}
		}
	}
	mode := func(m pgx.QueryExecMode) func(*pgxpool.Config) {
		return func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = m }
	}
	both := func(a, b func(*pgxpool.Config)) func(*pgxpool.Config) { return func(c *pgxpool.Config) { a(c); b(c) } }
	odd := params("datestyle", "SQL, DMY", "intervalstyle", "sql_standard", "timezone", "<z>150:00", // Z is not UTC
		"extra_float_digits", "0")
	hostilePath := params("search_path", "hostile, pg_catalog")
	arrayNulls := params("array_nulls", "off")
	replica := params("session_replication_role", "replica")
	noStandard := both(params("standard_conforming_strings", "off", "backslash_quote", "on"),
		mode(pgx.QueryExecModeExec))
	textIDs := func(c *pgxpool.Config) {
		c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
			asText := &pgtype.Type{Name: "uuid", OID: pgtype.UUIDOID, Codec: pgtype.TextCodec{}}
			conn.TypeMap().RegisterType(asText)
			conn.TypeMap().RegisterType(&pgtype.Type{Name: "_uuid", OID: pgtype.UUIDArrayOID,
				Codec: &pgtype.ArrayCodec{ElementType: asText}})
			return nil
		}
	}
	for name, change := range map[string]func(*pgxpool.Config){
		"UUIDs as texts":         textIDs,
		"UUIDs as texts, exec":   both(textIDs, mode(pgx.QueryExecModeExec)),
		"UUIDs as texts, simple": both(textIDs, mode(pgx.QueryExecModeSimpleProtocol)),
		"search_path nonsense":   params("search_path", "nowhere, neither"),
		"search_path empty":      params("search_path", ""),
		"search_path hostile":    hostilePath,
		"several at once":        both(both(hostilePath, odd), both(replica, noStandard)),
		"temporary table named as ours": func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "SET search_path = pg_temp, public; CREATE TEMPORARY TABLE locks (nothing "+
					"int); CREATE TEMPORARY TABLE fences (nothing int)")
				return err
			}
		},
		"one connection":  func(c *pgxpool.Config) { c.MaxConns = 1 },
		"cache_statement": mode(pgx.QueryExecModeCacheStatement),
		"cache_describe":  mode(pgx.QueryExecModeCacheDescribe),
		"describe_exec":   mode(pgx.QueryExecModeDescribeExec),
		"exec":            mode(pgx.QueryExecModeExec),
		"simple_protocol": mode(pgx.QueryExecModeSimpleProtocol),
		"read committed":  params("default_transaction_isolation", "read committed"),
		"repeatable read": params("default_transaction_isolation", "repeatable read"),
		"serializable":    params("default_transaction_isolation", "serializable"),
		"serializable, simple": both(params("default_transaction_isolation", "serializable"),
			mode(pgx.QueryExecModeSimpleProtocol)),
		"odd styles":         odd,
		"odd styles, exec":   both(odd, mode(pgx.QueryExecModeExec)),
		"odd styles, simple": both(odd, mode(pgx.QueryExecModeSimpleProtocol)),
		"other styles": params("datestyle", "German", "intervalstyle", "postgres_verbose",
			"timezone", "Asia/Kathmandu"),
		"ISO intervals":             params("intervalstyle", "iso_8601"),
		"statement_timeout":         params("statement_timeout", "5s"),
		"lock_timeout":              params("lock_timeout", "500ms"),
		"synchronous_commit off":    params("synchronous_commit", "off"),
		"plan_cache_mode":           params("plan_cache_mode", "force_generic_plan"),
		"session_replication_role":  replica,
		"client_encoding SQL_ASCII": params("client_encoding", "SQL_ASCII"),
		"standard strings off":      noStandard,
		"TimeZone with seconds":     both(params("timezone", "0.01"), mode(pgx.QueryExecModeExec)),
		"TimeZone named as UTC":     params("timezone", "<utc>-5"),
		"array nulls off":           arrayNulls,
		"array nulls off, exec":     both(arrayNulls, mode(pgx.QueryExecModeExec)),
		"array nulls off, simple":   both(arrayNulls, mode(pgx.QueryExecModeSimpleProtocol)),
		"check_function_bodies off": params("check_function_bodies", "off", "row_security", "off"),
	} {
		if !pgtest.Among(name, "several at once", "temporary table named as ours", "one connection",
			"serializable, simple") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			db := pgtest.Parallel(t)
			execute(t, db.Conn(t), hostile)
			exercise(t, db.Pool(t, change), "pglock")
		})
	}
}

// Texts from Go are UTF-8. Where the server takes them for another encoding, two programs would hold one name at once.
func TestI1_AConnectionOfAnotherEncodingIsRefused(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, conn := db.Pool(t), db.Conn(t)
	c := startClient(t, pool)
	execute(t, conn, "ALTER DATABASE "+pgx.Identifier{db.Name()}.Sanitize()+" SET client_encoding = 'LATIN1'")
	pool.Reset()
	const want = "client_encoding of the connection is LATIN1: it must be UTF8"
	_, err := pglock.New(t.Context(), pool)
	if _, also := c.TryAcquire(t.Context(), "größe"); err == nil || also == nil ||
		!errors.Is(err, pglock.ErrInvalid) || !errors.Is(also, pglock.ErrInvalid) ||
		!strings.Contains(err.Error(), want) || !strings.Contains(also.Error(), want) {
		t.Errorf("New: %v; TryAcquire: %v; want ErrInvalid, %q", err, also, want)
	}
	utf8 := db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" })
	other := startClient(t, utf8)
	mustAcquire(t, other, "größe")
}

func TestRolesTimeoutsCostNoWaitingCall(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, conn := db.Pool(t), db.Conn(t)
	a, b := startClient(t, db.Pool(t)), startClient(t, pool)
	l := mustAcquire(t, a, "report")
	// From here on new connections have short timeouts: all of the client that waits. Nothing else would be repeated
	// when a busy machine does not get through with a statement in that time.
	for _, short := range []string{"statement_timeout = '50ms'", "lock_timeout = '20ms'"} {
		execute(t, conn, "ALTER DATABASE "+pgx.Identifier{db.Name()}.Sanitize()+" SET "+short)
	}
	pool.Reset()
	acquired := must.Go(func() error {
		next, err := b.Acquire(t.Context(), "report")
		if err == nil {
			err = next.Release(t.Context())
		}
		return err
	})
	pgtest.Eventually(t, "the waiting call's ticket", func() bool {
		queued := pgtest.One[bool](t, conn, "SELECT EXISTS (SELECT FROM pglock.waiters WHERE name = 'report')")
		return queued
	})
	must.Do(t, l.Release(t.Context()))
	must.Note(t, <-acquired)
}

func TestEverythingWorksInASchemaWithAnOddName(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	const schema = `My "odd" Schema`
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema(schema)))
	exercise(t, db.Pool(t), schema)
}

func TestSchemasOfOneDatabaseAreApart(t *testing.T) {
	db := pgtest.Parallel(t)
	must.Do(t, migrations.Up(t.Context(), db.URL(), migrations.WithSchema("other")))
	pool := db.Pool(t)
	a := mustAcquire(t, startClient(t, pool), "report")
	b := mustAcquire(t, startClient(t, pool, pglock.WithSchema("other")), "report")
	first, second := a.Export(), b.Export()
	if first.Schema == second.Schema || first.DatabaseID == second.DatabaseID {
		t.Errorf("schemas %q and %q, IDs %v and %v", first.Schema, second.Schema, first.DatabaseID, second.DatabaseID)
	}
	_, err := db.Conn(t).Exec(t.Context(), "SELECT pglock.fence($1, $2, $3, NULL, false, $4)",
		second.Lock, int64(second.Token), second.ID.String(), second.DatabaseID.String())
	if pgErr, is := errors.AsType[*pgconn.PgError](err); !is || pgErr.Code != "LK007" {
		t.Errorf("the fence of one schema for a lease of another: %v, want LK007", err)
	}
}

func TestUnreachableServerIsNamedWithTheReason(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://user:hush-hush@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	_, err = pglock.New(t.Context(), pool)
	if err == nil {
		t.Fatal("a client without a server")
	}
	for _, s := range []string{"127.0.0.1", "refused"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%q does not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), "hush-hush") {
		t.Error("the password is printed")
	}
}

func TestClosedPoolIsReportedAtOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := must.Get(pgxpool.New(t.Context(), db.URL()))(t)
	c := must.Get(pglock.New(t.Context(), pool))(t)
	pool.Close()
	began := time.Now()
	if _, err := c.TryAcquire(t.Context(), "report"); err == nil || errors.Is(err, pglock.ErrOutcomeUnknown) ||
		time.Since(began) > 5*time.Second {
		t.Errorf("%v after %v, want the closed pool at once", err, time.Since(began))
	}
	must.Note(t, c.Close(t.Context()))
}

func TestReadOnlySessionIsRefusedAndChangesNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	execute(t, conn, "CREATE TABLE accounts (id int)")
	pool := db.Pool(t)
	c, admin := startClient(t, pool, pglock.WithDefaultTTL(time.Hour)), newAdmin(t, pool)
	l := mustAcquire(t, c, "held")
	execute(t, conn, fmt.Sprintf("ALTER DATABASE %s SET default_transaction_read_only = on",
		pgx.Identifier{db.Name()}.Sanitize()))
	defer execute(t, conn, fmt.Sprintf("ALTER DATABASE %s RESET default_transaction_read_only",
		pgx.Identifier{db.Name()}.Sanitize()))
	pool.Reset()
	readOnly := func(name string, call func(ctx context.Context) error) refusal {
		return refusal{name, call, pglock.ErrReadOnly, []string{"primary", "default_transaction_read_only"}}
	}
	checkRefusals(t, conn, []refusal{
		readOnly("New", func(ctx context.Context) error { return ignore(pglock.New(ctx, pool)) }),
		readOnly("TryAcquire new", func(ctx context.Context) error { return ignore(c.TryAcquire(ctx, "new")) }),
		readOnly("Acquire new", func(ctx context.Context) error { return ignore(c.Acquire(ctx, "new")) }),
		readOnly("Do", func(ctx context.Context) error { return c.Do(ctx, "new", fnRan) }),
		readOnly("Renew", hooks.Of(l).Renew),
		readOnly("Break", func(ctx context.Context) error {
			return ignore(admin.Break(ctx, "held", "stuck", lockadmin.BreakOptions{}))
		}),
		readOnly("Write", func(ctx context.Context) error {
			return fencedstore.New(pool).Write(ctx, l, func(context.Context, pgx.Tx) error {
				return errors.New("fn ran")
			})
		}),
	})
	execute(t, conn, fmt.Sprintf("ALTER DATABASE %s RESET default_transaction_read_only",
		pgx.Identifier{db.Name()}.Sanitize()))
	pool.Reset()
}

// A call that leaves its statement costs no connection: the statement ends by itself, and its result is taken back.
func TestCallThatLeavesItsStatementCostsNoConnection(t *testing.T) {
	db := pgtest.Parallel(t)
	conn, pool := db.Conn(t), db.Pool(t)
	c := startClient(t, pool)
	execute(t, conn, "SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'h', '1 h')")
	execute(t, conn, "BEGIN; SELECT FROM pglock.locks WHERE name = 'report' FOR UPDATE")
	before := pool.Stat().NewConnsCount()
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		left := must.Go(func() error { _, err := c.Acquire(ctx, "report"); return err })
		pgtest.Eventually(t, "the statement that waits for the row", func() bool {
			blocked := pgtest.One[bool](t, conn, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pg_backend_pid() "+
				"= ANY (pg_blocking_pids(pid)))")
			return blocked
		})
		began := time.Now()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) || time.Since(began) > 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	}
	execute(t, conn, "COMMIT")
	pgtest.Eventually(t, "the end of what the calls have left", func() bool {
		tickets := pgtest.One[int](t, conn, "SELECT count(*) FROM pglock.waiters")
		return tickets == 0 && pool.Stat().AcquiredConns() == 0
	})
	if made := pool.Stat().NewConnsCount() - before; made > int64(pool.Config().MaxConns) ||
		pool.Stat().MaxLifetimeDestroyCount()+pool.Stat().MaxIdleDestroyCount() != 0 {
		t.Errorf("%d connections were made", made)
	}
	if total := int64(pool.Stat().TotalConns()); total != pool.Stat().NewConnsCount() {
		t.Errorf("%d of %d connections are left", total, pool.Stat().NewConnsCount())
	}
}
