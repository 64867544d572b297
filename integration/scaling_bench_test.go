package integration

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// BenchmarkScaling prints how the cost grows with the leases that are held, the names that the table knows, the
// waiters, and the databases on one server: docs/scaling.md. Run it with -benchtime 300x; with less it measures small
// sizes, to see that it works.
func BenchmarkScaling(b *testing.B) {
	var table strings.Builder
	lines := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, part := range []struct {
		name string
		run  func(*testing.B, *tabwriter.Writer, bool)
	}{{"held", scaleHeld}, {"names", scaleNames}, {"waiters", scaleWaiters}, {"databases", scaleDatabases}} {
		b.Run(part.name, func(b *testing.B) {
			if b.N == 1 {
				return // the trial
			}
			part.run(b, lines, b.N >= 300)
			b.ReportMetric(0, "ns/op") // the table says more
		})
	}
	_ = lines.Flush()
	fmt.Fprint(os.Stderr, table.String())
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func sizes(whole bool, all ...int) []int {
	if !whole {
		return all[:1]
	}
	return all
}

// fillLocks makes so many rows of locks, free, or held by one session.
func fillLocks(b *testing.B, pool *pgxpool.Pool, prefix string, n int, held bool) {
	b.Helper()
	expires := "'-infinity'"
	if held {
		expires = "clock_timestamp() + interval '1 h'"
	}
	if _, err := pool.Exec(b.Context(),
		`INSERT INTO pglock.locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at)
		SELECT $1 || n, 'bench', gen_random_uuid(), gen_random_uuid(), token, '1 h', clock_timestamp(), clock_timestamp(), `+expires+`
		FROM (SELECT n, nextval('pglock.fencing_token_seq') AS token FROM generate_series(1, $2::int) n OFFSET 0) g`,
		prefix, n); err != nil {
		b.Fatal(err)
	}
	must.Get(pool.Exec(b.Context(), `VACUUM ANALYZE pglock.locks`))(b)
}

// walOf tells how many bytes of WAL f writes on an otherwise quiet server.
func walOf(b *testing.B, pool *pgxpool.Pool, f func()) int64 {
	b.Helper()
	position := func() (at string) {
		must.Do(b, pool.QueryRow(b.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&at))
		return at
	}
	before := position()
	f()
	var bytes int64
	if err := pool.QueryRow(b.Context(), `SELECT pg_wal_lsn_diff($1::pg_lsn, $2::pg_lsn)::bigint`, position(),
		before).Scan(&bytes); err != nil {
		b.Fatal(err)
	}
	return bytes
}

// scaleHeld renews leases, as many as one beat does.
func scaleHeld(b *testing.B, lines *tabwriter.Writer, whole bool) {
	pool := benchServer(b, nil)
	counted := 0
	fmt.Fprintln(lines, "leases held\trenewed in one statement\teach\tWAL bytes each\tHOT\t")
	for _, n := range sizes(whole, 100, 1000, 10000) {
		fillLocks(b, pool, fmt.Sprint("held", n, "-"), n, true)
		var names, grantIDs []string
		var tokens []int64
		var slots []int
		if err := pool.QueryRow(b.Context(),
			`SELECT array_agg(name), array_agg(token), array_agg(grant_id::text), array_agg(slot) FROM pglock.locks
			WHERE name LIKE $1`, fmt.Sprint("held", n, "-%")).Scan(&names, &tokens, &grantIDs, &slots); err != nil {
			b.Fatal(err)
		}
		var took time.Duration
		var bytes int64
		const beats = 10
		for range beats {
			bytes += walOf(b, pool, func() {
				began := time.Now()
				var renewed int
				if err := pool.QueryRow(b.Context(),
					`SELECT count(*) FROM pglock.renew_leases($1, $2, $3::text[]::uuid[], $4) WHERE outcome = 'renewed'`,
					names, tokens, grantIDs, slots).Scan(&renewed); err != nil || renewed != n {
					b.Fatal(renewed, err)
				}
				took += time.Since(began)
			})
		}
		counted += beats * n
		var hot float64
		for updates, tries := 0, 0; updates < counted && tries < 200; tries++ { // the server counts with a delay
			if err := pool.QueryRow(b.Context(),
				`SELECT n_tup_upd, 100.0 * n_tup_hot_upd / greatest(n_tup_upd, 1) FROM pg_stat_user_tables
				WHERE schemaname = 'pglock' AND relname = 'locks'`).Scan(&updates, &hot); err != nil {
				b.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		fmt.Fprintf(lines, "%d\t%.1f ms\t%.1f µs\t%d\t%.1f %%\t\n", n, milliseconds(took)/beats,
			milliseconds(took)/beats*1000/float64(n), bytes/int64(beats*n), hot)
	}
}

// scaleNames acquires and releases locks in a table that knows many others.
func scaleNames(b *testing.B, lines *tabwriter.Writer, whole bool) {
	pool := benchServer(b, nil)
	fmt.Fprintln(lines, "names in the table\tpairs/s, 64 callers\tWAL bytes a pair\ttable and indexes\t")
	have := 0
	for _, n := range sizes(whole, 1000, 100_000, 1_000_000) {
		fillLocks(b, pool, fmt.Sprint("name", n, "-"), n-have, false)
		have = n
		var done int
		bytes := walOf(b, pool, func() { done = pairs(b, []*pgxpool.Pool{pool}, 64, whole) })
		var size string
		if err := pool.QueryRow(b.Context(),
			`SELECT pg_size_pretty(pg_total_relation_size('pglock.locks'))`).Scan(&size); err != nil {
			b.Fatal(err)
		}
		fmt.Fprintf(lines, "%d\t%.0f\t%d\t%s\t\n", n, float64(done)/pairsLast(whole).Seconds(),
			bytes/int64(max(done, 1)), size)
	}
}

func pairsLast(whole bool) time.Duration {
	if whole {
		return 2 * time.Second
	}
	return 50 * time.Millisecond
}

// pairs has callers acquire and release locks of their own, spread over the databases, and counts.
func pairs(b *testing.B, pools []*pgxpool.Pool, callers int, whole bool) int {
	b.Helper()
	var clients []*pglock.Client
	for _, pool := range pools {
		c := must.Get(pglock.New(b.Context(), pool))(b)
		defer c.Close(context.WithoutCancel(b.Context())) //nolint:errcheck // the end
		clients = append(clients, c)
	}
	counts := make([]int, callers)
	for _, counted := range []bool{false, true} {
		end := time.Now().Add(pairsLast(whole))
		var wg sync.WaitGroup
		for n := range callers {
			wg.Go(func() {
				for counts[n] = 0; time.Now().Before(end); counts[n]++ {
					l, err := clients[n%len(clients)].TryAcquire(b.Context(), fmt.Sprint("mine", n))
					if err == nil {
						err = l.Release(b.Context())
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if !counted && !whole {
			break
		}
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

// scaleWaiters looks at the tickets of one session, in one queue and in as many as there are tickets.
func scaleWaiters(b *testing.B, lines *tabwriter.Writer, whole bool) {
	pool := benchServer(b, nil)
	fmt.Fprintln(lines, "waiters\tin queues\tlook\ta hand-over\t")
	for _, n := range sizes(whole, 100, 1000, 10000) {
		for _, queues := range []int{1, n} {
			key := uuid.NewString()
			prefix := fmt.Sprintf("w%d-%d-", n, queues)
			fillLocks(b, pool, prefix, queues, true)
			if _, err := pool.Exec(b.Context(),
				`INSERT INTO pglock.sessions VALUES (pglock.session_of($1::text::uuid), 'bench', clock_timestamp() + interval '1 h')`, key); err != nil {
				b.Fatal(err)
			}
			if _, err := pool.Exec(b.Context(),
				`INSERT INTO pglock.waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
				SELECT $1 || (n % $3 + 1), nextval('pglock.ticket_seq'), 'exclusive', gen_random_uuid(), pglock.session_of($2::text::uuid), false, 'bench', '1 h', clock_timestamp()
				FROM generate_series(1, $4::int) n`, prefix, key, queues, n); err != nil {
				b.Fatal(err)
			}
			must.Get(pool.Exec(b.Context(), `ANALYZE pglock.waiters`))(b)
			var look, hand time.Duration
			const times = 5
			for range times {
				began := time.Now()
				var seen int
				if err := pool.QueryRow(b.Context(), `SELECT count(*) FROM pglock.look($1::text::uuid, 'bench', '1 h')`,
					key).Scan(&seen); err != nil || seen < n-times {
					b.Fatal(seen, err)
				}
				look += time.Since(began)
				var name, grantID string
				var token int64
				if err := pool.QueryRow(b.Context(),
					`SELECT name, token, grant_id::text FROM pglock.locks WHERE name = $1`, prefix+"1").Scan(&name,
					&token, &grantID); err != nil {
					b.Fatal(err)
				}
				began = time.Now()
				if _, err := pool.Exec(b.Context(), `SELECT * FROM pglock.release_lease($1, $2, $3::text::uuid)`, name,
					token, grantID); err != nil {
					b.Fatal(err)
				}
				hand += time.Since(began)
				if queues > 1 {
					break
				}
			}
			done := times
			if queues > 1 {
				done = 1
			}
			fmt.Fprintf(lines, "%d\t%d\t%.1f ms\t%.2f ms\t\n", n, queues, milliseconds(look)/float64(done),
				milliseconds(hand)/float64(done))
		}
	}
}

// scaleDatabases spreads 64 callers over several databases of one server.
func scaleDatabases(b *testing.B, lines *tabwriter.Writer, whole bool) {
	server := pgtest.Dedicated(b, map[string]string{"fsync": "on"})
	fmt.Fprintln(lines, "databases\tpairs/s, 64 callers in all\t")
	for _, n := range sizes(whole, 1, 4, 16) {
		var pools []*pgxpool.Pool
		for i := range n {
			admin := must.Get(pgxpool.New(b.Context(), server.URL()))(b)
			name := fmt.Sprintf("scale_%d_%d", n, i)
			must.Get(admin.Exec(b.Context(), "CREATE DATABASE "+name))(b)
			admin.Close()
			config := must.Get(pgxpool.ParseConfig(server.URL()))(b)
			config.ConnConfig.Database, config.MaxConns = name, 8
			address := must.Get(url.Parse(server.URL()))(b)
			address.Path = "/" + name
			must.Do(b, migrations.Up(b.Context(), address.String()))
			pool := must.Get(pgxpool.NewWithConfig(b.Context(), config))(b)
			defer pool.Close()
			pools = append(pools, pool)
		}
		fmt.Fprintf(lines, "%d\t%.0f\t\n", n, float64(pairs(b, pools, 64, whole))/pairsLast(whole).Seconds())
	}
}
