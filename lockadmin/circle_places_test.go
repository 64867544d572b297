package lockadmin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/pglock"
)

// A has lock a, and waits for one of several places of lock gpu. It is a deadlock only if nobody who has a place can
// let go of it.
func TestCircleThroughPlaces(t *testing.T) {
	t.Parallel()
	wait := func(ticket int64, session, holds, wants, holder string) Wait {
		return Wait{Waiter: session, Session: session, Holds: holds, For: wants, Ticket: ticket, Holder: holder,
			HolderSession: holder, SameOwner: true}
	}
	places := func(holders ...string) (all []Wait) {
		for n, holder := range holders {
			w := wait(1, "A", "a", "gpu", holder)
			w.AnyOf, w.Token = true, pglock.Token(10+n)
			all = append(all, w)
		}
		return all
	}
	with := func(all []Wait, more ...Wait) []Wait { return append(all, more...) }
	own := wait(3, "C", "gpu", "a", "A")
	own.SameOwner = false
	five := places("B", "C", "D", "E", "F")
	for n, holder := range []string{"B", "C", "D", "E", "F"} {
		five = append(five, wait(int64(2+n), holder, "gpu", "a", "A"))
	}
	above := wait(1, "A", "a", "gpu", "C")
	above.By, above.Token = "gpu/1", 20
	for name, c := range map[string]struct {
		waits []Wait
		want  string // the locks that are waited for, from a on
	}{
		"both wait for it": {with(places("B", "C"), wait(2, "B", "gpu", "a", "A"), wait(3, "C", "gpu", "a", "A")),
			"gpu a"},
		"one works":               {with(places("B", "C"), wait(2, "B", "gpu", "a", "A")), ""},
		"other work of one waits": {with(places("B", "C"), wait(2, "B", "gpu", "a", "A"), own), ""},
		"one waits for somebody who works": {with(places("B", "C"), wait(2, "B", "gpu", "a", "A"),
			wait(3, "C", "gpu", "c", "D")), ""},
		"one waits for another one that waits": {with(places("B", "C"), wait(2, "B", "gpu", "a", "A"),
			wait(3, "C", "gpu", "c", "D"), wait(4, "D", "c", "a", "A")), "gpu a"},
		"one client has two places": {with(places("B", "B"), wait(2, "B", "gpu", "a", "A")), ""},
		"there may be more places":  {five, ""},
		"a lock above is in the way, too": {with(places("B", "C"), above, wait(2, "B", "gpu", "a", "A"),
			wait(3, "C", "gpu/1", "a", "A")), "gpu a"},
	} {
		var locks []string
		for _, w := range circle("a", c.waits) {
			locks = append(locks, w.For)
		}
		if got := strings.Join(locks, " "); got != c.want {
			t.Errorf("%s: %q, want %q: %s", name, got, c.want, fmt.Sprint(c.waits))
		}
	}
}
