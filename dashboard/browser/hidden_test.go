package browser

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// inBackground has the pages that come say that they are hidden, until showIt is called in them.
const inBackground = `(() => {
  let hidden = true;
  Object.defineProperty(document, 'hidden', { get: () => hidden });
  window.showIt = () => {
    hidden = false;
    document.dispatchEvent(new Event('visibilitychange'));
  };
})()`

// streams tells of each stream of data that has begun.
func (s *stage) streams() <-chan context.Context {
	began := make(chan context.Context, 100)
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/stream") {
			began <- r.Context()
		}
	})
	return began
}

// A browser has six connections to a server. Tabs that were opened in the background, and never seen, must not keep
// them.
func TestATabThatNobodyHasSeenRestsSoon(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/nothing", 1240, 800)
	p.text(".unknown", "This page does not know the address")
	p.before(inBackground)
	began := s.streams()
	p.do(chromedp.Navigate("about:blank"), chromedp.Navigate(s.home+"#/locks"))
	p.text("tbody th", "nightly") // it has its title
	p.text("#link", "paused")
	<-(<-began).Done() // the connection is free
	s.hold("app-2", "meanwhile")
	p.eval("showIt()")
	p.text("tbody th", "meanwhile")
	p.text("#link", "live")
}
