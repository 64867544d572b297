package lockadmin

import (
	"cmp"
	"fmt"
)

// held is the lock that Holder holds.
func (w Wait) held() string { return cmp.Or(w.By, w.For) }

// inTurn reports whether another line of work of the holder's own program waits for its turn at the same lock.
func (w Wait) inTurn() bool { return w.held() == w.Holds && !w.SameOwner }

// which says what is in the way of a wait.
func (w Wait) which() string {
	switch {
	case w.By != "":
		return fmt.Sprintf("which lies above or below %s, and that %s has", word(w.By), w.Holder)
	case w.Holder == "":
		return "which nobody holds at this moment"
	}
	return "which " + w.Holder + " holds"
}

// circle finds waits that lead from holders of the lock back to it: the shortest, and rather by the same owner.
func circle(name string, waits []Wait) []Wait {
	type step struct {
		wait Wait
		from *step
	}
	var front []*step
	seen := make(map[string]bool)
	next := func(from *step, lock, session string) {
		for _, w := range waits {
			if w.Holds != lock || session != "" && w.Session != session || w.inTurn() ||
				seen[w.Session+" "+fmt.Sprint(w.Ticket)+w.HolderSession] {
				continue
			}
			seen[w.Session+" "+fmt.Sprint(w.Ticket)+w.HolderSession] = true
			front = append(front, &step{w, from})
		}
	}
	for next(nil, name, ""); len(front) > 0; {
		s := front[0]
		front = front[1:]
		if s.wait.held() == name {
			var all []Wait
			for at := s; at != nil; at = at.from {
				all = append([]Wait{at.wait}, all...)
			}
			if s.wait.HolderSession == all[0].Session {
				return all
			}
			continue
		}
		if s.wait.HolderSession != "" {
			next(s, s.wait.held(), s.wait.HolderSession)
		}
	}
	return nil
}
