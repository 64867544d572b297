//go:build unix

package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// tokens checks that the tokens of each lock ascend: in the server's rows in the order of commits, and in the
// callers' hands in the order of time.
type tokens struct {
	*court
	greatest map[string]int64 // of each lock, of all grants so far
	grants   map[slot]string  // the latest grant of each slot
	asked    map[int64]history.Time
	given    map[string][]given
	seen     map[string]map[int64]given
}

// given is a token in the hands of a caller.
type given struct {
	token        int64
	who, lease   int64
	asked, given history.Time
}

func newTokens(c *court) tokens {
	return tokens{court: c, greatest: make(map[string]int64), grants: make(map[slot]string),
		asked: make(map[int64]history.Time),
		given: make(map[string][]given), seen: make(map[string]map[int64]given)}
}

func (t *tokens) version(v history.Version) {
	at := slot{v.Name, v.Slot}
	if v.Held() && t.grants[at] != v.Grant && v.Token <= t.greatest[v.Name] {
		t.blame("tokens", history.Now(), []string{v.Name},
			fmt.Sprintf("lock %q was granted with token %d after token %d", v.Name, v.Token, t.greatest[v.Name]))
	}
	t.greatest[v.Name] = max(t.greatest[v.Name], v.Token)
	if !v.Gone {
		t.grants[at] = v.Grant
	}
}

// promoted notes the grants that the new primary knows. The tokens of those that it lacks were used nevertheless.
func (t *tokens) promoted(p history.Promotion) {
	for _, v := range p.State.Versions {
		t.grants[slot{v.Name, v.Slot}] = v.Grant
	}
}

func (t *tokens) event(e history.Event) {
	switch e.Kind {
	case history.Asks:
		t.asked[e.Call] = e.At
	case history.Fails:
		delete(t.asked, e.Call)
	case history.Has:
		g := given{e.Token, e.Who, e.Lease, t.asked[e.Call], e.At}
		if t.seen[e.Name] == nil {
			t.seen[e.Name] = make(map[int64]given)
		}
		if other, twice := t.seen[e.Name][e.Token]; twice {
			t.blame("tokens", e.At, []string{e.Name}, fmt.Sprintf("token %d of lock %q was given to %s and to %s",
				e.Token, e.Name, sayWho(other.who), sayWho(e.Who)))
		}
		t.seen[e.Name][e.Token] = g
		t.given[e.Name] = append(t.given[e.Name], g)
	}
}

// finish checks the order of time: a lease that was requested after another was in hand has a greater token.
func (t *tokens) finish() {
	for name, all := range t.given {
		byReturn := slices.Clone(all)
		slices.SortFunc(byReturn, func(a, b given) int { return cmp.Compare(a.given, b.given) })
		slices.SortFunc(all, func(a, b given) int { return cmp.Compare(a.asked, b.asked) })
		var greatest given
		n := 0
		for _, g := range all {
			for n < len(byReturn) && byReturn[n].given < g.asked {
				if byReturn[n].token > greatest.token {
					greatest = byReturn[n]
				}
				n++
			}
			if g.token <= greatest.token {
				t.blame("tokens", g.given, []string{name},
					fmt.Sprintf("lock %q: token %d was asked for by %s at %s, after %s had token %d at %s", name,
						g.token,
						sayWho(g.who), sayTime(g.asked), sayWho(greatest.who), greatest.token, sayTime(greatest.given)))
			}
		}
	}
}
