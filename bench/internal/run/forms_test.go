package run

import (
	"maps"
	"slices"
	"testing"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
	"github.com/pglock-dev/pglock/bench/internal/server"
)

// everything is the options of a whole run.
func everything() Options {
	return Options{Workloads: peer.Workloads(), Peers: peer.All(), Repetitions: 1}
}

func TestEachFormHasAPlaceOfItsOwn(t *testing.T) {
	for _, smoke := range []bool{false, true} {
		seen := make(map[report.Place]bool)
		for _, f := range forms(Options{Smoke: smoke}.sizes()) {
			place := report.Place{Workload: f.workload, Where: f.where}
			if seen[place] {
				t.Errorf("%v is there twice", place)
			}
			seen[place] = true
		}
	}
}

// An aim whose form or peer is misspelt would never be judged.
func TestEveryAimIsOfAFormThatRuns(t *testing.T) {
	const aims = 30
	var results report.Results
	o := everything()
	for _, f := range o.forms() {
		for _, k := range o.Peers {
			if !slices.Contains(k.In, f.workload) || !f.takes(k) {
				continue
			}
			l := results.Line(report.Place{Workload: f.workload, Where: f.where, Peer: k.Name})
			for _, m := range []report.Metric{report.Rate, report.P50, report.ServerCPU, report.ServerShare,
				report.ServerTime, report.Late, report.FirstGrant} {
				l.Set(m, 0, 1)
			}
		}
	}
	results.Judge()
	if len(results.Ratios) != aims {
		t.Errorf("%d aims are judged, want %d", len(results.Ratios), aims)
	}
	for _, q := range results.Ratios {
		if q.Met == nil {
			t.Errorf("no figures for %+v", q)
		}
	}
}

// A crowd takes two minutes to settle.
func TestCrowdsSettleInTheFirstRepetitionAlone(t *testing.T) {
	o := everything()
	o.Workloads, o.Repetitions = []peer.Workload{peer.W8}, 3
	servers := &server.Set{Running: map[peer.Server]*server.Running{peer.Postgres: {}}}
	times := make(map[string]int)
	for _, s := range New(o, servers, &report.Results{}, nil).plan() {
		times[s.lines[0].Where+" "+s.lines[0].Peer]++
	}
	want := map[string]int{
		"1,000 clients at rest pglock": 1, "8 processes pglock": 3, "8 processes, 500 clients at rest pglock": 1,
		"64 clients start pglock": 3, "64 clients start bare-async": 3, "10,000 goroutines ask pglock": 3,
	}
	if !maps.Equal(times, want) {
		t.Errorf("%v, want %v", times, want)
	}
}

func TestFormsAreChosenByTheirShortNames(t *testing.T) {
	o := everything()
	o.Forms = []string{"8p"}
	var got []string
	for _, f := range o.forms() {
		got = append(got, string(f.workload)+" "+f.where)
	}
	want := []string{
		"W1 8 processes", "W2 8 processes",
		"W7 8 processes", "W7 8 processes, 10,000 tickets", "W7 8 processes, 10,000 tickets later",
		"W8 8 processes", "W8 8 processes, 500 clients at rest",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
