package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// attacks are texts that must be shown as they are; each would set pwned or open a dialog if something ran it. The
// second text is what the page shows.
var attacks = [][2]string{
	{`<img src=x onerror="pwned=1;alert(1)">`, ``},
	{`"><script>pwned=2;alert(2)</script>`, ``},
	{`</title></style></script><svg onload=alert(3)>`, ``},
	{`javascript:alert(4)`, ``},
	{`{{constructor.constructor('alert(5)')()}}`, ``},
	{`${alert(6)}`, ``},
	{`__proto__`, ``},
	{`constructor`, ``},
	{`&lt;b&gt;&amp;`, ``},
	{`#/lock?name=another&x=<b>`, ``},
	{`../../etc/passwd?a=b&c=%00%0d%0aSet-Cookie:x`, ``},
	{"\x1b[31mred\x1b]0;title\x07", `\x1b[31mred\x1b]0;title\x07`},
	{"two\nlines\r\n\r\ndata: x", `two\nlines\x0d\n\x0d\ndata: x`},
	{"invoice\u202egnp.exe", `invoice\u202egnp.exe`},
	{"a\u2066b\u2069\u200b\u200d\ufeff\u061c", `a\u2066b\u2069\u200b\u200d\ufeff\u061c`},
	{" nightly ", `\x20nightly\x20`},
	{"nig\u00a0htly\u2028", `nig\u00a0htly\u2028`},
	{"עברית والعربية", ``},
	{strings.Repeat("W", 512), ``},
	{strings.Repeat("<b>", 170), ``},
	{"Z\u0351\u036b\u0343a\u030bl\u0340g\u0341o" + strings.Repeat("\u0300", 60), ``},
}

func TestHostileTextsAreShownAndNothingRuns(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	names := make([]string, len(attacks))
	for i, a := range attacks {
		names[i] = a[0]
		label := a[0]
		if len(label) > 200 {
			label = strings.ToValidUTF8(label[:200], "")
		}
		metadata, err := json.Marshal(map[string]any{"text": a[0], a[0]: json.RawMessage("12345678901234567890.10")})
		if err != nil {
			t.Fatal(err)
		}
		client := s.client(label, time.Minute)
		_, err = client.TryAcquire(t.Context(), a[0], pglock.WithMetadata(metadata))
		if err != nil {
			t.Fatalf("%q: %v", a[0], err)
		}
		if i < 3 { // an end of a tenure with hostile texts, and a queue
			must.Get(s.admin.Break(t.Context(), a[0], a[0], lockadmin.BreakOptions{}))(t)
			s.hold(label, a[0], pglock.WithMetadata(metadata))
			s.queue(label+"?", a[0])
		}

	}
	p := open(t, s.home, "", 1240, 900)
	p.until(fmt.Sprintf("document.querySelectorAll('tbody tr').length === %d", len(attacks)))
	for _, a := range attacks {
		p.shows("tbody th a .text", a)
	}
	p.harmless()
	for _, a := range attacks {
		p.eval("location.hash = '#/lock?' + new URLSearchParams({name: " + quote(a[0]) + "})")
		p.shows("h1 .text", a)
		p.until("document.querySelector('.holder-card pre')")
		p.harmless()
		metadata := eval[string](p, "document.querySelector('.holder-card pre').textContent")
		if !strings.Contains(metadata, "12345678901234567890.10") {
			t.Errorf("%q: the page changes a number of the metadata: %s", a[0], metadata)
		}
		if w := eval[int](p, "document.documentElement.scrollWidth"); w > 1240 {
			t.Errorf("%q: the page is %d pixels wide", a[0], w)
		}
	}
	// The dialog, an unknown name, a search without results.
	p.eval("location.hash = '#/lock?' + new URLSearchParams({name: " + quote(names[0]) + "})")
	p.shows("h1 .text", attacks[0])
	p.openDialog()
	p.shows("dialog dd .text", attacks[0])
	p.harmless()
	p.click("dialog button[type=button]")
	p.eval("location.hash = '#/lock?name=' + encodeURIComponent('<img src=x onerror=alert(9)>')")
	p.text("h1", "<img src=x onerror=alert(9)>")
	p.eval("location.hash = '#/locks?match=' + encodeURIComponent('<img src=x onerror=alert(10)>')")
	p.text(".empty", "<img src=x onerror=alert(10)>")
	p.harmless()
	p.eval("location.hash = '#/sessions'")
	p.text("h1", "Sessions")
	p.harmless()
}

// shows waits for an element that shows the text of an attack, and nothing else.
func (p *tab) shows(selector string, a [2]string) {
	p.t.Helper()
	want := a[1]
	if want == "" {
		want = a[0]
	}
	p.until(fmt.Sprintf("[...document.querySelectorAll(%q)].some(e => e.textContent === %s)", selector, quote(want)))
}

// harmless checks that no text became an element, and that links lead nowhere else.
func (p *tab) harmless() {
	p.t.Helper()
	for what, expression := range map[string]string{
		"elements from texts": "document.querySelectorAll('main :is(script, img, iframe, style)').length +" +
			"document.querySelectorAll('main :is([onload], [onerror])').length +" +
			"document.querySelectorAll('main b:not(.sentence b), main title:not(svg title)').length",
		"links to elsewhere": "document.querySelectorAll('main a[href]:not([href^=\"#/\"])').length",
		"scripts":            "document.scripts.length - 2",
	} {
		if n := eval[int](p, expression); n != 0 {
			p.t.Errorf("%d %s in %s", n, what, p.state())
		}
	}
	if eval[bool](p, "typeof pwned !== 'undefined' || ({}).name !== undefined") {
		p.t.Error("a text was run")
	}
}

// Words for the mouse are texts, too, and those of a waiter are not those of the whole picture.
func TestTheModeOfAWaiterIsSaidAtItsPlace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	s.queue("a\u202eb", "nightly", pglock.WithShared())
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.until("[...document.querySelectorAll('.queue-picture g > title')]" +
		".some(e => e.textContent === 'a\\\\u202eb: shared')")
	if eval[bool](p, "!!document.querySelector('.queue-picture > title')") {
		t.Error("the whole picture has the words of one waiter")
	}
}

func (p *tab) eval(expression string) {
	p.t.Helper()
	eval[any](p, "void ("+expression+"), 1")
}
