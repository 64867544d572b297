//go:build unix

package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// believers checks that no two holders that exclude each other see Valid() at the same time. A holder has certainly
// believed from the return of its call to the last time before a check that said valid: all on one clock.
type believers struct {
	*court
	asked      map[int64]history.Time // of calls
	open       map[int64]*belief
	past       map[string][]*belief // of each lock
	paths      paths                // the names of those
	breaks     []*breaking
	promotions []history.Promotion
}

// belief is the time in which its holder certainly took a lease for valid.
type belief struct {
	who, lease  int64
	name, mode  string
	slot        int
	limit       int
	token       int64
	subtree     bool
	owner       int64 // the call that its line of work began with
	ttl         time.Duration
	lasts       time.Duration // the TTL, or the longest extension
	asked       history.Time  // when the call began: it was granted after that
	from, until history.Time
}

// breaking is an operator's break; end is 0 while it is under way.
type breaking struct {
	name       string
	begin, end history.Time
}

func (b *believers) event(e history.Event) {
	switch e.Kind {
	case history.Asks:
		b.asked[e.Call] = e.At
	case history.Fails:
		delete(b.asked, e.Call)
	case history.Has:
		b.open[e.Lease] = &belief{asked: b.asked[e.Call], who: e.Who, lease: e.Lease, name: e.Name, mode: e.Mode,
			limit: e.Limit, slot: e.Slot, token: e.Token, ttl: e.TTL, lasts: e.TTL, from: e.At,
			subtree: e.Subtree, owner: cmp.Or(e.Owner, e.Call)}
	case history.Extends:
		if x := b.open[e.Lease]; x != nil {
			x.lasts = max(x.lasts, e.TTL)
		}
	case history.Lets:
		x := b.open[e.Lease]
		if x == nil {
			return
		}
		delete(b.open, e.Lease)
		if x.until = e.Until; x.until < x.from {
			return // it was over when the caller first looked
		}
		b.compare(x)
		b.compareTree(x)
		b.paths.add(x.name)
		b.past[x.name] = append(slices.DeleteFunc(b.past[x.name], func(old *belief) bool {
			return old.until.Add(remembered) < x.from
		}), x)
	}
}

// died forgets the beliefs of a killed process: nobody knows how long they lasted.
func (b *believers) died(who int64) {
	for lease, x := range b.open {
		if x.who == who {
			delete(b.open, lease)
		}
	}
}

func (b *believers) compare(x *belief) {
	for _, y := range b.past[x.name] {
		together := min(x.until, y.until).Sub(max(x.from, y.from))
		if together <= 0 || x.mode == y.mode && x.mode != "exclusive" && x.slot != y.slot || b.documented(x, y) {
			continue
		}
		b.blame("two believers", max(x.from, y.from), []string{x.name},
			fmt.Sprintf("lock %q: the holders of tokens %d and %d both saw Valid() for %v", x.name, y.token, x.token,
				together), y, x)
	}
	if x.mode != "limit" {
		return
	}
	together := []span{{x.from, x.until}}
	for _, y := range b.past[x.name] {
		if y.mode == "limit" && !b.documented(x, y) {
			together = append(together, span{y.from, b.succeeded(y)})
		}
	}
	if n := crowd(together); n > x.limit {
		b.blame("two believers", x.from, []string{x.name},
			fmt.Sprintf("lock %q: %d holders saw Valid() at once, the limit is %d", x.name, n, x.limit), x)
	}
}

// succeeded returns until when a lease of mode limit counts: until the next lease of its slot began, if the two may be
// believed in together.
func (b *believers) succeeded(y *belief) history.Time {
	until := y.until
	for _, next := range b.past[y.name] {
		if next.mode == "limit" && next.slot == y.slot && next.token > y.token && b.documented(next, y) {
			until = min(until, max(y.from, next.from))
		}
	}
	return until
}

// documented reports whether the older of two leases was broken, or lost with a failover, while it was valid. Then
// its holder may believe in it up to its deadline, which nothing has moved since. For the new primary, a break that
// the failover has lost never happened, and the older lease goes on: then whatever came of the break must end by that
// deadline.
func (b *believers) documented(x, y *belief) bool {
	older, newer := x, y
	if y.token < x.token {
		older, newer = y, x
	}
	for _, k := range b.breaks {
		until := older.until
		if b.wasLost(k) {
			until = min(until, newer.until)
		}
		if k.name == older.name && k.begin <= newer.from && (k.end == 0 || k.end >= older.asked &&
			until <= k.end.Add(older.ttl)) {
			return true
		}
	}
	for _, p := range b.promotions {
		if p.Lossy && older.asked <= p.Opened && older.until <= p.Dead.Add(older.lasts) && newer.from >= p.Safe {
			return true
		}
	}
	return false
}

// wasLost reports whether the new primary of a failover may not know of a break.
func (b *believers) wasLost(k *breaking) bool {
	return slices.ContainsFunc(b.promotions, func(p history.Promotion) bool {
		return p.Lossy && k.begin <= p.Dead && (k.end == 0 || k.end >= p.Safe)
	})
}
