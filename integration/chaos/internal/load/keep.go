//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// Keeper ends the label of those who keep a lease: nobody breaks theirs.
const Keeper = "+keep"

// keep holds a lease until it is lost, and asks for the next one, until ctx ends.
func (w *worker) keep(ctx context.Context, ttl time.Duration) {
	q := request{how: history.Kept, names: []string{fmt.Sprintf("keep %v %s", ttl, w.Label)},
		mode: pglock.ModeExclusive, ttl: ttl, patience: 10 * time.Second, alone: true}
	for ctx.Err() == nil {
		w.call(ctx, w.client, w.Label+Keeper, q, func(ctx context.Context, hands []*hand) {
			for ctx.Err() == nil && hold(ctx, hands, time.Second) {
			}
		})
		sleep(ctx, 50*time.Millisecond)
	}
}

// leading is the TTL of leaders.
const leading = 5 * time.Second

// lead campaigns for one lock with all other workers, and writes while it leads, until ctx ends. Terms of up to ten
// seconds let the others have their turn.
func (w *worker) lead(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.Seed, uint64(w.id())))
	q := request{how: "lead", names: []string{"leader"}, mode: pglock.ModeExclusive, ttl: leading}
	for ctx.Err() == nil {
		candidate, err := leader.New(w.client, "leader", leader.WithTTL(leading))
		if err != nil {
			w.out.say(history.Event{Kind: history.Finds, At: history.Now(), How: q.how, Error: err.Error()})
			return
		}
		call := w.id()
		w.out.say(history.Event{Kind: history.Asks, At: history.Now(), Call: call, Names: q.names, How: q.how,
			Mode: string(q.mode), Label: w.Label, TTL: q.ttl})
		term, resign := context.WithCancel(ctx)
		var h *hand
		err = candidate.Run(term, func(working context.Context, lease *pglock.Lease) error {
			h = w.has(call, q, lease)
			for over := time.Now().Add(upTo(r, 10*time.Second)); time.Now().Before(over) && working.Err() == nil; {
				if !hold(working, []*hand{h}, upTo(r, time.Second)) {
					break
				}
				w.write(working, r, write{how: "Write, leader", places: []place{cell("leader")}, hands: []*hand{h},
					again: true})
			}
			w.lets(h)
			resign() // one term is one call
			return nil
		})
		resign()
		switch {
		case h != nil:
			if errors.Is(err, context.Canceled) && !errors.Is(err, pglock.ErrLost) {
				err = nil
			}
			w.left(h, errors.Join(err, h.Err()))
		default:
			w.out.say(history.Event{Kind: history.Fails, At: history.Now(), Call: call, How: q.how,
				Class: classify(err), Error: fmt.Sprint(err)})
		}
	}
}
