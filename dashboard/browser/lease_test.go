package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// What is left of an extended lease is more than its TTL, which says nothing of its last renewal.
func TestAnExtendedLeaseSaysWhenItWasRenewed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.hold("app-1", "nightly")
	end := must.Get(lease.Extend(t.Context(), time.Hour))(t)
	t.Cleanup(end)
	p := open(t, s.home, "#/lock?name=nightly", 1240, 900)
	p.text(".sentence", "app-1 has held it")
	p.until("/ [1-9]\\d*s ago/.test(document.querySelector('.holder-card').innerText.replace(/\\s+/g, ' '))")
}

// While data is late a healthy lease must not look as if it were over: its holder may have renewed it.
func TestThePageDoesNotConcludeThatALeaseIsOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.listing(object{"at": "2026-11-22T03:10:00Z", "locks": []object{row("nightly", "ok", 1500)},
		"ill": object{"locks": []object{}, "all": true}})
	p := open(t, s.home, "", 1240, 900)
	p.until(rowOf("nightly") + "?.querySelector('.left').textContent === '0s'")
	p.until(rowOf("nightly") + ".querySelector('.fill').style.transform === 'scaleX(0)'")
	if got := eval[string](p, rowOf("nightly")+".querySelector('.lease').outerHTML"); strings.Contains(got, "title") ||
		!strings.Contains(got, ">0s<") {
		t.Errorf("the lease is %s", got)
	}
}
