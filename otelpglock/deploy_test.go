package otelpglock_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/metrics"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/otelpglock"
	"github.com/pglock-dev/pglock/pglock"
)

// exported gives the labels of every series that Prometheus can see, from pglock-admin serve and from programs.
func exported(t *testing.T) map[string]map[string]bool {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	exporter := must.Get(otelprometheus.New(otelprometheus.WithRegisterer(registry)))(t)
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(exporter))
	o := must.Get(otelpglock.New(otelpglock.WithMeterProvider(meters), otelpglock.WithLockLabel(func(string) string {
		return "all"
	})))(t)
	for _, kind := range []pglock.EventKind{
		pglock.EventWait, pglock.EventGrant, pglock.EventFailed, pglock.EventRenew, pglock.EventRenewLate,
		pglock.EventRenewFailed, pglock.EventHeldLong, pglock.EventLost,
		pglock.EventRelease, pglock.EventOutlived, pglock.EventHandOver, pglock.EventWrite, pglock.EventStale,
		pglock.EventRefused,
		pglock.EventOutcomeUnknown, pglock.EventReconnect, pglock.EventPolling, pglock.EventUnnamed,
		pglock.EventObserver,
	} {
		o.Observe(t.Context(), pglock.Event{Kind: kind, At: time.Now(), Lock: "orders/1", Mode: pglock.ModeExclusive,
			TTL: time.Minute, Count: 1, Panics: 1,
			Place: 1, Reason: pglock.ReasonBroken, Age: time.Second, Took: time.Second, Connection: "listener",
			Err: errors.New("x")})
	}
	admin := must.Get(lockadmin.New(t.Context(), pgtest.Database(t).Pool(t)))(t)
	collector := must.Get(metrics.NewCollector(admin, metrics.Config{Top: metrics.DefaultTop}))(t)
	registry.MustRegister(collector)
	families := must.Get(registry.Gather())(t)
	found := map[string]map[string]bool{}
	for _, family := range families {
		labels := map[string]bool{"job": true, "instance": true, "pod": true, "container": true,
			"node": true} // of targets
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
			}
		}
		if family.GetMetric()[0].GetHistogram() == nil {
			found[family.GetName()] = labels
			continue
		}
		for _, part := range []string{"_sum", "_count", "_bucket"} {
			found[family.GetName()+part] = labels
		}
		labels["le"] = true
	}
	return found
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Targets                  []struct{ Expr, LegendFormat string }
}

type dashboard struct {
	Title, UID    string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct{ Name, Type, Definition string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	text := must.Get(os.ReadFile("../deploy/grafana/pglock.json"))(t)
	must.Do(t, json.Unmarshal(text, &d))
	return d
}

const rules = "../deploy/prometheus/pglock.rules.yml"

// expressions gives the PromQL of the dashboard and of the alerts, by where it is.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for i, target := range p.Targets {
			all[fmt.Sprintf("panel %q %d", p.Title, i)] = target.Expr
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			all["variable "+v.Name] = strings.TrimSuffix(strings.TrimPrefix(v.Definition, "label_values("), ", job)")
		}
	}
	text := must.Get(os.ReadFile(rules))(t)
	alerts := regexp.MustCompile(`(?m)^ {8}expr: (?:>-\n +)?(.+(?:\n {10}.+)*)$`).FindAllStringSubmatch(string(text), -1)
	if len(alerts) != strings.Count(string(text), "- alert:") || len(alerts) != 6 {
		t.Errorf("%d expressions of alerts", len(alerts))
	}
	for i, m := range alerts {
		all[fmt.Sprint("alert ", i+1)] = m[1]
	}
	return all
}

var (
	// A metric with its matchers, and the labels of an aggregation.
	selectors = regexp.MustCompile(`\b(pglock_\w+|up)\b(?:\{([^}]*)\})?`)
	grouping  = regexp.MustCompile(`\b(by|without) \(([^)]*)\)`)
	matchers  = regexp.MustCompile(`(\w+) ?(?:=~|!~|!=|=)`)
	legends   = regexp.MustCompile(`\{\{(\w+)\}\}`)
)

func TestTheDashboardAndTheAlertsUseMetricsThatExist(t *testing.T) {
	t.Parallel()
	exist, used := exported(t), map[string]bool{}
	check := func(where, expression string, more ...string) {
		labels := more
		for _, m := range grouping.FindAllStringSubmatch(expression, -1) {
			labels = append(labels, strings.Split(m[2], ", ")...)
		}
		for _, m := range selectors.FindAllStringSubmatch(grouping.ReplaceAllString(expression, ""), -1) {
			of, known := exist[m[1]]
			if used[m[1]] = true; !known {
				t.Errorf("%s uses %s, which nobody exports", where, m[1])
				continue
			}
			for _, l := range matchers.FindAllStringSubmatch(m[2], -1) {
				labels = append(labels, l[1])
			}
			for _, l := range labels {
				if !of[l] {
					t.Errorf("%s uses the label %s, which %s does not have", where, l, m[1])
				}
			}
		}
	}
	for where, expression := range expressions(t) {
		check(where, expression)
	}
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			for _, m := range legends.FindAllStringSubmatch(target.LegendFormat, -1) {
				check("the legend of panel "+p.Title, target.Expr, m[1])
			}
		}
	}
	page := must.Get(os.ReadFile("../docs/alerts.md"))(t)
	for _, name := range regexp.MustCompile("`(pglock_[a-z_]+)").FindAllStringSubmatch(string(page), -1) {
		if exist[name[1]] == nil && exist[name[1]+"_count"] == nil {
			t.Errorf("docs/alerts.md names %s, which nobody exports", name[1])
		}
	}
	for name := range exist {
		switch {
		case used[name], strings.HasSuffix(name, "_sum"), strings.HasSuffix(name, "_count"), name == "target_info",
			name == "pglock_lock_leases", name == "pglock_lock_leases_ending", name == "pglock_lock_waiters_dead":
		default:
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

func TestTheDashboardFitsTogether(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	if d.SchemaVersion < 41 || d.UID != "pglock" || len(d.Panels) < 20 {
		t.Errorf("schema %d, uid %q, %d panels", d.SchemaVersion, d.UID, len(d.Panels))
	}
	ids := map[int]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%q has the ID of another panel", p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%q has no description or no query", p.Title)
		}
		if at := p.GridPos; at.X < 0 || at.W < 1 || at.H < 1 || at.X+at.W > 24 {
			t.Errorf("%q is at %+v", p.Title, at)
		}
		for _, o := range d.Panels[:i] {
			a, b := p.GridPos, o.GridPos
			if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%q lies over %q", p.Title, o.Title)
			}
		}
	}
}

// Debian's package prometheus has promtool; .ci/run fetches it.
func TestPromtoolAcceptsTheAlertsAndTheDashboard(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool in PATH")
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	run("check", "rules", rules)
	run("test", "rules", "../deploy/prometheus/pglock.rules.test.yml")
	queries := "groups:\n  - name: dashboard\n    rules:\n"
	for where, expression := range expressions(t) {
		q := strings.NewReplacer("$__rate_interval", "5m", "$database", "a", "$program", "b").Replace(expression)
		queries += fmt.Sprintf("      - record: %s\n        expr: %q\n",
			strings.ToLower(regexp.MustCompile(`\W+`).ReplaceAllString(where, "_")), q)
	}
	file := filepath.Join(t.TempDir(), "queries.yml")
	must.Do(t, os.WriteFile(file, []byte(queries), 0o600))
	run("check", "rules", file)
}
