package metrics_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/metrics"
)

func TestALockedHistoryKeepsTheNumbers(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	fleet(t, conn)
	var failures []error
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{Timeout: 6 * time.Second,
		OnError: func(err error) { failures = append(failures, err) }})
	scrape(t, c)
	execute(t, conn, `SELECT pglock.break_lock('orders', 'because', 'me')`)
	execute(t, conn, `BEGIN; LOCK TABLE pglock.events`)
	want(t, scrape(t, c), map[string]float64{"pglock_up": 1, "pglock_leases": 5,
		`pglock_events_total{kind="break"}`: 0})
	if len(failures) != 1 || !errors.Is(failures[0], context.DeadlineExceeded) {
		t.Errorf("errors %v, want one of the second scrape", failures)
	}
	execute(t, conn, `COMMIT`)
	want(t, scrape(t, c), map[string]float64{"pglock_up": 1, "pglock_leases": 5,
		`pglock_events_total{kind="break"}`: 1})
}

// A standby knows less than its primary, and a restored copy less than what it is a copy of.
func TestTheCountOfTokensDoesNotFallWithTheSequence(t *testing.T) {
	db := pgtest.Parallel(t)
	conn := db.Conn(t)
	c := newCollector(t, newAdmin(t, db.Pool(t)), metrics.Config{})
	for _, step := range []struct{ drawn, want float64 }{{1000, 0}, {1010, 10}, {900, 10}, {907, 17}, {907, 17}} {
		execute(t, conn, `SELECT setval('pglock.fencing_token_seq', $1)`, int64(step.drawn))
		if got := scrape(t, c)["pglock_tokens_total"]; got != step.want {
			t.Errorf("after token %v: %v tokens, want %v", step.drawn, got, step.want)
		}
	}
}
