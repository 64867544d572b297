package report

import (
	"math"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// comparedBy are the metrics of which ratios to each other peer are shown.
var comparedBy = []Metric{Rate, P50, FirstGrant, ClientCPU, ServerCPU}

// compared shows pglock as a multiple of every other peer in the same place, by the median of the ratios of each
// repetition.
func (r *Results) compared(b *strings.Builder) {
	t := newTable("pglock by the others, in the same place")
	t.AppendHeader(table.Row{"", "where", "by", "rate", "p50", "connected to grant", "client CPU", "server CPU"})
	var last Place
	rows := 0
	for _, l := range r.Lines {
		line := r.find(Place{l.Workload, l.Where, ours})
		if line == nil || line == l {
			continue
		}
		row, some := table.Row{string(l.Workload), l.Where, l.Peer}, false
		for _, m := range comparedBy {
			ratio := stats.Of(stats.Ratios(line.all(m), l.all(m)))
			some = some || !math.IsNaN(ratio.Median)
			row = append(row, Range(ratio))
		}
		if !some {
			continue
		}
		if place := (Place{Workload: l.Workload, Where: l.Where}); place != last {
			if rows > 0 {
				t.AppendSeparator()
			}
			last = place
		} else {
			row[0], row[1] = "", ""
		}
		t.AppendRow(row)
		rows++
	}
	if rows == 0 {
		return
	}
	render(b, t)
	b.WriteString("  median of the ratios of each repetition (least–most); more is better for the rate, less for the " +
		"rest\n\n")
}
