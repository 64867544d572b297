package explain

import (
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/lockadmin"
)

func TestTheOverviewLeadsOn(t *testing.T) {
	t.Parallel()
	o := &cli.Options{Schema: cli.DefaultSchema, Getenv: func(string) string { return "" }}
	stuck := summaryView{Summary: lockadmin.Summary{Lock: "report", Severity: lockadmin.SeverityStuck},
		Why: "pglock-admin why report"}
	elsewhere := stuck
	elsewhere.Next = whyStep{Step: lockadmin.Step{Run: lockadmin.RunAdmin, Command: "why invoices"},
		Paste: "pglock-admin why invoices"}
	for name, c := range map[string]struct {
		locks       []summaryView
		known, busy int
		says, not   string
	}{
		"to the lock": {[]summaryView{stuck}, 2, 0, "What to do: pglock-admin why report\n", "longest"},
		"to the cause": {[]summaryView{elsewhere}, 2, 0, "What to do: pglock-admin why invoices\n",
			"longest"},
		"to those who wait": {nil, 3, 1, "waited longest: pglock-admin waiters --order age --limit 3\n",
			"What to do"},
		"to no others, if none are": {[]summaryView{stuck}, 1, 0, "Here: 1 lock in use, 0 held, none well.",
			"All others"},
		"past others, which are all": {[]summaryView{stuck}, 2, 0,
			"All others are well. Here: 2 locks in use, 0 held, 1 well.", "longest"},
		"past others, that somebody waits for": {[]summaryView{stuck}, 4, 1,
			"All others are well. Here: 4 locks in use, 0 held, 3 well, 1 of them BUSY (", "none"},
		"past too many others": {[]summaryView{stuck}, 1001, 0, "No other trouble was found. Here: more than 1,000 " +
			"rows of locks, held and free.", "well"},
		"past a guard of a lock that nobody has used": {[]summaryView{stuck}, 0, 0, "Here: 0 locks in use, 0 held.",
			"well"},
	} {
		view := overviewView{Overview: lockadmin.Overview{Known: c.known, Busy: c.busy,
			Well: max(0, c.known-len(c.locks))}, Locks: c.locks}
		for _, l := range c.locks {
			view.Overview.Locks = append(view.Overview.Locks, l.Summary)
		}
		p := &cli.Page{}
		drawOverview(p, o, view, 20)
		if said := p.String(); !strings.Contains(said, c.says) || strings.Contains(said, c.not) {
			t.Errorf("%s: want %q and no %q in\n%s", name, c.says, c.not, said)
		}
	}
}

// Also where nobody can read the locks, the overview says what could not be seen.
func TestTheOverviewSaysWhatWasNotSeenBehindALockedTable(t *testing.T) {
	t.Parallel()
	o := &cli.Options{Schema: cli.DefaultSchema, Getenv: func(string) string { return "" }}
	closed := lockadmin.Summary{Severity: lockadmin.SeverityStuck, Kind: "table"}
	view := overviewView{Overview: lockadmin.Overview{Locks: []lockadmin.Summary{closed}, Partly: true,
		Unseen: []string{"other users' connections"}}, Locks: []summaryView{{Summary: closed}}}
	p := &cli.Page{}
	drawOverview(p, o, view, 20)
	if said := p.String(); !strings.HasSuffix(said, "\nNot seen: other users' connections\n") {
		t.Errorf("want what was not seen at the end of\n%s", said)
	}
}
