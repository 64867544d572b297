package pglock

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/trust"
)

// Every role may notify every channel. A client that is told without end that something may have changed does not ask
// without end.
func TestAStormOfNotificationsIsNoStormOfStatements(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		newWatched(s, held(0, 5, "a"))
		queued(s, time.Hour)
		c := startClient(t, s, trust.SystemClock())
		expect(t, watching(t.Context(), c), ChangeState, 5)
		id, result := waiting(t.Context(), t, c, "another")
		time.Sleep(time.Second)
		for what, tell := range map[string]func(){
			"watch":   func() { c.watchers.changed("watched") },
			"acquire": func() { c.queue.Hear(hintText(id, 1, 0, 0), nil) }, // heard, and told again
		} {
			before := len(s.of(what))
			for range 10_000 {
				tell()
				time.Sleep(100 * time.Microsecond)
			}
			if n := len(s.of(what)) - before; n < 50 || n > 105 {
				t.Errorf("%d calls of %s in a second of notifications, want 100 at most", n, what)
			}
		}
		still(t, result)
	})
}
