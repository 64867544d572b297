package lending

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// claims asks for one connection, within a limit.
func (w *world) claims(t *testing.T, c *conn, limit time.Duration) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	began := time.Now()
	l, err := w.Claim(ctx, c)
	if err == nil {
		if l.Conn != c || !l.Own || w.is(&c.attended) {
			t.Errorf("claimed %+v, got %+v", c, l.Conn)
		}
		l.Give()
	}
	return time.Since(began), err
}

func TestWhatComesIsWaitedForWhileNobodyUsesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		for range 3 {
			l := w.lends(t, OwnFirst, time.Second)
			l.Give()
			if !w.is(&l.Conn.attended) {
				t.Error("nobody waits for what comes over it")
			}
		}
		if n := w.dialled(); n != 1 {
			t.Errorf("%d dials", n)
		}
		w.Rest() // the world checks that the waiting has ended
	})
}

// It is lost while somebody waits for what comes over it: the next loan is another.
func TestASpareConnectionThatWasLostIsNotLent(t *testing.T) {
	for _, order := range []Order{Own, OwnFirst, OpenFirst} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0, 3)
			w.Keep()
			first := w.lends(t, order, time.Second)
			first.Give()
			w.set(func() { first.Conn.broken = true })
			second := w.lends(t, order, time.Second).want(t, true, moment)
			if second.Conn == first.Conn || !w.is(&first.Conn.closed) {
				t.Error("the lost connection was lent again, or is open")
			}
		})
	}
}

func TestTheConnectionThatListensStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		l := w.lends(t, Own, time.Second).want(t, true, moment)
		w.Listen(l.Conn)
		l.Give()
		w.Keep()
		w.Rest()
		if w.is(&l.Conn.closed) {
			t.Fatal("it was closed although it listens")
		}
		again := w.lends(t, OwnFirst, time.Second).want(t, true, 0)
		other := w.lends(t, OwnFirst, time.Second).want(t, true, headStart+moment)
		w.Keep()
		other.Give()
		again.Give() // comes second, and is kept rather than the other
		if w.is(&l.Conn.closed) || !w.is(&other.Conn.closed) {
			t.Errorf("closed: %v, and the other: %v", w.is(&l.Conn.closed), w.is(&other.Conn.closed))
		}
		w.Rest()
		if w.Deafen(); !w.is(&l.Conn.closed) {
			t.Error("it is open although nobody needs it")
		}
	})
}

func TestAConnectionThatListensNoMoreIsKeptForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, Own, time.Second)
		w.Listen(l.Conn)
		l.Give()
		if w.Deafen(); w.is(&l.Conn.closed) {
			t.Error("it was closed")
		}
	})
}

func TestAClaimGetsThisConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, Own, time.Second)
		other := w.lends(t, OwnFirst, time.Second) // nobody shall get this instead
		time.AfterFunc(3*time.Millisecond, other.Give)
		time.AfterFunc(7*time.Millisecond, l.Give)
		w.Listen(l.Conn)
		if took, err := w.claims(t, l.Conn, time.Second); err != nil || took != 7*time.Millisecond {
			t.Errorf("lent to somebody: %v after %v", err, took)
		}
		if took, err := w.claims(t, l.Conn, time.Second); err != nil || took != 0 {
			t.Errorf("in nobody's use: %v after %v", err, took)
		}
	})
}

func TestAClaimEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0, 3)
		w.Keep()
		l := w.lends(t, Own, time.Second)
		if took, err := w.claims(t, l.Conn, 20*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) ||
			took != 20*time.Millisecond {
			t.Errorf("in use for long: %v after %v", err, took)
		}
		w.set(func() { l.Conn.broken = true })
		time.AfterFunc(time.Millisecond, l.Give)
		for range 2 {
			if took, err := w.claims(t, l.Conn, time.Second); !errors.Is(err, ErrGone) || took > time.Millisecond {
				t.Errorf("given back broken: %v after %v", err, took)
			}
		}
		l = w.lends(t, Own, time.Second)
		l.Give()
		w.set(func() { l.Conn.broken = true })
		if _, err := w.claims(t, l.Conn, time.Second); !errors.Is(err, ErrGone) || !w.is(&l.Conn.closed) {
			t.Errorf("lost in nobody's use: %v", err)
		}
	})
}

// The heartbeat and the listener need a connection at the same moment: one dial serves both.
func TestThoseWhoComeTogetherDialOnce(t *testing.T) {
	for _, orders := range [][2]Order{{Own, OwnFirst}, {OwnFirst, Own}, {Own, OpenFirst}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0, 3)
			w.Keep()
			first := make(chan lent)
			go func() { first <- w.lends(t, orders[0], time.Second) }()
			synctest.Wait()
			go func() { l := <-first; time.Sleep(2 * time.Millisecond); l.Give() }()
			w.lends(t, orders[1], time.Second).want(t, true, moment+2*time.Millisecond)
			if n := w.dialled(); n != 1 {
				t.Errorf("orders %v: %d dials", orders, n)
			}
		})
	}
}

// The application's connections are not for listening: the pool may be small, and what listens stays for long.
func TestOnesOwnIsNeverOfThePool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 3)
		w.Keep()
		w.dial = refuse
		if l := w.lends(t, Own, time.Second); !errors.Is(l.err, errFull) || l.took != 0 {
			t.Errorf("%+v, %v after %v", l.Conn, l.err, l.took)
		}
		w.set(func() { w.dial = nil })
		l := w.lends(t, Own, time.Second).want(t, true, moment)
		w.lends(t, Own, time.Second).want(t, true, headStart+moment) // while the first is in use for long
		l.Give()
	})
}

// Whoever wants one that works now does not get the one that was open, which may be dead, nor one of the pool.
func TestAFreshConnectionIsNotTheOneThatWasOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 3)
		w.Keep()
		open := w.lends(t, Own, time.Second).want(t, true, moment)
		open.Give()
		fresh := w.lends(t, Fresh, time.Second).want(t, true, moment)
		if fresh.Conn == open.Conn {
			t.Error("it is the one that was open")
		}
		fresh.Give()
		if open.Conn.closed {
			t.Error("the one that was open is closed")
		}
	})
}
