package browser

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// open lock, with its break button.
func (p *tab) openDialog() {
	p.t.Helper()
	p.text(".actions button", "Break lease…")
	p.click(".actions button")
	p.text("dialog h2", "Break this lease?")
}

func (p *tab) reason(text string) {
	p.t.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS("#reason"), text))
}

func TestABreakEndsTheLeaseAndTheNextHasTheLock(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	lease := s.hold("app-1/reporter[4711]", "nightly")
	s.queue("app-2/reporter[812]", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.text(".sentence", "app-1/reporter[4711]")
	p.openDialog()
	p.text("dialog", "app-2/reporter[812]") // who has the lock next

	p.click("dialog button[type=submit]")
	p.text("dialog .refusal", "Give a reason")
	p.reason("host is down, ticket OPS-17")
	p.click("dialog button[type=submit]")
	p.gone("dialog")
	p.text("#note", fmt.Sprintf("Broken: token %d", lease.Token()))
	p.text(".sentence", "app-2/reporter[812]")
	if err := hooks.Of(lease).Renew(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("the holder renews its lease: %v, want ErrLost", err)
	}
	p.text(".plain-table", "host is down, ticket OPS-17")
	p.text(".plain-table", "alice")
	p.until("document.querySelector('.timeline-picture .bad')") // the sign of a break
}

func TestABreakOfALockThatHasMovedOnIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	s.queue("app-2", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("409 (Conflict)")
	p.openDialog()
	p.reason("host is down")
	// Between the click and the server's look somebody else breaks the lock, and app-2 has it.
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/break") {
			if _, err := s.admin.Break(r.Context(), "nightly", "I was faster", lockadmin.BreakOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	p.click("dialog button[type=submit]")
	p.text("dialog .refusal", "The lock has moved on")
	p.text("dialog .refusal", "Nothing was broken.")
	p.until("document.querySelector('dialog button[type=submit]').disabled")
	info, err := s.admin.Get(t.Context(), "nightly")
	if err != nil || !info.Held || info.Holder != "app-2" {
		t.Errorf("%+v, %v: want app-2 to keep the lock", info, err)
	}
	p.press(kb.Escape)
	p.gone("dialog")
	p.text(".sentence", "app-2")
}

func TestTheDialogSeesThatTheLockMovesOn(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	s.queue("app-2", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.openDialog()
	p.reason("host is down")
	must.Get(s.admin.Break(t.Context(), "nightly", "I was faster", lockadmin.BreakOptions{}))(t)
	p.text("dialog .refusal", "The lock has moved on: app-2 holds it now")
	p.until("document.querySelector('dialog button[type=submit]').disabled")
}

func TestTheDialogSeesThatOneOfSeveralHoldersLetsGo(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "thumbnails", pglock.WithLimit(3))
	two := s.hold("app-2", "thumbnails", pglock.WithLimit(3))
	s.hold("app-3", "thumbnails", pglock.WithLimit(3))
	p := open(t, s.home, "#/lock?name=thumbnails", 1240, 900)
	p.text("h2", "Holders (3)")
	p.click(`button[aria-label="Break the lease of app-2"]`)
	p.text("dialog h2", "Break this lease?")
	must.Do(t, two.Release(t.Context()))
	p.text("dialog .refusal", "This lease has ended; others hold the lock. Nothing was broken.")
	p.until("document.querySelector('dialog button[type=submit]').disabled")
}

func TestOneOfSeveralHoldersIsBroken(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.scene()
	p := open(t, s.home, "#/lock?name=thumbnails", 1240, 900)
	p.text("h2", "Holders (3)")
	p.click(`button[aria-label="Break the lease of worker-2/thumbnails[311]"]`)
	p.text("dialog", "worker-2/thumbnails[311]")
	p.reason("stuck")
	p.click("dialog button[type=submit]")
	p.text("h2", "Holders (2)")
	infos := must.Get(s.admin.Holders(t.Context(), "thumbnails"))(t)
	for _, info := range infos {
		if info.Held && info.Slot == 2 {
			t.Errorf("slot 2 is still held: %+v", info)
		}
	}
}

// What others do to a lock that many share takes the focus from nobody, nor a click.
func TestTheOtherHoldersKeepTheirCards(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "thumbnails", pglock.WithLimit(3))
	s.hold("app-2", "thumbnails", pglock.WithLimit(3))
	three := s.hold("app-3", "thumbnails", pglock.WithLimit(3))
	p := open(t, s.home, "#/lock?name=thumbnails", 1240, 900)
	p.text("h2", "Holders (3)")
	const button = `document.querySelector('button[aria-label="Break the lease of app-2"]')`
	p.eval("(window.second = " + button + ").focus()")
	must.Do(t, three.Release(t.Context()))
	p.text("h2", "Holders (2)")
	s.hold("app-4", "thumbnails", pglock.WithLimit(3))
	p.text(".holder-card h3", "app-4")
	if !eval[bool](p, "document.activeElement === window.second && "+button+" === window.second") {
		t.Error("the button has lost the focus, or is another one")
	}

	// The dialog says what is so when it opens, and not what was when the card came.
	s.sql("UPDATE pglock.locks SET acquired_at = acquired_at - interval '3 h' WHERE holder = 'app-2'")
	p.until("window.second.closest('.holder-card').innerText.includes('3h')")
	p.eval("window.second.click()")
	p.text("dialog .facts", "Held for3h")
}

// Once the request is on its way, closing the dialog calls nothing off.
func TestWhoeverClosesTheDialogHearsWhatBecameOfTheBreak(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	lease := s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("503 (Service Unavailable)")
	p.expect("504 (Gateway Timeout)")
	p.expectLostConnections()
	on := fmt.Sprintf("Token %d of app-1 on nightly: ", lease.Token())
	const unknown = "The server did not answer, so it is unknown whether the lease was broken."
	for _, way := range []struct {
		fails func(http.ResponseWriter)
		want  string
	}{
		{func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":"The database does not answer."}`))
		}, on + "The database does not answer."},
		{func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, on + unknown},
		{func(w http.ResponseWriter) { // a proxy that waits no longer
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusGatewayTimeout)
			_, _ = w.Write([]byte("<h1>504 Gateway Time-out</h1>"))
		}, on + unknown},
		{func(w http.ResponseWriter) { // one that has the server's connection no longer
			http.Error(w, "upstream connect error", http.StatusServiceUnavailable)
		}, on + unknown},
	} {
		asked, over := make(chan struct{}), make(chan struct{})
		s.answer(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/api/break") {
				return false
			}
			close(asked)
			<-over
			way.fails(w)
			return true
		})
		p.openDialog()
		p.reason("host is down")
		p.click("dialog button[type=submit]")
		<-asked
		p.text("dialog button[type=submit]", "Breaking…")
		if got := eval[string](p, "document.querySelector('dialog button[type=button]').textContent"); got != "Close" {
			t.Errorf("the other button says %q, want Close", got)
		}
		p.press(kb.Escape)
		p.gone("dialog")
		close(over)
		p.text("#note", way.want)
	}
}

// A break without an answer has an end.
func TestABreakThatNobodyAnswersIsUnknown(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.openDialog()
	p.reason("host is down")
	_, asked := s.slow("/api/break")
	p.click("dialog button[type=submit]")
	<-asked
	p.text("dialog .refusal", "The server did not answer, so it is unknown whether the lease was broken.")
	p.text("dialog button[type=button]", "Cancel")
	p.until("!document.querySelector('dialog button[type=submit]').disabled")
}

const perhaps = "Perhaps your break ended the lease: its history says."

// refusal is what the dialog says of a lock that has moved on.
func (p *tab) refusal() string {
	p.t.Helper()
	p.text("dialog .refusal", "The lock has moved on:")
	p.until("document.querySelector('dialog button[type=submit]').disabled")
	return eval[string](p, "document.querySelector('dialog .refusal').textContent")
}

// A break whose answer was lost has perhaps ended the lease. The page must not deny it when the next one has the lock.
func TestABreakWithoutAnAnswerIsNotDenied(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	s.queue("app-2", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("504 (Gateway Timeout)")
	p.openDialog()
	p.reason("host is down")
	page := s.server.Config.Handler
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/api/break") {
			return false
		}
		s.answer(nil)
		page.ServeHTTP(httptest.NewRecorder(), r) // it breaks the lease
		w.WriteHeader(http.StatusGatewayTimeout)  // a proxy has waited no longer
		return true
	})
	p.click("dialog button[type=submit]")
	if got := p.refusal(); !strings.Contains(got, "app-2 holds it now") || !strings.HasSuffix(got, perhaps) {
		t.Errorf("the dialog says %q", got)
	}
}

// Nor must it repeat what the server says of a second try.
func TestASecondBreakDoesNotDenyTheFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("504 (Gateway Timeout)")
	p.expect("409 (Conflict)")
	p.openDialog()
	p.reason("host is down")
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/api/break") {
			return false
		}
		w.WriteHeader(http.StatusGatewayTimeout)
		return true
	})
	p.click("dialog button[type=submit]")
	p.text("dialog .refusal", "it is unknown whether the lease was broken")
	s.queue("app-2", "nightly")
	s.on(func(r *http.Request) { // before the page sees it, the break is done, and app-2 has the lock
		if strings.HasSuffix(r.URL.Path, "/api/break") {
			_, err := s.admin.Break(r.Context(), "nightly", "host is down", lockadmin.BreakOptions{})
			if err != nil {
				t.Error(err)
			}
		}
	})
	p.click("dialog button[type=submit]")
	if got := p.refusal(); !strings.Contains(got, "no lease has token") || !strings.HasSuffix(got, perhaps) {
		t.Errorf("the dialog says %q", got)
	}
}

func TestAReadOnlyPageHasNoBreakButton(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.text(".sentence", "app-1")
	p.text(".holder-card", "Held for")
	const breaks = "[...document.querySelectorAll('button')]" +
		".filter(b => b.checkVisibility() && b.innerText.includes('Break')).length"
	if n := eval[int](p, breaks); n != 0 {
		t.Errorf("there are %d buttons to break", n)
	}
	p.press("b")
	if eval[bool](p, "!!document.querySelector('dialog')") {
		t.Error("the key b opens a dialog")
	}
}

// In another tab somebody else has logged in since.
func TestABreakInAnotherNameIsRefused(t *testing.T) {
	t.Parallel()
	var user atomic.Value
	user.Store("al\u202eice\r")
	s := newStage(t, func(c *dashboard.Config) {
		c.Breaks = true
		c.Auth = func(*http.Request) (dashboard.Identity, error) {
			return dashboard.Identity{Name: user.Load().(string), MayBreak: true}, nil
		}
	})
	lease := s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.expect("409 (Conflict)")
	p.text(".user", `logged in as al\u202eice\r`)
	p.openDialog()
	p.reason("host is down")
	was := user.Swap("bob")
	p.click("dialog button[type=submit]")
	p.text("dialog .refusal", "The history would now name bob. Nothing was broken.")
	if _, err := lease.Check(t.Context()); err != nil {
		t.Errorf("the lease was broken: %v", err)
	}
	p.press(kb.Escape)
	p.gone("dialog")
	user.Store(was)
	p.openDialog()
	p.reason("host is down")
	p.click("dialog button[type=submit]")
	p.text("#note", "Broken: token")
}
