package pglock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// asked are the names of the requests, in order.
func (s *fakeStore) asked(what string) (names []string) {
	for _, c := range s.of(what) {
		names = append(names, c.names[0])
	}
	return names
}

func TestAcquireAllAsksInByteOrderAndAnswersInTheGivenOne(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		given := []string{"b", "ä", "a", "B", "a\x7f", "ab"}
		together := must.Get(c.AcquireAll(t.Context(), given, WithTTL(time.Minute)))(t)
		leases := together.All()
		if want := []string{"B", "a", "ab", "a\x7f", "b", "ä"}; !slices.Equal(s.asked("acquire"), want) {
			t.Errorf("asked for %q, want %q", s.asked("acquire"), want)
		}
		tokens := make(map[Token]bool)
		for i, l := range leases {
			tokens[l.Token()] = true
			if l.Name() != given[i] || !l.Valid() || l.TTL() != time.Minute || l.owner != leases[0].owner {
				t.Errorf("lease %d is %v with TTL %v and owner %v", i, l, l.TTL(), l.owner)
			}
		}
		if len(tokens) != len(given) {
			t.Errorf("tokens %v, want one for each", tokens)
		}
		for i, a := range s.of("acquire") {
			if a.nested != (i > 0) || a.request.Owner != leases[0].owner.id || !a.request.Wait {
				t.Errorf("request %d: nested %v, waits %v", i, a.nested, a.request.Wait)
			}
		}
	})
}

func TestAcquireAllUnderALeaseIsTheSameOwners(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		outer := mustAcquire(t, c, "outer")
		leases := must.Get(c.AcquireAll(outer.Context(), []string{"a", "b"}))(t)
		if leases.All()[0].owner != outer.owner || !s.of("acquire")[1].nested {
			t.Error("another owner")
		}
	})
}

func TestLeasesEndTogetherWithTheFirstOfThem(t *testing.T) {
	type valueKey struct{}
	for name, end := range map[string]struct {
		end  func(*Leases) error
		want error
	}{
		"released":     {func(ls *Leases) error { return ls.Release(context.Background()) }, ErrReleased},
		"one released": {func(ls *Leases) error { return ls.All()[1].Release(context.Background()) }, ErrReleased},
		"one lost":     {func(ls *Leases) error { ls.All()[1].end(&LostError{Lock: "a"}); return nil }, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := startClient(t, newFakeStore(), trust.SystemClock())
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), valueKey{}, "kept"))
				leases := must.Get(c.AcquireAll(ctx, []string{"b", "a", "c"}))(t)
				cancel()
				synctest.Wait()
				if _, found := LeaseFromContext(leases.Context()); found || leases.Context().Err() != nil ||
					leases.Err() != nil || leases.Context().Value(valueKey{}) != "kept" {
					t.Errorf("%v, %v, a lease: %v", leases.Context().Err(), leases.Err(), found)
				}
				if o, err := ownerOf(leases.Context()); err != nil || o != leases.All()[0].owner {
					t.Errorf("the context has owner %v, %v; the leases have %v", o, err, leases.All()[0].owner)
				}
				must.Note(t, end.end(leases))
				<-leases.Context().Done()
				if cause := context.Cause(leases.Context()); !errors.Is(cause, end.want) ||
					!errors.Is(leases.Err(), end.want) {
					t.Errorf("cause %v, Err %v; want %v", cause, leases.Err(), end.want)
				}
				if err := leases.Release(t.Context()); !errors.Is(err, end.want) {
					t.Errorf("a release after it: %v, want %v", err, end.want)
				}
				for _, l := range leases.All() {
					if l.Valid() {
						t.Errorf("%v is left", l)
					}
				}
			})
		})
	}
}

func TestTheErrorOfManyReleasesIsShort(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		leases, err := c.AcquireAll(t.Context(), strings.Split("a b c d e f g h i", " "))
		if err != nil {
			t.Fatal(err)
		}
		must.Do(t, leases.Release(t.Context()))
		err = leases.Release(t.Context())
		if !errors.Is(err, ErrReleased) || strings.Count(err.Error(), "\n") != 3 ||
			!strings.HasSuffix(err.Error(), "\nand 6 more") {
			t.Errorf("%v, want the first three and how many more", err)
		}
	})
}

func TestLeaseFromContextIsTheLeaseAcquiredLast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := startClient(t, newFakeStore(), trust.SystemClock())
		if l, found := LeaseFromContext(t.Context()); l != nil || found {
			t.Errorf("%v, want none", l)
		}
		outer := mustAcquire(t, c, "outer")
		ctx, cancel := context.WithTimeout(outer.Context(), time.Minute)
		defer cancel()
		if l, found := LeaseFromContext(ctx); l != outer || !found {
			t.Errorf("%v, want the outer lease", l)
		}
		err := c.Do(ctx, "inner", func(ctx context.Context, inner *Lease) error {
			if l, _ := LeaseFromContext(ctx); l != inner || inner.owner != outer.owner {
				t.Errorf("%v, want the inner lease", l)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestAcquireAllThatFailsHoldsNothing(t *testing.T) {
	refused := sqlError("LK010")
	for name, tc := range map[string]struct {
		c    func(context.Context, call) (protocol.Answer, error)
		opts []AcquireOption
		want []error
		took time.Duration
	}{
		"refused": {func(context.Context, call) (protocol.Answer, error) {
			return protocol.Answer{}, refused
		}, nil, []error{ErrLimit, ErrInvalid}, 0},
		"held, no wait": {heldBy("b", time.Hour), []AcquireOption{WithMaxWait(0)}, []error{ErrHeld}, 0},
		"held for long": {nil, []AcquireOption{WithMaxWait(3 * time.Second)},
			[]error{ErrHeld, context.DeadlineExceeded}, 3 * time.Second},
		"held too short": {nil, []AcquireOption{WithTTL(100 * time.Millisecond), WithMaxWait(time.Hour)},
			[]error{ErrLost}, 10 * time.Second},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, 10*time.Second)
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				if asked.names[0] != "c" {
					return s.grants(asked.request), nil
				}
				if tc.c != nil {
					return tc.c(ctx, asked)
				}
				return q.acquire(ctx, asked)
			}
			if name == "held too short" {
				s.onRenewAll = hangs // the first leases are lost while the last is waited for
			}
			c := startClient(t, s, trust.SystemClock())
			leases, err := c.AcquireAll(t.Context(), []string{"d", "c", "b", "a"}, tc.opts...)
			for _, want := range tc.want {
				if !errors.Is(err, want) {
					t.Errorf("%v, want %v", err, want)
				}
			}
			if took := time.Since(s.began); leases != nil || took < tc.took || took > tc.took+10*time.Millisecond {
				t.Errorf("%v after %v, want none after %v", leases, took, tc.took)
			}
			want := []string{"b", "a"}
			if name == "held too short" {
				want = []string{"d", "c"} // the others have been lost
			}
			synctest.Wait()
			if got := s.takenBack(); !slices.Equal(slices.DeleteFunc(got, func(name string) bool {
				return name == "c" && want[1] == "a"
			}), want) {
				t.Errorf("taken back: %q, want %q", got, want)
			}
			if leases, tickets, _ := left(c); leases+tickets != 0 {
				t.Errorf("%d leases, %d tickets are left", leases, tickets)
			}
		}))
	}
}

// A first attempt whose answer was lost may still be under way when the lock is taken back.
func TestI6_WhatAcquireAllTakesBackIsSpentIfAnAttemptMayBeUnderWay(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
			switch {
			case asked.names[0] == "c":
				return protocol.Answer{}, sqlError("LK010")
			case asked.names[0] == "a" && len(s.of("acquire")) == 1:
				return protocol.Answer{}, errReset
			}
			return s.grants(asked.request), nil
		}
		c := startClient(t, s, trust.SystemClock())
		if _, err := c.AcquireAll(t.Context(), []string{"a", "b", "c"}); !errors.Is(err, ErrLimit) {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, g := range s.of("giveUp") {
			if g.spend != slices.Contains(g.names, "a") {
				t.Errorf("given back %+v, want only that of \"a\" to be spent", g)
			}
		}
		if got := s.takenBack(); !slices.Equal(got, []string{"b", "a"}) {
			t.Errorf("taken back: %q", got)
		}
	})
}

// takenBack are the locks of requests that were taken back, in the reverse order of their names.
func (s *fakeStore) takenBack() (names []string) {
	for _, up := range s.of("giveUp") {
		names = append(names, up.names...)
	}
	slices.Sort(names)
	slices.Reverse(names)
	return names
}

// A server that does not answer does not keep the call: what it has goes back in the background.
func TestAcquireAllComesBackThoughNothingCanBeGivenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		acquire := s.onAcquire
		s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
			if asked.names[0] == "a" {
				return s.grants(asked.request), nil
			}
			return acquire(ctx, asked)
		}
		s.onGiveUp = func(ctx context.Context, _ protocol.RequestID) (protocol.TakenBack, error) {
			<-ctx.Done()
			return protocol.TakenBack{}, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, WithMaxWait(3*time.Second), WithTTL(30*time.Second))
		if took := time.Since(s.began); !errors.Is(err, context.DeadlineExceeded) || took > 3*time.Second+
			500*time.Millisecond {
			t.Errorf("%v after %v, want context.DeadlineExceeded after 3s", err, took)
		}
		s.set(func() { s.onGiveUp = q.giveUp })
		time.Sleep(2 * time.Minute)
		if got := s.takenBack(); !slices.Contains(got, "a") || len(q.tickets) != 0 {
			t.Errorf("taken back: %q, %d tickets left", got, len(q.tickets))
		}
	})
}

func TestAcquireAllWaitsForAllTogetherAsLongAsForOne(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		// the first request after that gets the lock, and the next has to wait for its end
		q := queued(s, 2*time.Second)
		c := startClient(t, s, trust.SystemClock())
		_, err := c.AcquireAll(t.Context(), []string{"a", "b"}, WithMaxWait(3*time.Second), WithTTL(30*time.Second))
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrHeld) ||
			time.Since(s.began) != 3*time.Second {
			t.Errorf("%v after %v, want ErrHeld and context.DeadlineExceeded after 3s", err, time.Since(s.began))
		}
		if len(s.of("acquire")) != 3 || len(q.tickets) != 0 || !slices.Equal(s.takenBack(), []string{"b", "a"}) {
			t.Errorf("%d requests, %d tickets left, taken back: %v", len(s.of("acquire")), len(q.tickets),
				s.takenBack())
		}
	})
}

func TestI11_AcquireAllRefusesAListThatMakesNoSenseBeforeAnythingIsSent(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		for name, tc := range map[string]struct {
			names []string
			opts  []AcquireOption
			field string
			says  string
		}{
			"nil":             {nil, nil, "names", "at least one"},
			"empty":           {[]string{}, nil, "names", "at least one"},
			"twice":           {[]string{"a", "b", "a"}, nil, "names[2]", "names[0]"},
			"an empty name":   {[]string{"a", ""}, nil, "names[1]", "512"},
			"too long a name": {[]string{strings.Repeat("x", 513), "a"}, nil, "names[0]", "512"},
			"a bad option":    {[]string{"b", "a"}, []AcquireOption{WithLimit(0)}, "limit", "1000"},
			"no option":       {[]string{"b", "a"}, []AcquireOption{nil}, "option", "option"},
		} {
			leases, err := c.AcquireAll(t.Context(), tc.names, tc.opts...)
			var argument *ArgumentError
			if leases != nil || !errors.As(err, &argument) || argument.Field != tc.field ||
				!strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v, %v; want an ArgumentError for %s that says %q", name, leases, err, tc.field, tc.says)
			}
		}
		if n := len(s.of("acquire")); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}
