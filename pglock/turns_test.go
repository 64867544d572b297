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

	"github.com/google/uuid"
)

// turn is one tenure of a lock as its caller saw it.
type turn struct {
	client, n    int
	token        Token
	began, ended time.Duration // since the server was made
}

// tenures is what happened to one lock, in the order in which it was taken.
type tenures struct {
	t       *testing.T
	s       *fakeServer
	mu      sync.Mutex
	list    []turn
	holders int
	calls   sync.WaitGroup
}

// start makes a call that takes the lock, holds it, and releases it; it returns when the call waits or has ended.
func (ts *tenures) start(c *Client, client, n int, hold time.Duration, opts ...AcquireOption) {
	ts.calls.Go(func() {
		if err := ts.take(ts.t.Context(), c, client, n, hold, opts...); err != nil {
			ts.t.Errorf("call %d of client %d: %v", n, client, err)
		}
	})
	synctest.Wait()
}

func (ts *tenures) take(ctx context.Context, c *Client, client, n int, hold time.Duration, opts ...AcquireOption) error {
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
	ts.list = append(ts.list, turn{client, n, l.Token(), at, at})
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

// Many calls of one client wait for a lock that another holds. Two tickets stand for them, one acquisition and one
// release serve dozens, and they are served in the order of arrival.
func TestI9_CallsOfOneClientTakeTurnsInTheOrderOfTheirArrival(t *testing.T) {
	for name, tc := range map[string]struct {
		opts []Option
		most int // requests, and releases
	}{
		"64 turns":                {[]Option{WithTurns(DefaultTurns, time.Minute)}, 5},
		"for 20 ms, by default":   {nil, 8},
		"as many as there can be": {[]Option{WithTurns(MaxTurns, time.Minute)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				a, b := s.client(t, tc.opts...), s.client(t)
				held := mustAcquire(t, b, "report")
				ts := &tenures{t: t, s: s}
				const calls = 100
				for n := range calls {
					ts.start(a, 0, n, time.Millisecond)
				}
				time.Sleep(2 * time.Second)
				if n := s.queued("report"); n != 2 {
					t.Errorf("%d tickets stand for %d calls, want that of the first and one for the others", n, calls)
				}
				before := len(s.of("release"))
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				ts.calls.Wait()
				if got := ts.order(0); !slices.Equal(got, upTo(calls)) {
					t.Errorf("I9: served in the order %v", got)
				}
				if asked, released := len(s.of("acquire")), len(s.of("release"))-before; asked > tc.most || released > tc.most {
					t.Errorf("%d requests and %d releases for %d calls, want the first's and one for each block, %d at most", asked, released, calls, tc.most)
				}
				s.wantEmpty(t, "report", a, b)
			})
		})
	}
}

// Random calls of several clients with different bounds: nobody holds the lock beside another, tokens ascend over all of
// them, each client's calls are served in order, everybody is served, and nothing is left behind.
func TestI1_I2_I9_TurnsOfSeveralClientsNeverOverlapAndTheirTokensAscend(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				s := newFakeServer()
				s.gaps = seed%4 == 3
				ts := &tenures{t: t, s: s}
				var clients []*Client
				for _, o := range []Option{WithTurns(DefaultTurns, 0), WithTurns(3, 0), WithTurns(MaxTurns, 20*time.Millisecond), WithTurns(1, 0)} {
					clients = append(clients, s.client(t, o))
				}
				const calls = 300
				next := make([]int, len(clients))
				for range calls {
					n := random.IntN(len(clients))
					ts.start(clients[n], n, next[n], time.Duration(random.IntN(4))*time.Millisecond)
					next[n]++
					time.Sleep(time.Duration(random.IntN(3)) * 700 * time.Microsecond)
				}
				ts.calls.Wait()
				if len(ts.list) != calls {
					t.Errorf("%d of %d calls were served", len(ts.list), calls)
				}
				for n := range 3 {
					if got := ts.order(n); !slices.Equal(got, upTo(next[n])) {
						t.Errorf("I9: the calls of client %d were served in the order %v", n, got)
					}
				}
				s.wantEmpty(t, "report", clients...)
			})
		})
	}
}

// A waiter of another client waits for at most as many turns as the bound, and for at most its time plus one turn.
func TestI9_AWaiterOfAnotherClientWaitsForNoMoreThanTheBound(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  []Option
		hold  time.Duration
		turns int           // before the other
		most  time.Duration // that the other waits
	}{
		"three turns":            {[]Option{WithTurns(3, 0)}, time.Millisecond, 3, 10 * time.Millisecond},
		"64 turns":               {[]Option{WithTurns(DefaultTurns, time.Minute)}, time.Millisecond, 64, time.Second},
		"a thousand":             {[]Option{WithTurns(1000, time.Minute)}, time.Millisecond, 1000, 10 * time.Second},
		"50 ms":                  {[]Option{WithTurns(1000, 50*time.Millisecond)}, 10 * time.Millisecond, 5, 60 * time.Millisecond},
		"20 ms, by default":      {nil, time.Millisecond, 20, 30 * time.Millisecond},
		"a long one, by default": {nil, 300 * time.Millisecond, 1, 310 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				a, b, other := s.client(t, tc.opts...), s.client(t), s.client(t)
				held := mustAcquire(t, b, "report")
				ts := &tenures{t: t, s: s}
				const calls = 1500
				for n := range calls {
					ts.start(a, 0, n, tc.hold)
				}
				time.Sleep(time.Second) // both of their tickets are there
				ts.start(other, 1, 0, 0)
				time.Sleep(time.Second)
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				ts.calls.Wait()
				at := slices.IndexFunc(ts.list, func(u turn) bool { return u.client == 1 })
				// The first call has a ticket of its own.
				if turns := at - 1; turns != tc.turns {
					t.Errorf("%d turns before the other client's, want %d", turns, tc.turns)
				}
				if waited := ts.list[at].began - ts.list[1].began; waited > tc.most {
					t.Errorf("the other client waited %v for the turns of one grant, want at most %v", waited, tc.most)
				}
				s.wantEmpty(t, "report", a, b, other)
			})
		})
	}
}

// A line takes its next ticket when its block is used up and not before: a call of another client that queues in the middle of
// a block is served after the rest of it.
func TestI9_AWaiterThatComesDuringABlockIsServedAfterIt(t *testing.T) {
	for name, tc := range map[string]struct {
		opts  []Option
		turns int // of a block, each of 1 ms
	}{"by turns": {[]Option{WithTurns(20, time.Minute)}, 20}, "by time": {[]Option{WithTurns(MaxTurns, 20*time.Millisecond)}, 20}, "by time, long": {[]Option{WithTurns(MaxTurns, 100*time.Millisecond)}, 100}} {
		for _, after := range []int{1, tc.turns / 4, tc.turns / 2, tc.turns * 3 / 4, tc.turns - 1} {
			t.Run(fmt.Sprintf("%s, after %d turns", name, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newFakeServer()
					s.trip = 100 * time.Microsecond
					a, b, other := s.client(t, tc.opts...), s.client(t), s.client(t)
					held := mustAcquire(t, b, "report")
					ts := &tenures{t: t, s: s}
					for n := range 3*tc.turns + 1 {
						ts.start(a, 0, n, time.Millisecond)
					}
					time.Sleep(time.Second)
					if err := held.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					var done int
					for ; done < 1+after; time.Sleep(50 * time.Microsecond) { // the first call has a ticket of its own
						ts.mu.Lock()
						done = len(ts.list)
						ts.mu.Unlock()
					}
					ts.start(other, 1, 0, 0)
					ts.calls.Wait()
					at := slices.IndexFunc(ts.list, func(u turn) bool { return u.client == 1 })
					if rest := at - done; rest > tc.turns-after {
						t.Errorf("%d turns before the other client's, want the %d that were left of the block", rest, tc.turns-after)
					}
					s.wantEmpty(t, "report", a, b, other)
				})
			})
		}
	}
}

// Under a constant load of two clients neither is served more often than the other, although one has many more callers.
func TestI9_NeitherOfTwoClientsIsServedMoreThanItsBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		ts := &tenures{t: t, s: s}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var clients []*Client
		for client, callers := range []int{8, 64} {
			c := s.client(t)
			clients = append(clients, c)
			for range callers {
				ts.calls.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						if err := ts.take(ctx, c, client, n, time.Millisecond); err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					}
				})
			}
		}
		ts.calls.Wait()
		few, many := len(ts.order(0)), len(ts.order(1))
		if few < 1000 || float64(many) > 1.2*float64(few) || float64(few) > 1.2*float64(many) {
			t.Errorf("I9: %d and %d turns", few, many)
		}
		s.wantEmpty(t, "report", clients...)
	})
}

// inTurn gives a lease that was passed on in memory to the second of the calls that follow it, and the channels of those
// that still wait.
func inTurn(t *testing.T, s *fakeServer, c *Client, calls int, opts ...AcquireOption) (gone, now *Lease, waiting []chan acquired) {
	t.Helper()
	b := s.client(t)
	held := mustAcquire(t, b, "report")
	var results []chan acquired
	for range calls + 3 {
		results = append(results, lined(t.Context(), c, opts...))
	}
	time.Sleep(time.Second)
	if err := held.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	alone := served(t, results[0])
	if err := alone.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone = served(t, results[1])
	released := len(s.of("release"))
	if err := gone.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if cause := context.Cause(gone.Context()); cause != ErrReleased {
		t.Errorf("I5: the context of a turn that was passed on has the cause %v", cause)
	}
	now = served(t, results[2])
	if n := len(s.of("release")); n != released || now.Token() != gone.Token()+1 {
		t.Fatalf("token %d after %d, and %d releases: it was not passed on in memory", now.Token(), gone.Token(), n-released)
	}
	return gone, now, results[3:]
}

// lined starts a call; it returns when the call waits, and its request was answered if it has sent one.
func lined(ctx context.Context, c *Client, opts ...AcquireOption) chan acquired {
	result := make(chan acquired, 1)
	go func() {
		l, err := c.Acquire(ctx, "report", opts...)
		result <- acquired{lease: l, err: err}
	}()
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
		if err := served(t, r).Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// Whatever the caller of an ended turn still does with its lease, the turn that has the lock is not touched.
func TestI5_AnEndedTurnCannotTouchItsSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		gone, now, waiting := inTurn(t, s, c, 2)
		synctest.Wait() // until the line has its next ticket
		before, statements := s.ends("report"), s.count()
		for what, do := range map[string]func() error{
			"Release": func() error { return gone.Release(t.Context()) },
			"Renew":   func() error { return gone.Renew(t.Context()) },
			"Check":   func() error { _, err := gone.Check(t.Context()); return err },
			"Err":     gone.Err,
			"cause":   func() error { return context.Cause(gone.Context()) },
		} {
			if err := do(); err != ErrReleased {
				t.Errorf("I5: %s of an ended turn: %v, want ErrReleased", what, err)
			}
		}
		if g, err := gone.Export(); g != (Grant{}) || !errors.Is(err, ErrReleased) {
			t.Errorf("I5: the grant of an ended turn is %v with ID %v, %v", g, g.ID, err)
		}
		if gone.Valid() || !now.Valid() || now.Context().Err() != nil || !s.ends("report").Equal(before) || s.count() != statements {
			t.Errorf("I5: the turn after it: %v; %d statements", now.Err(), s.count()-statements)
		}
		if err := now.Release(t.Context()); err != nil {
			t.Error(err)
		}
		serveAll(t, waiting)
		s.wantEmpty(t, "report", c)
	})
}

// Two callers release the same lease at once: one of them ends it, and one call only gets the turn.
func TestI5_TwoReleasesAtOnceGiveOneTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		_, now, waiting := inTurn(t, s, c, 3)
		errs := make(chan error, 2)
		for range 2 {
			go func() { errs <- now.Release(t.Context()) }()
		}
		if one, two := <-errs, <-errs; errors.Join(one, two) == nil || one != nil && two != nil || !errors.Is(errors.Join(one, two), ErrReleased) {
			t.Errorf("I5: the releases: %v and %v, want nil and ErrReleased", one, two)
		}
		next := served(t, waiting[0])
		still(t, waiting[1])
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		serveAll(t, waiting[1:])
		s.wantEmpty(t, "report", c)
	})
}

// exported is the grant ID as Export tells it; nil when it does not.
func exported(l *Lease) uuid.UUID {
	g, _ := l.Export()
	return g.ID
}

// Whoever asked for the grant ID may have shown it to the server. So that lease ends through the server, and what
// comes after it is another grant.
func TestI4_ALeaseWhoseGrantIDIsKnownIsReleasedOnTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		_, now, waiting := inTurn(t, s, c, 5)
		id := exported(now)
		if id == uuid.Nil || id != s.rows["report"].GrantID || exported(now) != id {
			t.Fatalf("I4: the grant ID is %v, the server's %v", id, s.rows["report"].GrantID)
		}
		released := len(s.of("release"))
		if err := now.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(s.of("release")) - released; n != 1 {
			t.Fatalf("I4: %d releases reached the server, want one", n)
		}
		if exported(now) != id {
			t.Errorf("the grant ID that was told has become %v", exported(now))
		}
		next := served(t, waiting[0])
		if next.grantID == id || int64(next.Token()) <= now.row {
			t.Errorf("I4: the next turn has grant ID %v after %v and token %d after a block that ends with %d", next.grantID, id, next.Token(), now.row)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		serveAll(t, waiting[1:])
		s.wantEmpty(t, "report", c)
	})
}

// If every caller writes under a fence, blocks are useless: the line asks for one turn at a time, and for a block
// once in a while.
func TestALineWhoseLeasesAreKnownAsksForSingleTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		var results []chan acquired
		const calls = 60
		for range calls {
			results = append(results, lined(t.Context(), c))
		}
		ids := make(map[uuid.UUID]bool)
		for _, r := range results {
			l := served(t, r)
			ids[exported(l)] = true
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if len(ids) != calls || ids[uuid.Nil] {
			t.Errorf("%d grants for %d known leases", len(ids), calls)
		}
		var blocks, single int
		for _, asked := range s.of("acquire")[1:] {
			if asked.request.Turns > 1 {
				blocks++
			} else {
				single++
			}
		}
		if most := 2 * (1 + calls/apartFor); blocks == 0 || blocks > most || single < calls-1-most {
			t.Errorf("%d tickets for blocks and %d for single turns", blocks, single)
		}
		s.wantEmpty(t, "report", c)
	})
}

// Asking for the grant ID and releasing at once: either the ID is given out and the release goes through the server,
// or the lease is passed on and the ID is not given out. Never both.
func TestI4_GrantIDAgainstReleaseIsOneOrTheOther(t *testing.T) {
	passed := 0
	for round := range 200 {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeServer()
			c := s.client(t)
			_, now, waiting := inTurn(t, s, c, 1)
			grantID, released := s.rows["report"].GrantID, len(s.of("release"))
			told, done := make(chan uuid.UUID, 1), make(chan error, 1)
			ask, release := func() { told <- exported(now) }, func() { done <- now.Release(t.Context()) }
			if round%2 == 0 {
				go ask()
				go release()
			} else {
				go release()
				go ask()
			}
			id, err := <-told, <-done
			if err != nil {
				t.Fatal(err)
			}
			switch through := len(s.of("release")) > released; {
			case id == grantID && through:
			case id == uuid.Nil && !through:
				passed++
			default:
				t.Fatalf("I4: grant ID %v of %v, through the server: %v", id, grantID, through)
			}
			serveAll(t, waiting)
		})
	}
	t.Logf("%d of 200 were passed on", passed)
}

// The first call of a line and the second are under way together: the second does not get ahead of the first, nor
// does a whole block.
func TestI9_TheCallThatBeganALineIsServedFirst(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			s := newFakeServer()
			c, b := s.client(t), s.client(t)
			held := mustAcquire(t, b, "report")
			ts := &tenures{t: t, s: s}
			ts.start(c, 0, 0, time.Millisecond)
			s.fakeStore.set(func() { // its request takes its time
				s.fault = func(what string, done bool) error {
					if what == "acquire" && done {
						time.Sleep(time.Duration(random.IntN(3)) * time.Millisecond)
					}
					return nil
				}
			})
			s.locked(func() { s.trip = time.Duration(random.IntN(1000)) * time.Microsecond })
			for n := range 10 {
				ts.start(c, 0, n+1, time.Millisecond)
			}
			time.Sleep(time.Second)
			if err := held.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			ts.calls.Wait()
			if got := ts.order(0); !slices.Equal(got, upTo(11)) {
				t.Errorf("I9: served in the order %v", got)
			}
			s.wantEmpty(t, "report", b, c)
		})
	}
}
