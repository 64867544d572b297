package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/pglock"
)

func init() { roles["handover"] = handOverProcess }

// bareQueue and the statements below are what a careful application would write by hand for a queue with hand-over: a
// ticket that is written under the lock's row, a release that grants in the same statement, and a notification in a
// later transaction that does not wait for the disk.
const bareQueue = `
	CREATE TABLE bare.waiters (name text COLLATE "C" NOT NULL, ticket bigint GENERATED ALWAYS AS IDENTITY, grant_id uuid NOT NULL UNIQUE,
		session_id uuid NOT NULL, holder text NOT NULL, ttl interval NOT NULL, enqueued_at timestamptz NOT NULL, PRIMARY KEY (name, ticket))`

const (
	bareEnqueue = `
		WITH s AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true) AS x),
		l AS MATERIALIZED (SELECT k.name, k.expires_at FROM s, bare.locks k WHERE s.x IS NOT NULL AND k.name = $1 FOR SHARE OF k)
		INSERT INTO bare.waiters (name, grant_id, session_id, holder, ttl, enqueued_at)
		SELECT name, $2::uuid, $3::uuid, $4, $5::interval, clock_timestamp() FROM l
		RETURNING (SELECT expires_at > clock_timestamp() FROM l)`
	bareHandOver = `
		WITH s AS MATERIALIZED (
			SELECT set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
				THEN 'on' ELSE current_setting('synchronous_commit') END, true) AS x),
		mine AS MATERIALIZED (
			SELECT k.name FROM s, bare.locks k WHERE s.x IS NOT NULL AND k.name = $1
				AND (k.token = $2 AND k.grant_id = $3::uuid AND k.expires_at > clock_timestamp() OR k.expires_at <= clock_timestamp())
			FOR UPDATE OF k),
		next AS MATERIALIZED (SELECT w.name, w.ticket FROM mine m JOIN bare.waiters w ON w.name = m.name ORDER BY w.ticket LIMIT 1),
		gone AS (DELETE FROM bare.waiters w USING next n WHERE w.name = n.name AND w.ticket = n.ticket RETURNING w.*)
		UPDATE bare.locks l SET
			holder = coalesce(g.holder, l.holder), session_id = coalesce(g.session_id, l.session_id), grant_id = coalesce(g.grant_id, l.grant_id),
			token = CASE WHEN g.name IS NULL THEN l.token ELSE GREATEST(nextval('bare.seq'), l.token + 1) END,
			ttl = coalesce(g.ttl, l.ttl), renewed_at = clock_timestamp(),
			acquired_at = CASE WHEN g.name IS NULL THEN l.acquired_at ELSE clock_timestamp() END,
			expires_at = coalesce(clock_timestamp() + g.ttl, '-infinity')
		FROM mine m LEFT JOIN gone g ON true WHERE l.name = m.name
		RETURNING g.session_id::text, g.grant_id::text, l.token`
	bareNotify = `SELECT pg_notify($1, $2)::text, set_config('synchronous_commit', 'off', true)`
)

// bareClient is such an application: one pool, one connection that listens.
type bareClient struct {
	pool    *pgxpool.Pool
	session string
	mu      sync.Mutex
	waiting map[string]chan int64 // by grant ID; gets the token
	stop    context.CancelFunc
	stopped chan struct{}
}

func newBareClient(ctx context.Context, pool *pgxpool.Pool) (*bareClient, error) {
	c := &bareClient{pool: pool, session: uuid.NewString(), waiting: make(map[string]chan int64), stopped: make(chan struct{})}
	conn, err := pgx.ConnectConfig(ctx, pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, `LISTEN "`+c.session+`"`); err != nil {
		return nil, err
	}
	ctx, c.stop = context.WithCancel(ctx)
	go func() {
		defer close(c.stopped)
		defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return
			}
			var grantID string
			var token int64
			_, _ = fmt.Sscan(n.Payload, &grantID, &token)
			c.mu.Lock()
			if got := c.waiting[grantID]; got != nil {
				got <- token
			}
			c.mu.Unlock()
		}
	}()
	return c, nil
}

func (c *bareClient) close() { c.stop(); <-c.stopped }

// acquire queues for a lock that others hand over, and waits. It has what holding the lock takes.
func (c *bareClient) acquire(ctx context.Context, name string) (token int64, release func() error, err error) {
	grantID, got := uuid.NewString(), make(chan int64, 1)
	c.mu.Lock()
	c.waiting[grantID] = got
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, grantID)
		c.mu.Unlock()
	}()
	var held bool
	if err := c.pool.QueryRow(ctx, bareEnqueue, name, grantID, c.session, "bench", 30*time.Second).Scan(&held); err != nil {
		return 0, nil, err
	}
	if !held {
		if err := c.handOver(ctx, name, 0, uuid.NewString()); err != nil {
			return 0, nil, err
		}
	}
	select {
	case token = <-got:
	case <-time.After(patience):
		return 0, nil, fmt.Errorf("no grant came in %v", patience)
	}
	return token, func() error { return c.handOver(ctx, name, token, grantID) }, nil
}

// handOver releases the lease and grants to the next. One who queued while the statement waited for the row is not seen
// by it: where it found nobody it looks again.
func (c *bareClient) handOver(ctx context.Context, name string, token int64, grantID string) error {
	for range 2 {
		var session, next *string
		err := c.pool.QueryRow(ctx, bareHandOver, name, token, grantID).Scan(&session, &next, &token)
		if err == pgx.ErrNoRows {
			return nil
		}
		if err != nil {
			return err
		}
		if session != nil {
			_, err = c.pool.Exec(ctx, bareNotify, *session, fmt.Sprint(*next, " ", token))
			return err
		}
	}
	return nil
}

// taker is one client of either kind, and how it takes a lock.
type taker struct {
	acquire func(ctx context.Context, name string) (token int64, release func() error, err error)
	close   func()
}

func newTaker(ctx context.Context, way string, pool *pgxpool.Pool) (taker, error) {
	if way == "bare" {
		c, err := newBareClient(ctx, pool)
		if err != nil {
			return taker{}, err
		}
		return taker{c.acquire, c.close}, nil
	}
	c, err := pglock.New(ctx, pool, pglock.WithTurns(1, 0)) // what goes through the server is compared; bench/ shows turns in memory
	if err != nil {
		return taker{}, err
	}
	return taker{func(ctx context.Context, name string) (int64, func() error, error) {
		l, err := c.Acquire(ctx, name)
		if err != nil {
			return 0, nil, err
		}
		return int64(l.Token()), func() error { return l.Release(ctx) }, nil
	}, func() { _ = c.Close(ctx) }}, nil
}

// share is what the callers of one process did that was counted.
type share struct {
	Began  time.Time
	Served []int // by each caller
	Waits  []time.Duration
	Trips  int64
	Asked  int64 // statements that asked for the lock
	Told   int64 // statements that notified
}

// wire counts what goes to the server.
type wire struct{ trips, asked, told atomic.Int64 }

func (w *wire) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	switch {
	case strings.Contains(data.SQL, ".acquire("), strings.Contains(data.SQL, "INSERT INTO bare.waiters"):
		w.asked.Add(1)
	case strings.Contains(data.SQL, "pg_notify("), strings.Contains(data.SQL, ".announce("):
		w.told.Add(1)
	}
	return ctx
}

func (w *wire) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// pool opens a pool that is counted, and so are connections that are made as it makes its own.
func (w *wire) pool(ctx context.Context, url string, connections int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = connections
	config.ConnConfig.Tracer = w
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &countingConn{Conn: conn, trips: &w.trips}, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

const handOverVariable = "PGLOCK_INTEGRATION_HANDOVER"

// handOverWork is what the callers of one process are to do: take the lock and give it back until they see a token that
// is not below Last. Every token is one hand-over. Those below First warm the connections up and are not counted.
type handOverWork struct {
	Way     string
	Clients int
	Callers int
	First   int64
	Last    int64
}

func (w handOverWork) run(ctx context.Context, url string) (share, error) {
	var counted wire
	var takers []taker
	for range w.Clients {
		pool, err := counted.pool(ctx, url, int32(max(4, 16/w.Clients)))
		if err != nil {
			return share{}, err
		}
		defer pool.Close()
		t, err := newTaker(ctx, w.Way, pool)
		if err != nil {
			return share{}, err
		}
		defer t.close()
		takers = append(takers, t)
	}
	var first sync.Once
	s := share{Served: make([]int, w.Callers)}
	waits, errs := make([][]time.Duration, w.Callers), make([]error, w.Callers)
	var wg sync.WaitGroup
	for n := range w.Callers {
		wg.Go(func() {
			for turn := 0; ; turn++ {
				began := time.Now()
				token, release, err := takers[n%len(takers)].acquire(ctx, "x")
				if err == nil {
					if token >= w.First {
						first.Do(func() {
							s.Began, s.Trips, s.Asked, s.Told = time.Now(), -counted.trips.Load(), -counted.asked.Load(), -counted.told.Load()
						})
						s.Served[n]++
						if turn > 0 { // the first wait began before the start
							waits[n] = append(waits[n], time.Since(began))
						}
					}
					err = release()
				}
				if err != nil || token >= w.Last {
					errs[n] = err
					return
				}
			}
		})
	}
	wg.Wait()
	s.Trips, s.Asked, s.Told = s.Trips+counted.trips.Load(), s.Asked+counted.asked.Load(), s.Told+counted.told.Load()
	s.Waits = slices.Concat(waits...)
	return s, errors.Join(errs...)
}

// handOverProcess does such work in a process of its own.
func handOverProcess(ctx context.Context, url string, _ func(report)) error {
	var w handOverWork
	if err := json.Unmarshal([]byte(os.Getenv(handOverVariable)), &w); err != nil {
		return err
	}
	s, err := w.run(ctx, url)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

// inProcess has the work done by a process of its own.
func (w handOverWork) inProcess(ctx context.Context, url string) (s share, err error) {
	self, err := os.Executable()
	if err != nil {
		return s, err
	}
	work, err := json.Marshal(w)
	if err != nil {
		return s, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVariable+"=handover", "PGLOCK_INTEGRATION_URL="+url, handOverVariable+"="+string(work))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return s, fmt.Errorf("%w: %s", err, out)
	}
	return s, json.Unmarshal(out, &s)
}

// pace is one line of the table.
type pace struct {
	total    int
	lasted   time.Duration
	all      share
	fairness float64 // most served by least served, the worst of all slices
}

func (p *pace) perSecond() float64 { return float64(p.total) / p.lasted.Seconds() }

// BenchmarkHandOver has 8 and 64 callers hand one lock from each to the next, in one client, in 8 clients, and in 8
// processes; and the same by hand, in turns, so that both have the same share of a busy machine. Run it with -benchtime
// 4000x or more: a few hand-overs say nothing.
func BenchmarkHandOver(b *testing.B) {
	pool := benchServer(b, nil)
	if _, err := pool.Exec(b.Context(), bareQueue); err != nil {
		b.Fatal(err)
	}
	layouts := []struct {
		name               string
		processes, clients int
	}{{"one client", 0, 1}, {"8 clients", 0, 8}, {"8 processes", 8, 1}}
	var table strings.Builder
	lines := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(lines, "waiters\tin\tway\thand-overs/s\tof bare\twait p50\tp99\tround trips\tasked\tnotified\tmost/least\t")
	for _, waiters := range []int{8, 64} {
		for _, layout := range layouts {
			ways := []string{"bare", "pglock"}
			paces := make(map[string]*pace)
			b.Run(fmt.Sprintf("waiters=%d/%s", waiters, strings.ReplaceAll(layout.name, " ", "-")), func(b *testing.B) {
				paces["bare"], paces["pglock"] = new(pace), new(pace)
				slice := max(b.N/4, min(b.N, 1000))
				for done := 0; done < b.N; done += slice {
					for _, way := range ways {
						paces[way].handOvers(b, pool, way, waiters, layout.processes, layout.clients, min(slice, b.N-done))
					}
				}
				b.ReportMetric(0, "ns/op") // of both ways together: it says nothing
				for _, way := range ways {
					b.ReportMetric(paces[way].perSecond(), way+"/s")
				}
			})
			for _, way := range ways {
				p := paces[way]
				slices.Sort(p.all.Waits)
				each := func(n int64) float64 { return float64(n) / float64(p.total) }
				fmt.Fprintf(lines, "%d\t%s\t%s\t%.0f\t%.2f\t%.2f ms\t%.2f ms\t%.2f\t%.2f\t%.2f\t%.2f\t\n", waiters, layout.name, way,
					p.perSecond(), p.perSecond()/paces["bare"].perSecond(), milliseconds(percentile(p.all.Waits, 50)),
					milliseconds(percentile(p.all.Waits, 99)), each(p.all.Trips), each(p.all.Asked), each(p.all.Told), p.fairness)
			}
		}
	}
	_ = lines.Flush()
	fmt.Fprint(os.Stderr, table.String())
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile of what is sorted; 0 of nothing.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}

// handOvers holds the lock until everybody is queued for it, and then lets it go from hand to hand so many times.
func (p *pace) handOvers(b *testing.B, pool *pgxpool.Pool, way string, waiters, processes, clients, times int) {
	b.Helper()
	ctx, url := b.Context(), pool.Config().ConnString()
	grantID, session := uuid.NewString(), uuid.NewString()
	var token int64
	var start func() error
	schema := way
	if way == "bare" {
		var expires time.Time
		if err := pool.QueryRow(ctx, bareTry, "x", "bench", session, grantID, time.Hour).Scan(&token, &expires); err != nil {
			b.Fatal(err)
		}
		start = func() error { return (&bareClient{pool: pool}).handOver(ctx, "x", token, grantID) }
	} else {
		if err := pool.QueryRow(ctx, `SELECT token FROM pglock.acquire('x', $1, $2, 'bench', '1 h')`, grantID, session).Scan(&token); err != nil {
			b.Fatal(err)
		}
		start = func() error {
			var handed []int64
			if err := pool.QueryRow(ctx, `SELECT handed FROM pglock.release_lease('x', $1, $2)`, token, grantID).Scan(&handed); err != nil {
				return err
			}
			_, err := pool.Exec(ctx, `SELECT pglock.announce('{x}', $1)`, handed)
			return err
		}
	}
	warm := min(10*waiters, times)
	work := handOverWork{Way: way, Clients: clients, Callers: waiters / max(1, processes), First: token + 1 + int64(warm), Last: token + int64(warm+times)}
	shares, errs := make([]share, max(1, processes)), make([]error, max(1, processes))
	var wg sync.WaitGroup
	for n := range shares {
		wg.Go(func() {
			if processes == 0 {
				shares[n], errs[n] = work.run(ctx, url)
			} else {
				shares[n], errs[n] = work.inProcess(ctx, url)
			}
		})
	}
	for queued, deadline := 0, time.Now().Add(patience); queued < waiters; time.Sleep(time.Millisecond) { // between two looks
		if err := pool.QueryRow(ctx, `SELECT count(*) FROM `+schema+`.waiters`).Scan(&queued); err != nil || time.Now().After(deadline) {
			b.Fatalf("%d of %d are queued: %v", queued, waiters, err)
		}
	}
	if err := start(); err != nil {
		b.Fatal(err)
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	var served []int
	began := time.Now()
	for _, s := range shares {
		if !s.Began.IsZero() && s.Began.Before(began) {
			began = s.Began
		}
		served = append(served, s.Served...)
		p.all.Waits = append(p.all.Waits, s.Waits...)
		p.all.Trips, p.all.Asked, p.all.Told = p.all.Trips+s.Trips, p.all.Asked+s.Asked, p.all.Told+s.Told
	}
	for _, n := range served {
		p.total += n
	}
	p.fairness = max(p.fairness, float64(slices.Max(served))/float64(max(1, slices.Min(served))))
	var last time.Time
	if err := pool.QueryRow(ctx, `SELECT acquired_at FROM `+schema+`.locks WHERE name = 'x'`).Scan(&last); err != nil {
		b.Fatal(err)
	}
	p.lasted += max(last.Sub(began), time.Microsecond)
}
