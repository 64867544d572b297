package pglock

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// noLook answers no look, so that tickets stay as old as their requests.
func noLook(context.Context, []int64) (map[int64]protocol.Sighting, error) { return nil, errReset }

// A hint does not say when the grant was made: only that it was after the ticket was last seen in the queue.
func TestI7_TrustOfAHintCountsFromWhenTheTicketWasLastSeenQueued(t *testing.T) {
	for name, tc := range map[string]struct {
		late     time.Duration // after the ticket was seen
		requests int
	}{"early enough": {14 * time.Second, 1}, "after the half of the TTL": {14*time.Second + time.Millisecond, 2},
		"after the TTL": {29 * time.Second, 2}} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			s.onLook, s.onRenewAll = noLook, hangs
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report", WithTTL(30*time.Second))
			time.Sleep(tc.late)
			c.queue.Hear(q.grant(id, 30*time.Second), nil)
			l := mustGet(t, result)
			asked := s.of("acquire")
			if len(asked) != tc.requests {
				t.Fatalf("%d requests, want %d", len(asked), tc.requests)
			}
			if last := asked[len(asked)-1]; last.grantID != id || last.retry != (tc.requests > 1) {
				t.Errorf("the last request has grant ID %v and says retry %v, want %v", last.grantID, last.retry,
					id)
			}
			if got, want := l.Deadline().Sub(s.began), asked[len(asked)-1].at+29*time.Second; got != want {
				t.Errorf("the deadline is at %v, want %v: a margin less than the TTL from the last request", got,
					want)
			}
		}))
	}
}

func TestI7_LookMovesTheMomentFromWhichAHintIsTrusted(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		slow := func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
			found, err := q.look(ctx, nested)
			time.Sleep(300 * time.Millisecond) // the answer takes its time
			return found, err
		}
		s.onLook, s.onRenewAll = slow, hangs
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report", WithTTL(30*time.Second))
		time.Sleep(20 * time.Second)
		s.set(func() { s.onLook = noLook })
		looks := s.of("look")
		time.Sleep(400 * time.Millisecond)
		c.queue.Hear(q.grant(id, 30*time.Second), nil)
		l := mustGet(t, result)
		if got, want := l.Deadline().Sub(s.began), looks[len(looks)-1].at+29*time.Second; got != want ||
			len(s.of("acquire")) != 1 {
			t.Errorf("the deadline is at %v after %d requests, want %v: counted from when the last look was sent", got,
				len(s.of("acquire")), want)
		}
	})
}

func TestReleaseHandsTheLockToAWaiterOfTheSameClientAtOnce(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		held := mustAcquire(t, c, "report")
		q := queued(s, time.Hour)
		s.set(func() { s.onLook = noLook })
		id, result := waiting(t.Context(), t, c, "report")
		s.set(func() {
			s.onHandOver = func(call protocol.Claim) protocol.Handed {
				time.Sleep(time.Second) // a release that takes its time
				if call.GrantID != held.grantID {
					return protocol.Handed{}
				}
				return protocol.Handed{Hints: []string{q.grant(id, DefaultTTL)}}
			}
		})
		time.Sleep(25 * time.Second) // the ticket was seen too long ago to be trusted, the release was not
		sent := time.Now()
		must.Do(t, held.Release(t.Context()))
		l := mustGet(t, result)
		if l.Token() != 6 || time.Since(sent) != time.Second || l.Deadline() != sent.Add(29*time.Second) {
			t.Errorf("%v after %v with deadline %v after the release was sent; want token 6 at its answer, trusted "+
				"for 29s",
				l, time.Since(sent), l.Deadline().Sub(sent))
		}
		if n := len(s.of("acquire")); n != 2 {
			t.Errorf("%d requests, want one for each lease", n)
		}
		if n := len(s.of("announce")); n != 0 {
			t.Errorf("%d announcements of what everybody concerned knows", n)
		}
	})
}

// A call whose context has ended leaves its statement, which may still grant the lock to a waiter of the same client,
// and may be long about it: the lease runs from the grant, and not from the answer.
func TestI7_HintOfAnAbandonedCallCountsFromWhenThatCallWasSent(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.onLook = noLook
		s.onRenewAll = hangs // the lease's deadline is the hint's: a renewal is due at once
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		s.set(func() {
			s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
				hint := q.grant(id, DefaultTTL)
				time.Sleep(10 * time.Second) // until it is committed
				return protocol.Answer{Handed: protocol.Handed{Hints: []string{hint}}}, nil
			}
		})
		time.Sleep(18 * time.Second) // the ticket was seen too long ago to be trusted, the call was not
		sent := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.TryAcquire(ctx, "report"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%v, want the call to leave its statement", err)
		}
		l := mustGet(t, result)
		if l.Token() != 6 || time.Since(sent) != 10*time.Second || l.Deadline() != sent.Add(29*time.Second) {
			t.Errorf("%v after %v with deadline %v after the call was sent; want token 6 at its answer, trusted for "+
				"29s",
				l, time.Since(sent), l.Deadline().Sub(sent))
		}
	})
}

func TestGrantsToOthersAreAnnouncedInAStatementOfItsOwn(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		s.onHandOver = func(protocol.Claim) protocol.Handed {
			return protocol.Handed{Slots: []int{0, 3}, Watched: true}
		}
		must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
		s.set(func() { s.onHandOver = func(protocol.Claim) protocol.Handed { return protocol.Handed{Watched: true} } })
		must.Do(t, mustAcquire(t, c, "watched").Release(t.Context()))
		s.set(func() { s.onHandOver = nil })
		must.Do(t, mustAcquire(t, c, "quiet").Release(t.Context()))
		told := s.of("announce")
		if len(told) != 2 || !slices.Equal(told[0].names, []string{"report", "report"}) || len(told[0].slots) != 2 ||
			*told[0].slots[0] != 0 || *told[0].slots[1] != 3 ||
			!slices.Equal(told[1].names, []string{"watched"}) || len(told[1].slots) != 1 || told[1].slots[0] != nil {
			t.Errorf("announced %+v, want both grants, then the watched release, and nothing that concerns nobody",
				told)
		}
	})
}

// hintOf is a text with the proof that it comes from the server, for whoever knows the grant ID.
func hintOf(grantID uuid.UUID, said string) string { return digest(said, grantID) + " " + said }

func digest(said string, grantID uuid.UUID) string {
	sum := sha256.Sum256(append([]byte(said), grantID[:]...))
	return hex.EncodeToString(sum[:])
}

func TestForgedOrMalformedHintChangesNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		other, behind := waiting(t.Context(), t, c, "another")
		const good = "1 7 0 30000000" // ticket, token, slot, microseconds
		ours := digest(good, id)
		for _, text := range []string{
			hintOf(uuid.New(), good), hintOf(other, good), good, id.String() + " " + good, strings.ToUpper(ours) + " " +
				good, ours[:63] + " " + good, ours + "0 " + good,
			ours + "  " + good, ours + " " + good + " ", " " + ours + " " + good, ours + "\t" + good,
			// another's proof
			ours + " 1 8 0 30000000", ours + " 1 7 1 30000000", ours + " 1 7 0 30000001", ours + " 2 7 0 30000000",
			hintOf(id, "2 7 0 30000000"), hintOf(id, "3 7 0 30000000"), // of another ticket, and of one that nobody has
			"", " ", "x", ours, ours + " ", "probe 1", strings.Repeat("7 ", 4000), "\xff\x00",
		} {
			c.queue.Hear(text, nil)
			still(t, result)
		}
		for _, said := range []string{ // with a proof that is right
			"", "1", "1 7", "1 7 0", good + " 1", good + " x", "1 0 0 30000000", "0 7 0 -30000000",
			"1 7 0 x", "1 7 x 30000000", "1 x 0 30000000", "x 7 0 30000000", "1  7 0 30000000", "1 7 0 30000000 ",
			"1\t7 0 30000000",
			"1 9223372036854775808 0 30000000", "1 7 0 1e6", "1 7 9223372036854775808 1", "1 -7 0 30000000",
			"1 7 -1 30000000", "1 7 0 -1",
		} {
			c.queue.Hear(hintOf(id, said), nil)
			still(t, result)
		}
		c.queue.Hear(hintOf(id, "1 7 0 0"), nil) // a grant that has no time left: whether it is so, the server knows
		time.Sleep(30 * time.Second)
		still(t, result)
		still(t, behind)
		if n := len(s.of("acquire")); n > 3 {
			t.Errorf("%d requests because of hints that mean nothing", n)
		}
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		if l := mustGet(t, result); l.Token() != 6 {
			t.Errorf("%v, want token 6", l)
		}
		c.queue.Hear(hintOf(id, "1 6 0 30000000 6"), nil) // again, and too late
	})
}

// The hint of an earlier grant, which has ended by now, may come very late. By then the waiter has another ticket,
// and trust in that ticket does not count for the earlier one's hint.
func TestI7_LateHintOfAnEarlierTicketRevivesNoTrust(t *testing.T) {
	for name, late := range map[string]func(c *Client, hint string, again func()){
		"after the waiter has another ticket": func(c *Client, hint string, again func()) {
			again()
			c.queue.Hear(hint, nil)
		},
		"while it asks for another ticket": func(c *Client, hint string, again func()) {
			c.queue.Hear(hint, nil)
			again()
		},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			s.onLook = noLook
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report")
			earlier := q.grant(id, DefaultTTL) // the hint is on its way
			q.ends(id)                         // it has run out, and another has taken the lock
			q.lasts(time.Hour)
			asked := make(chan struct{})
			s.set(func() {
				s.onAcquire = func(ctx context.Context, asks call) (protocol.Answer, error) {
					<-asked
					return q.acquire(ctx, asks)
				}
			})
			askAgain(c) // as after a look that did not find the ticket
			synctest.Wait()
			late(c, earlier, func() { close(asked); synctest.Wait() })
			still(t, result)
			if !q.queues(id) || len(s.of("acquire")) != 2 {
				t.Fatalf("queues: %v, after %d requests", q.queues(id), len(s.of("acquire")))
			}
			c.queue.Hear(earlier, nil)
			still(t, result)
			now := q.grant(id, DefaultTTL)
			c.queue.Hear(now, nil)
			if l := mustGet(t, result); l.Token() != 7 {
				t.Errorf("%v, want token 7, the one of its grant", l)
			}
		}))
	}
}

// A hint may come before the answer that tells the ticket: it is kept for that.
func TestHintThatComesBeforeItsTicketIsKept(t *testing.T) {
	for name, stale := range map[string]int{"alone": 0, "after very many that nobody has waited for": 3 * earlyHints} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			answered := make(chan struct{})
			s.set(func() {
				s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
					a, err := q.acquire(ctx, asked)
					<-answered
					return a, err
				}
			})
			c := startClient(t, s, trust.SystemClock())
			result := calling(t.Context(), c, "report")
			synctest.Wait()
			id := s.of("acquire")[0].grantID
			for i := range stale { // of calls that have left, say
				c.queue.Hear(hintOf(uuid.New(), fmt.Sprintf("%d 7 0 30000000", 100+i)), nil)
			}
			time.Sleep(time.Second)
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			still(t, result)
			close(answered)
			l := mustGet(t, result)
			if n := len(s.of("acquire")); n != 1 || l.Token() != 6 || time.Since(s.began) != time.Second ||
				l.Deadline() != s.began.Add(29*time.Second) {
				t.Errorf("%v after %v and %d requests with the deadline %v; want token 6 with the answer, "+
					"trusted from when the request was sent",
					l, time.Since(s.began), n, l.Deadline().Sub(s.began))
			}
		}))
	}
}

// The first in a queue asks now and then. The hint may come between the answer "still queued" and its arrival.
func TestHintThatComesBetweenAnAnswerAndItsArrivalIsKept(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		hearing(s)
		s.onLook = noLook
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		answered := make(chan struct{})
		s.set(func() {
			s.onAcquire = func(ctx context.Context, asked call) (protocol.Answer, error) {
				a, err := q.acquire(ctx, asked)
				<-answered
				return a, err
			}
		})
		askAgain(c)
		synctest.Wait()
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		began := time.Now()
		close(answered)
		if l := mustGet(t, result); l.Token() != 6 || time.Since(began) != 0 || len(s.of("acquire")) != 2 {
			t.Errorf("%v after %v and %d requests, want token 6 at once", l, time.Since(began), len(s.of("acquire")))
		}
	})
}

func TestI8_LostHintCostsOneLook(t *testing.T) {
	for name, deaf := range map[string]bool{"while it hears others": false, "while it hears nothing": true} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			if !deaf {
				hearing(s)
			}
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report")
			time.Sleep(12345 * time.Millisecond)
			if hears(c) == deaf {
				t.Fatalf("hears: %v", hears(c))
			}
			granted := time.Now()
			q.grant(id, DefaultTTL)
			l := mustGet(t, result)
			if late := time.Since(granted); late > lastLook || l.Token() != 6 {
				t.Errorf("%v, %v after the grant, want within %v", l, late, lastLook)
			}
			asked, looks := s.of("acquire"), s.of("look")
			if len(asked) != 2 || !asked[1].retry || asked[1].grantID != id ||
				asked[1].at != looks[len(looks)-1].at {
				t.Errorf("requests %+v, want a second one for the same grant at the look that missed the ticket",
					asked)
			}
		}))
	}
}

func TestLooksComeEverySecondWhileHearingAndFromTensOfMillisecondsOnWhileDeaf(t *testing.T) {
	for name, deaf := range map[string]bool{"hearing": false, "deaf": true} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			queued(s, time.Hour)
			if !deaf {
				hearing(s)
			}
			c := startClient(t, s, trust.SystemClock())
			_, result := waiting(t.Context(), t, c, "report")
			time.Sleep(time.Minute)
			still(t, result)
			looks := s.of("look")
			gaps := make(map[time.Duration]bool)
			last := time.Duration(0)
			for i, look := range looks {
				gap, planned := look.at-last, lastLook
				if deaf {
					planned = min(firstLook<<min(i, 10), lastLook)
				}
				if i == 0 && !deaf {
					planned = 0 // at once, when it begins to hear
				}
				if gap > planned || gap < planned*3/4-time.Millisecond {
					t.Errorf("look %d came %v after the one before, want %v less up to a quarter", i, gap, planned)
				}
				gaps[gap], last = true, look.at
			}
			if len(looks) < 58 || len(gaps) < 50 {
				t.Errorf("%d looks in a minute at %d different intervals, want one a second with jitter",
					len(looks), len(gaps))
			}
		}))
	}
}

// A session must give the next sign of life before it may be passed over.
func TestI8_LookThatHangsCostsNoSessionItsLife(t *testing.T) {
	for _, tc := range []struct {
		ttl    time.Duration
		before int // waiters
	}{{DefaultSessionTTL, 0}, {DefaultSessionTTL, 20}, {6 * time.Second, 20}, {time.Second, 0}, {time.Second, 20}} {
		ttl := tc.ttl
		t.Run(fmt.Sprint(ttl, " behind ", tc.before), fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			q.others("report", tc.before)
			hearing(s)
			c := startClient(t, s, trust.SystemClock(), WithSessionTTL(ttl))
			_, result := waiting(t.Context(), t, c, "report")
			time.Sleep(30 * time.Second)
			before := len(s.of("look"))
			var hung atomic.Bool
			s.set(func() {
				s.onLook = func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
					if hung.CompareAndSwap(false, true) {
						<-ctx.Done() // the connection has died silently
						return nil, ctx.Err()
					}
					return q.look(ctx, nested)
				}
			})
			time.Sleep(30 * time.Second)
			looks := s.of("look")
			// A third until the look that hangs, a third until it counts as dead, and an eighth for other
			// statements.
			alive := looks[before-1].wait - ttl*2/10
			if alive > ttl { // and the server leaves out what is no more than three tenths or three seconds
				alive = looks[before-1].wait - min(looks[before-1].wait*3/10, 3*time.Second)
			}
			if gap := looks[before+1].at - looks[before-1].at; !hung.Load() || gap > alive {
				t.Errorf("%v between two looks that came through, after which the session lives for %v", gap, alive)
			}
			still(t, result)
		}))
	}
}

func TestWaiterThatComesLaterIsLookedAfterSoonWhileDeaf(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		waiting(t.Context(), t, c, "report")
		time.Sleep(10*time.Second + 10*time.Millisecond) // looks come once a second by now
		for range 5 {
			id, result := waiting(t.Context(), t, c, "other")
			granted := time.Now()
			q.grant(id, DefaultTTL)
			mustGet(t, result)
			if late := time.Since(granted); late > firstLook {
				t.Errorf("found %v after the grant, want within %v", late, firstLook)
			}
			time.Sleep(10 * time.Second)
		}
	})
}

func TestI14_OneStatementLooksAfterAllWaitersAndLeases(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		const many = 200
		for i := range many {
			mustAcquire(t, c, fmt.Sprintf("held %d", i))
		}
		queued(s, time.Hour)
		results := make(chan acquired, many)
		for i := range many {
			go func() {
				l, err := c.Acquire(t.Context(), fmt.Sprintf("report %d", i%50))
				results <- acquired{lease: l, err: err}
			}()
		}
		synctest.Wait()
		before := len(s.of("beat"))
		requests := len(s.of("acquire"))
		time.Sleep(time.Minute)
		// Looks come after 750 ms at the soonest, renewals after 9 s.
		if n := len(s.of("beat")) - before; n < 60 || n > 80+7 {
			t.Errorf("%d statements in a minute for %d leases and %d waiters, want 60 to 87", n, many, many)
		}
		if n := len(s.of("acquire")) - requests; n != 0 {
			t.Errorf("%d requests while nothing changed", n)
		}
		for _, what := range []string{"renew", "renewBusy", "check", "giveUp"} {
			if n := len(s.of(what)); n != 0 {
				t.Errorf("%d calls of %s", n, what)
			}
		}
		if len(results) != 0 {
			t.Error("a call has returned")
		}
	})
}

func TestNoLookFollowsTheLastWaiter(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(10 * time.Second)
		c.queue.Hear(q.grant(id, DefaultTTL), nil)
		must.Do(t, mustGet(t, result).Release(t.Context()))
		before := len(s.of("beat"))
		time.Sleep(time.Hour)
		if n := len(s.of("beat")) - before; n != 0 || len(s.of("rest")) != 1 {
			t.Errorf("%d statements in the hour after, %d connections closed; want none and one", n, len(s.of("rest")))
		}
	})
}
