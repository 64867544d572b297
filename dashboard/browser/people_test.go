package browser

import (
	_ "embed"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// What the page is asked in the tests.
var (
	//go:embed testdata/contrast.js
	lowContrast string
	//go:embed testdata/small.js
	tooSmall string
	//go:embed testdata/wide.js
	widest string
	//go:embed testdata/focus.js
	focused string
)

// views are the addresses that tests of every view visit, and what is there when a view is ready.
var views = [][2]string{
	{"#/locks", "tbody tr"},
	{"#/lock?name=nightly-report", ".timeline-picture"},
	{"#/lock?name=thumbnails", ".timeline-picture"},
	{"#/sessions", "tbody tr"},
	{"#/locks?match=nothing-has-this-name", ".empty:not([hidden])"},
	{"#/lock?name=nobody-used-this", ".empty:not([hidden])"},
}

func TestNothingIsWiderThanAPhone(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	long := strings.Repeat("billing/eu-central-1/customer-", 17)
	s.hold(strings.Repeat("h", 200), long)
	s.queue(strings.Repeat("q", 200), long)
	p := open(t, s.home, "", 360, 740)
	all := append([][2]string{{"#/lock?name=" + long, ".timeline-picture"}}, views...)
	for _, v := range all {
		p.visit(v)
		if w := eval[int](p, "document.documentElement.scrollWidth"); w > 360 {
			t.Errorf("%.60s is %d pixels wide, want at most 360: %s", v[0], w, eval[string](p, widest))
		}
		for _, small := range eval[[]string](p, tooSmall) {
			t.Errorf("%.60s: %s: smaller than 24 by 24 pixels", v[0], small)
		}
	}
	p.visit(all[0])
	p.openDialog()
	if w := eval[int](p, "document.querySelector('dialog').getBoundingClientRect().right"); w > 360 {
		t.Errorf("the dialog ends at %d", w)
	}
}

// visit opens a view in the same page.
func (p *tab) visit(v [2]string) {
	p.t.Helper()
	p.eval("location.hash = " + quote(v[0]))
	p.until("decodeURI(location.hash) === decodeURI(" + quote(v[0]) + ")")
	p.until(fmt.Sprintf("document.querySelector(%q)?.checkVisibility()", v[1]))
}

func TestTheKeyboardAloneReachesTheBreakOfALock(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	p := open(t, s.home, "", 1240, 800)
	p.text("tbody th", "nightly-report")
	p.press("w")
	p.until("location.hash === '#/locks?order=waiting'")
	p.press("/")
	p.until("document.activeElement.id === 'search'")
	p.press("nightly")
	p.until("location.hash.includes('match=nightly')") // the list is searched a moment after a key
	p.until("document.querySelectorAll('tbody tr').length === 1")
	p.press(kb.ArrowDown)
	p.until("document.activeElement.matches('tbody a:focus-visible')")
	p.press(kb.Enter)
	p.text("h1", "nightly-report")
	p.until("document.activeElement.tagName === 'H1'")
	p.text(".actions button", "Break")
	p.press("b")
	p.until("document.activeElement.id === 'reason'")
	p.press("host is down")
	p.press(kb.Tab) // Cancel
	p.press(kb.Tab)
	p.until("document.activeElement.matches('dialog button[type=submit]:focus-visible')")
	p.press(kb.Enter)
	p.gone("dialog")
	p.text(".sentence", "app-2/reporter[812]")

	p.press(kb.Escape) // back to the list, with its search, at the lock that was open
	p.until("location.hash.includes('match=nightly')")
	p.until("document.activeElement.matches('tbody a')")
	p.press("?")
	p.text("dialog", "Keyboard")
	p.press(kb.Escape)
	p.gone("dialog")
	p.press("2")
	p.text("h1", "Sessions")
}

func TestEverythingThatHasTheFocusShowsIt(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	p := open(t, s.home, "", 1240, 800)
	for _, v := range views[:3] {
		p.visit(v)
		seen := map[string]bool{}
		for range 40 {
			p.press(kb.Tab)
			got := eval[string](p, focused)
			if strings.HasPrefix(got, "hidden ") {
				t.Errorf("%s: nothing shows that this has the focus: %s", v[0], got)
			}
			seen[got] = true
		}
		if len(seen) < 8 {
			t.Errorf("%s: the key Tab reaches %d places: %v", v[0], len(seen), seen)
		}
	}
}

func TestEveryControlHasAName(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	p := open(t, s.home, "", 1240, 900)
	named := strings.Fields("button link textbox searchbox combobox checkbox dialog img image table region " +
		"navigation heading article")
	const drawn = "[...document.querySelectorAll('tbody th')].slice(0, 3)" +
		".every(e => e.checkVisibility({contentVisibilityAuto: true}))"
	check := func(where string) {
		p.until(drawn)
		tree := must.Get(chromedp.Call(p.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{}))(t)
		found := map[string]int{}
		for _, node := range tree.Nodes {
			if node.Ignored || node.Role == nil {
				continue
			}
			role := strings.Trim(string(node.Role.Value), `"`)
			found[role]++
			if slices.Contains(named, role) && (node.Name == nil || strings.Trim(string(node.Name.Value), `" `) == "") {
				t.Errorf("%s: a %s without a name (node %d)", where, role, node.BackendDOMNodeID)
			}
		}
		if where != "dialog" && (found["heading"] == 0 || found["main"] != 1 || found["status"] == 0) {
			t.Errorf("%s: %v: want one main, and headings and live regions", where, found)
		}
		list := strings.HasPrefix(where, "#/locks") && !strings.Contains(where, "match")
		if list && (found["row"] < 5 || found["columnheader"] != 7 || found["rowheader"] < 3 || found["list"] == 0 ||
			found["listitem"] < 2) {
			t.Errorf("%s: %v: want a list, and a table with rows and headers", where, found)
		}
	}
	for _, v := range views {
		p.visit(v)
		check(v[0])
	}
	p.visit(views[1])
	p.openDialog()
	check("dialog")
	p.do(chromedp.EmulateViewport(360, 740))
	p.click("dialog button[type=button]")
	p.visit(views[0])
	check("#/locks on a phone")
}

func TestDarkAndLight(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	p := open(t, s.home, "", 1240, 900)
	ground := "getComputedStyle(document.body).backgroundColor"
	backgrounds := map[string]string{}
	for _, scheme := range []string{"light", "dark"} {
		p.scheme(scheme)
		p.visit(views[0])
		p.until("matchMedia('(prefers-color-scheme: " + scheme + ")').matches")
		backgrounds[scheme] = eval[string](p, ground)
		for _, v := range views {
			p.visit(v)
			for _, bad := range eval[[]string](p, lowContrast) {
				t.Errorf("%s, %s: %s", scheme, v[0], bad)
			}
		}
		p.visit(views[1])
		p.openDialog()
		for _, bad := range eval[[]string](p, lowContrast) {
			t.Errorf("%s, dialog: %s", scheme, bad)
		}
		p.click("dialog button[type=button]")
	}
	if backgrounds["light"] == backgrounds["dark"] {
		t.Errorf("dark and light have the same background: %v", backgrounds)
	}
	p.click("#theme") // light, although the system is dark
	p.until(ground + " === " + quote(backgrounds["light"]))
	p.do(chromedp.Reload())
	p.until(ground + " === " + quote(backgrounds["light"])) // it stays chosen
	p.click("#theme")
	p.click("#theme")
	p.until(ground + " === " + quote(backgrounds["dark"]))
}

func TestAThemeCanBeChosenWithoutStorage(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := open(t, s.home, "#/nothing", 1240, 900)
	p.before("Object.defineProperty(window, 'localStorage', { get() { throw new Error('not allowed'); } })")
	p.do(chromedp.Reload())
	p.text(".unknown", "This page does not know the address")
	for _, theme := range []string{"Light", "Dark", "Auto"} {
		p.click("#theme")
		p.text("#theme", theme)
	}
}

func TestNothingMovesForWhomThatHarms(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "", 1240, 800)
	p.text("tbody th", "nightly")
	const moves = "getComputedStyle(document.querySelector('.fill')).transitionDuration"
	for value, want := range map[string]string{"no-preference": "1s", "reduce": "0s"} {
		must.Get(chromedp.Call(p.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-reduced-motion", Value: value}},
		}))(t)
		if got := eval[string](p, moves); got != want {
			t.Errorf("with %s the bar moves for %s, want %s", value, got, want)
		}
	}
}

func TestTheBackButtonReturnsToThePlaceInTheList(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.holdMany(300)
	p := open(t, s.home, "#/locks?limit=500", 1240, 800)
	p.until("document.querySelectorAll('tbody tr').length === 300")
	p.eval("[...document.querySelectorAll('tbody a')].find(a => a.textContent === 'lock-00200').scrollIntoView()")
	p.until("window.scrollY > 4000")
	p.eval("[...document.querySelectorAll('tbody a')].find(a => a.textContent === 'lock-00200').click()")
	p.text("h1", "lock-00200")
	if got := eval[string](p, "document.title"); !strings.HasPrefix(got, "held: lock-00200") {
		p.until("document.title.startsWith('held: lock-00200')")
	}
	p.do(chromedp.NavigateBack())
	p.until("document.querySelectorAll('tbody tr').length === 300")
	p.until("document.activeElement.textContent === 'lock-00200'")
	p.until("(r => r.top >= 0 && r.bottom <= innerHeight)(document.activeElement.getBoundingClientRect())")
}

func TestACommandStaysSelectedWhileThePageMovesOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.scene()
	p := open(t, s.home, "#/lock?name=nightly-report", 1240, 900)
	p.text(".command code", "pglock-admin why nightly-report")
	p.eval("getSelection().selectAllChildren(document.querySelector('.command code'))")
	p.eval("document.querySelector('.command button').focus()")
	was := eval[string](p, "document.querySelector('.verdict-text').textContent")
	p.until("document.querySelector('.verdict-text').textContent !== " + quote(was)) // "renewed 4s ago"
	if got := eval[string](p, "getSelection().toString()"); got != "pglock-admin why nightly-report" {
		t.Errorf("selected is %q", got)
	}
	if !eval[bool](p, "document.activeElement.matches('.command button')") {
		t.Error("the button has lost the focus")
	}
}

func TestAnAnswerThatIsNoDataIsNoLock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "", 1240, 800)
	p.text("tbody th", "nightly")
	s.answer(func(w http.ResponseWriter, r *http.Request) bool { // a proxy in front asks for a login
		if !strings.Contains(r.URL.Path, "/api/") {
			return false
		}
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<h1>Log in</h1>"))
		return true
	})
	p.expectLostConnections()
	s.server.CloseClientConnections()
	p.text("#banner", "log in again")
	if got := eval[string](p, "document.title"); !strings.HasPrefix(got, "OLD: ") {
		t.Errorf("title %q, want it to say that it is old", got)
	}
}
