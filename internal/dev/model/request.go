package model

// plain offers what a client does that asks for a name, while no transaction of it is under way that has several steps.
func (g *guide) plain(c int) {
	m, client := g.m, &g.from.Clients[c]
	switch client.At {
	case idle:
		if m.Mistake == TokenBeforeRow {
			g.step(false, Label{DrawsToken, int8(c)}, func(t *change) {
				t.begin(c)
				t.Clients[c].At, t.Clients[c].Token = drawn, t.nextToken()
			})
			return
		}
		g.asks(c, false)
	case drawn:
		g.asks(c, true)
	case joined:
		g.step(true, Label{CommitsTicket, int8(c)}, func(t *change) { t.commitTicket(c) })
	case waiting:
		if client.Life == stopped || client.Life == gone {
			return
		}
		g.asks(c, g.from.triggered(m, c))
		if client.Hint != 0 {
			g.step(false, Label{HearsHint, int8(c)}, func(t *change) {
				me := &t.Clients[c]
				me.Ticket = 0
				t.learn(c, me.Hint)
			})
		}
		if m.GivingUp && client.Life == lives {
			g.step(false, Label{GivesUp, int8(c)}, func(t *change) { t.giveUp(c) })
		}
	}
}

// asks offers a request of a client: the first, a repeated one, or one of a client that waits. Where there are subtrees
// it is a transaction of several steps.
func (g *guide) asks(c int, certain bool) {
	if g.m.tree {
		kind := LocksTable
		if g.m.Mistake == SnapshotFirst && !g.m.isTree(c) {
			kind = TakesSnapshot
		}
		g.step(certain, Label{kind, int8(c)}, func(t *change) {
			if t.Clients[c].At == idle {
				t.begin(c)
			}
			t.Clients[c].At = waiting
			t.beginTransaction(c)
		})
		return
	}
	ask := func(t *change) {
		if t.Clients[c].At == idle {
			t.begin(c)
		}
		t.saw = t.shows(c)
		t.ask(c)
	}
	g.step(certain, Label{Asks, int8(c)}, ask)
	g.unheard(c, ask)
}

// unheard offers the same step with a lost answer: the client does not know what it was granted.
func (g *guide) unheard(c int, ask func(*change)) {
	if !g.m.LostAnswers || g.from.Clients[c].At == holding {
		return
	}
	g.step(false, Label{AsksUnheard, int8(c)}, func(t *change) {
		ask(t)
		if t.Clients[c].At == holding {
			t.Clients[c].At, t.Clients[c].Token = waiting, 0
		}
	})
}

// begin makes a new request, with a new grant ID.
func (t *change) begin(c int) {
	t.Clients[c].Hint = 0
	if !t.m.isTree(c) {
		if l := &t.Locks[t.m.Roles[c]]; int(l.Owner) == c+1 {
			l.Fresh = false
		}
	}
}

// triggered says that a client that waits will ask: a look has not found its ticket, or has found that it is the first
// and that no lease runs.
func (s *State) triggered(m *Model, c int) bool {
	l := &s.Locks[m.Roles[c]]
	first := s.first(m, int(m.Roles[c]))
	if first == c && l.Phase != running {
		return true
	}
	granted := int(l.Owner) == c+1 && l.Fresh
	return (granted || s.Clients[c].Ticket == 0) && m.Mistake != HintsAlone
}

// first is who has the lowest ticket of a name that counts; -1: nobody.
func (s *State) first(m *Model, n int) int {
	first := -1
	for d := range m.Roles {
		if int(m.Roles[d]) == n && s.Clients[d].queued() && !s.Clients[d].dead() &&
			(first < 0 || s.Clients[d].Ticket < s.Clients[first].Ticket) {
			first = d
		}
	}
	return first
}

// ask is acquire_lease with wait, at its commit. What it knows of sessions and subtrees, its snapshot has shown.
func (t *change) ask(c int) {
	n := int(t.m.Roles[c])
	l, me := &t.Locks[n], &t.Clients[c]
	if me.At != drawn {
		me.At = waiting
	}
	me.Life = lives
	if int(l.Owner) == c+1 && l.Fresh {
		if l.Phase == running {
			me.Ticket = 0
			t.learn(c, l.Token)
		} else { // its grant ID is spent: it begins anew
			l.Fresh, me.Hint = false, 0
		}
		return
	}
	take := t.canTake(n)
	switch {
	case l.Phase == free && take && !l.Marked && !t.covered(me.Ticket): // is_free
		t.grant(n, c, c, false)
	case l.Phase != running && take:
		t.serve(n, c, me.Ticket == 0 || me.At == drawn)
		if me.At != holding {
			t.enqueue(n, c)
		}
	case l.Phase != free:
		t.enqueue(n, c)
	case me.At != drawn: // free, and others have joined: it asks again at once
		me.At = waiting
	}
}

// learn makes a lease of a grant.
func (t *change) learn(c int, token uint8) {
	me := &t.Clients[c]
	me.At, me.Token, me.Hint = holding, token, 0
	if !t.m.isTree(c) {
		t.Locks[t.m.Roles[c]].Untold = false
	}
}

// canTake says that a head can be locked FOR UPDATE: nobody has joined it, and no renewal and no COMMIT has locked it.
func (t *change) canTake(n int) bool {
	ended := t.Locks[n].Phase == ranOut
	for d := range t.m.Roles {
		other := &t.Clients[d]
		if int(t.m.Roles[d]) != n {
			continue
		}
		if other.At == joined && t.m.Mistake != QueueWithoutHead ||
			other.locksLease(t.m, ended) {
			return false
		}
	}
	return true
}

// locksLease says that a renewal or a COMMIT of a client has locked the row of its lease.
func (c *Client) locksLease(m *Model, ended bool) bool {
	return c.At == checked && !(ended && m.Mistake == NoLockInside) ||
		c.Renews && !(ended && m.Mistake == RenewalPassed) && m.Mistake != LateRenewal
}

// enqueue draws a ticket, unless there is one.
func (t *change) enqueue(n, c int) {
	me := &t.Clients[c]
	if me.Ticket != 0 {
		return
	}
	if me.At == drawn {
		me.Token = 0
	}
	me.At, me.Ticket, me.Hint = joined, t.nextTicket(), 0
	t.Locks[n].Marked = t.Locks[n].Phase == free && t.m.Mistake != HeadNotMarked
}

func (t *change) commitTicket(c int) {
	t.Clients[c].At = waiting
	t.endTransaction(c)
}

// serve is what follows when a lease has ended or run out, under the head: it grants the name to the lowest ticket that
// counts, or else to the request that is being answered, if newcomer says so. c is who does it.
func (t *change) serve(n, c int, newcomer bool) {
	l := &t.Locks[n]
	if l.Phase == ranOut {
		l.settle()
	}
	for served := false; !served; {
		d := t.next(n)
		switch {
		case d >= 0 && t.saw[d]&sawDead != 0:
			t.Clients[d].Ticket = 0
			continue
		case d >= 0 && !t.covered(t.Clients[d].Ticket):
			t.grant(n, d, c, false)
			l.Untold = d != c && t.m.Hints
		case d < 0 && newcomer && !t.covered(0):
			t.grant(n, c, c, false)
		}
		served = true
	}
	l.Marked = l.Phase == free && t.next(n) >= 0 && t.m.Mistake != HeadNotMarked
}

// settle notes that a lease that has run out is over; its row is locked.
func (l *Lock) settle() { *l = Lock{Lease: Lease{over, l.Token}, Marked: l.Marked} }

// end notes that it was released or broken.
func (l *Lock) end() { *l = Lock{Lease: Lease{free, l.Token}} }

// next is whose ticket is the lowest of a name, also if its session is over; -1: nobody.
func (t *change) next(n int) int {
	next := -1
	for d := range t.m.Roles {
		if int(t.m.Roles[d]) != n || !t.Clients[d].queued() {
			continue
		}
		if next < 0 || (t.Clients[d].Ticket < t.Clients[next].Ticket) != (t.m.Mistake == ServeLast) {
			next = d
		}
	}
	return next
}

// grant gives a name to d in a transaction of c.
func (t *change) grant(n, d, c int, chosen bool) {
	l, to := &t.Locks[n], &t.Clients[d]
	token := t.nextToken()
	if to.At == drawn {
		token = to.Token
	}
	t.require(l.Phase != running || chosen, Exclusion)
	t.require(token > l.Token, Ascending)
	for e := range t.m.Roles {
		other := &t.Clients[e]
		if t.m.isTree(e) {
			t.require(token > other.Sub.Token, Ascending)
		}
		if e == d || other.Ticket == 0 || other.Ticket > to.Ticket && to.Ticket != 0 || other.dead() || chosen {
			continue
		}
		if t.m.isTree(e) {
			t.require(t.saw[e]&sawRequest != sawWaiting || !other.queued(), InTurn)
		} else if int(t.m.Roles[e]) == n {
			t.require(t.saw[e]&sawDead != 0, InTurn)
		}
	}
	*l = Lock{Lease: Lease{running, token}, Owner: uint8(d + 1), Fresh: true}
	to.Ticket = 0
	if d == c {
		t.learn(c, token)
	}
}

// giveUp takes a request back. A grant that has come ends, and the queue is served.
func (t *change) giveUp(c int) {
	n := int(t.m.Roles[c])
	l, me := &t.Locks[n], &t.Clients[c]
	granted := int(l.Owner) == c+1 && l.Fresh && l.Phase == running
	take := t.canTake(n)
	if granted && (!take || t.m.tree) { // it waits for the head; with subtrees it hears of its grant first
		return
	}
	*me = Client{}
	if granted {
		l.end()
	}
	if take && l.Phase != running && !t.m.tree {
		t.saw = t.shows(c)
		t.serve(n, c, false)
	}
}
