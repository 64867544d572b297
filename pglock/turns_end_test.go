package pglock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/handoff"
)

// The heartbeat renews a block for whichever turn has it when the answer comes: for turns that pass faster than a
// beat takes, and for one that is held long.
func TestI7_HeartbeatsRenewABlockWhileItsTurnsPass(t *testing.T) {
	for name, hold := range map[string]time.Duration{"fast": 20 * time.Millisecond, "slower than a beat": 700 * time.Millisecond, "long": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c := s.client(t, WithDefaultTTL(6*time.Second), WithTurns(MaxTurns, time.Hour))
				_, now, waiting := inTurn(t, s, c, 300)
				s.locked(func() { s.trip = 200 * time.Millisecond }) // a beat takes 400 ms
				grantID := now.grantID
				for began := time.Now(); time.Since(began) < 60*time.Second; {
					time.Sleep(hold)
					if left := time.Until(s.ends("report")); !now.Valid() || left <= 0 || time.Until(now.Deadline()) > left {
						t.Fatalf("I7: the turn with token %d: %v; trusted for %v, the server has %v left", now.Token(), now.Err(), time.Until(now.Deadline()), left)
					}
					if time.Until(now.Deadline()) < now.TTL()/2 { // a third of the TTL, the margin, and what a beat takes
						t.Errorf("I7: trusted for %v only", time.Until(now.Deadline()))
					}
					if len(waiting) == 0 {
						break
					}
					if err := now.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					if now, waiting = served(t, waiting[0]), waiting[1:]; now.grantID != grantID {
						t.Fatal("the block has come to its end")
					}
				}
				if n := len(s.of("beat")); n < 6 || n > 200 {
					t.Errorf("%d beats", n)
				}
				s.locked(func() { s.trip = time.Millisecond })
				if err := now.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				serveAll(t, waiting)
				s.wantEmpty(t, "report", c)
			})
		})
	}
}

// A turn is trusted no longer than the grant that it came with, however many hand-overs there were. Where renewals fail it
// is not passed on when half of the lease is gone, but released.
func TestI7_TrustInATurnEndsWithTheLastRenewalOfItsGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t, WithTurns(MaxTurns, time.Hour))
		_, now, waiting := inTurn(t, s, c, 200)
		s.set(func() { s.onRenewAll = hangs })
		deadline, until := now.Deadline(), s.ends("report")
		grantID := now.grantID
		last := now
		for ; now.grantID == grantID; now, waiting = served(t, waiting[0]), waiting[1:] {
			if now.Deadline() != deadline || time.Now().After(deadline.Add(-now.TTL()/2)) {
				t.Errorf("I7: a turn was given at %v with the deadline %v, that of the grant is %v", time.Now(), now.Deadline(), deadline)
			}
			last = now
			time.Sleep(200 * time.Millisecond)
			if err := now.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if n := time.Until(until); n < now.TTL()/3 || int(last.Token()) < 50 {
			t.Errorf("the last turn was given %v before the end", n)
		}
		<-now.Context().Done() // no renewal brings anything
		if err := now.Err(); !errors.Is(err, ErrLost) || time.Now().After(s.ends("report")) || now.Release(t.Context()) == nil {
			t.Errorf("I7: the turn that is held on to: %v", err)
		}
		s.set(func() { s.onRenewAll = nil })
		serveAll(t, waiting)
		s.wantEmpty(t, "report", c)
	})
}

// A break ends the block. The turn that has it is lost with the next heartbeat, earlier turns are not touched, and
// those behind it queue again and are served.
func TestI7_I10_ABreakEndsThePresentTurnAndTheOthersQueueAgain(t *testing.T) {
	for name, passes := range map[string]bool{"a turn that stays": false, "turns that pass while the beat is under way": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c := s.client(t, WithDefaultTTL(6*time.Second))
				gone, now, waiting := inTurn(t, s, c, 20)
				grantID := now.grantID
				s.locked(func() { s.trip = 100 * time.Millisecond })
				s.breaks("report")
				broken := time.Now()
				var told error
				for n := 0; passes && now.grantID == grantID && n < 15; n++ {
					time.Sleep(150 * time.Millisecond)
					if told = now.Release(t.Context()); told != nil {
						break
					}
					now, waiting = served(t, waiting[0]), waiting[1:]
				}
				if told != nil {
					if took := time.Since(broken); !errors.Is(told, ErrLost) || took > now.TTL()/2 {
						t.Errorf("I10: Release: %v, %v after the break", told, took)
					}
				} else if now.grantID == grantID {
					<-now.Context().Done()
					if took := time.Since(broken); !errors.Is(context.Cause(now.Context()), ErrLost) || took > now.TTL()/2 {
						t.Errorf("I10: the turn ended with %v, %v after the break", context.Cause(now.Context()), took)
					}
					var lost *LostError
					if err := now.Release(t.Context()); !errors.As(err, &lost) || lost.Token != now.Token() {
						t.Errorf("I10: Release: %v", err)
					}
				} else if err := now.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if gone.Err() != ErrReleased {
					t.Errorf("a turn that had ended before: %v", gone.Err())
				}
				for _, r := range waiting {
					l := served(t, r)
					if l.grantID == grantID || l.row <= gone.row {
						t.Errorf("I10: a turn of the block that was broken: token %d", l.Token())
					}
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				s.locked(func() { s.trip = time.Millisecond })
				s.wantEmpty(t, "report", c)
			})
		})
	}
}

// A call that gives up in a line returns at once with who holds the lock and its place. Those behind it move up. When all
// have given up, no ticket stays.
func TestCallThatGivesUpInALineReturnsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c, b := s.client(t, WithDefaultHolder("we")), s.client(t, WithDefaultHolder("they"))
		held := mustAcquire(t, b, "report")
		results := []chan acquired{lined(t.Context(), c)}
		var cancels []context.CancelFunc
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cancels = append(cancels, cancel)
			results = append(results, lined(ctx, c))
		}
		time.Sleep(time.Second)
		giveUp := func(n int, holder string, token Token, place int, until time.Time) {
			t.Helper()
			statements, began := len(s.of("giveUp")), time.Now()
			cancels[n-1]()
			got := <-results[n]
			var h *HeldError
			if !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &h) || time.Since(began) != 0 {
				t.Fatalf("call %d: %v after %v, want the context's error and ErrHeld at once", n, got.err, time.Since(began))
			}
			if h.Name != "report" || h.Holder != holder || h.Token != token || h.Place != place || !h.ExpiresAt.Equal(until) || h.ExpiresAt.Location() != time.UTC {
				t.Errorf("call %d: %+v, want %s with token %d until %v and place %d", n, h, holder, token, until, place)
			}
			if now := len(s.of("giveUp")); now != statements {
				t.Errorf("call %d: %d statements for a call that has no ticket", n, now-statements)
			}
		}
		giveUp(3, "they", held.Token(), 4, s.ends("report")) // behind the first call's ticket and two others
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := served(t, results[0])
		giveUp(2, "we", first.Token(), 2, time.Time{}) // a hint does not tell until when
		time.Sleep(first.TTL() / 2)
		giveUp(5, "we", first.Token(), 3, s.ends("report")) // a renewal does
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		second := served(t, results[1])
		giveUp(4, "we", second.Token(), 1, time.Time{})
		time.Sleep(time.Second)
		if n := s.queued("report"); n != 0 {
			t.Errorf("%d tickets for a line that nobody is in", n)
		}
		if err := second.Release(t.Context()); err != nil {
			t.Error(err)
		}
		s.wantEmpty(t, "report", b, c)
	})
}

// A call that joins a line just when its ticket is taken back, because nobody was left, is served.
func TestCallThatComesWhileALineLeavesTheQueueIsServed(t *testing.T) {
	for late := range 20 {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeServer()
			c, b := s.client(t), s.client(t)
			held := mustAcquire(t, b, "report")
			first := lined(t.Context(), c)
			ctx, cancel := context.WithCancel(t.Context())
			second := lined(ctx, c)
			time.Sleep(time.Second)
			cancel()
			if got := <-second; !errors.Is(got.err, context.Canceled) {
				t.Error(got.err)
			}
			time.Sleep(lingering - 5*time.Millisecond + time.Duration(late)*500*time.Microsecond)
			third := lined(t.Context(), c)
			time.Sleep(time.Second)
			if err := held.Release(t.Context()); err != nil {
				t.Error(err)
			}
			serveAll(t, []chan acquired{first, third})
			s.wantEmpty(t, "report", b, c)
		})
	}
}

// The second call of a line gives up while the first one's request is on its way, which is granted: nothing is left of the line
// when the lease ends, and no goroutine.
func TestLineWhoseOnlyOtherCallGivesUpIsForgotten(t *testing.T) {
	for name, tc := range map[string]struct {
		gone time.Duration // of the two seconds that the request takes
		held bool
	}{"before the request arrives": {500 * time.Millisecond, false}, "while it is answered": {1500 * time.Millisecond, false}, "when it was granted": {2500 * time.Millisecond, false},
		"before it is queued": {500 * time.Millisecond, true}, "when it is queued": {2500 * time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c, b := s.client(t), s.client(t)
				var held *Lease
				if tc.held {
					held = mustAcquire(t, b, "report")
				}
				s.locked(func() { s.trip = time.Second })
				began := time.Now()
				call := func(ctx context.Context) chan acquired {
					result := make(chan acquired, 1)
					go func() {
						l, err := c.Acquire(ctx, "report")
						result <- acquired{lease: l, err: err}
					}()
					synctest.Wait()
					return result
				}
				first := call(t.Context())
				ctx, cancel := context.WithCancel(t.Context())
				second := call(ctx)
				time.Sleep(tc.gone - time.Since(began))
				cancel()
				if got := <-second; !errors.Is(got.err, context.Canceled) {
					t.Error(got.err)
				}
				if held != nil {
					if err := held.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
				if err := served(t, first).Release(t.Context()); err != nil {
					t.Error(err)
				}
				time.Sleep(10 * time.Second)
				s.wantEmpty(t, "report", c, b)
				stacks := make([]byte, 1<<20)
				if stacks = stacks[:runtime.Stack(stacks, true)]; bytes.Contains(stacks, []byte("(*Client).serve(")) {
					t.Error("the line's goroutine is left")
				}
			})
		})
	}
}

// A grant that comes when nobody in the line waits any more is released at once, even if the first attempt fails; the
// lock goes to the next.
func TestTrap9_AGrantForALineThatNobodyIsInGoesBack(t *testing.T) {
	for _, fails := range []int{0, 1, 3, -1, -3} { // so many requests are lost, or, below 0, answers
		for trip := range 15 { // the grant and the end of the wait meet at every moment
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c, b := s.client(t), s.client(t)
				held := served(t, lined(t.Context(), c))
				ctx, cancel := context.WithCancel(t.Context())
				results := []chan acquired{lined(ctx, c), lined(ctx, c), lined(ctx, c)}
				time.Sleep(time.Second)
				other := make(chan acquired, 1)
				go func() {
					l, err := b.Acquire(t.Context(), "report")
					other <- acquired{lease: l, err: err}
				}()
				time.Sleep(time.Second)
				s.locked(func() { s.trip = 3 * time.Millisecond })
				var failed atomic.Int32
				var releasing atomic.Bool // the holder's own is not lost
				releasing.Store(true)
				s.set(func() {
					s.fault = func(what string, done bool) error {
						if (what == "release" || what == "giveUp") && !releasing.Load() && done == (fails < 0) && int(failed.Add(1)) <= max(fails, -fails) {
							return errReset
						}
						return nil
					}
				})
				go func() { time.Sleep(time.Duration(trip) * time.Millisecond); cancel() }()
				go func() { // to the line
					if err := held.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				time.Sleep(s.trip + s.trip/2)
				releasing.Store(false)
				for _, r := range results {
					if got := <-r; got.err == nil {
						if err := got.lease.Release(t.Context()); err != nil {
							t.Error(err)
						}
					} else if !errors.Is(got.err, context.Canceled) {
						t.Error(got.err)
					}
				}
				began := time.Now()
				if err := served(t, other).Release(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("trap 9: with the end of the wait %d ms after the release, and %d lost, the next waited %v", trip, fails, took)
				}
				s.wantEmpty(t, "report", b, c)
			})
		}
	}
}

// A lost answer costs a repetition with the same grant ID. All calls are served, and no grant is left that nobody
// knows of.
func TestI6_LostAnswersOfALineYieldTheOneTrueGrant(t *testing.T) {
	for _, lose := range []struct {
		what string
		done bool
	}{{"acquire", true}, {"acquire", false}, {"release", true}, {"release", false}, {"beat", true}, {"beat", false}} {
		t.Run(fmt.Sprintf("%s, done %v", lose.what, lose.done), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c, b := s.client(t, WithTurns(3, 0)), s.client(t, WithTurns(2, 0))
				ts := &tenures{t: t, s: s}
				var count atomic.Int32
				s.set(func() {
					s.fault = func(what string, done bool) error {
						if what == lose.what && done == lose.done && count.Add(1)%3 != 0 {
							return errReset
						}
						return nil
					}
				})
				const calls = 40
				for n := range calls {
					ts.start(c, 0, n, time.Millisecond)
					ts.start(b, 1, n, time.Millisecond)
					time.Sleep(time.Millisecond)
				}
				ts.calls.Wait()
				if len(ts.list) != 2*calls {
					t.Errorf("I6: %d of %d calls were served", len(ts.list), 2*calls)
				}
				s.set(func() { s.fault = nil })
				s.wantEmpty(t, "report", b, c)
			})
		})
	}
}

// What ends the request ends it for all that wait then, and for nobody who comes later.
func TestRefusalOfALineIsToldToAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c, b := s.client(t), s.client(t)
		held := mustAcquire(t, b, "report")
		s.set(func() { s.fault = func(string, bool) error { return sqlError("42501") } })
		results := []chan acquired{lined(t.Context(), c), lined(t.Context(), c), lined(t.Context(), c)}
		for _, r := range results {
			if got := <-r; !errors.Is(got.err, ErrPermission) {
				t.Errorf("%v, want ErrPermission", got.err)
			}
		}
		s.set(func() { s.fault = nil })
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		results = []chan acquired{lined(t.Context(), c), lined(t.Context(), c), lined(t.Context(), c)}
		serveAll(t, results)
		s.wantEmpty(t, "report", b, c)
	})
}

// Close ends every call of a line with ErrClosed, at every moment of it, leaves the queue and releases the lock.
func TestCloseEndsALine(t *testing.T) {
	for after := range 30 {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeServer()
			c, b := s.client(t), s.client(t)
			held := mustAcquire(t, b, "report")
			var results []chan acquired
			for range 20 {
				result := make(chan acquired, 1)
				go func() {
					l, err := c.Acquire(t.Context(), "report")
					result <- acquired{lease: l, err: err}
					for err == nil && l.Release(t.Context()) == nil { // turns pass meanwhile
						if l, err = c.Acquire(t.Context(), "report"); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrReleased) {
							t.Error(err)
						}
						time.Sleep(time.Millisecond)
					}
				}()
				results = append(results, result)
			}
			if after >= 10 {
				time.Sleep(20 * time.Millisecond)
				if err := held.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Duration(after) * 700 * time.Microsecond)
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := c.Acquire(t.Context(), "report"); !errors.Is(err, ErrClosed) {
				t.Errorf("a call after Close: %v", err)
			}
			for _, r := range results {
				if got := <-r; got.err != nil && !errors.Is(got.err, ErrClosed) {
					t.Errorf("%v, want ErrClosed", got.err)
				}
			}
			if err := held.Release(t.Context()); err != nil && err != ErrReleased {
				t.Error(err)
			}
			s.wantEmpty(t, "report", b)
			if got := slices.ContainsFunc(s.of("giveUp"), func(c call) bool { return c.grantID == uuid.Nil }); got {
				t.Error("it gave back a grant without an ID")
			}
		})
	}
}

// Close in the moment of a hand-over in memory: the next turn is released with the others, or was never given.
func TestCloseAgainstAHandOverLeavesNoTurnBehind(t *testing.T) {
	for round := range 1000 {
		synctest.Test(t, func(t *testing.T) {
			s := newFakeServer()
			c := s.client(t)
			_, now, waiting := inTurn(t, s, c, 3)
			done := make(chan error, 2)
			release := func() { done <- now.Release(t.Context()) }
			closes := func() { done <- c.Close(t.Context()) }
			if round%2 == 0 {
				release, closes = closes, release
			}
			go release()
			go closes()
			if err := errors.Join(<-done, <-done); err != nil && !errors.Is(err, ErrReleased) {
				t.Error(err)
			}
			for _, r := range waiting {
				if got := <-r; got.err == nil && got.lease.Err() != ErrReleased {
					t.Errorf("a turn that outlives its client: %v", got.lease.Err())
				} else if got.err != nil && !errors.Is(got.err, ErrClosed) {
					t.Error(got.err)
				}
			}
			if s.holds("report") || s.queued("report") != 0 {
				t.Error("the lock is held, or waited for, after Close")
			}
		})
	}
}

// The agent of a line may be the first to hear of Close: it passes that on to the calls, not the end of its own
// context.
func TestRequestOfALineThatCloseEndedSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		key, call := handoff.Key{Name: "report"}, &turnCall{done: make(chan struct{})}
		ln, _ := c.lines.Join(key, &turnCall{})
		c.lines.Join(key, call)
		c.serveTurns(c.ctx, ln, 1)
		<-call.done
		if !errors.Is(call.err, ErrClosed) || errors.Is(call.err, context.Canceled) {
			t.Errorf("%v, want ErrClosed", call.err)
		}
	})
}
