package browser

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

//go:embed testdata/lines.js
var linesOf string

// drawnLines is how a command looks.
type drawnLines struct {
	Lines []string `json:"lines"`
	Fits  int      `json:"fits"` // characters of a line
}

// wrapsBetween checks that lines end between the arguments, and within one only if that is longer than a line: then
// at a space, if the word is not.
func (d drawnLines) wrapsBetween(t *testing.T, arguments []string) {
	t.Helper()
	at := 0
	for _, line := range d.Lines[:len(d.Lines)-1] {
		at += len(line)
		begin := 0
		for _, argument := range arguments {
			end := begin + len(argument)
			if begin < at && at < end && argument[at-begin-1] != ' ' && len(longestWord(argument)) <= d.Fits {
				t.Errorf("a line ends within a word of %q: %q", argument, d.Lines)
			}
			if begin < at && at < end && len(argument) <= d.Fits {
				t.Errorf("a line ends within %q, which fits into one of %d: %q", argument, d.Fits, d.Lines)
			}
			begin = end + 1
		}
	}
}

func longestWord(text string) (longest string) {
	for word := range strings.FieldsSeq(text) {
		if len(word) > len(longest) {
			longest = word
		}
	}
	return longest
}

// commands are commands by their arguments; a flag and its value count as one.
var commands = [][]string{
	{"pglock-admin", "break", "nightly-report", "--token 6", "--reason 'host is down'"},
	{"pglock-admin", "break", "billing/eu-central-1/customer-4711", "--token 9223372036854775807",
		"--reason 'host is down, ticket OPS-17; the on-call team of the eu-central-1 region knows about it'"},
	{"pglock-admin", "why", `'"a b\x20\u202e"'`, "--schema 'my locks'", "--all"},
	{"pglock-admin", "why", `'it'\''s mine'`, `--reason "a \"b\" c"`, "--yes"},
	{"pglock-admin", "show", strings.Repeat("W", 120), "--token 6"},
	{"ps", "-o pid,stat,etime,args", "-p 4711"},
	{"SELECT", "application_name,", "state,", "sync_state", "FROM", "pg_stat_replication"},
	{"ROLLBACK", "PREPARED", "'one of two, of 2026-11-22'"},
	{"echo", "'nobody closes this quote"},
	{"pglock-admin", `--reason "nor this one`},
	{`echo`, `a\`},
	{"pglock-admin"},
}

func TestCommandsWrapBetweenTheirArguments(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := open(t, s.home, "#/nothing", 390, 844)
	p.text(".unknown", "This page does not know")
	wrapped := 0
	for _, width := range []int{344, 260, 190, 130} {
		for _, arguments := range commands {
			text := strings.Join(arguments, " ")
			p.eval(fmt.Sprintf(`import(new URL('assets/command.js', document.baseURI)).then((m) => {
				const box = m.commandOf({ command: %s });
				box.style.width = '%dpx';
				document.querySelector('main').replaceChildren(box);
			})`, quote(text), width))
			p.until("document.querySelector('.command code')?.textContent === " + quote(text) +
				fmt.Sprintf(" && document.querySelector('.command').style.width === '%dpx'", width))
			drawn := eval[drawnLines](p, "("+linesOf+")(document.querySelector('.command code'))")
			if strings.Join(drawn.Lines, "") != text {
				t.Fatalf("the lines are no command: %q", drawn.Lines)
			}
			drawn.wrapsBetween(t, arguments)
			wrapped += len(drawn.Lines) - 1
			const wide = "(b => b.scrollWidth > b.clientWidth + 1)(document.querySelector('.command code'))"
			if eval[bool](p, wide) {
				t.Errorf("%q is wider than its %d pixels: %q", text, width, drawn.Lines)
			}
			p.eval("getSelection().selectAllChildren(document.querySelector('.command code'))")
			if got := eval[string](p, "getSelection().toString()"); got != text {
				t.Errorf("selected is %q, want %q", got, text)
			}
		}
	}
	if wrapped < 50 {
		t.Errorf("%d lines were wrapped: the widths are no test", wrapped)
	}
}

// copies lets the page copy, as somebody who looks at it would.
func (p *tab) copies() {
	p.t.Helper()
	focus := emulation.SetFocusEmulationEnabledParams{Enabled: true}
	must.Get(chromedp.Call(p.ctx, emulation.SetFocusEmulationEnabled, focus))(p.t)
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		must.Get(chromedp.CallBrowser(p.ctx, browser.SetPermission, browser.SetPermissionParams{
			Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted,
		}))(p.t)
	}
}

// clipboard is what was copied; it is empty then.
func (p *tab) clipboard() string {
	p.t.Helper()
	const take = "navigator.clipboard.readText().then(async (t) => (await navigator.clipboard.writeText(''), t))"
	return eval[string](p, take)
}

// mouse sends the left button and its moves to places on the screen.
func (p *tab) mouse(kind input.DispatchMouseEventType, at [2]float64, clicks int64) {
	p.t.Helper()
	must.Get(chromedp.Call(p.ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{
		Type: kind, X: at[0], Y: at[1], Button: input.MouseButtonLeft, Buttons: 1, ClickCount: clicks,
	}))(p.t)
}

func TestACommandIsCopiedAsOneLine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const name = "billing/eu-central-1/nightly report of the year"
	s.given(lockadmin.LifeSilent, name)
	p := open(t, s.home, "#/lock?name="+strings.ReplaceAll(name, " ", "%20"), 390, 844)
	const code = "[...document.querySelectorAll('.command code')].find(c => c.textContent.includes('--token'))"
	p.until(code)
	drawn := eval[drawnLines](p, "("+linesOf+")("+code+")")
	command := strings.Join(drawn.Lines, "")
	info := must.Get(s.admin.Get(t.Context(), name))(t)
	begin := fmt.Sprintf("pglock-admin break '%s' --token %d --reason ", name, int64(info.Token))
	if !strings.HasPrefix(command, begin) || len(drawn.Lines) < 3 {
		t.Fatalf("the lines are %q, want several that begin with %q", drawn.Lines, begin)
	}
	drawn.wrapsBetween(t, []string{"pglock-admin", "break", "'" + name + "'",
		fmt.Sprintf("--token %d", int64(info.Token)),
		strings.TrimPrefix(command, strings.TrimSuffix(begin, "--reason "))})

	p.copies()
	p.eval(code + ".closest('.command').querySelector('button').click()")
	p.text("#note", "Copied.")
	if got := p.clipboard(); got != command && got != eval[string](p, code+".textContent") {
		t.Errorf("the button has copied %q, want %q", got, command)
	}

	// By hand: from the first character to the last, with three clicks, and with the button.
	p.eval(code + ".scrollIntoView({block: 'center'})")
	ends := eval[[2][2]float64](p, `(() => {
		const spans = [...`+code+`.querySelectorAll('.text')];
		const first = spans[0].getClientRects()[0], last = [...spans.at(-1).getClientRects()].at(-1);
		return [[first.left + 0.5, first.top + first.height / 2], [last.right + 3, last.top + last.height / 2]];
	})()`)
	for how, selects := range map[string]func(){
		"drag": func() {
			p.mouse(input.DispatchMouseEventTypeMousePressed, ends[0], 1)
			p.mouse(input.DispatchMouseEventTypeMouseMoved, ends[1], 1)
			p.mouse(input.DispatchMouseEventTypeMouseReleased, ends[1], 1)
		},
		"the whole box": func() {
			p.eval("getSelection().selectAllChildren(" + code + ".closest('.command'))")
		},
		"three clicks": func() {
			for n := range int64(3) {
				p.mouse(input.DispatchMouseEventTypeMousePressed, ends[0], n+1)
				p.mouse(input.DispatchMouseEventTypeMouseReleased, ends[0], n+1)
			}
		},
	} {
		p.eval("getSelection().empty()")
		before := eval[string](p, code+".textContent") // it says for how long the holder has given no sign of life
		selects()
		if !eval[bool](p, "document.execCommand('copy')") {
			t.Errorf("%s: nothing is copied", how)
		}
		if got := p.clipboard(); got != before && got != eval[string](p, code+".textContent") {
			t.Errorf("%s: %q is copied, want %q", how, got, before)
		}
	}
}
