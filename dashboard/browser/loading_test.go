package browser

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// slow keeps every request whose path contains the text waiting, until the function that it returns is called. asked
// has something when there has been such a request.
func (s *stage) slow(path string) (end func(), asked <-chan struct{}) {
	s.t.Helper()
	over, first := make(chan struct{}), make(chan struct{}, 1)
	end = sync.OnceFunc(func() { close(over) })
	s.t.Cleanup(end)
	s.on(func(r *http.Request) {
		if strings.Contains(r.URL.Path, path) {
			select {
			case first <- struct{}{}:
			default:
			}
			select {
			case <-over:
			case <-r.Context().Done():
			}
		}
	})
	return end, first
}

func TestThePageSaysThatItLoads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/nothing", 390, 844)
	const tables = "[...document.querySelectorAll('main table, main .empty, main .pager')]" +
		".filter(e => e.checkVisibility()).length"
	for _, v := range []struct{ address, says, then, text string }{
		{"#/locks", "The page loads the locks…", "tbody th", "nightly"},
		{"#/lock?name=nightly", "The page loads this lock…", ".sentence", "app-1 has held it"},
		{"#/lock?name=unused", "The page loads this lock…", ".empty", "Nobody has used"},
		{"#/sessions", "The page loads the sessions…", "tbody th", "app-1"},
	} {
		end, _ := s.slow("/api/")
		p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(p.home+v.address))
		p.text(".loading", v.says)
		p.until("getComputedStyle(document.querySelector('.loading')).opacity === '1'")
		if n := eval[int](p, tables); n != 0 {
			t.Errorf("%s: before there is data the page shows %d tables, empty lists or buttons for pages", v.address,
				n)
		}
		end()
		p.text(v.then, v.text)
		p.gone(".loading")
	}
}

// Until its scripts are there, a page that is slow has only what the first answer had.
func TestThePageSaysThatItLoadsBeforeItsScriptsAreThere(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "", 390, 844)
	p.text("tbody th", "nightly")
	end, asked := s.slow("/assets/main.js")
	p.eval("location.reload()")
	<-asked // by the new page
	p.text(".loading", "The page loads…")
	end()
	p.text("tbody th", "nightly")
	p.gone(".loading")
}

func TestAPageThatGetsNoDataSaysWhyAndNotThatItLoads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := open(t, s.home, "#/nothing", 390, 844)
	p.expect("503 (Service Unavailable)")
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/api/") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"error":"The database does not answer in time."}`))
		return true
	})
	for _, address := range []string{"#/locks", "#/lock?name=nightly", "#/sessions"} {
		p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(p.home+address))
		p.text("#banner", "The database does not answer in time.")
		p.gone(".loading")
		p.eval("location.hash = '#/nothing'") // which needs no data
		p.gone("#banner")
		if said := eval[string](p, "document.querySelector('#said').textContent"); strings.Contains(said, "Connected") {
			t.Errorf("%s: a screen reader hears %q", address, said)
		}
	}
}
