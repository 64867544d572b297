package advisory_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/advisory"
)

// A release where nobody answers, neither for the session nor for the lease, keeps one limit for both.
func TestAReleaseInSilenceKeepsOneLimit(t *testing.T) {
	t.Parallel()
	for limit, limited := range map[time.Duration]func(context.Context) (context.Context, context.CancelFunc){
		time.Second: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Second)
		},
		5 * time.Second: context.WithCancel,
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			var cut atomic.Bool
			silent := s.cuttable(&cut)
			dialed := make(chan net.Conn, 100)
			s.pool = s.db.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
					conn, err := silent.DialFunc(ctx, network, address)
					if err == nil {
						dialed <- conn
					}
					return conn, err
				}
			})
			h, err := s.bridge().Acquire(t.Context(), "x", advisory.Bigint(1))
			if err != nil {
				t.Fatal(err)
			}
			cut.Store(true)
			ctx, cancel := limited(t.Context())
			defer cancel()
			began := time.Now()
			err = h.Release(ctx)
			took := time.Since(began)
			cut.Store(false)
			for len(dialed) > 0 { // what comes after the test need not wait
				_ = (<-dialed).Close()
			}
			if err == nil || took > limit+3*time.Second || h.Lease().Err() == nil { // the rest is for a busy machine
				t.Errorf("it took %v: %v; the lease: %v", took, err, h.Lease().Err())
			}
		})
	}
}
