//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// afterStorm is how long both clients of a storm live on, so that what it has left can be seen.
const afterStorm = 4 * time.Second

// How many goroutines may be there that were not before, when every call has returned: of client and pool; and, after a
// storm, also of the load that goes on beside it. Twelve senders stay when a long silence has needed all of them, one
// or two for each kind of call and four for waits; the others hear, renew and read.
const (
	afterCalls   = 16
	besideStorms = 60
)

// storm has many calls wait for as many locks, which another client holds, with a pool of four connections, and cancels
// all of them at once, while the holder releases what they wait for.
func (w *worker) storm(ctx context.Context, o Order) {
	over := history.Event{Kind: history.Stormed, Class: history.Idle}
	say := sync.OnceFunc(func() { over.At = history.Now(); w.out.say(over) })
	defer say()
	if !w.big.TryLock() {
		return
	}
	defer w.big.Unlock()
	n := w.storms.Add(1)
	holderName, stormName := fmt.Sprintf("%s+holder%d", w.Label, n), fmt.Sprintf("%s+storm%d", w.Label, n)
	holders, err := w.newPool(ctx, 4, w.Label)
	if err != nil {
		return
	}
	defer holders.Close()
	holder, err := w.newClient(ctx, holders, holderName)
	if err != nil {
		return
	}
	defer w.closeClient(holder, holderName, nil)
	waiters, err := w.newPool(ctx, 4, w.Label)
	if err != nil {
		return
	}
	defer waiters.Close()
	waiter, err := w.newClient(ctx, waiters, stormName)
	if err != nil {
		return
	}
	defer w.closeClient(waiter, stormName, nil)
	before := runtime.NumGoroutine()

	held := make([]chan struct{}, o.N) // closed when the lock is held, or could not be had
	free, release := context.WithCancel(ctx)
	defer release()
	var holding sync.WaitGroup
	for i := range held {
		held[i] = make(chan struct{})
		name := fmt.Sprintf("storm %s %d", stormName, i)
		q := request{how: "try", names: []string{name}, mode: pglock.ModeExclusive, ttl: o.TTL,
			patience: 5 * time.Second}
		once := sync.OnceFunc(func() { close(held[i]) })
		holding.Go(func() {
			defer once()
			w.call(context.WithoutCancel(ctx), holder, holderName, q, func(_ context.Context, hands []*hand) {
				once()
				<-free.Done()
			})
		})
	}
	for _, c := range held {
		<-c
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	var calls sync.WaitGroup
	for i := range o.N {
		name := fmt.Sprintf("storm %s %d", stormName, i)
		q := request{how: "acquire", names: []string{name}, mode: pglock.ModeExclusive, ttl: o.TTL,
			patience: time.Minute}
		calls.Go(func() { w.call(waiting, waiter, stormName, q, func(context.Context, []*hand) {}) })
	}
	sleep(ctx, 200*time.Millisecond+rand.N(time.Second))
	cancel()
	calls.Wait()
	release()
	holding.Wait()
	ended := history.Now()
	left := settled(before+besideStorms, 3*time.Second)
	over.Class, over.From, over.Before, over.Goroutines = "", ended, before, left
	if left > before+besideStorms {
		over.Error = stacks()
	}
	say()
	sleep(ctx, afterStorm)
}
