package pglock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/trust"
)

// What package listener promises.
const (
	probes     = "pglock_probe"
	probeEvery = 30 * time.Second
	probeWait  = 3 * time.Second
	firstRetry = 50 * time.Millisecond
	soonRetry  = 500 * time.Millisecond
	soonPart   = 16
	lastRetry  = time.Minute
)

func TestClientCountsOnHintsOnlyAfterItHasHeardItsOwnProbe(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		e := hearing(s)
		s.onNotify = nil // it is sent, and does not come
		c := startClient(t, s, trust.SystemClock())
		waiting(t.Context(), t, c, "report")
		time.Sleep(time.Second)
		probe := s.of("notify")
		if len(probe) != 1 || probe[0].names[0] != probes || len(e.listens()) != 2 ||
			!slices.Contains(e.listens(), probes) || !slices.Contains(e.listens(), c.channel()) {
			t.Fatalf("probes %+v on %v, want one, and to hear it and the client's own channel", probe, e.listens())
		}
		for _, other := range [][2]string{{probes, c.channel() + " 1"}, {probes, "x"}, {c.channel(), "x"},
			{c.channel(), probe[0].names[1]}, {"elsewhere", probe[0].names[1]}} {
			e.said <- other
			synctest.Wait()
			if hears(c) {
				t.Errorf("it counts on hints after %q", other)
			}
		}
		before := len(s.of("look"))
		e.said <- [2]string{probes, probe[0].names[1]}
		synctest.Wait()
		if !hears(c) || len(s.of("look")) != before+1 {
			t.Errorf("it hears: %v, with %d looks at that moment; want one, for what was told before", hears(c),
				len(s.of("look"))-before)
		}
	})
}

func TestListenerProvesEveryHalfMinuteThatItHears(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		hearing(s)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(10*time.Minute + time.Second)
		if n := len(s.of("notify")); n < 21 || n > 41 || len(s.of("listen")) != 1 || !hears(c) {
			t.Errorf("%d probes on %d connections, hears: %v; want 21 to 41 on one", n, len(s.of("listen")), hears(c))
		}
		s.set(func() { s.onNotify = nil }) // the line has died, and nobody says so
		time.Sleep(probeEvery + probeWait)
		synctest.Wait()
		if hears(c) {
			t.Error("it still counts on hints")
		}
		q.grant(id, DefaultTTL)
		granted := time.Now()
		mustGet(t, result)
		if late := time.Since(granted); late > lastLook {
			t.Errorf("found %v after the grant", late)
		}
	})
}

// One that cannot connect, as after a failover, lets no more time pass than a part of that for which it was deaf.
func TestConnectionThatHearsNothingIsReplacedLessAndLessOften(t *testing.T) {
	for name, tc := range map[string]struct {
		listen func(s *fakeStore) func(context.Context) (listener.Conn, error)
		life   time.Duration // of one connection
		atMost int           // in an hour
	}{
		"deaf": {func(*fakeStore) func(context.Context) (listener.Conn, error) { return nil }, probeWait, 140},
		"refused": {func(*fakeStore) func(context.Context) (listener.Conn, error) {
			return func(context.Context) (listener.Conn, error) { return nil, errReset }
		}, 0, 200},
		"hangs": {func(*fakeStore) func(context.Context) (listener.Conn, error) {
			return func(ctx context.Context) (listener.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		}, patience, 130},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			queued(s, 24*time.Hour)
			s.onListen = tc.listen(s)
			_, result := waiting(t.Context(), t, startClient(t, s, trust.SystemClock()), "report")
			time.Sleep(time.Hour)
			still(t, result)
			tries := s.of("listen")
			if len(tries) < 30 || len(tries) > tc.atMost {
				t.Errorf("%d connections in an hour, want 30 to %d", len(tries), tc.atMost)
			}
			planned := firstRetry
			for i, try := range tries[1:] {
				if gap := try.at - tries[i].at - tc.life; gap < planned/2-time.Millisecond || gap > planned*3/2+
					time.Millisecond {
					t.Errorf("connection %d came %v after the end of the one before, want %v, half more or less", i+
						1, gap, planned)
				}
				planned = min(2*planned, lastRetry)
				if name != "deaf" {
					planned = min(planned, max(soonRetry, (try.at-tries[0].at-tc.life)/soonPart))
				}
			}
			if n := len(s.of("look")); n < 3500 {
				t.Errorf("%d looks in that hour, want one a second", n)
			}
		}))
	}
}

func TestI8_DroppedConnectionIsReplacedAndTheTablesAreLookedAtAtOnce(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		first := hearing(s)
		c := startClient(t, s, trust.SystemClock())
		id, result := waiting(t.Context(), t, c, "report")
		time.Sleep(10 * time.Second)
		second := hearing(s)
		looks := len(s.of("look"))
		q.grant(id, DefaultTTL) // its hint was lost with the connection
		dropped := time.Now()
		close(first.said)
		mustGet(t, result)
		if late := time.Since(dropped); late != 0 || len(s.of("look")) != looks+1 {
			t.Errorf("found %v after the connection dropped with %d looks, want at once with one", late,
				len(s.of("look"))-looks)
		}
		if !first.isClosed() {
			t.Error("the connection was not closed")
		}
		_, next := waiting(t.Context(), t, c, "report")
		time.Sleep(time.Second)
		still(t, next)
		if n := len(s.of("listen")); n != 2 || !hears(c) || len(second.listens()) != 2 {
			t.Errorf("%d connections, hears: %v, on %v; want a second one that hears", n, hears(c), second.listens())
		}
	})
}

func TestProbeThatCannotBeSentCostsNoConnection(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		queued(s, time.Hour)
		e := hearing(s)
		loop := s.onNotify
		// the pool is exhausted
		s.onNotify = func(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
		c := startClient(t, s, trust.SystemClock())
		waiting(t.Context(), t, c, "report")
		time.Sleep(time.Minute)
		if n := len(s.of("listen")); n != 1 || hears(c) || e.isClosed() || len(s.of("notify")) < 10 {
			t.Errorf("%d connections, %d probes, hears: %v", n, len(s.of("notify")), hears(c))
		}
		s.set(func() { s.onNotify = loop })
		time.Sleep(10 * time.Second)
		if !hears(c) || len(s.of("listen")) != 1 {
			t.Errorf("hears: %v on %d connections, want the first", hears(c), len(s.of("listen")))
		}
	})
}

func TestConnectionIsClosedHalfAMinuteAfterTheLastWaiter(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		q := queued(s, time.Hour)
		e := hearing(s)
		c := startClient(t, s, trust.SystemClock())
		for range 3 { // each within the half minute
			id, result := waiting(t.Context(), t, c, "report")
			time.Sleep(time.Second)
			c.queue.Hear(q.grant(id, DefaultTTL), nil)
			must.Do(t, mustGet(t, result).Release(t.Context()))
			time.Sleep(29 * time.Second)
		}
		if e.isClosed() || len(s.of("listen")) != 1 {
			t.Errorf("closed: %v after %d connections, want one that is still open", e.isClosed(), len(s.of("listen")))
		}
		time.Sleep(2 * time.Second)
		if !e.isClosed() || hears(c) {
			t.Errorf("closed: %v, hears: %v", e.isClosed(), hears(c))
		}
		time.Sleep(time.Hour)
		if n := len(s.of("listen")); n != 1 {
			t.Errorf("%d connections while nobody waits", n)
		}
		hearing(s)
		q.lasts(time.Hour)
		waiting(t.Context(), t, c, "report")
		time.Sleep(time.Second)
		if n := len(s.of("listen")); n != 2 || !hears(c) {
			t.Errorf("%d connections, hears: %v; want another one for the next waiter", n, hears(c))
		}
	})
}

func TestCloseEndsTheListenerInEveryState(t *testing.T) {
	for name, prepare := range map[string]func(*fakeStore){
		"hearing": func(s *fakeStore) { hearing(s) },
		"deaf":    func(*fakeStore) {},
		"connecting": func(s *fakeStore) {
			s.onListen = func(ctx context.Context) (listener.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		},
		"between two connections": func(s *fakeStore) {
			s.onListen = func(context.Context) (listener.Conn, error) { return nil, errReset }
		},
		"probing": func(s *fakeStore) {
			s.onNotify = func(ctx context.Context, _, _ string) error { <-ctx.Done(); return ctx.Err() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails when a goroutine is left
				s := newFakeStore()
				queued(s, time.Hour)
				var ears []*fakeConn
				prepare(s)
				if listen := s.onListen; listen == nil || name == "hearing" {
					s.onListen = func(ctx context.Context) (listener.Conn, error) {
						e := &fakeConn{}
						if listen != nil {
							made, _ := listen(ctx)
							e = made.(*fakeConn)
						}
						s.set(func() { ears = append(ears, e) })
						return e, nil
					}
				}
				c := startClient(t, s, trust.SystemClock())
				_, result := waiting(t.Context(), t, c, "report")
				time.Sleep(1300 * time.Millisecond)
				began := time.Now()
				if err := c.Close(t.Context()); err != nil || time.Since(began) != 0 {
					t.Errorf("Close: %v after %v", err, time.Since(began))
				}
				if got := <-result; !errors.Is(got.err, ErrClosed) {
					t.Error(got.err)
				}
				for _, e := range ears {
					if !e.isClosed() {
						t.Error("a connection is left")
					}
				}
				before := len(s.of("listen"))
				time.Sleep(time.Hour)
				if n := len(s.of("listen")); n != before {
					t.Errorf("%d connections after the close", n-before)
				}
			})
		})
	}
}
