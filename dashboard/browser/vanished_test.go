package browser

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// holdForNobody takes a lock for a client that there is not, so that nobody minds when its row vanishes.
func (s *stage) holdForNobody(holder, name string) {
	s.t.Helper()
	s.sql("SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 h')", name, holder)
}

// Nothing that was known of a lock comes back once its row has gone: no holder, no picture, no button.
func TestALockThatVanishesIsForgotten(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	s.holdForNobody("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.text(".actions button", "Break lease…")
	p.until("document.querySelector('.timeline-picture')?.checkVisibility()")
	asked := make(chan context.Context, 1)
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/history") {
			asked <- r.Context()
			<-r.Context().Done()
		}
	})
	must.Get(s.admin.Break(t.Context(), "nightly", "its host is gone", lockadmin.BreakOptions{}))(t)
	s.holdForNobody("app-2", "nightly")
	p.text(".sentence", "app-2 has held it")
	request := <-asked // for the history, which the lock's end must end
	s.sql("DELETE FROM pglock.locks WHERE name = 'nightly'")
	p.text(".empty", "Nobody has used a lock named nightly here")
	select {
	case <-request.Done():
	case <-time.After(patience):
		t.Error("the page goes on to wait for the history of a lock that has gone")
	}
	p.do(chromedp.EmulateViewport(1000, 900)) // for which pictures are drawn again
	eval[bool](p, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
	const left = "[...document.querySelectorAll('.actions button, .card')].filter(e => e.checkVisibility())" +
		".map(e => e.innerText).join('; ')"
	if got := eval[string](p, left); got != "" {
		t.Errorf("the page still has %q", got)
	}
	s.answer(nil)
	s.holdForNobody("app-3", "nightly")
	p.text(".sentence", "app-3 has held it")
	p.text(".actions button", "Break lease…")
	p.gone(".empty")
}
