package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// five are the words of the server, and a lock for each.
var five = []struct{ severity, lock, word string }{
	{"stuck", "invoices", "STUCK"},
	{"warning", "orders", "WARNING"},
	{"note", "mail", "NOTE"},
	{"busy", "report", "BUSY"},
	{"ok", "nightly", "OK"},
}

// unwell makes a lock for each word.
func (s *stage) unwell() {
	s.t.Helper()
	s.given(lockadmin.LifeDead, "invoices")
	s.queue("app-4", "invoices")
	s.given(lockadmin.LifeSilent, "orders")
	s.hold("app-1", "mail")
	if _, err := s.admin.Break(s.t.Context(), "mail", "host is down",
		lockadmin.BreakOptions{Actor: "alice"}); err != nil {
		s.t.Fatal(err)
	}
	s.hold("app-2", "report")
	s.queue("app-5", "report")
	s.hold("app-3", "nightly")
}

// object is an object of JSON.
type object = map[string]any

// listing has the page get this list instead of what the database has.
func (s *stage) listing(list object) {
	s.t.Helper()
	list["place"] = s.admin.Place().String()
	data := must.Get(json.Marshal(list))(s.t)
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/api/stream") {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "event: locks\ndata: %s\n\n", data)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
}

// row is a lock of a list that is made up.
func row(name, severity string, remaining int) object {
	l := object{"name": name, "held": true, "holder": "app-1", "life": "alive", "token": "7", "mode": "exclusive",
		"ttl_ms": 60_000, "remaining_ms": remaining, "held_for_ms": 90_000, "waiting": 0, "longest_wait_ms": 0}
	if severity != "" {
		l["verdict"] = severity
	}
	return l
}

// lines are what the page says is wrong.
func (p *tab) lines() []string {
	p.t.Helper()
	return eval[[]string](p, "[...document.querySelectorAll('.ill li')].filter(e => e.checkVisibility())"+
		".map(e => e.textContent.replace(/\\s+/g, ' ').trim())")
}

// rowOf is an expression: the row of a lock in the list.
func rowOf(name string) string {
	return "[...document.querySelectorAll('tbody tr')]" +
		".find(r => r.querySelector('th a').textContent === " + quote(name) + ")"
}

func TestThePageBeginsWithWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.unwell()
	p := open(t, s.home, "#/locks?match=nightly", 1240, 900)
	want := []string{
		"STUCK invoices its holder is dead or cut off app invoices for 1m 1 waits",
		"WARNING orders its holder gives no sign of life app orders for 1m nobody waits",
		"NOTE mail broken by an operator alice for 0s nobody waits",
	}
	for _, address := range []string{
		"#/locks?match=nightly", "#/locks?match=nothing-has-this-name", "#/locks?order=age&limit=500&free=1",
	} {
		p.visit([2]string{address, ".ill li"})
		p.text("#summary", "1 stuck, 1 warning, 1 note")
		got := p.lines()
		if len(got) != len(want) {
			t.Fatalf("%s: the page says %q, want %q", address, got, want)
		}
		for i := range want {
			begin, end, _ := strings.Cut(want[i], " for ")
			_, end, _ = strings.Cut(end, " ")
			if !strings.HasPrefix(got[i], begin+" for ") || !strings.HasSuffix(got[i], " "+end) {
				t.Errorf("%s: line %d is %q, want one like %q", address, i, got[i], want[i])
			}
		}
		p.text("#summary", "1 stuck, 1 warning, 1 note")
		p.until("document.title.startsWith('1 stuck, 1 warning, 1 note, ')")
	}
	const first = "!!(document.querySelector('.ill').compareDocumentPosition(document.querySelector('table')) & 4)"
	if !eval[bool](p, first) {
		t.Error("what is wrong does not come before the table")
	}

	// The keyboard reaches a line from the heading, opens the lock, and comes back to the line.
	p.eval("document.querySelector('h1').focus()")
	p.press(kb.Tab)
	p.until("document.activeElement.matches('.ill li:first-child a:focus-visible')")
	p.press(kb.Tab)
	p.press(kb.Enter)
	p.text("h1", "orders")
	p.do(chromedp.NavigateBack())
	p.until("document.activeElement.matches('.ill li:nth-child(2) a')")

	// What is mended goes, and what is new comes, while the page is open. Screen readers hear the number.
	s.sql("UPDATE pglock.sessions SET seen_at = clock_timestamp() + interval '1 h' WHERE holder = 'app orders'")
	p.until("document.querySelectorAll('.ill li').length === 2")
	p.text(".ill [role=status]", "1 stuck, 1 note")
	s.given(lockadmin.LifeSilent, "zones")
	p.text(".ill li", "zones")
}

func TestThePageSaysHowMuchItKnows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "", 1240, 900)
	p.text(".ill-words", "All is well.") // truly
	one := []object{{"lock": "nightly", "severity": "stuck", "text": "a write is blocked", "waiting": 2}}
	everything := []object{{"lock": "", "severity": "stuck", "text": "a table is locked", "who": "process 7"}}
	for i, c := range []struct {
		ill         object
		words, rest string
		lines       int
	}{
		{object{"locks": []object{}, "all": true}, "All is well.", "", 0},
		{object{"locks": []object{}, "all": false}, "No trouble was found.", "", 0},
		{object{"locks": []object{}, "all": true, "more": 1}, "No trouble was found.", "1 more lock may not be well",
			0},
		{object{"locks": []object{}, "partly": true}, "No trouble was found.", "Some locks were not looked at.", 0},
		{object{"locks": []object{}, "standby": true}, "This server is a standby: it shows the past. " +
			"The primary alone knows how the locks are.", "", 0},
		{object{"locks": one, "all": true}, "1 stuck", "", 1},
		{object{"locks": append(one, one[0]), "more": 1300}, "2 stuck", "1,300 more locks may not be well", 1},
		{object{"locks": everything, "partly": true}, "1 stuck", "Some locks were not looked at.", 1},
	} {
		name := fmt.Sprintf("case %d", i)
		s.listing(object{"at": "2026-11-22T03:10:00Z", "locks": []object{row(name, "ok", 60_000)}, "ill": c.ill})
		p.eval("location.hash = '#/locks?match=' + encodeURIComponent(" + quote(name) + ")")
		p.text("tbody th", name)
		text := func(selector string) string {
			const words = "(e => e.checkVisibility() ? e.innerText : '')(document.querySelector(%s))"
			return eval[string](p, fmt.Sprintf(words, quote(selector)))
		}
		if got := text(".ill-words"); got != c.words {
			t.Errorf("%v: the page says %q, want %q", c.ill, got, c.words)
		}
		if got := text(".ill > .hint"); !strings.HasPrefix(got, c.rest) || c.rest == "" && got != "" {
			t.Errorf("%v: the page says below %q, want %q", c.ill, got, c.rest)
		}
		if got := p.lines(); len(got) != c.lines {
			t.Errorf("%v: the page has the lines %q, want %d", c.ill, got, c.lines)
		}
	}
	if got := p.lines(); len(got) != 1 || !strings.HasPrefix(got[0], "STUCK (all locks) a table is locked process 7") {
		t.Errorf("of a table that is locked the page says %q", got)
	}
	if n := eval[int](p, "document.querySelectorAll('.ill a').length"); n != 0 {
		t.Error("all locks have a link, as if they were one")
	}
	s.listing(object{"at": "2026-11-22T03:10:00Z", "locks": []object{}, "ill": object{"locks": everything}})
	p.eval("location.hash = '#/locks?match=closed'")
	p.text(".empty", "Nobody can read the locks now.")
}

func TestHostileTextsOfWhatIsWrongAreShownAndNothingRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var ill []object
	for _, a := range attacks {
		ill = append(ill, object{"lock": a[0], "severity": "warning", "text": a[0], "who": a[0],
			"since": "2026-11-22T03:00:00Z", "waiting": 3})
	}
	s.listing(object{"at": "2026-11-22T03:10:00Z", "locks": []object{}, "ill": object{"locks": ill}})
	p := open(t, s.home, "", 360, 740)
	p.until(fmt.Sprintf("document.querySelectorAll('.ill li').length === %d", len(attacks)))
	for _, a := range attacks {
		p.shows(".ill a .text", a)
		p.shows(".ill-text", a)
		p.shows(".ill-who .text", a)
	}
	p.harmless()
	if w := eval[int](p, "document.documentElement.scrollWidth"); w > 360 {
		t.Errorf("the page is %d pixels wide, want at most 360: %s", w, eval[string](p, widest))
	}
	for _, line := range p.lines() {
		if !strings.Contains(line, " for 10m") || !strings.HasSuffix(line, " 3 wait") {
			t.Errorf("the line is %q", line)
		}
	}
	was := p.lines()[0]
	s.eventually(func() bool { return p.lines()[0] != was }) // a second later, although no data has come
	for _, i := range []int{0, 11, 13, 15} {                 // a link leads to the lock whose name it shows
		p.eval(fmt.Sprintf("document.querySelectorAll('.ill a')[%d].click()", i))
		p.shows("h1 .text", attacks[i])
		p.eval("location.hash = '#/locks'")
		p.until(fmt.Sprintf("document.querySelectorAll('.ill li').length === %d", len(attacks)))
	}
	p.expect("404") // nobody has used such a lock
}

func TestOneWordInOneColourForEachVerdict(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.unwell()
	p := open(t, s.home, "", 1240, 900)
	// said is the word that an element shows, and its colour.
	said := func(element string) [2]string {
		const word = "(e => !e?.checkVisibility() ? ['', ''] : [e.innerText, getComputedStyle(e).color])(%s)"
		return [2]string(eval[[]string](p, fmt.Sprintf(word, element)))
	}
	colours := map[string]string{}
	for _, width := range []int64{1240, 390} {
		p.do(chromedp.EmulateViewport(width, 900))
		p.visit([2]string{"#/locks?free=1", "tbody tr"})
		p.until("document.querySelectorAll('tbody tr').length === 5")
		p.until("document.querySelectorAll('.ill li').length === 3")
		for i, f := range five {
			got := said(rowOf(f.lock) + "?.querySelector('.severity')")
			if got[0] != f.word {
				t.Errorf("%d pixels wide: the list says %q of %s, want %q", width, got[0], f.lock, f.word)
			}
			if of, is := colours[got[1]]; is && of != f.word {
				t.Errorf("%s has the colour of %s", f.word, of)
			}
			colours[got[1]] = f.word
			line := fmt.Sprintf("document.querySelectorAll('.ill li .severity')[%d]", i)
			if i < 3 && said(line) != got {
				t.Errorf("%d pixels wide: the line above says %q of %s, and the list %q", width, said(line), f.lock,
					got)
			}
		}
	}
	p.do(chromedp.EmulateViewport(1240, 900))
	for _, f := range five {
		p.visit([2]string{"#/lock?name=" + f.lock, ".verdict"})
		p.text("h1", f.lock)
		got := said("document.querySelector('.verdict-text .severity')")
		if got[0] != f.word || colours[got[1]] != f.word {
			t.Errorf("the view of %s says %q in the colour of %q, want %s", f.lock, got[0], colours[got[1]], f.word)
		}
		const border = "getComputedStyle(document.querySelector('.verdict')).borderLeftColor"
		if eval[string](p, border) != got[1] {
			t.Errorf("the view of %s has a line in another colour than its word", f.lock)
		}
	}
	// What was wrong before is not the verdict on the lock, which is still OK.
	s.sql("UPDATE pglock.locks SET slowest = interval '50 s' WHERE name = 'nightly'")
	p.text(".verdict:nth-child(2) .verdict-text", "Also: WARNING ")
	p.text(".verdict:first-child .verdict-text", "OK ")
}

func TestNothingButTheVerdictAlarms(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	dead := row("dead and well", "ok", 10_000)
	dead["life"] = "dead"
	alarm := row("dead and stuck", "stuck", 50_000)
	alarm["life"] = "dead"
	s.listing(object{"at": "2026-11-22T03:10:00Z", "ill": object{"locks": []object{}, "all": true}, "locks": []object{
		row("fresh", "ok", 58_000), row("low", "ok", 5_000), row("lower", "busy", 5_000), row("over", "ok", -1),
		row("unseen", "", 5_000), dead, alarm,
	}})
	p := open(t, s.home, "", 1240, 900)
	p.until("document.querySelectorAll('tbody tr').length === 7")
	look := func(lock string) string {
		return eval[string](p, "(r => [r, ...['.fill', '.left', '.life'].map(q => r.querySelector(q))]"+
			".map(e => getComputedStyle(e)).flatMap(s => [s.backgroundColor, s.color]).join(' '))("+rowOf(lock)+")")
	}
	plain := look("fresh")
	for _, lock := range []string{"low", "lower", "over", "unseen"} {
		if got := look(lock); got != plain {
			t.Errorf("%s has the colours %s, and a fresh lease %s", lock, got, plain)
		}
	}
	// life is whether the word for the holder's life has the colour of another text of its row.
	life := func(lock, as string) bool {
		return eval[bool](p, "(r => getComputedStyle(r.querySelector('.life')).color === "+
			"getComputedStyle(r.querySelector("+
			quote(as)+")).color)("+rowOf(lock)+")")
	}
	if !life("dead and well", ".left") {
		t.Error("the word for a holder that is dead judges, although the verdict is OK")
	}
	if !life("dead and stuck", ".severity") || life("dead and stuck", ".left") {
		t.Error("the word for a holder that is dead has not the colour of the verdict STUCK")
	}
	if got := eval[string](p, rowOf("unseen")+".querySelector('.severity').innerText"); got != "?" {
		t.Errorf("of a lock at which nobody has looked the list says %q", got)
	}
	if got := eval[string](p, "document.querySelector('main').innerText"); strings.Contains(got, "late") {
		t.Errorf("the page says late although the server does not: %s", got)
	}
	if got := eval[string](p, "document.title"); !strings.HasPrefix(got, "7 held, 0 waiting – ") {
		t.Errorf("title %q", got)
	}
}

func TestTheWordsCanBeRead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	rows, ill := []object{row("unseen", "", 50_000)}, []object{}
	for i, f := range five {
		one := row(f.lock, f.severity, 50_000)
		one["waiting"], one["life"] = i, []string{"dead", "silent", "unknown", "alive", "alive"}[i]
		rows = append(rows, one)
		ill = append(ill, object{"lock": f.lock, "severity": f.severity, "text": "as it is", "who": "app-1",
			"since": "2026-11-22T03:00:00Z", "waiting": i})
	}
	s.listing(object{"at": "2026-11-22T03:10:00Z", "locks": rows, "ill": object{"locks": ill, "more": 3,
		"partly": true}})
	p := open(t, s.home, "", 1240, 900)
	for _, width := range []int64{1240, 360} {
		p.do(chromedp.EmulateViewport(width, 900))
		for _, scheme := range []string{"light", "dark"} {
			p.scheme(scheme)
			p.until("document.querySelectorAll('tbody tr').length === 6")
			p.until("document.querySelectorAll('.ill li').length === 5")
			for _, bad := range eval[[]string](p, lowContrast) {
				t.Errorf("%s, %d pixels wide: %s", scheme, width, bad)
			}
		}
	}
	const parts = "new Set([...document.querySelectorAll('.ill li:first-child .part')]" +
		".map(e => e.getBoundingClientRect().top)).size"
	if n := eval[int](p, parts); n != 4 {
		t.Errorf("on a phone the first card has %d lines, want 4: lock, text, who, and for how long", n)
	}
}

// While nobody can read a lock its page says why, and nothing that was so before.
func TestThePageOfOneLockSaysWhoHasLockedAWholeTable(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.text(".sentence", "app-1 has held it")
	tx := must.Get(s.pool.Begin(t.Context()))(t)
	defer tx.Rollback(t.Context()) //nolint:errcheck // nothing is lost
	must.Get(tx.Exec(t.Context(), "LOCK TABLE pglock.locks"))(t)
	p.text(".verdicts", "has locked the whole table locks of pglock")
	const cards = "[...document.querySelectorAll('main .card')].filter(e => e.checkVisibility()).length"
	p.until(cards + " === 1 && document.querySelector('.sentence').textContent === ''")
	must.Do(t, tx.Rollback(t.Context()))
	p.text(".sentence", "app-1 has held it")
	p.until(cards + " > 2")
}
