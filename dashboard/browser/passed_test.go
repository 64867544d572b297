package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// A waiter whose ticket counts no more is told in the words of the command line, in the picture and in the table.
func TestTheQueueTellsWhoIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, holder := range []string{"holder", "silent one", "waiter"} {
		s.sql(`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), $1, '1 h', p_wait => $2,
			p_session_ttl => '1 h')`, holder, holder != "holder")
	}
	s.sql("UPDATE pglock.sessions SET alive_until = '-infinity' WHERE holder = 'silent one'")
	p := open(t, s.home, "#/lock?name=report", 1240, 800)
	const said = "passed over: no sign of life"
	p.text(".queue-picture text", said)
	p.until("[...document.querySelectorAll('table[aria-label=Queue] td')].some(e => e.textContent === " +
		quote(said) + ")")
	if n := eval[int](p, "[...document.querySelectorAll('.queue-picture text')].filter(e => e.textContent === "+
		quote(said)+").length"); n != 1 {
		t.Errorf("%d of two waiters are passed over, want the first", n)
	}
	p.until("document.querySelector('.queue-picture').getAttribute('aria-label').includes('silent one, passed over')")
}

// asOnStandby has the page of a lock get what a standby would say of what the database has.
func (s *stage) asOnStandby(name string) {
	s.t.Helper()
	s.answer(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/api/stream") {
			return false
		}
		found := httptest.NewRecorder()
		s.server.Config.Handler.ServeHTTP(found, httptest.NewRequestWithContext(r.Context(), http.MethodGet,
			prefix+"/api/lock?name="+name, nil))
		var lock object
		if err := json.Unmarshal(found.Body.Bytes(), &lock); err != nil {
			s.t.Errorf("%v: %s", err, found.Body)
			return true
		}
		why, explained := lock["why"].(object)
		if !explained { // the page has gone on
			return true
		}
		why["standby"] = true
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = fmt.Fprintf(w, "event: lock\ndata: %s\n\n", must.Get(json.Marshal(lock))(s.t))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return true
	})
}

// A standby may not have the sign of life, nor the grant. TestI23_AStandbyShowsThePastAndSaysSo has a real one.
func TestOnAStandbyNobodyIsPassedOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.sql(`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'holder', '1 h')`)
	s.sql(`SELECT pglock.acquire_lease('report', gen_random_uuid(), gen_random_uuid(), 'silent one', '1 h',
		p_wait => true, p_session_ttl => '1 h')`)
	s.sql("UPDATE pglock.sessions SET alive_until = '-infinity' WHERE holder = 'silent one'")
	s.asOnStandby("report")
	p := open(t, s.home, "#/lock?name=report", 1240, 800)
	const said = "unknown: no sign of life has arrived on this standby"
	p.text(".sentence", "As far as this standby knows, holder has held it since")
	p.until("document.title.startsWith('standby: held, 1 waiting: report')")
	p.until("[...document.querySelectorAll('table[aria-label=Queue] td')].some(e => e.textContent === " +
		quote(said) + ")")
	p.until("document.querySelector('.queue-picture').getAttribute('aria-label').includes('silent one, " + said + "')")
	if n := eval[int](p, "document.querySelectorAll('.queue-picture .struck, .queue-picture .dead').length"); n != 0 {
		t.Error("the picture shows a waiter as dead")
	}
	p.gone(".hint .one-line") // no command records anything here
	s.sql("SELECT pglock.break_lock('report', 'stuck', 'alice')")
	p.eval("location.hash = '#/locks'")
	p.eval("location.hash = '#/lock?name=report'")
	p.text(".sentence", "As far as this standby knows, nobody holds this lock.")
	p.until("document.title.startsWith('standby: free: report')")
}
