//go:build unix

package troubles

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// holder is a program that holds a lock and renews it.
func (s *Stage) holder(
	label, lock string, opts ...pglock.AcquireOption,
) (*pglock.Client, *pgxpool.Pool, *pglock.Lease) {
	c, pool := s.client(label, pglock.WithDefaultTTL(30*time.Second))
	lease := get(c.TryAcquire(s.making, lock, opts...))
	must(beat(s.making, lease, pool))
	return c, pool, lease
}

// heldFor makes a lease older, and its holder renew it.
func (s *Stage) heldFor(lease *pglock.Lease, d time.Duration) {
	s.exec("UPDATE pglock.locks SET acquired_at = clock_timestamp() - $3::float8 * interval '1 s', "+
		"slowest = interval '10.2 s' WHERE name = $1 AND slot = $2", lease.Name(), lease.Slot(), d.Seconds())
	must(hooks.Of(lease).Renew(s.making))
}

// silentFor makes it look as if a lease of half an hour had not been renewed for that long, and its client had given no
// other sign of life.
func (s *Stage) silentFor(lock string, d time.Duration) {
	s.exec(
		`UPDATE pglock.sessions SET seen_at = clock_timestamp() - $2::float8 * interval '1 s' WHERE session_id IN (
		SELECT session_id FROM pglock.locks WHERE name = $1)`, lock, d.Seconds())
	s.exec(
		`UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 h', slowest = interval '10 min 2 s',
		renewed_at = clock_timestamp() - $2::float8 * interval '1 s', expires_at = clock_timestamp() - $2::float8 * interval '1 s' + ttl WHERE name = $1`, lock, d.Seconds())
}

// waiting makes the tickets of a lock older.
func (s *Stage) waiting(lock string, d time.Duration) {
	s.exec("UPDATE pglock.waiters SET enqueued_at = enqueued_at - $2::float8 * interval '1 s' WHERE name "+
		"= $1", lock, d.Seconds())
}

// queue has programs wait for a lock.
func (s *Stage) queue(lock string, labels ...string) {
	for _, label := range labels {
		c, _ := s.client(label)
		s.wait(c, s.ctx, lock)
	}
}

func crashed(s *Stage) {
	p := s.process(roleHold)
	s.queue(report, "app-2/reporter[963]", "app-3/reporter[77]")
	must(p.Kill())
	s.until("the end of the holder's connections",
		"SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE "+
			"'pglock %/reporter[' || $1::text || ']'", itoa(p.Pid))
	s.waiting(report, 21*time.Minute)
	s.silentFor(report, 22*time.Minute)
}

func stopped(s *Stage) { stoppedAs(s, roleHold) }

// stoppedEarly is stopped before the first renewal: nobody knows a connection of the holder.
func stoppedEarly(s *Stage) {
	stoppedAs(s, roleTake)
	s.exec("UPDATE pglock.locks SET acquired_at = renewed_at, slowest = NULL WHERE name = $1", report)
}

func stoppedAs(s *Stage, role string) {
	p := s.process(role)
	s.queue(report, "app-2/reporter[963]", "app-3/reporter[77]")
	must(p.Signal(syscall.SIGSTOP))
	s.waiting(report, 21*time.Minute)
	s.silentFor(report, 22*time.Minute)
}

func healthy(s *Stage) {
	_, _, lease := s.holder("app-1/reporter[4711]", report)
	s.heldFor(lease, 65*time.Second)
}

// longQueue has two hundred tickets. Their programs are rows alone: two hundred would need four hundred connections.
func longQueue(s *Stage) {
	_, _, lease := s.holder("app-1/reporter[4711]", report)
	for n := 1; n <= 200; n++ { // each in a transaction of its own, which may take a second
		ttl := 2 * time.Hour
		if n%15 == 4 {
			ttl = 100 * time.Millisecond
		}
		s.exec(
			`SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), gen_random_uuid(), $1, '30 s',
			p_wait => true, p_session_ttl => $2)`, fmt.Sprintf("app-%d/reporter[%d]", 2+n%7, 900+n), ttl)
	}
	s.until("the death of some", "SELECT count(*) = 14 FROM pglock.list_waiters('nightly-report') "+
		"WHERE NOT alive")
	s.exec(
		`UPDATE pglock.waiters w SET enqueued_at = clock_timestamp() - interval '12 s' * (201 - o.n) + interval '8 s' FROM
		(SELECT ticket, row_number() OVER (ORDER BY ticket) AS n FROM pglock.waiters WHERE name = 'nightly-report') o WHERE w.ticket = o.ticket`)
	s.heldFor(lease, 41*time.Minute)
}

// deadlock is of three programs that ask for their second lock without the context of their first lease.
func deadlock(s *Stage) {
	labels := []string{"app-1/reporter[4711]", "app-2/billing[963]", "app-3/export[77]"}
	locks := []string{report, "invoices", "customers"}
	clients := make([]*pglock.Client, len(locks))
	for i, label := range labels {
		c, _, lease := s.holder(label, locks[i])
		s.heldFor(lease, time.Duration(20-i)*time.Minute)
		clients[i] = c
	}
	for i, c := range clients {
		wanted := locks[(i+1)%len(locks)]
		s.wait(c, s.ctx, wanted)
		s.waiting(wanted, time.Duration(12-i)*time.Minute)
	}
}

// waits is of a program that asks for its second lock with the context of its first lease, as it should.
func waits(s *Stage) {
	waitsWith(s, (*pglock.Lease).Context)
}

// waitsUnsaid is of a program that asks for its second lock without that context: pglock does not know that it is the
// same line of work.
func waitsUnsaid(s *Stage) {
	waitsWith(s, func(*pglock.Lease) context.Context { return s.ctx })
}

func waitsWith(s *Stage, within func(*pglock.Lease) context.Context) {
	c, _, lease := s.holder("app-1/reporter[4711]", report)
	_, _, other := s.holder("app-2/billing[963]", "invoices")
	s.heldFor(other, 20*time.Minute)
	s.wait(c, within(lease), "invoices")
	s.waiting("invoices", 4*time.Minute)
	s.queue(report, "app-3/reporter[77]")
	s.heldFor(lease, 5*time.Minute)
}

// ownQueue is of a program that uses the lock in two goroutines.
func ownQueue(s *Stage) {
	c, _, lease := s.holder("app-1/reporter[4711]", report)
	s.wait(c, s.ctx, report)
	s.waiting(report, 4*time.Minute)
	s.heldFor(lease, 5*time.Minute)
}

// handedPast is of two programs that hand the lock to each other, three times in all, while a third one waits.
func handedPast(s *Stage) {
	s.exec("SELECT pglock.set_history('alice@ops', 'all')")
	labels := []string{"app-1/reporter[4711]", "app-2/reporter[963]"}
	holds, pool, lease := s.holder(labels[0], report)
	waits, _ := s.client(labels[1], pglock.WithDefaultTTL(30*time.Second))
	s.queue(report, "app-3/reporter[77]")
	for n := range 3 {
		next := make(chan *pglock.Lease, 1)
		c := waits
		s.wg.Go(func() {
			l, _ := c.Acquire(s.ctx, report)
			next <- l
		})
		s.until("the next one's ticket", "SELECT count(*) = 2 FROM pglock.waiters WHERE name = $1", report)
		must(lease.HandOver(s.making, labels[(n+1)%2]))
		if lease = <-next; lease == nil {
			must(errors.New("the next one did not get the lock"))
		}
		holds, waits = waits, holds
	}
	s.waiting(report, 4*time.Minute)
	s.exec("UPDATE pglock.installation SET history_since = history_since - interval '10 min'")
	must(beat(s.making, lease, pool))
	s.heldFor(lease, 3*time.Second)
}

// writerFirst is of readers that hold the lock, a writer that waits for them, and a reader behind it.
func writerFirst(s *Stage) {
	for _, label := range []string{"app-1/reporter[4711]", "app-2/reporter[963]"} {
		_, _, lease := s.holder(label, report, pglock.WithShared())
		s.heldFor(lease, 5*time.Minute)
	}
	s.queue(report, "app-3/import[77]")
	c, _ := s.client("app-4/reporter[78]")
	s.wait(c, s.ctx, report, pglock.WithShared())
	s.waiting(report, 4*time.Minute)
}

func limit(s *Stage) {
	for _, label := range []string{"app-1/train[51]", "app-2/train[52]", "app-3/train[53]"} {
		_, _, lease := s.holder(label, "gpu", pglock.WithLimit(4))
		s.heldFor(lease, 3*time.Minute)
	}
}

// pooler is of a holder that gives its signs of life over connections which nobody can tell apart.
func pooler(s *Stage) {
	s.exec("SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), $1::text::uuid, "+
		"'app-1/reporter[4711]', '30 min')", pooled)
	s.silentFor(report, 3*time.Minute)
	s.exec(
		"SELECT pglock.mark_connection($1::text::uuid, 0, 'app-1/reporter[4711]', 'v1.0.0', '30 min')", pooled)
}

// pooled is the key of a session.
const pooled = "6f1c2a58-9d0e-4b7a-8c35-21d4e6f7a890"
