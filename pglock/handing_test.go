package pglock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

// handing holds the lock in one client, while b and c wait for it in two others.
func handing(t *testing.T) (s *fakeServer, held *Lease, b, c chan acquired) {
	t.Helper()
	s = newFakeServer()
	held = mustAcquire(t, s.client(t), "report", WithTTL(6*time.Second))
	b = lined(t.Context(), s.client(t), WithHolder("b"))
	c = lined(t.Context(), s.client(t), WithHolder("c"))
	return s, held, b, c
}

// A renewal finds that the lock was handed over before the answer to that has come: the lease is released, and not
// lost.
func TestHandOverThatARenewalOvertakesIsARelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, held, _, c := handing(t)
		s.set(func() {
			s.fault = func(what string, done bool) error {
				if what == "handOver" && done {
					time.Sleep(5 * time.Second) // its answer takes longer than the time to the next renewal
				}
				return nil
			}
		})
		began := time.Now()
		must.Do(t, held.HandOver(t.Context(), "c"))
		took := time.Since(began)
		if err := held.Err(); err != ErrReleased || context.Cause(held.Context()) != ErrReleased {
			t.Errorf("%v, %v after %v", err, context.Cause(held.Context()), took)
		}
		served(t, c)
	})
}

// The same after the epoch has changed: then the server does not know what has become of the grant. The answer to the
// hand-over tells, or nothing does.
func TestHandOverThatARenewalWithoutAReasonOvertakesIsARelease(t *testing.T) {
	for name, want := range map[string]error{"its answer comes": ErrReleased, "its answer is lost": ErrLost,
		"its answer is late": ErrLost} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, _, c := handing(t)
				first, lost := true, name == "its answer is lost"
				s.set(func() {
					s.fault = func(what string, done bool) error {
						if what != "handOver" || !done || !first {
							return nil
						}
						first = false
						s.locked(func() { s.ended[held.grantID] = ReasonUnknown })
						time.Sleep(2100 * time.Millisecond) // longer than the time to the next renewal
						if _, err := held.Check(t.Context()); !errors.Is(err, ErrLost) || held.Err() != nil {
							t.Errorf("Check: %v; the lease: %v", err, held.Err())
						}
						if name == "its answer is late" {
							<-held.Context().Done()
							time.Sleep(time.Second)
						}
						if lost {
							return errReset
						}
						return nil
					}
				})
				err := held.HandOver(t.Context(), "c")
				if (err != nil) != lost || !errors.Is(err, ErrOutcomeUnknown) && err != nil {
					t.Errorf("HandOver: %v", err)
				}
				if !errors.Is(held.Err(), want) || context.Cause(held.Context()) != held.Err() {
					t.Errorf("%v, %v, want %v", held.Err(), context.Cause(held.Context()), want)
				}
				var loss *LostError
				if errors.As(held.Err(), &loss) && loss.Reason != ReasonUnknown {
					t.Errorf("the lease: %v, want that nobody knows why", loss)
				}
				served(t, c)
			})
		})
	}
}

// The server is away from one moment on. What has become of the lock is told by the next renewal.
func TestHandOverOfUnknownOutcomeIsSettledByTheNextRenewal(t *testing.T) {
	for name, done := range map[string]bool{"it was handed over": true, "it was not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, b, c := handing(t)
				s.set(func() {
					first := true
					s.fault = func(what string, after bool) error {
						if what == "handOver" && (after == done || !first) {
							first = false
							return errReset
						}
						return nil
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := held.HandOver(ctx, "c"); !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrLost) {
					t.Fatalf("HandOver: %v", err)
				}
				time.Sleep(3 * time.Second)
				if !done {
					still(t, c)
					if err := held.Err(); err != nil {
						t.Errorf("the lease that goes on: %v", err)
					}
					must.Do(t, held.Release(t.Context()))
					served(t, b)
					return
				}
				if err := held.Err(); err != ErrReleased {
					t.Errorf("the lease that was handed over: %v", err)
				}
				still(t, b)
				served(t, c)
			})
		})
	}
}

// The lease that ends so may have been granted to a second attempt: the first is refused when it arrives.
func TestI6_HandOverThatARenewalTellsSpendsWhatMayBeUnderWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		asks := 0
		s.fault = func(what string, after bool) error {
			if what == "acquire" && !after {
				if asks++; asks == 1 {
					return errReset
				}
			}
			if what == "handOver" && after {
				return errReset
			}
			return nil
		}
		held := mustAcquire(t, s.client(t), "report", WithTTL(6*time.Second))
		c := lined(t.Context(), s.client(t), WithHolder("c"))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := held.HandOver(ctx, "c"); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		<-held.Context().Done()
		served(t, c)
		time.Sleep(time.Second)
		s.locked(func() {
			if held.Err() != ErrReleased || !s.spent[held.grantID] {
				t.Errorf("%v; the grant ID is spent: %v", held.Err(), s.spent[held.grantID])
			}
		})
	})
}

// The answer is lost in a failover. The new leader knows nothing of the lease any more: it may be our own doing.
func TestI17_AnEndWhoseAnswerAFailoverLostIsOfUnknownOutcome(t *testing.T) {
	for what, end := range map[string]func(*Lease, context.Context) error{
		"release":  (*Lease).Release,
		"handOver": func(l *Lease, ctx context.Context) error { return l.HandOver(ctx, "c") },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, _, _ := handing(t)
				first := true
				s.set(func() {
					s.fault = func(did string, after bool) error {
						if did != what || !after || !first {
							return nil
						}
						first = false
						s.locked(func() { s.ended[held.grantID] = ReasonUnknown })
						return errReset
					}
				})
				if err := end(held, t.Context()); !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, ErrLost) {
					t.Errorf("%v, want ErrOutcomeUnknown, as a loss", err)
				}
			})
		})
	}
}

// The statement of a call that has left goes on. Whoever gets the lock from it hears of that.
func TestAHandOverWhoseCallHasLeftIsAnnounced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, held, _, _ := handing(t)
		handedLate := hook(s.fakeStore, &s.handedLate)
		late := protocol.Succession{Outcome: protocol.HandedOver, Handed: protocol.Handed{Slots: []int{0}}}
		handedLate(protocol.Bequest{Claim: held.claim(), To: "c"}, late, nil)
		wantAnnounced(t, s)
	})
}

// The answer that says whom the lock was given to is lost, and the next attempt finds only that the lease has ended.
func TestWhoeverGetsALockByAnAnswerThatIsLostHearsOfIt(t *testing.T) {
	for what, end := range map[string]func(*Lease, context.Context) error{
		"release":    (*Lease).Release,
		"handOver":   func(l *Lease, ctx context.Context) error { return l.HandOver(ctx, "c") },
		"releaseAll": func(l *Lease, ctx context.Context) error { return l.client.Close(ctx) },
		"giveUp": func(l *Lease, _ context.Context) error {
			<-l.client.takeBack(protocol.RequestID{Name: l.name, GrantID: l.grantID}, false, l.ttl).Done
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, _, _ := handing(t)
				first := true
				s.set(func() {
					s.fault = func(did string, after bool) error {
						if did != what || !after || !first {
							return nil
						}
						first = false
						return errReset
					}
				})
				must.Note(t, end(held, t.Context()))
				synctest.Wait()
				wantAnnounced(t, s)
			})
		})
	}
}

// The same for a call that has left: nobody repeats a hand-over, and the release of a call that has left is taken back.
func TestWhoeverGetsALockByALateAnswerThatIsLostHearsOfIt(t *testing.T) {
	for what, ends := range map[string]func(s *fakeServer, c protocol.Claim, err error){
		"release": func(s *fakeServer, c protocol.Claim, err error) {
			hook(s.fakeStore, &s.endedLate)(c, protocol.Ending{}, err)
		},
		"handOver": func(s *fakeServer, c protocol.Claim, err error) {
			hook(s.fakeStore, &s.handedLate)(protocol.Bequest{Claim: c, To: "c"}, protocol.Succession{}, err)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, _, _ := handing(t)
				ends(s, held.claim(), &pgconn.PgError{Code: "55P03"}) // it was refused: nobody got anything
				ends(s, held.claim(), errReset)
				wantAnnounced(t, s)
			})
		})
	}
}

// The server refuses the release of one lease, and the answer for the other is lost in the same attempt.
func TestCloseAnnouncesWhatWasLostBesideARefusal(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "locked")
		mustAcquire(t, c, "report")
		attempts := make(map[string]int)
		s.set(func() {
			s.onReleaseAll = func(_ context.Context, claims []protocol.Claim) error {
				key := strings.Join(namesOf(claims), "+")
				attempts[key]++
				switch {
				case attempts[key] > 1:
					return nil
				case key == "report":
					return errReset
				}
				return &pgconn.PgError{Code: "55P03"}
			}
		})
		must.Note(t, c.Close(t.Context()))
		if told := s.of("announce"); len(told) != 1 || !slices.Contains(told[0].names, "report") {
			t.Errorf("%+v, want an announcement of the lease whose answer was lost", told)
		}
	})
}

// wantAnnounced checks that the holder of the lock was announced, once.
func wantAnnounced(t *testing.T, s *fakeServer) {
	t.Helper()
	told := s.of("announce")
	if len(told) != 1 || !slices.Equal(told[0].names, []string{"report"}) || len(told[0].slots) != 1 ||
		told[0].slots[0] == nil || *told[0].slots[0] != 0 {
		t.Errorf("%+v, want one announcement", told)
	}
}

// An attempt that got no answer may still be on its way when the next one finds nobody: somebody may queue before it.
func TestI17_HandOverThatFindsNobodyAfterAnAttemptWithoutAnAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, held, _, _ := handing(t)
		first := true
		s.set(func() {
			s.fault = func(what string, after bool) error {
				if what == "handOver" && !after && first {
					first = false
					return errReset
				}
				return nil
			}
		})
		err := held.HandOver(t.Context(), "nobody")
		if !errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNoWaiter) {
			t.Errorf("%v, want ErrOutcomeUnknown", err)
		}
		if !held.Valid() {
			t.Error(held.Err())
		}
	})
}

// An attempt got no answer, and the next one finds that the lease was released: perhaps by Release or Close, which came
// in between, so that the lock has gone to the first in the queue.
func TestI17_HandOverBesideAnotherEndOfTheLeaseIsUnknown(t *testing.T) {
	for what, end := range map[string]func(*Lease, context.Context) error{
		"Release": (*Lease).Release,
		"Close":   func(l *Lease, ctx context.Context) error { return l.client.Close(ctx) },
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, b, c := handing(t)
				ended := make(chan error, 1)
				first := true
				s.set(func() {
					s.fault = func(what string, after bool) error {
						if what == "handOver" && !after && first {
							first = false
							go func() { ended <- end(held, t.Context()) }()
							return errReset
						}
						return nil
					}
				})
				if err := held.HandOver(t.Context(), "c"); !errors.Is(err, ErrOutcomeUnknown) {
					t.Errorf("%v, want ErrOutcomeUnknown", err)
				}
				served(t, b)
				still(t, c)
				must.Note(t, <-ended)
			})
		})
	}
}

// The request of an earlier call may still arrive when a later one finds nobody, or may have ended the lease.
func TestI17_HandOverAfterOneOfUnknownOutcomeKnowsOfIt(t *testing.T) {
	for name, done := range map[string]bool{"its request is on its way": false, "its request has arrived": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, held, b, c := handing(t)
				first := true
				s.set(func() {
					s.fault = func(what string, after bool) error {
						if what == "handOver" && after == done && first {
							first = false
							return errReset
						}
						return nil
					}
				})
				brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				if err := held.HandOver(brief, "c"); !errors.Is(err, ErrOutcomeUnknown) {
					t.Fatal(err)
				}
				err := held.HandOver(t.Context(), "nobody")
				if done && (!errors.Is(err, ErrReleased) || errors.Is(err, ErrLost)) {
					t.Errorf("%v, want ErrReleased", err)
				} else if !done && (!errors.Is(err, ErrOutcomeUnknown) || errors.Is(err, ErrNoWaiter)) {
					t.Errorf("%v, want ErrOutcomeUnknown", err)
				}
				if !done {
					if _, err := s.HandOver(t.Context(), held.claim(), "c", false); err != nil { // it arrives
						t.Fatal(err)
					}
				}
				<-held.Context().Done()
				if err := held.Err(); err != ErrReleased {
					t.Errorf("the lease that was handed over: %v", err)
				}
				still(t, b)
				if done {
					served(t, c)
				}
			})
		})
	}
}

// Whoever releases before that is told finds the lease gone, and asks until the server says why.
func TestReleaseAfterAHandOverOfUnknownOutcomeIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, held, b, c := handing(t)
		checks := 0
		s.set(func() {
			s.fault = func(what string, after bool) error {
				if what == "handOver" && after {
					return errReset
				}
				if what == "check" && after {
					if checks++; checks == 1 {
						return errReset
					}
				}
				return nil
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := held.HandOver(ctx, "c"); !errors.Is(err, ErrOutcomeUnknown) {
			t.Fatalf("HandOver: %v", err)
		}
		if err := held.Release(t.Context()); err != nil || checks != 2 {
			t.Errorf("Release: %v after %d questions", err, checks)
		}
		still(t, b)
		served(t, c)
	})
}

// After a hand-over that found nobody the lease is as it was: a loss is one.
func TestHandOverToNobodyHidesNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, held, _, _ := handing(t)
		if err := held.HandOver(t.Context(), "nobody"); !errors.Is(err, ErrNoWaiter) {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if !held.Valid() {
			t.Fatal(held.Err())
		}
		s.locked(func() { s.over(s.row("report"), ReasonReleased, held.client.session) }) // whoever was given the grant
		<-held.Context().Done()
		var lost *LostError
		if !errors.As(held.Err(), &lost) || lost.Reason != ReasonReleased {
			t.Errorf("%v", held.Err())
		}
		if err := held.HandOver(t.Context(), "c"); !errors.Is(err, ErrLost) {
			t.Errorf("of a lease that was lost: %v", err)
		}
	})
}

// The calls that a hand-over passes over keep their places, also those of the holder's own client.
func TestHandOverPassesOverCallsOfTheHoldersClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		now := mustAcquire(t, c, "report")
		waiting := []chan acquired{lined(t.Context(), c), lined(t.Context(), c)}
		named := lined(t.Context(), s.client(t), WithHolder("named"))
		if err := now.HandOver(t.Context(), "nobody"); !errors.Is(err, ErrNoWaiter) || !now.Valid() {
			t.Fatalf("%v, %v", err, now.Err())
		}
		must.Do(t, now.HandOver(t.Context(), "named"))
		still(t, waiting[0])
		next := served(t, named)
		must.Do(t, next.Release(t.Context()))
		serveAll(t, waiting)
		s.wantEmpty(t, "report", c)
	})
}

// A lease is released while it is being handed over: the waiter that was named has the lock, and the release takes
// nothing from it.
func TestReleaseDuringAHandOverTakesNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFakeServer()
		c := s.client(t)
		now := mustAcquire(t, c, "report")
		waiting := []chan acquired{lined(t.Context(), c), lined(t.Context(), c)}
		named := lined(t.Context(), s.client(t), WithHolder("named"))
		s.locked(func() { s.trip = 5 * time.Millisecond })
		handed := must.Go(func() error { return now.HandOver(t.Context(), "named") })
		time.Sleep(7 * time.Millisecond) // the server has done it, and its answer is on its way
		released := now.Release(t.Context())
		next := served(t, named)
		still(t, waiting[0])
		if err := <-handed; err != nil {
			t.Errorf("HandOver: %v, Release: %v", err, released)
		}
		must.Do(t, next.Release(t.Context()))
		serveAll(t, waiting)
		s.wantEmpty(t, "report", c)
	})
}

func TestHandOverOnAClosedClientSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, held, b, _ := handing(t)
		must.Do(t, held.client.Close(t.Context()))
		if err := held.HandOver(t.Context(), "c"); !errors.Is(err, ErrReleased) {
			t.Errorf("HandOver: %v", err)
		}
		if err := held.canHandOver(t.Context(), "c"); err != ErrReleased {
			t.Errorf("CanHandOver: %v", err)
		}
		served(t, b)
	})
}
