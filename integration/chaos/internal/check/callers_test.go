//go:build unix

package check

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

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

func TestOneBelieverTooManyIsFound(t *testing.T) {
	s := tell(t)
	for n := int64(1); n <= 4; n++ {
		s.Event(history.Event{Kind: history.Has, Who: alice, Lease: n, At: ms(int(n)), Name: "x", Mode: "limit",
			Limit: 3, Slot: int(n), Token: n, TTL: time.Second})
	}
	for n := int64(1); n <= 3; n++ {
		s.leaves(alice, n, 100, 101, "")
	}
	s.finds()
	s.leaves(alice, 4, 50, 101, "")
	s.finds("two believers")
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

// The holder of a broken lease and the next one of its slot count as one, also beside a holder that began before the
// break.
func TestBrokenLeaseOfASlotIsNoBelieverTooMany(t *testing.T) {
	for name, c := range map[string]struct {
		broken bool
		finds  []string
	}{"broken": {true, nil}, "not broken": {false, []string{"two believers", "two believers"}}} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			has := func(n int64, slot, at int) {
				s.Event(history.Event{Kind: history.Has, Who: alice, Lease: n, At: ms(at), Name: "x", Mode: "limit",
					Limit: 2, Slot: slot, Token: n, TTL: time.Second})
			}
			has(1, 1, 0)
			has(2, 2, 5)
			if c.broken {
				s.believers.breaks = append(s.believers.breaks, &breaking{"x", ms(10), ms(11)})
			}
			has(3, 1, 15)
			s.leaves(alice, 3, 50, 51, "")
			s.leaves(alice, 1, 100, 101, "lost")
			s.leaves(alice, 2, 200, 201, "")
			s.finds(c.finds...)
		})
	}
}

// The new primary goes on with a lease whose break was lost with a failover; who was granted the lock after the break
// may believe together with its holder until that lease would have ended.
func TestBreakThatAFailoverHasLost(t *testing.T) {
	for name, c := range map[string]struct {
		lossy bool
		until int // the newer holder believes
		finds []string
	}{
		"for a while":              {true, 900, nil},
		"for longer than the TTL":  {true, 1200, []string{"two believers"}},
		"where nothing was lost":   {false, 900, []string{"two believers"}},
		"until before it was seen": {true, 14, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.has(alice, 1, 5, 0, "exclusive", 0)
			s.believers.breaks = append(s.believers.breaks, &breaking{"x", ms(10), ms(11)})
			s.has(bob, 2, 6, 15, "exclusive", 0)
			s.Promoted(history.Promotion{Lossy: c.lossy, Safe: ms(5), Dead: ms(100), Opened: ms(110)})
			s.leaves(bob, 2, c.until, c.until+1, "lost")
			s.leaves(alice, 1, 3000, 3001, "")
			s.finds(c.finds...)
		})
	}
}

// Who had extended its lease believes in a grant that a failover lost for as long as it had extended it.
func TestExtensionThatAFailoverHasLost(t *testing.T) {
	for until, finds := range map[int][]string{2000: nil, 3500: {"two believers"}} {
		s := tell(t)
		s.has(alice, 1, 5, 50, "exclusive", 0)
		s.Event(history.Event{Kind: history.Extends, Who: alice, Lease: 1, From: ms(60), At: ms(70), Name: "x",
			TTL: 3 * time.Second})
		s.Promoted(history.Promotion{Lossy: true, Safe: ms(40), Dead: ms(100), Opened: ms(110)})
		s.has(bob, 2, 6, 1000, "exclusive", 0)
		s.leaves(alice, 1, until, until+1, "")
		s.leaves(bob, 2, 5000, 5001, "")
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
		"nothing": {func(*story) {}, []string{"lost for nothing"}},
		"a fault of its own": {func(s *story) {
			s.faults.Was(history.Fault{Worker: 0, Begin: ms(500), End: ms(600)})
		}, nil},
		"a fault of another": {func(s *story) {
			s.faults.Was(history.Fault{Worker: 1, Begin: ms(500), End: ms(600)})
		}, []string{"lost for nothing"}},
		"a server that is busy": {func(s *story) { s.Look(history.Look{Began: ms(500), Ended: ms(900)}) }, nil},
		"a machine that is busy": {func(s *story) {
			s.Event(history.Event{Kind: history.Stalled, Who: bob, From: ms(500), At: ms(900)})
		}, nil},
		"another that was stopped": {func(s *story) {
			s.faults.Was(history.Fault{Worker: 1, Begin: ms(490), End: ms(950)})
			s.Event(history.Event{Kind: history.Stalled, Who: bob, From: ms(500), At: ms(900)})
		}, []string{"lost for nothing"}},
		"a disk that is busy": {func(s *story) { s.Marked(ms(500), ms(900)) }, nil},
		"a mark":              {func(s *story) { s.Marked(ms(500), ms(590)) }, []string{"lost for nothing"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.has(alice, 1, 5, 0, "exclusive", 0)
			c.because(s)
			s.Event(history.Event{Kind: history.Left, Who: alice, Lease: 1, At: ms(1500), Name: "x", Class: "lost",
				Reason: "expired"})
			s.finds(c.finds...)
		})
	}
}

// A lease of less than a second may run out when its process or the server was late for a good part of its TTL.
func TestBriefLeaseThatRanOutForNothingIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		how   string
		late  int // in three times, all in all
		after int // a pause that goes on when the loss is told
		finds []string
	}{
		"beside a crowd":                    {history.Brief, 21, 20, []string{"lost for nothing"}},
		"beside a crowd, and it hung":       {history.Brief, 90, 20, nil},
		"beside a crowd, and it still hung": {history.Brief, 0, 70, nil},
		"anywhere else":                     {"acquire", 0, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.Event(history.Event{Kind: history.Has, Who: alice, Call: 1, Lease: 1, How: c.how, At: ms(0), Name: "x",
				TTL: 200 * time.Millisecond})
			for n := range 3 {
				s.Event(history.Event{Kind: history.Late, Who: alice, From: ms(350 + 50*n),
					At: ms(350 + 50*n + c.late/3)})
			}
			s.Event(history.Event{Kind: history.Late, Who: alice, From: ms(0), At: ms(190)}) // long before
			s.Event(history.Event{Kind: history.Lets, Who: alice, Lease: 1, At: ms(500), Name: "x", Until: ms(480)})
			s.Event(history.Event{Kind: history.Left, Who: alice, Lease: 1, At: ms(501), Name: "x", Class: "lost",
				Reason: "expired"})
			s.Event(history.Event{Kind: history.Late, Who: alice, From: ms(490), At: ms(490 + c.after)})
			s.Event(history.Event{Kind: history.Late, Who: bob, From: ms(1400), At: ms(1600)})
			s.finds(c.finds...)
		})
	}
}

// No fault explains that an extended lease ran out, but a failover that may have lost the extension.
func TestExtendedLeaseThatRanOutIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		because func(*story)
		at      int
		finds   []string
	}{
		"too soon": {func(*story) {}, 2700, []string{"extension"}},
		"too soon, but there was fault": {func(s *story) {
			s.faults.Was(history.Fault{Begin: ms(500), End: ms(9000)})
		}, 2700, []string{"extension"}},
		"when its extension was over": {func(s *story) {
			s.faults.Was(history.Fault{Begin: ms(500), End: ms(9000)})
		}, 3200, nil},
		"when somebody had ended it": {func(s *story) {
			s.faults.Was(history.Fault{Begin: ms(500), End: ms(9000)})
			s.Event(history.Event{Kind: history.Shortens, Who: alice, Lease: 1, At: ms(1000), Name: "x"})
		}, 2700, nil},
		"when the extension may be lost": {func(s *story) {
			s.faults.Was(history.Fault{Begin: ms(50), End: ms(9000)})
			s.Promoted(history.Promotion{Lossy: true, Safe: ms(50), Dead: ms(200), Opened: ms(300)})
		}, 2700, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.has(alice, 1, 5, 0, "exclusive", 0)
			s.Event(history.Event{Kind: history.Extends, Who: alice, Lease: 1, From: ms(100), At: ms(110), Name: "x",
				TTL: 3 * time.Second})
			c.because(s)
			s.Event(history.Event{Kind: history.Left, Who: alice, Lease: 1, At: ms(c.at), Name: "x", Class: "lost",
				Reason: "expired"})
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

// As long as a call is open, a fault keeps its process from telling the server, or it could not be told and its caller
// was told so, the lock may stay held.
func TestLockHeldForAReasonIsNoViolation(t *testing.T) {
	held := []history.Holder{{Name: "x", Token: 5, Label: "a", AcquiredAt: ms(150), ExpiresAt: ms(5150)}}
	for name, because := range map[string]func(*story){
		"another call": func(s *story) { s.asks(alice, 2, 50, "a") },
		"a fault":      func(s *story) { s.faults.Was(history.Fault{Worker: 0, Begin: ms(90), End: ms(200)}) },
		"killed":       func(s *story) { s.Died(alice) },
		"its release was not answered": func(s *story) {
			s.has(alice, 1, 5, 60, "exclusive", 0)
			s.leaves(alice, 1, 70, 120, "deadline")
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

// A stranger's transaction may keep a release waiting for a second.
func TestLockHeldForLongerThanAnOpenTransactionIsFound(t *testing.T) {
	s := tell(t)
	s.faults.Was(history.Fault{Name: "open", Worker: history.Everybody, Begin: ms(90), End: ms(5000), Quiet: true,
		Delays: time.Second})
	s.asks(alice, 1, 0, "a")
	s.Event(history.Event{Kind: history.Fails, Who: alice, Call: 1, At: ms(100), Class: "cancelled"})
	held := []history.Holder{{Name: "x", Token: 5, Label: "a", AcquiredAt: ms(150), ExpiresAt: ms(5150)}}
	for at := 200; at < 2100; at += 300 {
		s.look(at, held, nil)
	}
	s.finds()
	s.look(2200, held, nil)
	s.look(2700, held, nil)
	s.finds("held by nobody")
}

func TestTicketOfNobodyIsFound(t *testing.T) {
	s := tell(t)
	s.asks(alice, 1, 0, "a")
	s.Event(history.Event{Kind: history.Fails, Who: alice, Call: 1, At: ms(100), Class: "cancelled"})
	for at := 200; at < 4500; at += 300 {
		s.look(at, []history.Holder{{Name: "x", Label: "chaos"}},
			[]history.Ticket{{Name: "x", Number: 7, Place: 1, Label: "a", Since: ms(10), Alive: true}})
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

func TestPruneThatTakesLongIsFound(t *testing.T) {
	s := tell(t)
	s.Pruned(ms(0), ms(1900))
	s.faults.Was(history.Fault{Worker: history.Everybody, Begin: ms(10_000), End: ms(11_000)})
	s.Pruned(ms(9000), ms(12_000)) // the server was away
	s.finds()
	s.Pruned(ms(20_000), ms(22_100))
	s.finds("stuck")
}

func TestWhatTakesLongBesideAnOpenTransactionIsFound(t *testing.T) {
	s := tell(t)
	s.Took("a release", ms(0), ms(0), ms(900), time.Second, nil)
	s.faults.Was(history.Fault{Worker: history.Everybody, Begin: ms(10_000), End: ms(11_000)})
	s.Took("a release", ms(9000), ms(9000), ms(12_000), time.Second, nil) // the server was away
	s.Marked(ms(40_000), ms(40_200))
	s.Took("a release", ms(39_000), ms(41_000), ms(41_001), time.Second, errors.New("lost")) // slow, and so it was lost
	s.finds()
	s.Took("a release", ms(20_000), ms(20_000), ms(21_100), time.Second, nil)
	s.Took("a release", ms(29_000), ms(30_000), ms(30_100), time.Second, errors.New("refused"))
	s.Took("a release", ms(41_000), ms(42_000), ms(42_001), time.Second, errors.New("lost")) // without a reason
	s.finds("held up", "held up", "held up")
}

func TestPlainViolationsAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		event history.Event
		finds []string
	}{
		"goroutines after a storm": {history.Event{Kind: history.Stormed, Before: 10, Goroutines: 500, Error: "stacks"},
			[]string{"leftovers"}},
		"goroutines at the end": {history.Event{Kind: history.Closed, Before: 10, Goroutines: 11},
			[]string{"leftovers"}},
		"an error of Close": {history.Event{Kind: history.Closed, How: history.Close, Class: "other"},
			[]string{"errors"}},
		"a refusal of Close": {history.Event{Kind: history.Fails, How: history.Close, Class: "held"},
			[]string{"errors"}},
		"a Close of a worker that is late": {history.Event{Kind: history.Closed, How: history.Close,
			Class: "deadline"}, nil},
		"a Close of a visitor that is late": {history.Event{Kind: history.Fails, How: history.Close,
			Class: "deadline"}, nil},
		"a connection that nothing has cut": {history.Event{Kind: history.Fails, Class: "connection"},
			[]string{"errors"}},
		"a server that nothing has stopped": {history.Event{Kind: history.Wrote, Class: "57P01"}, []string{"errors"}},
		"heap at the end": {history.Event{Kind: history.Closed, HeapBefore: 1 << 20, Heap: 1 << 30},
			[]string{"leftovers"}},
		"a call that hangs": {history.Event{Kind: history.Stuck, How: history.Close}, []string{"stuck"}},
		"a deadlock":        {history.Event{Kind: history.Wrote, Class: "40P01"}, []string{"errors"}},
		"no serialization failure reaches who acquires": {history.Event{Kind: history.Fails, Class: "40001"},
			[]string{"errors"}},
		"one may reach who writes":   {history.Event{Kind: history.Wrote, Class: "40001"}, nil},
		"an error without a name":    {history.Event{Kind: history.Left, Class: "other"}, []string{"errors"}},
		"what a worker finds itself": {history.Event{Kind: history.Finds, Error: "it must not be"}, []string{"errors"}},
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
		"2026-11-22 06:14:33.616 UTC [1] w4.0 40P01 ERROR:  deadlock detected",
		"2026-11-22 06:14:33.616 UTC [1] w4.0 XX000 ERROR:  cache lookup failed",
		"2026-11-22 06:14:33.616 UTC [1] w1.0 0A000 ERROR:  cannot use serializable mode in a hot standby",
		"2026-11-22 06:14:33.616 UTC [1] w1.0 0A000 ERROR:  cannot set transaction read-write mode during recovery",
		"2026-11-22 06:14:33.616 UTC [1] w1.0 0A000 ERROR:  cannot execute LISTEN during recovery",
		"2026-11-22 06:14:33.616 UTC [1]  58030 PANIC:  could not write",
	}, "\n"))
	s.finds("server log", "server log", "server log", "server log")
}

func TestRefusalOfAServerThatIsNotFullIsFound(t *testing.T) {
	s := tell(t)
	s.faults.Was(history.Fault{Name: "full", Worker: history.Everybody, Begin: ms(100), End: ms(200), Quiet: true,
		Full: true})
	s.Event(history.Event{Kind: history.Fails, How: "try", At: ms(210), Class: "53300"})
	s.finds()
	s.Event(history.Event{Kind: history.Fails, How: "try", At: ms(20_000), Class: "53300"})
	s.finds("errors")
}

// A worker may lose its connections for as long after a fault as an error may take to come about.
func TestLossOfAConnectionIsFoundWhereNoFaultWas(t *testing.T) {
	for _, kind := range []history.Kind{history.Fails, history.Closed} {
		s := tell(t)
		s.faults.Was(history.Fault{Name: "reset", Worker: 0, Begin: ms(100), End: ms(200)})
		s.Event(history.Event{Kind: kind, Who: alice, At: ms(11_000), Class: "connection"})
		s.finds()
		s.Event(history.Event{Kind: kind, Who: bob, At: ms(11_000), Class: "connection"}) // the fault is another's
		s.Event(history.Event{Kind: kind, Who: alice, At: ms(13_000), Class: "connection"})
		s.finds("errors", "errors")
	}
}

// A guard that was tampered with may ask for another fence, and so refuse a fenced write.
func TestFencedWriteThatAGuardRefusesIsFound(t *testing.T) {
	s := tell(t)
	s.faults.Was(history.Fault{Name: history.Tampered, Worker: history.Everybody, Begin: ms(100), End: ms(200),
		Quiet: true})
	s.Event(history.Event{Kind: history.Wrote, How: "Write, guarded", At: ms(150), Answer: history.Refused,
		Class: "unfenced"})
	s.finds()
	s.Event(history.Event{Kind: history.Wrote, How: "Write, guarded", At: ms(20_000), Answer: history.Refused,
		Class: "unfenced"})
	s.finds("errors")
}

// An unfenced write may be let through only while somebody has tampered with a guard.
func TestUnfencedWriteThatIsLetThroughIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		from, to int
		answer   string
		finds    []string
	}{
		"before the guard was tampered with": {10, 90, history.Done, []string{"guards"}},
		"while the guard was tampered with":  {10, 110, history.Done, nil},
		"after its repair":                   {201, 210, history.Done, []string{"guards"}},
		"refused":                            {10, 20, history.Refused, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.faults.Was(history.Fault{Name: history.Tampered, Worker: history.Everybody, Begin: ms(100), End: ms(200),
				Quiet: true})
			s.Event(history.Event{Kind: history.Wrote, How: history.Unfenced, Name: "guarded", From: ms(c.from),
				At: ms(c.to), Answer: c.answer})
			s.finds(c.finds...)
		})
	}
}
