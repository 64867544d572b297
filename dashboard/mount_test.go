package dashboard_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
)

// Every address of the page is relative, so it works below any prefix.
func TestThePageWorksBelowAnyPrefix(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.hold("app-1", "nightly")
	below := func(prefix string) http.Handler { return http.StripPrefix(prefix, s.page) }
	mux := http.NewServeMux()
	mux.Handle("/locks", below("/locks"))
	mux.Handle("/locks/", below("/locks"))
	mux.Handle("/deep/in/the/back-office/", below("/deep/in/the/back-office"))
	mux.Handle("GET /tenant/{id}/locks/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		below("/tenant/"+r.PathValue("id")+"/locks").ServeHTTP(w, r)
	}))
	s.http.Config.Handler = mux
	for _, prefix := range []string{"/locks", "/deep/in/the/back-office", "/tenant/7/locks"} {
		page := s.get(prefix+"/").want(200, "<!doctype html>").body
		if strings.Contains(page, `="/`) {
			t.Errorf("%s has absolute addresses: %s", prefix, page)
		}
		s.get(prefix + "/assets/main.js").want(200)
		s.get(prefix+"/api/locks").want(200, `"nightly"`)
		s.get(prefix + "/none").want(404)
	}
	if e := s.stream("/locks/api/stream"); !strings.Contains(e.next("locks"), `"nightly"`) {
		t.Error("the stream lacks the lock")
	}
}

// Without the slash the browser would look for everything one level too high.
func TestWithoutTheSlashTheBrowserIsSentToIt(t *testing.T) {
	t.Parallel()
	page := must.Get(dashboard.New(new(lockadmin.Admin), dashboard.Config{Anybody: true}))(t)
	defer page.Close()
	for _, one := range []struct{ prefix, asked, to string }{
		{"/locks", "/locks", "./locks/"},
		{"/admin/locks", "/admin/locks?order=age", "./locks/?order=age"},
		{"/a b", "/a%20b", "./a%20b/"},
		{"/x:y", "/x:y", "./x:y/"},
		{"//evil.example", "//evil.example", "./evil.example/"},
		{"/\\evil.example", "/%5Cevil.example", "./%5Cevil.example/"},
		{"/locks", "http://evil.example/locks", "./locks/"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), method, one.asked, nil)
			http.StripPrefix(one.prefix, page).ServeHTTP(w, r)
			if w.Code != http.StatusTemporaryRedirect || w.Header().Get("Location") != one.to {
				t.Errorf("%s: status %d to %q, want %q", one.asked, w.Code, w.Header().Get("Location"), one.to)
			}
		}
	}
	w := httptest.NewRecorder()
	http.StripPrefix("/locks", page).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/locks",
		nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: status %d", w.Code)
	}
}

// A server that knows no deadlines could not get rid of a reader that stops.
func TestAServerWithoutDeadlinesIsRefusedStreams(t *testing.T) {
	t.Parallel()
	page := must.Get(dashboard.New(new(lockadmin.Admin), dashboard.Config{Anybody: true}))(t)
	defer page.Close()
	w := httptest.NewRecorder()
	page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/stream", nil))
	if w.Code != http.StatusNotImplemented {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}
