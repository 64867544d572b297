package integration

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// BenchmarkExpiryToNextGrant measures, by the server's clock, how long after the end of a dead holder's lease the first in
// the queue has its grant. Eight locks at a time, each with four waiters in two clients.
func BenchmarkExpiryToNextGrant(b *testing.B) {
	pool := benchServer(b, nil)
	var clients []*pglock.Client
	for range 2 {
		c, err := pglock.New(b.Context(), pool)
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close(context.Background())
		clients = append(clients, c)
	}
	const locks, waiters = 8, 4
	var late []time.Duration
	for b.Loop() {
		ended := make([]time.Time, locks)
		for n := range ended { // of a holder that is never heard of again
			err := pool.QueryRow(b.Context(), `SELECT expires_at FROM pglock.acquire($1, gen_random_uuid(), gen_random_uuid(), 'dead', $2)`,
				fmt.Sprint("n", n), 100*time.Millisecond+time.Duration(n)*7*time.Millisecond).Scan(&ended[n])
			if err != nil {
				b.Fatal(err)
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for n := range locks * waiters {
			wg.Go(func() {
				err := clients[n%2].Do(b.Context(), fmt.Sprint("n", n%locks), func(ctx context.Context, l *pglock.Lease) error {
					mu.Lock()
					defer mu.Unlock()
					ends := &ended[n%locks]
					if ends.IsZero() {
						return nil // not the first
					}
					info, err := clients[0].Get(ctx, l.Name())
					late = append(late, info.AcquiredAt.Sub(*ends))
					*ends = time.Time{}
					return err
				})
				if err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	slices.Sort(late)
	p50, p99 := milliseconds(percentile(late, 50)), milliseconds(percentile(late, 99))
	b.ReportMetric(p50, "p50-ms")
	b.ReportMetric(p99, "p99-ms")
	fmt.Fprintf(os.Stderr, "%d expiries, %d waiters each: to the next grant p50 %.2f ms, p99 %.2f ms, at most %.2f ms\n",
		len(late), waiters, p50, p99, milliseconds(percentile(late, 100)))
}

// The notification inside the grant's transaction, as a program would have it that does not know what NOTIFY locks.
const notifyInside = `
	CREATE FUNCTION public.release_and_notify(p_name text, p_token bigint, p_grant_id uuid) RETURNS bigint LANGUAGE plpgsql AS $$
	DECLARE
		h bigint[];
	BEGIN
		SELECT r.handed INTO h FROM pglock.release_lease(p_name, p_token, p_grant_id) r;
		PERFORM pglock.announce(ARRAY[p_name], h);
		RETURN h[1];
	END $$`

// BenchmarkNotify hands 32 locks to and fro between the two sessions of each, where a flush takes two milliseconds: with
// the notification in a later transaction that does not wait for the disk, and inside the grant's own.
func BenchmarkNotify(b *testing.B) {
	server := pgtest.Dedicated(b, map[string]string{"fsync": "on", "commit_delay": "2000", "commit_siblings": "0"})
	if err := migrations.Up(b.Context(), server.URL()); err != nil {
		b.Fatal(err)
	}
	const locks = 32
	sides := make([]*side, 2)
	for n := range sides {
		sides[n] = newSide(b, server.URL(), locks)
	}
	if _, err := sides[0].conns[0].Exec(b.Context(), notifyInside); err != nil {
		b.Fatal(err)
	}
	rates := make(map[string]float64)
	for _, way := range []string{"inside", "later"} {
		b.Run(way, func(b *testing.B) {
			var total atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			for n := range locks {
				wg.Go(func() {
					if err := toAndFro(b.Context(), sides, n, way == "inside", &total, int64(locks*b.N)); err != nil {
						b.Error(err)
					}
				})
			}
			wg.Wait()
			b.ReportMetric(0, "ns/op") // of all locks: see hand-overs/s
			rates[way] = float64(total.Load()) / time.Since(began).Seconds()
			b.ReportMetric(rates[way], "hand-overs/s")
		})
	}
	fmt.Fprintf(os.Stderr, "%d locks, 2 ms a flush: %.0f hand-overs/s with NOTIFY in a later transaction, %.0f inside the grant's: %.1f times as many\n",
		locks, rates["later"], rates["inside"], rates["later"]/rates["inside"])
}

// side is one session: a connection for each lock, and one that listens.
type side struct {
	session uuid.UUID
	conns   []*pgx.Conn
	mu      sync.Mutex
	waiting map[string]chan int64 // by the digest of the grant ID; gets the token
}

func newSide(b *testing.B, url string, locks int) *side {
	b.Helper()
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(b.Context(), url)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	s := &side{session: uuid.New(), waiting: make(map[string]chan int64)}
	for range locks {
		s.conns = append(s.conns, connect())
	}
	ear := connect()
	if _, err := ear.Exec(b.Context(), `LISTEN pglock_`+strings.ReplaceAll(s.session.String(), "-", "")); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	b.Cleanup(func() { stop(); <-stopped })
	go func() {
		defer close(stopped)
		for {
			n, err := ear.WaitForNotification(ctx)
			if err != nil {
				return
			}
			var digest string
			var token int64
			_, _ = fmt.Sscan(n.Payload, &digest, &token)
			s.mu.Lock()
			if got := s.waiting[digest]; got != nil {
				got <- token
			}
			delete(s.waiting, digest)
			s.mu.Unlock()
		}
	}()
	return s
}

// ask asks for a lock; the token is 0 when it is queued, and comes over the channel.
func (s *side) ask(ctx context.Context, n int) (grantID uuid.UUID, token int64, got chan int64, err error) {
	grantID, got = uuid.New(), make(chan int64, 1)
	digest := sha256.Sum256(grantID[:])
	s.mu.Lock()
	s.waiting[hex.EncodeToString(digest[:])] = got
	s.mu.Unlock()
	var granted bool
	var held *int64
	err = s.conns[n].QueryRow(ctx, `SELECT a.granted, a.token, CASE WHEN NOT a.granted THEN set_config('synchronous_commit', 'off', true) END
		FROM pglock.acquire($1, $2, $3, 'bench', '1 min', p_wait => true, p_session_ttl => '1 min') a`,
		fmt.Sprint("n", n), grantID, s.session).Scan(&granted, &held, nil)
	if granted {
		token = *held
	}
	return grantID, token, got, err
}

// toAndFro passes one lock from side to side: the other asks, the holder releases, the other hears of its grant.
func toAndFro(ctx context.Context, sides []*side, n int, inside bool, total *atomic.Int64, most int64) error {
	name := fmt.Sprint("n", n)
	held, token, _, err := sides[0].ask(ctx, n)
	if err != nil {
		return err
	}
	if token == 0 {
		return fmt.Errorf("lock %s is held", name)
	}
	for turn := 1; ; turn++ {
		last := total.Add(1) > most
		holder, other := sides[(turn+1)%2], sides[turn%2]
		conn := holder.conns[n]
		if last {
			total.Add(-1)
			_, err := conn.Exec(ctx, `SELECT pglock.release($1, $2, $3)`, name, token, held)
			return err
		}
		next, _, got, err := other.ask(ctx, n)
		if err != nil {
			return err
		}
		if inside {
			_, err = conn.Exec(ctx, `SELECT public.release_and_notify($1, $2, $3)`, name, token, held)
		} else {
			var handed []int64
			if err = conn.QueryRow(ctx, `SELECT handed FROM pglock.release_lease($1, $2, $3)`, name, token, held).Scan(&handed); err == nil {
				_, err = conn.Exec(ctx, `SELECT pglock.announce($1, $2), set_config('synchronous_commit', 'off', true)`, []string{name}, handed)
			}
		}
		if err != nil {
			return err
		}
		select {
		case token = <-got:
		case <-time.After(patience):
			return fmt.Errorf("lock %s: no grant came in %v", name, patience)
		}
		held = next
	}
}
