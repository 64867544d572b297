package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// attack is a page of another site that tries to break a lease in all ways that a browser has.
const attack = `<!DOCTYPE html><title>other</title>
<form id="form" method="post" enctype="text/plain" action="%[1]s" target="frame">
<input name='%[3]s,"x":"' value='"}'></form><iframe name="frame" id="frame"></iframe>
<script>
const tries = { json: { headers: { 'Content-Type': 'application/json' } }, text: {}, blind: { mode: 'no-cors' },
  cookies: { credentials: 'include', headers: { 'Content-Type': 'application/json' } } };
const body = '%[2]s';
const sent = Object.entries(tries).map(([name, how]) => fetch('%[1]s', { method: 'POST', body, ...how })
  .then((r) => name + ': ' + r.type, () => name + ': refused'));
sent.push(new Promise((done) => {
  const frame = document.getElementById('frame');
  frame.addEventListener('load', () => done('form: sent'));
  document.getElementById('form').submit();
}));
sent.push(new Promise((done) => done(navigator.sendBeacon('%[1]s', new Blob([body], { type: 'text/plain' })) ?
  'beacon: sent' : 'beacon: refused')));
Promise.all(sent).then((all) => { document.title = all.join(', '); });
</script>`

// A page of another site breaks nothing, in whichever way its browser lets it ask, although the person who looks at it
// may break locks.
func TestAnotherSiteBreaksNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t, asAlice)
	lease := s.hold("app-1", "nightly")
	type try struct{ method, site, kind string }
	tried := make(chan try, 100)
	s.on(func(r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/api/break") {
			tried <- try{r.Method, r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Content-Type")}
		}
	})
	fields := fmt.Sprintf(`"name":"nightly","token":"%d","reason":"evil"`, lease.Token())
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, fmt.Sprintf(attack, s.home+"api/break", "{"+fields+"}", "{"+fields))
	}))
	t.Cleanup(other.Close)
	p := open(t, other.URL, "", 800, 600)
	for _, text := range []string{"api/break", "frame-ancestors", "status of 403", "request to data:image"} {
		p.expect(text) // the browser says what it refused
	}
	p.until("document.title.includes('beacon')")
	want := "json: refused, text: refused, blind: refused, cookies: refused, form: sent, beacon: sent"
	if title := eval[string](p, "document.title"); title != want {
		t.Errorf("the other site says %s, want %s", title, want)
	}
	posts := 0
	for posts < 4 { // text, blind, the form and the beacon; the others had to ask first
		select {
		case r := <-tried:
			if r.method != http.MethodPost {
				continue
			}
			posts++
			if r.site != "same-site" || r.kind == "application/json" {
				t.Errorf("the browser sent %+v", r)
			}
		case <-time.After(patience):
			t.Fatalf("%d of 4 requests came", posts)
		}
	}
	if _, err := lease.Check(t.Context()); err != nil {
		t.Fatalf("the lease was broken: %v", err)
	}
}
