package report

import (
	"math"
	"testing"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// results has figures for pglock and one other.
func results(p Place, m Metric, own, theirs []float64) *Results {
	r := &Results{}
	for i, v := range own {
		r.Line(Place{p.Workload, p.Where, ours}).Set(m, i, v)
	}
	for i, v := range theirs {
		if p.Peer == "" {
			break
		}
		r.Line(p).Set(m, i, v)
	}
	r.Judge()
	return r
}

func ratioOf(t *testing.T, r *Results, than string) Ratio {
	t.Helper()
	for _, q := range r.Ratios {
		if q.Than == than {
			return q
		}
	}
	t.Fatalf("no ratio to %q among %+v", than, r.Ratios)
	return Ratio{}
}

func TestRatioIsTheMedianOfTheRatiosOfEachRepetition(t *testing.T) {
	// The medians alone are 200 and 100, which is 2; the machine was slow in the second repetition for both.
	r := results(Place{peer.W1, Callers(64), "bare-sync"}, Rate, []float64{200, 60, 900}, []float64{100, 10, 100})
	q := ratioOf(t, r, "bare-sync")
	if q.Ratio != 6 || q.Min != 2 || q.Max != 9 || q.Ours != 200 || q.Other != 100 {
		t.Errorf("%+v", q)
	}
	if q.Met == nil || !*q.Met {
		t.Error("6 times is at least 3.5 times, and was not met")
	}
}

func TestTheBestOfTheBareStatementsIsShownBeside(t *testing.T) {
	r := results(Place{peer.W2, Processes(8), "zookeeper"}, Rate, []float64{200}, []float64{100})
	if q := ratioOf(t, r, "zookeeper"); !math.IsNaN(float64(q.Bare)) {
		t.Errorf("without bare statements: %v", q.Bare)
	}
	for name, rate := range map[string]float64{"bare-some": 150, "bare-handover": 300, "pgbench": 900} {
		r.Line(Place{peer.W2, Processes(8), name}).Set(Rate, 0, rate)
	}
	r.Judge()
	if q := ratioOf(t, r, "zookeeper"); q.Bare != 3 {
		t.Errorf("bare statements reach %v, want 3", q.Bare)
	}
	if q := ratioOf(t, r, "bare-handover"); q.Bare != 0.5 {
		t.Errorf("other bare statements than these reach %v, want 0.5", q.Bare)
	}
}

func TestAimIsMetUpToItsBoundAndNotBeyond(t *testing.T) {
	for _, c := range []struct {
		workload peer.Workload
		where    string
		metric   Metric
		than     string
		ours     float64
		theirs   float64
		met      bool
	}{
		{peer.W1, Processes(8), Rate, "bare-async", 75, 100, true},
		{peer.W1, Processes(8), Rate, "bare-async", 74.9, 100, false},
		{peer.W2, Processes(64), Rate, "zookeeper", 100, 100, true},
		{peer.W2, Processes(64), Rate, "zookeeper", 99.9, 100, false},
		{peer.W3, Leases(10000), ServerShare, "bare-renew", 20, 10, true},
		{peer.W3, Leases(10000), ServerShare, "bare-renew", 20.1, 10, false},
		{peer.W4, HolderDies, Late, "", 4, 0, true},
		{peer.W4, HolderDies, Late, "", 4.1, 0, false},
		{peer.W4, HolderDies, Late, "", -3, 0, true},
		{peer.W6, NewConnection, FirstGrant, "bare-async", 2, 1, true},
		{peer.W6, NewConnection, FirstGrant, "bare-async", 2.1, 1, false},
		{peer.W8, Many(1000, AtRest), ServerShare, "", 20, 0, true},
		{peer.W8, Many(1000, AtRest), ServerShare, "", 20.1, 0, false},
		{peer.W8, Many(64, Start), ServerTime, "bare-async", 5, 1, true},
		{peer.W8, Many(64, Start), ServerTime, "bare-async", 5.1, 1, false},
		{peer.W8, Many(10000, Ask), ServerTime, "", 500, 0, true},
		{peer.W8, Many(10000, Ask), ServerTime, "", 501, 0, false},
	} {
		r := results(Place{c.workload, c.where, c.than}, c.metric, []float64{c.ours}, []float64{c.theirs})
		q := ratioOf(t, r, c.than)
		if q.Metric != c.metric || q.Met == nil || *q.Met != c.met {
			t.Errorf("%s %s, ours %v, %s %v: %+v, met must be %v", c.where, c.metric, c.ours, c.than, c.theirs, q,
				c.met)
		}
	}
}

func TestTicketsOfOthersAreJudgedByTheSameWithoutThem(t *testing.T) {
	r := &Results{}
	for where, v := range map[string]float64{Processes(1): 1, Beside(1, 10000): 1.1, BesideLater(1, 10000): 1.2} {
		r.Line(Place{peer.W7, where, ours}).Set(P50, 0, v)
	}
	r.Judge()
	met := make(map[string]bool)
	for _, q := range r.Ratios {
		if q.Metric == P50 && q.Met != nil {
			met[q.Where] = *q.Met
			if q.other() != Processes(1) {
				t.Errorf("%s is judged by %q", q.Where, q.other())
			}
		}
	}
	if len(met) != 2 || !met[Beside(1, 10000)] || met[BesideLater(1, 10000)] {
		t.Errorf("met: %v", met)
	}
}

func TestSixtyFourProcessesAreJudgedByEight(t *testing.T) {
	r := &Results{}
	r.Line(Place{peer.W2, Processes(8), ours}).Set(Rate, 0, 100)
	r.Line(Place{peer.W2, Processes(64), ours}).Set(Rate, 0, 79)
	r.Judge()
	if q := ratioOf(t, r, ours); q.other() != Processes(8) || q.Ratio != 0.79 || q.Met == nil || *q.Met {
		t.Errorf("%+v, want 0.79 of the rate of 8, not met", q)
	}
}

func TestTheBareStatementsAreJudgedByTheirOwnOtherForm(t *testing.T) {
	r := &Results{}
	r.Line(Place{peer.W2, Processes(64), "bare-first"}).Set(Rate, 0, 900) // without the other form, as the last
	for name, rates := range map[string][2]float64{ours: {100, 79}, "bare-handover": {300, 120}} {
		r.Line(Place{peer.W2, Processes(8), name}).Set(Rate, 0, rates[0])
		r.Line(Place{peer.W2, Processes(64), name}).Set(Rate, 0, rates[1])
	}
	r.Line(Place{peer.W2, Processes(64), "bare-last"}).Set(Rate, 0, 900)
	r.Judge()
	if q := ratioOf(t, r, ours); q.Bare != 0.4 {
		t.Errorf("bare statements reach %v of their rate of 8, want 0.4", q.Bare)
	}
}

func TestHandOversBesideACrowdAreJudgedByThoseWithout(t *testing.T) {
	for rate, met := range map[float64]bool{90: true, 89.9: false} {
		r := &Results{}
		r.Line(Place{peer.W8, Processes(8), ours}).Set(Rate, 0, 100)
		r.Line(Place{peer.W8, BesideClients(8, 500), ours}).Set(Rate, 0, rate)
		r.Judge()
		if q := ratioOf(t, r, ours); q.other() != Processes(8) || q.Met == nil || *q.Met != met {
			t.Errorf("%v beside 100: %+v, met must be %v", rate, q, met)
		}
	}
}

func TestTheMedianDeathCounts(t *testing.T) {
	r := results(Place{peer.W4, HolderDies, "etcd"}, Late, []float64{1, 3, 30}, []float64{400, 500, 600})
	if q := ratioOf(t, r, ""); q.Ours != 3 || q.Max != 30 || q.Met == nil || !*q.Met {
		t.Errorf("median of 3 ms: %+v", q)
	}
}

func TestWhatDidNotRunIsNotJudged(t *testing.T) {
	r := results(Place{peer.W1, Processes(1), "bare-async"}, Rate, []float64{math.NaN()}, []float64{5})
	if len(r.Ratios) != 1 {
		t.Fatalf("%d ratios, want the one to bare-async: %+v", len(r.Ratios), r.Ratios)
	}
	if q := r.Ratios[0]; q.Met != nil || !math.IsNaN(float64(q.Ratio)) {
		t.Errorf("without a figure of ours: %+v", q)
	}
}

func TestEveryMetricThatIsJudgedHasAName(t *testing.T) {
	for _, a := range aims() {
		if names[a.metric] == "" {
			t.Errorf("%s, %s: metric %s has no name", a.workload, a.where, a.metric)
		}
	}
}
