package run

import (
	"slices"
	"testing"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/report"
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
	const aims = 26
	var results report.Results
	o := everything()
	for _, f := range o.forms() {
		for _, k := range o.Peers {
			if !slices.Contains(k.In, f.workload) || !f.takes(k) {
				continue
			}
			l := results.Line(report.Place{Workload: f.workload, Where: f.where, Peer: k.Name})
			for _, m := range []report.Metric{report.Rate, report.P50, report.ServerCPU, report.ServerShare,
				report.Late, report.FirstGrant} {
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
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
