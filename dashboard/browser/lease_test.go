package browser

import (
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
