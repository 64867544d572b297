package pglock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// fakeServer is a fake store that keeps exclusive locks with their queues for several clients, as the server does: a release
// grants to the next ticket, in the order of tickets, with a block of tokens where the ticket asks for turns.
type fakeServer struct {
	*fakeStore
	trip  time.Duration                      // of a statement to the server, and the same back
	gaps  bool                               // others draw tokens meanwhile: blocks have one token
	fault func(what string, done bool) error // asked before and after a change: of a lost request, and of a lost answer

	mu      sync.Mutex
	last    Token
	tickets int64
	rows    map[string]*fakeRow
	clients map[uuid.UUID]*Client
	spent   map[uuid.UUID]bool   // grant IDs that were given up while their request could be on its way
	ended   map[uuid.UUID]Reason // of grants that have ended
}

type fakeRow struct {
	request
	grantID     uuid.UUID
	session     uuid.UUID
	owned       uuid.UUID // as own told
	first, last Token
	until       time.Time // zero: free
	queue       []*fakeWaiter
	ticket      int64 // that the lease was granted to
}

type fakeWaiter struct {
	request
	grantID uuid.UUID
	session uuid.UUID
	number  int64
}

func newFakeServer() *fakeServer {
	return &fakeServer{fakeStore: newFakeStore(), trip: time.Millisecond, rows: make(map[string]*fakeRow),
		clients: make(map[uuid.UUID]*Client), spent: make(map[uuid.UUID]bool), ended: make(map[uuid.UUID]Reason)}
}

// client starts a client that hears hints.
func (s *fakeServer) client(t *testing.T, opts ...Option) *Client {
	t.Helper()
	c := startClient(t, s, systemClock(), opts...)
	s.locked(func() { s.clients[c.session] = c })
	return c
}

func (s *fakeServer) locked(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// does runs a statement: the way there, the change, the way back. Who gives up gets no answer.
func (s *fakeServer) does(ctx context.Context, what string, f func()) error {
	var trip time.Duration
	s.locked(func() { trip = s.trip })
	fault := hook(s.fakeStore, &s.fault)
	if !wait(ctx, trip) {
		return ctx.Err()
	}
	if fault != nil {
		if err := fault(what, false); err != nil {
			return err
		}
	}
	s.locked(f)
	if !wait(ctx, trip) {
		return ctx.Err()
	}
	if fault != nil {
		return fault(what, true)
	}
	return nil
}

// wait is a pause without chance.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s *fakeServer) row(name string) *fakeRow {
	r := s.rows[name]
	if r == nil {
		r = &fakeRow{}
		s.rows[name] = r
	}
	return r
}

func (r *fakeRow) held() bool { return time.Now().Before(r.until) }

func (r *fakeRow) is(c claim) bool { return r.held() && r.grantID == c.grantID && r.last == c.token }

// grant gives the lock to a request, which the caller knows to be free.
func (s *fakeServer) grant(r *fakeRow, q request, grantID, session uuid.UUID, ticket int64) {
	if !r.until.IsZero() {
		s.ended[r.grantID] = ReasonTakenOver // it has run out
	}
	r.ticket = ticket
	r.request, r.grantID, r.session, r.owned = q, grantID, session, q.owner.id
	r.first = s.last + 1
	if s.last++; q.turns > 1 && !s.gaps {
		s.last += Token(q.turns - 1)
	}
	r.last, r.until = s.last, time.Now().Add(q.ttl+q.grace)
	s.fakeStore.set(func() { s.ttls[grantID] = q.ttl + q.grace })
}

// over ends the lease and hands the lock over.
func (s *fakeServer) over(r *fakeRow, why Reason, asks uuid.UUID) handed {
	s.ended[r.grantID], r.until = why, time.Time{}
	return s.handOver(r, asks)
}

// handOver grants a lock that nobody holds to the next ticket, whose client hears of it: in the answer where that is the
// session that asks, else a trip later.
func (s *fakeServer) handOver(r *fakeRow, asks uuid.UUID) (h handed) {
	if len(r.queue) == 0 {
		return h
	}
	w := r.queue[0]
	r.queue = r.queue[1:]
	s.grant(r, w.request, w.grantID, w.session, w.number)
	hint := hintText(w.grantID, w.number, r.last, r.first, r.ttl)
	if w.session == asks {
		return handed{hints: []string{hint}}
	}
	if c := s.clients[w.session]; c != nil {
		trip := s.trip
		go func() { time.Sleep(trip); c.heard(hint, nil) }()
	}
	return h
}

func (s *fakeServer) acquire(ctx context.Context, asked ask) (answer, error) {
	q := asked.request
	s.note(call{what: "acquire", names: []string{q.name}, grantID: asked.grantID, retry: asked.retry, request: q, nested: q.owner.nested()})
	nested := q.owner.nested()
	return s.fly(ctx, asked, func(ctx context.Context) (answer, error) { return s.acquired(ctx, asked, nested) })
}

func (s *fakeServer) acquired(ctx context.Context, asked ask, nested bool) (a answer, err error) {
	q, grantID, session := asked.request, asked.grantID, sessionOf(asked.who.key)
	lost := s.does(ctx, "acquire", func() {
		r := s.row(q.name)
		place := slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.grantID == grantID })
		switch {
		case r.held() && r.owned == q.owner.id && nested && r.grantID != grantID:
			err = sqlError(stateDeadlock)
			return
		case r.held() && r.grantID == grantID:
			r.until = time.Now().Add(r.ttl + r.grace)
		case r.grantID == grantID || s.spent[grantID]:
			err = sqlError(stateSpentGrantID)
			return
		case !r.held() && len(r.queue) > 0:
			if a.handed = s.handOver(r, session); r.grantID == grantID {
				a.handed = handed{}
			}
		case !r.held():
			s.grant(r, q, grantID, session, 0)
		}
		if a.holder, a.token, a.expiresAt, a.remaining = r.holder, r.last, r.until.UTC(), time.Until(r.until); r.grantID == grantID {
			a.granted = true
			if q.turns > 1 {
				a.firstToken = r.first
			}
			return
		}
		if !q.wait {
			return
		}
		if place < 0 {
			if place = slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.grantID == grantID }); place < 0 {
				s.tickets++
				place = len(r.queue)
				r.queue = append(r.queue, &fakeWaiter{q, grantID, session, s.tickets})
			}
		}
		a.ticket, a.place, a.first = r.queue[place].number, place+1, place == 0
	})
	if lost != nil {
		return answer{}, lost
	}
	return a, err
}

func (s *fakeServer) release(ctx context.Context, c claim, _ bool) (released bool, h handed, err error) {
	s.note(call{what: "release", names: []string{c.name}, grantID: c.grantID, tokens: []int64{int64(c.token)}})
	err = s.does(ctx, "release", func() {
		if r := s.row(c.name); r.is(c) {
			released, h = true, s.over(r, ReasonReleased, r.session)
		}
	})
	return released, h, err
}

// takeBack ends a grant or a ticket.
func (s *fakeServer) takeBack(name string, grantID uuid.UUID) (l takenBack) {
	r := s.row(name)
	if r.held() && r.grantID == grantID {
		return takenBack{ended: true, handed: s.over(r, ReasonReleased, r.session)}
	}
	if i := slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.grantID == grantID }); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
		l.place = i + 1
	}
	if r.held() {
		l.token, l.holder, l.expiresAt = r.last, r.holder, r.until.UTC()
	}
	return l
}

func (s *fakeServer) ownTickets(context.Context, who, []int64) ([]ticketOf, error) { return nil, nil }

func (s *fakeServer) giveUp(ctx context.Context, _ who, ups []*giveUp) (backs []takenBack, err error) {
	for _, u := range ups {
		s.note(call{what: "giveUp", names: []string{u.name}, grantID: u.grantID, spend: u.spend})
	}
	err = s.does(ctx, "giveUp", func() {
		for _, u := range ups {
			s.spent[u.grantID] = s.spent[u.grantID] || u.spend
			backs = append(backs, s.takeBack(u.name, u.grantID))
		}
	})
	return backs, err
}

func (s *fakeServer) releaseAll(ctx context.Context, claims []claim) (endings []ending, err error) {
	s.note(call{what: "releaseAll"})
	err = s.does(ctx, "releaseAll", func() {
		for _, c := range claims {
			var e ending
			if r := s.row(c.name); r.is(c) {
				e = ending{true, s.over(r, ReasonReleased, r.session)}
			}
			endings = append(endings, e)
		}
	})
	return endings, err
}

// hintText is what tells a waiter of its grant.
func hintText(grantID uuid.UUID, ticket int64, token, first Token, left time.Duration) string {
	return hintOf(grantID, fmt.Sprintf("%d %d 0 %d %d", ticket, token, left.Microseconds(), first))
}

func (s *fakeServer) beat(ctx context.Context, w who, p pulse) (map[claim]verdict, map[int64]sighting, error) {
	s.note(call{what: "beat"})
	if p.look {
		s.note(call{what: "look", tokens: p.nested})
	}
	if f := hook(s.fakeStore, &s.onRenewAll); f != nil && len(p.claims) > 0 {
		verdicts, err := f(ctx, p.claims)
		return verdicts, nil, err
	}
	verdicts, found := make(map[claim]verdict), make(map[int64]sighting)
	err := s.does(ctx, "beat", func() {
		for _, c := range p.claims {
			verdicts[c] = verdict{outcome: string(ReasonTakenOver)}
			if r := s.row(c.name); r.is(c) {
				r.until = time.Now().Add(r.ttl + r.grace)
				verdicts[c] = verdict{outcome: outcomeRenewed, remaining: r.ttl + r.grace, expiresAt: r.until.UTC()}
			} else if r.grantID == c.grantID {
				verdicts[c] = verdict{outcome: string(ReasonBroken)}
			}
		}
		for _, r := range s.rows {
			for i, t := range r.queue {
				if p.look && t.session == sessionOf(w.key) {
					found[t.number] = sighting{first: i == 0, remaining: max(0, time.Until(r.until))}
				}
			}
		}
	})
	return verdicts, found, err
}

// about answers a call about one lease.
func (s *fakeServer) about(ctx context.Context, what string, c claim, change func(*fakeRow)) (left time.Duration, err error) {
	s.note(call{what: what, names: []string{c.name}, grantID: c.grantID})
	lost := s.does(ctx, what, func() {
		r := s.row(c.name)
		if !r.is(c) {
			err = sqlError(stateExpired)
			return
		}
		change(r)
		left = time.Until(r.until)
	})
	if lost != nil {
		return 0, lost
	}
	return left, err
}

func (s *fakeServer) renew(ctx context.Context, c claim) (verdict, error) {
	left, err := s.about(ctx, "renew", c, func(r *fakeRow) { r.until = time.Now().Add(r.ttl + r.grace) })
	return verdict{outcome: outcomeRenewed, remaining: left}, err
}

func (s *fakeServer) check(ctx context.Context, c claim) (time.Duration, error) {
	return s.about(ctx, "check", c, func(*fakeRow) {})
}

func (s *fakeServer) own(ctx context.Context, c claim, owner uuid.UUID) error {
	s.note(call{what: "own", names: []string{c.name}, grantID: c.grantID})
	return s.does(ctx, "own", func() {
		if r := s.row(c.name); r.is(c) { // else it changes nothing
			r.owned = owner
		}
	})
}

func (s *fakeServer) reason(ctx context.Context, c claim) (why Reason, err error) {
	s.note(call{what: "reason", names: []string{c.name}, grantID: c.grantID})
	err = s.does(ctx, "reason", func() {
		if why = s.ended[c.grantID]; !s.row(c.name).is(c) && why == "" {
			why = ReasonExpired
		}
	})
	return why, err
}

func (s *fakeServer) endSession(ctx context.Context, w who) error {
	s.note(call{what: "endSession"})
	return s.does(ctx, "endSession", func() {
		for _, r := range s.rows {
			r.queue = slices.DeleteFunc(r.queue, func(f *fakeWaiter) bool { return f.session == sessionOf(w.key) })
		}
	})
}

// breaks ends the lease as an operator does.
func (s *fakeServer) breaks(name string) {
	s.locked(func() {
		r := s.row(name)
		s.last++
		r.last, r.first = s.last, s.last
		s.over(r, ReasonBroken, uuid.Nil)
	})
}

// queued is how many tickets the lock has, and holds whether it is held.
func (s *fakeServer) queued(name string) (n int) {
	s.locked(func() { n = len(s.row(name).queue) })
	return n
}

// ends is when the lock's lease ends.
func (s *fakeServer) ends(name string) (at time.Time) {
	s.locked(func() { at = s.row(name).until })
	return at
}

func (s *fakeServer) holds(name string) (held bool) {
	s.locked(func() { held = s.row(name).held() })
	return held
}

// wantEmpty fails the test unless nobody holds or waits for the lock, on the server and in the clients, a second after the
// last call has ended.
func (s *fakeServer) wantEmpty(t *testing.T, name string, clients ...*Client) {
	t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	if n := s.queued(name); n != 0 || s.holds(name) {
		t.Errorf("%d tickets are left, held: %v", n, s.holds(name))
	}
	for _, c := range clients {
		c.mu.Lock()
		if n := len(c.lines) + len(c.leases) + len(c.queue.waiters) + len(c.queue.tickets); n != 0 {
			t.Errorf("the client still knows %d lines, %d leases, %d waiters and %d tickets", len(c.lines), len(c.leases),
				len(c.queue.waiters), len(c.queue.tickets))
		}
		c.mu.Unlock()
	}
}
