package pglock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/takeback"
	"github.com/pglock-dev/pglock/internal/trust"
)

// leaves makes a client take back a request of this name that nobody waits for.
func leaves(c *Client, name string, spend bool) *takeback.Request {
	return c.takeBack(protocol.RequestID{Name: name, GrantID: uuid.New()}, spend, DefaultTTL)
}

// However many requests there are to take back, one statement takes back at most the limit, and only those of one
// kind.
func TestRequestsAreTakenBackInStatementsOfOneKindEach(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			time.Sleep(time.Millisecond / takeback.Most) // a statement takes its time
			return protocol.TakenBack{Place: 7}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		const each = 3*takeback.Most - 10
		var ups []*takeback.Request
		for i := range 2 * each {
			ups = append(ups, leaves(c, fmt.Sprintf("report %04d", i), i%2 == 1))
		}
		time.Sleep(time.Second)
		told := make(map[string]int)
		for _, g := range s.of("giveUp") {
			if len(g.names) > takeback.Most {
				t.Errorf("a statement takes back %d", len(g.names))
			}
			for _, name := range g.names {
				told[name]++
				if odd := strings.ContainsAny(name[len(name)-1:], "13579"); odd != g.spend {
					t.Fatalf("%s in a statement that spends: %v", name, g.spend)
				}
			}
		}
		for name, n := range told {
			if n != 1 {
				t.Errorf("%s was taken back %d times", name, n)
			}
		}
		if n := len(s.of("giveUp")); len(told) != 2*each || n > 8 {
			t.Errorf("%d of %d were taken back, by %d statements", len(told), 2*each, n)
		}
		for _, u := range ups {
			if back := <-u.Done; back.Place != 7 {
				t.Fatalf("%+v", back)
			}
		}
	})
}

// If requests cannot be taken back it is tried again, at first soon, then at most every second, for as long as it may
// help: without a server for ever, against a refusal for a minute or the TTL.
func TestWhatCannotBeTakenBackIsTriedAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		err   error
		lasts time.Duration
		told  bool // at last
	}{
		"no server":            {errReset, time.Hour, true},
		"a locked row":         {sqlError("55P03"), time.Hour, true},
		"a standby":            {sqlError("25006"), time.Hour, true},
		"no right, for a time": {sqlError("42501"), refusedFor - time.Second, true},
		"no right":             {sqlError("42501"), time.Hour, false},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
				if time.Since(s.began) < tc.lasts {
					return protocol.TakenBack{}, tc.err
				}
				return protocol.TakenBack{}, nil
			}
			c := startClient(t, s, trust.SystemClock())
			u := leaves(c, "report", false)
			time.Sleep(tc.lasts + 2*lastTakeBack)
			tries := s.of("giveUp")
			for i, try := range tries[1:] {
				if gap, want := try.at-tries[i].at, min(firstTakeBack<<min(i, 10), lastTakeBack); gap != want {
					t.Errorf("attempt %d came %v after the one before, want %v", i+1, gap, want)
				}
			}
			if told := len(u.Done) == 1; told != tc.told {
				t.Errorf("taken back: %v, after %d attempts", told, len(tries))
			}
			if last := tries[len(tries)-1].at; !tc.told && (last < refusedFor || last > refusedFor+2*lastTakeBack) {
				t.Errorf("the last attempt came after %v, want %v", last, refusedFor)
			}
			leaves(c, "another", false) // what failed before says nothing of this
			synctest.Wait()
			if now := s.of("giveUp"); tc.told && now[len(now)-1].at != time.Since(s.began) {
				t.Errorf("the next was not taken back at once, but at %v", now[len(now)-1].at)
			}
		}))
	}
}

// One request that the server cannot take back now does not keep the others from being taken back.
func TestOneRequestThatCannotBeTakenBackLeavesTheOthersAlone(t *testing.T) {
	for _, code := range []string{"55P03", "40P01", "XX000"} {
		t.Run(code, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onGiveUp = func(_ context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
				if u.Name == "report 42" {
					return protocol.TakenBack{}, sqlError(code)
				}
				return protocol.TakenBack{}, nil
			}
			c := startClient(t, s, trust.SystemClock())
			var ups []*takeback.Request
			for i := range 100 {
				ups = append(ups, leaves(c, fmt.Sprint("report ", i), false))
			}
			time.Sleep(5 * firstTakeBack)
			for i, u := range ups {
				if told := len(u.Done) == 1; told != (i != 42) {
					t.Errorf("report %d was taken back: %v", i, told)
				}
			}
			if n := len(s.of("giveUp")); n > 40 {
				t.Errorf("%d statements for 100 requests, one of which fails", n)
			}
		}))
	}
}

// locked is a server on which somebody has locked these rows: it refuses a statement for several of them soon, and one
// for such a row alone after a second.
func locked(names ...string) func(ctx context.Context, asked []string) error {
	return func(ctx context.Context, asked []string) error {
		if !slices.ContainsFunc(asked, func(name string) bool { return slices.Contains(names, name) }) {
			return ctx.Err()
		}
		within := 50 * time.Millisecond
		if len(asked) == 1 {
			within = time.Second
		}
		if !wait(ctx, within) {
			return ctx.Err()
		}
		return sqlError("55P03")
	}
}

// Rows that stay locked take up all the time of an attempt. The others get their turn, whenever they have come.
func TestRequestsWhoseRowsStayLockedKeepNoOthersFromBeingTakenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		rows := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
		refuse := locked(rows...)
		s.onGiveUp = func(ctx context.Context, r protocol.RequestID) (protocol.TakenBack, error) {
			asked := s.of("giveUp")
			return protocol.TakenBack{}, refuse(ctx, asked[len(asked)-1].names)
		}
		c := startClient(t, s, trust.SystemClock())
		var stuck []*takeback.Request
		for _, name := range rows {
			stuck = append(stuck, leaves(c, name, false))
		}
		free := []*takeback.Request{leaves(c, "first", false)}
		time.Sleep(10 * (cutOff + lastTakeBack))
		for range 10 { // during an attempt, and between two
			time.Sleep((cutOff + lastTakeBack) / 10)
			free = append(free, leaves(c, "later", false))
		}
		time.Sleep(2 * (cutOff + lastTakeBack))
		for i, u := range free {
			if len(u.Done) == 0 {
				t.Errorf("%s (%d) was not taken back, after %d attempts", u.Name, i, len(s.of("giveUp")))
			}
		}
		s.set(func() { s.onGiveUp = nil })
		time.Sleep(2 * (cutOff + lastTakeBack))
		for _, u := range stuck {
			if len(u.Done) == 0 {
				t.Errorf("%s was not taken back when its row was free", u.Name)
			}
		}
	})
}

// Close has little time, and begins each attempt with what the one before had no time for.
func TestCloseReleasesWhatItCanBesideRowsThatStayLocked(t *testing.T) {
	t.Parallel()
	for range 20 { // the order of the leases is by chance
		synctest.Test(t, func(t *testing.T) {
			s := newFakeStore()
			refuse := locked("a", "b", "c")
			released := make(map[string]bool)
			s.onReleaseAll = func(ctx context.Context, claims []protocol.Claim) error {
				err := refuse(ctx, namesOf(claims))
				for _, claim := range claims {
					released[claim.Name] = err == nil
				}
				return err
			}
			c := startClient(t, s, trust.SystemClock())
			for _, name := range []string{"a", "b", "c", "d", "e", "f"} {
				mustAcquire(t, c, name)
			}
			if err := c.Close(t.Context()); err == nil || !strings.Contains(err.Error(), "3 leases") {
				t.Errorf("Close: %v, want an error about the 3 leases whose rows are locked", err)
			}
			for _, name := range []string{"d", "e", "f"} {
				if !released[name] {
					t.Errorf("%s was not released", name)
				}
			}
		})
	}
}

// One row that stays locked takes time from what Close says of others, but not all of it: neither of a request to take
// back, nor of a lease among more than one statement releases.
func TestCloseReleasesEveryLeaseBesideARowThatStaysLocked(t *testing.T) {
	for name, many := range map[string]int{"of a request": 2, "of a lease": 2*takeback.Most + 1} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
				return protocol.TakenBack{}, errReset
			}
			c := startClient(t, s, trust.SystemClock())
			for i := range many {
				mustAcquire(t, c, fmt.Sprint("report ", i))
			}
			stuck, left := "", many-1
			if name == "of a request" {
				stuck, left = "given up", many
				leaves(c, stuck, false)
				time.Sleep(5 * time.Second) // it is tried again after a second
			}
			released := make(map[string]bool)
			s.set(func() {
				s.onGiveUp = func(ctx context.Context, r protocol.RequestID) (protocol.TakenBack, error) {
					return protocol.TakenBack{}, locked(stuck)(ctx, []string{r.Name})
				}
				s.onReleaseAll = func(ctx context.Context, claims []protocol.Claim) error {
					if stuck == "" {
						stuck = claims[0].Name // the first to be released
					}
					err := locked(stuck)(ctx, namesOf(claims))
					for _, claim := range claims {
						released[claim.Name] = released[claim.Name] || err == nil
					}
					return err
				}
			})
			err := c.Close(t.Context())
			if err == nil || !strings.Contains(err.Error(), ": 1 ") {
				t.Errorf("Close: %v, want an error about what is locked", err)
			}
			if maps.DeleteFunc(released, func(_ string, is bool) bool { return !is }); len(released) != left {
				t.Errorf("%d leases were released, want %d", len(released), left)
			}
		}))
	}
}

// When a request is taken back, others are told what they were granted by that, and our own at once.
func TestGrantsThatATakingBackMakesPossibleAreTold(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		s.set(func() {
			s.onGiveUp = func(_ context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
				if u.Name != "report" {
					return protocol.TakenBack{Handed: protocol.Handed{Slots: []int{1, 2}}}, nil
				}
				return protocol.TakenBack{Handed: protocol.Handed{Hints: []string{q.grant(id, DefaultTTL)}}}, nil
			}
		})
		leaves(c, "report", false)
		leaves(c, "places", false)
		began := time.Now()
		if l := mustGet(t, result); l.Token() != 6 || time.Since(began) != 0 ||
			l.Deadline() != began.Add(29*time.Second) {
			t.Errorf("%v after %v, trusted for %v", l, time.Since(began), l.Deadline().Sub(began))
		}
		synctest.Wait()
		if told := s.of("announce"); len(told) != 1 || !slices.Equal(told[0].names, []string{"places", "places"}) {
			t.Errorf("announced %+v", told)
		}
	})
}

// Taking back shares the heartbeat's connection. One that hangs is left behind and costs no lease, whatever its TTL. It
// is tried again with fewer.
func TestTakingBackThatHangsCostsNoLease(t *testing.T) {
	for _, ttl := range []time.Duration{MinTTL, time.Second, 10 * time.Second, time.Hour} {
		t.Run(ttl.String(), fakeClock(func(t *testing.T, s *fakeStore) {
			var hung time.Duration
			s.onGiveUp = func(ctx context.Context, _ protocol.RequestID) (protocol.TakenBack, error) {
				began := time.Now()
				<-ctx.Done()
				s.set(func() { hung = max(hung, time.Since(began)) })
				return protocol.TakenBack{}, ctx.Err()
			}
			c := startClient(t, s, trust.SystemClock())
			l := mustAcquire(t, c, "report", WithTTL(ttl))
			for i := range takeback.Most {
				leaves(c, fmt.Sprint("given up ", i), true)
			}
			time.Sleep(min(20*ttl, 10*time.Minute) + 10*cutOff)
			must.Note(t, l.Err())
			s.set(func() {
				if hung != cutOff {
					t.Errorf("it was given up after %v", hung)
				}
			})
			tries := s.of("giveUp")
			if fewest := slices.MinFunc(tries, func(a, b call) int {
				return len(a.names) - len(b.names)
			}); len(fewest.names) > takeback.Most/4 {
				t.Errorf("%d attempts, with %d at least", len(tries), len(fewest.names))
			}
			s.set(func() { s.onGiveUp = nil })
			time.Sleep(patience + time.Minute)
			if _, _, n := left(c); n != 0 {
				t.Errorf("%d were not taken back when the server answered again", n)
			}
		}))
	}
}

// Close may find the heartbeat's connection dead, and the server alive.
func TestCloseTriesAgainOnANewConnection(t *testing.T) {
	for name, dies := range map[string]func(context.Context) error{
		"reset":  func(context.Context) error { return errReset },
		"silent": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			s.onGiveUp = func(ctx context.Context, u protocol.RequestID) (protocol.TakenBack, error) {
				s.set(func() { s.onGiveUp = q.giveUp })
				return protocol.TakenBack{}, dies(ctx)
			}
			s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error {
				s.set(func() { s.onReleaseAll = nil })
				return dies(ctx)
			}
			c := startClient(t, s, trust.SystemClock())
			id, result := waiting(t.Context(), t, c, "report")
			s.set(func() { s.onAcquire = nil })
			mustAcquire(t, c, "held")
			must.Note(t, c.Close(t.Context()))
			if got := <-result; !errors.Is(got.err, ErrClosed) || q.queues(id) {
				t.Errorf("%v, still queued: %v", got.err, q.queues(id))
			}
			if took := time.Since(s.began); took >= 5*time.Second {
				t.Errorf("it took %v", took)
			}
		}))
	}
}

// What the server undoes for a passing reason, as a deadlock, it does the next time.
func TestCloseTriesAgainWhatTheServerHasUndone(t *testing.T) {
	for _, code := range []string{"40001", "40P01", "55P03", "57014"} {
		t.Run(code, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onReleaseAll = func(context.Context, []protocol.Claim) error {
				s.set(func() { s.onReleaseAll = nil })
				return sqlError(code)
			}
			c := startClient(t, s, trust.SystemClock())
			mustAcquire(t, c, "report")
			if err := c.Close(t.Context()); err != nil || len(s.of("releaseAll")) != 2 {
				t.Errorf("Close: %v after %d attempts", err, len(s.of("releaseAll")))
			}
		}))
	}
}

// A pool that the application has exhausted delays neither Close nor the heartbeat, even if a grant has to be
// announced.
func TestExhaustedPoolHoldsUpNothingThatIsSaidBesideIt(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		handedOver := protocol.Handed{Slots: []int{0}}
		queued(s, time.Hour)
		s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			return protocol.TakenBack{Handed: handedOver}, nil
		}
		s.onHandOver = func(protocol.Claim) protocol.Handed { return handedOver }
		s.onAnnounce = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		c := startClient(t, s, trust.SystemClock())
		waiting(t.Context(), t, c, "report")
		s.set(func() { s.onAcquire = nil })
		l := mustAcquire(t, c, "held", WithTTL(MinTTL))
		for range 10 {
			leaves(c, "report", false)
			time.Sleep(MinTTL)
		}
		if err := l.Err(); err != nil || len(s.of("announce")) != 10 {
			t.Errorf("%v, %d announcements", err, len(s.of("announce")))
		}
		began := time.Now()
		if err := c.Close(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		if told := s.of("announce"); len(told) != 12 || len(s.of("endSession")) != 1 {
			t.Errorf("%d announcements, the session was ended %d times", len(told), len(s.of("endSession")))
		}
	})
}
