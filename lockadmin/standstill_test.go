package lockadmin_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/lockadmin"
)

// standstill stops the program before the COMMIT that follows a statement.
type standstill struct {
	after       string
	passed      atomic.Bool
	begun, over chan struct{}
}

func (s *standstill) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, s.after) {
		s.passed.Store(true)
	} else if q.SQL == "commit" && s.passed.CompareAndSwap(true, false) {
		close(s.begun)
		<-s.over
	}
	return ctx
}

func (*standstill) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A laptop that sleeps keeps its transaction open, and whoever needs what that has locked would wait for as long.
func TestI16_AToolThatStandsStillKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	prune := func(ctx context.Context, a *lockadmin.Admin) error {
		_, err := a.Prune(ctx, lockadmin.PruneOptions{Idle: new(time.Duration)})
		return err
	}
	record := func(ctx context.Context, a *lockadmin.Admin) error {
		_, err := a.SetHistory(ctx, lockadmin.HistoryChange{Level: lockadmin.HistoryAll})
		return err
	}
	const granted = `SELECT pglock.acquire_lease('a', gen_random_uuid(), gen_random_uuid(), 'one', '3 s')`
	for statement, tc := range map[string]struct {
		run   func(context.Context, *lockadmin.Admin) error
		waits string
	}{
		"prune_locks(":   {prune, granted},
		"prune_history(": {prune, `SELECT FROM pglock.installation FOR UPDATE`},
		"set_history(":   {record, granted},
	} {
		t.Run(statement, func(t *testing.T) {
			db := pgtest.Parallel(t)
			conn := db.Conn(t)
			grant(t, conn, "free", "one", "1 h", "").release(t, conn)
			execute(t, conn, `INSERT INTO pglock.events (kind, lock_name, token, at) VALUES ('takeover', 'a', 1, '2020-01-01')`)
			still := &standstill{after: statement, begun: make(chan struct{}), over: make(chan struct{})}
			admin := newAdmin(t, db.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = still }))
			done := make(chan error, 1)
			go func() { done <- tc.run(t.Context(), admin) }()
			<-still.begun
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			if _, err := conn.Exec(ctx, tc.waits); err != nil {
				t.Error(err)
			}
			close(still.over)
			// or transaction_timeout, which some functions lower from PostgreSQL 17 on
			if state := protocol.State(<-done); state != "25P03" && state != "25P04" {
				t.Errorf("it ended with SQLSTATE %q, want that of an idle transaction", state)
			}
		})
	}
}
