package pglock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestLossThatTheServerReportsEndsTheLeaseAtOnce(t *testing.T) {
	for _, reason := range []Reason{ReasonExpired, ReasonBroken, ReasonTakenOver, ReasonReleased, ReasonUnknown} {
		t.Run(string(reason), fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				verdicts := s.renewed(claims)
				for _, c := range claims {
					if c.Name == "lost" {
						verdicts[c] = protocol.Verdict{Outcome: string(reason)}
					}
				}
				return verdicts, nil
			}
			c := startClient(t, s, trust.SystemClock())
			l, other := mustAcquire(t, c, "lost"), mustAcquire(t, c, "other")
			<-l.Context().Done()
			if beats := s.of("renewAll"); len(beats) != 1 || time.Since(s.began) != beats[0].at {
				t.Errorf("the lease ended after %v, want at the first renewal of %v", time.Since(s.began), beats)
			}
			var lost *LostError
			if cause := context.Cause(l.Context()); !errors.As(cause, &lost) || lost.Reason != reason ||
				lost.Lock != "lost" || lost.Token != l.Token() {
				t.Errorf("cause %#v, want the loss of lock lost: %s", cause, reason)
			}
			if !errors.Is(l.Err(), ErrLost) || l.Valid() {
				t.Errorf("Err() = %v, Valid() = %v", l.Err(), l.Valid())
			}
			if err := other.Err(); err != nil {
				t.Errorf("the other lease: %v", err)
			}
		}))
	}
}

func TestLossFoundByCheckOrRenewEndsTheLease(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Lease) error{
		"Renew": func(ctx context.Context, l *Lease) error { return l.renew(ctx) },
		"Check": func(ctx context.Context, l *Lease) error { _, err := l.Check(ctx); return err },
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			gone := func(context.Context, protocol.Claim) (time.Duration, error) {
				return 0, sqlError(protocol.StateExpired)
			}
			s.onRenew, s.onCheck = gone, gone
			l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
			if err := ask(t.Context(), l); !errors.Is(err, ErrLost) {
				t.Errorf("%v, want ErrLost", err)
			}
			if !errors.Is(context.Cause(l.Context()), ErrLost) {
				t.Errorf("cause %v, want ErrLost", context.Cause(l.Context()))
			}
			if n := len(s.of("renew")) + len(s.of("check")); ask(t.Context(), l) == nil || len(s.of("renew"))+
				len(s.of("check")) != n {
				t.Error("a lost lease asks the server again")
			}
		}))
	}
}

func TestCheckThatIsAnsweredAfterTheDeadlinePromisesNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = hangs
		s.onCheck = func(context.Context, protocol.Claim) (time.Duration, error) {
			time.Sleep(40 * time.Second)
			return 30 * time.Second, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		if remaining, err := l.Check(t.Context()); remaining != 0 || !errors.Is(err, ErrLost) {
			t.Errorf("Check = %v, %v; want 0 and ErrLost", remaining, err)
		}
	})
}

func TestBusyRowIsAskedForAlone(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		lost bool
	}{
		"and renewed":       {nil, false},
		"and lost":          {sqlError(protocol.StateExpired), true},
		"and still locked":  {context.DeadlineExceeded, false},
		"and not permitted": {sqlError("55P03"), false},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: protocol.Busy}}, nil
			}
			s.onRenewBusy = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
				return s.ttl(c.GrantID), tc.err
			}
			l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
			before := l.Deadline()
			time.Sleep(15 * time.Second)
			if len(s.of("renewBusy")) == 0 {
				t.Error("nobody asked for the locked row")
			}
			if got := errors.Is(l.Err(), ErrLost); got != tc.lost {
				t.Errorf("Err() = %v", l.Err())
			}
			if extended := l.Deadline().After(before); extended != (tc.err == nil) {
				t.Errorf("deadline extended: %v", extended)
			}
		}))
	}
}

// lateBeat gives a lease whose renewal is on its way, and what lets the answer "renewed" arrive.
func lateBeat(t *testing.T, s *fakeStore) (*Lease, func()) {
	t.Helper()
	arrived := make(chan struct{})
	s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
		<-arrived
		return s.renewed(claims), nil
	}
	l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
	time.Sleep(11 * time.Second)
	if len(s.of("renewAll")) != 1 {
		t.Fatalf("%d renewals on their way, want 1", len(s.of("renewAll")))
	}
	return l, func() {
		close(arrived)
		synctest.Wait()
	}
}

func TestTrap8_LateRenewalRevivesNoReleasedLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		l, arrives := lateBeat(t, s)
		if err := l.Release(t.Context()); err != nil {
			t.Fatalf("a release does not wait for a renewal: %v", err)
		}
		if context.Cause(l.Context()) != ErrReleased {
			t.Errorf("cause %v, want ErrReleased", context.Cause(l.Context()))
		}
		deadline := l.Deadline()
		arrives()
		if l.Valid() || l.Err() != ErrReleased || !l.Deadline().Equal(deadline) {
			t.Errorf("after the late answer Err() = %v, deadline moved by %v", l.Err(), l.Deadline().Sub(deadline))
		}
		time.Sleep(time.Hour)
		if beats, releases := len(s.of("renewAll")), len(s.of("release")); beats != 1 || releases != 1 {
			t.Errorf("%d renewals and %d releases, want one of each", beats, releases)
		}
	})
}

func TestTrap8_LateRenewalRevivesNoLostLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		l, arrives := lateBeat(t, s)
		s.set(func() {
			s.onCheck = func(context.Context, protocol.Claim) (time.Duration, error) {
				return 0, sqlError(protocol.StateExpired)
			}
		})
		if _, err := l.Check(t.Context()); !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		deadline := l.Deadline()
		arrives()
		if l.Valid() || !errors.Is(l.Err(), ErrLost) || !l.Deadline().Equal(deadline) {
			t.Errorf("after the late answer Err() = %v, deadline moved by %v", l.Err(), l.Deadline().Sub(deadline))
		}
	})
}

func TestTrap8_LateRenewalRevivesNoLeasePastItsDeadline(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		l, arrives := lateBeat(t, s)
		time.Sleep(time.Until(l.Deadline()) + time.Millisecond)
		arrives()
		if l.Valid() || !errors.Is(context.Cause(l.Context()), ErrLost) {
			t.Errorf("after the late answer Err() = %v, cause %v", l.Err(), context.Cause(l.Context()))
		}
	})
}

func TestTrap8_LateOwnRenewalRevivesNoReleasedLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenew = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
			time.Sleep(time.Second)
			return s.ttl(c.GrantID), nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
		renewed := must.Go(func() error { return l.renew(t.Context()) })
		synctest.Wait()
		must.Do(t, l.Release(t.Context()))
		if err := <-renewed; !errors.Is(err, ErrReleased) || l.Valid() {
			t.Errorf("Renew = %v, Valid() = %v; want ErrReleased", err, l.Valid())
		}
	})
}

func TestErrorOfALeaseStays(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = hangs
		c := startClient(t, s, trust.SystemClock())
		lost, released := mustAcquire(t, c, "lost", WithTTL(time.Second)), mustAcquire(t, c, "released")
		must.Do(t, released.Release(t.Context()))
		<-lost.Context().Done()
		first := lost.Err()
		_, _ = lost.Check(t.Context())
		_ = lost.renew(t.Context())
		if err := lost.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("Release of a lost lease: %v, want ErrLost", err)
		}
		time.Sleep(time.Hour)
		if lost.Err() != first || context.Cause(lost.Context()) != first {
			t.Errorf("Err() = %v, cause %v; want %v for ever", lost.Err(), context.Cause(lost.Context()), first)
		}
		if err := released.Release(t.Context()); !errors.Is(err, ErrReleased) || released.Err() != ErrReleased ||
			len(s.of("release")) != 1 {
			t.Errorf("a second release: %v, Err() = %v, %d releases sent", err, released.Err(), len(s.of("release")))
		}
	})
}

func TestReleaseOfALeaseThatTheServerHasEndedSaysWhy(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReason = func(protocol.Claim) (Reason, error) { return ReasonExpired, nil }
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
		var before error
		s.onRelease = func(context.Context, protocol.Claim) (bool, error) { before = l.Err(); return false, nil }
		var lost *LostError
		if err := l.Release(t.Context()); !errors.As(err, &lost) || lost.Reason != ReasonExpired {
			t.Errorf("Release = %v, want an expired lease", err)
		}
		if l.Err() != before || context.Cause(l.Context()) != before {
			t.Errorf("Err was %v and is %v, the cause is %v: both are final", before, l.Err(),
				context.Cause(l.Context()))
		}
		if err := l.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Errorf("second Release = %v, want the loss again", err)
		}
	})
}

func TestReleaseReachesTheServerAlsoAfterItsContextEnded(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRelease = func(ctx context.Context, _ protocol.Claim) (bool, error) { return true, ctx.Err() }
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		must.Note(t, l.Release(ctx))
	})
}

// A release whose answer was lost is repeated. A repetition that finds the lease gone asks why: its own first attempt
// may have ended it. But a lost lease does not count as released.
func TestReleaseOverABrokenConnectionIsRepeatedForAtMostFiveSeconds(t *testing.T) {
	broken := errors.New("connection reset")
	for name, tc := range map[string]struct {
		first  error // of the attempts that fail
		reason Reason
		asked  error
		want   error // nil: released
		why    Reason
	}{
		"it was the first attempt": {broken, ReasonReleased, nil, nil, ""},
		"it had run out":           {broken, ReasonExpired, nil, ErrLost, ReasonExpired},
		"it was broken":            {broken, ReasonBroken, nil, ErrLost, ReasonBroken},
		"it was taken over":        {broken, ReasonTakenOver, nil, ErrLost, ReasonTakenOver},
		"nobody can tell":          {broken, "", broken, ErrOutcomeUnknown, ""},
		"no attempt was sent": {&coalesce.NotSentError{Err: broken}, ReasonReleased, nil, ErrLost,
			ReasonReleased},
		"the row was locked":             {sqlError("55P03"), ReasonBroken, nil, ErrLost, ReasonBroken},
		"the row was locked, no more":    {sqlError("55P03"), ReasonReleased, nil, ErrLost, ReasonReleased},
		"no attempt failed":              {nil, ReasonReleased, nil, ErrLost, ReasonReleased},
		"no attempt failed, nobody says": {nil, "", broken, ErrLost, ReasonUnknown},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			fails := 3
			s.onRelease = func(context.Context, protocol.Claim) (bool, error) {
				if fails--; fails >= 0 && tc.first != nil {
					return false, tc.first
				}
				return false, nil
			}
			s.onReason = func(protocol.Claim) (Reason, error) { return tc.reason, tc.asked }
			l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
			var lost *LostError
			if err := l.Release(t.Context()); !errors.Is(err, tc.want) || errors.As(err, &lost) != (tc.why != "") ||
				lost != nil && (lost.Reason != tc.why || lost.Token != l.Token() || !errors.Is(lost.Err, tc.asked)) {
				t.Errorf("Release: %v, want %v (%s)", err, tc.want, tc.why)
			}
			if l.Err() != ErrReleased || context.Cause(l.Context()) != ErrReleased {
				t.Errorf("Err() = %v, cause %v; want ErrReleased for ever", l.Err(), context.Cause(l.Context()))
			}
			want := error(ErrReleased)
			if tc.why != "" {
				want = ErrLost
			}
			n := s.count()
			if err := l.Release(t.Context()); !errors.Is(err, want) || s.count() != n {
				t.Errorf("second Release: %v and %d requests, want %v", err, s.count()-n, want)
			}
		}))
	}
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onRelease = func(context.Context, protocol.Claim) (bool, error) { return false, broken }
		began := time.Now()
		err := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report").Release(t.Context())
		if took := time.Since(began); !errors.Is(err, broken) || errors.Is(err, ErrLost) || took < 4*time.Second ||
			took > 6*time.Second {
			t.Errorf("an unreachable server: %v after %v", err, took)
		}
	})
}

// A lease's own calls say that the client was closed meanwhile, not what became of their statement.
func TestCheckAndRenewThatTheCloseInterruptsSaySo(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Lease) error{
		"Renew": func(ctx context.Context, l *Lease) error { return l.renew(ctx) },
		"Check": func(ctx context.Context, l *Lease) error { _, err := l.Check(ctx); return err },
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			hang := func(ctx context.Context, _ protocol.Claim) (time.Duration, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			s.onRenew, s.onCheck = hang, hang
			c := startClient(t, s, trust.SystemClock())
			l := mustAcquire(t, c, "report")
			asked := must.Go(func() error { return ask(t.Context(), l) })
			synctest.Wait()
			must.Note(t, c.Close(t.Context()))
			if err := <-asked; !errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) ||
				time.Since(s.began) != 0 {
				t.Errorf("%v after %v, want ErrClosed", err, time.Since(s.began))
			}
			if err := ask(t.Context(), l); err != ErrReleased {
				t.Errorf("after the close: %v, want ErrReleased", err)
			}
		}))
	}
}
