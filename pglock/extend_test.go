package pglock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// longServer does with extensions what renew_leases does, for leases of one TTL. It loses what a test tells it to lose.
type longServer struct {
	ttl time.Duration

	mu       sync.Mutex
	expires  map[string]time.Time
	extended map[string]bool
	claims   []protocol.Claim // every renewal that arrived
	lose     error            // instead of the answer; what was asked is done all the same
	fail     error            // instead of everything
}

func newLongServer(s *fakeStore, ttl time.Duration) *longServer {
	m := &longServer{ttl: ttl, expires: make(map[string]time.Time), extended: make(map[string]bool)}
	s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
		return m.renew(claims)
	}
	s.onRenew = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
		verdicts, err := m.renew([]protocol.Claim{c})
		return verdicts[c].Remaining, err
	}
	return m
}

func (m *longServer) renew(claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	verdicts := make(map[protocol.Claim]protocol.Verdict)
	for _, c := range claims {
		m.claims = append(m.claims, c)
		verdicts[c] = m.renewOne(c)
	}
	return verdicts, m.lose
}

func (m *longServer) renewOne(c protocol.Claim) protocol.Verdict {
	keep := m.extended[c.Name] && m.expires[c.Name].UnixMicro() != c.NoLonger
	at := time.Now().Add(max(m.ttl, c.Lasting))
	if keep && m.expires[c.Name].After(at) {
		at = m.expires[c.Name]
	}
	m.extended[c.Name] = c.Lasting > m.ttl || keep && m.expires[c.Name].After(time.Now().Add(m.ttl))
	m.expires[c.Name] = at
	return protocol.Verdict{Outcome: protocol.Renewed, Remaining: time.Until(at), ExpiresAt: at}
}

func (m *longServer) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *longServer) left(name string) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.Until(m.expires[name])
}

func (m *longServer) asked() []protocol.Claim {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]protocol.Claim(nil), m.claims...)
}

func mustExtend(t *testing.T, l *Lease, d time.Duration) func() {
	t.Helper()
	end, err := l.Extend(t.Context(), d)
	if err != nil {
		t.Fatalf("Extend(%v): %v", d, err)
	}
	return end
}

func TestExtendedLeaseLastsWithoutARenewal(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 2*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(2*time.Second))
		began := time.Now()
		mustExtend(t, l, 10*time.Minute)
		if time.Since(began) > 0 {
			t.Errorf("Extend took %v", time.Since(began))
		}
		m.set(func() { m.fail = errors.New("no answer") })
		if left := time.Until(l.Deadline()); left != 10*time.Minute-time.Second {
			t.Errorf("trusted for %v, want 10m less a second", left)
		}
		time.Sleep(10*time.Minute - time.Second - 1)
		if !l.Valid() {
			t.Errorf("the extended lease ended by itself: %v", l.Err())
		}
		time.Sleep(time.Second)
		if !errors.Is(l.Err(), ErrLost) || l.Context().Err() == nil {
			t.Errorf("after the extension: %v, context %v", l.Err(), l.Context().Err())
		}
	})
}

// The heartbeat goes on asking, so that a break is noticed, and shortens nothing before the end.
func TestRenewalsDoNotShortenAnExtendedLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 3*time.Second)
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "nightly", WithTTL(3*time.Second))
		other := mustAcquire(t, c, "other", WithTTL(3*time.Second))
		end := mustExtend(t, l, time.Minute)
		for range 30 {
			time.Sleep(time.Second)
			must.Do(t, l.renew(t.Context()))
		}
		if left := m.left("nightly"); left != 30*time.Second {
			t.Errorf("after 30 s of an extension by a minute the lease lasts for %v", left)
		}
		if n := len(m.asked()); n < 2*25 || !other.Valid() {
			t.Errorf("%d renewals of two leases in 30 s, want one each second of each; the other says %v", n,
				other.Err())
		}
		ofOne := func() (asked []protocol.Claim) { // the other lease may be due at the same moment
			return slices.DeleteFunc(m.asked(), func(c protocol.Claim) bool { return c.Name != "nightly" })
		}
		before := len(ofOne())
		end()
		synctest.Wait()
		asked := ofOne()[before:]
		if len(asked) != 1 || asked[0].NoLonger == 0 {
			t.Fatalf("the end of the extension sent %+v, want one renewal that undoes it", asked)
		}
		if left := m.left("nightly"); left != 3*time.Second {
			t.Errorf("after the end the lease lasts for %v, want its TTL", left)
		}
		if left := time.Until(l.Deadline()); left > 3*time.Second || left < 2*time.Second {
			t.Errorf("after the end the lease is trusted for %v", left)
		}
		end()
		synctest.Wait()
		if n := len(ofOne()); n != before+1 {
			t.Errorf("a second end sent %d renewals", n-before-1)
		}
		time.Sleep(time.Minute)
		if left := m.left("nightly"); left > 3*time.Second || !l.Valid() {
			t.Errorf("a minute later it lasts for %v, and says %v", left, l.Err())
		}
	})
}

func TestExtensionThatNobodyEndsIsOverWithItsTime(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 3*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(3*time.Second))
		mustExtend(t, l, time.Minute)
		time.Sleep(2 * time.Minute)
		if left := m.left("nightly"); left > 3*time.Second || !l.Valid() || len(l.holds) != 0 {
			t.Errorf("it lasts for %v, says %v, and has %d extensions", left, l.Err(), len(l.holds))
		}
	})
}

// Of several extensions the longest counts, also when one that is shorter ends later.
func TestLongestOfSeveralExtensionsCounts(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 3*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(3*time.Second))
		endLong := mustExtend(t, l, time.Hour)
		endShort := mustExtend(t, l, time.Minute)
		if left := m.left("nightly"); left != time.Hour {
			t.Errorf("with both %v left, want an hour", left)
		}
		endLong()
		synctest.Wait()
		if left := m.left("nightly"); left != time.Minute {
			t.Errorf("with the shorter %v left, want a minute", left)
		}
		endShort()
		synctest.Wait()
		if left := m.left("nightly"); left != 3*time.Second {
			t.Errorf("with none %v left, want the TTL", left)
		}
	})
}

// The answer to the extension is lost, and so is that to its undoing: the lease has its TTL again as soon as the server
// answers.
func TestExtensionWhoseAnswerWasLostIsUndone(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 30*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second))
		gone := errors.New("the answer was lost")
		m.set(func() { m.lose = gone })
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		end, err := l.Extend(ctx, time.Hour)
		if end != nil || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, gone) {
			t.Fatalf("Extend without an answer: %v", err)
		}
		if left := m.left("nightly"); left < 50*time.Minute {
			t.Fatalf("the server has not extended it: %v", left)
		}
		if left := time.Until(l.Deadline()); left > 30*time.Second {
			t.Errorf("trusted for %v without an answer", left)
		}
		time.Sleep(2 * time.Second)
		m.set(func() { m.lose = nil })
		time.Sleep(2 * time.Second)
		if left := m.left("nightly"); left > 30*time.Second || !l.Valid() {
			t.Errorf("the server answers again, and the lease lasts for %v and says %v", left, l.Err())
		}
	})
}

// A request to extend the lease that arrives after its undoing makes the lease long once more. The next renewal shows
// it.
func TestExtensionThatComesLateIsUndone(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 30*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second))
		end := mustExtend(t, l, time.Hour)
		late := m.asked()[len(m.asked())-1]
		end()
		synctest.Wait()
		m.renew([]protocol.Claim{late}) //nolint:errcheck // of a connection that was given up
		time.Sleep(11 * time.Second)
		if left := m.left("nightly"); left > 30*time.Second {
			t.Errorf("the lease lasts for %v", left)
		}
	})
}

// An undoing that arrives late names an expiry that is no more, and so takes nothing from a later extension.
func TestUndoingThatComesLateShortensNoLaterExtension(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 30*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second))
		end := mustExtend(t, l, time.Hour)
		time.Sleep(time.Second)
		end()
		synctest.Wait()
		late := m.asked()[len(m.asked())-1]
		if late.NoLonger == 0 {
			t.Fatalf("the end sent %+v", late)
		}
		mustExtend(t, l, time.Hour)
		m.renew([]protocol.Claim{late}) //nolint:errcheck // of a connection that was given up
		if left := m.left("nightly"); left != time.Hour {
			t.Errorf("the lease lasts for %v, want an hour", left)
		}
	})
}

// An extension that is asked for while a beat is on its way is sent right after it.
func TestExtensionDoesNotWaitForTheNextBeat(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		l, arrives := lateBeat(t, s)
		extended := must.Go(func() error { _, err := l.Extend(t.Context(), time.Hour); return err })
		synctest.Wait()
		began := time.Now()
		arrives()
		if err := <-extended; err != nil || time.Since(began) > 0 {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Where somebody has locked the row for a moment the extension waits for it, as a renewal does.
func TestExtensionWaitsForALockedRow(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			verdicts := make(map[protocol.Claim]protocol.Verdict)
			for _, c := range claims {
				verdicts[c] = protocol.Verdict{Outcome: protocol.Busy}
			}
			return verdicts, nil
		}
		var asked protocol.Claim
		s.onRenewBusy = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
			asked = c
			return c.Lasting, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(3*time.Second))
		mustExtend(t, l, time.Minute)
		if asked.Lasting != time.Minute {
			t.Errorf("the renewal that waits for the row is %+v", asked)
		}
		if left := time.Until(l.Deadline()); left != 59*time.Second {
			t.Errorf("trusted for %v", left)
		}
	})
}

// The grace stays what comes after the lease, extended or not.
func TestExtensionComesBeforeTheGrace(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := must.Get(c.TryAcquire(t.Context(), "nightly", WithTTL(3*time.Second), WithGrace(time.Minute)))(t)
		m := newLongServer(s, 63*time.Second)
		end := mustExtend(t, l, time.Hour)
		if left, trusted := m.left("nightly"), time.Until(l.Deadline()); left != time.Hour+time.Minute ||
			trusted != time.Hour-time.Second {
			t.Errorf("taken for %v and trusted for %v", left, trusted)
		}
		end()
		synctest.Wait()
		if left, trusted := m.left("nightly"), time.Until(l.Deadline()); left != 63*time.Second ||
			trusted > 3*time.Second {
			t.Errorf("afterwards taken for %v and trusted for %v", left, trusted)
		}
	})
}

func TestI11_ExtensionOutOfRangeIsRefusedBeforeAnythingIsSent(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "nightly")
		graceful := must.Get(c.TryAcquire(t.Context(), "graceful", WithGrace(time.Hour)))(t)
		for _, bad := range []struct {
			l *Lease
			d time.Duration
		}{{l, 0}, {l, -time.Hour}, {l, MinTTL - 1}, {l, MaxTTL + 1}, {graceful, MaxTTL - time.Hour + 1}} {
			end, err := bad.l.Extend(t.Context(), bad.d)
			if end != nil || !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), bad.d.String()) {
				t.Errorf("Extend(%v): %v", bad.d, err)
			}
		}
		if n := len(s.of("renewAll")); n != 0 {
			t.Errorf("%d renewals", n)
		}
		mustExtend(t, graceful, MaxTTL-time.Hour)
		mustExtend(t, l, MaxTTL)
		mustExtend(t, l, MinTTL)
	})
}

func TestExtensionOfALeaseThatEndsFails(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(t *testing.T, c *Client, l *Lease)
		want error
	}{
		"released": {func(t *testing.T, _ *Client, l *Lease) { _ = l.Release(t.Context()) }, ErrReleased},
		"closed":   {func(t *testing.T, c *Client, _ *Lease) { _ = c.Close(t.Context()) }, ErrReleased},
		"lost":     {func(t *testing.T, _ *Client, l *Lease) { time.Sleep(time.Until(l.Deadline())) }, ErrLost},
	} {
		for _, before := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore()
				client := startClient(t, s, trust.SystemClock())
				l := mustAcquire(t, client, "nightly", WithTTL(3*time.Second))
				s.set(func() {
					s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
						error) {
						return nil, errors.New("no answer")
					}
				})
				if before {
					c.end(t, client, l)
				}
				extended := must.Go(func() error { _, err := l.Extend(t.Context(), time.Hour); return err })
				synctest.Wait()
				if !before {
					c.end(t, client, l)
				}
				if err := <-extended; !errors.Is(err, c.want) && !errors.Is(err, ErrClosed) {
					t.Errorf("%s, before %v: %v, want %v", what, before, err, c.want)
				}
			})
		}
	}
}

// An answer to an earlier renewal says how long the extended lease lasts. When it arrives, the server may already have
// taken the extension back.
func TestI7_LateAnswerRevivesNoTrustInAnExtensionThatIsTakenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 2*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(2*time.Second))
		end := mustExtend(t, l, 10*time.Minute)
		answers := time.Now().Add(2150 * time.Millisecond) // the network delivers nothing until then
		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				verdicts, err := m.renew(claims)
				at := answers
				if claims[0].NoLonger != 0 {
					at = at.Add(5 * time.Millisecond)
				}
				time.Sleep(time.Until(at))
				return verdicts, err
			}
		})
		time.Sleep(700 * time.Millisecond)
		end()
		shrunk := false
		for time.Now().Before(answers.Add(10 * time.Millisecond)) {
			time.Sleep(time.Millisecond)
			for _, c := range m.asked() {
				shrunk = shrunk || c.NoLonger != 0
			}
			if left := m.left("nightly"); shrunk && l.Valid() && time.Until(l.Deadline()) > left {
				t.Fatalf("the lease is trusted for %v, and lasts for %v", time.Until(l.Deadline()), left)
			}
		}
		if !shrunk {
			t.Error("the extension was not taken back")
		}
	})
}

// A machine that slept has used up wall time that its monotonic clock does not know of.
func TestI7_EndOfAnExtensionAfterASleepMakesNoLeaseLonger(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 30*time.Second)
		clock := newMovedClock()
		l := mustAcquire(t, startClient(t, s, clock.now), "nightly", WithTTL(30*time.Second))
		end := mustExtend(t, l, 10*time.Minute)
		m.set(func() { m.fail = errReset }) // the network is not back yet
		clock.move(0, 575*time.Second)
		l.mu.Lock()
		before := l.deadline
		l.mu.Unlock()
		end()
		synctest.Wait()
		l.mu.Lock()
		after := l.deadline
		l.mu.Unlock()
		if after.Wall.After(before.Wall) || after.Mono >= before.Mono {
			t.Errorf("the deadline was %v and is %v, want it earlier by the monotonic clock, and not later by the "+
				"other", before, after)
		}
	})
}

// Extend returns when the deadline has followed, also where a Renew that was sent later is answered first.
func TestI7_ExtendReturnsOnlyWhenTheDeadlineHasFollowed(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		m := newLongServer(s, 30*time.Second)
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second))
		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				verdicts, err := m.renew(claims)
				m.set(func() { m.fail = errReset }) // and nothing after it
				time.Sleep(time.Second)
				return verdicts, err
			}
			s.onRenew = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.renewOne(c).Remaining, nil
			}
		})
		renewed := make(chan error, 1)
		time.AfterFunc(500*time.Millisecond, func() { renewed <- l.renew(t.Context()) })
		mustExtend(t, l, 10*time.Minute)
		if left := time.Until(l.Deadline()); left < 9*time.Minute {
			t.Errorf("I7: Extend has returned, and the lease is trusted for %v", left)
		}
		if err := <-renewed; err != nil { // before the client closes: Extend may return first
			t.Error(err)
		}
	})
}

// A lease that is lost here while it is extended is taken back, also if the client has heard of the extension as little
// as of its end: nobody else could end it before it runs out.
func TestI6_AnExtendedLeaseThatIsLostIsTakenBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		undo  bool
		grace time.Duration
	}{
		"no answer to the extension":         {false, 0},
		"no answer to its end":               {true, 0},
		"no answer to its end, with a grace": {true, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			onFakeClock(t, func(t *testing.T, s *fakeStore) {
				m := newLongServer(s, 30*time.Second+tc.grace)
				l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second),
					WithGrace(tc.grace))
				if tc.undo {
					end := mustExtend(t, l, time.Hour)
					m.set(func() { m.fail = errReset }) // nothing arrives
					end()
					<-l.Context().Done()
				} else {
					m.set(func() { m.lose = errReset }) // everything arrives, and no answer comes
					if _, err := l.Extend(t.Context(), time.Hour); !errors.Is(err, ErrLost) {
						t.Fatalf("Extend: %v", err)
					}
				}
				lost := time.Now()
				m.set(func() { m.fail, m.lose = nil, nil })
				if err := l.Release(t.Context()); !errors.Is(err, ErrLost) {
					t.Error(err)
				}
				time.Sleep(time.Second)
				if early := len(s.of("giveUp")); tc.grace > 0 && early > 0 {
					t.Error("taken back before its grace was over")
				}
				time.Sleep(tc.grace)
				if m.left("nightly") > 30*time.Minute && len(s.of("giveUp")) != 1 {
					t.Errorf("lost %v ago, and taken back %d times; on the server it lasts for %v more",
						time.Since(lost), len(s.of("giveUp")), m.left("nightly"))
				}
			})
		})
	}
}

// After a failover that has lost an extension, the lease is trusted for no longer than the server says, and is extended
// again up to the same end.
func TestI7_AnExtendedLeaseIsTrustedForNoLongerThanALaterAnswerSays(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]bool{"the server goes on": true, "it falls silent": false} {
		t.Run(name, func(t *testing.T) {
			onFakeClock(t, func(t *testing.T, s *fakeStore) {
				m := newLongServer(s, 30*time.Second)
				l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "nightly", WithTTL(30*time.Second))
				began := time.Now()
				mustExtend(t, l, 10*time.Minute)
				m.set(func() { // a failover has lost it
					m.extended["nightly"], m.expires["nightly"] = false, time.Now().Add(30*time.Second)
				})
				renewals := len(m.asked())
				for len(m.asked()) == renewals { // a renewal tells
					time.Sleep(time.Millisecond)
				}
				if !again {
					m.set(func() { m.fail = errReset })
				}
				time.Sleep(5 * time.Second)
				trusted, left := time.Until(l.Deadline()), m.left("nightly")
				if trusted > left {
					t.Errorf("trusted for %v; the server has said that the lease lasts for %v", trusted, left)
				}
				end := time.Until(began.Add(10 * time.Minute))
				if again && (trusted < end-time.Second || left > end+time.Second) {
					t.Errorf("trusted for %v, on the server %v, want %v", trusted, left, end)
				}
				if time.Sleep(30 * time.Second); !again && l.Valid() {
					t.Error("the lease has ended on the server and is still trusted")
				}
			})
		})
	}
}
