package report

import (
	"cmp"
	"math"
	"strings"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// An aim bounds a figure of pglock: as a multiple of another figure or, if there is none, by itself.
type aim struct {
	workload peer.Workload
	where    string
	metric   Metric
	than     string  // the other peer; "" for none
	beside   string  // the form of the other, where it is not the same
	most     bool    // the bound is the most that may be; else the least that must be
	bound    float64 //
}

// aims are the project's.
func aims() []aim {
	rate := func(w peer.Workload, where, than string, bound float64) aim {
		return aim{workload: w, where: where, metric: Rate, than: than, bound: bound}
	}
	list := []aim{
		rate(peer.W1, Callers(1), "bare-async", 0.85), rate(peer.W1, Callers(8), "bare-sync", 1.3),
		rate(peer.W1, Callers(64), "bare-sync", 3.5), rate(peer.W1, Callers(64), "bare-batched", 0.5),
		rate(peer.W1, Processes(1), "bare-async", 0.75), rate(peer.W1, Processes(8), "bare-async", 0.75),
		rate(peer.W1, Processes(64), "bare-async", 0.75),
		rate(peer.W2, Processes(8), "bare-handover", 0.65), rate(peer.W2, Processes(8), "zookeeper", 1.3),
		rate(peer.W2, Processes(64), "bare-handover", 1), rate(peer.W2, Processes(64), "zookeeper", 1),
		rate(peer.W2, Processes(64), "etcd", 2),
		{workload: peer.W2, where: Processes(64), metric: Rate, than: ours, beside: Processes(8), bound: 0.8},
		{workload: peer.W3, where: Leases(10000), metric: ServerShare, than: "bare-renew", most: true, bound: 2},
		{workload: peer.W4, where: HolderDies, metric: Late, most: true, bound: 4},
		rate(peer.W5, Callers(1), "plain-write", 0.7), rate(peer.W5, Callers(16), "plain-write", 0.6),
		{workload: peer.W6, where: NewConnection, metric: FirstGrant, than: "bare-async", most: true, bound: 2},
	}
	for _, n := range []int{1, 8} {
		for _, where := range []string{Beside(n, 10000), BesideLater(n, 10000)} {
			for _, m := range []Metric{P50, ServerCPU} {
				list = append(list, aim{workload: peer.W7, where: where, metric: m, than: ours, beside: Processes(n),
					most: true, bound: 1.1})
			}
		}
	}
	return append(list,
		aim{workload: peer.W8, where: Many(1000, AtRest), metric: ServerShare, most: true, bound: 20},
		aim{workload: peer.W8, where: BesideClients(8, 500), metric: Rate, than: ours, beside: Processes(8),
			bound: 0.9},
		aim{workload: peer.W8, where: Many(64, Start), metric: ServerTime, than: "bare-async", most: true, bound: 5},
		aim{workload: peer.W8, where: Many(10000, Ask), metric: ServerTime, most: true, bound: 500},
	)
}

// ours is the peer that has aims.
const ours = "pglock"

// Ratio is an aim and what came of it.
type Ratio struct {
	Workload peer.Workload `json:"workload"`
	Where    string        `json:"where"`
	Metric   Metric        `json:"what"`
	Than     string        `json:"than,omitempty"`   // the other peer
	Beside   string        `json:"beside,omitempty"` // the other's form, where it is not the same
	Ours     Figure        `json:"ours"`             // median
	Other    Figure        `json:"other"`
	Ratio    Figure        `json:"ratio"` // median of the ratios of each repetition; ours where there is no other
	Min      Figure        `json:"ratio_min"`
	Max      Figure        `json:"ratio_max"`
	Most     bool          `json:"at_most"` // the aim is a most
	Aim      Figure        `json:"aim"`
	Bare     Figure        `json:"bare"` // the ratio of the best bare statements there; NaN if there are none
	Met      *bool         `json:"met"`  // nil where there are no figures
}

// Judge compares the available figures with the aims. It leaves out aims of workloads or forms that did not run.
func (r *Results) Judge() {
	r.Ratios = nil
	for _, a := range aims() {
		line := r.find(Place{a.workload, a.where, ours})
		if line == nil {
			continue
		}
		var other *Line
		if a.than != "" {
			if other = r.find(Place{a.workload, cmp.Or(a.beside, a.where), a.than}); other == nil {
				continue
			}
		}
		q := a.judge(line, other)
		q.Bare = r.bare(a, other)
		r.Ratios = append(r.Ratios, q)
	}
}

// bare is how the best of the bare statements compares with the other peer, or with its own other form: what this
// machine allows.
func (r *Results) bare(a aim, other *Line) Figure {
	best := math.NaN()
	for _, l := range r.Lines {
		if other == nil || a.metric != Rate || l.Workload != a.workload || l.Where != a.where || l.Peer == a.than ||
			!strings.HasPrefix(l.Peer, "bare-") {
			continue
		}
		than := other
		if a.beside != "" {
			than = r.find(Place{a.workload, a.beside, l.Peer})
		}
		if q := stats.Of(stats.Ratios(l.all(a.metric), than.all(a.metric))).Median; q > best || math.IsNaN(best) {
			best = q
		}
	}
	return Figure(best)
}

func (a aim) judge(line, other *Line) Ratio {
	own := line.spread(a.metric)
	ratio, theirs := own, math.NaN()
	if other != nil {
		ratio, theirs = stats.Of(stats.Ratios(line.all(a.metric), other.all(a.metric))), other.spread(a.metric).Median
	}
	result := Ratio{
		Workload: a.workload, Where: a.where, Metric: a.metric, Than: a.than, Beside: a.beside, Most: a.most,
		Aim:  Figure(a.bound),
		Ours: Figure(own.Median), Other: Figure(theirs),
		Ratio: Figure(ratio.Median), Min: Figure(ratio.Min), Max: Figure(ratio.Max),
	}
	if !math.IsNaN(ratio.Median) {
		met := ratio.Median >= a.bound
		if a.most {
			met = ratio.Median <= a.bound
		}
		result.Met = &met
	}
	return result
}
