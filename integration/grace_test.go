package integration

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// letIn is what a waiting call came back with, when, and whether the holder before believed in its lease yet.
type letIn struct {
	before, lease *pglock.Lease
	err           error
	at            time.Time
	believed      bool
}

// A failover has lost a grant of one lock and a renewal of another. Their holder, which reaches nobody, believes in
// both. A request without a grace gets the lock meanwhile. A request with a grace of the TTL gets it only when the
// holder no longer believes: that long after the first grant on the new primary noticed the failover, by the server's
// clock.
func TestI22_GraceAfterAFailoverOutlivesEveryLostGrant(t *testing.T) {
	pgtest.Long(t, "TestI1_GraceAfterAnExpiryKeepsTheLockFromEverybody")
	t.Parallel() // it has servers of its own
	const ttl = 8 * time.Second
	const grace = ttl
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	old := newClient(t, newPool(t, primary.url), pglock.WithDefaultTTL(ttl)) // is never told of another server
	holds := func(name string) *pglock.Lease {
		l := must.Get(old.TryAcquire(t.Context(), name))(t)
		return l
	}
	renewed := holds("renewed")
	standby.catchUp(t, newPeer(t, primary.url))
	standby.cutOff(t)
	lost, bare := holds("lost"), holds("bare")
	for _, l := range []*pglock.Lease{renewed, lost, bare} {
		must.Do(t, hooks.Of(l).Renew(t.Context()))
	}
	must.Do(t, primary.Kill())
	look := standby.promote(t)
	var noticed time.Time // by the server's clock, which is that of this machine

	c := newClient(t, newPool(t, standby.url), pglock.WithDefaultTTL(2*time.Second))
	checkRefused := func(when string) {
		t.Helper()
		_, err := c.TryAcquire(t.Context(), "tried", pglock.WithGrace(grace))
		noticed = one[time.Time](t, look, `SELECT coalesce(timeline_since, 'epoch') FROM pglock.installation`)
		d, over := time.Since(noticed), noticed.Add(grace)
		var held *pglock.HeldError
		switch {
		case d >= grace:
			t.Logf("%s, %v have passed since the failover was noticed: it is too late to be refused", when, d)
		case !errors.Is(err, pglock.ErrHeld) || !errors.As(err, &held) || held.Token != 0:
			t.Errorf("%s, %v after the failover was noticed, TryAcquire answered %v", when, d, err)
		case held.ExpiresAt.Before(over) || held.ExpiresAt.Sub(over) > grace/2:
			t.Errorf("%s the grace is said to end at %v, not at %v", when, held.ExpiresAt, over)
		}
	}
	checkRefused("by the grant that notices")
	if l, err := c.TryAcquire(t.Context(), "bare"); err != nil || l.Token() <= bare.Token() {
		t.Fatalf("without a grace: %v, %v, after token %d", l, err, bare.Token())
	}
	if !bare.Valid() || !lost.Valid() || !renewed.Valid() {
		t.Fatalf("the failover took longer than %v: nothing is shown", ttl)
	}
	got := make(chan letIn, 2)
	for _, l := range []*pglock.Lease{lost, renewed} {
		go func() {
			f := letIn{before: l}
			f.lease, f.err = c.Acquire(t.Context(), l.Name(), pglock.WithGrace(grace), pglock.WithMaxWait(patience))
			f.at, f.believed = time.Now(), l.Valid()
			got <- f
		}()
	}
	pgtest.Eventually(t, "the lost lock to be held while the grace is sat out", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.list_locks() WHERE name = 'lost' AND token > $1`,
			int64(lost.Token())) == 1
	})
	var held *pglock.HeldError
	if _, err := c.TryAcquire(t.Context(), "lost"); !errors.As(err, &held) || held.Token <= lost.Token() {
		t.Errorf("somebody without a grace came between: %v", err)
	}
	select {
	case <-lost.Context().Done(): // before the grace is over: by a twentieth of the TTL, and what the failover took
		checkRefused("when the holder has noticed")
	case <-time.After(patience):
		t.Fatal("the holder of a lost grant believes in it")
	}
	for range 2 {
		f := <-got
		if f.err != nil {
			t.Fatal(f.err)
		}
		waited, margin := f.at.Sub(noticed), f.at.Sub(f.before.Deadline())
		t.Logf("%q was let in %v after the failover was noticed, %v after its old holder had stopped", f.before.Name(),
			waited, margin)
		if f.believed || margin < ttl/20 {
			t.Errorf("I1: %q was let in %v after its old holder had stopped", f.before.Name(), margin)
		}
		if waited < grace {
			t.Errorf("%q was let in %v after the failover was noticed, within the grace", f.before.Name(), waited)
		}
		if f.lease.Token() <= f.before.Token() || !f.lease.Valid() {
			t.Errorf("I22: token %d after token %d: %v", f.lease.Token(), f.before.Token(), f.lease.Err())
		}
	}
	if l, err := c.TryAcquire(t.Context(), "tried", pglock.WithGrace(grace)); err != nil {
		t.Errorf("after the grace: %v, %v", l, err)
	}
}

// graceOf is the grace in the tests without a failover; leases have a TTL of a second.
const graceOf = 6 * time.Second

func init() { roles["graceful holder"] = holdWithGrace }

// holdWithGrace takes the lock "x" with a grace, and keeps it.
func holdWithGrace(ctx context.Context, url string, say func(report)) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	lease, err := c.TryAcquire(ctx, "x", pglock.WithTTL(time.Second), pglock.WithGrace(graceOf))
	if err != nil {
		return err
	}
	say(report{Event: "granted", Token: int64(lease.Token())})
	<-lease.Context().Done()
	return context.Cause(lease.Context())
}

// A holder that renews no more, being dead or cut off, is followed when its lease and the grace have passed by the
// server's clock; it has stopped when the lease alone had.
func TestI1_GraceAfterAnExpiryKeepsTheLockFromEverybody(t *testing.T) {
	t.Parallel() // most of it is waiting for leases to end
	for _, how := range []string{"killed", "cut off"} {
		t.Run(how, func(t *testing.T) {
			db := pgtest.Parallel(t)
			look := newPeer(t, db.URL())
			c := newClient(t, db.Pool(t), pglock.WithDefaultGrace(graceOf))
			var stop func()
			stopped := func() bool { return true }
			if how == "killed" {
				holder := startProcess(t, "graceful holder", db.URL())
				holder.await("granted")
				stop = func() { holder.signal(syscall.SIGKILL) }
			} else {
				line := newLine(t, db.URL())
				l := must.Get(newClient(t, newPool(t, line.url)).TryAcquire(t.Context(), "x",
					pglock.WithTTL(time.Second),
					pglock.WithGrace(graceOf)))(t)
				stop, stopped = func() { line.cut(t, "upstream") }, func() bool { return !l.Valid() }
			}
			got := make(chan fetched, 1)
			acquireInBackground(t.Context(), c, 0, "x", got)
			awaitQueue(t, look, "x", 1)
			stop()
			pgtest.Eventually(t, "the lease without its grace to end", func() bool {
				return one[bool](t, look,
					`SELECT renewed_at + interval '1 s' <= clock_timestamp() FROM pglock.locks WHERE name = 'x'`)
			})
			if !stopped() {
				t.Error("I1: the holder believes in its lease when it has ended but for the grace")
			}
			token, renewed := int64(0), time.Time{}
			if err := look.QueryRow(t.Context(),
				`SELECT token, renewed_at FROM pglock.locks WHERE name = 'x'`).Scan(&token, &renewed); err != nil {
				t.Fatal(err)
			}
			var held *pglock.HeldError
			if _, err := c.TryAcquire(t.Context(), "x"); !errors.As(err, &held) || int64(held.Token) != token ||
				held.ExpiresAt.Sub(renewed).Round(time.Millisecond) != time.Second+graceOf {
				t.Errorf("in the grace of token %d, which was renewed at %v: %v", token, renewed, err)
			}
			next := served(t, got)
			at := one[time.Time](t, look, `SELECT acquired_at FROM pglock.locks WHERE name = 'x' AND token = $1`,
				int64(next.Token()))
			t.Logf("granted %v after the end of the lease", at.Sub(renewed.Add(time.Second)))
			if at.Sub(renewed) < time.Second+graceOf {
				t.Errorf("I1: granted %v after the last renewal", at.Sub(renewed))
			}
			if next.Token() <= pglock.Token(token) || !next.Valid() {
				t.Errorf("token %d after token %d: %v", next.Token(), token, next.Err())
			}
		})
	}
}

// A release and a break end the grace with the lease, and a server that has never failed over asks for none.
func TestGraceDoesNotDelayAReleaseOrABreak(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	c := newClient(t, db.Pool(t), pglock.WithDefaultGrace(time.Hour)) // far beyond every patience
	admin := newAdmin(t, db.Pool(t))
	ends := map[string]func(*pglock.Lease) error{
		"release": func(l *pglock.Lease) error { return l.Release(t.Context()) },
		"break": func(l *pglock.Lease) error {
			_, err := admin.Break(t.Context(), l.Name(), "stuck", lockadmin.BreakOptions{Token: new(l.Token())})
			return err
		},
	}
	for how, end := range ends {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		first, err := c.TryAcquire(ctx, how)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan fetched, 1)
		acquireInBackground(ctx, c, 0, how, got)
		awaitQueue(t, look, how, 1)
		must.Do(t, end(first))
		f := await(t, got)
		if f.err != nil {
			t.Fatalf("after a %s: %v", how, f.err)
		}
		must.Do(t, end(f.lease))
		if _, err := c.TryAcquire(ctx, how); err != nil {
			t.Errorf("TryAcquire after a %s: %v", how, err)
		}
	}
}
