package pglock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A retry after a lost answer may meet a server that cannot be asked: a standby, a lack of rights, a new password. The
// attempt before it may be granted, and the error says so. What the server has decided about the lock is known.
func TestI11_ARetryThatIsRefusedSaysThatTheOutcomeIsUnknown(t *testing.T) {
	for state, tc := range map[string]struct {
		want    error
		unknown bool
	}{
		"25006":                  {ErrReadOnly, true},
		"42501":                  {ErrPermission, true},
		"28P01":                  {sqlError("28P01"), true},
		protocol.StateDeadlock:   {ErrHeld, false}, // by a lease that has ended here
		protocol.StateOtherLimit: {ErrLimit, false},
	} {
		t.Run(state, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeServer()
				c := s.client(t)
				s.set(func() {
					s.fault = func(what string, done bool) error {
						switch n := len(s.of("acquire")); {
						case what == "acquire" && done && n%2 == 1:
							return errReset
						case what == "acquire" && !done && n%2 == 0:
							return sqlError(state)
						}
						return nil
					}
				})
				for what, ask := range map[string]func(context.Context, string, ...AcquireOption) (*Lease,
					error){"TryAcquire": c.TryAcquire, "Acquire": c.Acquire} {
					_, err := ask(t.Context(), "report", WithMaxWait(time.Minute))
					if !errors.Is(err, tc.want) || errors.Is(err, ErrOutcomeUnknown) != tc.unknown {
						t.Errorf("%s: %v; want %v, and that the outcome is unknown: %v", what, err, tc.want, tc.unknown)
					}
					s.wantEmpty(t, "report")
				}
			})
		})
	}
}

// A hook of the pool may use another client, which is closed. That says nothing of this one.
func TestAnotherClientsErrClosedIsAnErrorAsAnyOther(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			return protocol.Answer{}, errors.Join(sqlError("42501"), ErrClosed)
		}
		c := startClient(t, s, trust.SystemClock())
		for what, ask := range map[string]func(context.Context, string, ...AcquireOption) (*Lease,
			error){"TryAcquire": c.TryAcquire, "Acquire": c.Acquire} {
			before := len(s.of("acquire"))
			_, err := ask(t.Context(), "report", WithMaxWait(lastLook))
			if n := len(s.of("acquire")) - before; !errors.Is(err, ErrPermission) || errors.Is(err, ErrHeld) || n != 1 {
				t.Errorf("%s: %v after %d requests, want what the hook says", what, err, n)
			}
		}
		s.set(func() { s.onAcquire = nil })
		l := mustAcquire(t, c, "report")
		s.set(func() {
			s.onRelease = func(context.Context, protocol.Claim) (bool, error) {
				return true, []error{errors.Join(errReset, ErrClosed), nil}[min(1, len(s.of("release"))-1)]
			}
		})
		if err := l.Release(t.Context()); err != nil || len(s.of("release")) != 2 {
			t.Errorf("Release: %v after %d requests, want that it asks again", err, len(s.of("release")))
		}
	})
}
