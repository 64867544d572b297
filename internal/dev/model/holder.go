package model

import "slices"

// holder offers what a client does with a lease.
func (g *guide) holder(c int) {
	m, client := g.m, &g.from.Clients[c]
	if client.Renews {
		g.step(true, Label{RenewalCommits, int8(c)}, func(t *change) { t.renewed(c) })
		g.step(true, Label{RenewalFails, int8(c)}, func(t *change) { t.Clients[c].Renews = false })
	}
	if client.At < holding || client.Stage != none {
		return
	}
	if m.Renewals && !client.Renews {
		g.step(false, Label{Renews, int8(c)}, func(t *change) {
			if t.holds(m, c) {
				t.Clients[c].Renews = true
			} else {
				t.lose(c)
			}
		})
	}
	switch client.At {
	case holding:
		if m.Writes {
			g.step(false, Label{PassesFence, int8(c)}, func(t *change) { t.fence(c) })
		}
		g.releases(c)
	case fenced:
		g.step(true, Label{ChecksLease, int8(c)}, func(t *change) {
			if t.holds(m, c) || m.Mistake == NoCheck {
				t.Clients[c].At = checked
			} else {
				t.Clients[c].At = holding
				t.lose(c)
			}
		})
		g.step(true, Label{RollsBack, int8(c)}, func(t *change) { t.Clients[c].At = holding })
	case checked:
		g.step(true, Label{Commits, int8(c)}, func(t *change) { t.commit(c) })
	}
}

// lose is how a client learns that its lease is lost. One that writes learns it from its transaction.
func (t *change) lose(c int) {
	if me := &t.Clients[c]; me.At == holding && !me.Renews {
		me.At, me.Token = idle, 0
		if t.m.isTree(c) && me.Sub.Phase == over {
			me.Sub.Phase, me.Ticket = free, 0
		}
	}
}

// renewed is the commit of a renewal. The row is still that of its lease, since the renewal has locked it.
func (t *change) renewed(c int) {
	me, l := &t.Clients[c], t.lease(t.m, c)
	me.Renews = false
	same := l.Token == me.Token && l.Phase != free
	if t.m.Mistake == LateRenewal { // it has locked nothing, and asks only whether the row still is its grant's
		if same {
			l.Phase = running
		}
		return
	}
	t.require(same && l.Phase != over, Exclusion)
	l.Phase = running
}

// fence passes the fence, unless another transaction has locked its row. One grant passes once.
func (t *change) fence(c int) {
	me := &t.Clients[c]
	for d := range t.m.Roles {
		if t.Clients[d].At == fenced || t.Clients[d].At == checked {
			return
		}
	}
	held := t.holds(t.m, c)
	switch {
	case held && me.Token > t.Fence, t.m.Mistake == NoFence && me.Token != t.Fence:
		t.require(me.Token > t.Fence, FenceHeld)
		me.At = fenced
	case !held || me.Token < t.Fence:
		t.lose(c)
	}
}

// commit is what COMMIT does after the check.
func (t *change) commit(c int) {
	me := &t.Clients[c]
	l := t.lease(t.m, c)
	inTime := t.owns(t.m, c) && (l.Phase == running || l.Phase == ranOut)
	for d := range t.m.Roles {
		other := &t.Clients[d]
		if d != c && t.m.isTree(d) {
			inTime = inTime && (other.Sub.Phase == free || other.Sub.Phase == over)
		} else if d != c && t.m.isTree(c) {
			below := t.Locks[t.m.Roles[d]].Phase
			inTime = inTime && (below == free || below == over)
		}
	}
	t.require(inTime, InTime)
	t.require(me.Token >= t.Fence, FenceHeld)
	t.Fence, me.At = me.Token, holding
}

// releases offers the ways in which a holder ends its lease.
func (g *guide) releases(c int) {
	m := g.m
	switch {
	case m.isTree(c):
		g.step(false, Label{Releases, int8(c)}, func(t *change) {
			me := &t.Clients[c]
			if t.holds(m, c) && me.Renews {
				return
			}
			if t.holds(m, c) {
				me.Sub.Phase, me.Ticket = free, 0
			}
			t.lose(c)
		})
		return
	case m.tree:
		g.step(false, Label{LocksTable, int8(c)}, func(t *change) { t.beginTransaction(c) })
		return
	}
	g.step(false, Label{Releases, int8(c)}, func(t *change) {
		t.saw = t.shows(c)
		t.release(c)
	})
	for d := range m.Roles {
		if m.HandOvers && d != c && m.Roles[d] == m.Roles[c] {
			g.step(false, Label{HandsOver, int8(c)}, func(t *change) { t.handOver(c, d) })
		}
	}
}

// release ends a lease and serves the queue. It waits for whoever has locked the head.
func (t *change) release(c int) {
	n := int(t.m.Roles[c])
	if t.holds(t.m, c) {
		if !t.canTake(n) {
			return
		}
		t.Locks[n].end()
		if t.m.Mistake != ReleaseOnly {
			t.serve(n, c, false)
		}
	}
	t.lose(c)
}

// handOver ends a lease and grants the name to the ticket that the holder chooses.
func (t *change) handOver(c, d int) {
	n := int(t.m.Roles[c])
	if !t.holds(t.m, c) || !t.canTake(n) || !t.Clients[d].queued() || t.Clients[d].dead() {
		return
	}
	t.grant(n, d, c, true)
	t.Locks[n].Untold = t.m.Hints
	t.lose(c)
}

// clock offers what the server's clock does. A lease ends by it. If it is set back, one that is not settled goes on.
func (g *guide) clock() {
	run := func(n int, of func(*State) *Lease) {
		switch of(&g.from).Phase {
		case running:
			g.step(true, Label{RunsOut, int8(n)}, func(t *change) { of(&t.State).Phase = ranOut })
		case ranOut:
			g.step(false, Label{ClockSetBack, int8(n)}, func(t *change) { of(&t.State).Phase = running })
		}
	}
	for n := range names {
		run(n, func(s *State) *Lease { return &s.Locks[n].Lease })
	}
	for c := range g.m.Roles {
		run(names+c, func(s *State) *Lease { return &s.Clients[c].Sub })
	}
}

// around offers what others do: whoever announces a grant, and an operator.
func (g *guide) around() {
	for n := range names {
		l := &g.from.Locks[n]
		if l.Untold {
			g.step(false, Label{Announces, int8(n)}, func(t *change) {
				l := &t.Locks[n]
				l.Untold = false
				if l.Phase == running && l.Owner != 0 {
					if to := &t.Clients[l.Owner-1]; to.At == waiting && l.Fresh {
						to.Hint = l.Token
					}
				}
			})
		}
		if g.m.Breaks && l.Phase == running {
			g.step(false, Label{IsBroken, int8(n)}, func(t *change) {
				if !t.canTake(n) {
					return
				}
				t.Locks[n].Token = t.nextToken()
				t.Locks[n].end()
				t.saw = t.shows(-1)
				t.serve(n, -1, false)
			})
		}
	}
}

// life offers that a client stops while it waits, and comes back.
func (g *guide) life(c int) {
	client := &g.from.Clients[c]
	if !slices.Contains(g.m.Stops, c) || client.At != waiting || client.Stage != none {
		return
	}
	become := func(certain bool, kind Kind, life Life) {
		g.step(certain, Label{kind, int8(c)}, func(t *change) { t.Clients[c].Life = life })
	}
	switch client.Life {
	case lives:
		become(false, Stops, stopped)
	case stopped:
		become(true, SessionEnds, gone)
		become(false, ComesBack, lives)
	case gone:
		become(false, ComesBack, back)
	case back:
		become(true, Looks, lives)
	}
}
