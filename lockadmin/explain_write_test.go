package lockadmin_test

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// A write waits for a row. Explain says how much of its time is left, not how much of the lease, which is renewed all the
// while: so the write fails when Explain has said, at the latest, and not long before.
func TestWhatIsLeftOfAWritesTimeIsWhatTheServerLeavesIt(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	db := pgtest.Database(t)
	pool, conn := db.Pool(t), db.Conn(t)
	admin := newAdmin(t, pool)
	execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY); INSERT INTO accounts VALUES (16)")
	_, lease := hold(t, pool, "report", pglock.WithTTL(ttl))
	blocker, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer blocker.Rollback(t.Context()) //nolint:errcheck // the test is over
	if _, err := blocker.Exec(t.Context(), "DELETE FROM accounts"); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		over <- fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "DELETE FROM accounts")
			return err
		})
	}()
	var left time.Duration
	var asked time.Time
	says := regexp.MustCompile(`\(in (\S+) at the latest, unless its program has given it more time than its lease of 3s\)`)
	pgtest.Eventually(t, "a verdict about the write, whose lease has been renewed", func() bool {
		asked = time.Now()
		e, err := admin.Explain(t.Context(), "report")
		if err != nil {
			t.Fatal(err)
		}
		v := e.Verdicts[0]
		m := says.FindStringSubmatch(v.IfNothing)
		if v.Kind != lockadmin.WhyBlocked || m == nil || !e.Holders[0].Renewed {
			return false
		}
		left, err = time.ParseDuration(m[1])
		return err == nil && left < e.Holders[0].Remaining-time.Second/4
	})
	if err := <-over; !errors.Is(err, fencedstore.ErrTimeLimit) {
		t.Errorf("the write: %v, want ErrTimeLimit", err)
	}
	// The server ends a wait for a lock a twentieth sooner, and what is said is rounded.
	if took := time.Since(asked); took > left+time.Second || took < left-time.Second/2 {
		t.Errorf("the write failed after %v, and %v had been left", took, left)
	}
}
