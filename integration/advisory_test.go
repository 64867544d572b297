package integration

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func init() {
	roles["bridge"] = func(ctx context.Context, url string, say func(report)) error {
		return holdBoth(ctx, url, say, 0)
	}
	roles["extended bridge"] = func(ctx context.Context, url string, say func(report)) error {
		return holdBoth(ctx, url, say, 4*bridgeTTL)
	}
}

const bridgeTTL = 1500 * time.Millisecond

// holdBoth holds the lock "x" and the advisory lock 1, for longer than the TTL if extended is not 0. After a gap that
// is longer than the TTL its first act is to ask whether it holds them; then it tries to write in both ways.
func holdBoth(ctx context.Context, url string, say func(report), extended time.Duration) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	bridge, err := advisory.New(c, advisory.Config{})
	if err != nil {
		return err
	}
	held, err := bridge.TryAcquire(ctx, "x", advisory.Bigint(1), pglock.WithTTL(bridgeTTL))
	if err != nil {
		return err
	}
	if extended > 0 {
		if _, err := held.Lease().Extend(ctx, extended); err != nil {
			return err
		}
	}
	last := time.Now() // before the report: the pause may begin at once
	say(report{Event: "held"})
	for {
		now := time.Now()
		if gap := now.Sub(last); gap > bridgeTTL {
			say(report{Event: "resumed", Valid: held.Err() == nil, Gap: gap})
			break
		}
		last = now
	}
	write := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO written VALUES (1)")
		return err
	}
	say(report{Event: "wrote", Err: fmt.Sprint(held.Write(ctx, write))})
	say(report{Event: "wrote", Err: fmt.Sprint(fencedstore.New(pool).Write(ctx, held.Lease(), write))})
	return nil
}

// lockInBackground has a session of an old program wait for the advisory lock 1; got returns when it has it.
func lockInBackground(t *testing.T, db *pgtest.DB, look *peer) (got func() (unlock func())) {
	t.Helper()
	old := newPeer(t, db.URL())
	answer := must.Go(func() error { _, err := old.Exec(t.Context(), "SELECT pg_advisory_lock(1)"); return err })
	old.awaitBlocked(t, look)
	return func() (unlock func()) {
		t.Helper()
		select {
		case err := <-answer:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatalf("the old program has waited %v in vain", patience)
		}
		return func() { old.exec(t, "SELECT pg_advisory_unlock(1)") }
	}
}

// A bridge whose process is stopped keeps the old program out until its lease has ended, and writes nothing when it
// goes on.
func TestAPausedBridgeLosesItsLeaseBeforeTheAdvisoryLock(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"bridge", "extended bridge"} {
		t.Run(role, func(t *testing.T) { t.Parallel(); pauseBridge(t, role) })
	}
}

func pauseBridge(t *testing.T, role string) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	look.exec(t, "CREATE TABLE written (n int)")
	p := startProcess(t, role, db.URL())
	p.await("held")
	const now = "SELECT clock_timestamp()"
	for since, asked := one[time.Time](t, look, now), 0; asked < 2; { // the first may have begun before it was extended
		pgtest.Eventually(t, "the bridge asks for its session", func() bool {
			const query = `SELECT l.expires_at > clock_timestamp(), (SELECT max(a.query_start) FROM pg_stat_activity a
				WHERE a.datname = current_database() AND a.query_start > $1
				AND a.query LIKE '%, pg_catalog.set_config(''idle_session_timeout''%' AND a.pid <> pg_backend_pid())
				FROM pglock.locks l WHERE l.name = 'x'`
			var held bool
			var began *time.Time
			must.Do(t, look.QueryRow(t.Context(), query, since).Scan(&held, &began))
			if !held { // it was slow, on a busy machine: begin anew
				p.signal(syscall.SIGKILL)
				look.exec(t, "SELECT pg_advisory_lock(1), pg_advisory_unlock(1)") // when its session has ended
				p = startProcess(t, role, db.URL())
				p.await("held")
				since, asked = one[time.Time](t, look, now), 0
				return false
			}
			if began != nil {
				since, asked = *began, asked+1
			}
			return began != nil
		})
	}
	got := lockInBackground(t, db, look)
	p.signal(syscall.SIGSTOP)
	stopped := time.Now()
	got()
	t.Logf("the old program had the lock %v after the pause began", time.Since(stopped))
	var expired bool
	const query = "SELECT expires_at < clock_timestamp() FROM pglock.locks WHERE name = 'x'"
	must.Do(t, look.QueryRow(t.Context(), query).Scan(&expired))
	if !expired {
		t.Error("the old program has the advisory lock while the paused one has the lease")
	}
	p.signal(syscall.SIGCONT)
	if r := p.await("resumed"); r.Valid {
		t.Errorf("after a pause of %v the process believes that it holds", r.Gap)
	}
	for range 2 {
		if r := p.await("wrote"); r.Err == "<nil>" {
			t.Error("the process writes after its pause")
		}
	}
	var none bool
	if err := look.QueryRow(t.Context(), "SELECT count(*) = 0 FROM written").Scan(&none); err != nil || !none {
		t.Errorf("a write after the pause is there: %v", err)
	}
}

// An old program has the lock of a bridge whose process was killed at once, and the next bridge after both.
func TestAKilledBridgeFreesTheAdvisoryLock(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	p := startProcess(t, "bridge", db.URL())
	p.await("held")
	got := lockInBackground(t, db, look)
	killed := time.Now()
	p.signal(syscall.SIGKILL)
	unlock := got()
	t.Logf("the old program had the lock %v after the kill", time.Since(killed))
	next := must.Get(advisory.New(newClient(t, newPool(t, db.URL())), advisory.Config{}))(t)
	if _, err := next.TryAcquire(t.Context(), "x", advisory.Bigint(1)); !errors.Is(err, pglock.ErrHeld) {
		t.Errorf("a bridge beside an old program: %v, want ErrHeld", err)
	}
	unlock()
	held := must.Get(next.Acquire(t.Context(), "x", advisory.Bigint(1)))(t)
	must.Note(t, held.Release(t.Context()))
}

// A bridge refuses a pooler, and works beside it over a connection to the server itself.
func TestABridgeRefusesAPooler(t *testing.T) {
	db := pgtest.Parallel(t)
	c := newClient(t, newPool(t, newPooler(t, db).url("exec")))
	through := must.Get(advisory.New(c, advisory.Config{}))(t)
	if _, err := through.TryAcquire(t.Context(), "x", advisory.Bigint(1)); !errors.Is(err, advisory.ErrPooler) {
		t.Errorf("a bridge through a pooler: %v, want ErrPooler", err)
	}
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	beside := must.Get(advisory.New(c, advisory.Config{ConnConfig: config}))(t)
	held := must.Get(beside.TryAcquire(t.Context(), "x", advisory.Bigint(1)))(t)
	must.Note(t, held.Release(t.Context()))
}

// A standby takes advisory locks without complaint, and they exclude nobody on the primary.
func TestABridgeRefusesAStandby(t *testing.T) {
	t.Parallel()
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	config := must.Get(pgx.ParseConfig(standby.url))(t)
	c := newClient(t, newPool(t, primary.url))
	bridge := must.Get(advisory.New(c, advisory.Config{ConnConfig: config}))(t)
	if _, err := bridge.TryAcquire(t.Context(), "x", advisory.Bigint(1)); !errors.Is(err, pglock.ErrReadOnly) {
		t.Errorf("a bridge to a standby: %v, want ErrReadOnly", err)
	}
	if !one[bool](t, newPeer(t, primary.url), "SELECT NOT EXISTS (SELECT FROM pglock.list_locks())") {
		t.Error("the lease is left")
	}
}

// A write over the session of the advisory lock whose wait for the synchronous standby was cancelled is not told as
// done.
func TestI17_CancelledStandbyWaitOfAnAdvisoryWriteIsUnknown(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	bridge := must.Get(advisory.New(newClient(t, newPool(t, server.URL())), advisory.Config{}))(t)
	// no renewal waits too
	held := must.Get(bridge.TryAcquire(t.Context(), "x", advisory.Bigint(1), pglock.WithTTL(10*time.Minute)))(t)
	again := held.Under(fencedstore.Fence{SameToken: true})
	write := func() error {
		return again.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO ledger VALUES (1)`)
			return err
		})
	}
	syncStandby(t, look, "nobody")
	done := must.Go(func() error { return write() })
	endCommit(t, look, "pg_cancel_backend")
	if err := <-done; !errors.Is(err, pglock.ErrOutcomeUnknown) {
		t.Errorf("I17: the write says %v", err)
	}
	syncStandby(t, look, "")
	if err := write(); err != nil || one[int](t, look, `SELECT count(*) FROM ledger`) != 2 {
		t.Errorf("the next write: %v", err)
	}
}
