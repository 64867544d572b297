//go:build unix

package history

import (
	"testing"
	"time"
)

func TestDisturbanceConcernsItsWorkerAndLastsALittleLonger(t *testing.T) {
	at := func(ms int) Time { return Time(ms) * Time(time.Millisecond) }
	var f Faults
	f.Was(Fault{Name: "hold", Worker: 1, Begin: at(100), End: at(200)})
	f.Was(Fault{Name: "break", Worker: Everybody, Begin: at(100), End: at(200), Quiet: true})
	for _, c := range []struct {
		worker, from, to int
		disturbed        bool
	}{
		{1, 0, 50, false}, {1, 0, 100, true}, {1, 150, 160, true}, {1, 240, 300, true}, {1, 260, 300, false},
		{2, 100, 200, false},
	} {
		if got := f.Disturbed(c.worker, at(c.from), at(c.to), 50*time.Millisecond); got != c.disturbed {
			t.Errorf("worker %d is disturbed between %d and %d: %v", c.worker, c.from, c.to, got)
		}
	}
	f.Was(Fault{Name: "full", Worker: Everybody, Begin: at(220), End: at(400), Quiet: true, Full: true})
	for worker, disturbed := range []bool{false, true, false} {
		if got := f.Disturbed(worker, at(420), at(430), 50*time.Millisecond); got != disturbed {
			t.Errorf("worker %d is disturbed after the server was full: %v", worker, got)
		}
	}
	ended := f.Began(Fault{Name: "crash", Worker: Everybody})
	if !f.Disturbed(2, Now(), Now(), 0) {
		t.Error("a fault that lasts disturbs nobody")
	}
	ended()
	if f.Disturbed(2, Now().Add(time.Second), Now().Add(2*time.Second), 0) {
		t.Error("a fault that is over disturbs somebody")
	}
}
