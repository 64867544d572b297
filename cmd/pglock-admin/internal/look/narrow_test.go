package look

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func heldLock(name string) LockView {
	now := time.Now()
	return ViewOf(pglock.LockInfo{Name: name, Held: true, Holder: "host/worker[4711]", Token: 12, TTL: time.Minute,
		Remaining:  45 * time.Second,
		AcquiredAt: now, ExpiresAt: now.Add(45 * time.Second), Mode: pglock.ModeLimit, Limit: 3, Slot: 2})
}

func TestATableThatIsTooWideForTheTerminalIsDrawnOtherwise(t *testing.T) {
	t.Parallel()
	drawn := func(width int) string {
		p := &cli.Page{Width: width}
		drawList(p, ListView{Locks: []ListedLock{{LockView: heldLock("report")}, {LockView: heldLock("my job")}}},
			listFlags{order: "name"})
		return p.String()
	}
	for width, want := range map[int][]string{
		0:   {"LOCK      VERDICT  MODE", "LEASE", "'my job'  "},
		120: {"LOCK      VERDICT  MODE", "LEASE", "'my job'  "},
		80:  {"LOCK      VERDICT  MODE", "EXPIRES-IN  WAITING\n", "'my job'  "},
		40: {"LOCK        report\nVERDICT     ?\nMODE        limit 3 #2\nHOLDER      host/worker[4711]\n",
			"WAITING     -\n\nLOCK        'my job'\n"},
	} {
		text := drawn(width)
		screens.InOrder(t, text, want...)
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); width > 0 && n > width {
				t.Errorf("at %d: %d columns: %s", width, n, line)
			}
		}
	}
	if strings.Contains(drawn(80), "HELD-FOR") {
		t.Errorf("at 80 one column is left out, which show tells:\n%s", drawn(80))
	}
}

func TestNameOfAnApplicationCannotWriteToTheTerminal(t *testing.T) {
	t.Parallel()
	p := &cli.Page{Width: 80}
	drawBackends(p,
		ShowView{Backends: []lockadmin.Backend{{Use: lockadmin.BackendWrite, PID: 7,
			Application: "a\x1b[2Jb", User: "u\nx",
			Resource: "r\x1b", Client: "c\x1b", State: "s\x1b"}}})
	said := p.String()
	if strings.ContainsAny(said, "\x1b") {
		t.Errorf("%q", said)
	}
	for _, text := range []string{"7", shown.Text("a\x1b[2Jb"), shown.Text("u\nx"), shown.Text("c\x1b"),
		shown.Text("s\x1b")} {
		if !strings.Contains(said, text) {
			t.Errorf("%q is missing in\n%s", text, said)
		}
	}
	for _, width := range []int{0, 40, 80} {
		p := &cli.Page{Width: width}
		drawEndings(p, &cli.Options{}, ShowView{Lock: heldLock("report"), Holders: []LockView{heldLock("report")},
			Backends: []lockadmin.Backend{{Use: lockadmin.BackendHeartbeat, PID: 7,
				User: "app"}}})
		if said := p.String(); !strings.Contains(said, "pglock-admin break report") ||
			!strings.Contains(said, "pg_terminate_backend(7)") {
			t.Errorf("at %d it does not say how to end the lease:\n%s", width, said)
		}
		for line := range strings.Lines(p.String()) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); width > 0 && n > width &&
				!strings.Contains(line, "pglock-admin break") && !strings.Contains(line, "pg_terminate_backend(") {
				t.Errorf("at %d: %d columns: %s", width, n, line)
			}
		}
	}
}

// Those who stand in the way are no heartbeats, and a prepared transaction has no process to end.
func TestShowNamesWhatEachProcessDoes(t *testing.T) {
	t.Parallel()
	v := ShowView{Lock: heldLock("report"), Holders: []LockView{heldLock("report")},
		Backends: []lockadmin.Backend{
			{Use: lockadmin.BackendRow, PID: 7, User: "alice"},
			{Use: lockadmin.BackendBlocker, Prepared: "payment\x1b7", User: "bob"},
			{Use: lockadmin.BackendAtFence, PID: 9, Resource: "accounts", User: "app"},
		}}
	p := &cli.Page{}
	drawBackends(p, v)
	drawEndings(p, &cli.Options{}, v)
	for _, want := range []string{"7  has locked the lock's row", `-  blocks one of these, prepared as "payment\x1b7"`,
		"9  waits to write to accounts",
		"pglock-admin why report"} {
		if !strings.Contains(p.String(), want) {
			t.Errorf("no %q in\n%s", want, p.String())
		}
	}
	if strings.Contains(p.String(), "heartbeat\n") || strings.Contains(p.String(), "pg_terminate_backend") {
		t.Error(p.String())
	}
}

// A commit that waits for a standby is made here: to end its process ends the wait alone.
func TestShowAdvisesNobodyToEndACommitThatWaitsForAStandby(t *testing.T) {
	t.Parallel()
	write := lockadmin.Backend{Use: lockadmin.BackendWrite, PID: 7, Resource: "report", User: "app", State: "active",
		WaitsFor: "IPC: SyncRep"}
	idle := lockadmin.Backend{Use: lockadmin.BackendWrite, PID: 8, Resource: "report", User: "me", MayEnd: true,
		State: "idle in transaction"}
	for want, backends := range map[string][]lockadmin.Backend{
		"pg_terminate_backend(8)": {write, idle},
		"":                        {write},
	} {
		p := &cli.Page{}
		drawEndings(p, &cli.Options{}, ShowView{Lock: heldLock("report"), Backends: backends})
		said := p.String()
		if strings.Contains(said, "(7)") || strings.Contains(said, "lacks the right") ||
			!strings.Contains(said, "pg_stat_replication") || !strings.Contains(said, "a failover may lose it") ||
			strings.Contains(said, "pg_terminate_backend") != (want != "") || !strings.Contains(said, want) {
			t.Errorf("want %q in\n%s", want, said)
		}
	}
}
