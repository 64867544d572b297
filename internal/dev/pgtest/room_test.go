package pgtest

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

func TestATestBeginsWhenTheMachineHasRoom(t *testing.T) {
	busy := 3 * roomyTasks * runtime.NumCPU()
	for _, c := range []struct {
		name  string
		until time.Duration // the machine is busy
		late  time.Duration // the test is, at most
	}{
		{"idle", 0, 0},
		{"busy for a second", time.Second, time.Second + roomLooks*roomPause},
		{"always busy", time.Hour, roomTest + roomLooks*roomPause},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				r := newRoom(func() int {
					if time.Since(began) < c.until {
						return busy
					}
					return 1
				})
				r.enter(t.Context())()
				if late := time.Since(began); late < min(c.until, roomTest) || late > c.late {
					t.Errorf("began after %v, want between %v and %v", late, min(c.until, roomTest), c.late)
				}
			})
		})
	}
}

// Those that came before are at work already, and one that has just begun shows only then.
func TestTestsBeginOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(func() int { return 1 })
		leave := r.enter(t.Context())
		entered := make(chan struct{})
		go func() {
			defer close(entered)
			r.enter(t.Context())()
		}()
		synctest.Wait()
		select {
		case <-entered:
			t.Error("the second test began while the first one made its database")
		default:
		}
		leave()
		<-entered
	})
}

func TestAPackageWaitsForRoomForSoLongOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoom(func() int { return 1000 * runtime.NumCPU() })
		began := time.Now()
		for range 100 {
			r.enter(t.Context())()
		}
		if spent, most := time.Since(began), roomPackage+100*roomLooks*roomPause; spent < roomPackage || spent > most {
			t.Errorf("waited %v in all, want between %v and %v", spent, roomPackage, most)
		}
	})
}
