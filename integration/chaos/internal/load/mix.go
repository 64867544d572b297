//go:build unix

package load

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// ttls are those of the load. Most calls for one lock have the same, so that they can share a place in the queue.
var ttls = []time.Duration{300 * time.Millisecond, 500 * time.Millisecond, 1000 * time.Millisecond,
	1500 * time.Millisecond, 3 * time.Second, 5 * time.Second}

// levels are the isolation levels of writes; "" is the session's.
var levels = []pgx.TxIsoLevel{"", pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// exclusives is how many locks most of the load fights for: few, so that there are queues.
const exclusives = 4

// step is a way to use locks; weight is how often, among all.
type step struct {
	weight int
	run    func(w *worker, ctx context.Context, r *rand.Rand)
}

var steps = []step{
	{24, (*worker).exclusive},
	{22, (*worker).readersAndWriters},
	{10, (*worker).semaphore},
	{10, (*worker).several},
	{10, (*worker).guarded},
	{6, (*worker).once},
	{8, (*worker).briefly},
	{4, (*worker).nested},
	{24, (*worker).tree},
	{12, (*worker).moment},
	{8, (*worker).branches},
	{4, (*worker).trees},
	{6, (*worker).successor},
	{6, (*worker).late},
	{4, (*worker).extended},
	{2, (*worker).rogue},
	{1, (*worker).visit},
}

// loop takes one step after the other until ctx ends.
func (w *worker) loop(ctx context.Context, r *rand.Rand) {
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	for {
		sleep(ctx, time.Duration(float64(w.Pace)*min(4, r.ExpFloat64())))
		if ctx.Err() != nil {
			return
		}
		n := r.IntN(total)
		for _, s := range steps {
			if n -= s.weight; n < 0 {
				s.run(w, ctx, r)
				break
			}
		}
	}
}

// ask draws how a lock is asked for.
func (w *worker) ask(r *rand.Rand, names ...string) request {
	h := fnv.New32()
	_, _ = h.Write([]byte(names[0]))
	q := request{how: "acquire", names: names, mode: pglock.ModeExclusive, ttl: ttls[int(h.Sum32())%len(ttls)],
		patience: 50*time.Millisecond + upTo(r, 4*time.Second), alone: r.IntN(3) == 0}
	if r.IntN(4) == 0 {
		q.ttl = ttls[r.IntN(len(ttls))]
	}
	if r.IntN(3) == 0 { // it outlives faults that keep it from the server
		q.patience += 5 * time.Second
	}
	switch r.IntN(8) {
	case 0:
		q.how = "try"
	case 1:
		q.how = "do"
	}
	return q
}

// upTo draws a time below d.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

// spell is how long a lease is held before or after the work: mostly short, at times longer than its TTL.
func spell(r *rand.Rand, ttl time.Duration) time.Duration {
	if r.IntN(5) == 0 {
		return upTo(r, ttl+ttl/2)
	}
	return upTo(r, 30*time.Millisecond)
}

func think(r *rand.Rand) time.Duration {
	if r.IntN(12) == 0 {
		return upTo(r, 900*time.Millisecond)
	}
	return 0
}

func (w *worker) exclusive(ctx context.Context, r *rand.Rand) {
	q := w.ask(r, fmt.Sprint("x", r.IntN(exclusives)))
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if !hold(ctx, hands, spell(r, q.ttl)) {
			return
		}
		x := write{how: "Write", places: []place{cell(q.names[0])}, hands: hands, think: think(r),
			level: levels[r.IntN(len(levels))]}
		switch r.IntN(5) {
		case 0, 1:
			x.how, x.before = "Write, read before", true
		case 2:
			x.how, x.again = "Write, same token", true
			for range r.IntN(3) {
				w.write(ctx, r, x)
			}
		}
		if answer := w.write(ctx, r, x); answer != history.Done && !x.before && r.IntN(2) == 0 && hands[0].valid() {
			x.how = "Write again"
			w.write(ctx, r, x)
		}
		hold(ctx, hands, spell(r, q.ttl))
	})
}

// readersAndWriters share a lock. Every slot has a chain of its own, and so have the writers.
func (w *worker) readersAndWriters(ctx context.Context, r *rand.Rand) {
	q := w.ask(r, fmt.Sprint("rw", r.IntN(2)))
	q.ttl = []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond}[r.IntN(2)]
	if r.IntN(4) != 0 {
		q.mode = pglock.ModeShared
	}
	w.slots(ctx, r, q)
}

func (w *worker) semaphore(ctx context.Context, r *rand.Rand) {
	q := w.ask(r, fmt.Sprint("limit", r.IntN(2)))
	q.mode, q.limit = pglock.ModeLimit, 3
	w.slots(ctx, r, q)
}

func (w *worker) slots(ctx context.Context, r *rand.Rand, q request) {
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		stay := spell(r, q.ttl)
		if r.IntN(2) == 0 {
			stay = upTo(r, 2*q.ttl) // long enough to be renewed
		}
		if !hold(ctx, hands, stay) {
			return
		}
		if r.IntN(2) == 0 {
			w.renew(ctx, hands[0])
		}
		if r.IntN(3) != 0 {
			w.write(ctx, r, write{how: "Write, " + string(q.mode), places: []place{cell(hands[0].Resource())},
				hands: hands, think: think(r),
				before: r.IntN(3) == 0, level: levels[r.IntN(len(levels))]})
		}
	})
}

// several takes some of four locks at once and writes to all of them.
func (w *worker) several(ctx context.Context, r *rand.Rand) {
	names := []string{"all0", "all1", "all2", "all3"}
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	q := w.ask(r, names[:2+r.IntN(2)]...)
	q.how = "all"
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if !hold(ctx, hands, spell(r, q.ttl)) {
			return
		}
		x := write{how: "Write of several", hands: hands, think: think(r), before: r.IntN(3) == 0,
			level: levels[r.IntN(len(levels))]}
		for _, h := range hands {
			x.places = append(x.places, cell(h.Resource()))
		}
		w.write(ctx, r, x)
	})
}

func (w *worker) guarded(ctx context.Context, r *rand.Rand) {
	p := guardedWhole
	if r.IntN(3) != 0 {
		p = guardedRow(fmt.Sprint(r.IntN(4)))
	}
	q := w.ask(r, p.resource)
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if hold(ctx, hands, spell(r, q.ttl)) {
			w.write(ctx, r, write{how: "Write, guarded", places: []place{p}, hands: hands, think: think(r),
				before: r.IntN(3) == 0, level: levels[r.IntN(len(levels))]})
		}
	})
}

// once does the work of a key that others are given too, under one of several locks.
func (w *worker) once(ctx context.Context, r *rand.Rand) {
	q := w.ask(r, fmt.Sprint("once", r.IntN(3)))
	key := fmt.Sprintf("key %d of %d", r.IntN(10), history.Now()/history.Time(2*time.Second))
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if hold(ctx, hands, upTo(r, 20*time.Millisecond)) {
			w.write(ctx, r, write{how: "Once", key: key, places: []place{cell("once/" + key)}, hands: hands,
				again: true, level: levels[r.IntN(len(levels))]})
		}
	})
}

// briefly gives up soon, often in the moment of a grant.
func (w *worker) briefly(ctx context.Context, r *rand.Rand) {
	q := w.ask(r, fmt.Sprint("x", r.IntN(exclusives)))
	q.patience = upTo(r, 40*time.Millisecond)
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		hold(ctx, hands, upTo(r, 20*time.Millisecond))
	})
}

// nested takes a second lock as the same owner, in any order, so that circles come about.
func (w *worker) nested(ctx context.Context, r *rand.Rand) {
	a, b := fmt.Sprint("nest", r.IntN(3)), fmt.Sprint("nest", r.IntN(3))
	q := w.ask(r, a)
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		owned, cancel := context.WithCancel(hands[0].Context())
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		inner := w.ask(r, b)
		inner.how = "acquire"
		w.call(owned, w.client, w.Label, inner, func(ctx context.Context, more []*hand) {
			if hold(ctx, append(more, hands...), spell(r, inner.ttl)) {
				w.write(ctx, r, write{how: "Write", places: []place{cell(b)}, hands: more,
					level: levels[r.IntN(len(levels))]})
			}
		})
	})
}

// inside writes to a resource of its own, and comes back from the callback when it is told to.
func (w *worker) inside(ctx context.Context) {
	r := rand.New(rand.NewPCG(w.Seed, uint64(w.id())))
	q := request{how: "try", names: []string{"inside " + w.Label}, mode: pglock.ModeExclusive, ttl: 5 * time.Second,
		patience: 2 * time.Second}
	select {
	case <-w.goOn: // of an earlier time
	default:
	}
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		w.write(ctx, r, write{how: "Write", places: []place{cell(hands[0].Resource())}, hands: hands, inside: func() {
			w.out.say(history.Event{Kind: history.Inside, At: history.Now()})
			select {
			case <-w.goOn:
			case <-time.After(4 * time.Second):
			case <-hands[0].Context().Done():
			}
		}})
	})
}
