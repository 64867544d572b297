package browser

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

var update = flag.Bool("update", false, "write the pictures of docs again")

// TestPictures draws the pictures of docs/dashboard.md. Without -update it only checks that there is something to draw.
func TestPictures(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice, withTitle("production, eu-1"))
	s.scene()
	p := open(t, s.home, "", 1240, 760)
	p.text("#summary", "waiting")
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		p.do(chromedp.EmulateViewport(1240, 990, chromedp.EmulateScale(1)))
		p.go_("#/locks?order=waiting", "#summary", "waiting")
		p.picture("dashboard-locks-" + scheme)
		p.do(chromedp.EmulateViewport(1240, 1400, chromedp.EmulateScale(1)))
		p.go_("#/lock?name=nightly-report", ".timeline-picture", "reporter")
		p.text(".verdict", "")
		p.picture("dashboard-lock-" + scheme)
	}
	p.scheme("light")
	p.do(chromedp.EmulateViewport(1240, 700, chromedp.EmulateScale(1)))
	p.go_("#/sessions", "table", "app-1")
	p.picture("dashboard-sessions-light")
	p.do(chromedp.EmulateViewport(360, 740, chromedp.EmulateScale(1.5)))
	p.go_("#/locks?order=waiting", "#summary", "waiting")
	p.picture("dashboard-phone-locks")
	p.go_("#/lock?name=nightly-report", ".timeline-picture", "reporter")
	p.picture("dashboard-phone-lock")
	p.scheme("dark")
	p.click(".actions button.danger")
	p.text("dialog", "Break this lease?")
	p.picture("dashboard-phone-break")
}

// disguise gives the test's server and database the names that some of an operator's would have.
const disguise = `(() => {
	const names = { server: 'db-1.example.com:5432', database: 'app' };
	for (const [name, as] of Object.entries(names)) {
		const real = document.querySelector('meta[name=pglock-' + name + ']').content;
		for (const e of document.querySelectorAll('.place .text, dialog .text')) {
			if (e.textContent === real) e.textContent = as;
		}
	}
})()`

// scene is a night with a slow report, a dead holder, a late one, readers and a semaphore.
func (s *stage) scene() {
	s.t.Helper()
	reporter := func(n, pid int) string { return fmt.Sprintf("app-%d/reporter[%d]", n, pid) }
	s.past("nightly-report",
		tenure{reporter(3, 60), 71, 62, lockadmin.EventRelease, "", ""},
		tenure{reporter(1, 4288), 61, 44, lockadmin.EventBreak, "alice", "host is down, ticket OPS-17"},
		tenure{reporter(2, 701), 44, 36, lockadmin.EventRelease, "", ""},
		tenure{reporter(4, 82), 34, 29, lockadmin.EventTakeover, "", ""},
		tenure{reporter(3, 71), 29, 15, lockadmin.EventRelease, "", ""})
	must.Get(s.admin.SetHistory(s.t.Context(), lockadmin.HistoryChange{Level: lockadmin.HistoryAll}))(s.t)
	metadata := []byte(`{"job": "close the books", "night": "2026-11-22", "trace": "b7ad6b71"}`)
	s.hold(reporter(1, 4711), "nightly-report", pglock.WithMetadata(metadata))
	s.queue(reporter(2, 812), "nightly-report")
	s.queue(reporter(3, 77), "nightly-report")
	s.queue(reporter(4, 97), "nightly-report")
	s.hold("app-2/billing[913]", "accounts/16")
	s.queue("app-1/billing[655]", "accounts/16")
	s.hold("app-3/mailer[2207]", "mail/outbox")
	for i := range 3 {
		s.hold(fmt.Sprintf("worker-%d/thumbnails[31%d]", i+1, i), "thumbnails", pglock.WithLimit(4))
	}
	s.hold("app-1/api[88]", "catalogue", pglock.WithShared())
	s.hold("app-2/api[91]", "catalogue", pglock.WithShared())
	s.queue("app-4/importer[4101]", "catalogue")
	s.hold("app-4/sync[71]", "warehouse/stock-sync", pglock.WithTTL(10*time.Minute))
	s.hold("app-2/leader[12]", "leader/scheduler")
	s.hold("app-3/migrate[600]", "schema-migrations")
	for name, ago := range map[string]string{
		"nightly-report": "14 min", "accounts/16": "41 s", "mail/outbox": "9 s", "thumbnails": "3 min",
		"catalogue":            "72 s",
		"warehouse/stock-sync": "2 h 5 min", "leader/scheduler": "6 days 4 h", "schema-migrations": "17 s",
	} {
		s.sql("UPDATE pglock.locks SET acquired_at = acquired_at - $2::text::interval WHERE name = $1", name, ago)
	}
	s.sql(`UPDATE pglock.waiters SET enqueued_at = enqueued_at - interval '80 s' * (8 - ticket)
		WHERE name = 'nightly-report'`)
	s.sql(`UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '4 min',
		renewed_at = renewed_at - interval '6 min' WHERE name = 'warehouse/stock-sync'`)
	s.sql(`INSERT INTO pglock.sessions (session_id, holder, alive_until, holds_until)
		SELECT DISTINCT session_id, holder, clock_timestamp(), clock_timestamp() + interval '10 min' FROM pglock.locks
		ON CONFLICT (session_id) DO UPDATE SET seen_at = clock_timestamp()`) // who has held for long has given signs of life
	s.given(lockadmin.LifeDead, "invoices/close")
	s.sql("UPDATE pglock.locks SET holder = 'app-3/invoices[518]' WHERE name = 'invoices/close'")
	s.queue("app-1/invoices[520]", "invoices/close")
}

// tenure is a part of the past.
type tenure struct {
	holder     string
	from, to   int // minutes ago
	kind       lockadmin.EventKind
	by, reason string
}

// past writes what somebody's history would have of a lock that others held before. The tokens are real.
func (s *stage) past(name string, tenures ...tenure) {
	s.t.Helper()
	client := s.client("earlier", time.Minute)
	for i, was := range tenures {
		lease := must.Get(client.TryAcquire(s.t.Context(), name))(s.t)
		must.Do(s.t, lease.Release(s.t.Context()))
		s.sql(`INSERT INTO pglock.events (kind, lock_name, token, holder, actor, reason, session_id, slot, mode,
				granted_at, ended_at, at, number)
			SELECT $1, $2, $3, $4, nullif($5, ''), nullif($6, ''), gen_random_uuid(), 0, 'exclusive',
			now - interval '1 min' * $7::int,
			now - interval '1 min' * $8::int, now - interval '1 min' * $8::int, $9 FROM clock_timestamp() now`,
			string(was.kind), name, int64(lease.Token()), was.holder, was.by, was.reason, was.from, was.to, i+1)
	}
}

// go_ opens a view and waits for it.
func (p *tab) go_(hash, selector, text string) {
	p.t.Helper()
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(p.home+hash))
	p.until("document.documentElement.dataset.link === 'live'")
	p.until(fmt.Sprintf("[...document.querySelectorAll(%q)].some(e => e.textContent.includes(%s))", selector,
		quote(text)))
	p.until("document.fonts.ready.then(() => true)")
}

func (p *tab) scheme(name string) {
	p.t.Helper()
	must.Get(chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	}))(p.t)
}

func (p *tab) picture(name string) {
	p.t.Helper()
	p.eval(disguise)
	png := must.Get(chromedp.Run(p.ctx, chromedp.CaptureScreenshot()))(p.t)
	if len(png) < 5_000 {
		p.t.Errorf("%s has %d bytes: it is empty", name, len(png))
	}
	if !*update {
		return
	}
	must.Do(p.t, os.WriteFile(filepath.Join("..", "..", "docs", name+".png"), png, 0o644))
}
