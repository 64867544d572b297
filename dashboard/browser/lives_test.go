package browser

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// lifeOf is what the list says of the holder of a lock.
func (p *tab) lifeOf(name string) string {
	p.t.Helper()
	return eval[string](p, "[...document.querySelectorAll('tbody tr')].find(r => r.querySelector('th').textContent "+
		"=== "+
		quote(name)+")?.querySelector('.life')?.innerText ?? 'no row'")
}

// given makes a lock whose holder is what the word says, and stays so: no program holds it.
func (s *stage) given(word lockadmin.Life, name string) {
	s.t.Helper()
	s.sql("SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'app ' || $1, '1 h')", name)
	if word == lockadmin.LifeUnknown {
		s.sql("UPDATE pglock.locks SET acquired_at = acquired_at + interval '1 h' WHERE name = $1", name)
		return // it got its lock a moment ago, for an hour
	}
	s.sql("UPDATE pglock.locks SET acquired_at = acquired_at - interval '1 min' WHERE name = $1", name)
	signed, mark := "-30 s", "" // its last sign of life
	switch word {
	case lockadmin.LifeAlive:
		signed = "1 h"
	case lockadmin.LifeDead:
		mark = "1" // that no connection has any more
	}
	s.sql(`INSERT INTO pglock.sessions (session_id, holder, seen_at, alive_until, holds_until, mark, pid, seen_by)
		SELECT session_id, holder, clock_timestamp() + $2::text::interval, clock_timestamp(),
			clock_timestamp() + interval '1 h', nullif($3, '')::bigint, 1, 1 FROM pglock.locks WHERE name = $1`, name,
		signed, mark)
}

func TestTheListSaysWhetherHoldersLive(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	words := []lockadmin.Life{lockadmin.LifeAlive, lockadmin.LifeSilent, lockadmin.LifeDead, lockadmin.LifeUnknown}
	for _, word := range append(words, "free") {
		s.given(word, "lock "+string(word))
	}
	must.Get(s.admin.Break(t.Context(), "lock free", "it is to be free", lockadmin.BreakOptions{}))(t)
	p := open(t, s.home, "#/locks?free=1", 1240, 800)
	for _, width := range []int64{1240, 390} {
		p.do(chromedp.EmulateViewport(width, 844))
		for _, word := range words {
			p.text("tbody th", "lock "+string(word))
			if got := p.lifeOf("lock " + string(word)); got != string(word) {
				t.Errorf("%d pixels wide: the list says %q of the holder that is %s", width, got, word)
			}
		}
		if got := p.lifeOf("lock free"); got != "" {
			t.Errorf("%d pixels wide: the list says %q of a lock that nobody holds", width, got)
		}
	}
	const why = "document.querySelector('[data-life=dead] .life').title"
	if got := eval[string](p, why); !strings.Contains(got, "its connection has ended") {
		t.Errorf("the word's explanation is %q", got)
	}

	// Nothing but the life changes, and the page hears of it.
	s.sql("UPDATE pglock.sessions SET seen_at = clock_timestamp() + interval '1 h' WHERE holder = 'app lock silent'")
	p.until("document.querySelectorAll('[data-life=alive] .life').length === 2")
	if got := p.lifeOf("lock silent"); got != "alive" {
		t.Errorf("the list says %q of a holder that has given a sign of life", got)
	}
}
