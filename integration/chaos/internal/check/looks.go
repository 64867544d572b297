//go:build unix

package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// looks compares what the server lists with what the callers do: nothing is held or queued for nobody, and nothing is
// free while somebody waits. A difference counts only if two consecutive looks show it and no injected fault explains
// it.
type looks struct {
	*court
	usage    *usage
	trees    *trees
	suspects map[string]suspect // what was wrong in the last look
	free     map[string]freeLock
	blamed   map[string]bool
}

type suspect struct{ since history.Time }

// freeLock is a lock that nobody holds while the same ticket is first in its queue.
type freeLock struct {
	ticket int64
	since  history.Time
}

const (
	heldByNobody   = time.Second
	waitsForNobody = 3 * time.Second
	freeButWaited  = 4 * time.Second
	delayed        = 5 * time.Second // for as long as that a fault's delays are remembered
	own            = "chaos"         // begins the labels of the laboratory itself
)

func (l *looks) look(k history.Look) {
	wrong := make(map[string]suspect)
	suspectIt := func(key string) (confirmed bool) {
		was, again := l.suspects[key]
		if !again {
			was.since = k.Began
		}
		wrong[key] = was
		if again && !l.blamed[key] && k.Began.Sub(was.since) > 400*time.Millisecond {
			l.blamed[key] = true
			return true
		}
		return false
	}
	held := make(map[string]bool)
	for _, h := range k.Holders {
		held[h.Name] = true
		// A release that could not be sent runs out with its TTL.
		if idle, since := l.idle(place{h.Label, h.Name}, h.AcquiredAt, k.Began, heldByNobody, false); idle {
			if suspectIt(fmt.Sprint("held ", h.Name, h.Slot, h.Token)) {
				l.blame("held by nobody", k.Began, []string{h.Name, h.Label},
					fmt.Sprintf("lock %q is held by %s with token %d, for whom no call or lease has been open for %v",
						h.Name, h.Label, h.Token, k.Began.Sub(since)), h)
			}
		}
	}
	first := make(map[string]history.Ticket)
	for _, t := range k.Tickets {
		// Tickets do not run out: after a fault they have to be taken back. Those of dead sessions block nobody, and
		// are swept away later.
		if idle, since := l.idle(place{t.Label, t.Name}, t.Since, k.Began, waitsForNobody, true); idle && t.Alive {
			if suspectIt(fmt.Sprint("ticket ", t.Number)) {
				l.blame("waits for nobody", k.Began, []string{t.Name, t.Label},
					fmt.Sprintf("ticket %d of lock %q is of %s, for whom no call has been open for %v", t.Number,
						t.Name, t.Label, k.Began.Sub(since)), t)
			}
		}
		if u := l.usage.of[place{t.Label, t.Name}]; u != nil && u.open > 0 && !l.usage.dead[u.who] {
			if _, there := first[t.Name]; !there {
				first[t.Name] = t
			}
		}
	}
	l.suspects = wrong
	l.lookForFree(k, held, first)
}

// idle reports whether nobody has had a call or a lease of the place open for longer than allowed, although nothing
// kept its client from telling the server: not since the call returned, or, with later, not for as long as allowed.
// The server has had what it lists since the given time.
func (l *looks) idle(at place, there, now history.Time, allowed time.Duration, later bool) (bool, history.Time) {
	if strings.HasPrefix(at.label, own) {
		return false, 0
	}
	u := l.usage.of[at]
	allowed += l.faults.Delay(now.Add(-allowed-delayed), now)
	if u == nil {
		return now.Sub(there) > allowed+settling, there // it never asked
	}
	since := max(there, u.closed)
	from := since.Add(-time.Second)
	if later {
		from = max(from, now.Add(-allowed))
	}
	return u.open == 0 && !l.usage.dead[u.who] && (later || now > u.doubt) && now.Sub(since) > allowed &&
		!l.faults.Disturbed(worker(u.who), from, now, settling), since
}

// lookForFree follows locks that nobody holds although a queued call is open.
func (l *looks) lookForFree(k history.Look, held map[string]bool, first map[string]history.Ticket) {
	free := make(map[string]freeLock)
	for name, t := range first {
		if held[name] || l.trees.blocked(k, t) {
			continue
		}
		f := freeLock{t.Number, k.Began}
		if was, again := l.free[name]; again && was.ticket == t.Number {
			f.since = was.since
		}
		free[name] = f
		u := l.usage.of[place{t.Label, name}]
		key := fmt.Sprint("free ", t.Number)
		if k.Began.Sub(f.since) > freeButWaited+l.faults.Delay(f.since, k.Began) && !l.blamed[key] &&
			!l.anybodyDisturbed(k.Tickets, name, f.since.Add(-time.Second), k.Began) {
			l.blamed[key] = true
			l.blame("free but waited for", k.Began, []string{name},
				fmt.Sprintf("nobody has held lock %q for %v, while ticket %d of %s is the first whose call waits", name,
					k.Began.Sub(f.since), t.Number, sayWho(u.who)), t)
		}
	}
	l.free = free
}

// anybodyDisturbed reports whether a fault concerned any of those queued for the lock, above it or below it: one that
// does not answer may delay those behind it.
func (l *looks) anybodyDisturbed(tickets []history.Ticket, name string, from, to history.Time) bool {
	for _, t := range tickets {
		if t.Name != name && !related(t.Name, name) {
			continue
		}
		u := l.usage.of[place{t.Label, t.Name}]
		if u == nil || l.usage.dead[u.who] || l.faults.Disturbed(worker(u.who), from, to, settling) {
			return true
		}
	}
	return false
}
