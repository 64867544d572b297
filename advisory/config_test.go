package advisory_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// What an application has set for the ends of contexts and for notifications is not for a session of the bridge: it
// ends its waiting at once when a Write wants the session, or when it must ask whether the lock is held.
func TestASessionHeedsContextsWhateverTheApplicationHasSet(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	var heard []string
	patient := func(c *pgx.ConnConfig) {
		c.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
			return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: time.Minute}
		}
		c.OnNotification = func(_ *pgconn.PgConn, n *pgconn.Notification) { heard = append(heard, n.Channel) }
	}
	direct := must.Get(pgx.ParseConfig(s.db.URL()))(t)
	patient(direct)
	plain := s.bridgeBy(direct)
	s.pool = s.db.Pool(t, func(c *pgxpool.Config) { patient(c.ConnConfig) })
	for i, b := range []*advisory.Bridge{plain, s.bridge()} {
		h := s.hold(b, []string{"direct", "pool"}[i], advisory.Bigint(int64(i)))
		for range 2 { // the first may come before the session listens
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			write := h.Under(fencedstore.Fence{SameToken: true}).Write
			err := write(ctx, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "LISTEN x; NOTIFY x")
				return err
			})
			cancel()
			if err != nil {
				t.Errorf("a write through a session of %s: %v", h.Lease().Name(), err)
			}
			time.Sleep(50 * time.Millisecond) // the session listens by then, at best
		}
		if len(heard) > 0 {
			t.Errorf("the application has heard %q of a session of %s", heard, h.Lease().Name())
		}
	}
}
