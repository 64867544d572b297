package browser

import "testing"

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
