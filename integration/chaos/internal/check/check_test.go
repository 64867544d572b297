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
	return history.Version{Name: "x", Slot: slot, Token: token, Holder: "holder", Grant: fmt.Sprint("grant ", token), Mode: mode, Capacity: 3, AcquiredAt: wall(from), ExpiresAt: wall(to)}
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
	s.Event(history.Event{Kind: history.Asks, Who: who, Call: call, At: ms(at), Names: []string{"x"}, Label: label, TTL: time.Second})
}

func (s *story) has(who, call, token int64, at int, mode string, slot int) {
	s.Event(history.Event{Kind: history.Has, Who: who, Call: call, Lease: call, At: ms(at), Name: "x", Mode: mode, Slot: slot, Token: token, TTL: time.Second})
}

func (s *story) leaves(who, call int64, until, at int, class string) {
	s.Event(history.Event{Kind: history.Lets, Who: who, Lease: call, At: ms(at), Name: "x", Until: ms(until)})
	s.Event(history.Event{Kind: history.Left, Who: who, Lease: call, At: ms(at + 1), Name: "x", Class: class})
}

// A history in which everything is as promised: a hand-over, an expiry, readers, a write of each, and refusals.
func TestHistoryAsPromisedHasNoViolation(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.commit(1, lock(0, "exclusive", 5, 0, 1000))
	s.has(alice, 1, 5, 2, "exclusive", 0)
	s.commit(300, lock(0, "exclusive", 5, 0, 1300)) // renewed
	s.wrote(alice, 100, 310, 320, history.Done)
	s.link(315, write(100, 0, 5))
	s.asks(bob, 2, 320, "b")
	s.leaves(alice, 1, 400, 401, "")
	s.commit(402, handed(lock(0, "exclusive", 7, 402, 1402), 401))
	s.has(bob, 2, 7, 404, "exclusive", 0)
	s.link(410, write(101, 100, 7))
	s.wrote(bob, 101, 405, 412, history.Unknown)
	s.wrote(bob, 102, 420, 425, history.Refused)
	s.leaves(bob, 2, 1300, 1500, "lost")
	s.commit(1403, lock(1, "shared", 9, 1403, 2403), lock(2, "shared", 10, 1403, 2403))
	s.Marking(1, ms(2000))
	s.Commit(history.Commit{Position: 99, Mark: 1})
	s.Finish(history.State{Links: []history.Link{write(100, 0, 5), write(101, 100, 7)}, Heads: map[string]int64{"x": 101}}, []string{"2026 UTC [1] w1 57P01 FATAL:  terminating\n"})
	s.finds()
}

func TestLostUpdateIsFound(t *testing.T) {
	s := tell(t)
	s.commit(0, lock(0, "exclusive", 5, 0, 5000))
	s.link(1, history.Link{Op: 1, Resource: "x", Lock: "x", Token: 5, Again: true})
	s.link(2, history.Link{Op: 2, Resource: "x", Prev: 1, Lock: "x", Token: 5, Again: true})
	s.link(3, history.Link{Op: 3, Resource: "x", Prev: 1, Lock: "x", Token: 5, Again: true})
	s.finds("chain")
}

func TestForkInTheTablesIsFound(t *testing.T) {
	s := tell(t)
	s.chains.read(history.State{Links: []history.Link{write(1, 0, 5), write(2, 1, 6), write(3, 1, 7)}, Heads: map[string]int64{"x": 3}})
	s.finds("chain")
}

func TestChainThatDoesNotHangTogetherIsFound(t *testing.T) {
	s := tell(t)
	s.chains.read(history.State{Links: []history.Link{write(1, 0, 5), write(3, 2, 7)}, Heads: map[string]int64{"x": 1}})
	s.finds("chain")
}

func TestHeadThatNoLinkLeadsToIsFound(t *testing.T) {
	s := tell(t)
	s.chains.read(history.State{Links: []history.Link{write(1, 0, 5)}, Heads: map[string]int64{"x": -1}})
	s.finds("chain")
}

func TestStaleTokenIsFound(t *testing.T) {
	s := tell(t)
	s.chains.link(write(1, 0, 7), 0)
	s.chains.link(write(2, 1, 6), 0)
	s.chains.link(write(3, 2, 6), 0) // twice, and was not allowed to
	s.finds("stale token", "stale token")
}

func TestWriteOutsideItsLeaseIsFound(t *testing.T) {
	s := tell(t)
	s.link(0, write(1, 0, 5)) // nobody has ever held the lock
	s.commit(1, lock(0, "exclusive", 6, 1, 1000))
	s.commit(2, handed(lock(0, "exclusive", 8, 2, 1000), 2))
	s.link(3, write(2, 1, 6)) // granted to another since
	s.commit(4, ended(lock(0, "exclusive", 8, 2, 1000), 4))
	s.link(5, write(3, 2, 8)) // released since
	s.finds("outside its lease", "outside its lease", "outside its lease")
}

func TestNilThatIsNotThereIsFound(t *testing.T) {
	s := tell(t)
	s.wrote(alice, 1, 0, 1, history.Done)
	s.Marking(1, ms(2))
	s.finds()
	s.Commit(history.Commit{Position: 1, Mark: 1})
	s.finds("nil lost")
}

func TestNilThatStoreOutcomeHasMadeUpIsFound(t *testing.T) {
	s := tell(t)
	s.wrote(alice, 1, 0, 1, history.Unknown)
	s.Event(history.Event{Kind: history.Learns, Who: alice, Op: 1, At: ms(2), Answer: history.Done})
	s.Marking(1, ms(3))
	s.Commit(history.Commit{Position: 1, Mark: 1})
	s.finds("nil lost")
}

// A failover that lacks commits excuses what was answered after the standby was cut off, and nothing else; one that lacks
// none excuses nothing.
func TestNilLostWithAFailover(t *testing.T) {
	for name, c := range map[string]struct {
		answered int
		lossy    bool
		finds    []string
	}{
		"before the standby was cut off":       {5, true, []string{"nil lost"}},
		"by the old primary, when it was so":   {15, true, nil},
		"by the new primary":                   {35, true, []string{"nil lost"}},
		"where the standby lacked nothing":     {15, false, []string{"nil lost"}},
		"by the new primary, which lacks none": {35, false, []string{"nil lost"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			promotion := history.Promotion{Lossy: c.lossy, Safe: ms(10), Dead: ms(20), Opened: ms(30)}
			if c.answered < 30 {
				s.wrote(alice, 1, 0, c.answered, history.Done)
				s.Promoted(promotion)
			} else {
				s.Promoted(promotion)
				s.wrote(alice, 1, 0, c.answered, history.Done)
			}
			s.Finish(history.State{}, nil)
			s.finds(c.finds...)
		})
	}
}

func TestRefusedWriteThatIsThereIsFound(t *testing.T) {
	s := tell(t)
	s.commit(0, lock(0, "exclusive", 5, 0, 5000))
	s.wrote(alice, 1, 0, 1, history.Refused)
	s.link(2, write(1, 0, 5))
	s.finds("refused applied")
}

func TestTokenThatDoesNotAscendIsFound(t *testing.T) {
	s := tell(t)
	s.commit(0, lock(0, "exclusive", 9, 0, 100))
	s.commit(0, ended(lock(0, "exclusive", 9, 0, 100), 50))
	s.commit(0, lock(0, "exclusive", 8, 60, 100))
	s.finds("tokens")
}

func TestTokenGivenTwiceIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.has(alice, 1, 5, 1, "exclusive", 0)
	s.asks(bob, 2, 0, "b")
	s.has(bob, 2, 5, 1, "exclusive", 0)
	s.finds("tokens")
}

func TestTokenOfALaterCallThatIsLowerIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.has(alice, 1, 5, 10, "exclusive", 0)
	s.asks(bob, 2, 5, "b") // both were asking: any order will do
	s.has(bob, 2, 4, 12, "exclusive", 0)
	s.asks(bob, 3, 20, "b")
	s.has(bob, 3, 3, 30, "exclusive", 0)
	s.tokens.finish()
	s.finds("tokens")
}

func TestTwoTenuresAtOnceAreFound(t *testing.T) {
	for name, versions := range map[string][]history.Version{
		"granted before the expiry":            {lock(0, "exclusive", 5, 0, 1000), lock(0, "exclusive", 6, 900, 2000)},
		"a renewal that is committed too late": {lock(1, "shared", 5, 0, 1500), lock(0, "exclusive", 6, 1900, 2900), lock(1, "shared", 5, 0, 2500)},
		"a writer beside a reader":             {lock(1, "shared", 5, 0, 1500), lock(0, "exclusive", 6, 1000, 2900)},
		"two limits":                           {lock(1, "limit", 5, 0, 1500), func() history.Version { v := lock(2, "limit", 6, 1000, 2900); v.Capacity = 2; return v }()},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			for n, v := range versions {
				s.commit(n, v)
			}
			s.finds("two tenures")
		})
	}
}

// After a failover only that can be compared which the new primary knows: the last commits of the old one were not told.
func TestTenuresOverAFailover(t *testing.T) {
	for name, c := range map[string]struct {
		has   history.Version // what the new primary has of the lease that ran from 0 to 5000
		lossy bool
		finds []string
	}{
		"still held":                {lock(0, "exclusive", 5, 0, 5000), false, []string{"two tenures"}},
		"released at the last":      {ended(lock(0, "exclusive", 5, 0, 5000), 900), false, nil},
		"granted again at the last": {lock(0, "exclusive", 6, 900, 990), false, nil},
		"lost":                      {ended(lock(0, "exclusive", 3, 0, 100), 50), true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.commit(0, lock(0, "exclusive", 5, 0, 5000))
			s.Promoted(history.Promotion{Lossy: c.lossy, State: history.State{Versions: []history.Version{c.has}}})
			s.commit(1000, lock(0, "exclusive", 8, 1000, 2000))
			s.finds(c.finds...)
		})
	}
}

func TestTwoBelieversAreFound(t *testing.T) {
	s := tell(t)
	s.has(alice, 1, 5, 0, "exclusive", 0)
	s.has(bob, 2, 6, 90, "exclusive", 0)
	s.leaves(alice, 1, 100, 101, "")
	s.leaves(bob, 2, 200, 201, "")
	s.finds("two believers")
}

func TestReadersMayBelieveTogether(t *testing.T) {
	s := tell(t)
	s.has(alice, 1, 5, 0, "shared", 1)
	s.has(bob, 2, 6, 10, "shared", 2)
	s.leaves(alice, 1, 100, 101, "")
	s.leaves(bob, 2, 200, 201, "")
	s.finds()
}

// Who was broken may believe up to its deadline: a TTL after the break, and no longer.
func TestBrokenLeaseMayBeBelievedInUpToItsDeadline(t *testing.T) {
	for until, finds := range map[int][]string{900: nil, 1200: {"two believers"}} {
		s := tell(t)
		s.has(alice, 1, 5, 0, "exclusive", 0)
		s.believers.breaks = append(s.believers.breaks, &breaking{"x", ms(10), ms(11)})
		s.has(bob, 2, 6, 15, "exclusive", 0)
		s.leaves(alice, 1, until, until+1, "lost")
		s.leaves(bob, 2, 3000, 3001, "")
		s.finds(finds...)
	}
}

// What was broken while AcquireAll was waiting for another lock is documented as well: the call knows of it no sooner.
func TestLeaseThatWasBrokenBeforeItsCallReturned(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.believers.breaks = append(s.believers.breaks, &breaking{"x", ms(10), ms(11)})
	s.has(alice, 1, 5, 20, "exclusive", 0)
	s.has(bob, 2, 6, 15, "exclusive", 0)
	s.leaves(alice, 1, 300, 301, "lost")
	s.leaves(bob, 2, 3000, 3001, "")
	s.finds()
}

func TestLeaseThatRanOutForNothingIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		because func(*story)
		finds   []string
	}{
		"nothing":               {func(*story) {}, []string{"lost for nothing"}},
		"a fault of its own":    {func(s *story) { s.faults.Was(history.Fault{Worker: 0, Begin: ms(500), End: ms(600)}) }, nil},
		"a fault of another":    {func(s *story) { s.faults.Was(history.Fault{Worker: 1, Begin: ms(500), End: ms(600)}) }, []string{"lost for nothing"}},
		"a server that is busy": {func(s *story) { s.Look(history.Look{Began: ms(500), Ended: ms(900)}) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.has(alice, 1, 5, 0, "exclusive", 0)
			c.because(s)
			s.Event(history.Event{Kind: history.Left, Who: alice, Lease: 1, At: ms(1500), Name: "x", Class: "lost", Reason: "expired"})
			s.finds(c.finds...)
		})
	}
}

// look tells the judge what the server lists at a moment.
func (s *story) look(at int, holders []history.Holder, tickets []history.Ticket) {
	s.Look(history.Look{Began: ms(at), Ended: ms(at + 1), Holders: holders, Tickets: tickets})
}

func TestLockHeldByNobodyIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.Event(history.Event{Kind: history.Fails, Who: alice, Call: 1, At: ms(100), Class: "cancelled"})
	held := []history.Holder{{Name: "x", Token: 5, Label: "a", AcquiredAt: ms(150), ExpiresAt: ms(5150)}}
	for at := 200; at < 1150; at += 300 {
		s.look(at, held, nil)
	}
	s.finds()
	s.look(1200, held, nil)
	s.look(1700, held, nil)
	s.finds("held by nobody")
}

// As long as a call is open, a fault keeps its process from telling the server, or it could not be told and its caller was
// told so, the lock may stay held.
func TestLockHeldForAReasonIsNoViolation(t *testing.T) {
	held := []history.Holder{{Name: "x", Token: 5, Label: "a", AcquiredAt: ms(150), ExpiresAt: ms(5150)}}
	for name, because := range map[string]func(*story){
		"another call": func(s *story) { s.asks(alice, 2, 50, "a") },
		"a fault":      func(s *story) { s.faults.Was(history.Fault{Worker: 0, Begin: ms(90), End: ms(200)}) },
		"killed":       func(s *story) { s.Died(alice) },
		"the connection was lost": func(s *story) {
			s.has(alice, 1, 5, 60, "exclusive", 0)
			s.leaves(alice, 1, 70, 120, "connection")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.asks(alice, 1, 0, "a")
			because(s)
			s.Event(history.Event{Kind: history.Fails, Who: alice, Call: 1, At: ms(100), Class: "cancelled"})
			for at := 200; at < 3000; at += 300 {
				s.look(at, held, nil)
			}
			s.finds()
		})
	}
}

func TestTicketOfNobodyIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.Event(history.Event{Kind: history.Fails, Who: alice, Call: 1, At: ms(100), Class: "cancelled"})
	for at := 200; at < 4500; at += 300 {
		s.look(at, []history.Holder{{Name: "x", Label: "chaos"}}, []history.Ticket{{Name: "x", Number: 7, Place: 1, Label: "a", Since: ms(10), Alive: true}})
	}
	s.finds("waits for nobody")
}

func TestFreeLockThatIsWaitedForIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	for at := 200; at < 5500; at += 300 {
		s.look(at, nil, []history.Ticket{{Name: "x", Number: 7, Place: 1, Label: "a", Since: ms(10), Alive: true}})
	}
	s.finds("free but waited for")
}

func TestPlainViolationsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		event history.Event
		finds []string
	}{
		"goroutines after a storm": {history.Event{Kind: history.Stormed, Before: 10, Goroutines: 500, Error: "stacks"}, []string{"leftovers"}},
		"goroutines at the end":    {history.Event{Kind: history.Closed, Before: 10, Goroutines: 11}, []string{"leftovers"}},
		"heap at the end":          {history.Event{Kind: history.Closed, HeapBefore: 1 << 20, Heap: 1 << 30}, []string{"leftovers"}},
		"a call that hangs":        {history.Event{Kind: history.Stuck, How: "Close"}, []string{"stuck"}},
		"a deadlock":               {history.Event{Kind: history.Wrote, Class: "40P01"}, []string{"errors"}},
		"no serialization failure reaches who acquires": {history.Event{Kind: history.Fails, Class: "40001"}, []string{"errors"}},
		"one may reach who writes":                      {history.Event{Kind: history.Wrote, Class: "40001"}, nil},
		"an error without a name":                       {history.Event{Kind: history.Left, Class: "other"}, []string{"errors"}},
		"a guard that lets a write through":             {history.Event{Kind: history.Finds, Error: "an UPDATE was accepted"}, []string{"errors"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.Event(c.event)
			s.finds(c.finds...)
		})
	}
}

func TestDefectsInTheLogAreFound(t *testing.T) {
	s := tell(t)
	s.serverLog(strings.Join([]string{
		"2026-11-22 06:14:33.616 UTC [1] w4.0 LK003 ERROR:  the lease of lock 'x' is lost",
		"2026-11-22 06:14:33.616 UTC [1] w4.0 22023 ERROR:  transaction ID 18160 is in the future",
		"2026-11-22 06:14:33.616 UTC [1] w4.0 40P01 ERROR:  deadlock detected",
		"2026-11-22 06:14:33.616 UTC [1] w4.0 XX000 ERROR:  cache lookup failed",
		"2026-11-22 06:14:33.616 UTC [1]  58030 PANIC:  could not write",
	}, "\n"))
	s.finds("server log", "server log", "server log")
}
