package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The heading of the steps stands over steps. If there is nothing to do about the first verdict, they are those of the
// next.
func TestAHeadingStandsOverSteps(t *testing.T) {
	t.Parallel()
	config, err := pgxpool.ParseConfig("postgres://app@127.0.0.1/app")
	if err != nil {
		t.Fatal(err)
	}
	o := &cli.Options{Schema: cli.DefaultSchema, Config: config, Getenv: func(string) string { return "" }}
	well := lockadmin.Verdict{Severity: lockadmin.SeverityOK, Text: "It is held."}
	broken := lockadmin.Verdict{Severity: lockadmin.SeverityNote, Text: "Somebody broke it."}
	dead := lockadmin.Verdict{Severity: lockadmin.SeverityOK, Text: "1 waiter is dead.",
		Steps: []lockadmin.Step{{Do: "Nothing to do."}}}
	for name, c := range map[string]struct {
		verdicts []lockadmin.Verdict
		ends     string
	}{
		"nothing is to be done": {[]lockadmin.Verdict{broken}, "Somebody broke it.\n"},
		"about the next":        {[]lockadmin.Verdict{well, dead}, "WHAT TO DO NEXT\n  1. Nothing to do.\n"},
	} {
		p := &cli.Page{Width: 100}
		DrawWhy(p, o, lockadmin.Explanation{Lock: "report", State: lockadmin.LockHidden, Verdicts: c.verdicts})
		if !strings.HasSuffix(p.String(), c.ends) {
			t.Errorf("%s: want %q at the end of\n%s", name, c.ends, p.String())
		}
	}
}

// The same command in another database, or in another schema, is another step.
func TestNoPlaceToLookAtIsLeftOut(t *testing.T) {
	t.Parallel()
	look := func(do, database, schema string) lockadmin.Step {
		return lockadmin.Step{Do: do, Run: lockadmin.RunAdmin, Command: "why report", Database: database,
			Schema: schema}
	}
	steps := whySteps(lockadmin.Explanation{Verdicts: []lockadmin.Verdict{{Steps: []lockadmin.Step{
		look("In one.", "one", ""), look("In two.", "two", ""), look("In schema two.", "", "two"),
		look("Again in two.", "two", ""), {Do: "Wait."}, {Do: "Or wait longer."}}}}})
	var told []string
	for _, s := range steps {
		told = append(told, s.Do)
	}
	if got := strings.Join(told, " "); got != "In one. In two. In schema two. Wait. Or wait longer." {
		t.Errorf("the steps are %q", got)
	}
}

// The queue passes over the dead: none of them is next.
func TestNoDeadWaiterIsNext(t *testing.T) {
	t.Parallel()
	waiter := func(holder string, alive bool) lockadmin.Waiter {
		return lockadmin.Waiter{Holder: holder, Alive: alive, Waiting: time.Minute}
	}
	dead, one, two := waiter("dead", false), waiter("one", true), waiter("two", true)
	for want, c := range map[string]struct {
		q       lockadmin.QueueFacts
		standby bool
	}{
		"1 waits; next: one 1m": {q: lockadmin.QueueFacts{Waiting: 1, Alive: &one, First: []lockadmin.Waiter{one}}},
		"nobody waits, and 1 is passed over": {q: lockadmin.QueueFacts{Waiting: 1, Dead: 1,
			First: []lockadmin.Waiter{dead}}},
		"2 wait, and 1 is passed over; next: one 1m, two 1m": {q: lockadmin.QueueFacts{Waiting: 3, Dead: 1, Alive: &one,
			First: []lockadmin.Waiter{dead, one, two}}},
		"1 waits, and 5 are passed over; next: one 1m": {q: lockadmin.QueueFacts{Waiting: 6, Dead: 5, Alive: &one,
			First: []lockadmin.Waiter{dead, dead, dead, dead, dead}}},
		"1 waits; next: dead 1m": {q: lockadmin.QueueFacts{Waiting: 1, First: []lockadmin.Waiter{dead}},
			standby: true},
	} {
		if got := queueText(c.q, !c.standby); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Beyond a thousand the overview counts rows, of free locks too: none of them needs to be in use.
func TestTheOverviewOfManyLocksCountsRows(t *testing.T) {
	t.Parallel()
	const want = "OK  No trouble was found. Here: more than 1,000 rows of locks, held and free."
	if got := overviewRest(lockadmin.Overview{Known: 1001}, 20); len(got) != 1 || got[0] != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The server has the number 0 for a prepared transaction.
func TestAPreparedTransactionIsNoProcessThatAnotherWaitsFor(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]lockadmin.Backend{
		"; waits for process 7, 8, 9; waits for a prepared transaction": {BlockedBy: []int{0, 7, 8, 9, 10}},
		": blocks another; waits for a prepared transaction":            {BlockedBy: []int{0}},
		": blocks another; waits for prepared transaction half": {BlockedBy: []int{0},
			BlockedByPrepared: "half"},
		": blocks another; waits for process 7": {BlockedBy: []int{7}},
	} {
		if text := processText(b); !strings.HasSuffix(text, want) {
			t.Errorf("%q, want %q at its end", text, want)
		}
	}
}
