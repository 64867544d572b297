// Package report holds the figures of a run and shows them: as tables, as JSON and as charts.
package report

import (
	"encoding/json"
	"math"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/procfs"
	"github.com/pglock-dev/pglock/bench/internal/stats"
)

// Metric is what a figure tells.
type Metric string

// The metrics. A workload has some of them; which, and how they are shown, is in the list of columns.go.
const (
	Rate        Metric = "rate"                     // pairs, hand-overs or writes a second
	P50         Metric = "p50_ms"                   // of a pair, a wait or a write
	P99         Metric = "p99_ms"                   //
	ClientCPU   Metric = "client_cpu_us"            // for each pair, hand-over or write
	ServerCPU   Metric = "server_cpu_us"            //
	Flushes     Metric = "flushes"                  // of PostgreSQL's log for each pair or write
	WAL         Metric = "wal_bytes"                //
	Statements  Metric = "statements"               // or commands, for each acquisition
	Fair        Metric = "most_by_least"            // served
	PerSecond   Metric = "statements_per_second"    //
	Beats       Metric = "statements_per_third_ttl" // for each process
	ClientShare Metric = "client_cpu_ms_per_second" //
	ServerShare Metric = "server_cpu_ms_per_second" //
	Connections Metric = "connections"              //
	ServerTime  Metric = "server_cpu_ms"            // until all are served
	AllServed   Metric = "all_served_ms"            //
	Others      Metric = "others_cpu_share"         // of the machine that went to neither client nor server, 0 to 1
	FirstGrant  Metric = "first_grant_ms"           // from the connection
	Late        Metric = "grant_after_expiry_ms"    // one figure for each death
)

// Figure is a number that JSON may not have: NaN, a missing figure, is null, and infinity is a word.
type Figure float64

// MarshalJSON writes the number with no more digits than it is good for.
func (f Figure) MarshalJSON() ([]byte, error) {
	v := float64(f)
	switch {
	case math.IsNaN(v):
		return []byte("null"), nil
	case math.IsInf(v, 0):
		return []byte(`"infinite"`), nil
	}
	if v != 0 {
		unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-4)
		v = math.Round(v/unit) * unit
	}
	return json.Marshal(json.Number(trimmed(v)))
}

// Place is one line of figures: who did what, and in which form.
type Place struct {
	Workload peer.Workload `json:"workload"`
	Where    string        `json:"where"` // such as "64 callers"
	Peer     string        `json:"peer"`
}

// Line has a figure for each metric and repetition.
type Line struct {
	Place
	Figures map[Metric][]Figure `json:"figures"`
	Failed  []string            `json:"failed,omitempty"` // why there is no figure, once for each repetition
}

// Servers is one of the servers of a run.
type Server struct {
	Name     peer.Server `json:"name"`
	Version  string      `json:"version,omitempty"`
	Settings string      `json:"settings,omitempty"`
	Missing  string      `json:"missing,omitempty"` // why it could not be started
}

// Results are all that a run has found.
type Results struct {
	Command     string            `json:"command"`
	Commit      string            `json:"commit,omitempty"`
	Began       time.Time         `json:"began"`
	Took        time.Duration     `json:"took_ns"`
	Repetitions int               `json:"repetitions"`
	Duration    time.Duration     `json:"duration_ns"` // of one measurement
	Machine     procfs.Machine    `json:"machine"`
	Servers     []Server          `json:"servers"`
	Peers       []string          `json:"peers"`   // that were asked for
	Modules     map[string]string `json:"modules"` // version by path
	Lines       []*Line           `json:"lines"`   // in the order of the tables
	Ratios      []Ratio           `json:"ratios"`
}

// Line is the line of a place, made where there is none.
func (r *Results) Line(p Place) *Line {
	if l := r.find(p); l != nil {
		return l
	}
	l := &Line{Place: p, Figures: make(map[Metric][]Figure)}
	r.Lines = append(r.Lines, l)
	return l
}

func (r *Results) find(p Place) *Line {
	for _, l := range r.Lines {
		if l.Place == p {
			return l
		}
	}
	return nil
}

// Set records the figure of a repetition, counted from 0. Omitted repetitions have none.
func (l *Line) Set(m Metric, repetition int, v float64) {
	for len(l.Figures[m]) <= repetition {
		l.Figures[m] = append(l.Figures[m], Figure(math.NaN()))
	}
	l.Figures[m][repetition] = Figure(v)
}

// all are the figures of a metric, with NaN where a repetition has none.
func (l *Line) all(m Metric) []float64 {
	if l == nil {
		return nil
	}
	values := make([]float64, len(l.Figures[m]))
	for i, f := range l.Figures[m] {
		values[i] = float64(f)
	}
	return values
}

// spread is over the repetitions that have a figure.
func (l *Line) spread(m Metric) stats.Spread {
	var there []float64
	for _, v := range l.all(m) {
		if !math.IsNaN(v) {
			there = append(there, v)
		}
	}
	return stats.Of(there)
}
