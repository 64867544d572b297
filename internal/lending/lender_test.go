package lending

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheConnectionStaysOpenBetweenLoansUntilRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 3)
		w.Keep()
		first := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		first.Give()
		for _, order := range []Order{OwnFirst, OpenFirst} {
			again := w.lends(t, order, time.Second).want(t, true, 0)
			if again.Conn != first.Conn {
				t.Error("it is another connection")
			}
			again.Give()
		}
		w.Rest()
		if !first.Conn.closed {
			t.Error("it is open after the rest")
		}
		w.lends(t, OwnFirst, time.Second).want(t, true, moment).Give()
		if n := w.dialled(); n != 2 {
			t.Errorf("%d dials", n)
		}
	})
}

func TestAConnectionThatNobodyKeepsIsClosedWhenItIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		l := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		l.Give()
		if !l.Conn.closed {
			t.Error("it is open")
		}
	})
}

func TestABrokenConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		w.set(func() { l.Conn.broken = true })
		l.Give()
		if other := w.lends(t, OwnFirst, time.Second).want(t, true, moment); other.Conn == l.Conn || !l.Conn.closed {
			t.Error("the broken connection was lent again")
		}
	})
}

// A statement may hang on the connection: the next one takes another, and the first that comes back is kept.
func TestNobodyWaitsForAnothersLoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		hangs := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		second := w.lends(t, OwnFirst, time.Second).want(t, true, headStart+moment)
		second.Give()
		hangs.Give()
		if second.Conn.closed || !hangs.Conn.closed {
			t.Errorf("closed: %v and %v, want the one that came later", second.Conn.closed, hangs.Conn.closed)
		}
	})
}

// It is warm, and a connection more than the process needs costs the server.
func TestBesideALoanAnIdleConnectionOfThePoolServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		w.Keep()
		hangs := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		for range 3 {
			w.lends(t, OwnFirst, time.Second).want(t, false, 0).Give()
		}
		hangs.Give()
		w.lends(t, OwnFirst, time.Second).want(t, true, 0)
		if n := w.dialled(); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

func TestALoanThatComesBackServesWhoWaitsForADial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		w.set(func() { w.dial = hang })
		time.AfterFunc(7*time.Millisecond, l.Give)
		w.lends(t, OwnFirst, time.Second).want(t, true, 7*time.Millisecond)
	})
}

func TestAnIdleConnectionOfThePoolServesWhileTheServerHasNoSlot(t *testing.T) {
	for _, order := range []Order{OwnFirst, OpenFirst, PoolFirst} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, 3)
			w.Keep()
			w.grow, w.dial = errFull, refuse
			for range 3 {
				w.lends(t, order, time.Second).want(t, false, 0).Give()
			}
			if idle, _ := w.serves(); !idle {
				t.Error("the pool has not got its connection back")
			}
		})
	}
}

// Every dial costs a server process, also one that is refused.
func TestAFullServerIsAskedForASlotOnceASecondWhileThePoolServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		w.Keep()
		w.set(func() { w.dial = refuse })
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(20 * time.Millisecond) {
			w.lends(t, OwnFirst, time.Second).want(t, false, 0).Give()
		}
		if n := w.dialled(); n < 9 || n > 10 {
			t.Errorf("%d dials in ten seconds", n)
		}
		w.set(func() { w.dial = nil })
		time.Sleep(shyFor)
		w.lends(t, OwnFirst, time.Second).want(t, true, moment)
	})
}

func TestADialThatHangsIsWaitedForNoLongerThanItsHeadStart(t *testing.T) {
	for limit, took := range map[time.Duration]time.Duration{10 * time.Second: dialHeadStart,
		20 * time.Millisecond: moment} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, 3)
			w.dial = hang
			w.lends(t, OwnFirst, limit).want(t, false, took).Give()
		})
	}
}

// From afar a dial takes long. Whoever has time for it leaves the pool to the application.
func TestASlowDialTakesNothingFromThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 3)
		w.dial = func(context.Context) error { time.Sleep(900 * time.Millisecond); return nil }
		w.lends(t, OwnFirst, 5*time.Second).want(t, true, 900*time.Millisecond).Give()
	})
}

// The application may hold every connection of its pool for long: that delays no dial.
func TestAnExhaustedPoolDelaysNoDial(t *testing.T) {
	for order, took := range map[Order]time.Duration{OwnFirst: moment, OpenFirst: moment, PoolFirst: headStart +
		moment} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 3, 3)
			w.takes()
			w.lends(t, order, time.Second).want(t, true, took)
		})
	}
}

// Whoever has waited for the pool takes the connection that is open, and dials no other.
func TestAnExhaustedPoolCostsNoDialWhileAConnectionIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 3)
		w.takes()
		w.Keep()
		w.lends(t, OwnFirst, time.Second).want(t, true, moment).Give()
		w.lends(t, PoolFirst, time.Second).want(t, true, headStart).Give()
		synctest.Wait()
		if n := w.dialled(); n != 1 {
			t.Errorf("%d dials", n)
		}
	})
}

// Hundreds of calls release at once, and the application holds its whole pool: they share a few connections.
func TestCallersOfAnExhaustedPoolShareAFewConnections(t *testing.T) {
	for _, order := range []Order{PoolFirst, OpenOfMany} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 3, 3)
			w.takes()
			w.Keep()
			hangs := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
			var callers sync.WaitGroup
			for range 200 {
				callers.Go(func() {
					l := w.lends(t, order, time.Minute)
					if l.err != nil {
						t.Error(l.err)
						return
					}
					time.Sleep(300 * time.Millisecond) // longer than others wait for it
					l.Give()
				})
			}
			callers.Wait()
			hangs.Give()
			if n := w.dialled(); n < 2 || n > ownMost {
				t.Errorf("order %v: %d dials", order, n)
			}
		})
	}
}

// On a full server the connection of one's own may be the only one, and calls may hold it for a second each.
func TestWhatKeepsLeasesDoesNotWaitBehindCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		only := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		only.Give()
		w.set(func() { w.dial, w.grow = refuse, errFull })
		var calls sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for range 5 {
			calls.Go(func() {
				for ctx.Err() == nil {
					if l, err := w.Lend(ctx, OpenOfMany); err == nil {
						time.Sleep(time.Second)
						l.Give()
					}
				}
			})
		}
		time.Sleep(2500 * time.Millisecond)
		w.lends(t, OwnFirst, 1700*time.Millisecond).want(t, true, 500*time.Millisecond).Give()
		time.Sleep(500 * time.Millisecond)
		if took, err := w.claims(t, only.Conn, 1700*time.Millisecond); err != nil || took != 500*time.Millisecond {
			t.Errorf("a claim: %v after %v", err, took)
		}
		cancel()
		calls.Wait()
	})
}

// A pool that has room opens a connection for a caller whose own ones hang.
func TestCallersWithOneOfTheirOwnInUseLetThePoolGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		hangs := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		w.set(func() { w.dial = hang })
		w.lends(t, OpenOfMany, 10*time.Second).want(t, false, headStart+moment).Give()
		hangs.Give()
	})
}

// One dial hangs, and its caller gets the connection that another has dialled: that other one dials again.
func TestWhoseDialHasServedAnotherDialsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.dial = hang
		first := make(chan lent)
		go func() { first <- w.lends(t, OwnFirst, time.Second) }()
		synctest.Wait()
		w.set(func() { w.dial = nil })
		second := w.lends(t, OwnFirst, time.Second)
		(<-first).want(t, true, time.Second/4+moment) // and never gives it back
		second.want(t, true, time.Second/4+headStart+moment)
	})
}

// A connection of the pool looks idle and hangs, as on a line that died in silence.
func TestAPoolThatHangsIsWaitedForNoLongerThanItsHeadStart(t *testing.T) {
	for _, order := range []Order{OpenFirst, PoolFirst} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, 3)
			w.Lender.Borrow = func(ctx context.Context) (*conn, func(), error) {
				<-ctx.Done()
				return nil, nil, ctx.Err()
			}
			w.lends(t, order, time.Second).want(t, true, headStart+moment)
		})
	}
}

func TestAConnectionThatComesAsItsWaiterLeavesServesTheNextLoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		leaves := make(chan *conn, 1)
		w.want(leaves, Fresh)
		l.Give()
		w.unwant(leaves)
		w.lends(t, OwnFirst, time.Second).want(t, true, 0)
	})
}

func TestADialThatComesTooLateServesTheNextLoan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		w.dial = func(ctx context.Context) error {
			select {
			case <-time.After(50 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		l := w.lends(t, OwnFirst, 30*time.Millisecond)
		if !errors.Is(l.err, context.DeadlineExceeded) || l.took != 30*time.Millisecond {
			t.Fatalf("%v after %v", l.err, l.took)
		}
		w.lends(t, OwnFirst, 30*time.Millisecond).want(t, true, 20*time.Millisecond)
	})
}

// A dial whose packets were lost is not the only one, unless there may be no other. A server that does not answer is
// not flooded.
func TestADialThatHangsLeavesRoomForAnother(t *testing.T) {
	for _, most := range []int{dialsMost, 1} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0, 3)
			if most != dialsMost {
				w.Dials = most
			}
			w.Keep()
			w.dial = hang
			for range 20 {
				if l := w.lends(t, OwnFirst, 100*time.Millisecond); l.err == nil {
					t.Fatal("a loan without a server")
				}
			}
			if n := w.dialled(); n != most {
				t.Errorf("%d dials hang, want %d", n, most)
			}
			w.set(func() { w.dial = nil })
			time.Sleep(w.Limit - 2*time.Second + moment) // the first of them is given up
			w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		})
	}
}

func TestWithoutAServerALoanFailsAtOnceAndSaysWhy(t *testing.T) {
	for _, order := range []Order{OwnFirst, OpenFirst, PoolFirst} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0, 3)
			w.grow, w.dial = errFull, refuse
			if l := w.lends(t, order, time.Second); !errors.Is(l.err, errFull) || l.took != 0 {
				t.Errorf("order %d: %v after %v", order, l.err, l.took)
			}
		})
	}
}

// The application has taken all that the pool may have, and the server refuses more: a loan waits for either.
func TestWhileThePoolIsExhaustedAndTheServerFullBothAreWaitedFor(t *testing.T) {
	for _, order := range []Order{OwnFirst, OpenFirst, PoolFirst} {
		for _, comes := range []string{"the pool", "the server"} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, 2)
				w.dial = refuse
				taken := w.takes()
				time.AfterFunc(3*time.Second, func() {
					if comes == "the pool" {
						w.gives(taken[0])
					} else {
						w.set(func() { w.dial = nil })
					}
				})
				l := w.lends(t, order, 10*time.Second)
				late := l.took - 3*time.Second
				if l.err != nil || late < 0 || late > lastPause+moment || l.Own != (comes == "the server") {
					t.Errorf("order %d, %s: %+v, %v after %v", order, comes, l.Conn, l.err, l.took)
				}
				if n := w.dialled(); n < 5 || n > 10 {
					t.Errorf("%d dials in %v", n, l.took)
				}
			})
		}
	}
}

func TestWhatNobodyReceivesGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.dial = hang
		borrows := w.Lender.Borrow
		w.Lender.Borrow = func(ctx context.Context) (*conn, func(), error) {
			time.Sleep(time.Second) // whatever ctx says
			return borrows(context.WithoutCancel(ctx))
		}
		if l := w.lends(t, OwnFirst, 500*time.Millisecond); l.err == nil {
			t.Fatal("a loan")
		}
		time.Sleep(time.Second)
		if idle, _ := w.serves(); !idle {
			t.Error("the pool has not got its connection back")
		}
	})
}

func TestCloseEndsEveryDialAndClosesWhatIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		kept := w.lends(t, OwnFirst, time.Second).want(t, true, moment)
		w.set(func() { w.dial = hang })
		_ = w.lends(t, OwnFirst, time.Millisecond)
		kept.Give()
		w.close()
		if !kept.Conn.closed {
			t.Error("a connection is open")
		}
		if l := w.lends(t, OwnFirst, time.Second); !errors.Is(l.err, errClosed) || l.took != 0 {
			t.Errorf("afterwards: %v after %v", l.err, l.took)
		}
	})
}
