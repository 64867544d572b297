//go:build unix

package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// tenures checks that by the server's clock no two leases of a lock that exclude each other run at once, and that
// every write commits while its lease is the lock's present one. It follows the rows in the order of commits.
type tenures struct {
	*court
	wall    history.Wall
	rows    map[slot]*row
	known   map[string][]*tenure // of each lock, those that have not long ended
	paths   paths                // the names that are known
	touched []*tenure            // by the transaction that is looked at
}

type slot struct {
	lock string
	slot int
}

// row is the newest version of a slot, and what grants of it came before.
type row struct {
	history.Version
	tenure *tenure // nil when nobody holds it
	before int64   // the greatest token of earlier grants of the slot
}

// tenure is a lease by the server's clock.
type tenure struct {
	name     string
	slot     int
	mode     string
	capacity int
	subtree  bool
	owner    string
	token    int64
	grant    string
	holder   string
	from, to history.Time
	blamed   bool
}

// remembered is how long a tenure is compared with others after its end.
const remembered = 2 * time.Minute

func newTenures(c *court, wall history.Wall) tenures {
	return tenures{court: c, wall: wall, rows: make(map[slot]*row), known: make(map[string][]*tenure),
		paths: make(paths)}
}

// commit takes the versions of one transaction, and then compares: what it ends and what it grants happens at once.
func (t *tenures) commit(versions []history.Version) {
	for _, v := range versions {
		t.version(v)
	}
	for _, x := range t.touched {
		t.compare(x)
	}
	t.touched = t.touched[:0]
}

func (t *tenures) version(v history.Version) {
	at := slot{v.Name, v.Slot}
	was := t.rows[at]
	if was == nil {
		was = &row{}
	}
	now := &row{Version: v, before: was.before}
	if was.Grant != v.Grant {
		now.before = max(now.before, was.Token)
	}
	t.rows[at] = now
	if was.tenure != nil && (was.Grant != v.Grant || !v.Held()) {
		t.ended(was, v)
	}
	if !v.Held() {
		return
	}
	if now.tenure = t.find(v); now.tenure == nil {
		now.tenure = &tenure{name: v.Name, slot: v.Slot, mode: v.Mode, capacity: v.Capacity, grant: v.Grant,
			subtree: v.Subtree, owner: v.Owner, holder: v.Holder, from: t.wall.Time(v.AcquiredAt)}
		t.paths.add(v.Name)
		t.known[v.Name] = append(slices.DeleteFunc(t.known[v.Name], func(old *tenure) bool {
			return old.to.Add(remembered) < now.tenure.from
		}), now.tenure)
	}
	now.tenure.token, now.tenure.to = v.Token, t.wall.Time(v.ExpiresAt)
	t.touched = append(t.touched, now.tenure)
}

// find is the tenure that the version renews.
func (t *tenures) find(v history.Version) *tenure {
	for _, x := range t.known[v.Name] {
		if x.slot == v.Slot && x.grant == v.Grant {
			return x
		}
	}
	return nil
}

// ended shortens a tenure that was ended before its time. A row that goes from one lease to the next in one step says
// when.
func (t *tenures) ended(was *row, v history.Version) {
	end := t.wall.Time(v.EndedAt)
	if v.Held() { // handed over: one step, whatever the clock says before and after it
		end = min(end, t.wall.Time(v.AcquiredAt))
	}
	if !v.Gone && !v.EndedAt.IsZero() && end >= was.tenure.from && end < was.tenure.to {
		was.tenure.to = end
	}
}

// compare looks for tenures that exclude this one and run at the same time.
func (t *tenures) compare(x *tenure) {
	for _, y := range t.known[x.name] {
		if y == x || y.blamed && x.blamed || !excludes(x, y) || max(x.from, y.from) >= min(x.to, y.to) {
			continue
		}
		x.blamed, y.blamed = true, true
		t.blame("two tenures", x.from, []string{x.name},
			fmt.Sprintf("lock %q: %s with token %d and %s with token %d were held at once for %v by the server's clock",
				x.name,
				x.mode, x.token, y.mode, y.token, min(x.to, y.to).Sub(max(x.from, y.from))), y, x)
	}
	t.compareTree(x)
	if x.mode != "limit" || x.blamed {
		return
	}
	together := []span{{x.from, x.to}}
	for _, y := range t.known[x.name] {
		if y != x && y.mode == "limit" {
			together = append(together, span{y.from, y.to})
		}
	}
	if n := crowd(together); n > x.capacity {
		x.blamed = true
		t.blame("two tenures", x.from, []string{x.name},
			fmt.Sprintf("lock %q: %d leases ran at once by the server's clock, the limit is %d", x.name, n, x.capacity),
			x)
	}
}

// span is from a moment on until before another.
type span struct{ from, to history.Time }

// crowd is how many spans there are together with the first, at the moment with the most.
func crowd(spans []span) (most int) {
	first := spans[0]
	for _, at := range spans {
		if at.from = max(at.from, first.from); at.from >= first.to {
			continue
		}
		n := 0
		for _, s := range spans {
			if s.from <= at.from && at.from < s.to {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func excludes(x, y *tenure) bool {
	return x.mode != y.mode || x.mode == "exclusive" || x.slot == y.slot || x.mode == "limit" &&
		x.capacity != y.capacity
}

// link checks that the lease that a write was made under is the one that its lock has at the commit.
func (t *tenures) link(l history.Link, at history.Time) {
	switch r := t.rows[slot{l.Lock, l.Slot}]; {
	case r == nil || r.Gone:
		t.blame("outside its lease", at, []string{l.Lock},
			fmt.Sprintf("write %d was committed under lock %q, which has no row", l.Op, l.Lock), l)
	case !r.Held():
		t.blame("outside its lease", at, []string{l.Lock},
			fmt.Sprintf("write %d with token %d was committed when the lease of lock %q had been ended", l.Op, l.Token,
				l.Lock), l)
	case l.Token > r.Token || l.Token <= r.before:
		t.blame("outside its lease", at, []string{l.Lock},
			fmt.Sprintf("write %d with token %d was committed when lock %q was held with token %d", l.Op, l.Token,
				l.Lock, r.Token), l)
	default:
		t.linkTree(l, r, at)
	}
}

// promoted continues with the rows of the new primary. We may not know what happened last on the old one, and the new
// one may lack it. So only tenures whose grant it knows can be compared with what comes.
func (t *tenures) promoted(p history.Promotion) {
	had := make(map[slot]history.Version, len(p.State.Versions))
	for _, v := range p.State.Versions {
		had[slot{v.Name, v.Slot}] = v
	}
	for name, all := range t.known {
		t.known[name] = slices.DeleteFunc(all, func(x *tenure) bool {
			v := had[slot{x.name, x.slot}]
			if !p.Lossy && v.Grant == x.grant && !v.Held() {
				x.to = min(x.to, max(x.from, t.wall.Time(v.EndedAt)))
				return false
			}
			return p.Lossy || v.Grant != x.grant
		})
	}
	clear(t.rows)
	t.commit(p.State.Versions)
}
