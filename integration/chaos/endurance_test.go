//go:build unix

package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/trend"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

// shapes are how a figure goes through a run, as a multiple of its beginning; at is from 0 to 1.
var shapes = map[string]struct {
	of    func(r *rand.Rand, at float64) float64
	grows bool
}{
	"flat":                 {func(*rand.Rand, float64) float64 { return 1 }, false},
	"noisy, with peaks":    {func(r *rand.Rand, _ float64) float64 { return noise(r) }, false},
	"growing at first":     {func(_ *rand.Rand, at float64) float64 { return min(1, 0.1+3*at) * 2 }, false},
	"a peak at the end":    {func(_ *rand.Rand, at float64) float64 { return 1 + 9*float64(int(at+0.15)) }, false},
	"shrinking":            {func(_ *rand.Rand, at float64) float64 { return 2 - at }, false},
	"slowly growing":       {func(_ *rand.Rand, at float64) float64 { return 1 + 3*at }, true},
	"slowly, with noise":   {func(r *rand.Rand, at float64) float64 { return noise(r) * (1 + 3*at) }, true},
	"a step at two thirds": {func(_ *rand.Rand, at float64) float64 { return 1 + float64(int(at+1./3)) }, true},
}

// noise is between 0.8 and 1.2, and ten times as much for half of the time.
func noise(r *rand.Rand) float64 {
	if r.IntN(2) == 0 {
		return 10
	}
	return 0.8 + 0.4*r.Float64()
}

// sampled is what a sample sees.
type sampled struct {
	process history.Event // of each of the two workers that nobody kills
	cluster.Sizes
}

// The figures that must not grow, with what makes them grow by a factor.
var mustNotGrow = map[string]func(f *sampled, by float64){
	"live heap":      func(f *sampled, by float64) { f.process.Heap = uint64(float64(f.process.Heap) * by) },
	"memory":         func(f *sampled, by float64) { f.process.Memory = uint64(float64(f.process.Memory) * by) },
	"goroutines":     func(f *sampled, by float64) { f.process.Goroutines = int(float64(f.process.Goroutines) * by) },
	"connections":    func(f *sampled, by float64) { f.Connections = int(float64(f.Connections) * by) },
	"table sessions": func(f *sampled, by float64) { f.Tables[0].Size = int64(float64(f.Tables[0].Size) * by) },
	"indexes of sessions": func(f *sampled, by float64) {
		f.Tables[0].Indexes = int64(float64(f.Tables[0].Indexes) * by)
	},
	"locks left by prunes": func(f *sampled, by float64) { f.Left = int(float64(f.Left) * by) },
	"table events, of each row": func(f *sampled, by float64) {
		f.Tables[1].Size = int64(float64(f.Tables[1].Size) * by)
	},
	"indexes of events, of each row": func(f *sampled, by float64) {
		f.Tables[1].Indexes = int64(float64(f.Tables[1].Indexes) * by)
	},
}

// judged is a run of half an hour, and what was called a violation of it.
func judged(t *testing.T, change func(f *sampled, at float64)) (*lab, []check.Violation) {
	t.Helper()
	var found []check.Violation
	l := &lab{options: options{workers: 4, report: t.TempDir(), duration: 30 * time.Minute},
		injected: &history.Faults{}, endurance: newEndurance()}
	l.judge = check.New(l.injected, func(v check.Violation) { found = append(found, v) }, func(string) {})
	for n := range 360 {
		at := float64(n) / 360
		f := sampled{history.Event{Kind: history.Measured, Heap: 40 << 20, Memory: 90 << 20, Goroutines: 200},
			cluster.Sizes{Connections: 60, Left: 1000, Tables: []cluster.TableSize{
				{Name: "sessions", Size: 4 << 20, Indexes: 4 << 20},
				{Name: "events", Counted: true, Size: 2 << 20, Indexes: 2 << 20, Rows: 2000}}}}
		change(&f, at)
		for worker := range 4 {
			x := f.process
			if x.Who = int64(worker) * history.Lives; worker >= 2 {
				x.Heap, x.Goroutines = x.Heap+uint64(n)<<20, x.Goroutines+n // somebody kills these
			}
			l.endurance.heard(x)
		}
		now := time.Duration(n) * 5 * time.Second
		l.endurance.sample(now, 100, l.spared)
		l.endurance.sizes(now, f.Sizes)
	}
	l.judgeGrowth()
	return l, found
}

func TestGrowthBeyondItsBoundIsAViolation(t *testing.T) {
	t.Parallel()
	for name, change := range mustNotGrow {
		for shape, s := range shapes {
			r := rand.New(rand.NewPCG(1, 2))
			_, found := judged(t, func(f *sampled, at float64) { change(f, s.of(r, at)) })
			var grown []string
			for _, v := range found {
				grown = append(grown, v.Check+": "+strings.Split(v.What, " has grown")[0])
			}
			var want []string
			if s.grows {
				want = []string{"growth: " + name}
			}
			if !slices.Equal(grown, want) {
				t.Errorf("%s, %s: found %q, want %q", name, shape, grown, want)
			}
		}
	}
}

// Whoever does not see the tables cannot say that they do not grow.
func TestTablesThatCouldNotBeMeasuredAreNoSuccess(t *testing.T) {
	t.Parallel()
	l, found := judged(t, func(*sampled, float64) {})
	if len(found) > 0 {
		t.Fatalf("found %v", found)
	}
	l.judge = check.New(l.injected, func(v check.Violation) { found = append(found, v) }, func(string) {})
	connections := l.endurance.named("connections")
	connections.Points = connections.Points[:179]
	l.judgeGrowth()
	const want = "the tables were measured 179 times, the processes 360 times"
	if len(found) != 1 || found[0].Check != "growth" || found[0].What != want {
		t.Errorf("found %v, want %q", found, want)
	}
}

// What a table keeps on purpose is no growth.
func TestATableMayGrowWithTheRowsThatItKeeps(t *testing.T) {
	t.Parallel()
	_, found := judged(t, func(f *sampled, at float64) {
		events := &f.Tables[1]
		by := func(n int64) int64 { return int64(float64(n) * (1 + 9*at)) }
		events.Rows, events.Size, events.Indexes = by(events.Rows), by(events.Size), by(events.Indexes)
	})
	if len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

// A file keeps the size of the most rows that there ever were, and new rows take the room of those that are gone.
func TestATableMayKeepTheRoomOfTheMostRowsThatItHad(t *testing.T) {
	t.Parallel()
	peaks := func(f *sampled, at float64) (most int64) {
		for _, peak := range []struct {
			at   float64
			rows int64
		}{{0.1, 3000}, {0.3, 6000}, {0.65, 13_000}} {
			if at >= peak.at {
				most = peak.rows
				f.Tables[1].Rows = 300
			}
			if at >= peak.at && at < peak.at+0.05 {
				f.Tables[1].Rows = peak.rows
			}
		}
		return max(most, 2000)
	}
	for _, c := range []struct {
		passing bool
		index   func(at float64) float64 // its bytes for each row
		want    int
	}{
		{false, func(float64) float64 { return 80 }, 0},
		{false, func(at float64) float64 { return 80 + 400*at }, 1},
		{true, func(at float64) float64 { return 60 + 60*float64(int(at+0.4)) }, 0}, // the room of two for one
		{true, func(at float64) float64 { return 60 + 300*at }, 1},
	} {
		_, found := judged(t, func(f *sampled, at float64) {
			most := peaks(f, at)
			events := &f.Tables[1]
			events.Passing = c.passing
			events.Size, events.Indexes = most*1100, int64(float64(most)*c.index(at))
		})
		if len(found) != c.want || len(found) > 0 &&
			!strings.HasPrefix(found[0].What, "indexes of events, of each row has grown") {
			t.Errorf("passing %v: found %v, want %d growing index", c.passing, found, c.want)
		}
	}
}

func TestTheReportShowsWhatHasGrownWithItsBoundAndItsPoints(t *testing.T) {
	t.Parallel()
	l, found := judged(t, func(f *sampled, at float64) { f.process.Heap += uint64(at * 100 * (1 << 20)) })
	const figures = "live heap has grown: the lower quartile of the last third of the run is 230.0 MiB, that of the " +
		"second third 163.3 MiB, and the bound 212.2 MiB"
	if len(found) != 1 || found[0].What != figures {
		t.Errorf("found %v, want %q", found, figures)
	}
	var err error
	if l.evidence, err = openEvidence(io.Discard, func(bool) {}, false); err != nil {
		t.Fatal(err)
	}
	defer l.evidence.close()
	must.Do(t, l.writeReport())
	text := must.Get(os.ReadFile(filepath.Join(l.report, "report.md")))(t)
	for _, want := range []string{"| live heap | 163.3 MiB | 230.0 MiB | 212.2 MiB | GROWN |", "## live heap has grown",
		"\n      900s 180.0 MiB\n", "| goroutines | 400 | 400 | 540 |  |", "![what was measured](report.svg)"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is not in the report", want)
		}
	}
	picture := must.Get(os.ReadFile(filepath.Join(l.report, "report.svg")))(t)
	if len(picture) > 60_000 || !strings.Contains(string(picture), "GROWN: live heap") {
		t.Errorf("the picture has %d bytes, want 60000 at most and the series that has grown", len(picture))
	}
	for d := xml.NewDecoder(strings.NewReader(string(picture))); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Calls are timed from their beginning to their grant or acknowledgement; those of a fault, and writes that sleep, are
// not.
func TestCallsOfTheLoadAreTimed(t *testing.T) {
	t.Parallel()
	e := newEndurance()
	at := func(ms int) history.Time { return history.Time(ms) * history.Time(time.Millisecond) }
	call := func(id int64, how, label string, from, to int) {
		e.heard(history.Event{Kind: history.Asks, Call: id, Label: label, At: at(from)})
		e.heard(history.Event{Kind: history.Has, Call: id, How: how, At: at(to)})
	}
	write := func(id int64, sleeps bool, class string, from, to int) {
		e.heard(history.Event{Kind: history.Writes, Op: id, Sleeps: sleeps, At: at(from)})
		e.heard(history.Event{Kind: history.Wrote, Op: id, Class: class, At: at(to)})
	}
	call(1, "try", "w0.0", 10, 12)
	call(2, "acquire", "w0.0/2", 10, 40)
	call(3, "try", "w0.0+storm1", 10, 5000)
	write(4, false, "", 10, 15)
	write(5, true, "", 10, 900)
	write(6, false, "lost", 10, 800)
	e.settled = at(1000)
	call(7, "try", "w0.0", 999, 1009)
	call(8, "try", "w0.0", 1001, 1004)
	for kind, want := range map[string]times{
		tried:    {all: trend.Spread{2e6, 10e6, 3e6}, calm: trend.Spread{3e6}},
		acquired: {all: trend.Spread{30e6}},
		wrote:    {all: trend.Spread{5e6}},
	} {
		if got := e.took[kind]; !slices.Equal(got.all, want.all) || !slices.Equal(got.calm, want.calm) {
			t.Errorf("%s: %v, in calm %v; want %v and %v", kind, got.all, got.calm, want.all, want.calm)
		}
	}
	if len(e.asked) != 0 {
		t.Errorf("%d calls are remembered for ever", len(e.asked))
	}
}

func TestNobodyKillsWhoIsMeasured(t *testing.T) {
	t.Parallel()
	l := &lab{options: options{workers: 5, report: "somewhere"}}
	for n := range l.workers {
		l.crew = append(l.crew, &member{n: n})
	}
	h := &hit{lab: l, rand: rand.New(rand.NewPCG(1, 2))}
	killed := make(map[int]bool)
	for range 200 {
		killed[mortal(h).n] = true
	}
	if got := sorted(killed); !slices.Equal(got, []int{2, 3, 4}) {
		t.Errorf("killed are %v, want 2, 3 and 4", got)
	}
}

// Whoever has had no grant, or no write, since the faults were over is named, and the others are not.
func TestAWorkerThatDoesNotWorkAgainIsAViolation(t *testing.T) {
	t.Parallel()
	var found []string
	l := &lab{injected: &history.Faults{}, endurance: newEndurance(), crew: []*member{{n: 0}, {n: 1}, {n: 2}},
		eye: &eye{}}
	l.judge = check.New(l.injected, func(v check.Violation) { found = append(found, v.Check+": "+v.What) },
		func(string) {})
	says := func(worker int64, kind history.Kind) {
		l.endurance.heard(history.Event{Kind: history.Asks, Who: worker * history.Lives, Call: worker})
		l.endurance.heard(history.Event{Kind: kind, Who: worker * history.Lives, Call: worker, At: history.Now()})
	}
	for n := range int64(3) {
		says(n, history.Has) // too soon
		says(n, history.Wrote)
	}
	l.isCalm(history.Now())
	says(0, history.Has)
	says(0, history.Wrote)
	says(1, history.Has)
	l.eye.failed.Store("refused")
	l.seesWork(t.Context(), 0)
	if want := "works again: for 0s after the last fault there was no write of worker 1; no grant of worker 2; " +
		"no write of worker 2; no look at the locks (refused)"; len(found) != 1 || found[0] != want {
		t.Fatalf("found %q, want %q", found, want)
	}
	l.seesWork(t.Context(), 0) // what the workers lack is told once
	if want := "works again: for 0s after the last fault there was no look at the locks (refused)"; len(found) != 2 ||
		found[1] != want {
		t.Errorf("found %q, want %q", found[1:], want)
	}
}
