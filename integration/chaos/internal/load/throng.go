//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// ThrongSession is the session's TTL of the clients of a throng. They look at their tickets accordingly seldom.
const ThrongSession = 6 * time.Second

// between is how long a client of a throng comes after the one before.
const between = 20 * time.Millisecond

// throng has N clients, each a session of its own, ask for one lock. The first keeps it until all have asked; then they
// write one after the other.
func (w *worker) throng(ctx context.Context, o Order) {
	over := history.Event{Kind: history.Thronged, Class: history.Idle}
	defer func() { over.At = history.Now(); w.out.say(over) }()
	if !w.big.TryLock() {
		return
	}
	defer w.big.Unlock()
	n := w.storms.Add(1)
	pool, err := w.newPool(ctx, 8, w.Label)
	if err != nil {
		return
	}
	defer pool.Close()
	over.Class = ""
	const name = "throng"
	queued, free := context.WithCancel(ctx)
	defer free()
	var all sync.WaitGroup
	for i := range o.N {
		as := fmt.Sprintf("%s+throng%d.%d", w.Label, n, i)
		r := rand.New(rand.NewPCG(w.Seed, uint64(w.id())))
		all.Go(func() {
			client, err := w.newClient(ctx, pool, as, pglock.WithSessionTTL(ThrongSession))
			if err != nil {
				return
			}
			defer w.closeClient(client, as, []string{name})
			q := request{how: "throng", names: []string{name}, mode: pglock.ModeExclusive, ttl: o.TTL, patience: o.For}
			w.call(ctx, client, as, q, func(ctx context.Context, hands []*hand) {
				for queued.Err() == nil && hold(queued, hands, time.Second) {
				}
				w.write(ctx, r, write{how: "Write, throng", places: []place{cell(name)}, hands: hands})
			})
		})
		sleep(ctx, between) // each connects twice, which takes the server a while
	}
	free()
	all.Wait()
}
