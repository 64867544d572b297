package pglock

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// A client that holds leases gives the server a sign of life every ten seconds, however long their TTLs are, so that
// people see soon whether it lives. Nothing else depends on it. A renewal is a sign for its lease, a look for all.
const (
	signEvery = 10 * time.Second
	// signWithin is how soon one should be given that is due.
	signWithin = 2 * time.Second
	// signPause is how long the client waits after a sign that has failed, at most; at least it is half of that.
	signPause = 700 * time.Millisecond
	// lookShows is how old a sign may be before a look writes a newer one: see touch_session.
	lookShows = 5 * time.Second
	// rowStays is for how long the server keeps what it knows of a client that has died, if that has not said that it
	// holds something for longer. It says so with a sign: also for a lease that was extended and is renewed often.
	rowStays = time.Minute
)

// goesElsewhere plans a sign of life for soon, because the connection was lost: so the client has one to the new
// leader as soon as there is one. Many clients lose theirs at once, so they come back at random.
func (c *Client) goesElsewhere() {
	c.leases.signSoon(c.now().Mono + rand.N(signPause))
	signal(c.beatWake)
}

// giveSign gives a sign of life, one for all leases.
func (c *Client) giveSign(ctx context.Context) {
	c.mayBeKnown.Store(true)
	sent := c.now()
	who := c.who()
	who.Holds, who.Names = c.leases.longest(sent.Mono)
	err := c.backend.Sign(ctx, lookPatience/2, who)
	if c.leases.signed(sent.Mono, err); err != nil {
		c.leases.signLater(c.now().Mono + signPause/2 + rand.N(signPause/2))
	}
}

// holdsFor is what a client tells that holds something for so long: the next sign comes later.
func holdsFor(longest time.Duration) time.Duration { return min(longest+signEvery, MaxTTL) }

// signed notes a sign of life that was given at a time, if it did not fail.
func (s *leases) signed(at time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.sign, s.soon = max(s.sign, at), never
	}
}

func (s *leases) signLater(until time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signAgain = until
}

// signSoon plans a sign that no lease wants.
func (s *leases) signSoon(at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.soon = at
}

// namesTold is how many locks a sign of life names.
const namesTold = 20

// longest is how long the client may hold something without another sign of life, by its next renewals too, and the
// locks that it may hold for the longest: people find them by these names when the client has died.
func (s *leases) longest(now time.Duration) (time.Duration, []string) {
	type held struct {
		name string
		left time.Duration
	}
	var all []held
	s.mu.Lock()
	for l := range s.all {
		l.mu.Lock()
		all = append(all, held{l.name, max(l.ttl, l.deadline.Mono-now)})
		l.mu.Unlock()
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b held) int {
		return cmp.Or(cmp.Compare(b.left, a.left), cmp.Compare(a.name, b.name))
	})
	longest, names := MinTTL, []string{}
	for _, h := range all[:min(len(all), namesTold)] {
		longest, names = max(longest, h.left), append(names, h.name)
	}
	return holdsFor(longest), names
}
