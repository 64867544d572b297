package pglock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fromALine returns a lease that its call got from a line: as a turn of a block that passed on, as the first of a
// block, or alone because the grant had no block.
func fromALine(t *testing.T, s *fakeServer, c *Client, how string, opts ...AcquireOption) (now *Lease, waiting []chan acquired) {
	t.Helper()
	if how == "passed on" {
		_, now, waiting = inTurn(t, s, c, 2, opts...)
		return now, waiting
	}
	s.locked(func() { s.gaps = how == "alone" })
	first := served(t, lined(t.Context(), c, opts...))
	waiting = []chan acquired{lined(t.Context(), c, opts...), lined(t.Context(), c, opts...)}
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	now = served(t, waiting[0])
	if got := now.row > int64(now.token); got == (how == "alone") {
		t.Fatalf("%s: a block: %v", how, got)
	}
	return now, waiting[1:]
}

var waysIntoALine = []string{"passed on", "first of a block", "alone"}

// Before an owner asks for another lock, through whatever client, the server is told once which leases from a line it
// holds. So an owner that asks for what it holds is refused at once. The release then goes through the server.
func TestOwnerOfATurnIsKnownBeforeItAsksForAnotherLock(t *testing.T) {
	for _, how := range waysIntoALine {
		for _, first := range []string{"the same client", "another client"} {
			t.Run(how+", "+first, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newFakeServer()
					c, other := s.client(t), s.client(t)
					now, waiting := fromALine(t, s, c, how)
					asking := []*Client{c, other, c, other}
					if first == "another client" {
						asking = asking[1:]
					}
					for n, asks := range asking {
						began := time.Now()
						_, err := asks.Acquire(now.Context(), "report", WithMaxWait(time.Minute))
						if took := time.Since(began); !errors.Is(err, ErrSelfDeadlock) || took > 10*s.trip {
							t.Errorf("%d: the owner's own lock: %v after %v, want ErrSelfDeadlock at once", n, err, took)
						}
						if _, err := asks.TryAcquire(now.Context(), "report"); !errors.Is(err, ErrSelfDeadlock) {
							t.Errorf("%d: a try of the owner's own lock: %v, want ErrSelfDeadlock", n, err)
						}
					}
					if n := len(s.of("own")); n > 1 {
						t.Errorf("the owner was told %d times", n)
					}
					released := len(s.of("release"))
					if err := now.Release(t.Context()); err != nil {
						t.Error(err)
					}
					if n := len(s.of("release")) - released; n != 1 {
						t.Errorf("I4: %d releases of a lease whose owner is known, want one", n)
					}
					serveAll(t, waiting)
					s.wantEmpty(t, "report", c)
				})
			})
		}
	}
}

// The server is told nothing about turns whose owners ask for nothing else, nor about those that have ended.
func TestOwnerOfATurnThatAsksForNothingElseIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		gone, now, waiting := inTurn(t, s, c, 3)
		under := context.WithoutCancel(gone.Context())
		if gone.owner.Nested() || !now.owner.Nested() {
			t.Error("the owner of the turn that has ended counts as holding a lock, or that of the present one does not")
		}
		inner, err := c.TryAcquire(under, "inner") // after its turn has ended
		if err != nil {
			t.Fatal(err)
		}
		result := lined(under, c) // holds inner, and asks again for what it held
		if err := now.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		serveAll(t, waiting)
		if err := served(t, result).Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := inner.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if n := len(s.of("own")); n != 0 {
			t.Errorf("%d owners were told", n)
		}
		s.wantEmpty(t, "report", c)
	})
}

// If the server could not be told of an owner, it is told before the next request; a waiting call tolerates an
// unreachable server for that too.
func TestOwnerOfATurnIsToldAgainWhereTheFirstTimeFailed(t *testing.T) {
	for _, how := range waysIntoALine[:2] {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c := s.client(t)
				now, waiting := fromALine(t, s, c, how)
				var told atomic.Int32
				s.set(func() {
					s.fault = func(what string, done bool) error {
						if what == "own" && !done && told.Add(1) <= 3 {
							return errReset
						}
						return nil
					}
				})
				var err error
				for range 5 {
					if _, err = c.Acquire(now.Context(), "report", WithMaxWait(time.Minute)); errors.Is(err, ErrSelfDeadlock) {
						break
					}
				}
				if !errors.Is(err, ErrSelfDeadlock) {
					t.Errorf("the owner's own lock: %v, want ErrSelfDeadlock; told %d times", err, len(s.of("own")))
				}
				if err := now.Release(t.Context()); err != nil {
					t.Error(err)
				}
				serveAll(t, waiting)
				s.wantEmpty(t, "report", c)
			})
		})
	}
}

// A server that is briefly unreachable fails no waiting call, even if it has to be told of a turn's owner.
func TestCallOfATurnsOwnerBearsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		_, now, waiting := inTurn(t, s, c, 1)
		began := time.Now()
		s.set(func() {
			s.fault = func(what string, _ bool) error {
				if (what == "own" || what == "acquire") && time.Since(began) < 3*time.Second {
					return errReset
				}
				return nil
			}
		})
		inner, err := c.Acquire(now.Context(), "inner")
		if err != nil {
			t.Errorf("a call that waits, in an outage of three seconds: %v", err)
		} else if err := inner.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := now.Release(t.Context()); err != nil {
			t.Error(err)
		}
		serveAll(t, waiting)
		s.wantEmpty(t, "report", c)
	})
}

// If an owner gets a lock while another call of it waits in a line, that call counts as nested from then on, as it
// does with a ticket of its own: looks search circles from where it waits.
func TestOwnerThatComesToHoldALockWhileItWaitsInALineIsNested(t *testing.T) {
	for name, ahead := range map[string]int{"the first call": 0, "the second": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c, other := s.client(t), s.client(t)
				held := mustAcquire(t, other, "report")
				before := mustAcquire(t, c, "before")
				under := context.WithoutCancel(before.Context())
				if err := before.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				var results []chan acquired
				for range ahead {
					results = append(results, lined(t.Context(), c))
				}
				results = append(results, lined(under, c))
				time.Sleep(time.Second)
				inner, err := c.TryAcquire(under, "inner")
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				if looks := s.of("look"); len(looks) == 0 || len(looks[len(looks)-1].tokens) == 0 {
					t.Error("no look searches circles from the ticket of an owner that holds a lock")
				}
				if err := errors.Join(inner.Release(t.Context()), held.Release(t.Context())); err != nil {
					t.Error(err)
				}
				serveAll(t, results)
				s.wantEmpty(t, "report", c)
			})
		})
	}
}

// Only requests that nothing distinguishes on the server share a ticket.
func TestCallsThatDifferHaveTicketsOfTheirOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c, b := s.client(t), s.client(t)
		held, outer := mustAcquire(t, b, "report"), mustAcquire(t, c, "outer")
		var results []chan acquired
		want := 0
		for _, group := range []struct {
			ctx     context.Context
			opts    []AcquireOption
			tickets int // of three such calls
		}{
			{t.Context(), nil, 2},
			{t.Context(), []AcquireOption{WithTTL(time.Minute)}, 2},
			{t.Context(), []AcquireOption{WithHolder("another")}, 2},
			{t.Context(), []AcquireOption{WithMaxWait(time.Hour)}, 0}, // behind the first ones
			{t.Context(), []AcquireOption{WithMetadata([]byte(`{}`))}, 3},
			{t.Context(), []AcquireOption{WithGrace(time.Second)}, 3},
			{outer.Context(), nil, 3},
			{outer.Context(), []AcquireOption{WithTTL(time.Minute)}, 3},
		} {
			for range 3 {
				results = append(results, lined(group.ctx, c, group.opts...))
			}
			time.Sleep(100 * time.Millisecond)
			if want += group.tickets; s.queued("report") != want {
				t.Fatalf("%d tickets, want %d", s.queued("report"), want)
			}
		}
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, ErrHeld) || s.queued("report") != want {
			t.Errorf("a try: %v, and %d tickets", err, s.queued("report"))
		}
		all := make(chan error, 1)
		go func() {
			leases, err := c.AcquireAll(t.Context(), []string{"report"})
			if err == nil {
				err = leases.Release(t.Context())
			}
			all <- err
		}()
		time.Sleep(100 * time.Millisecond)
		if s.queued("report") != want+1 {
			t.Errorf("%d tickets, want one more for AcquireAll", s.queued("report"))
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		tokens := make(map[Token]bool)
		for range results {
			i := slices.IndexFunc(results, func(r chan acquired) bool { return len(r) > 0 })
			for ; i < 0; i = slices.IndexFunc(results, func(r chan acquired) bool { return len(r) > 0 }) {
				time.Sleep(s.trip)
			}
			l := served(t, results[i])
			tokens[l.Token()] = true
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := <-all; err != nil {
			t.Error(err)
		}
		if len(tokens) != len(results) {
			t.Errorf("%d tokens for %d calls", len(tokens), len(results))
		}
		if err := outer.Release(t.Context()); err != nil {
			t.Error(err)
		}
		s.wantEmpty(t, "report", c, b)
	})
}

// A lease of a line that Do was given ends with Do's context, and its successor does not.
func TestTurnEndsWithTheContextOfItsOwnCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		b := s.client(t)
		held := mustAcquire(t, b, "report")
		results := []chan acquired{lined(t.Context(), c)}
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "do"))
		done, inside := make(chan error, 1), make(chan *Lease)
		go func() {
			done <- c.Do(ctx, "report", func(ctx context.Context, l *Lease) error {
				inside <- l
				<-ctx.Done()
				if ctx.Value(key{}) != "do" || l.Context().Value(key{}) != "do" {
					t.Error("the context of Do's call is not that of its turn")
				}
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		results = append(results, lined(t.Context(), c))
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := served(t, results[0]).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		turn := <-inside
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
			t.Errorf("Do: %v", err)
		}
		next := served(t, results[1])
		if next.Token() != turn.Token()+1 || next.Context().Err() != nil || next.Context().Value(key{}) != nil || turn.Context().Err() == nil {
			t.Errorf("the next turn: token %d after %d, %v", next.Token(), turn.Token(), context.Cause(next.Context()))
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		s.wantEmpty(t, "report", c, b)
	})
}

// An owner waits with its own ticket when another of its calls gets a turn. One of the next looks tells the server
// whose turn it is; otherwise circles through it would not be found.
func TestOwnerThatIsGivenATurnWhileItWaitsForAnotherLockIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c, other := s.client(t), s.client(t)
		elsewhere, err := other.TryAcquire(t.Context(), "elsewhere")
		if err != nil {
			t.Fatal(err)
		}
		before := mustAcquire(t, c, "before")
		under := context.WithoutCancel(before.Context())
		if err := before.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := served(t, lined(t.Context(), c))
		turn := lined(under, c) // in the line: it holds nothing
		done := make(chan error, 1)
		go func() {
			l, err := c.Acquire(under, "elsewhere")
			if err == nil {
				err = l.Release(t.Context())
			}
			done <- err
		}()
		time.Sleep(time.Second)
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := served(t, turn)
		time.Sleep(3 * time.Second)
		s.locked(func() {
			if r := s.rows["report"]; r.owned != now.owner.id {
				t.Error("the server does not know whose the turn is, while its owner waits for another lock")
			}
		})
		if err := errors.Join(now.Release(t.Context()), elsewhere.Release(t.Context()), <-done); err != nil {
			t.Error(err)
		}
		s.wantEmpty(t, "report", c, other)
	})
}
