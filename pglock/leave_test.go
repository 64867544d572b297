package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestCallThatGivesUpLeavesTheQueueAndTellsWhatItFoundThere(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.set(func() {
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				a, err := q.acquire(ctx, asked)
				a.By = "reports" // above it, when the call queued
				return a, err
			}
		})
		c := startClient(t, s, trust.SystemClock())
		_, before := waiting(t.Context(), t, c, "report")
		ctx, cancel := context.WithCancel(t.Context())
		id, result := waiting(ctx, t, c, "report")
		s.set(func() {
			s.onGiveUp = func(ctx context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
				back, err := q.giveUp(ctx, u)
				back.Place, back.Holder, back.Token = 1, "the next", 17 // meanwhile
				back.Handed = protocol.Handed{Slots: []int{0}}
				return back, err
			}
		})
		cancel()
		got := <-result
		var held *HeldError
		if got.lease != nil || !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &held) ||
			held.Place != 1 || held.Holder != "the next" || held.Token != 17 || held.By != "" {
			t.Errorf("%v, %+v; want the holder and place of when it left", got.err, held)
		}
		synctest.Wait()
		if told := s.of("announce"); len(told) != 1 || !announces(told[0], "report", 0) {
			t.Errorf("announced %+v, want the grant that the leaving made possible", told)
		}
		still(t, before)
		time.Sleep(time.Minute)
		if gone := s.of("giveUp"); len(gone) != 1 || gone[0].grantID != id || gone[0].names[0] != "report" ||
			gone[0].spend || q.queues(id) {
			t.Errorf("left %+v, want the ticket of %v, once", gone, id)
		}
	})
}

// What a waiting call learned long ago is not told as if it were so now: a client that closes does not ask again.
func TestHeldErrorSaysHowLongAgoTheServerSaidSo(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		_, asks := waiting(ctx, t, c, "report")
		_, closes := waiting(t.Context(), t, c, "report")
		time.Sleep(18 * time.Second)
		cancel()
		var held *HeldError
		if err := (<-asks).err; !errors.As(err, &held) || held.Age != 0 || strings.Contains(err.Error(), "ago") {
			t.Errorf("%v, %+v; want what the server says now", err, held)
		}
		must.Note(t, c.Close(t.Context()))
		if err := (<-closes).err; !errors.Is(err, ErrClosed) || !errors.As(err, &held) ||
			held.Age.Round(time.Second) != 18*time.Second ||
			!strings.Contains(err.Error(), "as the server said 18s ago") {
			t.Errorf("%v, %+v; want how old the answer is", err, held)
		}
	})
}

// announces reports whether a call told of one grant.
func announces(c call, name string, slot int) bool {
	return slices.Equal(c.names, []string{name}) && len(c.slots) == 1 && c.slots[0] != nil && *c.slots[0] == slot
}

func TestQueueIsLeftInTheBackgroundWhereTheServerDoesNotAnswerSoon(t *testing.T) {
	for name, tc := range map[string]struct {
		giveUp func(context.Context, protocol.RequestID) (protocol.TakenBack, error) // the first time
		again  time.Duration                                                         // within
	}{
		"hangs": {func(ctx context.Context, _ protocol.RequestID) (protocol.TakenBack, error) {
			<-ctx.Done()
			return protocol.TakenBack{}, ctx.Err()
		}, patience + 2*firstTakeBack},
		"fails": {func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			return protocol.TakenBack{}, errReset
		}, 2 * firstTakeBack},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			s.onGiveUp = func(ctx context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
				s.set(func() { s.onGiveUp = q.giveUp })
				return tc.giveUp(ctx, u)
			}
			c := startClient(t, s, trust.SystemClock())
			ctx, cancel := context.WithCancel(t.Context())
			id, result := waiting(ctx, t, c, "report")
			time.Sleep(time.Second)
			cancel()
			got := <-result
			var held *HeldError
			if !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &held) || held.Holder != "the other" ||
				held.Place != 1 || got.at > time.Second+250*time.Millisecond {
				t.Errorf("%v (%+v) at %v, want context.Canceled and who held it when it was last told, within %v",
					got.err, held, got.at, 250*time.Millisecond)
			}
			time.Sleep(tc.again)
			if given := s.of("giveUp"); len(given) != 2 || given[0].grantID != id || given[1].grantID != id ||
				q.queues(id) {
				t.Errorf("given up %+v, want the same ticket twice", given)
			}
		}))
	}
}

func TestTrap9_GrantThatComesWhenTheCallGivesUpIsGivenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		given := 0
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			id, result := waiting(ctx, t, c, "report")
			hint := q.grant(id, DefaultTTL)
			switch i % 4 { // granted without a word; told just before or after; told at once
			case 0:
				cancel()
			case 1:
				c.queue.Hear(hint, nil)
				cancel()
			case 2:
				cancel()
				c.queue.Hear(hint, nil)
			default:
				go c.queue.Hear(hint, nil)
				go cancel()
			}
			got := <-result
			cancel()
			synctest.Wait()
			switch {
			case got.err == nil:
				if got.lease.grantID != id || !q.holds(id) || !got.lease.Valid() {
					t.Errorf("%d: a lease without a grant: %v", i, got.lease)
				}
				must.Note(t, got.lease.Release(t.Context()))
			case !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, ErrHeld):
				t.Errorf("%d: %v", i, got.err)
			default:
				given++
				if q.holds(id) || q.queues(id) {
					t.Errorf("%d: the server believes in a grant that no caller knows about", i)
				}
			}
		}
		if given < 50 {
			t.Errorf("%d grants were given back: the test shows little", given)
		}
	})
}

func TestTrap9_RequestThatIsCancelledBeforeItsAnswerIsGivenUp(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			time.Sleep(2 * time.Second)
			return protocol.Answer{}, errReset
		}
		c := startClient(t, s, trust.SystemClock())
		_, err := c.Acquire(t.Context(), "report", WithMaxWait(time.Second))
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(s.began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(s.began))
		}
		if n := len(s.of("giveUp")); n != 0 {
			t.Errorf("%d requests were given up before their answer came", n)
		}
		time.Sleep(2 * time.Second)
		if given := s.of("giveUp"); len(given) != 1 || given[0].grantID != s.of("acquire")[0].grantID ||
			!given[0].spend {
			t.Errorf("given up %+v, want the request's grant, to be spent", given)
		}
	})
}

func TestGrantThatTheHintToldTooLateIsGivenBackWhenTheNextRequestIsCancelled(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.onLook = noLook
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		id, result := waiting(ctx, t, c, "report")
		s.set(func() {
			s.onAcquire = func(ctx context.Context, _ call) (protocol.Answer, error) {
				<-ctx.Done()
				return protocol.Answer{}, ctx.Err()
			} // asks hang
		})
		time.Sleep(20 * time.Second)
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		still(t, result)
		cancel()
		if got := <-result; !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, ErrHeld) || q.holds(id) {
			t.Errorf("%v, held: %v; want the grant given back", got.err, q.holds(id))
		}
	})
}

func TestCloseLeavesAllQueuesInOneStatement(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		s.onGiveUp = func(_ context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
			if u.Name == "report 3" {
				return protocol.TakenBack{Handed: protocol.Handed{Slots: []int{2}}}, nil
			}
			return protocol.TakenBack{}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		var results []chan acquired
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("report %d", i))
			_, result := waiting(t.Context(), t, c, names[i])
			results = append(results, result)
		}
		time.Sleep(1234 * time.Millisecond)
		must.Do(t, c.Close(t.Context()))
		for _, result := range results {
			if got := <-result; got.lease != nil || !errors.Is(got.err, ErrClosed) || got.at != 1234*time.Millisecond {
				t.Errorf("%v, %v at %v; want ErrClosed at the close", got.lease, got.err, got.at)
			}
		}
		slices.Sort(names)
		if all := s.of("giveUp"); len(all) != 1 || !slices.Equal(all[0].names, names) {
			t.Errorf("left %+v, want all in one statement", all)
		}
		if told := s.of("announce"); len(told) != 1 || !announces(told[0], "report 3", 2) {
			t.Errorf("announced %+v, want the grant that the leaving made possible", told)
		}
		if n := len(s.of("endSession")); n != 1 {
			t.Errorf("the session was ended %d times, want once", n)
		}
	})
}

// Close has left the queue for the call; the request that is under way may be granted after that all the same.
func TestTrap9_RequestUnderWayAtTheCloseIsGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		a     protocol.Answer
		err   error
		spend bool
	}{
		"granted": {protocol.Answer{Granted: true, Token: 9, Remaining: DefaultTTL}, nil, true},
		"lost":    {protocol.Answer{}, errReset, true},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, 3*time.Second)
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report")
			s.set(func() {
				s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
					time.Sleep(3 * time.Second)
					return tc.a, tc.err
				}
			})
			time.Sleep(4 * time.Second) // the first in the queue asks
			if len(s.of("acquire")) != 2 || !q.queues(id) {
				t.Fatalf("%d requests", len(s.of("acquire")))
			}
			must.Do(t, c.Close(t.Context()))
			if got := <-result; !errors.Is(got.err, ErrClosed) || got.at != 4*time.Second {
				t.Errorf("%v at %v, want ErrClosed at the close", got.err, got.at)
			}
			given := s.of("giveUp")
			if len(given) != 2 || given[0].grantID != id || given[0].at != 4*time.Second ||
				given[1].grantID != id || given[1].spend != tc.spend {
				t.Errorf("given up %+v, want the ticket at once, and then what the request brought", given)
			}
		}))
	}
}

// What is under way when the client closes may hang: Close says what it could not take back, and ends it.
func TestCloseDoesNotWaitForARequestThatHangs(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(ctx context.Context, _ call) (protocol.Answer, error) {
			<-ctx.Done()
			return protocol.Answer{}, ctx.Err()
		}
		s.onGiveUp = func(ctx context.Context, _ protocol.RequestID) (protocol.TakenBack, error) {
			return protocol.TakenBack{}, ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		result := calling(t.Context(), c, "report")
		synctest.Wait()
		if err := c.Close(t.Context()); !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "1 request") || time.Since(s.began) != 5*time.Second {
			t.Errorf("Close: %v after %v, want a timeout after %v", err, time.Since(s.began), 5*time.Second)
		}
		if got := <-result; !errors.Is(got.err, ErrClosed) || got.at != 0 {
			t.Errorf("%v at %v", got.err, got.at)
		}
	})
}

// A failure of long ago says nothing of now.
func TestOneLookThatFailsEndsNoWait(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.onLook = noLook
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(time.Second)
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		must.Do(t, mustGet(t, result).Release(t.Context()))
		time.Sleep(time.Hour)
		q.lasts(time.Hour)
		_, later := waiting(t.Context(), t, c, "other")
		time.Sleep(time.Second)
		still(t, later)
		s.set(func() { s.onLook = q.look })
		time.Sleep(time.Minute)
		still(t, later)
	})
}
