//go:build unix

package trend

import (
	"fmt"
	"slices"
	"sync"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// Sign is what shows that clients work again.
type Sign int

// The signs.
const (
	Grant Sign = iota
	Write      // an acknowledged one
	signs
)

// Healing is how soon after the end of the faults of a kind the signs came.
type Healing struct {
	Alone      [signs]Spread // no other fault concerned the same clients before
	Overtaken  [signs]Spread // another did
	Unfinished [signs]int    // the run has ended before
}

// Recovery measures the time from the end of each fault to the first sign: of the worker that it concerned, or of
// anybody. It is safe for concurrent use.
type Recovery struct {
	mu      sync.Mutex
	lasting map[int]int // faults that last, by worker
	open    []*wound
	healed  map[string]*Healing
}

// wound is a fault that is over, and whose signs have not all come.
type wound struct {
	fault     string
	worker    int
	over      history.Time
	came      [signs]bool
	overtaken bool
}

// Began notes the beginning of a fault, and Over its end. A fault that keeps nobody from the server is not measured.
func (r *Recovery) Began(f history.Fault) {
	if f.Quiet && !f.Full {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lasting == nil {
		r.lasting = make(map[int]int)
	}
	r.lasting[f.Worker]++
	for _, w := range r.open {
		if f.Worker == history.Everybody || f.Worker == w.worker {
			w.overtaken = true
		}
	}
}

// Over notes the end of a fault.
func (r *Recovery) Over(f history.Fault) {
	if f.Quiet && !f.Full {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lasting[f.Worker]--
	r.open = append(r.open, &wound{fault: f.Name, worker: f.Worker, over: history.Now(),
		overtaken: r.lasting[f.Worker]+r.lasting[history.Everybody] > 0})
}

// Never notes a moment at which no fault was near: what comes then is how soon there is a sign anyhow.
func (r *Recovery) Never(name string, worker int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open = append(r.open, &wound{fault: name, worker: worker, over: history.Now()})
}

// Came notes a sign of a worker.
func (r *Recovery) Came(sign Sign, worker int, at history.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.open {
		if w.came[sign] || at < w.over || w.worker != history.Everybody && w.worker != worker {
			continue
		}
		w.came[sign] = true
		times := &r.of(w.fault).Alone[sign]
		if w.overtaken {
			times = &r.of(w.fault).Overtaken[sign]
		}
		times.Add(at.Sub(w.over))
	}
	r.open = slices.DeleteFunc(r.open, func(w *wound) bool { return w.came[Grant] && w.came[Write] })
}

func (r *Recovery) of(fault string) *Healing {
	if r.healed == nil {
		r.healed = make(map[string]*Healing)
	}
	if r.healed[fault] == nil {
		r.healed[fault] = &Healing{}
	}
	return r.healed[fault]
}

// Missing tells which signs of which workers have not come.
func (r *Recovery) Missing() (signs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.open {
		for sign, name := range []string{Grant: "grant", Write: "write"} {
			said := fmt.Sprintf("no %s of worker %d", name, w.worker)
			if !w.came[sign] && w.worker != history.Everybody && !slices.Contains(signs, said) {
				signs = append(signs, said)
			}
		}
	}
	return signs
}

// End notes that no sign can come any more.
func (r *Recovery) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.open {
		for sign, came := range w.came {
			if !came {
				r.of(w.fault).Unfinished[sign]++
			}
		}
	}
	r.open = nil
}

// Of is how soon there were signs after the faults of that name.
func (r *Recovery) Of(fault string) Healing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return *r.of(fault)
}
