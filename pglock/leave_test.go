package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

func TestCallThatGivesUpLeavesTheQueueAndTellsWhatItFoundThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		q := queued(s, time.Hour)
		c := startClient(t, s, systemClock(), WithTurns(1, 0))
		_, before := waiting(t.Context(), t, c, "report")
		ctx, cancel := context.WithCancel(t.Context())
		id, result := waiting(ctx, t, c, "report")
		s.set(func() {
			s.onLeave = func(ctx context.Context, name string, grantID uuid.UUID) (left, error) {
				l, err := q.leave(ctx, name, grantID)
				l.place, l.holder, l.token = 1, "the next", 17 // meanwhile
				l.handed = handed{tokens: []int64{18}}
				return l, err
			}
		})
		cancel()
		got := <-result
		var held *HeldError
		if got.lease != nil || !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &held) ||
			held.Place != 1 || held.Holder != "the next" || held.Token != 17 {
			t.Errorf("%v, %+v; want the holder and place of when it left", got.err, held)
		}
		if gone := s.of("leave"); len(gone) != 1 || gone[0].grantID != id || gone[0].names[0] != "report" || q.queues(id) {
			t.Errorf("left %+v, want the ticket of %v", gone, id)
		}
		if told := s.of("announce"); len(told) != 1 || !slices.Equal(told[0].tokens, []int64{18}) {
			t.Errorf("announced %+v, want the grant that the leaving made possible", told)
		}
		still(t, before)
		time.Sleep(time.Minute)
		if n := len(s.of("abandon")); n != 0 {
			t.Errorf("%d more requests to give up what is given up", n)
		}
	})
}

func TestQueueIsLeftInTheBackgroundWhereTheServerDoesNotAnswerSoon(t *testing.T) {
	for name, tc := range map[string]struct {
		leave func(context.Context, string, uuid.UUID) (left, error)
		took  time.Duration
	}{
		"hangs": {func(ctx context.Context, _ string, _ uuid.UUID) (left, error) { <-ctx.Done(); return left{}, ctx.Err() }, leavePatience},
		"fails": {func(context.Context, string, uuid.UUID) (left, error) { return left{}, errReset }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore()
				queued(s, time.Hour)
				s.onLeave = tc.leave
				c := startClient(t, s, systemClock())
				ctx, cancel := context.WithCancel(t.Context())
				id, result := waiting(ctx, t, c, "report")
				time.Sleep(time.Second)
				cancel()
				got := <-result
				var held *HeldError
				if !errors.Is(got.err, context.Canceled) || !errors.As(got.err, &held) || held.Holder != "the other" || held.Place != 1 || got.at != time.Second+tc.took {
					t.Errorf("%v (%+v) at %v, want context.Canceled and who held it when it was last told, at %v", got.err, held, got.at, time.Second+tc.took)
				}
				time.Sleep(time.Second)
				given := s.of("abandon")
				if len(given) != 2 || given[0].grantID != id || given[1].grantID != id {
					t.Errorf("given up %+v, want the same grant twice", given)
				}
			})
		})
	}
}

func TestTrap9_GrantThatComesWhenTheCallGivesUpIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		q := queued(s, time.Hour)
		c := startClient(t, s, systemClock())
		given := 0
		for i := range 200 {
			ctx, cancel := context.WithCancel(t.Context())
			id, result := waiting(ctx, t, c, "report")
			hint := q.grant(id, DefaultTTL)
			switch i % 4 { // granted without a word; told just before or after; told at once
			case 0:
				cancel()
			case 1:
				c.heard(hint, nil)
				cancel()
			case 2:
				cancel()
				c.heard(hint, nil)
			default:
				go c.heard(hint, nil)
				go cancel()
			}
			got := <-result
			cancel()
			synctest.Wait()
			switch {
			case got.err == nil:
				if got.lease.GrantID() != id || !q.holds(id) || !got.lease.Valid() {
					t.Errorf("%d: a lease without a grant: %v", i, got.lease)
				}
				if err := got.lease.Release(t.Context()); err != nil {
					t.Error(err)
				}
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
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onAcquire = func(ctx context.Context, _ call) (answer, error) { <-ctx.Done(); return answer{}, ctx.Err() }
		c := startClient(t, s, systemClock())
		_, err := c.Acquire(t.Context(), "report", WithMaxWait(time.Second))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if given := s.of("abandon"); len(given) != 2 || given[0].grantID != s.of("acquire")[0].grantID {
			t.Errorf("given up %+v, want the request's grant twice", given)
		}
	})
}

func TestGrantThatTheHintToldTooLateIsGivenBackWhenTheNextRequestIsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		q := queued(s, time.Hour)
		s.onLook = noLook
		c := startClient(t, s, systemClock())
		ctx, cancel := context.WithCancel(t.Context())
		id, result := waiting(ctx, t, c, "report")
		s.set(func() {
			s.onAcquire = func(ctx context.Context, _ call) (answer, error) { <-ctx.Done(); return answer{}, ctx.Err() }
		})
		time.Sleep(20 * time.Second)
		c.heard(q.grant(id, DefaultTTL), nil)
		still(t, result)
		cancel()
		if got := <-result; !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, ErrHeld) || q.holds(id) {
			t.Errorf("%v, held: %v; want the grant given back", got.err, q.holds(id))
		}
	})
}

func TestCloseLeavesAllQueuesInOneStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		queued(s, time.Hour)
		s.onLeaveAll = func(context.Context, []uuid.UUID) (map[string]handed, error) {
			return map[string]handed{"report 3": {tokens: []int64{9}}}, nil
		}
		c := startClient(t, s, systemClock())
		var results []chan acquired
		var names []string
		for i := range 20 {
			names = append(names, fmt.Sprintf("report %d", i))
			_, result := waiting(t.Context(), t, c, names[i])
			results = append(results, result)
		}
		time.Sleep(1234 * time.Millisecond)
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, result := range results {
			if got := <-result; got.lease != nil || !errors.Is(got.err, ErrClosed) || got.at != 1234*time.Millisecond {
				t.Errorf("%v, %v at %v; want ErrClosed at the close", got.lease, got.err, got.at)
			}
		}
		slices.Sort(names)
		if all := s.of("leaveAll"); len(all) != 1 || !slices.Equal(all[0].names, names) {
			t.Errorf("left %+v, want all in one statement", all)
		}
		if n := len(s.of("leave")) + len(s.of("abandon")); n != 0 {
			t.Errorf("%d statements for single waiters", n)
		}
		if told := s.of("announce"); len(told) != 1 || !slices.Equal(told[0].tokens, []int64{9}) {
			t.Errorf("announced %+v, want the grant that the leaving made possible", told)
		}
	})
}

// Close has left the queue for the call; the request that is under way may be granted after that all the same.
func TestTrap9_RequestUnderWayAtTheCloseIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		q := queued(s, 3*time.Second)
		c := startClient(t, s, systemClock())
		id, result := waiting(t.Context(), t, c, "report")
		s.set(func() {
			s.onAcquire = func(ctx context.Context, _ call) (answer, error) { <-ctx.Done(); return answer{}, ctx.Err() }
		})
		time.Sleep(4 * time.Second) // the first in the queue asks
		if len(s.of("acquire")) != 2 || !q.queues(id) {
			t.Fatalf("%d requests", len(s.of("acquire")))
		}
		if err := c.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-result; !errors.Is(got.err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", got.err)
		}
		if given := s.of("abandon"); len(given) != 2 || given[0].grantID != id {
			t.Errorf("given up %+v, want the grant of the request that was under way, twice", given)
		}
	})
}

// A failure of long ago says nothing of now.
func TestOneLookThatFailsEndsNoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		q := queued(s, time.Hour)
		s.onLook = noLook
		c := startClient(t, s, systemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(time.Second)
		c.heard(q.grant(id, DefaultTTL), nil)
		if err := mustGet(t, result).Release(t.Context()); err != nil {
			t.Fatal(err)
		}
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
