package pglock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
)

// What the packages behind a client promise.
const (
	firstTakeBack = 20 * time.Millisecond // between attempts to take requests back
	lastTakeBack  = time.Second
	refusedFor    = time.Minute // a refusal to do so is borne
	firstLook     = 20 * time.Millisecond
	lastLook      = time.Second
	restLook      = 10 * time.Second
	askLate       = queue.AskLate
	earlyHints    = 1024 // are kept
)

// fakeStore is a database that grants, renews and releases whatever it is asked, unless a test puts something in the
// place of one of its answers. It notes every call.
type fakeStore struct {
	began    time.Time
	promoted time.Time // when a standby took over, if one did

	mu        sync.Mutex
	calls     []call
	lastToken int64
	ttls      map[uuid.UUID]time.Duration
	life      context.Context // of the requests
	end       context.CancelFunc
	shut      bool // it refuses requests
	swept     time.Duration

	onAcquire    func(ctx context.Context, asked call) (protocol.Answer, error)
	onRenewAll   func(ctx context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error)
	onLook       func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error)
	onOwnTickets func(tickets []int64) ([]protocol.RequestID, error)
	onGiveUp     func(ctx context.Context, r protocol.RequestID) (protocol.TakenBack, error)
	onListen     func(ctx context.Context) (listener.Conn, error)
	onNotify     func(ctx context.Context, channel, payload string) error
	onWatch      func(ctx context.Context, name string) ([]LockInfo, string, error)
	onRenew      func(ctx context.Context, c protocol.Claim) (time.Duration, error)
	onRenewBusy  func(ctx context.Context, c protocol.Claim) (time.Duration, error)
	onCheck      func(ctx context.Context, c protocol.Claim) (time.Duration, error)
	onReason     func(c protocol.Claim) (Reason, error) // after a release
	onSweep      func(ctx context.Context) (swept, more bool, err error)
	onSign       func(ctx context.Context) error
	onTimeline   func(ctx context.Context) error
	onAnnounce   func(ctx context.Context) error // through the pool
	onRelease    func(ctx context.Context, c protocol.Claim) (bool, error)
	onHandOver   func(c protocol.Claim) protocol.Handed // what a release grants to waiters
	onReleaseAll func(ctx context.Context, claims []protocol.Claim) error
	orphaned     func(q protocol.Request, a protocol.Answer, err error)
	endedLate    func(c protocol.Claim, e protocol.Ending, err error)
	handedLate   func(b protocol.Bequest, s protocol.Succession, err error)
	trouble      server.Trouble
	flights      sync.WaitGroup // requests under way, also of calls that have left
}

type call struct {
	what    string
	at      time.Duration // since the fake was made
	names   []string
	grantID uuid.UUID
	retry   bool
	tokens  []int64
	request protocol.Request
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
func (s *fakeStore) grants(r protocol.Request) protocol.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastToken++
	s.ttls[r.GrantID] = r.TTL + r.Grace
	return protocol.Answer{Granted: true, Token: s.lastToken, Holder: r.Holder, ExpiresAt: time.Now().Add(r.TTL),
		Remaining: r.TTL + r.Grace}
}

func (s *fakeStore) Acquire(ctx context.Context, q protocol.Request) (protocol.Answer, error) {
	asked := s.note(call{what: "acquire", names: []string{q.Name}, grantID: q.GrantID, retry: q.Retry, request: q,
		nested: q.Nested})
	return s.fly(ctx, q, func(ctx context.Context) (protocol.Answer, error) {
		if f := hook(s, &s.onAcquire); f != nil {
			s.set(func() { s.ttls[q.GrantID] = q.TTL + q.Grace })
			return f(ctx, asked)
		}
		return s.grants(q), nil
	})
}

// fly makes a request that continues when its call has left, as those of the real store do: its answer then goes to
// the orphanage. f's context ends when the store is closed.
func (s *fakeStore) fly(ctx context.Context, q protocol.Request, f func(context.Context) (protocol.Answer,
	error)) (protocol.Answer, error) {
	r := &requested{done: make(chan struct{})}
	s.mu.Lock()
	if s.shut {
		s.mu.Unlock()
		return protocol.Answer{}, &coalesce.NotSentError{Err: ErrClosed}
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
	return protocol.Answer{}, &coalesce.LeftError{Err: ctx.Err()}
}

// requested is one request on its way. The store's mutex guards it until it is done.
type requested struct {
	done chan struct{}
	a    protocol.Answer
	err  error
	left bool
}

func (s *fakeStore) OnAbandoned(request func(protocol.Request, protocol.Answer, error),
	released func(protocol.Claim, protocol.Ending, error),
	handedOver func(protocol.Bequest, protocol.Succession, error)) {
	s.set(func() { s.orphaned, s.endedLate, s.handedLate = request, released, handedOver })
}

func (s *fakeStore) OnTrouble(t server.Trouble) { s.set(func() { s.trouble = t }) }

func (s *fakeStore) Drain(ctx context.Context) {
	s.set(func() { s.shut = true })
	defer context.AfterFunc(ctx, s.endAll)()
	s.flights.Wait()
}

func (s *fakeStore) Close() {
	s.set(func() { s.shut = true })
	s.endAll()
	s.flights.Wait()
	s.CloseOwn()
}

// endAll ends what is under way.
func (s *fakeStore) endAll() {
	if end := hook(s, &s.end); end != nil {
		end()
	}
}

func (s *fakeStore) RenewAll(ctx context.Context, _ time.Duration, _ protocol.Session,
	claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
	s.note(call{what: "beat"})
	s.note(call{what: "renewAll", names: namesOf(claims)})
	if f := hook(s, &s.onRenewAll); f != nil {
		return f(ctx, claims)
	}
	return s.renewed(claims), nil
}

func (s *fakeStore) Look(ctx context.Context, _ time.Duration, who protocol.Session,
	nested []int64) (map[int64]protocol.Sighting, error) {
	s.note(call{what: "beat"})
	s.note(call{what: "look", tokens: nested, wait: who.TTL})
	if f := hook(s, &s.onLook); f != nil {
		return f(ctx, nested)
	}
	return nil, nil
}

// renewed is the verdict that every lease is renewed by its own TTL.
func (s *fakeStore) renewed(claims []protocol.Claim) map[protocol.Claim]protocol.Verdict {
	verdicts := make(map[protocol.Claim]protocol.Verdict)
	for _, c := range claims {
		verdicts[c] = protocol.Verdict{Outcome: protocol.Renewed, Remaining: max(s.ttl(c.GrantID), c.Lasting)}
	}
	return verdicts
}

// one answers a call about one lease with its full TTL, or with what stands in the answer's place.
func (s *fakeStore) one(ctx context.Context, what string, c protocol.Claim,
	f func(context.Context, protocol.Claim) (time.Duration, error)) (time.Duration, error) {
	s.note(call{what: what, names: []string{c.Name}, grantID: c.GrantID})
	if f != nil {
		return f(ctx, c)
	}
	return s.ttl(c.GrantID), nil
}

func (s *fakeStore) Renew(ctx context.Context, c protocol.Claim) (protocol.Verdict, error) {
	left, err := s.one(ctx, "renew", c, hook(s, &s.onRenew))
	return protocol.Verdict{Outcome: protocol.Renewed, Remaining: max(left, c.Lasting)}, err
}

func (s *fakeStore) RenewWaiting(ctx context.Context, _ time.Duration, c protocol.Claim,
	wait time.Duration) (v protocol.Verdict, err error) {
	s.note(call{what: "renewBusy", names: []string{c.Name}, grantID: c.GrantID, wait: wait})
	v = protocol.Verdict{Outcome: protocol.Renewed, Remaining: s.ttl(c.GrantID)}
	if f := hook(s, &s.onRenewBusy); f != nil {
		v.Remaining, err = f(ctx, c)
	}
	return v, err
}

func namesOf(claims []protocol.Claim) (names []string) {
	for _, c := range claims {
		names = append(names, c.Name)
	}
	slices.Sort(names)
	return names
}

func (s *fakeStore) Sweep(ctx context.Context, every time.Duration) (swept, more bool, err error) {
	s.note(call{what: "sweep", wait: every})
	if f := hook(s, &s.onSweep); f != nil {
		return f(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Since(s.began); s.swept == 0 || now-s.swept > every {
		s.swept = now
		return true, false, nil
	}
	return false, false, nil
}

func (s *fakeStore) Sign(ctx context.Context, _ time.Duration, who protocol.Session) error {
	s.note(call{what: "sign", wait: who.Holds, names: who.Names})
	if f := hook(s, &s.onSign); f != nil {
		return f(ctx)
	}
	return nil
}

func (s *fakeStore) EndSession(context.Context, protocol.Session) error {
	s.note(call{what: "endSession"})
	return nil
}

func (s *fakeStore) Timeline(ctx context.Context) (time.Duration, bool, error) {
	s.note(call{what: "timeline"})
	if f := hook(s, &s.onTimeline); f != nil {
		if err := f(ctx); err != nil {
			return 0, false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.promoted), !s.promoted.IsZero(), nil
}

func (s *fakeStore) Check(ctx context.Context, c protocol.Claim) (r protocol.Remains, err error) {
	if f := hook(s, &s.onReason); f != nil {
		s.note(call{what: "check", names: []string{c.Name}, grantID: c.GrantID})
		why, err := f(c)
		return protocol.Remains{Lost: string(why)}, err
	}
	r.Left, err = s.one(ctx, "check", c, hook(s, &s.onCheck))
	return r, err
}

func (s *fakeStore) Release(ctx context.Context, c protocol.Claim, _ bool) (e protocol.Ending, err error) {
	s.note(call{what: "release", names: []string{c.Name}, grantID: c.GrantID})
	e.Released = true
	if f := hook(s, &s.onHandOver); f != nil {
		e.Handed = f(c)
	}
	if f := hook(s, &s.onRelease); f != nil {
		e.Released, err = f(ctx, c)
	}
	return e, err
}

func (s *fakeStore) HandOver(context.Context, protocol.Claim, string, bool) (protocol.Succession, error) {
	return protocol.Succession{Outcome: protocol.Nobody}, nil
}

func (s *fakeStore) ReleaseAll(ctx context.Context, claims []protocol.Claim) ([]protocol.Ending, error) {
	names := namesOf(claims)
	s.note(call{what: "releaseAll", names: names})
	if f := hook(s, &s.onReleaseAll); f != nil {
		return make([]protocol.Ending, len(claims)), f(ctx, claims)
	}
	endings := slices.Repeat([]protocol.Ending{{Released: true}}, len(claims))
	if f := hook(s, &s.onHandOver); f != nil {
		for i, c := range claims {
			endings[i].Handed = f(c)
		}
	}
	return endings, nil
}

func (s *fakeStore) OwnTickets(_ context.Context, _ protocol.Session, tickets []int64) ([]protocol.RequestID, error) {
	s.note(call{what: "ownTickets", tokens: tickets})
	if f := hook(s, &s.onOwnTickets); f != nil {
		return f(tickets)
	}
	return nil, nil
}

func (s *fakeStore) TakeBack(ctx context.Context, _ protocol.Session, spend bool,
	requests []protocol.RequestID) ([]protocol.TakenBack, error) {
	var names []string
	for _, r := range requests {
		names = append(names, r.Name)
	}
	slices.Sort(names)
	s.note(call{what: "giveUp", names: names, grantID: requests[0].GrantID, spend: spend})
	backs := make([]protocol.TakenBack, len(requests))
	if f := hook(s, &s.onGiveUp); f != nil {
		for i, u := range requests {
			var err error
			if backs[i], err = f(ctx, u); err != nil {
				return nil, err
			}
		}
	}
	return backs, nil
}

func (s *fakeStore) Announce(ctx context.Context, names []string, slots []*int) error {
	s.note(call{what: "announce", names: names, slots: slots})
	if f := hook(s, &s.onAnnounce); f != nil {
		return f(ctx)
	}
	return nil
}

func (s *fakeStore) AnnounceOwn(_ context.Context, names []string, slots []*int) error {
	s.note(call{what: "announce", names: names, slots: slots})
	return nil
}

func (s *fakeStore) AnnounceUnconfirmed(ctx context.Context, names []string, slots []*int) error {
	return s.AnnounceOwn(ctx, names, slots)
}

func (s *fakeStore) Notify(ctx context.Context, channel, payload string) error {
	s.note(call{what: "notify", names: []string{channel, payload}})
	if f := hook(s, &s.onNotify); f != nil {
		return f(ctx, channel, payload)
	}
	return nil
}

func (s *fakeStore) Watch(ctx context.Context, name string, _ time.Duration) ([]LockInfo, string, error) {
	s.note(call{what: "watch", names: []string{name}})
	if f := hook(s, &s.onWatch); f != nil {
		return f(ctx, name)
	}
	return nil, "watched", nil
}

// listen gives a connection that hears nothing, as behind a pooler.
func (s *fakeStore) Listen(ctx context.Context) (listener.Conn, error) {
	s.note(call{what: "listen"})
	if f := hook(s, &s.onListen); f != nil {
		return f(ctx)
	}
	return &fakeConn{}, nil
}

// fakeEar hears what comes over its channel; closing the channel breaks the connection.
type fakeConn struct {
	said chan [2]string

	mu       sync.Mutex
	channels []string
	closed   bool
}

// Certain is never so: tests decide what it hears.
func (*fakeConn) Certain() bool { return false }

func (*fakeConn) InUse() bool { return false }

func (e *fakeConn) Subscribe(_ context.Context, channels ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.channels = append(e.channels, channels...)
	return nil
}

func (e *fakeConn) Unsubscribe(_ context.Context, channels ...string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.channels = slices.DeleteFunc(e.channels, func(c string) bool { return slices.Contains(channels, c) })
	return nil
}

func (e *fakeConn) Close(bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// listens gives the channels that it listens to, in order.
func (e *fakeConn) listens() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Sorted(slices.Values(e.channels))
}

func (e *fakeConn) isClosed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.closed
}

func (e *fakeConn) Next(ctx context.Context) (channel, payload string, err error) {
	select {
	case n, open := <-e.said:
		if !open {
			return "", "", errors.New("the connection broke")
		}
		return n[0], n[1], nil
	case <-ctx.Done():
		return "", "", listener.ErrQuiet
	}
}

func (s *fakeStore) CloseOwn() { s.note(call{what: "rest"}) }

func (s *fakeStore) Own(context.Context, protocol.Claim, uuid.UUID) error { return nil }

// sqlError is a server's refusal.
type sqlError string

func (e sqlError) Error() string    { return "SQLSTATE " + string(e) }
func (e sqlError) SQLState() string { return string(e) }

// hangs answers nothing until the request is given up.
func hangs(ctx context.Context, _ []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// startClient makes a client over the fake, which is closed when the test ends.
func startClient(t *testing.T, s backend, now trust.Clock, opts ...Option) *Client {
	t.Helper()
	config := must.Get(newConfig(opts))(t)
	c := must.Get(newClient(config, s, now))(t)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

// onFakeClock is a parallel test in a bubble, with a store.
func onFakeClock(t *testing.T, f func(t *testing.T, s *fakeStore)) {
	t.Helper()
	t.Parallel()
	fakeClock(f)(t)
}

// fakeClock is the same for a test of a table.
func fakeClock(f func(t *testing.T, s *fakeStore)) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) { f(t, newFakeStore()) })
	}
}

func mustAcquire(t *testing.T, c *Client, name string, opts ...AcquireOption) *Lease {
	t.Helper()
	l, err := c.TryAcquire(t.Context(), name, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", name, err)
	}
	return l
}
