package model

// subtree offers what a client does that asks for a subtree, while no transaction of it that may grant is under way.
func (g *guide) subtree(c int) {
	client := &g.from.Clients[c]
	switch client.At {
	case idle:
		g.step(false, Label{NumbersRequest, int8(c)}, func(t *change) { t.number(c) })
	case numbered:
		g.step(true, Label{CommitsTicket, int8(c)}, func(t *change) {
			me := &t.Clients[c]
			me.At, me.Begun, me.Behind = waiting, t.m.Mistake == NoWaitForGrants, 0
		})
	case waiting:
		if client.Life == stopped || client.Life == gone {
			return
		}
		switch {
		case client.Sub.Phase == free && client.Ticket == 0:
			g.step(true, Label{NumbersRequest, int8(c)}, func(t *change) { t.number(c) })
		case !client.Begun:
			g.step(true, Label{WaitsForGrants, int8(c)}, func(t *change) {
				t.Clients[c].Begun, t.Clients[c].Behind = true, t.tableLocks()
			})
		case client.Behind == 0:
			g.asks(c, true)
		}
		if g.m.GivingUp && client.Life == lives && client.Sub.Phase == free {
			g.step(false, Label{GivesUp, int8(c)}, func(t *change) {
				t.Clients[c] = Client{Sub: t.Clients[c].Sub}
			})
		}
	}
}

// number draws the ticket of a subtree request. A client does not ask again while an old lease of its own runs.
func (t *change) number(c int) {
	me := &t.Clients[c]
	if me.Sub.Phase == running || me.Renews {
		return
	}
	*me = Client{At: numbered, Life: me.Life, Ticket: t.nextTicket(), Sub: Lease{free, me.Sub.Token}}
	if t.m.Mistake == TokenWithTicket {
		me.Token = t.nextToken()
	}
}

// beginTransaction begins one that may grant: it locks the table, and then takes its snapshot.
func (t *change) beginTransaction(c int) {
	t.Clients[c].Stage = tableLocked
	if t.m.Mistake == SnapshotFirst && !t.m.isTree(c) {
		t.Clients[c].Stage, t.Clients[c].Saw = snapped, t.shows(c)
	}
}

// tableLocks is who holds the lock on the table locks that a subtree waits for.
func (t *change) tableLocks() (who uint8) {
	for d := range t.m.Roles {
		client := &t.Clients[d]
		holds := client.Stage != none
		if t.m.Mistake == SnapshotFirst && !t.m.isTree(d) || t.m.Mistake == NoTableLock && t.m.isTree(d) {
			holds = false
		}
		if holds || client.At == joined {
			who |= 1 << d
		}
	}
	return who
}

// transaction offers the next step of one that may grant.
func (g *guide) transaction(c int) {
	client := &g.from.Clients[c]
	if client.Stage == tableLocked {
		g.step(true, Label{TakesSnapshot, int8(c)}, func(t *change) {
			t.Clients[c].Stage, t.Clients[c].Saw = snapped, t.shows(c)
		})
		return
	}
	kind := Asks
	if client.At == holding {
		kind = Releases
	}
	finish := func(t *change) { t.finish(c) }
	g.step(true, Label{kind, int8(c)}, finish)
	g.unheard(c, finish)
}

// finish decides and commits, or goes on to commit a ticket.
func (t *change) finish(c int) {
	me := &t.Clients[c]
	if me.At == holding && t.holds(t.m, c) && !t.canTake(int(t.m.Roles[c])) {
		return // it waits for the head
	}
	t.saw = me.Saw
	me.Stage, me.Saw = none, [clients]view{}
	switch {
	case me.At == holding:
		t.release(c)
	case t.m.isTree(c):
		t.askSubtree(c)
	default:
		t.ask(c)
	}
	if me.At != joined {
		t.endTransaction(c)
	}
}

// endTransaction ends the wait of subtrees for it.
func (t *change) endTransaction(c int) {
	for d := range t.m.Roles {
		t.Clients[d].Behind &^= 1 << c
	}
}

// shows is what a snapshot of c shows.
func (t *change) shows(c int) (saw [clients]view) {
	if c < 0 && t.m.tree {
		panic("model: operators do not know subtrees")
	}
	for d := range t.m.Roles {
		if d == c {
			continue
		}
		other := &t.Clients[d]
		phase := other.Sub.Phase
		asks := other.queued()
		if !t.m.isTree(d) && c >= 0 && t.m.isTree(c) {
			l := &t.Locks[t.m.Roles[d]]
			if int(l.Owner) == d+1 {
				phase = l.Phase
			}
			asks = asks && other.Ticket < t.Clients[c].Ticket
		}
		switch {
		case phase == running:
			saw[d] |= sawRunning
		case phase == ranOut:
			saw[d] |= sawRanOut
		}
		switch {
		case asks && other.dead():
			saw[d] |= sawDead
		case asks && (t.m.isTree(d) || c >= 0 && t.m.isTree(c)):
			saw[d] |= sawWaiting
		}
	}
	return saw
}

// covered says that a subtree above is in the way of a plain request with this ticket, or without one (0): it is
// granted and not over, or waits with a lower ticket. What has run out is settled, and whose session is over is taken
// out of the queue, both under the lock of the row; if somebody has locked it, or it has changed, it is in the way.
func (t *change) covered(ticket uint8) bool {
	for d := range t.m.Roles {
		if !t.m.isTree(d) {
			continue
		}
		other := &t.Clients[d]
		lower := ticket == 0 && t.m.Mistake != NewcomersPass || ticket != 0 && other.Ticket < ticket
		switch {
		case t.saw[d]&sawRunning != 0,
			t.saw[d]&sawRanOut != 0 && !t.settleSubtree(d),
			t.saw[d]&sawWaiting != 0 && lower:
			return true
		case t.saw[d]&sawDead != 0:
			if t.m.Mistake == DeadCounts && lower || t.m.Mistake != DeadSubtreeLeft && !t.takeOut(d) {
				return true
			}
		}
	}
	return false
}

// settleSubtree notes that the lease of a subtree is over, if it can lock its row and the row still says that it has
// run out.
func (t *change) settleSubtree(d int) bool {
	other := &t.Clients[d]
	switch {
	case other.Sub.Phase == free || other.Sub.Phase == over:
		return true
	case other.Sub.Phase == running || other.locksLease(t.m, true):
		return false
	}
	if t.m.Mistake != EndNotNoted {
		other.Sub.Phase, other.Ticket = over, 0
	}
	return true
}

// takeOut deletes a subtree request whose session is over, if it has not been granted meanwhile.
func (t *change) takeOut(d int) bool {
	other := &t.Clients[d]
	if !other.queued() && other.Ticket != 0 {
		return false
	}
	other.Ticket = 0
	return true
}

// askSubtree looks whether a subtree request can be granted, at the commit.
func (t *change) askSubtree(c int) {
	me := &t.Clients[c]
	me.At, me.Life = waiting, lives
	switch me.Sub.Phase {
	case running:
		t.learn(c, me.Sub.Token)
		return
	case ranOut, over: // it begins anew
		me.Sub.Phase, me.Ticket, me.Begun = free, 0, false
		return
	}
	if me.Ticket == 0 { // somebody has found its session over
		me.Begun = false
		return
	}
	if !t.clear(c) {
		return
	}
	token := t.nextToken()
	if t.m.Mistake == TokenWithTicket {
		token = me.Token
	}
	for _, l := range t.Locks {
		t.require(token > l.Token, Ascending)
	}
	for d := range t.m.Roles {
		other := &t.Clients[d]
		if d == c {
			continue
		}
		t.require(token > other.Sub.Token, Ascending)
		lower := other.Ticket != 0 && other.Ticket < me.Ticket && !other.dead() && t.saw[d]&sawDead == 0
		if t.m.isTree(d) {
			lower = lower && other.queued() && t.saw[d]&sawWaiting != 0
		}
		t.require(!lower, InTurn)
	}
	me.Sub = Lease{running, token}
	t.learn(c, token)
}

// clear says that nothing is in a subtree request's way: no lease below or above that is not over, and no lower ticket.
// Leases that have run out are settled, and tickets whose sessions are over are taken out of their queues; what it
// cannot lock, or does not find any more, makes it look again later.
func (t *change) clear(c int) bool {
	me := &t.Clients[c]
	for d := range t.m.Roles {
		if d == c {
			continue
		}
		other, saw := &t.Clients[d], t.saw[d]
		switch {
		case saw&sawRunning != 0:
			return false
		case saw&sawRanOut != 0 && t.m.isTree(d) && !t.settleSubtree(d):
			return false
		case saw&sawRanOut != 0 && !t.m.isTree(d) && !t.settleBelow(d):
			return false
		}
		lower := !t.m.isTree(d) || other.Ticket < me.Ticket
		switch {
		case saw&sawWaiting != 0 && lower && t.m.Mistake != PassLower:
			return false
		case saw&sawDead == 0 || !lower || t.m.Mistake == DeadTicketLeft && !t.m.isTree(d):
		case !other.queued() || other.Ticket > me.Ticket:
			if t.m.Mistake != DeadTicketGone {
				return false
			}
		default:
			other.Ticket = 0
		}
	}
	return true
}

// settleBelow notes that a plain lease is over.
func (t *change) settleBelow(d int) bool {
	n := int(t.m.Roles[d])
	l := &t.Locks[n]
	switch {
	case l.Phase == free || l.Phase == over:
		return true
	case l.Phase == running || int(l.Owner) != d+1 || !t.canTake(n):
		return false
	}
	if t.m.Mistake != EndNotNoted {
		l.settle()
	}
	return true
}
