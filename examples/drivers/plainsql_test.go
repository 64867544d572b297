package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/lib/pq"

	"github.com/pglock-dev/pglock/examples/drivers"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// plainDeposit pays 60 into the account with SQL functions alone, and calls last before its end.
func plainDeposit(ctx context.Context, db *sql.DB, g drivers.Grant, last func() error) error {
	return g.Write(ctx, db, func(tx *sql.Tx) error {
		for _, amount := range []int{10, 20, 30} {
			if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount,
				16); err != nil {
				return err
			}
		}
		return last()
	})
}

// plain opens the scene's database with lib/pq and acquires the lock with SQL functions alone.
func plain(t *testing.T) (*scene, *sql.DB, drivers.Grant) {
	t.Helper()
	s := newScene(t)
	db := openSQL(t, "postgres", s.url)
	g := must.Get(drivers.Acquire(t.Context(), db, s.lock, "lib/pq alone", "60 s"))(t)
	return s, db, g
}

// stops fails the test unless err has the SQLSTATE and the DETAIL and tells the holder to stop.
func stops(t *testing.T, err error, code, detail string) {
	t.Helper()
	var refused *pq.Error
	if !errors.Is(err, drivers.ErrStop) || !errors.As(err, &refused) || string(refused.Code) != code ||
		refused.Detail != detail {
		t.Errorf("the server answered %v, want %s with DETAIL %s", err, code, detail)
	}
}

func TestLockOfASQLProgramExcludesGoClientsUntilItIsReleased(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	if _, err := drivers.Acquire(t.Context(), db, s.lock, "another", "60 s"); !errors.Is(err, drivers.ErrHeld) {
		t.Errorf("the second Acquire answered %v, want %v", err, drivers.ErrHeld)
	}
	if err := g.Renew(t.Context(), db); err != nil {
		t.Error(err)
	}
	must.Do(t, plainDeposit(t.Context(), db, g, nothing))
	s.has(t, 60)
	if err := g.Release(t.Context(), db); err != nil {
		t.Error(err)
	}
	s.succeed(t)
	s.has(t, 1060)
}

// Whoever waits without looking hears of the release through its announcement alone.
func TestI8_ReleaseOfASQLProgramIsAnnouncedToTheNextInTheQueue(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	listener := must.Get(s.pool.Acquire(t.Context()))(t)
	defer listener.Release()
	key, channel := uuid.New(), ""
	if err := listener.QueryRow(t.Context(), `SELECT 'pglock_' || left(encode(sha256(uuid_send($1)), 'hex'), 32)`,
		key).Scan(&channel); err != nil {
		t.Fatal(err)
	}
	for _, query := range []string{
		`LISTEN "` + channel + `"`,
		`SELECT pglock.acquire_lease('` + s.lock + `', gen_random_uuid(), '` + key.String() + `', 'waits', '30 s',
			p_wait => true, p_session_ttl => '1 min')`,
	} {
		must.Get(listener.Exec(t.Context(), query))(t)
	}
	must.Do(t, g.Release(t.Context(), db))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := listener.Conn().WaitForNotification(ctx); err != nil {
		t.Errorf("nothing was announced: %v", err)
	}
}

// The lock is watched, so its grant and its release are announced.
func TestGrantAndReleaseOfASQLProgramStandIfTheirAnnouncementFails(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	must.Get(s.pool.Exec(t.Context(), `SELECT pglock.watch($1, '1 min')`, s.lock))(t)
	must.Get(s.pool.Exec(t.Context(), `ALTER FUNCTION pglock.announce RENAME TO unannounced`))(t)
	db := openSQL(t, "postgres", s.url)
	g, err := drivers.Acquire(t.Context(), db, s.lock, "lib/pq alone", "60 s")
	if err != nil {
		t.Fatalf("the grant was thrown away: %v", err)
	}
	if err := plainDeposit(t.Context(), db, g, nothing); err != nil {
		t.Error(err)
	}
	if err := g.Release(t.Context(), db); err != nil {
		t.Error(err)
	}
	if _, err := drivers.Acquire(t.Context(), db, s.lock, "another", "60 s"); err != nil {
		t.Error(err)
	}
	s.has(t, 60)
}

func TestI3_OvertakenSQLProgramIsToldWhichTokenStandsAtTheFence(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	last := s.overtake(t)
	stops(t, plainDeposit(t.Context(), db, g, nothing), "LK002", fmt.Sprintf("last_token=%d", last))
	s.has(t, 1000)
}

func TestI3_SQLProgramWritesOnceForEachGrant(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	must.Do(t, plainDeposit(t.Context(), db, g, nothing))
	if err := plainDeposit(t.Context(), db, g, nothing); !errors.Is(err, drivers.ErrStop) {
		t.Errorf("the second write answered %v, want %v", err, drivers.ErrStop)
	}
	s.has(t, 60)
}

func TestI10_BrokenSQLProgramIsRefusedByEveryFunction(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	s.breakLock(t)
	if err := g.Renew(t.Context(), db); !errors.Is(err, drivers.ErrStop) || !strings.HasSuffix(err.Error(), "broken") {
		t.Errorf("the renewal answered %v, want %v that says broken", err, drivers.ErrStop)
	}
	stops(t, plainDeposit(t.Context(), db, g, nothing), "LK003", "reason=broken")
	if err := g.Release(t.Context(), db); !errors.Is(err, drivers.ErrStop) {
		t.Errorf("the release answered %v, want %v", err, drivers.ErrStop)
	}
	s.has(t, 0)
}

func TestI10_SQLProgramBrokenInsideItsTransactionIsRefusedAtCommit(t *testing.T) {
	t.Parallel()
	s, db, g := plain(t)
	reached := false
	err := plainDeposit(t.Context(), db, g, func() error {
		s.breakLock(t)
		reached = true
		return nil
	})
	if !reached {
		t.Fatalf("the transaction did not come as far as its COMMIT: %v", err)
	}
	stops(t, err, "LK003", "reason=broken")
	s.has(t, 0)
}

func TestI4_ExpiredSQLProgramIsRefusedAtTheFence(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	db := openSQL(t, "postgres", s.url)
	g := must.Get(drivers.Acquire(t.Context(), db, s.lock, "lib/pq alone", "100 ms"))(t)
	s.eventually(t, "the lease to run out", `SELECT expires_at <= clock_timestamp() FROM pglock.get_lock($1)`, s.lock)
	stops(t, plainDeposit(t.Context(), db, g, nothing), "LK001", "reason=expired")
	s.has(t, 0)
}
