package fencedhttp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// service answers with the header values that arrived, and counts the requests. /there leads to /here.
func service(t *testing.T) (url string, client *http.Client, requests *atomic.Int64) {
	t.Helper()
	requests = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.URL.Path == "/there" {
			http.Redirect(w, r, "/here", http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprintf(w, "%s %q", r.Method, r.Header[fencedhttp.Header])
	}))
	t.Cleanup(s.Close)
	return s.URL, &http.Client{Transport: &fencedhttp.Transport{Base: s.Client().Transport}}, requests
}

// closing tells whether a request's body was closed.
type closing struct {
	io.Reader
	closed atomic.Bool
}

func (c *closing) Close() error {
	c.closed.Store(true)
	return nil
}

func send(ctx context.Context, t *testing.T, c *http.Client, url string, header http.Header) (string, error) {
	t.Helper()
	b := &closing{Reader: strings.NewReader("body")}
	r := must.Get(http.NewRequestWithContext(ctx, http.MethodPut, url, b))(t)
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("body")), nil }
	for name, values := range header {
		r.Header[name] = values
	}
	before := fmt.Sprint(r.Header)
	resp, err := c.Do(r)
	if after := fmt.Sprint(r.Header); after != before {
		t.Errorf("the caller's request had the header %s, and has %s now", before, after)
	}
	if err != nil {
		if !b.closed.Load() {
			t.Error("the body was left open")
		}
		return "", err
	}
	defer resp.Body.Close()
	text := must.Get(io.ReadAll(resp.Body))(t)
	return string(text), nil
}

func TestTransportSendsTheTokenOfTheContext(t *testing.T) {
	t.Parallel()
	lease, _ := acquired(t)
	token := fmt.Sprint(int64(lease.Token()))
	url, client, _ := service(t)
	ctx := t.Context()
	for name, tc := range map[string]struct {
		ctx    context.Context
		path   string
		header http.Header
		want   string
	}{
		"none":              {ctx, "/here", nil, `PUT []`},
		"none, by hand":     {ctx, "/here", http.Header{fencedhttp.Header: {"9"}}, `PUT ["9"]`},
		"lease":             {fencedhttp.ContextWithLease(ctx, lease), "/here", nil, `PUT ["` + token + `"]`},
		"lease, redirected": {fencedhttp.ContextWithLease(ctx, lease), "/there", nil, `PUT ["` + token + `"]`},
		"lease and the same": {fencedhttp.ContextWithLease(ctx, lease), "/here",
			http.Header{fencedhttp.Header: {token}}, `PUT ["` + token + `"]`},
		"lease and another's way": {fencedhttp.ContextWithLease(ctx, lease), "/here",
			http.Header{"fencing-token": {token}}, `PUT ["` + token + `"]`},
		"lease after token": {fencedhttp.ContextWithLease(fencedhttp.ContextWithToken(ctx, 1<<62), lease), "/here", nil,
			`PUT ["` + token + `"]`},
		"token":             {fencedhttp.ContextWithToken(ctx, 1<<62), "/here", nil, `PUT ["4611686018427387904"]`},
		"token, redirected": {fencedhttp.ContextWithToken(ctx, 7), "/there", nil, `PUT ["7"]`},
	} {
		if got, err := send(tc.ctx, t, client, url+tc.path, tc.header); err != nil || got != tc.want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, tc.want)
		}
	}
}

func TestTransportWithoutABaseUsesTheDefaultOne(t *testing.T) {
	t.Parallel()
	url, _, _ := service(t)
	client := &http.Client{Transport: &fencedhttp.Transport{}}
	defer client.CloseIdleConnections()
	if got, err := send(fencedhttp.ContextWithToken(t.Context(), 7), t, client, url+"/here", nil); err != nil ||
		got != `PUT ["7"]` {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTransportRefusesContradictions(t *testing.T) {
	t.Parallel()
	url, client, requests := service(t)
	ctx := t.Context()
	for name, tc := range map[string]struct {
		ctx    context.Context
		header http.Header
	}{
		"another token by hand":          {fencedhttp.ContextWithToken(ctx, 7), http.Header{fencedhttp.Header: {"8"}}},
		"another token, spelled his way": {fencedhttp.ContextWithToken(ctx, 7), http.Header{"fencing-TOKEN": {"8"}}},
		"one of two by hand": {fencedhttp.ContextWithToken(ctx, 7),
			http.Header{fencedhttp.Header: {"7", "8"}}},
		"an empty one":                    {fencedhttp.ContextWithToken(ctx, 7), http.Header{fencedhttp.Header: {""}}},
		"a token that is none":            {fencedhttp.ContextWithToken(ctx, 0), nil},
		"a negative token":                {fencedhttp.ContextWithToken(ctx, -1), nil},
		"no lease":                        {fencedhttp.ContextWithLease(ctx, nil), nil},
		"zero lease":                      {fencedhttp.ContextWithLease(ctx, &pglock.Lease{}), nil},
		"no lease, where a token was set": {fencedhttp.ContextWithLease(fencedhttp.ContextWithToken(ctx, 7), nil), nil},
	} {
		if got, err := send(tc.ctx, t, client, url+"/here", tc.header); !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %s, %v; want ErrInvalid", name, got, err)
		}
	}
	if n := requests.Load(); n != 0 {
		t.Errorf("%d were sent", n)
	}
}

func TestTransportSendsNothingUnderALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	url, client, requests := service(t)
	released, _ := acquired(t)
	must.Do(t, released.Release(t.Context()))
	lost, owner := acquired(t)
	must.Get(owner.Break(t.Context(), lost.Name(), "for the test", lockadmin.BreakOptions{}))(t)
	if _, err := lost.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		lease *pglock.Lease
		want  error
	}{{released, pglock.ErrReleased}, {lost, pglock.ErrLost}} {
		ctx := fencedhttp.ContextWithLease(t.Context(), tc.lease)
		if got, err := send(ctx, t, client, url+"/here", nil); !errors.Is(err, tc.want) {
			t.Errorf("%s, %v; want %v", got, err, tc.want)
		}
		if n := requests.Load(); n != 0 {
			t.Errorf("%d were sent", n)
		}
	}
	// on purpose, to undo
	ctx := fencedhttp.ContextWithToken(fencedhttp.ContextWithLease(t.Context(), lost), lost.Token())
	if got, err := send(ctx, t, client, url+"/here", nil); err != nil {
		t.Errorf("%s, %v", got, err)
	}
}

func TestTheTokenOfTheContext(t *testing.T) {
	t.Parallel()
	lease, _ := acquired(t)
	for name, tc := range map[string]struct {
		ctx  context.Context
		want pglock.Token
	}{
		"none":       {t.Context(), 0},
		"lease":      {fencedhttp.ContextWithLease(t.Context(), lease), lease.Token()},
		"token":      {fencedhttp.ContextWithToken(t.Context(), 7), 7},
		"zero token": {fencedhttp.ContextWithToken(t.Context(), 0), 0},
		"negative":   {fencedhttp.ContextWithToken(t.Context(), -7), 0},
		"no lease":   {fencedhttp.ContextWithLease(t.Context(), nil), 0},
	} {
		if got, ok := fencedhttp.TokenFromContext(tc.ctx); ok != (tc.want > 0) || ok && got != tc.want {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
}

// response is one that a server could have sent.
func response(status int, kind, text string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}},
		Body: io.NopCloser(strings.NewReader(text))}
}

func TestRefusalKnowsTheProblemsOfAVerifierAndLeavesTheResponse(t *testing.T) {
	t.Parallel()
	stale := fmt.Sprintf(`{"type":%q,"status":409,"token":33,"lastToken":9007199254740993,"resource":"r"}`,
		fencedhttp.TypeStaleToken)
	for name, tc := range map[string]struct {
		response *http.Response
		text     string
		refused  bool
	}{
		"refused":        {response(409, "application/problem+json", stale), stale, true},
		"with a charset": {response(409, "application/problem+json; charset=utf-8", stale), stale, true},
		"and much after it": {response(409, "application/problem+json", stale+strings.Repeat(" ", 1<<10)), stale +
			strings.Repeat(" ", 1<<10), true},
		"too much": {response(409, "application/problem+json", stale+strings.Repeat(" ", 1<<17)), stale +
			strings.Repeat(" ", 1<<17), true},
		"too much before it": {response(409, "application/problem+json", strings.Repeat(" ", 1<<17)+stale),
			strings.Repeat(" ", 1<<17) + stale, false},
		"other status":    {response(400, "application/problem+json", stale), stale, false},
		"other content":   {response(409, "application/json", stale), stale, false},
		"no content type": {response(409, "", stale), stale, false},
		"other problem": {response(409, "application/problem+json", `{"type":"about:blank"}`),
			`{"type":"about:blank"}`, false},
		"cut":   {response(409, "application/problem+json", stale[:20]), stale[:20], false},
		"empty": {response(409, "application/problem+json", ""), "", false},
	} {
		err := fencedhttp.Refusal(tc.response)
		var refused *fencedhttp.RefusedError
		if errors.Is(err, fencedhttp.ErrRefused) != tc.refused || errors.As(err, &refused) != tc.refused {
			t.Errorf("%s: %v", name, err)
		}
		if tc.refused && *refused != (fencedhttp.RefusedError{Resource: "r", Token: 33, LastToken: 9007199254740993}) {
			t.Errorf("%s: %+v", name, refused)
		}
		if text, err := io.ReadAll(tc.response.Body); err != nil || string(text) != tc.text {
			t.Errorf("%s: %d bytes can be read, of %d, %v", name, len(text), len(tc.text), err)
		}
	}
	must.Note(t, fencedhttp.Refusal(nil))
	broken := response(409, "application/problem+json", "")
	broken.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), torn{}))
	must.Note(t, fencedhttp.Refusal(broken))
	if text, err := io.ReadAll(broken.Body); string(text) != "{" || !errors.Is(err, errTorn) {
		t.Errorf("%q, %v", text, err)
	}
}

var errTorn = errors.New("the connection is torn")

type torn struct{}

func (torn) Read([]byte) (int, error) { return 0, errTorn }
