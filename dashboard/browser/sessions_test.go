package browser

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// clients has so many clients hold a lock each: app-001, app-002, and so on.
func (s *stage) clients(n int) {
	s.t.Helper()
	s.sql(`SELECT pglock.acquire_lease('lock-' || i, gen_random_uuid(), gen_random_uuid(),
		'app-' || lpad(i::text, 3, '0'), '1 h') FROM generate_series(1, $1::int) i`, n)
}

func TestAClientHasItsHeartbeatAndItsBackend(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	conn := must.Get(s.pool.Acquire(t.Context()))(t)
	defer conn.Release()
	must.Get(conn.Exec(t.Context(), "SET application_name = 'reporter'"))(t)
	if _, err := conn.Exec(t.Context(), `SELECT pglock.mark_connection(gen_random_uuid(), pg_backend_pid(), 'app-1',
		'v0.1.0', '1 h')`); err != nil {
		t.Fatal(err)
	}
	p := open(t, s.home, "#/sessions", 1240, 900)
	p.text("tbody th", "v0.1.0")
	p.text("tbody tr", fmt.Sprintf("PID %d · reporter", conn.Conn().PgConn().PID()))
	p.until(`/\d(\.\d)?s ago/.test(document.querySelector('tbody tr').textContent)`)
}

// A client may go while somebody looks at the page that begins after it.
func TestAPageOfClientsStaysWhenTheLastOneBeforeItGoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.clients(201)
	p := open(t, s.home, "#/sessions", 1240, 900)
	p.text("tbody th", "app-200")
	p.click("a[rel=next]")
	p.text("tbody th", "app-201")
	p.until("document.querySelectorAll('tbody tr').length === 1")
	s.sql("UPDATE pglock.locks SET expires_at = '-infinity', ended_at = now() WHERE holder = 'app-200'")
	s.sql("DELETE FROM pglock.sessions WHERE holder = 'app-200'")
	asked := make(chan struct{}, 100)
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/sessions") {
			asked <- struct{}{}
		}
	})
	for range 2 { // the second request comes after the first one's answer
		<-asked
	}
	p.text("#link", "live")
	p.text("tbody th", "app-201")
	p.until("document.querySelectorAll('tbody tr').length === 1")
}

// A link from elsewhere may not know the label.
func TestAPageAfterAClientThatHasGoneIsTheFirst(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.clients(3)
	p := open(t, s.home, "#/sessions?match=app&after=3b241101-e2bb-4255-8caf-4136c566a962", 1240, 900)
	p.expect("400 (Bad Request)")
	p.text("#note", "The client that this page began after has gone.")
	p.text("tbody th", "app-001")
	p.until("location.hash === '#/sessions?match=app'")
	p.text("#link", "live")
}
