//go:build unix

package check

import (
	"fmt"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// of is a version of another lock, of the owner.
func of(v history.Version, name, owner string) history.Version {
	v.Name, v.Owner, v.Grant = name, owner, name+v.Grant
	return v
}

// whole is the version as the lease of a subtree.
func whole(v history.Version) history.Version {
	v.Subtree = true
	return v
}

const exclusive = "exclusive"

func TestSubtreeAndWhatItExcludesAreFound(t *testing.T) {
	held := func(mode string, token int64, name string) history.Version {
		return of(lock(0, mode, token, int(token), 1000), name, fmt.Sprint("owner ", token))
	}
	for name, c := range map[string]struct {
		first, second history.Version
		finds         []string
	}{
		"a subtree over a lease":          {held(exclusive, 5, "a/b/c"), whole(held(exclusive, 6, "a")), two},
		"a lease below a subtree":         {whole(held(exclusive, 5, "a")), held(exclusive, 6, "a/b"), two},
		"a reader below a subtree":        {whole(held(exclusive, 5, "a")), held("shared", 6, "a/b"), two},
		"a writer below readers":          {whole(held("shared", 5, "a")), held(exclusive, 6, "a/b"), two},
		"a semaphore below readers":       {whole(held("shared", 5, "a")), held("limit", 6, "a/b"), two},
		"a subtree of readers over one":   {held(exclusive, 5, "a/b"), whole(held("shared", 6, "a")), two},
		"a subtree below another":         {whole(held(exclusive, 5, "a")), whole(held("shared", 6, "a/b")), two},
		"a subtree above another":         {whole(held("shared", 5, "a/b")), whole(held(exclusive, 6, "a")), two},
		"readers below readers":           {whole(held("shared", 5, "a")), held("shared", 6, "a/b"), nil},
		"a subtree of readers in another": {whole(held("shared", 5, "a")), whole(held("shared", 6, "a/b")), nil},
		"a lease below another":           {held(exclusive, 5, "a"), held(exclusive, 6, "a/b"), nil},
		"a name that only begins so":      {whole(held(exclusive, 5, "a")), held(exclusive, 6, "ab/c"), nil},
		"a subtree beside another":        {whole(held(exclusive, 5, "a/b")), whole(held(exclusive, 6, "a/c")), nil},
		"the same owner": {whole(of(held(exclusive, 5, "a"), "a", "one")), of(held(exclusive, 6, "a/b"), "a/b",
			"one"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.commit(0, c.first)
			s.commit(1, c.second)
			s.finds(c.finds...)
		})
	}
}

var two = []string{"two tenures"}

func TestLeaseBelowASubtreeThatHasEndedIsNoViolation(t *testing.T) {
	s := tell(t)
	tree := whole(of(lock(0, exclusive, 5, 0, 1000), "a", ""))
	s.commit(0, tree)
	s.commit(500, ended(tree, 500))
	s.commit(501, of(lock(0, exclusive, 6, 501, 1000), "a/b", ""))
	s.finds()
}

func TestLowerTokenAfterASubtreeIsFound(t *testing.T) {
	s := tell(t)
	tree := whole(of(lock(0, exclusive, 9, 0, 1000), "a", ""))
	s.commit(0, tree)
	s.commit(500, ended(tree, 500))
	s.commit(501, of(lock(0, exclusive, 8, 501, 1000), "a/b", ""))
	s.finds("tokens")
}

// A write is committed under a lease that has run out, which nobody but its own lock's next holder would notice.
func TestWriteAfterAGrantBelowItsSubtreeIsFound(t *testing.T) {
	s := tell(t)
	s.commit(0, whole(of(lock(0, exclusive, 5, 0, 1000), "a", "")))
	s.commit(1001, of(lock(0, exclusive, 6, 1001, 2000), "a/b", ""))
	s.link(1002, history.Link{Op: 1, Resource: "a/b", Lock: "a", Token: 5})
	s.finds("outside its lease")
}

// A hand-over is one step, although the clock is read twice.
func TestHandOverIsOneStep(t *testing.T) {
	s := tell(t)
	s.commit(0, lock(0, exclusive, 5, 0, 1000))
	s.commit(500, handed(lock(0, exclusive, 6, 500, 1500), 501))
	s.link(600, write(1, 0, 6))
	s.finds()
}

// climbs is a call for a name in a tree, by itself or as a subtree.
func (s *story) climbs(who, call int64, at int, name, mode string, subtree bool) {
	s.Event(history.Event{Kind: history.Asks, Who: who, Call: call, At: ms(at), Names: []string{name}, Mode: mode,
		Subtree: subtree, Label: fmt.Sprint("w/", call), TTL: time.Second})
}

func (s *story) climbed(who, call int64, at int, name, mode string, subtree bool) {
	s.Event(history.Event{Kind: history.Has, Who: who, Call: call, Lease: call, At: ms(at), Name: name, Mode: mode,
		Subtree: subtree, Token: call, TTL: time.Second})
}

func ticket(call int64, name string) history.Ticket {
	return history.Ticket{Name: name, Number: call, Place: 1, Label: fmt.Sprint("w/", call), Alive: true}
}

func TestTwoBelieversInATreeAreFound(t *testing.T) {
	s := tell(t)
	s.climbs(alice, 5, 0, "a", exclusive, true)
	s.climbed(alice, 5, 1, "a", exclusive, true)
	s.climbs(bob, 6, 0, "a/b", "shared", false)
	s.climbed(bob, 6, 2, "a/b", "shared", false)
	for _, call := range []int64{5, 6} {
		s.Event(history.Event{Kind: history.Lets, Who: alice, Lease: call, At: ms(101), Until: ms(100)})
		s.Event(history.Event{Kind: history.Left, Who: alice, Lease: call, At: ms(102)})
	}
	s.finds("two believers")
}

// Who queues for a subtree, or below one, is not overtaken by who asks later; but for a hand-over, and for who was
// queued before anybody could see the ticket.
func TestOvertakingInATreeIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		waits, comes branch
		asked        int // by who comes
		also         func(*story)
		finds        []string
	}{
		"below a subtree":   {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 10, nil, overtaken},
		"above a request":   {branch{"a/b", exclusive, false}, branch{"a", "shared", true}, 10, nil, overtaken},
		"before the look":   {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 4, nil, nil},
		"readers":           {branch{"a", "shared", true}, branch{"a/b", "shared", false}, 10, nil, nil},
		"beside a subtree":  {branch{"a", exclusive, true}, branch{"b/b", exclusive, false}, 10, nil, nil},
		"plain requests":    {branch{"a", exclusive, false}, branch{"a/b", exclusive, false}, 10, nil, nil},
		"after a promotion": {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 10, promoted, nil},
		"a hand-over": {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 10, func(s *story) {
			s.Event(history.Event{Kind: history.Hands, Who: bob, Lease: 9, At: ms(15), Name: "a/b"})
		}, nil},
		"one of several hand-overs": {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 10,
			func(s *story) {
				s.Event(history.Event{Kind: history.Hands, Who: bob, Lease: 9, At: ms(15), Name: "a/b"})
				s.Event(history.Event{Kind: history.Hands, Who: alice, Lease: 10, At: ms(21), Name: "a/b"})
				s.Event(history.Event{Kind: history.Handed, Who: bob, Lease: 9, At: ms(22), Name: "a/b"})
			}, nil},
		"after a hand-over": {branch{"a", exclusive, true}, branch{"a/b", exclusive, false}, 10, func(s *story) {
			s.Event(history.Event{Kind: history.Hands, Who: bob, Lease: 9, At: ms(6), Name: "a/b"})
			s.Event(history.Event{Kind: history.Handed, Who: bob, Lease: 9, At: ms(8), Name: "a/b"})
		}, overtaken},
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			s.climbs(alice, 1, 0, c.waits.name, c.waits.mode, c.waits.subtree)
			tickets := []history.Ticket{ticket(1, c.waits.name)}
			s.look(5, nil, tickets)
			s.climbs(bob, 2, c.asked, c.comes.name, c.comes.mode, c.comes.subtree)
			if c.also != nil {
				c.also(s)
			}
			s.climbed(bob, 2, 20, c.comes.name, c.comes.mode, c.comes.subtree)
			s.look(30, nil, tickets)
			s.finds(c.finds...)
		})
	}
}

var overtaken = []string{"overtaken"}

func promoted(s *story) { s.Promoted(history.Promotion{}) }

// A lock is not free for a ticket while a lease above or below is in its way, or a lower ticket there.
func TestSubtreeThatWaitsForNothingIsFound(t *testing.T) {
	for name, c := range map[string]struct {
		holder history.Holder
		before bool // a lower ticket below
		finds  []string
	}{
		"for nothing":             {history.Holder{Name: "b"}, false, []string{"free but waited for"}},
		"for a lease below":       {history.Holder{Name: "a/b/c", Mode: "shared"}, false, nil},
		"for a subtree above":     {history.Holder{Name: "r", Mode: "shared", Subtree: true}, false, nil},
		"for a name that is like": {history.Holder{Name: "ab/c", Mode: exclusive}, false, freeFor},
		"for a ticket below":      {history.Holder{Name: "r/a/b"}, true, nil},
		"a ticket for nothing":    {history.Holder{Name: "b"}, true, freeFor}, // the lower one, and only that
	} {
		t.Run(name, func(t *testing.T) {
			s := tell(t)
			if c.holder.Name == "a/b/c" || c.holder.Name == "ab/c" {
				c.holder.Name = "r/" + c.holder.Name
			}
			s.climbs(alice, 2, 0, "r/a", exclusive, true)
			tickets := []history.Ticket{ticket(2, "r/a")}
			if c.before {
				s.climbs(bob, 1, 0, "r/a/b", exclusive, false)
				tickets = append(tickets, ticket(1, "r/a/b"))
			}
			c.holder.Label = "chaos"
			for at := 0; at < 5000; at += 300 {
				s.look(at, []history.Holder{c.holder}, tickets)
			}
			s.finds(c.finds...)
		})
	}
}

var freeFor = []string{"free but waited for"}
