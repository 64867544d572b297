package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/coalesce"
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

// starved is a store to which no connection comes: the first is refused, and then there is none in the pool.
type starved struct {
	*fakeStore
	says string
}

func (s starved) Acquire(ctx context.Context, _ protocol.Request) (protocol.Answer, error) {
	if s.note(call{what: "acquire"}); len(s.of("acquire")) == 1 {
		return protocol.Answer{}, &coalesce.NotSentError{Err: errReset}
	}
	<-ctx.Done()
	return protocol.Answer{}, &coalesce.NotSentError{Err: fmt.Errorf(s.says, ctx.Err())}
}

// The end of a wait says what its last attempt has waited for, and how the one before has failed, once.
func TestTheEndOfAWaitSaysWhatItsLastTwoAttemptsKnow(t *testing.T) {
	for says, want := range map[string]string{
		"no connection of the pool: %w": "no connection of the pool: context deadline exceeded; before that: " +
			errReset.Error(),
		errReset.Error() + ", %w": errReset.Error() + ", context deadline exceeded",
	} {
		t.Run(says, fakeClock(func(t *testing.T, s *fakeStore) {
			c := startClient(t, starved{s, says}, trust.SystemClock())
			_, err := c.Acquire(t.Context(), "report", WithMaxWait(time.Second))
			want := `pglock: acquire lock "report": waited 1s in vain (WithMaxWait): ` + want
			if err == nil || err.Error() != want || !errors.Is(err, context.DeadlineExceeded) ||
				errors.Is(err, errReset) != strings.Contains(want, "before") {
				t.Errorf("%v, want %s", err, want)
			}
		}))
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
