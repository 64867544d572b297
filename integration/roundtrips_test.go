package integration

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// countingConn counts how often its side begins to speak after the other side has spoken: the round trips.
type countingConn struct {
	net.Conn
	trips    *atomic.Int64
	speaking atomic.Bool
}

func (c *countingConn) Write(p []byte) (int, error) {
	if !c.speaking.Swap(true) {
		c.trips.Add(1)
	}
	return c.Conn.Write(p)
}

func (c *countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.speaking.Store(false)
	}
	return n, err
}

// Try, check, renew and release are one round trip each, at every default isolation, and the fence adds none to a
// transaction: BEGIN travels with the fence, and COMMIT with the last check.
func TestOperationsAreOneRoundTripEach(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			db := pgtest.Database(t)
			var trips atomic.Int64
			pool := db.Pool(t, oneConnection, withDefault("default_transaction_isolation", string(level)),
				func(c *pgxpool.Config) {
					// that would be one more
					c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
					c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
						conn, err := new(net.Dialer).DialContext(ctx, network, address)
						return &countingConn{Conn: conn, trips: &trips}, err
					}
				})
			c, store := newClient(t, pool), fencedstore.New(pool)
			var lease *pglock.Lease
			steps := []struct {
				what string
				want int64
				call func() error
			}{
				{"TryAcquire", 1, func() (err error) { lease, err = c.TryAcquire(t.Context(), "x"); return err }},
				{"Check", 1, func() error { _, err := lease.Check(t.Context()); return err }},
				{"Renew", 1, func() error { return hooks.Of(lease).Renew(t.Context()) }},
				{"Write with one statement", 3, func() error {
					return store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true},
						func(ctx context.Context, tx pgx.Tx) error {
							_, err := tx.Exec(ctx, `SELECT 1`)
							return err
						})
				}},
				{"Release", 1, func() error { return lease.Release(t.Context()) }},
			}
			for _, round := range []string{"preparing", "counted"} { // each statement is prepared once a connection
				for _, s := range steps {
					before := trips.Load()
					if err := s.call(); err != nil {
						t.Fatalf("%s: %v", s.what, err)
					}
					if n := trips.Load() - before; round == "counted" && n != s.want {
						t.Errorf("%s took %d round trips, want %d", s.what, n, s.want)
					}
				}
			}
		})
	}
}
