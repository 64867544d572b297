//go:build unix

package trend

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

func TestAQuantileIsTheTimeOfThatCall(t *testing.T) {
	t.Parallel()
	var s Spread
	for n := range 1000 {
		s.Add(time.Duration(1000-n) * time.Millisecond)
	}
	for part, want := range map[float64]time.Duration{0: time.Millisecond, 0.5: 500 * time.Millisecond,
		0.99: 990 * time.Millisecond, 0.999: 999 * time.Millisecond, 1: time.Second} {
		if got := s.Quantile(part); got != want {
			t.Errorf("%v: %v, want %v", part, got, want)
		}
	}
}

func TestAFewPointsAreNotJudged(t *testing.T) {
	t.Parallel()
	s := Series{Bound: Bound{Part: 0.25}}
	for n := range 3 * fewest {
		if s.Growth().Judged {
			t.Fatalf("%d points are judged", n)
		}
		s.Points = append(s.Points, Point{At: time.Duration(n) * time.Second, Value: float64(n)})
	}
	if g := s.Growth(); !g.Beyond() {
		t.Errorf("%+v, want growth", g)
	}
}

// A sign counts for the fault's own worker, or for a fault of everybody from anybody; what another fault has delayed is
// kept apart.
func TestRecoveryIsFromTheEndOfAFaultToTheFirstSign(t *testing.T) {
	t.Parallel()
	var r Recovery
	reset := history.Fault{Name: "reset", Worker: 3}
	crash := history.Fault{Name: "crash", Worker: history.Everybody}
	soon := func(d time.Duration) history.Time { return history.Now().Add(d) }
	over := func(f history.Fault) { r.Began(f); r.Over(f) }

	over(reset)
	r.Came(Grant, 4, soon(time.Second))    // another's
	r.Came(Grant, 3, soon(-time.Minute))   // before it
	r.Came(Grant, 3, soon(10*time.Second)) // this one
	r.Came(Grant, 3, soon(time.Hour))      // not the first
	over(history.Fault{Name: "break", Worker: history.Everybody, Quiet: true})
	over(crash)
	r.Came(Write, 3, soon(20*time.Second)) // of the reset, which a crash has overtaken; and of the crash
	r.Came(Grant, 9, soon(30*time.Second))

	r.Began(crash)
	over(reset) // while nobody can reach the server
	r.Over(crash)
	r.Came(Grant, 3, soon(40*time.Second))
	r.End()

	about := func(s Spread, seconds ...int) bool {
		if len(s) != len(seconds) {
			return false
		}
		for i, want := range seconds {
			if got := s[i]; got < time.Duration(want-1)*time.Second || got > time.Duration(want+1)*time.Second {
				return false
			}
		}
		return true
	}
	h := r.Of("reset")
	if !about(h.Alone[Grant], 10) || !about(h.Overtaken[Grant], 40) || !about(h.Alone[Write]) ||
		!about(h.Overtaken[Write], 20) || h.Unfinished != [signs]int{0, 1} {
		t.Errorf("reset: %+v", h)
	}
	h = r.Of("crash")
	if !about(h.Alone[Grant], 30, 40) || !about(h.Alone[Write], 20) || h.Unfinished != [signs]int{0, 1} {
		t.Errorf("crash: %+v", h)
	}
	if h := r.Of("break"); len(h.Alone[Grant]) > 0 {
		t.Errorf("break: %+v, want nothing: it keeps nobody from the server", h)
	}
}
