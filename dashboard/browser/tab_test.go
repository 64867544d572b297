package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// patience limits a wait for something that should come within a moment, or when the page gives up a break.
const patience = time.Minute

// tab is the page in a browser of its own, and everything that went wrong there.
type tab struct {
	t    *testing.T
	ctx  context.Context
	home string // the page's address

	mu       sync.Mutex
	troubles []string
	expected []string // texts of troubles that the test causes
}

// chromium finds the browser, or skips the test.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("PGLOCK_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	const why = "there is no Chromium; on Debian: apt-get install --no-install-recommends chromium"
	fmt.Fprintf(os.Stdout, "browser: SKIPPED %s: %s\n", t.Name(), why)
	t.Skip(why)
	return ""
}

// open starts a browser with the page at the path, such as "#/lock?name=a". When the test ends, it fails for everything
// that went wrong in the page meanwhile: errors, violations of the policy, dialogs, requests to anywhere else.
func open(t *testing.T, home, path string, width, height int64) *tab {
	t.Helper()
	program := chromium(t)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(program), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.NoDefaultBrowserCheck, chromedp.WindowSize(int(width), int(height)),
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
		chromedp.Flag("disable-dev-shm-usage", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true),
		chromedp.Flag("font-render-hinting", "none"), chromedp.Flag("hide-scrollbars", true))
	ctx, cancelTab := chromedp.NewContext(ctx)
	p := &tab{t: t, ctx: ctx, home: home}
	t.Cleanup(func() {
		p.check()
		_ = chromedp.Cancel(ctx) // waits for the browser to end
		cancelTab()
		cancel()
	})
	must.Do(t, chromedp.Listen(ctx, p.listen))
	p.do(chromedp.EmulateViewport(width, height))
	for _, enable := range []func() error{
		func() error { _, err := chromedp.Call(ctx, network.Enable, network.EnableParams{}); return err },
		func() error { _, err := chromedp.Call(ctx, page.Enable, page.EnableParams{}); return err },
	} {
		must.Do(t, enable())
	}
	p.do(chromedp.Navigate(home + path))
	return p
}

// listen notes what must not happen.
func (p *tab) listen(ev any) {
	var trouble string
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		trouble = "exception: " + ev.ExceptionDetails.Text
		if e := ev.ExceptionDetails.Exception; e != nil {
			trouble += " " + e.Description
		}
	case *runtime.EventConsoleAPICalled:
		trouble = fmt.Sprintf("console.%s", ev.Type)
	case *log.EventEntryAdded:
		trouble = fmt.Sprintf("log %s %s: %s %s", ev.Entry.Level, ev.Entry.Source, ev.Entry.Text, ev.Entry.URL)
	case *page.EventJavascriptDialogOpening:
		trouble = "dialog: " + ev.Message
	case *network.EventRequestWillBeSent:
		if strings.HasPrefix(ev.Request.URL, p.home) || strings.HasPrefix(ev.Request.URL, "about:") {
			return
		}
		trouble = "request to " + ev.Request.URL
	default:
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.troubles = append(p.troubles, trouble)
}

// expect allows troubles that contain a text, because the test causes them.
func (p *tab) expect(text string) { p.expected = append(p.expected, text) }

// expectLostConnections allows that connections end, because the test ends them. Which word Chromium has for it
// depends on the moment: before the request left, before its answer came, or within it.
func (p *tab) expectLostConnections() {
	for _, text := range []string{"SOCKET_NOT_CONNECTED", "CONNECTION_", "EMPTY_RESPONSE", "INCOMPLETE_CHUNKED"} {
		p.expect("net::ERR_" + text)
	}
}

func (p *tab) check() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, trouble := range p.troubles {
		if !slices.ContainsFunc(p.expected, func(text string) bool { return strings.Contains(trouble, text) }) {
			p.t.Errorf("in the page: %s", trouble)
		}
	}
}

func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.t.Fatalf("%v\n%s", err, p.state())
	}
}

// before has a script run in the pages that come, before their own.
func (p *tab) before(script string) {
	p.t.Helper()
	must.Get(chromedp.Call(p.ctx, page.AddScriptToEvaluateOnNewDocument,
		page.AddScriptToEvaluateOnNewDocumentParams{Source: script}))(p.t)
}

// eval asks the page.
func eval[T any](p *tab, expression string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", expression, err, p.state())
	}
	return v
}

// until waits for a condition in the page, and returns how long that took.
func (p *tab) until(condition string) time.Duration {
	p.t.Helper()
	began := time.Now()
	_, err := chromedp.Run(p.ctx, chromedp.Poll[bool]("!!("+condition+")", chromedp.WithPollingTimeout(patience)))
	if err != nil {
		p.t.Fatalf("%s: %v\n%s", condition, err, p.state())
	}
	return time.Since(began)
}

// text waits for an element that has the text.
func (p *tab) text(selector, text string) time.Duration {
	p.t.Helper()
	const some = "[...document.querySelectorAll(%q)].some(e => e.checkVisibility() && e.textContent.includes(%s))"
	return p.until(fmt.Sprintf(some, selector, quote(text)))
}

// gone waits until there is no visible element.
func (p *tab) gone(selector string) {
	p.t.Helper()
	p.until(fmt.Sprintf("![...document.querySelectorAll(%q)].some(e => e.checkVisibility())", selector))
}

func (p *tab) click(selector string) {
	p.t.Helper()
	p.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// press sends keys to whatever has the focus. A text is one key after the other.
func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		if len(key) > 1 || key[0] < ' ' {
			p.do(chromedp.KeyEvent(key))
			continue
		}
		// A page that takes the key for itself must be able to prevent that it is typed, as with a real keyboard.
		down := input.DispatchKeyEventTypeKeyDown
		for _, kind := range []input.DispatchKeyEventType{down, input.DispatchKeyEventTypeKeyUp} {
			event := input.DispatchKeyEventParams{Type: kind, Key: key}
			if kind == down {
				event.Text = key
			}
			must.Get(chromedp.Call(p.ctx, input.DispatchKeyEvent, event))(p.t)
		}
	}
}

// state is what somebody who mends a test wants to see.
func (p *tab) state() string {
	ctx, cancel := context.WithTimeout(p.ctx, 2*time.Second)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("[location.href, document.title, "+
		"document.body.innerText.slice(0, 500).replace(/\\n+/g, ' | ')].join('\\n')"))
	return text
}

// quote writes a text as JavaScript.
func quote(text string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range text {
		fmt.Fprintf(&b, `\u{%x}`, r)
	}
	b.WriteByte('"')
	return b.String()
}
