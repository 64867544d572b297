package lockadmin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// cover has the tenures of one name that covered all names below it, in the order of their grants. until is the latest
// end among the first ones, up to the one of its place.
type cover struct {
	name    string
	tenures []Tenure
	until   []time.Time
}

// maxCovers limits how many tenures of subtrees are kept for comparison. Those beyond are counted.
const maxCovers = 100_000

// climb forgets the subtrees that the next lock does not lie below. In byte order a name comes before all that lies
// below it, and these have all come when a name is greater than that and a '0', the byte after '/'.
func (r *replay) climb(lock string) {
	r.covers = slices.DeleteFunc(r.covers, func(c cover) bool {
		gone := lock >= c.name+"0"
		if gone {
			r.kept -= len(c.tenures)
		}
		return gone
	})
}

// keep notes a tenure of a subtree for what comes below.
func (r *replay) keep(t Tenure) {
	if !t.Subtree {
		return
	}
	if r.kept == maxCovers {
		r.found.SubtreesLeft++
		return
	}
	r.kept++
	if n := len(r.covers); n == 0 || r.covers[n-1].name != t.lock {
		r.covers = append(r.covers, cover{name: t.lock})
	}
	c := &r.covers[len(r.covers)-1]
	at, _ := slices.BinarySearchFunc(c.tenures, t, func(o, t Tenure) int { return o.GrantedAt.Compare(t.GrantedAt) })
	c.tenures, c.until = slices.Insert(c.tenures, at, t), slices.Insert(c.until, at, time.Time{})
	for ; at < len(c.until); at++ { // at the end, unless a token went back
		c.until[at] = c.tenures[at].EndedAt
		if at > 0 {
			c.until[at] = later(c.until[at], c.until[at-1])
		}
	}
}

// under compares a tenure with those of the subtrees above it. The history does not know the owners of leases: whoever
// has a subtree may also have what lies below, so tenures of one session are no violation.
func (r *replay) under(t Tenure) {
	for _, c := range r.covers {
		if !strings.HasPrefix(t.lock, c.name+"/") {
			continue
		}
		n, _ := slices.BinarySearchFunc(c.tenures, t.EndedAt, func(o Tenure, end time.Time) int {
			return o.GrantedAt.Compare(end)
		})
		for n--; n >= 0 && c.until[n].After(t.GrantedAt); n-- {
			o := c.tenures[n]
			if !o.EndedAt.After(t.GrantedAt) || o.session == t.session ||
				o.Mode == pglock.ModeShared && t.Mode == pglock.ModeShared {
				continue
			}
			first, second := o, t
			if t.GrantedAt.Before(o.GrantedAt) {
				first, second = t, o
			}
			lower, higher := o, t // as they were granted, whatever the clock says
			if t.Token < o.Token {
				lower, higher = t, o
			}
			r.judge(Violation{Kind: ViolationOverlap, Subtree: c.name, First: first, Second: second, By: both(o, t),
				Detail: fmt.Sprintf("%s was granted before %s had ended", placed(second, t, c.name),
					placed(first, t, c.name))}, lower.EndedAt, lower.after, higher)
		}
	}
}

// placed names a tenure, and that of the subtree also by its name.
func placed(which, below Tenure, subtree string) string {
	if which.lock == below.lock {
		return which.String()
	}
	return fmt.Sprintf("%v of subtree %s", which, word(subtree))
}
