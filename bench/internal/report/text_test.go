package report

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/internal/dev/must"
)

func TestNumbersHaveThreeFigures(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.00012: "0", 0.0456: "0.046", 0.5: "0.5", 1.2345: "1.23", 9.999: "10", 12.34: "12.3", 99.96: "100",
		844.6: "845", 1234: "1,234", 45600.4: "45,600", 1234567: "1,234,567", -1500: "-1,500", math.Inf(1): "∞",
	} {
		if got := Number(v); got != want {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
	}
	if got := Number(math.NaN()); got != "-" {
		t.Errorf("NaN: %q", got)
	}
}

// written has figures of three repetitions of one form, one of which failed for bare-sync.
func written(t *testing.T) (*Results, string) {
	t.Helper()
	r := &Results{Command: "bench <run>", Repetitions: 3, Servers: []Server{{Name: peer.ZooKeeper, Missing: "no java"}}}
	for _, name := range []string{ours, "bare-sync"} {
		l := r.Line(Place{peer.W1, Callers(8), name})
		for i, v := range []float64{4000, 1000, 2000} {
			if name == "bare-sync" && i == 1 {
				l.Failed = append(l.Failed, "a & b")
				continue
			}
			l.Set(Rate, i, v/2)
		}
	}
	r.Judge()
	var b strings.Builder
	must.Do(t, r.WriteText(&b))
	return r, b.String()
}

func TestTableShowsMediansWithTheirSpreadAndWhatIsMissing(t *testing.T) {
	_, text := written(t)
	for _, want := range []string{
		"1,000 (500–2,000)", "1,500 (1,000–2,000)", "NOT STARTED  ZooKeeper: no java", "FAILED bare-sync, 8 callers: " +
			"a & b", "≥ 1.3", "by the others",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "bare-sync") && strings.Contains(line, "│") && strings.Contains(line, "0 (0") {
			t.Errorf("a repetition that failed counts as 0: %s", line)
		}
	}
}

func TestJSONHasNoFigureWhereThereIsNone(t *testing.T) {
	r, _ := written(t)
	r.Line(Place{peer.W2, Waiters(8, InOne), "etcd"}).Set(Fair, 0, math.Inf(1))
	out := must.Get(json.Marshal(r))(t)
	for _, want := range []string{`"rate":[2000,null,1000]`, `"most_by_least":["infinite"]`} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%s is missing in %s", want, out)
		}
	}
}

func TestEachChartOfACrowdHasTheFormsWithItsFigure(t *testing.T) {
	r := &Results{}
	r.Line(Place{peer.W8, Many(64, Start), ours}).Set(ServerTime, 0, 1)
	r.Line(Place{peer.W8, Processes(8), ours}).Set(Rate, 0, 1)
	for file, want := range map[string][2]string{
		"w8.svg": {Many(64, Start), Processes(8)}, "w8-beside.svg": {Processes(8), Many(64, Start)},
	} {
		if got := r.Charts()[file]; !strings.Contains(got, want[0]) || strings.Contains(got, want[1]) {
			t.Errorf("%s has %v, %v, want only the first:\n%s", file, want[0], want[1], got)
		}
	}
}

func TestChartsAreWellFormedAndMarkTheBound(t *testing.T) {
	r, _ := written(t)
	r.Line(Place{peer.W1, Callers(8), "<none>"}) // no figures, and a name that needs an escape
	files := r.Charts()
	for _, name := range []string{"aims.svg", "w1.svg"} {
		in := xml.NewDecoder(strings.NewReader(files[name]))
		for {
			_, err := in.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", name, err, files[name])
			}
		}
		if strings.Contains(files[name], "NaN") || strings.Contains(files[name], "Inf") {
			t.Errorf("%s has a place that is no number:\n%s", name, files[name])
		}
	}
	if !strings.Contains(files["aims.svg"], `class="bound"`) {
		t.Error("aims.svg has no bound")
	}
	if len(files) != 2 {
		t.Errorf("%d files, want 2", len(files))
	}
}
