//go:build unix

package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// covers says that a subtree of one name covers the other, which lies below it.
func covers(above, below string) bool {
	rest, is := strings.CutPrefix(below, above)
	return is && rest != "" && rest[0] == '/'
}

// related says that one of two names lies below the other.
func related(a, b string) bool { return covers(a, b) || covers(b, a) }

// meet says that two leases or requests of different names exclude each other: one is a subtree that covers the other,
// and not both are shared.
func meet(a, b branch) bool {
	return (a.subtree && covers(a.name, b.name) || b.subtree && covers(b.name, a.name)) &&
		(a.mode != "shared" || b.mode != "shared")
}

// branch is what matters of a lease or a request where subtrees are.
type branch struct {
	name, mode string
	subtree    bool
}

// paths are names that lie below others.
type paths map[string]bool

func (p paths) add(name string) {
	if strings.Contains(name, "/") {
		p[name] = true
	}
}

// near lists the names above the name, and for a subtree also those below it.
func (p paths) near(name string, subtree bool) (names []string) {
	for i, c := range name {
		if c == '/' {
			names = append(names, name[:i])
		}
	}
	if subtree {
		for other := range p {
			if covers(name, other) {
				names = append(names, other)
			}
		}
	}
	return names
}

func (x *tenure) branch() branch { return branch{x.name, x.mode, x.subtree} }
func (x *belief) branch() branch { return branch{x.name, x.mode, x.subtree} }

// compareTree looks for tenures of other names that exclude this one and run at the same time. Of two that do not, the
// later one has the greater token: both may pass the same fence.
func (t *tenures) compareTree(x *tenure) {
	for _, name := range t.paths.near(x.name, x.subtree) {
		for _, y := range t.known[name] {
			if y.blamed && x.blamed || x.owner != "" && x.owner == y.owner || !meet(x.branch(), y.branch()) {
				continue
			}
			if together := min(x.to, y.to).Sub(max(x.from, y.from)); together > 0 {
				x.blamed, y.blamed = true, true
				t.blame("two tenures", x.from, []string{x.name, y.name}, fmt.Sprintf("%s was granted over %s: they "+
					"were held at once for %v by the server's clock", x.inTree(), y.inTree(), together), y, x)
			} else if x.from > y.from && x.token < y.token {
				x.blamed, y.blamed = true, true
				t.blame("tokens", x.from, []string{x.name, y.name}, fmt.Sprintf("%s was granted after %s had ended, "+
					"and has the lower token", x.inTree(), y.inTree()), y, x)
			}
		}
	}
}

// linkTree checks that nobody was granted what excludes the lease of a write, above or below, before its commit.
func (t *tenures) linkTree(l history.Link, r *row, at history.Time) {
	x := r.tenure
	if x == nil || x.token != l.Token {
		return
	}
	for _, name := range t.paths.near(x.name, x.subtree) {
		for _, y := range t.known[name] {
			if y.token > x.token && (x.owner == "" || x.owner != y.owner) && meet(x.branch(), y.branch()) {
				t.blame("outside its lease", at, []string{x.name, y.name}, fmt.Sprintf("write %d under %s was "+
					"committed when %s had been granted", l.Op, x.inTree(), y.inTree()), l, x, y)
				return
			}
		}
	}
}

func (x *tenure) inTree() string {
	what := "lock"
	if x.subtree {
		what = "the subtree"
	}
	return fmt.Sprintf("%s %q (%s, token %d, %s)", what, x.name, x.mode, x.token, x.holder)
}

// compareTree looks for beliefs of other names that exclude this one.
func (b *believers) compareTree(x *belief) {
	for _, name := range b.paths.near(x.name, x.subtree) {
		for _, y := range b.past[name] {
			together := min(x.until, y.until).Sub(max(x.from, y.from))
			if together <= 0 || x.owner == y.owner || !meet(x.branch(), y.branch()) || b.documented(x, y) {
				continue
			}
			b.blame("two believers", max(x.from, y.from), []string{x.name, y.name},
				fmt.Sprintf("the holders of %q%s with token %d and of %q%s with token %d both saw Valid() for %v",
					y.name, subtreeOf(y.subtree), y.token, x.name, subtreeOf(x.subtree), x.token, together), y, x)
		}
	}
}

// trees checks the order in which requests are granted that meet in a tree, and knows who waits for whom there. It
// follows requests that have a label of their own.
type trees struct {
	*court
	calls   map[int64]*climber
	waiting map[string]*climber       // by their labels
	granted []*climber                // lately, for the next look
	hands   map[string]map[int64]span // of each name, the latest hand-over of each lease, lately
}

// climber is a request for a name above or below which there may be subtrees.
type climber struct {
	branch
	who, owner, call int64
	label            string
	nested           bool // its owner has other leases
	asked, given     history.Time
	ticket           int64
	seen             history.Time // when a look had listed its ticket for the first time
}

func newTrees(c *court) trees {
	return trees{court: c, calls: make(map[int64]*climber), waiting: make(map[string]*climber),
		hands: make(map[string]map[int64]span)}
}

func (t *trees) event(e history.Event) {
	switch e.Kind {
	case history.Asks:
		if alone := strings.Contains(e.Label, "/"); alone && len(e.Names) == 1 {
			c := &climber{branch: branch{e.Names[0], e.Mode, e.Subtree}, who: e.Who, owner: cmp.Or(e.Owner, e.Call),
				call: e.Call, label: e.Label, nested: e.Owner != 0, asked: e.At}
			t.calls[e.Call], t.waiting[e.Label] = c, c
		}
	case history.Has, history.Fails:
		c := t.calls[e.Call]
		if c == nil {
			return
		}
		delete(t.calls, e.Call)
		delete(t.waiting, c.label)
		if e.Kind == history.Has {
			c.given = e.At
			t.granted = append(t.granted, c)
		}
	case history.Hands:
		if t.hands[e.Name] == nil {
			t.hands[e.Name] = make(map[int64]span)
		}
		maps.DeleteFunc(t.hands[e.Name], func(_ int64, s span) bool { return s.to < e.At.Add(-longestHandOver) })
		t.hands[e.Name][e.Lease] = span{e.At, e.At.Add(longestHandOver)}
	case history.Handed:
		if s, known := t.hands[e.Name][e.Lease]; known {
			t.hands[e.Name][e.Lease] = span{s.from, e.At}
		}
	}
}

func (t *trees) died(who int64) {
	for call, c := range t.calls {
		if c.who == who {
			delete(t.calls, call)
			delete(t.waiting, c.label)
		}
	}
}

// promoted forgets which tickets were seen: the new primary may lack them.
func (t *trees) promoted() {
	for _, c := range t.waiting {
		c.ticket, c.seen = 0, 0
	}
}

// longestHandOver is more than a hand-over takes whose process dies meanwhile.
const longestHandOver = 20 * time.Second

// overtakes is how long before the look a grant may have come about that is compared with the tickets that it lists.
const overtakes = 5 * time.Second

// look compares the tickets that were listed before, and still are, with what was granted meanwhile.
func (t *trees) look(k history.Look) {
	for _, ticket := range k.Tickets {
		c := t.waiting[ticket.Label]
		if c == nil || !ticket.Alive || c.name != ticket.Name {
			continue
		}
		if c.ticket != ticket.Number {
			c.ticket, c.seen = ticket.Number, k.Ended
			continue
		}
		for _, g := range t.granted {
			if g.asked > c.seen && g.given < k.Began && g.owner != c.owner && !g.nested && !t.handed(g) &&
				meet(g.branch, c.branch) {
				t.blame("overtaken", g.given, []string{g.name, c.name}, fmt.Sprintf("%s %q%s (%s) was granted %v "+
					"after it was asked for, while ticket %d of %q%s (%s) was queued before, and still is", g.mode,
					g.name, subtreeOf(g.subtree), g.label, g.given.Sub(g.asked), c.ticket, c.name, subtreeOf(c.subtree),
					c.label), ticket)
			}
		}
	}
	t.granted = slices.DeleteFunc(t.granted, func(g *climber) bool { return g.given < k.Began.Add(-overtakes) })
}

// handed says that the grant may have been a hand-over.
func (t *trees) handed(g *climber) bool {
	for _, s := range t.hands[g.name] {
		if s.from <= g.given && s.to >= g.asked {
			return true
		}
	}
	return false
}

// blocked says that a lease above or below is in the way of a ticket, or a lower ticket there.
func (t *trees) blocked(k history.Look, ticket history.Ticket) bool {
	c := t.waiting[ticket.Label]
	if c == nil {
		c = &climber{branch: branch{ticket.Name, "", true}} // we do not know what it asks for
	}
	return slices.ContainsFunc(k.Holders, func(h history.Holder) bool {
		return meet(c.branch, branch{h.Name, h.Mode, h.Subtree})
	}) || slices.ContainsFunc(k.Tickets, func(o history.Ticket) bool {
		if o.Number >= ticket.Number || !o.Alive {
			return false
		}
		if d := t.waiting[o.Label]; d != nil && d.name == o.Name {
			return meet(c.branch, d.branch)
		}
		return related(o.Name, ticket.Name)
	})
}
