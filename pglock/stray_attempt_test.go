package pglock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// An attempt whose answer was lost may still be under way when the lease that a later attempt got has ended, and when
// the lock has had other holders since. Its grant would be nobody's. So the end of such a lease spends the grant ID, in
// whatever way it ends; the end of any other lease does not.
func TestI6_TheEndOfALeaseWithALostAttemptSpendsItsGrantID(t *testing.T) {
	for way, end := range map[string]func(t *testing.T, c *Client, l *Lease){
		"released": func(t *testing.T, _ *Client, l *Lease) {
			must.Note(t, l.Release(t.Context()))
			if err := l.Release(t.Context()); !errors.Is(err, ErrReleased) {
				t.Errorf("a second release: %v", err)
			}
		},
		"closed": func(t *testing.T, c *Client, _ *Lease) {
			must.Note(t, c.Close(t.Context()))
		},
		"handed over": func(t *testing.T, c *Client, l *Lease) {
			next := lined(t.Context(), c, WithHolder("next"))
			must.Note(t, l.HandOver(t.Context(), "next"))
			serveAll(t, []chan acquired{next})
		},
		"lost": func(t *testing.T, c *Client, l *Lease) {
			c.backend.(*fakeServer).breaks("report")
			<-l.Context().Done()
		},
	} {
		for _, lost := range []bool{true, false} {
			t.Run(way+map[bool]string{true: ", after a lost answer", false: ""}[lost], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newFakeServer()
					c := s.client(t)
					s.set(func() {
						s.fault = func(what string, done bool) error {
							if what == "acquire" && done && lost && len(s.of("acquire")) == 1 {
								return errReset
							}
							return nil
						}
					})
					l := mustAcquire(t, c, "report")
					id := l.grantID
					end(t, c, l)
					time.Sleep(time.Second)
					synctest.Wait()
					var spent bool
					s.locked(func() { spent = s.spent[id] })
					if spent != lost {
						t.Errorf("the grant ID is spent: %v", spent)
					}
					if given := slices.ContainsFunc(s.of("release"), func(r call) bool {
						return r.grantID == id
					}); given && lost {
						t.Error("the lease was released, and its grant ID could have been used between that and the " +
							"spending")
					}
					s.wantEmpty(t, "report", c)
				})
			})
		}
	}
}

// Where the lease has run out, the statement that spends its grant ID serves those behind it.
func TestWhoeverIsServedWhenAGrantIDIsSpentIsTold(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
			if len(s.of("acquire")) == 1 {
				return protocol.Answer{}, errReset
			}
			return s.grants(asked.request), nil
		}
		s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			return protocol.TakenBack{Handed: protocol.Handed{Slots: []int{0}}}, nil
		}
		s.onRelease = func(context.Context, protocol.Claim) (bool, error) { return false, nil }
		s.onReason = func(protocol.Claim) (Reason, error) { return ReasonExpired, nil }
		if err := mustAcquire(t, c, "report").Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		if told := s.of("announce"); len(told) != 1 || !slices.Equal(told[0].names, []string{"report"}) {
			t.Errorf("%+v, want one announcement", told)
		}
	})
}

// The grant of the first attempt has run out, so the call begins anew with another grant ID. Its second attempt has the
// old one, and arrives when the call's lease has ended: the server refuses it.
func TestI6_AGrantIDThatIsReplacedAfterALostAnswerIsSpent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		s.set(func() {
			s.fault = func(what string, done bool) error {
				switch n := len(s.of("acquire")); {
				case what != "acquire":
				case n == 1 && done: // granted
					return errReset
				case n == 2 && !done: // it goes on in the network
					time.Sleep(2 * time.Second)
					return errReset
				}
				return nil
			}
		})
		l := must.Get(c.Acquire(t.Context(), "report", WithTTL(time.Second)))(t)
		asked := s.of("acquire")
		if len(asked) != 4 || asked[2].grantID != asked[0].grantID || asked[3].grantID == asked[0].grantID {
			t.Fatalf("%d requests, want three with one grant ID and then one with another", len(asked))
		}
		must.Note(t, l.Release(t.Context()))
		synctest.Wait()
		if _, err := s.acquired(t.Context(), asked[1].request); protocol.State(err) != protocol.StateSpentGrantID {
			t.Errorf("the attempt that arrives late: %v, want %s", err, protocol.StateSpentGrantID)
		}
		s.wantEmpty(t, "report", c)
	})
}
