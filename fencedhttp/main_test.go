package fencedhttp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// acquired is a lease of a lock of its own database, and who can break it.
func acquired(t *testing.T) (*pglock.Lease, *lockadmin.Admin) {
	t.Helper()
	pool := pgtest.Database(t).Pool(t)
	c := must.Get(pglock.New(t.Context(), pool))(t)
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	t.Cleanup(func() {
		must.Note(t, c.Close(context.WithoutCancel(t.Context())))
	})
	l := must.Get(c.TryAcquire(t.Context(), "report"))(t)
	return l, admin
}

// byPath is a verifier that names resources by the path.
func byPath(store fencedhttp.TokenStore) *fencedhttp.Verifier {
	return &fencedhttp.Verifier{Store: store, Resource: func(r *http.Request) (string, error) {
		return r.URL.Path, nil
	}}
}

// ask sends a PUT with the header values to the handler.
func ask(ctx context.Context, h http.Handler, path string, values ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, path, nil)
	r.Header[fencedhttp.Header] = values
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// document is a problem document as a client in any language sees it.
type document struct {
	Type, Title, Detail string
	Status              int
	Token, LastToken    int64
	Resource            string
}

// wantProblem checks that the response is a whole problem document of the type.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int, kind string) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(w.Body.Bytes(), &d); err != nil {
		t.Fatalf("status %d: %v: %q", w.Code, err, w.Body)
	}
	if w.Code != status || d.Status != status || d.Type != kind || d.Title == "" {
		t.Errorf("status %d, document %+v; want %d, %s", w.Code, d, status, kind)
	}
	h := w.Header()
	if h.Get("Content-Type") != fencedhttp.ContentType || h.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", h)
	}
	return d
}
