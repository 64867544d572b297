package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/takeback"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestCloseReleasesAllLeasesInOneStatement(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		var leases []*Lease
		for i := range 100 {
			leases = append(leases, mustAcquire(t, c, fmt.Sprintf("report %d", i)))
		}
		synctest.Wait() // the heartbeat knows of them
		must.Do(t, c.Close(t.Context()))
		all := s.of("releaseAll")
		if len(all) != 1 || len(all[0].names) != 100 || len(s.of("release")) != 0 {
			t.Errorf("%d statements for many leases and %d for single ones, want one for all", len(all),
				len(s.of("release")))
		}
		for _, l := range leases {
			if l.Err() != ErrReleased || context.Cause(l.Context()) != ErrReleased {
				t.Errorf("%v: Err() = %v, cause %v; want ErrReleased", l, l.Err(), context.Cause(l.Context()))
			}
		}
		if n := len(s.of("rest")); n != 1 {
			t.Errorf("the heartbeat's connection was closed %d times, want once", n)
		}
	})
}

func TestCloseLeavesLostAndReleasedLeasesAlone(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onRenewAll = hangs
		c := startClient(t, s, trust.SystemClock())
		released, lost, held := mustAcquire(t, c, "released"), mustAcquire(t, c, "lost",
			WithTTL(time.Second)), mustAcquire(t, c, "held")
		must.Do(t, released.Release(t.Context()))
		<-lost.Context().Done()
		must.Do(t, c.Close(t.Context()))
		if all := s.of("releaseAll"); len(all) != 1 || len(all[0].names) != 1 || all[0].names[0] != held.Name() {
			t.Errorf("released at the close: %v, want %q alone", all, held.Name())
		}
		if !errors.Is(lost.Err(), ErrLost) {
			t.Errorf("the lost lease: %v", lost.Err())
		}
	})
}

// A look that the server still works on would make the session known again.
func TestCloseEndsTheSessionWhenTheLastLookIsAnswered(t *testing.T) {
	for name, hung := range map[string]bool{"answered": false, "silent": true} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			q := queued(s, time.Hour)
			looked := 0
			s.onLook = func(ctx context.Context, nested []int64) (map[int64]protocol.Sighting, error) {
				defer s.set(func() { looked = len(s.calls) })
				if hung {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				time.Sleep(200 * time.Millisecond)
				return q.look(ctx, nested)
			}
			c := startClient(t, s, trust.SystemClock())
			waiting(t.Context(), t, c, "report")
			for len(s.of("look")) == 0 {
				time.Sleep(time.Millisecond)
			}
			began := time.Now()
			if err := c.Close(t.Context()); err != nil || time.Since(began) > landing {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			s.set(func() {
				if last := s.calls[len(s.calls)-2]; last.what != "endSession" || looked == 0 ||
					looked >= len(s.calls)-1 {
					t.Errorf("the look came back after %d of %d calls, the last but one is %s", looked,
						len(s.calls), last.what)
				}
			})
		}))
	}
}

func TestCloseEndsNoSessionThatNobodyKnows(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
		for range c.Watch(t.Context(), "report") {
			break
		}
		if err := c.Close(t.Context()); err != nil || len(s.of("endSession")) != 0 {
			t.Errorf("%v after %d requests to end the session", err, len(s.of("endSession")))
		}
	})
}

func TestCloseWithoutLeasesSendsNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		if err := startClient(t, s, trust.SystemClock()).Close(t.Context()); err != nil ||
			len(s.of("releaseAll")) != 0 {
			t.Errorf("Close = %v with %d requests", err, len(s.of("releaseAll")))
		}
	})
}

func TestCloseEndsWaitingCallsWithErrClosed(t *testing.T) {
	for name, onAcquire := range map[string]func(context.Context, call) (protocol.Answer, error){
		"in the queue": nil,
		"while the server hangs": func(ctx context.Context, _ call) (protocol.Answer, error) {
			<-ctx.Done()
			return protocol.Answer{}, ctx.Err()
		},
		"while it is in doubt": func(context.Context, call) (protocol.Answer, error) {
			return protocol.Answer{}, errReset
		},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			if queued(s, time.Hour); onAcquire != nil {
				s.onAcquire = onAcquire
			}
			c := startClient(t, s, trust.SystemClock())
			type result struct {
				l   *Lease
				err error
			}
			results := make(chan result, 2)
			go func() {
				l, err := c.Acquire(t.Context(), "report")
				results <- result{l, err}
			}()
			pgtest.Group(t).Go(func() {
				err := c.Do(t.Context(), "report", func(context.Context, *Lease) error {
					t.Error("fn ran")
					return nil
				})
				results <- result{nil, err}
			})
			time.Sleep(1234 * time.Millisecond)
			must.Do(t, c.Close(t.Context()))
			closed := time.Now()
			for range 2 {
				select {
				case r := <-results:
					if r.l != nil || !errors.Is(r.err, ErrClosed) {
						t.Errorf("a waiting call returned %v, %v; want ErrClosed", r.l, r.err)
					}
				case <-time.After(5 * time.Second):
					t.Fatal("a call still waits after Close")
				}
			}
			if late := time.Since(closed); late > 300*time.Millisecond {
				t.Errorf("waiting calls returned %v after Close", late)
			}
		}))
	}
}

func TestSecondAndConcurrentCloseDoNothingMore(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(context.Context, []protocol.Claim) error { time.Sleep(time.Second); return nil }
		s.onRenewAll = hangs
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "report", WithTTL(3*time.Second))
		time.Sleep(1500 * time.Millisecond) // a renewal hangs
		closing := pgtest.Group(t)
		for range 10 {
			closing.Go(func() {
				must.Note(t, c.Close(t.Context()))
			})
		}
		closing.Wait()
		must.Note(t, c.Close(t.Context()))
		if n := len(s.of("releaseAll")); n != 1 {
			t.Errorf("%d releases, want one", n)
		}
	})
}

func TestCloseThatReachesNoServerSaysSoAndJoinsEverything(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error { <-ctx.Done(); return ctx.Err() }
		c := startClient(t, s, trust.SystemClock())
		l := mustAcquire(t, c, "report")
		began := time.Now()
		err := c.Close(t.Context())
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("Close = %v after %v, want a timeout after %v", err, time.Since(began), 5*time.Second)
		}
		if l.Err() != ErrReleased {
			t.Errorf("the lease: %v", l.Err())
		}
	})
}

// partings are contexts for the last statement to a server that does not answer, and how long the call waits for it.
var partings = map[string]struct {
	make  func(ctx context.Context) (context.Context, context.CancelFunc)
	lasts time.Duration
	want  error
}{
	"without a deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
		return ctx, func() {}
	}, 5 * time.Second, context.DeadlineExceeded},
	"ended before": {func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		return ctx, cancel
	}, 5 * time.Second, context.DeadlineExceeded},
	"with an earlier deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, time.Second)
	}, time.Second, context.DeadlineExceeded},
	"with a later deadline": {func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, 20*time.Second)
	}, 20 * time.Second, context.DeadlineExceeded},
	"cancelled meanwhile": {func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(2*time.Second, cancel)
		return ctx, cancel
	}, 2 * time.Second, context.Canceled},
}

func TestCloseWaitsForAServerAsLongAsItsContextAllows(t *testing.T) {
	for name, tc := range partings {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error { <-ctx.Done(); return ctx.Err() }
			c := startClient(t, s, trust.SystemClock())
			mustAcquire(t, c, "report")
			ctx, cancel := tc.make(t.Context())
			defer cancel()
			began := time.Now()
			second := make(chan error, 1)
			time.AfterFunc(time.Millisecond, func() {
				brief, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
				defer cancel()
				second <- c.Close(brief)
			})
			if err := c.Close(ctx); !errors.Is(err, tc.want) || time.Since(began) != tc.lasts {
				t.Errorf("Close = %v after %v, want %v after %v", err, time.Since(began), tc.want, tc.lasts)
			}
			if err := <-second; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a second Close with less time: %v, want the end of its own context", err)
			}
			if n := len(s.of("releaseAll")); n == 0 {
				t.Error("nothing was sent")
			}
		}))
	}
}

// resetStore loses the connection whenever a lease is to end.
type resetStore struct{ *fakeStore }

func (resetStore) HandOver(context.Context, protocol.Claim, string, bool) (protocol.Succession, error) {
	return protocol.Succession{}, errReset
}

// Whoever tries again and again until its context ends says that, and not only what became of the last connection.
func TestWhatIsTriedUntilItsContextEndsSaysSo(t *testing.T) {
	release := func(ctx context.Context, _ *Client, l *Lease) error { return l.Release(ctx) }
	for name, call := range map[string]func(context.Context, *Client, *Lease) error{
		"Release":                  release,
		"Release, once it is gone": release,
		"Close":                    func(ctx context.Context, c *Client, _ *Lease) error { return c.Close(ctx) },
		"HandOver": func(ctx context.Context, _ *Client, l *Lease) error {
			return l.HandOver(ctx, "next")
		},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRelease = func(context.Context, protocol.Claim) (bool, error) {
				if strings.Contains(name, "gone") && len(s.of("release")) > 1 {
					return false, nil
				}
				return false, errReset
			}
			s.onReleaseAll = func(context.Context, []protocol.Claim) error { return errReset }
			s.onCheck = func(context.Context, protocol.Claim) (time.Duration, error) { return 0, errReset }
			c := startClient(t, resetStore{s}, trust.SystemClock())
			l := mustAcquire(t, c, "report")
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := call(ctx, c, l); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errReset) {
				t.Errorf("%v: the end of the context is %v and the last failure is %v, want both", err,
					errors.Is(err, context.DeadlineExceeded), errors.Is(err, errReset))
			}
		}))
	}
}

// A release that the server did not confirm in time goes on in the background.
func TestReleaseWaitsForAServerAsLongAsItsContextAllows(t *testing.T) {
	for name, tc := range partings {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			s.onRelease = func(ctx context.Context, _ protocol.Claim) (bool, error) {
				<-ctx.Done()
				return false, ctx.Err()
			}
			c := startClient(t, s, trust.SystemClock())
			l, brief := mustAcquire(t, c, "report"), mustAcquire(t, c, "brief", WithTTL(500*time.Millisecond))
			ctx, cancel := tc.make(t.Context())
			defer cancel()
			began := time.Now()
			briefly := make(chan error, 1)
			pgtest.Group(t).Go(func() {
				err := brief.Release(ctx)
				if time.Since(began) != brief.TTL() {
					t.Errorf("a brief lease was given up after %v, want the end of its TTL", time.Since(began))
				}
				briefly <- err
			})
			if err := l.Release(ctx); !errors.Is(err, tc.want) || time.Since(began) != tc.lasts {
				t.Errorf("Release = %v after %v, want %v after %v", err, time.Since(began), tc.want, tc.lasts)
			}
			if l.Err() != ErrReleased {
				t.Errorf("the lease: %v", l.Err())
			}
			if err := <-briefly; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a brief lease: %v", err)
			}
			time.Sleep(time.Second)
			if got := slices.Sorted(slices.Values(s.takenBack())); !slices.Equal(got, []string{"brief", "report"}) {
				t.Errorf("taken back: %q, want both", got)
			}
		}))
	}
}

func TestClosedClientRefusesToLock(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		must.Do(t, c.Close(t.Context()))
		_, try := c.TryAcquire(t.Context(), "report")
		_, acquire := c.Acquire(t.Context(), "report")
		_, all := c.AcquireAll(t.Context(), []string{"report", "other"})
		watch := (<-watching(t.Context(), c)).err
		do := c.Do(t.Context(), "report", func(context.Context, *Lease) error { return nil })
		for name, err := range map[string]error{"TryAcquire": try, "Acquire": acquire, "AcquireAll": all,
			"Watch": watch, "Do": do} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v, want ErrClosed", name, err)
			}
		}
		if n := len(s.of("acquire")) + len(s.of("watch")) + len(s.of("listen")); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// However often a server that is away has refused, Close asks again for as long as its context allows.
func TestCloseOutlastsManyRefusals(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(ctx context.Context, _ []protocol.Claim) error {
			if time.Since(s.began) < 4*time.Second {
				return errReset
			}
			return ctx.Err()
		}
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "report")
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("Close: %v after %d attempts", err, len(s.of("releaseAll")))
		}
	})
}

// A wait that stands while a lease is released could be granted that lock, for nobody.
func TestCloseReleasesNothingBeforeItsWaitsAreTakenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		id, _ := waiting(t.Context(), t, c, "report")
		s.set(func() { s.onAcquire = nil })
		mustAcquire(t, c, "held")
		back := time.Now().Add(time.Second)
		s.set(func() {
			s.onGiveUp = func(ctx context.Context, r protocol.RequestID) (protocol.TakenBack, error) {
				if time.Now().Before(back) {
					return protocol.TakenBack{}, errReset
				}
				return q.giveUp(ctx, r)
			}
			s.onReleaseAll = func(context.Context, []protocol.Claim) error {
				if q.queues(id) {
					t.Error("a lease is released while a wait of the client stands")
				}
				return nil
			}
		})
		if err := c.Close(t.Context()); err != nil || len(s.of("releaseAll")) != 1 {
			t.Errorf("Close: %v after %d releases", err, len(s.of("releaseAll")))
		}
	})
}

// Each refusal of a standby costs a connection, so one answers for all that is left to say.
func TestCloseAsksAStandbyOnceForAllLeases(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(context.Context, []protocol.Claim) error { return sqlError("25006") }
		c := startClient(t, s, trust.SystemClock())
		for i := range 3 * takeback.Most {
			mustAcquire(t, c, fmt.Sprint("report ", i))
		}
		err := c.Close(t.Context())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint(3*takeback.Most, " leases")) {
			t.Errorf("Close: %v, want that no lease could be released", err)
		}
		if n, most := len(s.of("releaseAll")), int(parting/standbyAgain)+1; n > most {
			t.Errorf("%d requests to a standby, want %d at most", n, most)
		}
	})
}
