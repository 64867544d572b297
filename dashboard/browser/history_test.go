package browser

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// rows waits for so many entries of the history.
func (p *tab) rows(n int) {
	p.t.Helper()
	p.until(fmt.Sprintf("document.querySelectorAll('[aria-label=History] tbody tr').length === %d", n))
}

// A lock whose holders change all the time must not take away what somebody has asked for.
func TestOlderEntriesStayWhenTheLockChanges(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.sql(`INSERT INTO pglock.events (at, kind, lock_name, token, holder, granted_at, ended_at)
		SELECT now() - i * interval '1 min', 'release', 'nightly', 1000 - i, 'app-' || i,
			now() - (i + 1) * interval '1 min', now() - i * interval '1 min' FROM generate_series(500, 1, -1) i`)
	s.holdForNobody("app-1", "nightly")
	change := func(holder string) { // an entry more
		if _, err := s.admin.Break(t.Context(), "nightly", "its host is gone"); err != nil {
			t.Error(err)
		}
		s.holdForNobody(holder, "nightly")
	}
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.rows(200)
	p.click(".buttons.left button")
	p.rows(400)
	change("app-2")
	p.text(".sentence", "app-2 has held it")
	p.text("[aria-label=History] tbody tr:first-child", "broken")
	p.rows(401)

	// While the request for older ones is under way.
	older, over := make(chan struct{}), make(chan struct{})
	s.on(func(r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "before=") {
			close(older)
			<-over
		}
	})
	p.click(".buttons.left button")
	<-older
	change("app-3")
	p.rows(402)
	close(over)
	p.rows(502)
	p.gone(".buttons.left button")
}

// An explanation may fail where the rest is read. The words from before, and their absence, would say that all is well.
func TestThePageSaysThatNobodyCanExplainALock(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.hold("app-1", "nightly")
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.until("document.querySelector('.verdict-text')?.checkVisibility()")
	s.sql("ALTER FUNCTION pglock.list_backends RENAME TO list_no_backends")
	p.text(".card", "Nobody can tell now whether anything is wrong.")
	p.gone(".verdict-text")
	p.text("#link", "live")
	s.sql("ALTER FUNCTION pglock.list_no_backends RENAME TO list_backends")
	p.until("document.querySelector('.verdict-text')?.checkVisibility()")
}
