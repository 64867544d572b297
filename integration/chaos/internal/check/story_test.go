//go:build unix

package check

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// story tells a judge a history, and remembers what the judge finds.
type story struct {
	*Judge
	t        *testing.T
	faults   *history.Faults
	found    []Violation
	position uint64
}

func tell(t *testing.T) *story {
	t.Helper()
	s := &story{t: t, faults: &history.Faults{}}
	s.Judge = New(s.faults, func(v Violation) { s.found = append(s.found, v) }, func(string) {})
	return s
}

// finds checks that the judge has found exactly these, one of each, in their order.
func (s *story) finds(checks ...string) {
	s.t.Helper()
	var found []string
	for _, v := range s.found {
		found = append(found, v.Check)
	}
	if fmt.Sprint(found) != fmt.Sprint(checks) {
		s.t.Errorf("found %q, want %q", found, checks)
		for _, v := range s.found {
			s.t.Logf("%s: %s\n%s\n%s", v.Check, v.What, strings.Join(v.Evidence, "\n"), strings.Join(v.Trail, "\n"))
		}
	}
}

// Two workers, each in its first life.
const (
	alice int64 = 0
	bob   int64 = 1 * history.Lives
)

// start is when every story begins, and ms are milliseconds after it, on both clocks.
var start = history.ReadWall()

func ms(n int) history.Time { return start.Time(wall(n)) }

var midnight = time.Now()

func wall(n int) time.Time { return midnight.Add(time.Duration(n) * time.Millisecond) }

// lock is a version of lock "x" in a slot, held by a grant from one moment to another.
func lock(slot int, mode string, token int64, from, to int) history.Version {
	return history.Version{Name: "x", Slot: slot, Token: token, Holder: "holder", Grant: fmt.Sprint("grant ", token),
		Mode: mode, Capacity: 3, AcquiredAt: wall(from), ExpiresAt: wall(to)}
}

// ended is the version when its lease was released.
func ended(v history.Version, at int) history.Version {
	v.ExpiresAt, v.EndedAt = time.Time{}, wall(at)
	return v
}

// handed is the version when the lease before it in the row was released in the same step.
func handed(v history.Version, at int) history.Version {
	v.EndedAt = wall(at)
	return v
}

func (s *story) commit(at int, versions ...history.Version) {
	s.position++
	s.Commit(history.Commit{Position: s.position, At: wall(at), Versions: versions})
}

func (s *story) link(at int, links ...history.Link) {
	s.position++
	s.Commit(history.Commit{Position: s.position, At: wall(at), Links: links})
}

func write(op, prev, token int64) history.Link {
	return history.Link{Op: op, Resource: "x", Prev: prev, Lock: "x", Token: token}
}

// wrote is a write from its beginning to its answer.
func (s *story) wrote(who, op int64, from, to int, answer string) {
	s.Event(history.Event{Kind: history.Writes, Who: who, Op: op, At: ms(from), Resources: []string{"x"}})
	s.Event(history.Event{Kind: history.Wrote, Who: who, Op: op, At: ms(to), Answer: answer})
}

// asks, has and leaves are a lease in its holder's hands.
func (s *story) asks(who, call int64, at int, label string) {
	s.Event(history.Event{Kind: history.Asks, Who: who, Call: call, At: ms(at), Names: []string{"x"}, Label: label,
		TTL: time.Second})
}

func (s *story) has(who, call, token int64, at int, mode string, slot int) {
	s.Event(history.Event{Kind: history.Has, Who: who, Call: call, Lease: call, At: ms(at), Name: "x", Mode: mode,
		Slot: slot, Token: token, TTL: time.Second})
}

func (s *story) leaves(who, call int64, until, at int, class string) {
	s.Event(history.Event{Kind: history.Lets, Who: who, Lease: call, At: ms(at), Name: "x", Until: ms(until)})
	s.Event(history.Event{Kind: history.Left, Who: who, Lease: call, At: ms(at + 1), Name: "x", Class: class})
}
