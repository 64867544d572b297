//go:build unix

package troubles

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// holder is a program that holds a lock and renews it.
func (s *Stage) holder(ctx context.Context, label, lock string, opts ...pglock.AcquireOption) (*pglock.Client,
	*pgxpool.Pool, *pglock.Lease, error) {
	c, pool, err := s.client(ctx, label, pglock.WithDefaultTTL(30*time.Second))
	if err != nil {
		return nil, nil, nil, err
	}
	lease, err := c.TryAcquire(ctx, lock, opts...)
	if err == nil {
		err = beat(ctx, lease, pool)
	}
	return c, pool, lease, err
}

// heldFor makes a lease older, and its holder renew it.
func (s *Stage) heldFor(ctx context.Context, lease *pglock.Lease, d time.Duration) error {
	err := s.exec(ctx, "UPDATE pglock.locks SET acquired_at = clock_timestamp() - $3::float8 * interval '1 s', "+
		"slowest = interval '10.2 s' WHERE name = $1 AND slot = $2", lease.Name(), lease.Slot(), d.Seconds())
	if err != nil {
		return err
	}
	return hooks.Of(lease).Renew(ctx)
}

// silentFor makes it look as if a lease of half an hour had not been renewed for that long, and its client had given no
// other sign of life.
func (s *Stage) silentFor(ctx context.Context, lock string, d time.Duration) error {
	err := s.exec(ctx,
		`UPDATE pglock.sessions SET seen_at = clock_timestamp() - $2::float8 * interval '1 s' WHERE session_id IN (
		SELECT session_id FROM pglock.locks WHERE name = $1)`, lock, d.Seconds())
	if err != nil {
		return err
	}
	return s.exec(ctx,
		`UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '1 h', slowest = interval '10 min 2 s',
		renewed_at = clock_timestamp() - $2::float8 * interval '1 s', expires_at = clock_timestamp() - $2::float8 * interval '1 s' + ttl WHERE name = $1`, lock, d.Seconds())
}

// waiting makes the tickets of a lock older.
func (s *Stage) waiting(ctx context.Context, lock string, d time.Duration) error {
	return s.exec(ctx, "UPDATE pglock.waiters SET enqueued_at = enqueued_at - $2::float8 * interval '1 s' WHERE name "+
		"= $1", lock, d.Seconds())
}

// queue has programs wait for a lock.
func (s *Stage) queue(ctx context.Context, lock string, labels ...string) error {
	for _, label := range labels {
		c, _, err := s.client(ctx, label)
		if err != nil {
			return err
		}
		if err := s.wait(ctx, c, s.ctx, lock); err != nil {
			return err
		}
	}
	return nil
}

func crashed(ctx context.Context, s *Stage) error {
	p, err := s.process(ctx, roleHold)
	if err == nil {
		err = s.queue(ctx, report, "app-2/reporter[963]", "app-3/reporter[77]")
	}
	if err == nil {
		err = p.Kill()
	}
	if err == nil {
		err = s.until(ctx, "the end of the holder's connections",
			"SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE "+
				"'pglock %/reporter[' || $1::text || ']'", itoa(p.Pid))
	}
	if err == nil {
		err = s.waiting(ctx, report, 21*time.Minute)
	}
	if err == nil {
		err = s.silentFor(ctx, report, 22*time.Minute)
	}
	return err
}

func stopped(ctx context.Context, s *Stage) error { return stoppedAs(ctx, s, roleHold) }

// stoppedEarly is stopped before the first renewal: nobody knows a connection of the holder.
func stoppedEarly(ctx context.Context, s *Stage) error {
	err := stoppedAs(ctx, s, roleTake)
	if err == nil {
		err = s.exec(ctx, "UPDATE pglock.locks SET acquired_at = renewed_at, slowest = NULL WHERE name = $1", report)
	}
	return err
}

func stoppedAs(ctx context.Context, s *Stage, role string) error {
	p, err := s.process(ctx, role)
	if err == nil {
		err = s.queue(ctx, report, "app-2/reporter[963]", "app-3/reporter[77]")
	}
	if err == nil {
		err = p.Signal(syscall.SIGSTOP)
	}
	if err == nil {
		err = s.waiting(ctx, report, 21*time.Minute)
	}
	if err == nil {
		err = s.silentFor(ctx, report, 22*time.Minute)
	}
	return err
}

func healthy(ctx context.Context, s *Stage) error {
	_, _, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err != nil {
		return err
	}
	return s.heldFor(ctx, lease, 65*time.Second)
}

// longQueue has two hundred tickets. Their programs are rows alone: two hundred would need four hundred connections.
func longQueue(ctx context.Context, s *Stage) error {
	_, _, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err != nil {
		return err
	}
	for n := 1; n <= 200 && err == nil; n++ { // each in a transaction of its own, which may take a second
		ttl := 2 * time.Hour
		if n%15 == 4 {
			ttl = 100 * time.Millisecond
		}
		err = s.exec(ctx,
			`SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), gen_random_uuid(), $1, '30 s',
			p_wait => true, p_session_ttl => $2)`, fmt.Sprintf("app-%d/reporter[%d]", 2+n%7, 900+n), ttl)
	}
	if err == nil {
		err = s.until(ctx, "the death of some", "SELECT count(*) = 14 FROM pglock.list_waiters('nightly-report') "+
			"WHERE NOT alive")
	}
	if err == nil {
		err = s.exec(ctx,
			`UPDATE pglock.waiters w SET enqueued_at = clock_timestamp() - interval '12 s' * (201 - o.n) + interval '8 s' FROM
			(SELECT ticket, row_number() OVER (ORDER BY ticket) AS n FROM pglock.waiters WHERE name = 'nightly-report') o WHERE w.ticket = o.ticket`)
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 41*time.Minute)
	}
	return err
}

// deadlock is of three programs that ask for their second lock without the context of their first lease.
func deadlock(ctx context.Context, s *Stage) error {
	labels := []string{"app-1/reporter[4711]", "app-2/billing[963]", "app-3/export[77]"}
	locks := []string{report, "invoices", "customers"}
	clients := make([]*pglock.Client, len(locks))
	for i, label := range labels {
		c, _, lease, err := s.holder(ctx, label, locks[i])
		if err == nil {
			err = s.heldFor(ctx, lease, time.Duration(20-i)*time.Minute)
		}
		if err != nil {
			return err
		}
		clients[i] = c
	}
	for i, c := range clients {
		wanted := locks[(i+1)%len(locks)]
		if err := s.wait(ctx, c, s.ctx, wanted); err != nil {
			return err
		}
		if err := s.waiting(ctx, wanted, time.Duration(12-i)*time.Minute); err != nil {
			return err
		}
	}
	return nil
}

// waits is of a program that asks for its second lock with the context of its first lease, as it should.
func waits(ctx context.Context, s *Stage) error {
	return waitsWith(ctx, s, (*pglock.Lease).Context)
}

// waitsUnsaid is of a program that asks for its second lock without that context: pglock does not know that it is the
// same line of work.
func waitsUnsaid(ctx context.Context, s *Stage) error {
	return waitsWith(ctx, s, func(*pglock.Lease) context.Context { return s.ctx })
}

func waitsWith(ctx context.Context, s *Stage, within func(*pglock.Lease) context.Context) error {
	c, _, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err != nil {
		return err
	}
	_, _, other, err := s.holder(ctx, "app-2/billing[963]", "invoices")
	if err == nil {
		err = s.heldFor(ctx, other, 20*time.Minute)
	}
	if err == nil {
		err = s.wait(ctx, c, within(lease), "invoices")
	}
	if err == nil {
		err = s.waiting(ctx, "invoices", 4*time.Minute)
	}
	if err == nil {
		err = s.queue(ctx, report, "app-3/reporter[77]")
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 5*time.Minute)
	}
	return err
}

// ownQueue is of a program that uses the lock in two goroutines.
func ownQueue(ctx context.Context, s *Stage) error {
	c, _, lease, err := s.holder(ctx, "app-1/reporter[4711]", report)
	if err == nil {
		err = s.wait(ctx, c, s.ctx, report)
	}
	if err == nil {
		err = s.waiting(ctx, report, 4*time.Minute)
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 5*time.Minute)
	}
	return err
}

// handedPast is of two programs that hand the lock to each other, three times in all, while a third one waits.
func handedPast(ctx context.Context, s *Stage) error {
	if err := s.exec(ctx, "SELECT pglock.set_history('alice@ops', 'all')"); err != nil {
		return err
	}
	labels := []string{"app-1/reporter[4711]", "app-2/reporter[963]"}
	holds, pool, lease, err := s.holder(ctx, labels[0], report)
	if err != nil {
		return err
	}
	waits, _, err := s.client(ctx, labels[1], pglock.WithDefaultTTL(30*time.Second))
	if err == nil {
		err = s.queue(ctx, report, "app-3/reporter[77]")
	}
	for n := range 3 {
		if err != nil {
			return err
		}
		next := make(chan *pglock.Lease, 1)
		c := waits
		s.wg.Go(func() {
			l, _ := c.Acquire(s.ctx, report)
			next <- l
		})
		err = s.until(ctx, "the next one's ticket", "SELECT count(*) = 2 FROM pglock.waiters WHERE name = $1", report)
		if err != nil {
			return err
		}
		if err = lease.HandOver(ctx, labels[(n+1)%2]); err != nil {
			return err
		}
		if lease = <-next; lease == nil {
			return ctx.Err()
		}
		holds, waits = waits, holds
	}
	if err = s.waiting(ctx, report, 4*time.Minute); err == nil {
		err = s.exec(ctx, "UPDATE pglock.installation SET history_since = history_since - interval '10 min'")
	}
	if err == nil {
		err = beat(ctx, lease, pool)
	}
	if err != nil {
		return err
	}
	return s.heldFor(ctx, lease, 3*time.Second)
}

// writerFirst is of readers that hold the lock, a writer that waits for them, and a reader behind it.
func writerFirst(ctx context.Context, s *Stage) error {
	for _, label := range []string{"app-1/reporter[4711]", "app-2/reporter[963]"} {
		_, _, lease, err := s.holder(ctx, label, report, pglock.WithShared())
		if err == nil {
			err = s.heldFor(ctx, lease, 5*time.Minute)
		}
		if err != nil {
			return err
		}
	}
	err := s.queue(ctx, report, "app-3/import[77]")
	if err != nil {
		return err
	}
	c, _, err := s.client(ctx, "app-4/reporter[78]")
	if err == nil {
		err = s.wait(ctx, c, s.ctx, report, pglock.WithShared())
	}
	if err == nil {
		err = s.waiting(ctx, report, 4*time.Minute)
	}
	return err
}

func limit(ctx context.Context, s *Stage) error {
	for _, label := range []string{"app-1/train[51]", "app-2/train[52]", "app-3/train[53]"} {
		_, _, lease, err := s.holder(ctx, label, "gpu", pglock.WithLimit(4))
		if err == nil {
			err = s.heldFor(ctx, lease, 3*time.Minute)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pooler is of a holder that gives its signs of life over connections which nobody can tell apart.
func pooler(ctx context.Context, s *Stage) error {
	err := s.exec(ctx, "SELECT pglock.acquire_lease('nightly-report', gen_random_uuid(), $1::text::uuid, "+
		"'app-1/reporter[4711]', '30 min')", pooled)
	if err == nil {
		err = s.silentFor(ctx, report, 3*time.Minute)
	}
	if err == nil {
		err = s.exec(ctx,
			"SELECT pglock.mark_connection($1::text::uuid, 0, 'app-1/reporter[4711]', 'v1.0.0', '30 min')", pooled)
	}
	return err
}

// pooled is the key of a session.
const pooled = "6f1c2a58-9d0e-4b7a-8c35-21d4e6f7a890"
