//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// extended extends a lease for some of its TTLs, and writes under it. Some who extend say when that is over.
func (w *worker) extended(ctx context.Context, r *rand.Rand) {
	w.extend(ctx, r, request{how: "extended", names: []string{fmt.Sprint("ext", r.IntN(3))}, mode: pglock.ModeExclusive,
		ttl: 500 * time.Millisecond, patience: upTo(r, 6*time.Second)}, time.Second+upTo(r, 2*time.Second), func() {})
}

func (w *worker) extend(ctx context.Context, r *rand.Rand, q request, d time.Duration, done func()) {
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		h := hands[0]
		end, ok := w.extends(ctx, h, d)
		if ok {
			done()
		}
		if !ok || !hold(ctx, hands, upTo(r, d*3/2)) {
			return
		}
		w.write(ctx, r, write{how: "Write, extended", places: []place{cell(h.Resource())}, hands: hands,
			before: r.IntN(3) == 0})
		if r.IntN(2) == 0 {
			w.out.say(history.Event{Kind: history.Shortens, At: history.Now(), Lease: h.id, Name: h.Name()})
			end()
			hold(ctx, hands, upTo(r, 2*q.ttl))
		}
	})
}

// extends extends a lease, and says so.
func (w *worker) extends(ctx context.Context, h *hand, d time.Duration) (end func(), ok bool) {
	const patience = 2 * time.Second
	back := w.dog.watch(fmt.Sprintf("Extend of %q", h.Name()), patience+5*time.Second)
	defer back()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	e := history.Event{Kind: history.Extends, From: history.Now(), Lease: h.id, Name: h.Name(), How: "Extend", TTL: d}
	end, err := h.Extend(bounded, d)
	e.At, e.Class = history.Now(), classify(err)
	if err != nil {
		e.Error = err.Error()
	}
	w.out.say(e)
	return end, err == nil
}
