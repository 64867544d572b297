package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// tenure is one tenure of a lock as its caller saw it.
type tenure struct {
	client, n    int
	token        Token
	began, ended time.Duration // since the server was made
}

// tenures is what happened to one lock, in the order in which it was taken.
type tenures struct {
	t       *testing.T
	s       *fakeServer
	mu      sync.Mutex
	list    []tenure
	holders int
	calls   sync.WaitGroup
}

// start makes a call that takes the lock, holds it, and releases it; it returns when the server has answered the call.
func (ts *tenures) start(c *Client, client, n int, hold time.Duration, opts ...AcquireOption) {
	ts.calls.Go(func() {
		if err := ts.take(ts.t.Context(), c, client, n, hold, opts...); err != nil {
			ts.t.Errorf("call %d of client %d: %v", n, client, err)
		}
	})
	synctest.Wait()
	time.Sleep(2 * ts.s.trip)
}

func (ts *tenures) take(ctx context.Context, c *Client, client, n int, hold time.Duration,
	opts ...AcquireOption) error {
	l, err := c.Acquire(ctx, "report", opts...)
	if err != nil {
		return err
	}
	ts.entered(l, client, n)
	time.Sleep(hold)
	ts.left()
	return l.Release(ctx)
}

// entered checks that nobody else has the lock, and that the token is greater than every one before.
func (ts *tenures) entered(l *Lease, client, n int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.holders++; ts.holders != 1 || !l.Valid() {
		ts.t.Errorf("I1: %d hold the lock; %v: %v", ts.holders, l, l.Err())
	}
	at := time.Since(ts.s.began)
	if last := len(ts.list) - 1; last >= 0 && l.Token() <= ts.list[last].token {
		ts.t.Errorf("I2: token %d after %d", l.Token(), ts.list[last].token)
	}
	ts.list = append(ts.list, tenure{client, n, l.Token(), at, at})
}

func (ts *tenures) left() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.holders--
	ts.list[len(ts.list)-1].ended = time.Since(ts.s.began)
}

// order is the tenures of one client by the numbers of its calls.
func (ts *tenures) order(client int) (numbers []int) {
	for _, u := range ts.list {
		if u.client == client {
			numbers = append(numbers, u.n)
		}
	}
	return numbers
}

func upTo(n int) (numbers []int) {
	for i := range n {
		numbers = append(numbers, i)
	}
	return numbers
}

// Random calls of several clients: nobody holds the lock beside another, tokens ascend over all of them, each client's
// calls are served in order, everybody is served, and nothing is left behind.
func TestI1_I2_I9_CallsOfSeveralClientsAreServedInTheOrderOfTheirArrival(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				s := newFakeServer()
				ts := &tenures{t: t, s: s}
				clients := []*Client{s.client(t), s.client(t), s.client(t)}
				const calls = 300
				next := make([]int, len(clients))
				for range calls {
					n := random.IntN(len(clients))
					ts.start(clients[n], n, next[n], time.Duration(random.IntN(12))*time.Millisecond)
					next[n]++
					time.Sleep(time.Duration(random.IntN(3)) * 700 * time.Microsecond)
				}
				ts.calls.Wait()
				if len(ts.list) != calls {
					t.Errorf("%d of %d calls were served", len(ts.list), calls)
				}
				for n := range clients {
					if got := ts.order(n); !slices.Equal(got, upTo(next[n])) {
						t.Errorf("I9: the calls of client %d were served in the order %v", n, got)
					}
				}
				s.wantEmpty(t, "report", clients...)
			})
		})
	}
}

// Many calls of one client wait for a lock. Each has a ticket, and each hand-over costs one release, whose answer has
// the grant: nobody asks again.
func TestI9_EachCallHasATicketAndTheReleaseBringsTheNextGrant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		a, b := s.client(t), s.client(t)
		held := mustAcquire(t, b, "report")
		ts := &tenures{t: t, s: s}
		const calls = 100
		for n := range calls {
			ts.start(a, 0, n, time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if n := s.queued("report"); n != calls {
			t.Errorf("%d tickets stand for %d calls", n, calls)
		}
		must.Do(t, held.Release(t.Context()))
		ts.calls.Wait()
		if got := ts.order(0); !slices.Equal(got, upTo(calls)) {
			t.Errorf("I9: served in the order %v", got)
		}
		if asked, released := len(s.of("acquire")), len(s.of("release")); asked != calls+1 || released != calls+1 {
			t.Errorf("%d requests and %d releases for %d calls, want one of each", asked, released, calls+1)
		}
		s.wantEmpty(t, "report", a, b)
	})
}

// lined starts a call; it returns when the call waits, and its request was answered if it has sent one.
func lined(ctx context.Context, c *Client, opts ...AcquireOption) chan acquired {
	result := must.Go(func() acquired {
		l, err := c.Acquire(ctx, "report", opts...)
		return acquired{lease: l, err: err}
	})
	synctest.Wait()
	time.Sleep(2 * c.backend.(*fakeServer).trip)
	return result
}

// served waits for a call's lease.
func served(t *testing.T, result chan acquired) *Lease {
	t.Helper()
	select {
	case got := <-result:
		if got.err != nil {
			t.Fatal(got.err)
		}
		return got.lease
	case <-time.After(time.Hour):
		t.Fatal("a call was not served within an hour")
		return nil
	}
}

// serveAll gives the calls that wait their turns, one after another.
func serveAll(t *testing.T, results []chan acquired) {
	t.Helper()
	for _, r := range results {
		must.Note(t, served(t, r).Release(t.Context()))
	}
}

// If an owner gets a lock while another call of it waits, that call counts as nested from then on: looks search circles
// from where it waits.
func TestOwnerThatComesToHoldALockWhileItWaitsIsNested(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c, other := s.client(t), s.client(t)
		held := mustAcquire(t, other, "report")
		before := mustAcquire(t, c, "before")
		under := context.WithoutCancel(before.Context())
		must.Do(t, before.Release(t.Context()))
		results := []chan acquired{lined(t.Context(), c), lined(under, c)}
		time.Sleep(time.Second)
		inner := must.Get(c.TryAcquire(under, "inner"))(t)
		time.Sleep(2 * time.Second)
		if looks := s.of("look"); len(looks) == 0 || !slices.Equal(looks[len(looks)-1].tokens, []int64{2}) {
			t.Error("the last look searches circles not just from the ticket of the owner that holds a lock")
		}
		must.Note(t, errors.Join(inner.Release(t.Context()), held.Release(t.Context())))
		serveAll(t, results)
		s.wantEmpty(t, "report", c)
	})
}
