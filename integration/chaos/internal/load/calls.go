//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// request is a call for one or more locks.
type request struct {
	how      string // "acquire", "try", "all" or "do"
	names    []string
	mode     pglock.Mode
	limit    int
	ttl      time.Duration
	patience time.Duration
	alone    bool // a label of its own, so that the server's rows tell this call from others
	subtree  bool
	owner    int64  // of a request under a lease: the call of the first lease of its line of work
	label    string // instead of one that is drawn
}

func (q request) options(label string) []pglock.AcquireOption {
	opts := []pglock.AcquireOption{pglock.WithTTL(q.ttl)}
	switch q.mode {
	case pglock.ModeShared:
		opts = append(opts, pglock.WithShared())
	case pglock.ModeLimit:
		opts = append(opts, pglock.WithLimit(q.limit))
	}
	if q.subtree {
		opts = append(opts, pglock.WithSubtree())
	}
	if q.alone {
		opts = append(opts, pglock.WithHolder(label))
	}
	return opts
}

// hand is a lease in hand.
type hand struct {
	*pglock.Lease
	id   int64
	how  string       // it was asked for
	call int64        // that it was given to
	gone bool         // the work has ended it
	last history.Time // the last moment at which it was certainly valid; 0 when it never was seen to be
}

// valid looks at the lease. The moment is read before: if the lease was valid after it, it was valid then.
func (h *hand) valid() bool {
	at := history.Now()
	if !h.Valid() {
		return false
	}
	h.last = at
	return true
}

// call asks for locks with the client, and works with the leases that it is given, which it releases.
func (w *worker) call(ctx context.Context, client *pglock.Client, as string, q request,
	work func(context.Context, []*hand)) {
	id := w.id()
	label := as
	if q.alone {
		label = fmt.Sprintf("%s/%d", as, id)
	}
	if q.label != "" {
		label = q.label
	}
	opts := q.options(label)
	w.out.say(history.Event{Kind: history.Asks, At: history.Now(), Call: id, Names: q.names, How: q.how,
		Mode: string(q.mode), Limit: q.limit,
		Label: label, TTL: q.ttl, Subtree: q.subtree, Owner: q.owner})
	waiting, cancel := context.WithTimeout(ctx, q.patience)
	defer cancel()
	back := w.dog.watch(fmt.Sprintf("%s of %q with a patience of %v", q.how, q.names, q.patience), q.patience+
		5*time.Second)
	var leases []*pglock.Lease
	var err error
	switch q.how {
	case "do":
		w.do(waiting, client, id, q, opts, back, work)
		return
	case "all":
		var all *pglock.Leases
		if all, err = client.AcquireAll(waiting, q.names, opts...); err == nil {
			leases = all.All()
		}
	case "try":
		leases, err = one(client.TryAcquire(waiting, q.names[0], opts...))
	default:
		leases, err = one(client.Acquire(waiting, q.names[0], opts...))
	}
	back()
	if err != nil {
		w.out.say(history.Event{Kind: history.Fails, At: history.Now(), Call: id, How: q.how, Class: classify(err),
			Error: err.Error()})
		return
	}
	hands := make([]*hand, len(leases))
	for i, l := range leases {
		hands[i] = w.has(id, q, l)
	}
	work(ctx, hands)
	for _, h := range hands {
		if h.gone {
			continue
		}
		w.lets(h)
		back := w.dog.watch(fmt.Sprintf("Release of %q", h.Name()), 12*time.Second)
		err := h.Release(ctx)
		back()
		w.left(h, err)
	}
}

func one(l *pglock.Lease, err error) ([]*pglock.Lease, error) { return []*pglock.Lease{l}, err }

// do is call by Client.Do, which releases by itself.
func (w *worker) do(ctx context.Context, client *pglock.Client, id int64, q request, opts []pglock.AcquireOption,
	back func(), work func(context.Context, []*hand)) {
	var h *hand
	err := client.Do(ctx, q.names[0], func(ctx context.Context, l *pglock.Lease) error {
		back()
		h = w.has(id, q, l)
		work(ctx, []*hand{h})
		w.lets(h)
		return nil
	}, opts...)
	back()
	if h == nil {
		w.out.say(history.Event{Kind: history.Fails, At: history.Now(), Call: id, How: q.how, Class: classify(err),
			Error: err.Error()})
		return
	}
	w.left(h, err)
}

func (w *worker) has(call int64, q request, l *pglock.Lease) *hand {
	h := &hand{Lease: l, id: w.id(), how: q.how, call: call}
	at := history.Now()
	h.valid()
	w.out.say(history.Event{Kind: history.Has, At: at, Call: call, Lease: h.id, How: q.how, Name: l.Name(),
		Mode: string(q.mode), Limit: q.limit,
		Slot: l.Slot(), Token: int64(l.Token()), TTL: q.ttl, Subtree: q.subtree, Owner: q.owner})
	return h
}

func (w *worker) lets(h *hand) {
	h.valid()
	w.out.say(history.Event{Kind: history.Lets, At: history.Now(), Lease: h.id, Name: h.Name(), Until: h.last})
}

func (w *worker) left(h *hand, err error) {
	e := history.Event{Kind: history.Left, At: history.Now(), Lease: h.id, Name: h.Name(), How: h.how,
		Class: classify(err)}
	if err != nil {
		e.Error = err.Error()
	}
	if lost, is := errors.AsType[*pglock.LostError](err); is {
		e.Reason = string(lost.Reason)
	}
	w.out.say(e)
}

// hold keeps the leases for a while, looking at them, and says whether all are valid still.
func hold(ctx context.Context, hands []*hand, d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		for _, h := range hands {
			if !h.valid() {
				return false
			}
		}
		left := time.Until(end)
		if left <= 0 || ctx.Err() != nil {
			return true
		}
		sleep(ctx, min(left, 15*time.Millisecond))
	}
}

// renew extends a lease beside the heartbeat, as before a long write.
func (w *worker) renew(ctx context.Context, h *hand) {
	const patience = 2 * time.Second
	back := w.dog.watch(fmt.Sprintf("Renew of %q", h.Name()), patience+5*time.Second)
	defer back()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := hooks.Of(h).Renew(bounded)
	e := history.Event{Kind: history.Renews, At: history.Now(), Lease: h.id, Name: h.Name(), How: "Renew",
		Class: classify(err)}
	if err != nil {
		e.Error = err.Error()
	}
	w.out.say(e)
	h.valid()
}
