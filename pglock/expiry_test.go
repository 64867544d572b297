package pglock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// skewed is a clock that can jump, as a program sees time that has passed while it did not run.
type skewed struct{ mono, wall atomic.Int64 }

func (s *skewed) clock() trust.Clock {
	system := trust.SystemClock()
	return func() trust.Instant {
		now := system()
		return trust.Instant{Mono: now.Mono + time.Duration(s.mono.Load()),
			Wall: now.Wall.Add(time.Duration(s.wall.Load()))}
	}
}

func (s *skewed) jump(mono, wall time.Duration) {
	s.mono.Add(int64(mono))
	s.wall.Add(int64(wall))
}

// A lease that expires while the program does not run says so, whoever notices first, and for how long it was. The same
// pause explains no lease that it cannot have ended, and none that expires later.
func TestALeaseThatExpiresInAPauseSaysSo(t *testing.T) {
	notices := map[string]func(*testing.T, *Lease) error{
		"the lease":   func(_ *testing.T, l *Lease) error { return l.Err() },
		"its context": func(_ *testing.T, l *Lease) error { <-l.Context().Done(); return context.Cause(l.Context()) },
		"its release": func(t *testing.T, l *Lease) error { return l.Release(t.Context()) },
	}
	for name, notice := range notices {
		for says, wall := range map[string]time.Duration{
			"lost: expired: the program did not run for about ":                      9 * time.Second,
			"lost: expired: the machine was suspended, or its clock set, for about ": time.Minute,
		} {
			t.Run(name+" "+says, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var skew skewed
					s := newFakeStore()
					fail := atomic.Bool{}
					s.onRenewAll = func(_ context.Context,
						claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
						if fail.Load() {
							return nil, errReset
						}
						return s.renewed(claims), nil
					}
					c := startClient(t, s, skew.clock())
					l, long := mustAcquire(t, c, "report", WithTTL(3*time.Second)), mustAcquire(t, c, "long",
						WithTTL(time.Hour))
					time.Sleep(500 * time.Millisecond)
					fail.Store(true) // else the heartbeat may come before the watch, and renew it
					skew.jump(9*time.Second, wall)
					err := notice(t, l)
					fail.Store(false)
					if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), says) ||
						!strings.Contains(err.Error(), ", and the TTL is 3s") {
						t.Errorf("%v, want %q", err, says)
					}
					if err := long.Err(); err != nil {
						t.Errorf("the long lease: %v", err)
					}
					time.Sleep(time.Second) // the watch has seen the pause
					l = mustAcquire(t, c, "another", WithTTL(3*time.Second))
					fail.Store(true)
					<-l.Context().Done()
					if err := context.Cause(l.Context()); !errors.Is(err, ErrLost) ||
						!strings.Contains(err.Error(), errReset.Error()) ||
						strings.Contains(err.Error(), "TTL") {
						t.Errorf("a later lease that could not be renewed: %v, want why", err)
					}
				})
			})
		}
	}
}

// A grant that the server has told of by itself was no slow request, however old the last look was.
func TestAGrantByNotificationIsNoSlowRequest(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		s.onLook = noLook
		s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			return nil, errReset
		}
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report", WithTTL(2*time.Second))
		time.Sleep(750 * time.Millisecond)
		c.queue.Hear(q.grant(id, 2*time.Second), nil)
		l := mustGet(t, result)
		l.mu.Lock()
		took := l.took
		l.mu.Unlock()
		if took != 0 {
			t.Errorf("the grant took %v", took)
		}
		<-l.Context().Done()
		if err := l.Err(); strings.Contains(err.Error(), "too short") {
			t.Error(err)
		}
	})
}

// A TTL that the way to the server uses up is named as the reason.
func TestATTLThatIsTooShortForTheConnectionIsNamed(t *testing.T) {
	const ttl = 100 * time.Millisecond
	for name, c := range map[string]struct {
		grant, renewal time.Duration
		says           string
	}{
		"the grant comes too late": {120 * time.Millisecond, 0, "a request to the server took 120ms: the TTL of " +
			"100ms is too short"},
		"renewals are too slow": {50 * time.Millisecond, 80 * time.Millisecond, "ms: the TTL of 100ms is too short " +
			"for this connection"},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
				time.Sleep(c.grant)
				return s.grants(asked.request), nil
			}
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				time.Sleep(c.renewal)
				return s.renewed(claims), nil
			}
			l, err := startClient(t, s, trust.SystemClock()).TryAcquire(t.Context(), "report", WithTTL(ttl))
			if err == nil {
				<-l.Context().Done()
				err = context.Cause(l.Context())
			}
			if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		}))
	}
}
