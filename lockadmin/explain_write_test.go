package lockadmin_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// Two holders hand the lock to each other, and a third program waits since before.
func TestExplainSaysThatTheLockIsHandedPastWhoWaits(t *testing.T) {
	t.Parallel()
	for level, want := range map[lockadmin.HistoryLevel]string{
		lockadmin.HistoryLosses: "Since then it was handed over past third (HandOver). " +
			"The history does not say how often: at level all it would.",
		lockadmin.HistoryAll: "Since then it was handed over 2 times (HandOver), also past third.",
	} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t).Pool(t)
			admin := newAdmin(t, pool)
			must.Get(admin.SetHistory(t.Context(), lockadmin.HistoryChange{Level: level}))(t)
			c, lease := hold(t, pool, "report", pglock.WithTTL(time.Minute))
			grants := map[string]chan *pglock.Lease{}
			waits := func(who string, n int) {
				t.Helper()
				grants[who] = make(chan *pglock.Lease, 1)
				go func() {
					l, _ := c.Acquire(t.Context(), "report", pglock.WithTTL(time.Minute), pglock.WithHolder(who))
					grants[who] <- l
				}()
				pgtest.Eventually(t, "the ticket of "+who, func() bool {
					all, err := lists.All(admin.Waiters(t.Context(), lockadmin.WaitersQuery{Lock: "report"}))
					return err == nil && len(all) == n
				})
			}
			explained := func() lockadmin.Explanation {
				t.Helper()
				e := must.Get(admin.Explain(t.Context(), "report"))(t)
				return e
			}
			waits("third", 1)
			waits("other", 2)
			if e := explained(); e.Verdicts[0].Kind != "slow" || e.Queue.HandedPast {
				t.Errorf("before the first hand-over: %+v", e.Verdicts[0])
			}
			for _, next := range []string{"other", "another"} {
				if next == "another" {
					waits(next, 2)
				}
				must.Do(t, lease.HandOver(t.Context(), next))
				lease = <-grants[next]
			}
			e := explained()
			if v := e.Verdicts[0]; v.Kind != "handed past" || v.Severity != lockadmin.SeverityNote ||
				!strings.Contains(v.Text, want) || strings.Contains(v.Because, "in order") {
				t.Errorf("%s, %s: %s %s; want %q", v.Kind, v.Severity, v.Text, v.Because, want)
			}
			must.Do(t, lease.Release(t.Context()))
			if third := <-grants["third"]; third == nil {
				t.Error("the third one has no lease")
			}
			if e := explained(); e.Verdicts[0].Kind != "held" {
				t.Errorf("when the first in the queue has got it: %+v", e.Verdicts[0])
			}
		})
	}
}

// A write waits for a row. Explain says how much of its time is left, not how much of the lease, which is renewed all
// the while: so the write fails when Explain has said, at the latest, and not long before.
func TestWhatIsLeftOfAWritesTimeIsWhatTheServerLeavesIt(t *testing.T) {
	t.Parallel()
	const ttl = 5 * time.Second
	db := pgtest.Database(t)
	pool, conn := db.Pool(t), db.Conn(t)
	admin := newAdmin(t, pool)
	execute(t, conn, "CREATE TABLE accounts (id int PRIMARY KEY); INSERT INTO accounts VALUES (16)")
	_, lease := hold(t, pool, "report", pglock.WithTTL(ttl))
	blocker := must.Get(conn.Begin(t.Context()))(t)
	defer blocker.Rollback(t.Context()) //nolint:errcheck // the test is over
	must.Get(blocker.Exec(t.Context(), "DELETE FROM accounts"))(t)
	over := make(chan error, 1)
	go func() {
		over <- fencedstore.New(pool).Write(t.Context(), lease, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "DELETE FROM accounts")
			return err
		})
	}()
	var left time.Duration
	var asked, told time.Time
	says := regexp.MustCompile(`\(in (\S+) at the latest, unless its program has given it more time than its lease of 5s\)`)
	pgtest.Eventually(t, "a verdict about the write, whose lease has been renewed", func() bool {
		asked = time.Now()
		e, err := admin.Explain(t.Context(), "report")
		told = time.Now()
		if err != nil {
			t.Fatal(err)
		}
		v := e.Verdicts[0]
		m := says.FindStringSubmatch(v.IfNothing)
		if v.Kind != "blocked" || m == nil || !e.Holders[0].Renewed {
			return false
		}
		left, err = time.ParseDuration(m[1])
		return err == nil && left < e.Holders[0].Remaining-time.Second/4
	})
	if err := <-over; !errors.Is(err, fencedstore.ErrTimeLimit) {
		t.Errorf("the write: %v, want ErrTimeLimit", err)
	}
	// The server ends a wait for a lock a twentieth sooner, and what is said is rounded.
	if took := time.Since(asked); time.Since(told) > left+3*time.Second || took < left-time.Second/2 {
		t.Errorf("the write failed after %v, and %v had been left", took, left)
	}
}
