package lockadmin

import (
	"cmp"
	"slices"
)

// held is the lock that Holder holds.
func (w Wait) held() string { return cmp.Or(w.By, w.For) }

// inTurn reports whether another line of work of the holder's own program waits for its turn at the same lock.
func (w Wait) inTurn() bool { return w.held() == w.Holds && !w.SameOwner }

// which says what is in the way of a wait.
func (w Wait) which() string {
	switch {
	case w.By != "":
		return say("which lies above or below %s, and that %s has", word(w.By), w.Holder)
	case w.Holder == "":
		return "which nobody holds at this moment"
	}
	return "which " + w.Holder + " holds"
}

// circle finds waits that lead from holders of the lock back to it: the shortest, and rather by the same owner.
func circle(name string, waits []Wait) []Wait {
	type ticket struct {
		session, holder string
		number          int64
	}
	seen := make(map[ticket]bool)
	var front [][]Wait // ways that lead from holders of the lock
	next := func(way []Wait, lock, session string) {
		for _, w := range waits {
			t := ticket{w.Session, w.HolderSession, w.Ticket}
			if w.Holds == lock && (session == "" || w.Session == session) && !w.inTurn() && !seen[t] {
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
