//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/trend"
	"github.com/pglock-dev/pglock/lockadmin"
)

// endurance is what is measured through the run: series of figures, how long calls took, and how soon clients went on
// after each fault.
type endurance struct {
	recovery trend.Recovery

	mu      sync.Mutex
	settled history.Time // since then no fault concerns anybody; 0: one may
	asked   map[int64]history.Event
	took    map[string]*times
	clients map[int]history.Event // the latest measurement of each worker
	series  []*trend.Series
	most    map[string]float64 // rows of each table that are counted, the most that it had so far
	during  map[string]*during
}

// times are how long the calls of a kind took.
type times struct{ all, calm, lately trend.Spread }

// during is what there was while the faults of a kind lasted.
type during struct{ operations, violations, effects int }

func newEndurance() endurance {
	return endurance{asked: make(map[int64]history.Event), clients: make(map[int]history.Event),
		during: make(map[string]*during), most: make(map[string]float64),
		took: map[string]*times{tried: {}, acquired: {}, wrote: {}}}
}

// began notes the beginning of a fault, and with what it returns the end, with the counts of those moments.
func (e *endurance) began(f history.Fault, operations, violations int) (ended func(operations, violations int,
	did bool)) {
	e.recovery.Began(f)
	return func(operationsThen, violationsThen int, did bool) {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.during[f.Name] == nil {
			e.during[f.Name] = &during{}
		}
		d := e.during[f.Name]
		d.operations += operationsThen - operations
		d.violations += violationsThen - violations
		if did {
			d.effects++
		}
	}
}

// effects is how often the faults of a kind have done something.
func (e *endurance) effects(name string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d := e.during[name]; d != nil {
		return d.effects
	}
	return 0
}

// Kinds of calls that are timed. The first one never waits for another holder.
const (
	tried    = "TryAcquire, granted"
	acquired = "Acquire, granted"
	wrote    = "fenced write, acknowledged"
)

// settlesIn is how long after the last fault calls are taken for calm.
const settlesIn = 2 * time.Second

// heard hears what the workers say. Calls that only a fault makes, such as those of a storm, are not timed: the client
// has a label with a plus.
func (e *endurance) heard(x history.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch x.Kind {
	case history.Measured:
		e.clients[int(x.Who/history.Lives)] = x
	case history.Asks:
		if !strings.Contains(x.Label, "+") {
			e.asked[x.Call] = x
		}
	case history.Writes:
		if !x.Sleeps {
			e.asked[x.Op] = x
		}
	case history.Fails:
		delete(e.asked, x.Call)
	case history.Has:
		if _, known := e.asked[x.Call]; known {
			e.recovery.Came(trend.Grant, int(x.Who/history.Lives), x.At)
		}
		switch x.How {
		case "try":
			e.time(tried, x.Call, x.At)
		case "acquire", "do", "all":
			e.time(acquired, x.Call, x.At)
		}
	case history.Wrote:
		if x.Class == "" {
			e.recovery.Came(trend.Write, int(x.Who/history.Lives), x.At)
			e.time(wrote, x.Op, x.At)
		}
		delete(e.asked, x.Op)
	}
}

// time notes for how long a call was under way. IDs of calls and writes are of one kind.
func (e *endurance) time(kind string, id int64, at history.Time) {
	from, known := e.asked[id]
	if !known {
		return
	}
	delete(e.asked, id)
	t := e.took[kind]
	t.all.Add(at.Sub(from.At))
	t.lately.Add(at.Sub(from.At))
	if e.settled != 0 && from.At >= e.settled {
		t.calm.Add(at.Sub(from.At))
	}
}

// isCalm notes since when everybody has settled in a pause of the faults; 0: the pause is over.
func (l *lab) isCalm(since history.Time) {
	e := &l.endurance
	e.mu.Lock()
	e.settled = since
	e.mu.Unlock()
	if since != 0 {
		e.recovery.Never(nothing, history.Everybody)
		for _, m := range l.crew {
			e.recovery.Never(nothingOfOne, m.n)
		}
	}
}

// workAgain is how long after the last fault every worker works again, also on a machine on which a crowd takes most of
// that.
const workAgain = 3 * time.Minute

// seesWork waits until every worker has had the signs that it works again, and the laboratory has looked.
func (l *lab) seesWork(ctx context.Context, patience time.Duration) {
	looked := l.eye.looked.Load()
	for deadline := time.Now().Add(patience); ctx.Err() == nil; wait(ctx, 50*time.Millisecond) {
		missing := l.endurance.recovery.Missing()
		if l.eye.looked.Load() == looked {
			missing = append(missing, fmt.Sprintf("no look at the locks (%v)", l.eye.failed.Load()))
		}
		if len(missing) == 0 {
			return
		}
		if !time.Now().Before(deadline) {
			l.judge.Blame("works again", fmt.Sprintf("for %v after the last fault there was %s", patience,
				strings.Join(missing, "; ")))
			l.endurance.recovery.End()
			return
		}
	}
}

// What stands beside the faults, to compare with.
const (
	nothing      = "(no fault, of anybody)"
	nothingOfOne = "(no fault, of a worker)"
	atTheEnd     = "(after all faults)" // not shown
)

// spared says whether nobody kills the worker: so that its process grows as old as the run.
func (l *lab) spared(n int) bool { return l.report != "" && n < l.workers/2 }

// sample measures until ctx ends.
func (l *lab) sample(ctx context.Context) {
	ticker := time.NewTicker(l.sampleEvery)
	defer ticker.Stop()
	before, last := 0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		asking, cancel := context.WithTimeout(ctx, 4*time.Second)
		sizes, err := cluster.ReadSizes(asking, l.eye.pool)
		cancel()
		operations, now := l.operations(), time.Now()
		rate := float64(operations-before) / now.Sub(last).Seconds()
		before, last = operations, now
		l.endurance.sample(now.Sub(l.began), rate, l.spared)
		if err != nil { // there may be no server just now
			l.evidence.line(fmt.Sprintf("%s the tables could not be measured: %v", sayNow(), err))
			continue
		}
		l.endurance.sizes(now.Sub(l.began), sizes)
	}
}

// tidy does for the tables what an operator does once a day, and what a server does by itself that keeps its
// statistics: every crash resets them, so that autovacuum knows of nothing. What a fault ends is tried again soon.
func (l *lab) tidy(ctx context.Context) {
	const often, soon, idle = 30 * time.Second, time.Second, 15 * time.Second
	for pause := often; ; {
		if wait(ctx, pause); ctx.Err() != nil {
			return
		}
		pruning, pruned := context.WithTimeout(ctx, often)
		done, err := l.eye.admin.Prune(pruning, lockadmin.PruneOptions{Idle: new(idle)})
		pruned()
		vacuuming, vacuumed := context.WithTimeout(ctx, often)
		err = errors.Join(err, cluster.Vacuum(vacuuming, l.eye.pool))
		vacuumed()
		if pause = often; err != nil {
			pause = soon
		}
		l.evidence.line(fmt.Sprintf("%s an operator has pruned %d locks and vacuumed: %v", sayNow(), done.Locks, err))
	}
}

// Bounds of growth. What is added to a quarter is for small figures: a quarter of them is a connection, or a page.
var (
	memoryBound     = trend.Bound{Part: 0.25, More: 8 << 20}
	goroutineBound  = trend.Bound{Part: 0.25, More: 40}
	connectionBound = trend.Bound{Part: 0.25, More: 8}
	sizeBound       = trend.Bound{Part: 0.25, More: 512 << 10}
	leftBound       = trend.Bound{Part: 0.25, More: 100} // locks
)

// rowBound is sizeBound for the bytes of each of so many rows. Where names come and go, an index may need the room of
// two crowds for one: what a VACUUM has emptied is used after the next. A name takes some 60 bytes of it.
func rowBound(rows float64, passing bool) trend.Bound {
	if passing {
		return trend.Bound{Part: 0.25, More: 48}
	}
	return trend.Bound{Part: sizeBound.Part, More: sizeBound.More / rows}
}

// sample adds what the workers have said.
func (e *endurance) sample(at time.Duration, rate float64, spared func(int) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var heap, memory, goroutines float64
	for n, x := range e.clients {
		if spared(n) {
			heap, memory, goroutines = heap+float64(x.Heap), memory+float64(x.Memory), goroutines+float64(x.Goroutines)
		}
	}
	e.add("live heap", trend.Bytes, memoryBound, at, heap)
	e.add("memory", trend.Bytes, memoryBound, at, memory)
	e.add("goroutines", trend.Count, goroutineBound, at, goroutines)
	e.add("operations", trend.Count, trend.Bound{}, at, rate)
	for _, kind := range []string{tried, acquired, wrote} {
		t := e.took[kind]
		if len(t.lately) > 0 {
			e.add(kind+", p50", trend.Seconds, trend.Bound{}, at, t.lately.Quantile(0.5).Seconds())
			e.add(kind+", p99", trend.Seconds, trend.Bound{}, at, t.lately.Quantile(0.99).Seconds())
		}
		t.lately = nil
	}
}

// sizes adds what the server has said. A table whose rows are counted is as large as the most rows that it ever had
// make it: its file never shrinks, and new rows take the room of those that are gone. So it is judged by its bytes for
// each of them. Rows that ought to be gone are judged by themselves.
func (e *endurance) sizes(at time.Duration, s cluster.Sizes) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add("connections", trend.Count, connectionBound, at, float64(s.Connections))
	e.add("locks left by prunes", trend.Count, leftBound, at, float64(s.Left))
	var tables, indexes, dead float64
	for _, t := range s.Tables {
		tables, indexes, dead = tables+float64(t.Size), indexes+float64(t.Indexes), dead+float64(t.Dead)
		ofTable, ofIndexes, rows, bound := "table "+t.Name, "indexes of "+t.Name, 1.0, sizeBound
		if t.Counted {
			e.most[t.Name] = max(e.most[t.Name], float64(t.Rows), 1)
			rows = e.most[t.Name]
			ofTable, ofIndexes, bound = ofTable+", of each row", ofIndexes+", of each row", rowBound(rows, t.Passing)
		}
		e.add(ofTable, trend.Bytes, bound, at, float64(t.Size)/rows)
		e.add(ofIndexes, trend.Bytes, bound, at, float64(t.Indexes)/rows)
	}
	e.add("tables", trend.Bytes, trend.Bound{}, at, tables)
	e.add("indexes", trend.Bytes, trend.Bound{}, at, indexes)
	e.add("dead tuples", trend.Count, trend.Bound{}, at, dead)
}

// add adds a figure to its series. The latest bound counts.
func (e *endurance) add(name string, unit trend.Unit, bound trend.Bound, at time.Duration, value float64) {
	s := e.named(name)
	if len(s.Points) == 0 {
		e.series = append(e.series, s)
	}
	s.Unit, s.Bound = unit, bound
	s.Points = append(s.Points, trend.Point{At: at, Value: value})
}

// named is the series of that name, or an empty one.
func (e *endurance) named(name string) *trend.Series {
	for _, s := range e.series {
		if s.Name == name {
			return s
		}
	}
	return &trend.Series{Name: name}
}

// judgeGrowth blames every series that has grown beyond its bound, and a run that hardly saw the tables.
func (l *lab) judgeGrowth() {
	seen, all := len(l.endurance.named("connections").Points), len(l.endurance.named("operations").Points)
	if 2*seen < all {
		l.judge.Blame("growth", fmt.Sprintf("the tables were measured %d times, the processes %d times", seen, all))
	}
	for _, s := range l.endurance.series {
		g := s.Growth()
		if !g.Beyond() {
			continue
		}
		say := s.Unit.Say
		l.judge.Blame("growth", fmt.Sprintf("%s has grown: the lower quartile of the last third of the run is %s, "+
			"that of the second third %s, and the bound %s", s.Name, say(g.Last), say(g.Second), say(g.Most)))
	}
}
