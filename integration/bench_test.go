package integration

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// bareSchema and the statements below are what a careful application would write by hand: the same guarantees, one
// prepared statement for each step, no functions.
const bareSchema = `
	CREATE SCHEMA bare;
	CREATE SEQUENCE bare.seq AS bigint CACHE 1;
	CREATE TABLE bare.locks (name text COLLATE "C" PRIMARY KEY, holder text NOT NULL, session_id uuid NOT NULL,
		grant_id uuid NOT NULL, token bigint NOT NULL, ttl interval NOT NULL, acquired_at timestamptz NOT NULL,
		renewed_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, metadata jsonb, UNIQUE (name, token)) WITH (fillfactor = 50);
	CREATE TABLE bare.fences (resource text COLLATE "C" PRIMARY KEY, last_token bigint NOT NULL, advanced_at timestamptz NOT NULL) WITH (fillfactor = 50);
	CREATE FUNCTION bare.check() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE t bigint; e timestamptz;
	BEGIN
		SELECT token, expires_at INTO t, e FROM bare.locks WHERE name = NEW.resource FOR KEY SHARE;
		IF t IS DISTINCT FROM NEW.last_token OR e IS NULL OR e <= clock_timestamp() THEN RAISE EXCEPTION 'lost'; END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER fence_commit AFTER INSERT OR UPDATE ON bare.fences
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bare.check();
	ALTER TABLE bare.fences ENABLE ALWAYS TRIGGER fence_commit;
	CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
	INSERT INTO accounts SELECT n, 0 FROM generate_series(0, 63) n`

const (
	bareTry = `
		WITH s AS MATERIALIZED (
			SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
				THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS x),
		free AS MATERIALIZED (
			SELECT k.name FROM s, bare.locks k WHERE s.x IS NOT NULL AND k.name = $1 AND k.expires_at <= clock_timestamp()
			FOR UPDATE OF k SKIP LOCKED),
		target AS (
			SELECT $1::text AS name FROM s
			WHERE s.x IS NOT NULL AND (EXISTS (SELECT FROM free) OR NOT EXISTS (SELECT FROM bare.locks WHERE name = $1)))
		INSERT INTO bare.locks AS l (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		SELECT name, $2, $3::uuid, $4::uuid, nextval('bare.seq'), $5::interval, clock_timestamp(), clock_timestamp(), clock_timestamp() + $5::interval FROM target
		ON CONFLICT (name) DO UPDATE SET holder = $2, session_id = $3::uuid, grant_id = $4::uuid,
			token = GREATEST(nextval('bare.seq'), l.token + 1), ttl = $5::interval, acquired_at = clock_timestamp(),
			renewed_at = clock_timestamp(), expires_at = clock_timestamp() + $5::interval
			WHERE l.expires_at <= clock_timestamp()
		RETURNING l.token, l.expires_at`
	bareRelease = `
		WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x)
		UPDATE bare.locks l SET expires_at = '-infinity' FROM s
		WHERE s.x IS NOT NULL AND l.name = $1 AND l.token = $2 AND l.grant_id = $3::uuid`
	bareFence = `
		WITH l AS MATERIALIZED (
			SELECT ceil(extract(epoch FROM expires_at - clock_timestamp()) * 1000)::int AS ms FROM bare.locks
			WHERE name = $1 AND token = $2 AND grant_id = $3::uuid AND expires_at > clock_timestamp()),
		s AS MATERIALIZED (
			SELECT ms, set_config('lock_timeout', ms::text, true), set_config('statement_timeout', ms::text, true),
				set_config('idle_in_transaction_session_timeout', ms::text, true), set_config('tcp_user_timeout', ms::text, true),
				set_config('client_connection_check_interval', '1000', true) FROM l WHERE ms > 0)
		INSERT INTO bare.fences AS f (resource, last_token, advanced_at) SELECT $1, $2, clock_timestamp() FROM s
		ON CONFLICT (resource) DO UPDATE SET last_token = EXCLUDED.last_token, advanced_at = EXCLUDED.advanced_at WHERE f.last_token <= EXCLUDED.last_token
		RETURNING last_token`
)

// benchServer is a server that flushes to disk, with a migrated database and the bare tables.
func benchServer(b *testing.B, settings map[string]string) *pgxpool.Pool {
	b.Helper()
	all := map[string]string{"fsync": "on", "autovacuum_naptime": "5s"}
	maps.Copy(all, settings)
	server := pgtest.Dedicated(b, all)
	must.Do(b, migrations.Up(b.Context(), server.URL()))
	config := must.Get(pgxpool.ParseConfig(server.URL()))(b)
	config.MaxConns = 20
	pool := must.Get(pgxpool.NewWithConfig(b.Context(), config))(b)
	b.Cleanup(pool.Close)
	must.Get(pool.Exec(b.Context(), bareSchema))(b)
	return pool
}

// compare runs each way with 1 and with 16 callers, and tells each one's rate as a part of the first one's. call gets
// the number of its caller.
func compare(b *testing.B, ways map[string]func(ctx context.Context, caller int) error) {
	for _, callers := range []int{1, 16} {
		var first float64 // nanoseconds each
		for _, way := range []string{"plain", "bare", "pglock", "guarded"} {
			call := ways[way]
			if call == nil {
				continue
			}
			b.Run(fmt.Sprintf("%s/callers=%d", way, callers), func(b *testing.B) {
				var next atomic.Int64
				b.SetParallelism(callers) // times GOMAXPROCS, which go test -cpu 1 makes one
				b.RunParallel(func(pb *testing.PB) {
					caller := int(next.Add(1)) - 1
					for pb.Next() {
						if err := call(b.Context(), caller); err != nil {
							b.Error(err)
							return
						}
					}
				})
				each := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				if b.N > 1 && first == 0 { // the first run, of one, is a trial
					first = each
				} else if b.N > 1 {
					b.ReportMetric(first/each, "of-the-first")
				}
			})
		}
	}
}

// BenchmarkTryRelease takes and gives back a free lock, each caller its own.
func BenchmarkTryRelease(b *testing.B) {
	pool := benchServer(b, nil)
	c := must.Get(pglock.New(b.Context(), pool))(b)
	defer c.Close(context.Background())
	session := uuid.NewString()
	compare(b, map[string]func(context.Context, int) error{
		"bare": func(ctx context.Context, caller int) error {
			var token int64
			var expires time.Time
			name, grantID := fmt.Sprint("bench", caller), uuid.NewString()
			if err := pool.QueryRow(ctx, bareTry, name, "bench", session, grantID, 30*time.Second).Scan(&token,
				&expires); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, bareRelease, name, token, grantID)
			return err
		},
		"pglock": func(ctx context.Context, caller int) error {
			lease, err := c.TryAcquire(ctx, fmt.Sprint("bench", caller))
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		},
	})
}

// BenchmarkFencedWrite updates a row under a held lease: as a plain transaction, fenced by hand (begin, fence, update,
// commit with the check in a trigger), with Store.Write, and with Store.Write to a table under guard. Each caller has a
// resource of its own.
func BenchmarkFencedWrite(b *testing.B) {
	b.Run("disk=here", func(b *testing.B) { fencedWrites(b, nil) })
	b.Run("disk=2ms", func(b *testing.B) { fencedWrites(b, slowDisk) })
}

func fencedWrites(b *testing.B, settings map[string]string) {
	pool := benchServer(b, settings)
	c, err := pglock.New(b.Context(), pool)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close(context.Background())
	store := fencedstore.New(pool)
	leases := make([]*pglock.Lease, 64)
	type bareLease struct {
		name, grantID string
		token         int64
	}
	bare := make([]bareLease, len(leases))
	for i := range leases {
		name := fmt.Sprint("bench", i)
		if leases[i], err = c.TryAcquire(b.Context(), name, pglock.WithTTL(time.Hour)); err != nil {
			b.Fatal(err)
		}
		bare[i] = bareLease{name: name, grantID: uuid.NewString()}
		var expires time.Time
		if err := pool.QueryRow(b.Context(), bareTry, name, "bench", uuid.NewString(), bare[i].grantID,
			time.Hour).Scan(&bare[i].token, &expires); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := pool.Exec(b.Context(),
		`CREATE TABLE guarded (LIKE accounts INCLUDING ALL) WITH (fillfactor = 50)`); err != nil {
		b.Fatal(err)
	}
	must.Get(pool.Exec(b.Context(), `INSERT INTO guarded SELECT * FROM accounts`))(b)
	must.Do(b, fencedstore.GuardTable(b.Context(), pool, "guarded", fencedstore.WithTableKey("id")))
	update := func(ctx context.Context, tx pgx.Tx, caller int) error {
		_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = $1`, caller)
		return err
	}
	compare(b, map[string]func(context.Context, int) error{
		"plain": func(ctx context.Context, caller int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return update(ctx, tx, caller) })
		},
		"bare": func(ctx context.Context, caller int) error {
			l := bare[caller]
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				var last int64
				if err := tx.QueryRow(ctx, bareFence, l.name, l.token, l.grantID).Scan(&last); err != nil {
					return err
				}
				return update(ctx, tx, caller)
			})
		},
		"pglock": func(ctx context.Context, caller int) error {
			return store.Write(ctx, fencedstore.Fence{Lease: leases[caller], SameToken: true},
				func(ctx context.Context, tx pgx.Tx) error {
					return update(ctx, tx, caller)
				})
		},
		"guarded": func(ctx context.Context, caller int) error {
			return store.Write(ctx,
				fencedstore.Fence{Lease: leases[caller], Resource: fmt.Sprint("guarded/", caller), SameToken: true},
				func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `UPDATE guarded SET balance = balance + 1 WHERE id = $1`, caller)
					return err
				})
		},
	})
}

// BenchmarkRenew10000 renews 10,000 leases in one statement, and in the one UPDATE that does nothing else.
func BenchmarkRenew10000(b *testing.B) {
	pool := benchServer(b, nil)
	const leases = 10000
	_, err := pool.Exec(b.Context(),
		`INSERT INTO pglock.locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		SELECT 'bench' || n, 'bench', gen_random_uuid(), gen_random_uuid(), n, '1 h', clock_timestamp(), clock_timestamp(), clock_timestamp() + interval '1 h'
		FROM generate_series(1, $1) n`, leases)
	if err != nil {
		b.Fatal(err)
	}
	var names, grantIDs []string
	var tokens []int64
	if err := pool.QueryRow(b.Context(),
		`SELECT array_agg(name), array_agg(token), array_agg(grant_id::text) FROM pglock.locks`).Scan(&names, &tokens,
		&grantIDs); err != nil {
		b.Fatal(err)
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			tag, err := pool.Exec(b.Context(),
				`UPDATE pglock.locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
				FROM unnest($1::text[], $2::bigint[], $3::text[]::uuid[]) AS a (name, token, grant_id)
				WHERE l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id AND l.expires_at > clock_timestamp()`, names, tokens, grantIDs)
			if err != nil || tag.RowsAffected() != leases {
				b.Fatal(tag, err)
			}
		}
	})
	b.Run("pglock", func(b *testing.B) {
		for b.Loop() {
			var renewed int
			if err := pool.QueryRow(b.Context(),
				`SELECT count(*) FROM pglock.renew_leases($1, $2, $3::text[]::uuid[], array_fill(0, ARRAY[cardinality($2::bigint[])])) WHERE outcome = 'renewed'`,
				names, tokens, grantIDs).Scan(&renewed); err != nil || renewed != leases {
				b.Fatal(renewed, err)
			}
		}
	})
	var hot, updates int64
	if err := pool.QueryRow(b.Context(),
		`SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE schemaname = 'pglock' AND relname = 'locks'`).Scan(&hot, &updates); err == nil && updates > 0 {
		b.ReportMetric(100*float64(hot)/float64(updates), "%HOT")
	}
}
