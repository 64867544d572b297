//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// briefTTLs are those of the short leases beside a crowd of long ones.
var briefTTLs = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond}

// crowd has one client keep N long leases, and beside them short ones, each for some of its TTLs, for as long as said.
func (w *worker) crowd(ctx context.Context, o Order) {
	over := history.Event{Kind: history.Crowded, Class: history.Idle}
	defer func() { over.At = history.Now(); w.out.say(over) }()
	if !w.big.TryLock() {
		return
	}
	defer w.big.Unlock()
	as := fmt.Sprintf("%s+crowd%d", w.Label, w.storms.Add(1))
	pool, err := w.newPool(ctx, 4, w.Label)
	if err != nil {
		return
	}
	defer pool.Close()
	client, err := w.newClient(ctx, pool, as)
	if err != nil {
		return
	}
	defer w.closeClient(client, as, nil)
	free, release := context.WithCancel(ctx)
	defer release()
	var holding, asking sync.WaitGroup
	for i := range o.N {
		q := request{how: "long", names: []string{fmt.Sprintf("%s %d", as, i)}, mode: pglock.ModeExclusive, ttl: o.TTL,
			patience: 10 * time.Second}
		asking.Add(1)
		asked := sync.OnceFunc(asking.Done)
		holding.Go(func() {
			defer asked()
			w.call(context.WithoutCancel(ctx), client, as, q, func(_ context.Context, hands []*hand) {
				asked()
				<-free.Done()
			})
		})
	}
	asking.Wait()
	over.Class = ""
	brief, cancel := context.WithTimeout(ctx, o.For)
	defer cancel()
	var short sync.WaitGroup
	short.Go(func() { w.pulse(brief, as+" pulse") })
	for i, ttl := range briefTTLs {
		r := rand.New(rand.NewPCG(w.Seed, uint64(w.id())))
		short.Go(func() {
			for brief.Err() == nil {
				q := request{how: history.Brief, names: []string{fmt.Sprintf("%s brief %d", as, i)},
					mode: pglock.ModeExclusive, ttl: ttl, patience: 2 * time.Second}
				w.call(ctx, client, as, q, func(_ context.Context, hands []*hand) {
					hold(brief, hands, upTo(r, 10*ttl))
				})
				sleep(brief, upTo(r, 50*time.Millisecond))
			}
		})
	}
	short.Wait()
	release()
	holding.Wait()
}

const (
	late     = 15 * time.Millisecond // from then on a pulse says that something took long
	pulseTTL = 5 * time.Second
)

// pulse says whenever this process did not run for a moment, or a client beside the crowd that has only one lease took
// long to renew it: that may cost a short lease.
func (w *worker) pulse(ctx context.Context, as string) {
	say := func(from history.Time, allowed time.Duration) history.Time {
		now := history.Now()
		if now.Sub(from) > allowed+late {
			w.out.say(history.Event{Kind: history.Late, From: from.Add(allowed), At: now})
		}
		return now
	}
	var ticks sync.WaitGroup
	defer ticks.Wait()
	ticks.Go(func() {
		const pause = 5 * time.Millisecond
		for last := history.Now(); ctx.Err() == nil; last = say(last, pause) {
			sleep(ctx, pause)
		}
	})
	pool, err := w.newPool(ctx, 2, w.Label)
	if err != nil {
		return
	}
	defer pool.Close()
	client, err := w.newClient(ctx, pool, as)
	if err != nil {
		return
	}
	defer w.closeClient(client, as, []string{as})
	q := request{how: "pulse", names: []string{as}, mode: pglock.ModeExclusive, ttl: pulseTTL, patience: time.Second}
	for ctx.Err() == nil {
		from := history.Now()
		w.call(ctx, client, as, q, func(_ context.Context, hands []*hand) {
			for from = history.Now(); ctx.Err() == nil && hooks.Of(hands[0]).Renew(ctx) == nil; from = history.Now() {
				say(from, 0)
				sleep(ctx, late)
			}
		})
		if ctx.Err() == nil {
			say(from, -late) // it has no lease, or could not renew it
		}
	}
}
