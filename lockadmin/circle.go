package lockadmin

import (
	"cmp"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// held is the lock that Holder holds.
func (w Wait) held() string { return cmp.Or(w.By, w.For) }

// inTurn reports whether another line of work of the holder's own program waits for its turn at the same lock.
func (w Wait) inTurn() bool { return w.held() == w.Holds && !w.SameOwner }

// which says what is in the way of a wait.
func (w Wait) which() string {
	switch {
	case w.By != "":
		return say("which lies above or below %s, and that %s has", word(w.By), label(w.Holder))
	case w.Holder == "":
		return "which nobody holds at this moment"
	}
	return shown.Either(w.AnyOf, "of which "+label(w.Holder)+" has a place", "which "+label(w.Holder)+" holds")
}

// standing is how long every lease and every wait of a circle of programs must have lasted to be worth a word. Nobody
// knows whether a program's work that holds is its work that waits, and busy programs make such circles all the time.
const standing = time.Minute

// lasts reports whether a wait of one program for another one has stood for long.
func (w Wait) lasts() bool {
	return w.Session != w.HolderSession && !w.inTurn() && w.Waiting > standing && w.HeldFor > standing
}

// isDeadlock reports whether a circle is one of owners: in each program the work that holds is the one that waits.
func isDeadlock(waits []Wait) bool {
	return len(waits) > 0 && !slices.ContainsFunc(waits, func(w Wait) bool { return !w.SameOwner })
}

// circle finds waits that lead from holders of the lock back to it: the shortest of the same owners, or else the
// shortest of several programs that has stood for long. A wait for one of several places is in none, unless the owners
// of all places wait for each other.
func circle(name string, waits []Wait) []Wait {
	never := stuck(waits)
	owners := func(w Wait) bool { return w.SameOwner && (!w.AnyOf || never[w.Ticket]) }
	if found := shortest(name, waits, owners); found != nil {
		return found
	}
	return shortest(name, waits, func(w Wait) bool { return !w.AnyOf && w.lasts() })
}

// holdersRead is how many holders of a lock a ticket's waits have at most: of so many there may be more.
const holdersRead = 5

// stuck are the tickets of owners that can go on only after each other: each waits for a lease of another one, and if
// it waits for one of several places, for leases of others alone. It is so for the server, see stuck_waits.
func stuck(waits []Wait) map[int64]bool {
	all := make(map[int64]bool)
	for _, w := range waits {
		if w.SameOwner {
			all[w.Ticket] = true
		}
	}
	waitsToo := func(w Wait) bool {
		return slices.ContainsFunc(waits, func(o Wait) bool {
			return o.SameOwner && all[o.Ticket] && o.Holds == w.held() && o.Session == w.HolderSession
		})
	}
	for before := -1; before != len(all); {
		before = len(all)
		for ticket := range all {
			if !holdsOn(ticket, waits, waitsToo) {
				delete(all, ticket)
			}
		}
	}
	return all
}

// holdsOn reports whether a ticket waits until one of those ends that wait too. Of two places of one client nobody
// knows whose work it is that waits.
func holdsOn(ticket int64, waits []Wait, waitsToo func(Wait) bool) bool {
	leases, places, open := make(map[pglock.Token]bool), make(map[string]pglock.Token), false
	for _, w := range waits {
		if w.Ticket != ticket {
			continue
		}
		too := waitsToo(w)
		if too && !w.AnyOf {
			return true
		}
		leases[w.Token] = true
		if w.AnyOf {
			token, again := places[w.HolderSession]
			open = open || !too || again && token != w.Token
			places[w.HolderSession] = w.Token
		}
	}
	return len(places) > 0 && !open && len(leases) < holdersRead
}

// shortest is the shortest circle of waits that count.
func shortest(name string, waits []Wait, counts func(Wait) bool) []Wait {
	type ticket struct {
		session, holder string
		number          int64
	}
	seen := make(map[ticket]bool)
	var front [][]Wait // ways that lead from holders of the lock
	next := func(way []Wait, lock, session string) {
		for _, w := range waits {
			t := ticket{w.Session, w.HolderSession, w.Ticket}
			if w.Holds == lock && (session == "" || w.Session == session) && counts(w) && !seen[t] {
				seen[t] = true
				front = append(front, append(slices.Clip(way), w))
			}
		}
	}
	for next(nil, name, ""); len(front) > 0; front = front[1:] {
		way := front[0]
		last := way[len(way)-1]
		switch {
		case last.held() == name && last.HolderSession == way[0].Session:
			return way
		case last.held() != name && last.HolderSession != "":
			next(way, last.held(), last.HolderSession)
		}
	}
	return nil
}
