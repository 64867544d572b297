package report

import (
	"fmt"
	"math"
	"strings"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// The forms of workloads, as tables name them.
const (
	OneCaller  = "1 caller"
	InOne      = "in one process"
	Spread8    = "in 8 processes"
	HolderDies = "holder killed"

	NewConnection = "new connection"
)

// Callers names how many callers there are.
func Callers(n int) string {
	if n == 1 {
		return OneCaller
	}
	return fmt.Sprint(n, " callers")
}

// Processes names how many processes of one caller each there are.
func Processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprint(n, " processes")
}

// Waiters names how many wait, and where.
func Waiters(n int, where string) string { return fmt.Sprint(n, " waiters ", where) }

// Beside names how many processes there are, and how many tickets of others.
func Beside(n, tickets int) string {
	return Processes(n) + ", " + Number(float64(tickets)) + " tickets"
}

// BesideLater is the same with tickets that came when the processes had connected.
func BesideLater(n, tickets int) string { return Beside(n, tickets) + " later" }

// Leases names how many are held.
func Leases(n int) string { return Number(float64(n)) + " leases" }

// An aim bounds a figure of pglock: as a multiple of a peer's, or, where no peer is named, by itself.
type aim struct {
	workload peer.Workload
	where    string
	metric   Metric
	than     string  // the other peer; "" for none
	inverse  bool    // the ratio is the other's by ours: less is better, and the ratio tells how many times
	worst    bool    // the worst repetition counts, not the middle
	most     bool    // the bound is the most that may be; else the least that must be
	bound    float64 //
}

// aims are the project's, in the order in which it has them.
func aims() []aim {
	w1 := func(callers int, than string, bound float64) aim {
		return aim{workload: peer.W1, where: Callers(callers), metric: Rate, than: than, bound: bound}
	}
	list := []aim{
		w1(1, "bare-async", 0.95), w1(1, "etcd", 2.5), w1(1, "redislock-flushed", 1.2),
		w1(8, "bare-sync", 1.4), w1(8, "etcd", 2), w1(8, "redislock-flushed", 1.1),
		w1(64, "bare-sync", 3.5), w1(64, "bare-async", 3.5), w1(64, "pgbench", 4), w1(64, "etcd", 5), w1(64, "zookeeper", 5),
		w1(64, "redislock-flushed", 1.3), w1(64, "advisory", 0.8),
	}
	for _, n := range []int{8, 64} {
		where := Waiters(n, Spread8)
		w2 := func(than string, bound float64) aim {
			return aim{workload: peer.W2, where: where, metric: Rate, than: than, bound: bound}
		}
		list = append(list, w2("bare-handover", 0.9), w2("zookeeper", 3), w2("etcd", 5),
			aim{workload: peer.W2, where: where, metric: Statements, most: true, bound: 2},
			aim{workload: peer.W2, where: where, metric: Fair, most: true, bound: 1.1})
	}
	for _, n := range []int{8, 64} {
		where := Waiters(n, InOne)
		list = append(list, aim{workload: peer.W2, where: where, metric: Rate, than: "advisory", bound: 8},
			aim{workload: peer.W2, where: where, metric: Statements, most: true, bound: 0.1},
			aim{workload: peer.W2, where: where, metric: Fair, most: true, bound: 1.1})
	}
	return append(list,
		aim{workload: peer.W3, where: Leases(1000), metric: Beats, most: true, bound: 1},
		aim{workload: peer.W3, where: Leases(10000), metric: Beats, most: true, bound: 1},
		aim{workload: peer.W3, where: Leases(10000), metric: ServerShare, than: "bare-renew", most: true, bound: 1.5},
		aim{workload: peer.W4, where: HolderDies, metric: Late, most: true, worst: true, bound: 10},
		aim{workload: peer.W4, where: HolderDies, metric: Late, than: "redislock", inverse: true, bound: 5},
		aim{workload: peer.W4, where: HolderDies, metric: Late, than: "etcd", inverse: true, bound: 50},
		aim{workload: peer.W5, where: Callers(16), metric: Rate, than: "plain-write", bound: 0.85},
	)
}

// Ratio is an aim and what came of it.
type Ratio struct {
	Workload peer.Workload `json:"workload"`
	Where    string        `json:"where"`
	Metric   Metric        `json:"what"`
	Than     string        `json:"than,omitempty"` // the other peer
	Ours     Figure        `json:"ours"`           // median, or the worst where that counts
	Other    Figure        `json:"other"`
	Ratio    Figure        `json:"ratio"` // median of the ratios of each repetition; ours where there is no other
	Min      Figure        `json:"ratio_min"`
	Max      Figure        `json:"ratio_max"`
	Most     bool          `json:"at_most"` // the aim is a most
	Inverse  bool          `json:"inverse"` // the ratio is the other's by ours
	Aim      Figure        `json:"aim"`
	Bare     Figure        `json:"bare"` // the ratio that the best of the bare statements reaches in the same place; NaN where there is none
	Met      *bool         `json:"met"`  // nil where there are no figures
}

// Judge compares with the aims those figures that there are. Aims of workloads or forms that did not run are left out.
func (r *Results) Judge() {
	r.Ratios = nil
	for _, a := range aims() {
		ours := r.find(Place{a.workload, a.where, "pglock"})
		if ours == nil {
			continue
		}
		var other *Line
		if a.than != "" {
			if other = r.find(Place{a.workload, a.where, a.than}); other == nil {
				continue
			}
		}
		q := a.judge(ours, other)
		q.Bare = r.bare(a, other)
		r.Ratios = append(r.Ratios, q)
	}
}

// bare is how the best of the bare statements compares with the other peer: what this machine allows.
func (r *Results) bare(a aim, other *Line) Figure {
	best := math.NaN()
	for _, l := range r.Lines {
		if other == nil || a.metric != Rate || l.Workload != a.workload || l.Where != a.where || l.Peer == a.than || !strings.HasPrefix(l.Peer, "bare-") {
			continue
		}
		if q := stats.Of(stats.Ratios(l.all(a.metric), other.all(a.metric))).Median; !(q <= best) {
			best = q
		}
	}
	return Figure(best)
}

func (a aim) judge(ours, other *Line) Ratio {
	result := Ratio{
		Workload: a.workload, Where: a.where, Metric: a.metric, Than: a.than,
		Most: a.most, Inverse: a.inverse, Aim: Figure(a.bound),
	}
	own := ours.spread(a.metric)
	ratio, value := own, own.Median
	switch {
	case other == nil:
		result.Other = Figure(math.NaN())
	case a.inverse: // deaths are not paired: each has its own phase
		theirs := other.spread(a.metric)
		result.Other = Figure(theirs.Median)
		q := theirs.Median / math.Max(own.Median, leastLate)
		ratio = stats.Spread{Median: q, Min: q, Max: q, N: min(own.N, theirs.N)}
		value = q
	default:
		result.Other = Figure(other.spread(a.metric).Median)
		ratio = stats.Of(stats.Ratios(ours.all(a.metric), other.all(a.metric)))
		value = ratio.Median
	}
	result.Ours = Figure(own.Median)
	if a.worst {
		result.Ours, value = Figure(own.Max), own.Max
	}
	result.Ratio, result.Min, result.Max = Figure(value), Figure(ratio.Min), Figure(ratio.Max)
	if !math.IsNaN(value) {
		met := value >= a.bound
		if a.most {
			met = value <= a.bound
		}
		result.Met = &met
	}
	return result
}

// leastLate in milliseconds is the least that counts as a divisor: below it two clock readings tell nothing.
const leastLate = 0.1
