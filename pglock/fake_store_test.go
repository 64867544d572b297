package pglock

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// fakeStore is a database that grants, renews and releases whatever it is asked, unless a test puts something in the
// place of one of its answers. It notes every call.
type fakeStore struct {
	began time.Time

	mu        sync.Mutex
	calls     []call
	lastToken Token
	ttls      map[uuid.UUID]time.Duration

	onAcquire    func(ctx context.Context, asked call) (answer, error)
	onRenewAll   func(ctx context.Context, claims []claim) (map[claim]verdict, error)
	onRenew      func(ctx context.Context, c claim) (time.Duration, error)
	onRenewBusy  func(ctx context.Context, c claim) (time.Duration, error)
	onCheck      func(ctx context.Context, c claim) (time.Duration, error)
	onRelease    func(ctx context.Context, c claim) (bool, error)
	onReleaseAll func(ctx context.Context, claims []claim) error
	onAbandon    func(ctx context.Context, name string, grantID uuid.UUID) error
}

type call struct {
	what    string
	at      time.Duration // since the fake was made
	names   []string
	grantID uuid.UUID
	retry   bool
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
	s.ttls[grantID] = r.ttl
	return answer{granted: true, token: s.lastToken, holder: r.holder, expiresAt: time.Now().Add(r.ttl), remaining: r.ttl}
}

func (s *fakeStore) acquire(ctx context.Context, r request, _, grantID uuid.UUID, retry bool) (answer, error) {
	asked := s.note(call{what: "acquire", names: []string{r.name}, grantID: grantID, retry: retry})
	if f := hook(s, &s.onAcquire); f != nil {
		a, err := f(ctx, asked)
		if a.granted {
			s.set(func() { s.ttls[grantID] = r.ttl })
		}
		return a, err
	}
	return s.grants(r, grantID), nil
}

func (s *fakeStore) renewAll(ctx context.Context, claims []claim) (map[claim]verdict, error) {
	names, _, _ := columns(claims)
	slices.Sort(names)
	s.note(call{what: "renewAll", names: names})
	if f := hook(s, &s.onRenewAll); f != nil {
		return f(ctx, claims)
	}
	return s.renewed(claims), nil
}

// renewed is the verdict that every lease is renewed by its own TTL.
func (s *fakeStore) renewed(claims []claim) map[claim]verdict {
	verdicts := make(map[claim]verdict)
	for _, c := range claims {
		verdicts[c] = verdict{outcomeRenewed, s.ttl(c.grantID)}
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

func (s *fakeStore) renew(ctx context.Context, c claim) (time.Duration, error) {
	return s.one(ctx, "renew", c, hook(s, &s.onRenew))
}

func (s *fakeStore) renewBusy(ctx context.Context, c claim) (time.Duration, error) {
	return s.one(ctx, "renewBusy", c, hook(s, &s.onRenewBusy))
}

func (s *fakeStore) check(ctx context.Context, c claim) (time.Duration, error) {
	return s.one(ctx, "check", c, hook(s, &s.onCheck))
}

func (s *fakeStore) release(ctx context.Context, c claim) (bool, error) {
	s.note(call{what: "release", names: []string{c.name}, grantID: c.grantID})
	if f := hook(s, &s.onRelease); f != nil {
		return f(ctx, c)
	}
	return true, nil
}

func (s *fakeStore) releaseAll(ctx context.Context, claims []claim) error {
	names, _, _ := columns(claims)
	slices.Sort(names)
	s.note(call{what: "releaseAll", names: names})
	if f := hook(s, &s.onReleaseAll); f != nil {
		return f(ctx, claims)
	}
	return nil
}

func (s *fakeStore) abandon(ctx context.Context, name string, grantID uuid.UUID) error {
	s.note(call{what: "abandon", names: []string{name}, grantID: grantID})
	if f := hook(s, &s.onAbandon); f != nil {
		return f(ctx, name, grantID)
	}
	return nil
}

func (s *fakeStore) rest() { s.note(call{what: "rest"}) }

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
