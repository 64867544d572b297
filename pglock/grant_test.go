package pglock

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

var errReset = errors.New("connection reset by peer")

func TestI6_LostAnswerIsAskedForAgainWithTheSameGrantID(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
			if len(s.of("acquire")) <= 3 {
				return protocol.Answer{}, errReset
			}
			return protocol.Answer{Granted: true, Token: 7, Remaining: DefaultTTL}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
		calls := s.of("acquire")
		if len(calls) != 4 {
			t.Fatalf("%d requests, want 4", len(calls))
		}
		for i, c := range calls {
			if c.grantID != l.grantID {
				t.Errorf("request %d has another grant ID than the lease", i)
			}
			if c.retry != (i > 0) {
				t.Errorf("request %d says retry %v", i, c.retry)
			}
		}
		if l.Token() != 7 {
			t.Errorf("token %d, want the one of the answer", l.Token())
		}
	})
}

func TestEachCallChoosesANewGrantID(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		a, b := mustAcquire(t, c, "report"), mustAcquire(t, c, "report")
		if a.grantID == b.grantID || a.grantID == uuid.Nil {
			t.Errorf("grant IDs %v and %v", a.grantID, b.grantID)
		}
	})
}

// The attempt whose answer was lost may still be on its way when the retry hears that somebody else holds the lock.
func TestI6_GrantIDOfARefusedRetryIsGivenUp(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			if len(s.of("acquire")) == 1 {
				return protocol.Answer{}, errReset
			}
			return protocol.Answer{Holder: "somebody", Token: 7, Remaining: DefaultTTL}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		if _, err := c.TryAcquire(t.Context(), "report"); !errors.Is(err, ErrHeld) {
			t.Errorf("%v, want ErrHeld", err)
		}
		synctest.Wait()
		if given := s.of("giveUp"); len(given) != 1 || given[0].grantID != s.of("acquire")[0].grantID ||
			!given[0].spend {
			t.Errorf("given up %+v, want the grant ID of the requests, to be spent", given)
		}
	})
}

func TestI6_OutcomeThatStaysUnknownIsReportedAndGivenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) { return protocol.Answer{}, errReset }
		c := startClient(t, s, trust.SystemClock())
		began := time.Now()
		_, err := c.TryAcquire(t.Context(), "report")
		if !errors.Is(err, ErrOutcomeUnknown) || !errors.Is(err, errReset) {
			t.Errorf("%v, want ErrOutcomeUnknown because of %v", err, errReset)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("gave up after %v, want %v", took, 10*time.Second)
		}
		synctest.Wait()
		if given := s.of("giveUp"); len(given) != 1 || given[0].grantID != s.of("acquire")[0].grantID ||
			!given[0].spend {
			t.Errorf("given back %+v, want the grant ID of the requests, to be spent", given)
		}
	})
}

func TestRequestThatReachedNoServerIsNotRepeated(t *testing.T) {
	_, refused := pgx.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if refused == nil {
		t.Fatal("somebody listens on port 1")
	}
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore()
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) { return protocol.Answer{}, refused }
		_, err := startClient(t, s, trust.SystemClock()).TryAcquire(t.Context(), "report")
		synctest.Wait()
		if !errors.Is(err, refused) || errors.Is(err, ErrOutcomeUnknown) || len(s.of("acquire")) != 1 ||
			len(s.of("giveUp")) != 0 {
			t.Errorf("%v after %d requests, %d given back", err, len(s.of("acquire")), len(s.of("giveUp")))
		}
	})
}

func TestRefusalOfTheServerIsNotRepeated(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			return protocol.Answer{}, sqlError("42501")
		}
		c := startClient(t, s, trust.SystemClock())
		for name, ask := range map[string]func(context.Context, string, ...AcquireOption) (*Lease,
			error){"TryAcquire": c.TryAcquire, "Acquire": c.Acquire} {
			before := len(s.of("acquire"))
			if _, err := ask(t.Context(), "report"); !errors.Is(err, ErrPermission) {
				t.Errorf("%s: %v, want ErrPermission", name, err)
			}
			if n := len(s.of("acquire")) - before; n != 1 {
				t.Errorf("%s: %d requests, want 1", name, n)
			}
		}
	})
}

func TestI6_SpentGrantIDIsReplaced(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
			switch len(s.of("acquire")) {
			case 1:
				return protocol.Answer{}, errReset
			case 2:
				return protocol.Answer{}, sqlError(protocol.StateSpentGrantID) // the lost grant ran out
			}
			return protocol.Answer{Granted: true, Token: 9, Remaining: DefaultTTL}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report")
		calls := s.of("acquire")
		if len(calls) != 3 || calls[2].grantID == calls[0].grantID || calls[2].grantID != l.grantID || calls[2].retry {
			t.Errorf("requests %+v, want a third with a new grant ID", calls)
		}
	})
}

func TestI7_TrustInAGrantCountsFromWhenItWasAskedFor(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			time.Sleep(5 * time.Second)
			return protocol.Answer{Granted: true, Token: 1, Remaining: 30 * time.Second}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		if got, want := time.Until(l.Deadline()), 24*time.Second; got != want {
			t.Errorf("trusted for %v after the answer, want %v", got, want)
		}
	})
}

func TestI7_TrustInAGrantDoesNotCountTheWaitForAConnection(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			time.Sleep(45 * time.Second) // of which the last five are the server's
			return protocol.Answer{Granted: true, Token: 1, Remaining: 30 * time.Second, Waited: 40 * time.Second}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		if got, want := time.Until(l.Deadline()), 24*time.Second; got != want {
			t.Errorf("trusted for %v after the answer, want %v", got, want)
		}
	})
}

func TestI7_TrustInARenewalCountsFromWhenItWasAskedFor(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		slow := func(_ context.Context, c protocol.Claim) (time.Duration, error) {
			time.Sleep(2 * time.Second)
			return s.ttl(c.GrantID), nil
		}
		s.onRenew, s.onRenewBusy = slow, slow
		s.onRenewAll = hangs
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		must.Do(t, l.renew(t.Context()))
		if got, want := time.Until(l.Deadline()), 27*time.Second; got != want {
			t.Errorf("trusted for %v after Renew, want %v", got, want)
		}

		answered := make(chan time.Time, 1)
		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				time.Sleep(3 * time.Second)
				s.onRenewAll = hangs
				answered <- time.Now()
				return s.renewed(claims), nil
			}
		})
		at := <-answered
		synctest.Wait()
		if got, want := l.Deadline().Sub(at), 26*time.Second; got != want {
			t.Errorf("trusted for %v after a heartbeat, want %v", got, want)
		}

		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				s.onRenewAll = hangs
				answered <- time.Now()
				return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: protocol.Busy}}, nil
			}
		})
		at = <-answered
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, want := l.Deadline().Sub(at), 29*time.Second; got != want {
			t.Errorf("trusted for %v from when a locked row was asked for, want %v", got, want)
		}
	})
}

func TestI7_TrustInARepeatedRequestIsNoLongerThanTheServerSaysIsLeft(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			return protocol.Answer{Granted: true, Token: 1, Remaining: 10 * time.Second}, nil
		}
		l := mustAcquire(t, startClient(t, s, trust.SystemClock()), "report", WithTTL(30*time.Second))
		if got, want := time.Until(l.Deadline()), 9500*time.Millisecond; got != want {
			t.Errorf("trusted for %v of the 10 s left, want %v", got, want)
		}
	})
}

func TestGrantThatIsAnsweredAfterItsTTLIsLostAndGivenBack(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			time.Sleep(31 * time.Second)
			return protocol.Answer{Granted: true, Token: 3, Remaining: 30 * time.Second}, nil
		}
		c := startClient(t, s, trust.SystemClock())
		l, err := c.TryAcquire(t.Context(), "report", WithTTL(30*time.Second))
		var lost *LostError
		if l != nil || !errors.As(err, &lost) || lost.Reason != ReasonExpired || lost.Token != 3 {
			t.Errorf("TryAcquire = %v, %v; want the loss of token 3", l, err)
		}
		synctest.Wait()
		if given := s.of("giveUp"); len(given) != 1 || given[0].grantID != s.of("acquire")[0].grantID ||
			given[0].spend {
			t.Errorf("given back: %+v", given)
		}
	})
}

// The call returns when its context ends. Whatever the server does for it after that is taken back: what it has
// granted, what it has queued, and what it may have done where its answer was lost.
func TestTrap9_GrantOfACancelledCallIsGivenBack(t *testing.T) {
	for name, ask := range map[string]func(*Client, context.Context) (*Lease, error){
		"TryAcquire": func(c *Client, ctx context.Context) (*Lease, error) { return c.TryAcquire(ctx, "report") },
		"Acquire":    func(c *Client, ctx context.Context) (*Lease, error) { return c.Acquire(ctx, "report") },
		"Do": func(c *Client, ctx context.Context) (*Lease, error) {
			return nil, c.Do(ctx, "report", func(context.Context, *Lease) error { return errors.New("fn ran") })
		},
	} {
		for what, late := range map[string]struct {
			a     protocol.Answer
			err   error
			given bool
			spend bool
		}{
			"granted":     {protocol.Answer{Granted: true, Token: 7, Remaining: DefaultTTL}, nil, true, false},
			"queued":      {protocol.Answer{Holder: "b", Token: 7, Ticket: 1, Place: 1}, nil, true, false},
			"lost":        {protocol.Answer{}, errReset, true, true},
			"terminated":  {protocol.Answer{}, sqlError("57P01"), true, true},
			"unconfirmed": {protocol.Answer{}, protocol.ErrUnconfirmed, true, true},
			"crashed": {protocol.Answer{}, &pgconn.PgError{SeverityUnlocalized: "PANIC", Code: "53100"},
				true, true},
			"a pooler has lost the server": {protocol.Answer{}, &pgconn.PgError{Severity: "FATAL", Code: "XX000"},
				true, true},
			"held":    {protocol.Answer{Holder: "b", Token: 7}, nil, false, false},
			"refused": {protocol.Answer{}, sqlError("42501"), false, false},
		} {
			t.Run(name+", "+what, fakeClock(func(t *testing.T, s *fakeStore) {
				s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
					time.Sleep(3 * time.Second) // the answer is on its way
					return late.a, late.err
				}
				fails := 2
				s.onGiveUp = func(ctx context.Context, _ protocol.RequestID) (protocol.TakenBack, error) {
					if fails--; fails >= 0 {
						return protocol.TakenBack{}, errReset
					}
					return protocol.TakenBack{Ended: true}, ctx.Err()
				}
				c := startClient(t, s, trust.SystemClock())
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began := time.Now()
				l, err := ask(c, ctx)
				if l != nil || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
					t.Errorf("= %v, %v after %v; want nothing when ctx ended", l, err, time.Since(began))
				}
				time.Sleep(10 * time.Second)
				given := s.of("giveUp")
				if !late.given {
					if len(given) != 0 {
						t.Errorf("given back %+v, but nothing was done", given)
					}
					return
				}
				if len(given) != 3 {
					t.Fatalf("%d attempts to give it back, want 3: two failed, one told", len(given))
				}
				for _, g := range given {
					if g.grantID != s.of("acquire")[0].grantID || g.names[0] != "report" || g.spend != late.spend {
						t.Errorf("given back %+v, want the grant that was asked for, to be spent: %v", g,
							late.spend)
					}
				}
			}))
		}
	}
}

func TestCallWhoseContextHasEndedSendsNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := c.Acquire(ctx, "report"); !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want context.Canceled", err)
		}
		if n := len(s.of("acquire")); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestGrantToAClientThatIsClosedMeanwhileIsReleased(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		c := startClient(t, s, trust.SystemClock())
		closed := make(chan error, 1)
		s.onAcquire = func(context.Context, call) (protocol.Answer, error) {
			go func() { closed <- c.Close(context.WithoutCancel(t.Context())) }()
			time.Sleep(time.Second) // Close waits for what is under way
			return protocol.Answer{Granted: true, Token: 4, Remaining: DefaultTTL}, nil
		}
		if l, err := c.TryAcquire(t.Context(), "report"); l != nil || !errors.Is(err, ErrClosed) ||
			time.Since(s.began) != 0 {
			t.Errorf("TryAcquire = %v, %v; want ErrClosed at once", l, err)
		}
		if err := <-closed; err != nil || time.Since(s.began) != time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(s.began))
		}
		if n := len(s.of("release")) + len(s.of("giveUp")); n != 1 {
			t.Errorf("the grant was given back %d times, want once", n)
		}
	})
}

// losing is a store whose answers are lost in the moment in which something else happens.
type losing struct {
	*fakeStore
	meanwhile func()
}

func (s losing) Acquire(_ context.Context, q protocol.Request) (protocol.Answer, error) {
	s.note(call{what: "acquire", names: []string{q.Name}, grantID: q.GrantID})
	s.meanwhile()
	return protocol.Answer{}, errReset
}

// The answer may be lost in the moment in which the call's context ends, or the client: what the request has done is
// taken back all the same.
func TestTrap9_AnswerThatIsLostWhenTheCallEndsIsTakenBack(t *testing.T) {
	for name, ask := range map[string]func(*Client, context.Context) error{
		"TryAcquire": func(c *Client, ctx context.Context) error { return ignoreLease(c.TryAcquire(ctx, "report")) },
		"Acquire":    func(c *Client, ctx context.Context) error { return ignoreLease(c.Acquire(ctx, "report")) },
		"a ticket of its own": func(c *Client, ctx context.Context) error {
			return ignoreLease(c.Acquire(ctx, "report", WithMetadata([]byte("{}"))))
		},
	} {
		for what, want := range map[string]error{"cancelled": context.Canceled, "closed": ErrClosed} {
			t.Run(name+", "+what, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					s := losing{fakeStore: newFakeStore()}
					var c *Client
					closed := make(chan error, 1)
					s.meanwhile = func() {
						if what == "cancelled" {
							cancel()
							return
						}
						go func() { closed <- c.Close(ctx) }()
						<-c.ctx.Done()
					}
					c = startClient(t, &s, trust.SystemClock())
					if err := ask(c, ctx); !errors.Is(err, want) {
						t.Errorf("%v, want %v", err, want)
					}
					if what == "closed" {
						must.Note(t, <-closed)
					}
					synctest.Wait()
					if given := s.of("giveUp"); len(given) != 1 || given[0].grantID != s.of("acquire")[0].grantID ||
						!given[0].spend {
						t.Errorf("given back %+v, want the request that was sent, to be spent", given)
					}
				})
			})
		}
	}
}

// Close in any moment of a call: when both have returned, nobody holds the lock or waits for it.
func TestTrap9_CloseAgainstACallLeavesNothingBehind(t *testing.T) {
	for name, ask := range map[string]func(context.Context, *Client) error{
		"TryAcquire": func(ctx context.Context, c *Client) error { return ignoreLease(c.TryAcquire(ctx, "report")) },
		"Acquire":    func(ctx context.Context, c *Client) error { return ignoreLease(c.Acquire(ctx, "report")) },
		"Release": func(ctx context.Context, c *Client) error {
			l, err := c.TryAcquire(ctx, "report")
			if err == nil {
				err = l.Release(ctx)
			}
			return err
		},
	} {
		for what, fault := range map[string]func(what string, done bool) error{
			"answered": nil,
			"lost": func(what string, done bool) error {
				if what == "acquire" && done {
					return errReset
				}
				return nil
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				granted := 0
				for round := range 300 {
					synctest.Test(t, func(t *testing.T) {
						s := newFakeServer()
						s.fault = fault
						c := s.client(t)
						called := must.Go(func() error { return ask(t.Context(), c) })
						time.Sleep(time.Duration(round%6) * time.Millisecond) // a trip takes one
						for range round / 6 {
							runtime.Gosched()
						}
						must.Note(t, c.Close(t.Context()))
						err := <-called
						if err == nil {
							granted++
						} else if !errors.Is(err, ErrClosed) && !errors.Is(err, ErrReleased) {
							t.Error(err)
						}
						if s.holds("report") || s.queued("report") != 0 {
							t.Errorf("round %d: after Close, and %v: held: %v, %d tickets", round, err,
								s.holds("report"), s.queued("report"))
						}
					})
					if t.Failed() {
						return
					}
				}
				t.Logf("%d calls came before Close", granted)
			})
		}
	}
}

func ignoreLease(_ *Lease, err error) error { return err }
