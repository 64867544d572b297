package pglock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// fakeServer is a fake store that keeps exclusive locks with their queues for several clients, as the server does: a
// release grants to the next ticket, in the order of tickets.
type fakeServer struct {
	*fakeStore
	trip  time.Duration                      // of a statement to the server, and the same back
	fault func(what string, done bool) error // asked before and after a change: of a lost request, and of a lost answer

	mu      sync.Mutex
	last    int64
	tickets int64
	rows    map[string]*fakeRow
	clients map[uuid.UUID]*Client
	spent   map[uuid.UUID]bool   // grant IDs that were given up while their request could be on its way
	ended   map[uuid.UUID]Reason // of grants that have ended
}

type fakeRow struct {
	protocol.Request
	session uuid.UUID
	token   int64
	until   time.Time // zero: free
	queue   []*fakeWaiter
	ticket  int64 // that the lease was granted to
}

type fakeWaiter struct {
	protocol.Request
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
	c := startClient(t, s, trust.SystemClock(), opts...)
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

func (r *fakeRow) is(c protocol.Claim) bool {
	return r.held() && r.GrantID == c.GrantID && r.token == c.Token
}

// grant gives the lock to a request, which the caller knows to be free.
func (s *fakeServer) grant(r *fakeRow, q protocol.Request, session uuid.UUID, ticket int64) {
	if !r.until.IsZero() {
		s.ended[r.GrantID] = ReasonTakenOver // it has run out
	}
	r.ticket = ticket
	r.Request, r.session = q, session
	s.last++
	r.token, r.until = s.last, time.Now().Add(q.TTL+q.Grace)
	s.fakeStore.set(func() { s.ttls[q.GrantID] = q.TTL + q.Grace })
}

// over ends the lease and hands the lock over.
func (s *fakeServer) over(r *fakeRow, why Reason, asks uuid.UUID) protocol.Handed {
	s.ended[r.GrantID], r.until = why, time.Time{}
	return s.handOver(r, asks)
}

// handOver grants a free lock to the next ticket, whose client is informed: in the answer if it is the asking
// session, else a trip later.
func (s *fakeServer) handOver(r *fakeRow, asks uuid.UUID) (h protocol.Handed) {
	if len(r.queue) == 0 {
		return h
	}
	w := r.queue[0]
	r.queue = r.queue[1:]
	s.grant(r, w.Request, w.session, w.number)
	hint := hintText(w.GrantID, w.number, r.token, r.TTL)
	if w.session == asks {
		return protocol.Handed{Hints: []string{hint}}
	}
	if c := s.clients[w.session]; c != nil {
		trip := s.trip
		go func() { time.Sleep(trip); c.queue.Hear(hint, nil) }()
	}
	return h
}

func (s *fakeServer) Acquire(ctx context.Context, asked protocol.Request) (protocol.Answer, error) {
	s.note(call{what: "acquire", names: []string{asked.Name}, grantID: asked.GrantID, retry: asked.Retry,
		request: asked, nested: asked.Nested})
	return s.fly(ctx, asked, func(ctx context.Context) (protocol.Answer, error) { return s.acquired(ctx, asked) })
}

func (s *fakeServer) acquired(ctx context.Context, q protocol.Request) (a protocol.Answer, err error) {
	grantID, session := q.GrantID, sessionOf(q.Session.Key)
	lost := s.does(ctx, "acquire", func() {
		r := s.row(q.Name)
		place := slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.GrantID == grantID })
		switch {
		case r.held() && r.Owner == q.Owner && q.Nested && r.GrantID != grantID:
			err = sqlError(protocol.StateDeadlock)
			return
		case r.held() && r.GrantID == grantID:
			r.until = time.Now().Add(r.TTL + r.Grace)
		case r.GrantID == grantID || s.spent[grantID]:
			err = sqlError(protocol.StateSpentGrantID)
			return
		case !r.held() && len(r.queue) > 0:
			if a.Handed = s.handOver(r, session); r.GrantID == grantID {
				a.Handed = protocol.Handed{}
			}
		case !r.held():
			s.grant(r, q, session, 0)
		}
		if a.Holder, a.Token, a.ExpiresAt, a.Remaining = r.Holder, r.token, r.until.UTC(),
			time.Until(r.until); r.GrantID == grantID {
			a.Granted = true
			return
		}
		if !q.Wait {
			return
		}
		if place < 0 {
			if place = slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.GrantID == grantID }); place < 0 {
				s.tickets++
				place = len(r.queue)
				r.queue = append(r.queue, &fakeWaiter{q, session, s.tickets})
			}
		}
		a.Ticket, a.Place, a.First = r.queue[place].number, place+1, place == 0
	})
	if lost != nil {
		return protocol.Answer{}, lost
	}
	return a, err
}

func (s *fakeServer) Release(ctx context.Context, c protocol.Claim, _ bool) (e protocol.Ending, err error) {
	s.note(call{what: "release", names: []string{c.Name}, grantID: c.GrantID, tokens: []int64{c.Token}})
	err = s.does(ctx, "release", func() {
		if r := s.row(c.Name); r.is(c) {
			e = protocol.Ending{Released: true, Handed: s.over(r, ReasonReleased, r.session)}
		}
	})
	return e, err
}

func (s *fakeServer) HandOver(ctx context.Context, c protocol.Claim, to string, look bool) (next protocol.Succession,
	err error) {
	s.note(call{what: "handOver", names: []string{c.Name}, grantID: c.GrantID})
	err = s.does(ctx, "handOver", func() {
		r := s.row(c.Name)
		i := slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.Holder == to })
		switch {
		case !r.is(c):
			next.Outcome = string(cmp.Or(s.ended[c.GrantID], ReasonReleased))
		case i < 0:
			next.Outcome = protocol.Nobody
		case look:
			next.Outcome = protocol.HandedOver
		default:
			named := r.queue[i]
			r.queue = slices.Insert(slices.Delete(r.queue, i, i+1), 0, named)
			next = protocol.Succession{Outcome: protocol.HandedOver, Handed: s.over(r, ReasonReleased, r.session)}
		}
	})
	return next, err
}

// takeBack ends a grant or a ticket.
func (s *fakeServer) takeBack(name string, grantID uuid.UUID) (l protocol.TakenBack) {
	r := s.row(name)
	if r.held() && r.GrantID == grantID {
		return protocol.TakenBack{Ended: true, Handed: s.over(r, ReasonReleased, r.session)}
	}
	if i := slices.IndexFunc(r.queue, func(f *fakeWaiter) bool { return f.GrantID == grantID }); i >= 0 {
		r.queue = slices.Delete(r.queue, i, i+1)
		l.Place = i + 1
	}
	if r.held() {
		l.Token, l.Holder, l.ExpiresAt = r.token, r.Holder, r.until.UTC()
	}
	return l
}

func (s *fakeServer) OwnTickets(context.Context, protocol.Session, []int64) ([]protocol.RequestID, error) {
	return nil, nil
}

func (s *fakeServer) TakeBack(ctx context.Context, _ protocol.Session, spend bool,
	requests []protocol.RequestID) (backs []protocol.TakenBack, err error) {
	for _, u := range requests {
		s.note(call{what: "giveUp", names: []string{u.Name}, grantID: u.GrantID, spend: spend})
	}
	err = s.does(ctx, "giveUp", func() {
		for _, u := range requests {
			s.spent[u.GrantID] = s.spent[u.GrantID] || spend
			backs = append(backs, s.takeBack(u.Name, u.GrantID))
		}
	})
	return backs, err
}

func (s *fakeServer) ReleaseAll(ctx context.Context, claims []protocol.Claim) (endings []protocol.Ending, err error) {
	s.note(call{what: "releaseAll"})
	err = s.does(ctx, "releaseAll", func() {
		for _, c := range claims {
			var e protocol.Ending
			if r := s.row(c.Name); r.is(c) {
				e = protocol.Ending{Released: true, Handed: s.over(r, ReasonReleased, r.session)}
			}
			endings = append(endings, e)
		}
	})
	return endings, err
}

// hintText is what tells a waiter of its grant.
func hintText(grantID uuid.UUID, ticket, token int64, left time.Duration) string {
	return hintOf(grantID, fmt.Sprintf("%d %d 0 %d", ticket, token, left.Microseconds()))
}

func (s *fakeServer) RenewAll(ctx context.Context, _ time.Duration, _ protocol.Session,
	claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
	s.note(call{what: "beat"})
	if f := hook(s.fakeStore, &s.onRenewAll); f != nil {
		return f(ctx, claims)
	}
	verdicts := make(map[protocol.Claim]protocol.Verdict)
	err := s.does(ctx, "beat", func() {
		for _, c := range claims {
			verdicts[c] = protocol.Verdict{Outcome: string(cmp.Or(s.ended[c.GrantID], ReasonTakenOver))}
			if r := s.row(c.Name); r.is(c) {
				r.until = time.Now().Add(r.TTL + r.Grace)
				verdicts[c] = protocol.Verdict{Outcome: protocol.Renewed, Remaining: r.TTL + r.Grace,
					ExpiresAt: r.until.UTC()}
			} else if r.GrantID == c.GrantID {
				verdicts[c] = protocol.Verdict{Outcome: string(ReasonBroken)}
			}
		}
	})
	return verdicts, err
}

func (s *fakeServer) Look(ctx context.Context, _ time.Duration, w protocol.Session,
	nested []int64) (map[int64]protocol.Sighting, error) {
	s.note(call{what: "beat"})
	s.note(call{what: "look", tokens: nested})
	found := make(map[int64]protocol.Sighting)
	err := s.does(ctx, "beat", func() {
		for _, r := range s.rows {
			for i, t := range r.queue {
				if t.session == sessionOf(w.Key) {
					found[t.number] = protocol.Sighting{Kept: true, Ahead: min(i, protocol.Far),
						Remaining: max(0, time.Until(r.until))}
				}
			}
		}
	})
	return found, err
}

// about answers a call about one lease.
func (s *fakeServer) about(ctx context.Context, what string, c protocol.Claim,
	change func(*fakeRow)) (left time.Duration, err error) {
	s.note(call{what: what, names: []string{c.Name}, grantID: c.GrantID})
	lost := s.does(ctx, what, func() {
		r := s.row(c.Name)
		if !r.is(c) {
			err = sqlError(protocol.StateExpired)
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

func (s *fakeServer) Renew(ctx context.Context, c protocol.Claim) (protocol.Verdict, error) {
	left, err := s.about(ctx, "renew", c, func(r *fakeRow) { r.until = time.Now().Add(r.TTL + r.Grace) })
	return protocol.Verdict{Outcome: protocol.Renewed, Remaining: left}, err
}

func (s *fakeServer) Check(ctx context.Context, c protocol.Claim) (left protocol.Remains, err error) {
	s.note(call{what: "check", names: []string{c.Name}, grantID: c.GrantID})
	err = s.does(ctx, "check", func() {
		if r := s.row(c.Name); r.is(c) {
			left.Left = time.Until(r.until)
		} else if left.Lost = string(s.ended[c.GrantID]); left.Lost == "" {
			left.Lost = string(ReasonExpired)
		}
	})
	return left, err
}

func (s *fakeServer) EndSession(ctx context.Context, w protocol.Session) error {
	s.note(call{what: "endSession"})
	return s.does(ctx, "endSession", func() {
		for _, r := range s.rows {
			r.queue = slices.DeleteFunc(r.queue, func(f *fakeWaiter) bool { return f.session == sessionOf(w.Key) })
		}
	})
}

// breaks ends the lease as an operator does.
func (s *fakeServer) breaks(name string) {
	s.locked(func() {
		r := s.row(name)
		s.last++
		r.token = s.last
		s.over(r, ReasonBroken, uuid.Nil)
	})
}

// queued is how many tickets the lock has, and holds whether it is held.
func (s *fakeServer) queued(name string) (n int) {
	s.locked(func() { n = len(s.row(name).queue) })
	return n
}

func (s *fakeServer) holds(name string) (held bool) {
	s.locked(func() { held = s.row(name).held() })
	return held
}

// wantEmpty fails the test unless nobody holds or waits for the lock, on the server and in the clients, a second after
// the last call has ended.
func (s *fakeServer) wantEmpty(t *testing.T, name string, clients ...*Client) {
	t.Helper()
	time.Sleep(time.Second)
	synctest.Wait()
	if n := s.queued(name); n != 0 || s.holds(name) {
		t.Errorf("%d tickets are left, held: %v", n, s.holds(name))
	}
	for _, c := range clients {
		if leases, tickets, _ := left(c); leases+tickets != 0 {
			t.Errorf("the client still knows %d leases and %d tickets", leases, tickets)
		}
	}
}
