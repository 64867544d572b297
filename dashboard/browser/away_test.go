package browser

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestThePageSaysThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	chromium(t)
	server := pgtest.Dedicated(t, nil)
	must.Do(t, migrations.Up(t.Context(), server.URL()))
	pool := must.Get(pgxpool.New(t.Context(), server.URL()))(t)
	t.Cleanup(pool.Close)
	s := stageOn(t, pool)
	client := must.Get(pglock.New(t.Context(), pool, pglock.WithDefaultHolder("app-1")))(t)
	t.Cleanup(func() { _ = client.Close(t.Context()) }) // its leases were lost with the server
	must.Get(client.TryAcquire(t.Context(), "nightly", pglock.WithTTL(time.Hour)))(t)
	p := open(t, s.home, "", 1240, 800)
	p.text("tbody th", "nightly")
	p.text("#link", "live")

	must.Do(t, server.Kill())
	p.text("#banner", "The database")
	p.text("#banner", "Below is what was true at")
	p.text("#link", "no data")
	p.text("#said", "The database") // screen readers hear it, once
	p.text("tbody th", "nightly")   // what was known stays, marked as old
	if !eval[bool](p, "document.documentElement.classList.contains('old')") {
		t.Error("the data is not marked as old")
	}
	was := eval[string](p, "document.querySelector('td[data-label=\"Held for\"]').textContent")
	age := eval[string](p, "document.querySelector('#banner').textContent")
	p.until("document.querySelector('#banner').textContent !== " + quote(age)) // a second later
	if now := eval[string](p, "document.querySelector('td[data-label=\"Held for\"]').textContent"); now != was {
		t.Errorf("old data grows: held for %s, then %s", was, now)
	}

	must.Do(t, server.Restart(t.Context()))
	p.gone("#banner")
	p.text("#link", "live")
	p.text("#said", "Connected again")
	must.Get(lists.All(s.admin.Locks(t.Context(), lockadmin.LocksQuery{})))(t)
}

// A request has no end of its own: behind a tunnel that keeps everything back the list would stay green.
func TestTheSessionsSayThatTheServerIsSilent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/sessions", 1240, 800)
	p.text("tbody th", "app-1")
	end, asked := s.slow("/api/sessions")
	<-asked
	p.text("#banner", "The connection is lost: the server has been silent for too long.")
	p.text("#link", "not connected")
	end()
	p.gone("#banner")
	p.text("#link", "live")
}

// A machine that wakes: no timer ran, but its clock has gone on.
func TestAPageThatWakesAsksAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/locks", 1240, 800)
	const sleep = "(() => { const now = Date.now; Date.now = () => now() + 7200e3; })()"
	p.text("tbody th", "nightly")
	p.text("#link", "live")
	end, asked := s.slow("/api/stream")
	p.eval(sleep)
	s.eventually(func() bool { return len(asked) > 0 })
	p.old()
	end()
	p.fresh()

	p.visit([2]string{"#/sessions", "tbody tr"})
	p.text("#link", "live")
	end, asked = s.slow("/api/sessions")
	p.eval(sleep)
	s.eventually(func() bool { return len(asked) > 0 })
	p.old()
	end()
	p.fresh()

	// A hidden page asks again, too, or rests until it is seen: its timers may run once a minute, as if it were asleep.
	p.eval(inBackground)
	end, asked = s.slow("/api/sessions")
	p.eval(sleep)
	s.eventually(func() bool { return len(asked) > 0 })
	p.text("#link", "connecting")
	end()
	p.text("#link", "live")

	p.visit([2]string{"#/locks", "tbody tr"})
	p.text("#link", "live")
	began := s.streams()
	p.eval(sleep)
	p.text("#link", "paused")
	if n := len(began); n != 0 {
		t.Errorf("a hidden page has connected %d times", n)
	}
	s.hold("app-2", "meanwhile")
	p.eval("showIt()")
	p.text("tbody th", "meanwhile")
	p.text("#link", "live")
	if n := len(began); n != 1 {
		t.Errorf("a page that is seen again has connected %d times", n)
	}
}

// old waits until the page connects, and wants its data to be marked as old.
func (p *tab) old() {
	p.t.Helper()
	p.text("#link", "connecting")
	if !eval[bool](p, "document.title.startsWith('OLD: ') && document.documentElement.classList.contains('old')") {
		p.t.Errorf("what is old has no mark, or not in the title: %q", eval[string](p, "document.title"))
	}
}

// fresh waits until the page is live, and wants no such mark.
func (p *tab) fresh() {
	p.t.Helper()
	p.text("#link", "live")
	if eval[bool](p, "document.title.startsWith('OLD: ') || document.documentElement.classList.contains('old')") {
		p.t.Errorf("what is live is marked as old: %q", eval[string](p, "document.title"))
	}
}

// The marks of old data stay until there is other data, which takes a while where the network is dead.
func TestAPageThatComesBackIsOldUntilItHasData(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/nothing", 1240, 800)
	p.before(inBackground)
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.home+"#/locks"))
	p.text("tbody th", "nightly")
	p.text("#link", "paused")
	end, asked := s.slow("/api/stream")
	p.eval("showIt()")
	<-asked
	p.old()
	p.eval("location.hash = '#/locks?match=nightly'")
	p.old() // these are the locks of the question before
	p.eval("location.hash = '#/lock?name=nightly'")
	p.text(".loading", "The page loads this lock…") // this has nothing old
	end()
	p.text(".sentence", "app-1 has held it")
	p.fresh()

	// The browser has kept the page while another one was there.
	end, asked = s.slow("/api/stream")
	p.eval("window.dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
	<-asked
	p.old()
	end()
	p.fresh()
}

// A proxy has another route now. Only the server knows that nobody has used a lock.
func TestANotFoundOfAProxyIsARefusal(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 800)
	p.expect("404 (Not Found)")
	p.expectLostConnections()
	p.text(".sentence", "app-1 has held it")
	s.answer(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	s.server.CloseClientConnections()
	p.text("#banner", "The server refuses: the server answered 404 Not Found.")
	p.text("#link", "refused")
	p.text(".sentence", "app-1 has held it")
}

func TestThePageConnectsAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "", 1240, 800)
	p.expectLostConnections()
	p.text("tbody th", "nightly")

	var refused atomic.Int64
	s.on(func(*http.Request) { refused.Add(1); panic(http.ErrAbortHandler) }) // the server takes no request
	s.server.CloseClientConnections()
	p.text("#banner", "The connection is lost")
	p.text("#link", "not connected")
	s.eventually(func() bool { return refused.Load() >= 2 }) // it goes on trying
	s.answer(nil)
	s.hold("app-2", "meanwhile")
	p.click("#retry")
	p.gone("#banner")
	p.text("tbody th", "meanwhile")
	p.text("#link", "live")
}
