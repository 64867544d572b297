package coalesce

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
)

var errNone = errors.New("no connection")

// newLateDepot is a depot that waits for a connection no longer than limit.
func newLateDepot(t *testing.T) *depot {
	d := newDepot(t, 1)
	d.Patience = limit
	lend := d.Lend
	d.Lend = func(ctx context.Context) (*pgx.Conn, func(), error) {
		limited, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		conn, give, err := lend(limited)
		if err != nil && ctx.Err() == nil {
			err = &LateError{errNone}
		}
		return conn, give, err
	}
	return d
}

// fails expects a call that was not sent, because no connection came.
func fails(t *testing.T, got <-chan heard) {
	t.Helper()
	failsBy(t, got, errNone)
}

func failsBy(t *testing.T, got <-chan heard, cause error) {
	t.Helper()
	if h := back(t, got); !errors.Is(h.err, cause) || !neverSent(h.err) {
		t.Errorf("%+v, want that the call was not sent: %v", h, cause)
	}
}

// When nobody waits any more for what did not come, a later call that waits in vain hears why it did itself.
func TestACallHearsOfNoFailureFromBeforeIt(t *testing.T) {
	for how, goes := range map[string]func(t *testing.T, d *depot, feed, leave func(), b <-chan heard){
		"served": func(t *testing.T, d *depot, feed, _ func(), b <-chan heard) {
			feed()
			d.next(t, "b2").answer()
			answered(t, b, 2)
		},
		"left": func(t *testing.T, _ *depot, _, leave func(), b <-chan heard) {
			leave()
			failsBy(t, b, context.Canceled)
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newLateDepot(t)
				errLater := errors.New("still no connection")
				var later atomic.Bool
				lend := d.Lend
				d.Lend = func(ctx context.Context) (*pgx.Conn, func(), error) {
					conn, give, err := lend(ctx)
					if _, late := errors.AsType[*LateError](err); late && later.Load() {
						time.Sleep(time.Nanosecond)
						err = &LateError{errLater}
					}
					return conn, give, err
				}
				feed := d.starve(t)
				a := d.call(t.Context(), order{name: "a", n: 1})
				time.Sleep(limit / 2)
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				b := d.call(ctx, order{name: "b", n: 2})
				time.Sleep(limit / 2)
				fails(t, a)
				synctest.Wait()
				goes(t, d, feed, leave, b)
				synctest.Wait()
				later.Store(true)
				feed()
				d.starve(t)
				c := d.call(t.Context(), order{name: "c", n: 3})
				time.Sleep(limit + 1)
				failsBy(t, c, errLater)
			})
		})
	}
}

// Each call waits for a connection for a time of its own, also if others have waited for longer.
func TestCallsThatComeLaterWaitForAConnectionAsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLateDepot(t)
		feed := d.starve(t)
		a := d.call(t.Context(), order{name: "a", n: 1})
		time.Sleep(limit / 2)
		b, c := d.call(t.Context(), order{name: "b", n: 2}), d.call(t.Context(), order{name: "c", n: 3})
		time.Sleep(limit / 4)
		e := d.call(t.Context(), order{name: "e", n: 4})
		time.Sleep(limit / 4)
		fails(t, a)
		time.Sleep(limit/2 - 1)
		if n := len(b) + len(c) + len(e); n > 0 {
			t.Fatalf("%d calls came back before their time", n)
		}
		time.Sleep(time.Nanosecond)
		fails(t, b)
		fails(t, c)
		time.Sleep(limit/4 - 1)
		feed()
		d.next(t, "e4").answer()
		answered(t, e, 4)
		time.Sleep(limit)
		f := d.call(t.Context(), order{name: "f", n: 5})
		d.next(t, "f5").answer()
		answered(t, f, 5)
	})
}

// When all have waited as long as they may, nobody waits for a connection any more.
func TestCallsThatHaveWaitedTooLongLeaveNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newLateDepot(t)
		d.starve(t)
		a := d.call(t.Context(), order{name: "a", n: 1})
		time.Sleep(limit / 2)
		b := d.call(t.Context(), order{name: "b", n: 2})
		time.Sleep(limit / 2)
		fails(t, a)
		time.Sleep(limit / 2)
		fails(t, b)
		synctest.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.underWay != 0 || d.lending != nil {
			t.Errorf("%d statements are under way although nobody waits", d.underWay)
		}
	})
}
