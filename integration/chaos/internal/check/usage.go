//go:build unix

package check

import (
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// usage follows who uses which lock: every call from its beginning to its end, and every lease from its grant to the
// end of its release.
type usage struct {
	of     map[place]*use
	dead   map[int64]bool // processes that were killed
	calls  map[int64]*call
	leases map[int64]held
}

// held is a lease in hand.
type held struct {
	place
	lasts time.Duration // at most, when nobody renews it
}

// place is a lock as one holder's label uses it.
type place struct{ label, name string }

// use is how many calls and leases there are of a place.
type use struct {
	who    int64
	open   int
	closed history.Time // when the last of them ended
	doubt  history.Time // until then the server may hold something because a client could not reach it
}

// call is one that has not returned.
type call struct {
	who   int64
	names []string
	label string
	ttl   time.Duration
}

func (u *usage) event(e history.Event) {
	switch e.Kind {
	case history.Asks:
		u.calls[e.Call] = &call{e.Who, e.Names, e.Label, e.TTL}
		for _, name := range e.Names {
			at := place{e.Label, name}
			if u.of[at] == nil {
				u.of[at] = &use{who: e.Who}
			}
			u.of[at].open++
		}
	case history.Fails:
		c := u.calls[e.Call]
		if c == nil {
			return
		}
		delete(u.calls, e.Call)
		for _, name := range c.names {
			u.close(place{c.label, name}, e.At, toldByCalls[e.Class], c.ttl)
		}
	case history.Has:
		if c := u.calls[e.Call]; c != nil {
			u.leases[e.Lease] = held{place{c.label, e.Name}, max(e.TTL, 5*time.Second)}
		}
	case history.Extends:
		if x, known := u.leases[e.Lease]; known {
			x.lasts = max(x.lasts, e.TTL)
			u.leases[e.Lease] = x
		}
	case history.Left:
		x, known := u.leases[e.Lease]
		if !known {
			return
		}
		delete(u.leases, e.Lease)
		u.close(x.place, e.At, toldByReleases[e.Class], x.lasts)
	}
}

// A call that ends like this leaves nothing behind: the server knows, or there was nothing to tell. What could not be
// sent ends with its TTL. Client.Close reports a call that ends with the client.
var (
	toldByCalls = map[string]bool{"": true, "cancelled": true, "deadline": true, "held": true, "lost": true,
		"circle": true, "self-deadlock": true, "closed": true}
	toldByReleases = map[string]bool{"": true, "lost": true, "released": true}
)

func (u *usage) close(at place, when history.Time, told bool, ttl time.Duration) {
	x := u.of[at]
	x.open--
	x.closed = max(x.closed, when)
	if !told {
		x.doubt = max(x.doubt, when.Add(ttl+time.Second))
	}
}

func (u *usage) died(who int64) { u.dead[who] = true }
