package pglock

import (
	"context"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestI8_FirstInTheQueueAsksWhenTheHoldersLeaseEndsAndNobodyElse(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		end := 10*time.Second + 300*time.Millisecond
		q := queued(s, end)
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		id, first := waiting(t.Context(), t, c, "report")
		_, second := waiting(t.Context(), t, c, "report")
		_, third := waiting(t.Context(), t, c, "report")
		l := mustGet(t, first)
		if late := time.Since(s.began) - end; l.grantID != id || l.Token() != 6 || late < 0 ||
			late > 5*time.Millisecond {
			t.Errorf("%v, %v after the holder's lease had ended", l, late)
		}
		still(t, second)
		still(t, third)
		asked := s.of("acquire")
		if len(asked) != 4 || !asked[3].retry || asked[3].grantID != id {
			t.Errorf("%d requests, want one for each and one more of the first, for the same grant", len(asked))
		}
		if q.queues(id) {
			t.Error("the ticket is still there")
		}
	})
}

func TestWaiterThatALookFindsFirstSetsTheTimer(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		a, first := waiting(ctx, t, c, "report")
		b, second := waiting(t.Context(), t, c, "report")
		time.Sleep(5 * time.Second)
		cancel()
		if got := <-first; got.err == nil || q.queues(a) {
			t.Fatalf("the first has not left: %v", got.err)
		}
		q.mu.Lock()
		q.until = time.Now().Add(1900 * time.Millisecond)
		end := q.until
		q.mu.Unlock()
		l := mustGet(t, second)
		if late := time.Since(end); l.grantID != b || late < 0 || late > 5*time.Millisecond {
			t.Errorf("%v, %v after the holder's lease had ended", l, late)
		}
		if n := len(s.of("acquire")); n != 3 {
			t.Errorf("%d requests, want one for each and one more of the second", n)
		}
	})
}

// Where the holder's lease could not be seen to end, the answer says when to ask again.
func TestFirstInTheQueueAsksAgainAsOftenAsTheAnswerSays(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, 3*time.Second)
		hearing(s)
		asks := 0
		s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
			if asks++; asks == 2 {
				q.lasts(4 * time.Second) // it was renewed in the last moment
			}
			return q.acquire(ctx, asked)
		}
		c := startClient(t, s, trust.SystemClock())
		_, result := waiting(t.Context(), t, c, "report")
		mustGet(t, result)
		asked := s.of("acquire")
		if len(asked) != 3 {
			t.Fatalf("%d requests, want 3", len(asked))
		}
		for i, want := range []time.Duration{0, 3 * time.Second, 7 * time.Second} {
			if got := asked[i].at; got < want || got > want+5*time.Millisecond {
				t.Errorf("request %d at %v, want at %v", i, got, want)
			}
		}
	})
}

// Nobody holds the lock, but the COMMIT of the last holder's write is under way. Nobody announces its end, so the
// first in the queue asks soon, and then less and less often.
func TestFirstInTheQueueThatWaitsForACommitAsksSoonAndThenLessOften(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		var committed, renewed bool
		answers := func(_ context.Context, asked call) (protocol.Answer, error) {
			switch {
			case committed:
				return protocol.Answer{Granted: true, Token: 6, Remaining: DefaultTTL}, nil
			case renewed:
				return protocol.Answer{Holder: "the other", Token: 5, Remaining: 10 * time.Second, Ticket: 1, Place: 1,
					First: true}, nil
			}
			return protocol.Answer{Ticket: 1, Place: 1, First: true}, nil
		}
		s.onAcquire = func(ctx context.Context, asked call) (a protocol.Answer, err error) {
			s.set(func() { a, err = answers(ctx, asked) })
			return a, err
		}
		s.onLook = func(context.Context, []int64) (found map[int64]protocol.Sighting, err error) {
			s.set(func() {
				found = map[int64]protocol.Sighting{1: {}}
				if renewed {
					found = map[int64]protocol.Sighting{1: {Remaining: 10 * time.Second}}
				}
			})
			return found, nil
		}
		c := startClient(t, s, trust.SystemClock())
		result := calling(t.Context(), c, "report")
		time.Sleep(5 * time.Second)
		still(t, result)
		paces := func(asked []call) {
			t.Helper()
			for i, a := range asked[1:] {
				if gap, want := a.at-asked[i].at, min(time.Millisecond<<min(i, 10), 100*time.Millisecond); gap != want {
					t.Errorf("request %d came %v after the one before, want %v", i+1, gap, want)
				}
			}
		}
		asked := s.of("acquire")
		if paces(asked); len(asked) < 50 {
			t.Errorf("%d requests in 5 s", len(asked))
		}
		s.set(func() { renewed = true }) // somebody holds it again
		time.Sleep(9 * time.Second)
		before := len(s.of("acquire"))
		if before > len(asked)+1 {
			t.Errorf("%d requests while somebody holds the lock", before-len(asked))
		}
		s.set(func() { renewed = false })
		time.Sleep(time.Second + lastLook + 2*askLate)
		if again := s.of("acquire")[before:]; len(again) > 1 {
			paces(again)
		} else {
			t.Errorf("%d requests after the lease has run out", len(again))
		}
		s.set(func() { committed = true })
		mustGet(t, result)
	})
}

func TestFirstInTheQueueDoesNotAskWhileTheHolderRenews(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, 30*time.Second)
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		for range 30 {
			time.Sleep(10 * time.Second)
			q.lasts(30 * time.Second)
		}
		still(t, result)
		if n := len(s.of("acquire")); n != 1 {
			t.Errorf("%d requests in five minutes, want one", n)
		}
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		mustGet(t, result)
	})
}
