//go:build unix

package check

import (
	"testing"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

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
	s.Finish(history.State{Links: []history.Link{write(100, 0, 5), write(101, 100, 7)},
		Heads: map[string]int64{"x": 101}}, []string{"2026 UTC [1] w1 57P01 FATAL:  terminating\n"})
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
	s.chains.read(history.State{Links: []history.Link{write(1, 0, 5), write(2, 1, 6), write(3, 1, 7)},
		Heads: map[string]int64{"x": 3}})
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

// A failover that lacks commits excuses what was answered after the standby was cut off, and nothing else; one that
// lacks none excuses nothing.
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

// A process that stood still reads the answer of the old primary when that is long gone.
func TestAnswerOfTheOldPrimaryIsReadLater(t *testing.T) {
	for lossy, finds := range map[bool][]string{true: nil, false: {"nil lost"}} {
		s := tell(t)
		s.Event(history.Event{Kind: history.Writes, Who: alice, Op: 1, At: ms(15), Resources: []string{"x"}})
		s.Promoted(history.Promotion{Lossy: lossy, Safe: ms(10), Dead: ms(20), Opened: ms(30)})
		s.Event(history.Event{Kind: history.Wrote, Who: alice, Op: 1, At: ms(35), Answer: history.Done})
		s.Finish(history.State{}, nil)
		s.finds(finds...)
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
		"granted before the expiry": {lock(0, "exclusive", 5, 0, 1000), lock(0, "exclusive", 6, 900, 2000)},
		"a renewal that is committed too late": {lock(1, "shared", 5, 0, 1500), lock(0, "exclusive", 6, 1900, 2900),
			lock(1, "shared", 5, 0, 2500)},
		"a writer beside a reader": {lock(1, "shared", 5, 0, 1500), lock(0, "exclusive", 6, 1000, 2900)},
		"two limits": {lock(1, "limit", 5, 0, 1500), func() history.Version {
			v := lock(2, "limit", 6, 1000, 2900)
			v.Capacity = 2
			return v
		}()},
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

// After a failover only that can be compared which the new primary knows: the last commits of the old one were not
// told.
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

func TestSemaphoreThatLetsOneTooManyInIsFound(t *testing.T) {
	s := tell(t)
	for n := 1; n <= 3; n++ {
		s.commit(n, lock(n, "limit", int64(n), n, 1000))
	}
	s.commit(4, lock(4, "limit", 4, 1000, 2000)) // when the others are over
	s.finds()
	s.commit(5, lock(5, "limit", 5, 999, 2000))
	s.finds("two tenures")
}
