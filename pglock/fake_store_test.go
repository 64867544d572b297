package pglock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// fakeStore is a database that grants, renews and releases whatever it is asked, unless a test puts something in the
// place of one of its answers. It notes every call.
type fakeStore struct {
	began    time.Time
	promoted time.Time // when a standby took over, if one did

	mu        sync.Mutex
	calls     []call
	lastToken Token
	ttls      map[uuid.UUID]time.Duration
	life      context.Context // of the requests
	end       context.CancelFunc
	shut      bool // it refuses requests

	onAcquire    func(ctx context.Context, asked call) (answer, error)
	onRenewAll   func(ctx context.Context, claims []claim) (map[claim]verdict, error)
	onLook       func(ctx context.Context, nested []int64) (map[int64]sighting, error)
	onOwnTickets func(tickets []int64) ([]ticketOf, error)
	onGiveUp     func(ctx context.Context, up *giveUp) (takenBack, error)
	onListen     func(ctx context.Context) (ear, error)
	onNotify     func(ctx context.Context, channel, payload string) error
	onWatch      func(ctx context.Context, name string) ([]Info, string, error)
	onRenew      func(ctx context.Context, c claim) (time.Duration, error)
	onRenewBusy  func(ctx context.Context, c claim) (time.Duration, error)
	onCheck      func(ctx context.Context, c claim) (time.Duration, error)
	onReason     func(c claim) (Reason, error)
	onSweep      func(ctx context.Context) error
	onAnnounce   func(ctx context.Context) error // through the pool
	onRelease    func(ctx context.Context, c claim) (bool, error)
	onHandOver   func(c claim) handed // what a release grants to waiters
	onReleaseAll func(ctx context.Context, claims []claim) error
	orphaned     func(q ask, a answer, err error)
	flights      sync.WaitGroup // requests under way, also of calls that have left
}

type call struct {
	what    string
	at      time.Duration // since the fake was made
	names   []string
	grantID uuid.UUID
	retry   bool
	tokens  []int64
	request request
	nested  bool
	spend   bool
	slots   []*int
	wait    time.Duration
}

func newFakeStore() *fakeStore {
	return &fakeStore{began: time.Now(), ttls: make(map[uuid.UUID]time.Duration)}
}

// set changes an answer while the client's loops run.
func (s *fakeStore) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *fakeStore) note(c call) call {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.at = time.Since(s.began)
	s.calls = append(s.calls, c)
	return c
}

// of gives the calls of one kind, in order.
func (s *fakeStore) of(what string) []call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []call
	for _, c := range s.calls {
		if c.what == what {
			calls = append(calls, c)
		}
	}
	return calls
}

// count is how many calls there were.
func (s *fakeStore) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls)
}

// hook reads one of the answers under the mutex.
func hook[F any](s *fakeStore, f *F) F {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *f
}

func (s *fakeStore) ttl(id uuid.UUID) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ttls[id]
}

// grants is what acquire answers when nothing stands in its place.
func (s *fakeStore) grants(r request, grantID uuid.UUID) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastToken++
	s.ttls[grantID] = r.ttl + r.grace
	return answer{granted: true, token: s.lastToken, holder: r.holder, expiresAt: time.Now().Add(r.ttl), remaining: r.ttl + r.grace}
}

func (s *fakeStore) acquire(ctx context.Context, q ask) (answer, error) {
	r := q.request
	asked := s.note(call{what: "acquire", names: []string{r.name}, grantID: q.grantID, retry: q.retry, request: r, nested: r.owner.nested()})
	return s.fly(ctx, q, func(ctx context.Context) (answer, error) {
		if f := hook(s, &s.onAcquire); f != nil {
			s.set(func() { s.ttls[q.grantID] = r.ttl + r.grace })
			return f(ctx, asked)
		}
		return s.grants(r, q.grantID), nil
	})
}

// fly makes a request that goes on when its call has left, as those of the real store do: what it brings then goes to the
// orphanage. f's context ends when the store is closed.
func (s *fakeStore) fly(ctx context.Context, q ask, f func(context.Context) (answer, error)) (answer, error) {
	r := &requested{done: make(chan struct{})}
	s.mu.Lock()
	if s.shut {
		s.mu.Unlock()
		return answer{}, &noConnectionError{ErrClosed}
	}
	if s.life == nil {
		s.life, s.end = context.WithCancel(context.Background())
	}
	life := s.life
	s.flights.Go(func() {
		a, err := f(life)
		s.mu.Lock()
		r.a, r.err = a, err
		close(r.done)
		left, take := r.left, s.orphaned
		s.mu.Unlock()
		if left && take != nil {
			take(q, a, err)
		}
	})
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.a, r.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.done: // it has heard by now
		return r.a, r.err
	default:
	}
	r.left = true
	return answer{}, &underWayError{ctx.Err()}
}

// requested is one request on its way. The store's mutex guards it until it is done.
type requested struct {
	done chan struct{}
	a    answer
	err  error
	left bool
}

func (s *fakeStore) orphans(take func(ask, answer, error)) { s.set(func() { s.orphaned = take }) }

func (s *fakeStore) landed(ctx context.Context) {
	s.set(func() { s.shut = true })
	defer context.AfterFunc(ctx, s.endAll)()
	s.flights.Wait()
}

func (s *fakeStore) close() {
	s.set(func() { s.shut = true })
	s.endAll()
	s.flights.Wait()
	s.rest()
}

// endAll ends what is under way.
func (s *fakeStore) endAll() {
	if end := hook(s, &s.end); end != nil {
		end()
	}
}

func (s *fakeStore) beat(ctx context.Context, _ who, p pulse) (map[claim]verdict, map[int64]sighting, error) {
	names, _, _, _ := columns(p.claims)
	slices.Sort(names)
	s.note(call{what: "beat"})
	if len(names) > 0 {
		s.note(call{what: "renewAll", names: names})
	}
	var found map[int64]sighting
	if p.look {
		s.note(call{what: "look", tokens: p.nested})
		if f := hook(s, &s.onLook); f != nil {
			var err error
			if found, err = f(ctx, p.nested); err != nil {
				return nil, nil, err
			}
		}
	}
	if f := hook(s, &s.onRenewAll); f != nil && len(names) > 0 {
		verdicts, err := f(ctx, p.claims)
		return verdicts, found, err
	}
	return s.renewed(p.claims), found, nil
}

// renewed is the verdict that every lease is renewed by its own TTL.
func (s *fakeStore) renewed(claims []claim) map[claim]verdict {
	verdicts := make(map[claim]verdict)
	for _, c := range claims {
		verdicts[c] = verdict{outcomeRenewed, s.ttl(c.grantID), time.Time{}}
	}
	return verdicts
}

// one answers a call about one lease with its full TTL, or with what stands in the answer's place.
func (s *fakeStore) one(ctx context.Context, what string, c claim, f func(context.Context, claim) (time.Duration, error)) (time.Duration, error) {
	s.note(call{what: what, names: []string{c.name}, grantID: c.grantID})
	if f != nil {
		return f(ctx, c)
	}
	return s.ttl(c.grantID), nil
}

func (s *fakeStore) renew(ctx context.Context, c claim) (verdict, error) {
	left, err := s.one(ctx, "renew", c, hook(s, &s.onRenew))
	return verdict{outcome: outcomeRenewed, remaining: left}, err
}

func (s *fakeStore) renewBusy(ctx context.Context, c claim, wait time.Duration) (v verdict, err error) {
	s.note(call{what: "renewBusy", names: []string{c.name}, grantID: c.grantID, wait: wait})
	v = verdict{outcome: outcomeRenewed, remaining: s.ttl(c.grantID)}
	if f := hook(s, &s.onRenewBusy); f != nil {
		v.remaining, err = f(ctx, c)
	}
	return v, err
}

func (s *fakeStore) reason(_ context.Context, c claim) (Reason, error) {
	s.note(call{what: "reason", names: []string{c.name}, grantID: c.grantID})
	if f := hook(s, &s.onReason); f != nil {
		return f(c)
	}
	return "", nil
}

func (s *fakeStore) sweep(ctx context.Context) error {
	s.note(call{what: "sweep"})
	if f := hook(s, &s.onSweep); f != nil {
		return f(ctx)
	}
	return nil
}

func (s *fakeStore) endSession(context.Context, who) error {
	s.note(call{what: "endSession"})
	return nil
}

func (s *fakeStore) timeline(context.Context) (time.Duration, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.promoted), !s.promoted.IsZero(), nil
}

func (s *fakeStore) check(ctx context.Context, c claim) (time.Duration, error) {
	return s.one(ctx, "check", c, hook(s, &s.onCheck))
}

func (s *fakeStore) release(ctx context.Context, c claim, _ bool) (bool, handed, error) {
	s.note(call{what: "release", names: []string{c.name}, grantID: c.grantID})
	var h handed
	if f := hook(s, &s.onHandOver); f != nil {
		h = f(c)
	}
	if f := hook(s, &s.onRelease); f != nil {
		released, err := f(ctx, c)
		return released, h, err
	}
	return true, h, nil
}

func (s *fakeStore) releaseAll(ctx context.Context, claims []claim) ([]ending, error) {
	names, _, _, _ := columns(claims)
	slices.Sort(names)
	s.note(call{what: "releaseAll", names: names})
	if f := hook(s, &s.onReleaseAll); f != nil {
		return make([]ending, len(claims)), f(ctx, claims)
	}
	endings := make([]ending, len(claims))
	if f := hook(s, &s.onHandOver); f != nil {
		for i, c := range claims {
			endings[i] = ending{true, f(c)}
		}
	}
	return endings, nil
}

func (s *fakeStore) ownTickets(_ context.Context, _ who, tickets []int64) ([]ticketOf, error) {
	s.note(call{what: "ownTickets", tokens: tickets})
	if f := hook(s, &s.onOwnTickets); f != nil {
		return f(tickets)
	}
	return nil, nil
}

func (s *fakeStore) giveUp(ctx context.Context, _ who, ups []*giveUp) ([]takenBack, error) {
	var names []string
	for _, u := range ups {
		names = append(names, u.name)
	}
	slices.Sort(names)
	s.note(call{what: "giveUp", names: names, grantID: ups[0].grantID, spend: ups[0].spend})
	backs := make([]takenBack, len(ups))
	if f := hook(s, &s.onGiveUp); f != nil {
		for i, u := range ups {
			var err error
			if backs[i], err = f(ctx, u); err != nil {
				return nil, err
			}
		}
	}
	return backs, nil
}

func (s *fakeStore) announce(ctx context.Context, names []string, slots []*int) error {
	s.note(call{what: "announce", names: names, slots: slots})
	if f := hook(s, &s.onAnnounce); f != nil {
		return f(ctx)
	}
	return nil
}

func (s *fakeStore) announceBeating(_ context.Context, names []string, slots []*int) error {
	s.note(call{what: "announce", names: names, slots: slots})
	return nil
}

func (s *fakeStore) notify(ctx context.Context, channel, payload string) error {
	s.note(call{what: "notify", names: []string{channel, payload}})
	if f := hook(s, &s.onNotify); f != nil {
		return f(ctx, channel, payload)
	}
	return nil
}

func (s *fakeStore) watch(ctx context.Context, name string, _ time.Duration) ([]Info, string, error) {
	s.note(call{what: "watch", names: []string{name}})
	if f := hook(s, &s.onWatch); f != nil {
		return f(ctx, name)
	}
	return nil, "watched", nil
}

// listen gives a connection that hears nothing, as behind a pooler.
func (s *fakeStore) listen(ctx context.Context) (ear, error) {
	s.note(call{what: "listen"})
	if f := hook(s, &s.onListen); f != nil {
		return f(ctx)
	}
	return &fakeEar{}, nil
}

// fakeEar hears what comes over its channel; closing the channel breaks the connection.
type fakeEar struct {
	said chan [2]string

	mu       sync.Mutex
	channels []string
	closed   bool
}

func (e *fakeEar) subscribe(_ context.Context, channel string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.channels = append(e.channels, channel)
	return nil
}

func (e *fakeEar) unsubscribe(_ context.Context, channel string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.channels = slices.DeleteFunc(e.channels, func(c string) bool { return c == channel })
	return nil
}

func (e *fakeEar) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// listens gives the channels that it listens to, in order.
func (e *fakeEar) listens() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.channels))
}

func (e *fakeEar) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *fakeEar) next(ctx context.Context) (channel, payload string, err error) {
	select {
	case n, open := <-e.said:
		if !open {
			return "", "", errors.New("the connection broke")
		}
		return n[0], n[1], nil
	case <-ctx.Done():
		return "", "", errQuiet
	}
}

func (s *fakeStore) rest() { s.note(call{what: "rest"}) }

func (s *fakeStore) own(context.Context, claim, uuid.UUID) error { return nil }

// sqlError is a server's refusal.
type sqlError string

func (e sqlError) Error() string    { return "SQLSTATE " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// hangs answers nothing until the request is given up.
func hangs(ctx context.Context, _ []claim) (map[claim]verdict, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// startClient makes a client over the fake, which is closed when the test ends.
func startClient(t *testing.T, s store, now clock, opts ...Option) *Client {
	t.Helper()
	config, err := newConfig(opts)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newClient(config, s, now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

func mustAcquire(t *testing.T, c *Client, name string, opts ...AcquireOption) *Lease {
	t.Helper()
	l, err := c.TryAcquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", name, err)
	}
	return l
}
