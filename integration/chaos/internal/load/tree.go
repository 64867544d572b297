//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// Names of trees have up to four parts. Every request for one has a label of its own: so the judge knows whose ticket
// it sees.

// deepest is how far below its root a name lies.
const deepest = 3

// below draws a name that lies so many parts below another.
func below(r *rand.Rand, name string, parts int) string {
	var b strings.Builder
	b.WriteString(name)
	for range parts {
		fmt.Fprintf(&b, "/%c", 'a'+r.IntN(2))
	}
	return b.String()
}

// root draws a tree. The leases of one last long if nobody ends them: who is not told of their end waits too long.
func root(r *rand.Rand) string {
	if r.IntN(6) == 0 {
		return longTree
	}
	return fmt.Sprint("tree", r.IntN(2))
}

const (
	longTree = "long tree"
	longTTL  = 10 * time.Second
)

// askTree draws how a name below a root is asked for, as a subtree or by itself.
func (w *worker) askTree(r *rand.Rand, root string, subtree bool) request {
	depth := 1 + r.IntN(deepest)
	if subtree {
		depth = min(r.IntN(deepest), r.IntN(deepest)+1)
	}
	q := w.ask(r, below(r, root, depth))
	q.subtree, q.alone = subtree, true
	q.ttl = []time.Duration{300 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond}[r.IntN(3)]
	if root == longTree {
		q.ttl, q.patience = longTTL, 5*time.Second+upTo(r, 4*time.Second)
	}
	switch n := r.IntN(8); {
	case n < 3:
		q.mode = pglock.ModeShared
	case n == 3 && !subtree:
		q.mode, q.limit = pglock.ModeLimit, 3
	}
	return q
}

// tree takes a subtree, or a name below which and above which there are subtrees.
func (w *worker) tree(ctx context.Context, r *rand.Rand) {
	q := w.askTree(r, root(r), r.IntN(5) < 2)
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if hold(ctx, hands, stay(r, q.ttl)) && r.IntN(3) != 0 {
			w.writeTree(ctx, r, hands[0])
			hold(ctx, hands, upTo(r, 30*time.Millisecond))
		}
	})
}

// stay is mostly shorter than a TTL, so that many have their turn.
func stay(r *rand.Rand, ttl time.Duration) time.Duration {
	if r.IntN(6) == 0 {
		return upTo(r, min(ttl+ttl/2, 2*time.Second))
	}
	return upTo(r, 60*time.Millisecond)
}

// writeTree writes to what a lease covers: of a subtree, to some resources below it.
func (w *worker) writeTree(ctx context.Context, r *rand.Rand, h *hand) {
	x := write{how: "Write, " + kind(h), places: []place{cell(h.Resource())}, hands: []*hand{h}, think: think(r),
		before: r.IntN(3) == 0, level: levels[r.IntN(len(levels))]}
	if h.Subtree() {
		known := map[string]bool{h.Resource(): true}
		for range r.IntN(3) {
			resource := below(r, h.Name(), 1+r.IntN(2))
			if h.Slot() == 0 && r.IntN(4) == 0 {
				resource += "#1" // of the first of several holders
			}
			if known[resource] {
				continue
			}
			known[resource] = true
			x.places, x.hands = append(x.places, cell(resource)), append(x.hands, h)
		}
		if h.Slot() > 0 { // others may write there, too
			x.before = false
		}
	}
	w.write(ctx, r, x)
}

func kind(h *hand) string {
	if h.Subtree() {
		return "subtree"
	}
	return "in a tree"
}

// branches takes a name of a tree and then another as the same owner: above or below it, or beside it. It may give the
// first one back before the second, while somebody else waits for the whole tree.
func (w *worker) branches(ctx context.Context, r *rand.Rand) {
	tree, alone := root(r), r.IntN(2) == 0
	if alone { // nobody else is in the way of who waits above
		tree = fmt.Sprintf("own tree %d of %s", r.IntN(4), w.Label)
	}
	q := w.askTree(r, tree, alone || r.IntN(3) != 0)
	if alone {
		q.names = []string{below(r, tree, 1)}
	}
	q.how = "acquire"
	above := w.askTree(r, tree, true) // by somebody else, beside it
	above.names, above.how = []string{tree}, "acquire"
	if q.mode == pglock.ModeShared {
		above.mode = pglock.ModeShared // it has the tree, too, and a writer below must wait for it
	}
	stays := upTo(r, 300*time.Millisecond)
	var others sync.WaitGroup
	defer others.Wait()
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		outer := hands[0]
		if alone || r.IntN(2) == 0 {
			others.Go(func() {
				w.call(ctx, w.client, w.Label, above, func(ctx context.Context, hands []*hand) {
					hold(ctx, hands, stays)
				})
			})
			hold(ctx, hands, upTo(r, 150*time.Millisecond))
		}
		inner := w.askTree(r, tree, r.IntN(2) == 0)
		if r.IntN(3) != 0 {
			inner.names = []string{below(r, q.names[0], 1+r.IntN(2))}
		}
		inner.how, inner.owner = "acquire", outer.call
		inner.patience = min(inner.patience, time.Second)
		// it is kept when the first one ends
		owned, cancel := context.WithCancel(context.WithoutCancel(outer.Context()))
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		w.call(owned, w.client, w.Label, inner, func(ctx context.Context, more []*hand) {
			if alone || r.IntN(2) == 0 {
				hold(ctx, hands, upTo(r, 60*time.Millisecond))
				w.releases(ctx, outer)
			}
			if hold(ctx, more, stay(r, inner.ttl)) {
				w.writeTree(ctx, r, more[0])
			}
			hold(ctx, more, upTo(r, 200*time.Millisecond))
		})
	})
}

// releases ends a lease before its call would.
func (w *worker) releases(ctx context.Context, h *hand) {
	w.lets(h)
	back := w.dog.watch(fmt.Sprintf("Release of %q", h.Name()), 12*time.Second)
	err := h.Release(ctx)
	back()
	w.left(h, err)
	h.gone = true
}

// trees takes several names of the trees at once, all of them as subtrees or none.
func (w *worker) trees(ctx context.Context, r *rand.Rand) {
	q := w.askTree(r, root(r), r.IntN(2) == 0)
	for range 1 + r.IntN(2) {
		if name := below(r, root(r), r.IntN(deepest+1)); !slices.Contains(q.names, name) {
			q.names = append(q.names, name)
		}
	}
	if len(q.names) < 2 {
		return
	}
	q.how = "all"
	w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
		if hold(ctx, hands, stay(r, q.ttl)) {
			w.writeTree(ctx, r, hands[r.IntN(len(hands))])
		}
	})
}

// successor hands its lease over to a call of its own that waits for it; one of them may be of a subtree. Mostly others
// have leases below, or it has the subtree above itself: then that call may not follow.
func (w *worker) successor(ctx context.Context, r *rand.Rand) {
	q := w.askTree(r, root(r), r.IntN(2) == 0)
	q.mode, q.limit, q.how = pglock.ModeExclusive, 0, "acquire"
	next := q
	next.subtree = r.IntN(2) == 0
	switch r.IntN(4) {
	case 0, 1:
		q.names = []string{below(r, root(r), r.IntN(2))}
		next.names, q.subtree, next.subtree = q.names, false, true
	case 2:
		over := q
		over.names, over.subtree = []string{below(r, root(r), r.IntN(2))}, true
		q.names = []string{below(r, over.names[0], 1+r.IntN(2))}
		next.names, q.subtree = q.names, false
		w.call(ctx, w.client, w.Label, over, func(_ context.Context, hands []*hand) {
			q.owner = hands[0].call
			w.succeeded(ctx, hands[0].Context(), r, q, next)
		})
		return
	}
	w.succeeded(ctx, ctx, r, q, next)
}

// succeeded asks within a line of work, and hands over to who asks outside of it.
func (w *worker) succeeded(ctx, line context.Context, r *rand.Rand, q, next request) {
	w.call(line, w.client, w.Label, q, func(_ context.Context, hands []*hand) {
		h := hands[0]
		next.label = fmt.Sprintf("%s/%d", w.Label, w.id())
		next.patience = time.Second + upTo(r, time.Second)
		done := make(chan struct{})
		go func() {
			defer close(done)
			r := rand.New(rand.NewPCG(w.Seed, uint64(w.id())))
			w.call(ctx, w.client, w.Label, next, func(ctx context.Context, hands []*hand) {
				if hold(ctx, hands, stay(r, q.ttl)) {
					w.writeTree(ctx, r, hands[0])
				}
			})
		}()
		defer func() { <-done }()
		for end := time.Now().Add(upTo(r, 900*time.Millisecond)); time.Now().Before(end) &&
			hold(ctx, hands, 20*time.Millisecond); {
			if w.handsOver(ctx, h, next.label) {
				break
			}
		}
		w.releases(ctx, h)
	})
}

// handsOver gives a lease to who waits under a label, and says whether that has ended it.
func (w *worker) handsOver(ctx context.Context, h *hand, to string) bool {
	h.valid()
	w.out.say(history.Event{Kind: history.Hands, At: history.Now(), Lease: h.id, Name: h.Name(), Label: to})
	back := w.dog.watch(fmt.Sprintf("HandOver of %q", h.Name()), 12*time.Second)
	err := h.HandOver(ctx, to)
	back()
	e := history.Event{Kind: history.Handed, At: history.Now(), Lease: h.id, Name: h.Name(), How: "HandOver",
		Class: classify(err)}
	if err != nil {
		e.Error = err.Error()
	}
	w.out.say(e)
	return err == nil
}

// everyMoment is how often moments come, for all processes.
const everyMoment = 250 * time.Millisecond

// moment asks at a moment that all processes have in common for a name of the tree of that moment, as a subtree or not.
// Many of these names are new.
func (w *worker) moment(ctx context.Context, r *rand.Rand) {
	n := history.Now()/history.Time(everyMoment) + 1
	tree := fmt.Sprint("moment", n%16)
	if r.IntN(3) == 0 {
		tree = fmt.Sprint("moment", n%2000)
	}
	done := make(chan struct{})
	calls := 2 + r.IntN(3)
	for range calls {
		q := w.askTree(r, tree, r.IntN(3) == 0)
		q.names[0] = below(r, tree, r.IntN(2))
		if !q.subtree {
			q.names[0] = below(r, tree, 1+r.IntN(2))
		}
		q.patience = 50*time.Millisecond + upTo(r, time.Second)
		mine := rand.New(rand.NewPCG(r.Uint64(), 0))
		late := upTo(r, 8*time.Millisecond)
		go func() {
			defer func() { done <- struct{}{} }()
			sleep(ctx, (n * history.Time(everyMoment)).Add(late).Sub(history.Now()))
			w.call(ctx, w.client, w.Label, q, func(ctx context.Context, hands []*hand) {
				if hold(ctx, hands, upTo(mine, 25*time.Millisecond)) && mine.IntN(4) == 0 {
					w.writeTree(ctx, mine, hands[0])
				}
			})
		}()
	}
	for range calls {
		<-done
	}
}
