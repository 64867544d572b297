package integration

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// modelled is what a lock must be like: who holds it, and who waits, in their order.
type modelled struct {
	name             string
	holding, waiting []*party
	dead             *party // one of those who wait; it is passed over
}

// serve grants the lock to the next for as long as nobody who holds it is in their way.
func (m *modelled) serve() {
	for ; len(m.waiting) > 0; m.waiting = m.waiting[1:] {
		next := m.waiting[0]
		for _, h := range m.holding {
			if next.mode == "exclusive" || h.mode != next.mode || next.mode == "limit 2" && len(m.holding) == 2 {
				if next != m.dead {
					return
				}
			}
		}
		if next != m.dead {
			m.holding = append(m.holding, next)
		}
	}
}

// check compares it with what lists show, which also tell the tokens and slots of those who hold it.
func (m *modelled) check(t *testing.T, look *peer, after string) {
	t.Helper()
	var held, queued []string
	var tokens []int64
	var slots []int
	if err := look.QueryRow(t.Context(), `SELECT array_agg(holder), array_agg(token), array_agg(slot),
			(SELECT array_agg(holder ORDER BY place) FROM pglock.list_waiters($1) WHERE alive)
		FROM pglock.get_lock($1) WHERE held`, m.name).Scan(&held, &tokens, &slots, &queued); err != nil {
		t.Fatal(err)
	}
	var waiting []string
	for _, a := range m.waiting {
		if a != m.dead {
			waiting = append(waiting, a.label)
		}
	}
	right := len(held) == len(m.holding) && slices.Equal(queued, waiting)
	var holding []string
	for _, a := range m.holding {
		holding = append(holding, a.label)
		if n := slices.Index(held, a.label); n < 0 {
			right = false
		} else {
			a.token, a.slot = tokens[n], slots[n]
		}
	}
	if !right {
		t.Errorf("I9: a queue of %s: after %s it is held by %q, and %q wait; want %q and %q",
			m.name, after, held, queued, holding, waiting)
	}
}

// play lets a holder and three behind it come in these modes, one of them die, and everybody end in turn.
func (m *modelled) play(t *testing.T, p *peer, holder string, behind [3]string, dead int, ways []string) {
	t.Helper()
	first := p.party("holder", holder, time.Minute)
	m.name, m.holding = holder, []*party{first}
	parties := make([]*party, len(behind))
	for i, mode := range behind {
		m.name += ", " + mode
		if i == dead {
			m.name += " that died"
		}
		parties[i] = p.party(fmt.Sprint(i+1, " ", mode), mode, time.Minute)
	}
	first.mustGet(t, m.name)
	for _, a := range parties {
		must.Note(t, a.ask(t, m.name, true, false))
		m.waiting = append(m.waiting, a)
		m.serve()
	}
	m.check(t, p, "all have come")
	if dead >= 0 && slices.Contains(m.waiting, parties[dead]) {
		m.dead = parties[dead]
		die(t, p, m.dead)
	}
	for end := 0; len(m.holding) > 0 && !t.Failed(); end++ {
		next, way := m.holding[0], ways[end%len(ways)]
		waysToEnd[way](t, next)
		m.holding = m.holding[1:]
		m.serve()
		m.check(t, p, way+" of "+next.label)
	}
}

// Every queue of three, of all modes, behind a holder of any mode, is served in its order: whoever is next is granted
// the lock when nobody is in the way, and so are those who can hold it together with them and come before somebody who
// cannot. Nobody else is, and they keep their places. A dead one is passed over.
func TestI9_EveryQueueIsServedInItsOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	modes := []string{"exclusive", "shared", "limit 2"}
	ways := slices.Sorted(maps.Keys(waysToEnd))
	for n, c := range []struct {
		holder string
		dead   int // of those behind it
	}{{"exclusive", -1}, {"exclusive", 1}, {"shared", -1}, {"limit 2", -1}} {
		t.Run(fmt.Sprint("behind ", c.holder, ", dead ", c.dead), func(t *testing.T) {
			t.Parallel()
			p, ways := newHastyPeer(t, db.URL()), slices.Concat(ways[n:], ways[:n])
			for i, a := range modes {
				for j, b := range modes {
					for k, d := range modes {
						if !t.Failed() && (pgtest.EveryTest || n == 0 || (i+j+k)%3 == n%3) {
							new(modelled).play(t, p, c.holder, [3]string{a, b, d}, c.dead, ways)
						}
					}
				}
			}
		})
	}
}
