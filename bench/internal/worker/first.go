package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// firsts is W6: one caller acquires over a new connection, with a new client, again and again. The lock was used
// before.
func firsts(_ context.Context, client peer.Client, o Order) (loop, error) {
	starter, ok := client.(peer.Starter)
	if !ok {
		return nil, fmt.Errorf("peer %s has no first grants", o.Peer)
	}
	return func(ctx context.Context, w Window) (Result, error) {
		var fromConnected []time.Duration
		once := func(context.Context) (time.Time, error) {
			f, err := starter.First(ctx, o.Name)
			if err != nil {
				return time.Time{}, err
			}
			if w.has(f.Granted) {
				fromConnected = append(fromConnected, f.Granted.Sub(f.Connected))
			}
			return f.Granted, f.End(ctx)
		}
		r, err := repeat(ctx, client, w, []turn{once})
		r.FromConnected = fromConnected
		return r, err
	}, nil
}
