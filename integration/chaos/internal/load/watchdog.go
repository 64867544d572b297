//go:build unix

package load

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// watchdog notices calls that do not come back, and times in which the process did not run: it was stopped, or starved.
// What a call may take counts only while the process runs.
type watchdog struct {
	out  *outbox
	quit chan struct{}
	done chan struct{}

	mu    sync.Mutex
	next  int
	calls map[int]*watched
}

type watched struct {
	what  string
	limit time.Duration
	ran   time.Duration
}

const (
	tick    = 20 * time.Millisecond
	stalled = 200 * time.Millisecond // a tick that is so late

	measures = time.Second // between two measurements of the process
)

func newWatchdog(out *outbox) *watchdog {
	d := &watchdog{out: out, quit: make(chan struct{}), done: make(chan struct{}), calls: make(map[int]*watched)}
	go d.run()
	return d
}

// watch expects the call to end within the limit; done says that it has.
func (d *watchdog) watch(what string, limit time.Duration) (done func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.next
	d.next++
	d.calls[n] = &watched{what: what, limit: limit}
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.calls, n)
	}
}

func (d *watchdog) run() {
	defer close(d.done)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var measured history.Time
	for last := history.Now(); ; {
		select {
		case <-d.quit:
			return
		case <-ticker.C:
		}
		now := history.Now()
		if now.Sub(last) > stalled {
			d.out.say(history.Event{Kind: history.Stalled, From: last, At: now})
		}
		for _, late := range d.late(min(now.Sub(last), 2*tick)) {
			d.out.say(history.Event{Kind: history.Stuck, At: now, How: late, Error: stacks()})
		}
		if now.Sub(measured) >= measures {
			measured = now
			d.out.say(measure())
		}
		last = now
	}
}

// measure tells how much the process uses. The heap is what the last collection of garbage has left, so it does not
// depend on how long ago that was.
func measure() history.Event {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(s)
	return history.Event{Kind: history.Measured, At: history.Now(), Goroutines: runtime.NumGoroutine(),
		Heap: s[0].Value.Uint64(), Memory: s[1].Value.Uint64() - s[2].Value.Uint64()}
}

// late are the calls whose time has just passed.
func (d *watchdog) late(passed time.Duration) (late []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		was := c.ran
		if c.ran += passed; was <= c.limit && c.ran > c.limit {
			late = append(late, fmt.Sprintf("%s has not come back for %v", c.what, c.limit))
		}
	}
	return late
}

func (d *watchdog) close() {
	close(d.quit)
	<-d.done
}
