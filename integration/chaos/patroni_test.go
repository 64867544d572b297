//go:build unix && long

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// needsPatroni skips the test where the programs are missing.
func needsPatroni(t *testing.T) {
	t.Helper()
	if missing := cluster.PatroniPrograms(); len(missing) > 0 {
		t.Skipf("SKIPPED: needs a cluster with Patroni, and there is no program %s in PATH or /usr/sbin",
			strings.Join(missing, ", "))
	}
}

// losesItsLeader takes the leader away in every way once.
func losesItsLeader(t *testing.T, name string) {
	needsPatroni(t)
	chaos(t, options{seed: 3, clusterName: name, oneRound: true, duration: 10 * time.Minute, workers: 4, goroutines: 3,
		pace: 200 * time.Millisecond, sessionTTL: 2 * time.Second}, "all")
}

// With a synchronous standby nothing that was answered is lost, and no two holders believe in one lock.
func TestAClusterThatLosesItsLeader(t *testing.T) { losesItsLeader(t, patroniSync) }

// Without one the last commits may be lost; tokens still ascend.
func TestAnAsynchronousClusterThatLosesItsLeader(t *testing.T) { losesItsLeader(t, patroniAsync) }

const (
	followers = 200
	lasting30 = 30 * time.Second // of leases, and of places in the queue
)

// follower is a client that holds a lease, and when it was renewed.
type follower struct {
	client *pglock.Client
	lease  *pglock.Lease

	mu      sync.Mutex
	renewed []time.Time
	failed  []time.Time
}

func (f *follower) Observe(_ context.Context, e pglock.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch e.Kind {
	case pglock.EventRenew:
		f.renewed = append(f.renewed, time.Now())
	case pglock.EventRenewFailed:
		f.failed = append(f.failed, time.Now())
	}
}

// first is the first of the times after another.
func (f *follower) first(times *[]time.Time, after time.Time) (d time.Duration, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, at := range *times {
		if at.After(after) {
			return at.Sub(after), true
		}
	}
	return 0, false
}

// startFollowed starts a cluster in synchronous mode. opened has each moment in which a new leader begins to take
// writes.
func startFollowed(t *testing.T) (p *cluster.Patroni, opened chan time.Time) {
	t.Helper()
	opened = make(chan time.Time, 10)
	p = must.Get(cluster.StartPatroni(t.Context(), pgtest.Programs(t), true, func(history.Commit) {},
		func(history.Promotion) { opened <- time.Now() }, func(err error) { t.Error(err) }))(t)
	t.Cleanup(func() {
		must.Note(t, p.Stop())
	})
	return p, opened
}

// wantLeaderWithin ends the test where the cluster was without a leader for too long: a lease bears a silence of 0.6 of
// its TTL, and four seconds of that are for its client to come to the new one.
func wantLeaderWithin(t *testing.T, absent time.Duration) {
	t.Helper()
	if absent > lasting30*6/10-4*time.Second {
		t.Skipf("SKIPPED: the machine is too busy for a failover: there was no leader for %v", absent)
	}
}

// Two hundred clients follow to the new leader. Their leases live on, and waiting calls keep their places.
func TestClientsFollowTheLeader(t *testing.T) {
	needsPatroni(t)
	p, opened := startFollowed(t)
	all := make([]*follower, followers)
	var opening sync.WaitGroup
	few := make(chan struct{}, 8)
	for i := range all {
		all[i] = &follower{}
		few <- struct{}{}
		opening.Go(func() { all[i].open(t, p, i); <-few })
	}
	opening.Wait()
	if t.Failed() {
		return
	}
	for _, fault := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"switchover", p.Switch},
		{"silent leader", func(ctx context.Context) error { return p.CutLeader(ctx, 3*time.Second) }},
	} {
		q := standInLine(t, p, all)
		time.Sleep(2 * time.Second) // a place in the queue is not kept waiting for the standby
		before := q.tickets()
		asking, stop := context.WithCancel(t.Context())
		tried := tryAgain(asking, all[50:90])
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- fault.do(t.Context()) }()
		at := <-opened
		time.Sleep(time.Until(at.Add(time.Second)))
		after := q.tickets()
		handed := q.handOver()
		must.Do(t, <-done)
		stop()
		time.Sleep(time.Until(at.Add(12 * time.Second)))
		t.Logf("%s: the new leader took writes after %v\n  TryAcquire succeeded after %s\n  hand-overs, from the "+
			"release a second after it on: %s%s", fault.name, at.Sub(began), spread(tried(at)), spread(handed),
			figures(t, p, all, at))
		wantLeaderWithin(t, at.Sub(began))
		if !slices.Equal(after, before) {
			t.Errorf("%s: the queue has the tickets %v, had %v", fault.name, after, before)
		}
		var errs []error
		for err := range q.failed {
			errs = append(errs, err)
		}
		for _, f := range all {
			errs = append(errs, f.lease.Err())
		}
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", fault.name, err)
		}
	}
}

// line is a holder, and twenty calls that wait for the same lock.
type line struct {
	t       *testing.T
	p       *cluster.Patroni
	holder  *pglock.Lease
	waiting sync.WaitGroup
	granted chan time.Time
	failed  chan error
}

const inLine = 20

func standInLine(t *testing.T, p *cluster.Patroni, all []*follower) *line {
	q := &line{t: t, p: p, granted: make(chan time.Time, inLine), failed: make(chan error, 2*inLine)}
	var err error
	if q.holder, err = all[0].client.Acquire(t.Context(), "queue", pglock.WithTTL(lasting30)); err != nil {
		t.Fatal(err)
	}
	for _, f := range all[1 : 1+inLine] {
		q.waiting.Go(func() {
			l, err := f.client.Acquire(t.Context(), "queue", pglock.WithTTL(lasting30))
			if err == nil {
				q.granted <- time.Now()
				err = l.Release(t.Context())
			}
			q.failed <- err
		})
	}
	pgtest.Eventually(t, "the queue", func() bool { return len(q.tickets()) == inLine })
	return q
}

// tickets are the numbers of those who wait.
func (q *line) tickets() (numbers []int64) {
	pool := must.Get(pgxpool.New(q.t.Context(), q.p.URL()))(q.t)
	defer pool.Close()
	admin := must.Get(lockadmin.New(q.t.Context(), pool))(q.t)
	waiters := must.Get(lists.All(admin.Waiters(q.t.Context(), lockadmin.WaitersQuery{Lock: "queue"})))(q.t)
	for _, w := range waiters {
		numbers = append(numbers, w.Ticket)
	}
	return numbers
}

// handOver releases the lock, and tells when each got it.
func (q *line) handOver() (took []time.Duration) {
	began := time.Now()
	q.failed <- q.holder.Release(q.t.Context())
	q.waiting.Wait()
	close(q.granted)
	close(q.failed)
	for at := range q.granted {
		took = append(took, at.Sub(began))
	}
	return took
}

// tryAgain has clients ask for a lock each, again and again; first tells when each first succeeded after a moment.
func tryAgain(ctx context.Context, clients []*follower) (first func(after time.Time) []time.Duration) {
	var mu sync.Mutex
	got := make([][]time.Time, len(clients))
	var asking sync.WaitGroup
	for i, f := range clients {
		asking.Go(func() {
			for ctx.Err() == nil {
				brief, cancel := context.WithTimeout(ctx, time.Second)
				l, err := f.client.TryAcquire(brief, fmt.Sprint("tried ", i), pglock.WithTTL(time.Second))
				cancel()
				if err == nil {
					mu.Lock()
					got[i] = append(got[i], time.Now())
					mu.Unlock()
					_ = l.Release(ctx)
				}
				wait(ctx, 100*time.Millisecond)
			}
		})
	}
	return func(after time.Time) (all []time.Duration) {
		asking.Wait()
		for _, times := range got {
			if n := slices.IndexFunc(times, after.Before); n >= 0 {
				all = append(all, times[n].Sub(after))
			}
		}
		return all
	}
}

func (f *follower) open(t *testing.T, p *cluster.Patroni, i int) {
	connString := p.HostsURL()
	if i%2 == 1 {
		connString = p.ProxyURL()
	}
	config, err := pgxpool.ParseConfig(connString)
	if err != nil {
		t.Error(err)
		return
	}
	config.MaxConns = 2
	config.ConnConfig.RuntimeParams["application_name"] = "follower"
	pglock.ObserveCommits(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err == nil {
		t.Cleanup(pool.Close)
		f.client, err = pglock.New(t.Context(), pool, pglock.WithObserver(f),
			pglock.WithDefaultHolder(fmt.Sprint("f", i)),
			pglock.WithSessionTTL(lasting30))
	}
	if err == nil {
		t.Cleanup(func() { _ = f.client.Close(context.Background()) })
		f.lease, err = f.client.Acquire(t.Context(), fmt.Sprint("held ", i), pglock.WithTTL(lasting30))
	}
	if err != nil {
		t.Error(err)
	}
}

// figures tells when the clients came to the new leader, from its opening on.
func figures(t *testing.T, p *cluster.Patroni, all []*follower, opened time.Time) string {
	var b strings.Builder
	var failedBefore, lost int
	for way, name := range []string{"hosts", "HAProxy"} {
		var renewed []time.Duration
		for i, f := range all {
			if i%2 != way {
				continue
			}
			if f.lease.Err() != nil {
				lost++
			}
			if d, found := f.first(&f.failed, opened.Add(-10*time.Second)); found && d < 10*time.Second {
				failedBefore++
			}
			if d, found := f.first(&f.renewed, opened); found {
				renewed = append(renewed, d)
			}
		}
		fmt.Fprintf(&b, "\n  %s: renewed after %s", name, spread(renewed))
	}
	fmt.Fprintf(&b, "\n  %d leases lost, %d clients with a failed renewal before", lost, failedBefore)
	pool := must.Get(pgxpool.New(t.Context(), p.URL()))(t)
	defer pool.Close()
	rows, _ := pool.Query(t.Context(), `SELECT backend_start FROM pg_stat_activity WHERE application_name = 'follower'
		ORDER BY backend_start`)
	var started []time.Duration
	var most int
	var at time.Time
	for rows.Next() {
		must.Do(t, rows.Scan(&at))
		started = append(started, at.Sub(opened))
	}
	for i := range started {
		n := 0
		for _, d := range started[i:] {
			if d-started[i] < 100*time.Millisecond {
				n++
			}
		}
		most = max(most, n)
	}
	fmt.Fprintf(&b, "\n  connections: %d, begun after %s; at most %d within 100 ms", len(started),
		spread(started), most)
	return b.String()
}

// spread tells of some times the least, the middle, the 95th of a hundred, and the greatest.
func spread(times []time.Duration) string {
	if len(times) == 0 {
		return "never"
	}
	slices.SortFunc(times, cmp.Compare[time.Duration])
	at := func(percent int) time.Duration {
		return times[min(len(times)-1, len(times)*percent/100)].Round(time.Millisecond)
	}
	return fmt.Sprintf("%v / %v / %v / %v (%d)", at(0), at(50), at(95), at(100), len(times))
}
