//go:build unix && long

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// arrival is what a client does first at the new leader.
type arrival int

const (
	connected arrival = iota // its own connection is open
	beaten                   // its heartbeat is answered
	listened                 // it hears notifications
	dialled                  // it tries to open its own connection, also in vain
	arrivals
)

// arriving notes when a client arrives, as the tracer of its connections and its observer.
type arriving struct {
	mu    sync.Mutex
	times [arrivals][]time.Time
}

func (a *arriving) note(what arrival) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times[what] = append(a.times[what], time.Now())
}

// first is when it arrived after a moment; count is how often until another.
func (a *arriving) first(what arrival, after time.Time) (d time.Duration, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.times[what] {
		if at.After(after) {
			return at.Sub(after), true
		}
	}
	return 0, false
}

func (a *arriving) count(what arrival, after, until time.Time) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.times[what] {
		if at.After(after) && at.Before(until) {
			n++
		}
	}
	return n
}

func (a *arriving) Observe(_ context.Context, e pglock.Event) {
	if e.Kind == pglock.EventReconnect && e.Connection == "listener" {
		a.note(listened)
	}
}

// own says that a connection is the client's, not of its pool: only such hear notifications.
func own(config *pgx.ConnConfig) bool { return config.OnNotification != nil }

func (a *arriving) TraceConnectStart(ctx context.Context, data pgx.TraceConnectStartData) context.Context {
	if own(data.ConnConfig) {
		a.note(dialled)
	}
	return ctx
}

func (a *arriving) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if data.Err == nil && own(data.Conn.Config()) {
		a.note(connected)
	}
}

type beatKey struct{}

func (a *arriving) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	for _, function := range []string{"renew_leases", "renew_many", "mark_connection", ".look("} {
		if strings.Contains(data.SQL, function) {
			return context.WithValue(ctx, beatKey{}, true)
		}
	}
	return ctx
}

func (a *arriving) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if data.Err == nil && ctx.Value(beatKey{}) != nil {
		a.note(beaten)
	}
}

// comer is a client that holds a lease. One of four watches a lock, and one of four waits for one.
type comer struct {
	arriving
	client *pglock.Client
	lease  *pglock.Lease
	tried  follower
}

// TestHowSoonClientsComeToTheNewLeader measures it, and wants every lease and every place to live on.
func TestHowSoonClientsComeToTheNewLeader(t *testing.T) {
	needsPatroni(t)
	for _, n := range []int{20, 200} {
		t.Run(fmt.Sprint(n, " clients"), func(t *testing.T) { comeToTheNewLeader(t, n) })
	}
}

func comeToTheNewLeader(t *testing.T, n int) {
	p, opened := startFollowed(t)
	all := make([]*comer, n)
	var opening, waiting sync.WaitGroup
	few := make(chan struct{}, 8)
	for i := range all {
		all[i] = &comer{}
		few <- struct{}{}
		opening.Go(func() { all[i].open(t, p, i); <-few })
	}
	if opening.Wait(); t.Failed() {
		return
	}
	for i, c := range all {
		switch i % 4 {
		case 1:
			waiting.Go(func() {
				_, err := c.client.Acquire(t.Context(), fmt.Sprint("held ", i-1), pglock.WithTTL(lasting30))
				if !errors.Is(err, context.Canceled) && !errors.Is(err, pglock.ErrClosed) {
					t.Errorf("a call that waits: %v", err)
				}
			})
		case 2:
			waiting.Go(func() {
				for range c.client.Watch(t.Context(), fmt.Sprint("held ", i)) {
				}
			})
		}
	}
	t.Cleanup(waiting.Wait)
	pgtest.Eventually(t, "all calls wait", func() bool { return len(ticketsOf(t, p)) == (n+2)/4 })
	for _, fault := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"switchover", p.Switch},
		{"killed leader", p.KillLeader},
		{"silent leader", func(ctx context.Context) error { return p.CutLeader(ctx, 3*time.Second) }},
	} {
		time.Sleep(10 * time.Second) // what is measured begins with renewals that are spread out
		before := ticketsOf(t, p)
		var callers []*follower
		for _, c := range all[:4] { // they show what pools do, and take little of the machine
			callers = append(callers, &c.tried)
		}
		asking, stop := context.WithCancel(t.Context())
		tried := tryAgain(asking, callers)
		for len(opened) > 0 { // a busy machine has lost a leader by itself
			<-opened
		}
		began, done := time.Now(), make(chan error, 1)
		go func() { done <- fault.do(t.Context()) }()
		at := <-opened
		time.Sleep(time.Until(at.Add(12 * time.Second))) // for so long it is measured who comes
		stop()
		t.Logf("%s, %d clients: the new leader took writes after %v\n  TryAcquire succeeded after %s%s", fault.name, n,
			at.Sub(began).Round(time.Millisecond), spread(tried(at)), arrived(all, began, at))
		must.Do(t, <-done)
		wantLeaderWithin(t, at.Sub(began))
		if after := ticketsOf(t, p); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("%s: the tickets are %v, were %v", fault.name, after, before)
		}
		for _, c := range all {
			if err := c.lease.Err(); err != nil {
				t.Errorf("%s: %v", fault.name, err)
			}
		}
	}
}

// arrived tells when clients came to the new leader, from its opening on.
func arrived(all []*comer, began, opened time.Time) string {
	var b strings.Builder
	for way, name := range []string{"hosts", "HAProxy"} {
		for what, does := range []string{"own connection", "heartbeat", "listener"} {
			var after []time.Duration
			for i, c := range all {
				if i/4%2 == way {
					if d, found := c.arriving.first(arrival(what), opened); found {
						after = append(after, d)
					}
				}
			}
			fmt.Fprintf(&b, "\n  %s, %s: %s", name, does, spread(after))
		}
	}
	before, most := 0, 0
	for _, c := range all {
		before += c.count(dialled, began, opened)
	}
	for at := opened; at.Before(opened.Add(5 * time.Second)); at = at.Add(100 * time.Millisecond) {
		n := 0
		for _, c := range all {
			n += c.count(dialled, at, at.Add(100*time.Millisecond))
		}
		most = max(most, n)
	}
	fmt.Fprintf(&b, "\n  own connections tried: %d before, after it at most %d in 100 ms", before, most)
	return b.String()
}

// ticketsOf are the numbers of all who wait.
func ticketsOf(t *testing.T, p *cluster.Patroni) (numbers []int64) {
	t.Helper()
	pgtest.Eventually(t, "the list of who waits", func() bool {
		conn, err := pgx.Connect(t.Context(), p.URL())
		if err != nil {
			return false
		}
		defer conn.Close(t.Context())
		rows, _ := conn.Query(t.Context(), `SELECT ticket FROM pglock.list_waiters(p_limit => 1000) ORDER BY ticket`)
		numbers, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err == nil
	})
	return numbers
}

func (c *comer) open(t *testing.T, p *cluster.Patroni, i int) {
	connString := p.HostsURL()
	if i/4%2 == 1 {
		connString = p.ProxyURL()
	}
	config, err := pgxpool.ParseConfig(connString)
	if err != nil {
		t.Error(err)
		return
	}
	config.MaxConns, config.ConnConfig.Tracer = 2, &c.arriving
	pglock.ObserveCommits(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err == nil {
		t.Cleanup(pool.Close)
		c.client, err = pglock.New(t.Context(), pool, pglock.WithObserver(&c.arriving),
			pglock.WithDefaultHolder(fmt.Sprint("f", i)), pglock.WithSessionTTL(lasting30))
	}
	if err == nil {
		t.Cleanup(func() { _ = c.client.Close(context.Background()) })
		c.tried.client = c.client
		c.lease, err = c.client.Acquire(t.Context(), fmt.Sprint("held ", i), pglock.WithTTL(lasting30))
	}
	if err != nil {
		t.Error(err)
	}
}
