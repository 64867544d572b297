package report

import (
	"fmt"
	"math"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// Charts are the SVG files by name: the aims, and one for each workload that ran.
func (r *Results) Charts() map[string]string {
	files := make(map[string]string)
	if len(r.Ratios) > 0 {
		files["aims.svg"] = r.aimsChart().svg()
	}
	for _, c := range []struct {
		workload peer.Workload
		metric   Metric
		file     string
		tells    string
	}{
		{peer.W1, Rate, "w1.svg", "pairs a second; medians, with the least and the most of the repetitions"},
		{peer.W2, Rate, "w2.svg", "hand-overs a second; medians, with the least and the most of the repetitions"},
		{peer.W3, ServerShare, "w3.svg", "the server's processor time, milliseconds a second; less is better"},
		{peer.W4, Late, "w4.svg", "milliseconds from the expiry to the next grant: median, least and worst; less is " +
			"better"},
		{peer.W5, Rate, "w5.svg", "writes a second; medians, with the least and the most of the repetitions"},
		{peer.W6, FirstGrant, "w6.svg", "milliseconds from the connection to the first grant; medians; less is better"},
		{peer.W7, P50, "w7.svg", "milliseconds of a pair; medians, with the least and the most of the repetitions; " +
			"less is better"},
		{peer.W8, ServerTime, "w8.svg", "milliseconds of the server's processor time until all are served; medians; " +
			"less is better"},
		{peer.W8, Rate, "w8-beside.svg", "hand-overs a second; medians, with the least and the most of the " +
			"repetitions"},
	} {
		chart := r.workloadChart(c.workload, c.metric, c.tells)
		if c.workload == peer.W4 {
			chart.least, chart.most = 0.5, 5000
			chart.describes += "; on a scale of tenfolds"
		}
		if len(chart.groups) > 0 {
			files[c.file] = chart.svg()
		}
	}
	return files
}

// aimsChart shows how far each ratio is from its bound: right of it the aim is met.
func (r *Results) aimsChart() chart {
	c := chart{
		title: "The aims", describes: "each ratio by its bound, on a scale of doublings; right of the line the aim " +
			"is met",
		least: 0.125, most: 32, bound: true, boundText: "bound",
	}
	for _, q := range r.Ratios {
		title := string(q.Workload) + ", " + q.Where
		if len(c.groups) == 0 || c.groups[len(c.groups)-1].title != title {
			c.groups = append(c.groups, group{title: title})
		}
		g := &c.groups[len(c.groups)-1]
		g.bars = append(g.bars, q.bar())
	}
	return c
}

func (q Ratio) bar() bar {
	b := bar{label: names[q.Metric], text: fmt.Sprintf("%s (%s)", Number(float64(q.Ratio)), q.bound())}
	if q.Than != "" {
		b.label += " × " + q.other()
	}
	if q.Met == nil {
		b.text, b.hasNoAxisValue = "no figures", true
		return b
	}
	b.class = "missed"
	if *q.Met {
		b.class = "met"
	}
	score := func(v Figure) float64 {
		if q.Most {
			return float64(q.Aim) / math.Max(float64(v), 1e-9) // below zero and nothing at all are as good as can be
		}
		return float64(v) / float64(q.Aim)
	}
	b.value = score(q.Ratio)
	b.least, b.most = min(score(q.Min), score(q.Max)), max(score(q.Min), score(q.Max))
	return b
}

// workloadChart shows one metric of everyone, a group for each form; of W8, for each that has the metric.
func (r *Results) workloadChart(w peer.Workload, m Metric, tells string) chart {
	c := chart{title: tables[w].title, describes: tells}
	for _, l := range r.Lines {
		if l.Workload != w || w == peer.W8 && l.Figures[m] == nil {
			continue
		}
		if len(c.groups) == 0 || c.groups[len(c.groups)-1].title != l.Where {
			c.groups = append(c.groups, group{title: l.Where})
		}
		g := &c.groups[len(c.groups)-1]
		s := l.spread(m)
		b := bar{label: l.Peer, value: s.Median, least: s.Min, most: s.Max, text: Number(s.Median), class: "other"}
		if l.Peer == ours {
			b.class = "ours"
		}
		if math.IsNaN(s.Median) || math.IsInf(s.Median, 0) {
			b.hasNoAxisValue = true
		}
		g.bars = append(g.bars, b)
	}
	return c
}
