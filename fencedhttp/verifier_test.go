package fencedhttp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// echo answers the token that the context carries.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	token, ok := fencedhttp.TokenFromContext(r.Context())
	fmt.Fprint(w, token, ok)
})

func TestHeadersThatAreNoTokenAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		values []string
		status int
		kind   string
	}{
		{[]string{"1"}, 200, ""},
		{[]string{"33"}, 200, ""},
		{[]string{"9223372036854775807"}, 200, ""},
		{nil, 428, fencedhttp.TypeNoToken},
		{[]string{""}, 400, fencedhttp.TypeBadToken},
		{[]string{"0"}, 400, fencedhttp.TypeBadToken},
		{[]string{"00"}, 400, fencedhttp.TypeBadToken},
		{[]string{"033"}, 400, fencedhttp.TypeBadToken},
		{[]string{"-1"}, 400, fencedhttp.TypeBadToken},
		{[]string{"+1"}, 400, fencedhttp.TypeBadToken},
		{[]string{"1.0"}, 400, fencedhttp.TypeBadToken},
		{[]string{"1e3"}, 400, fencedhttp.TypeBadToken},
		{[]string{"0x10"}, 400, fencedhttp.TypeBadToken},
		{[]string{"1_000"}, 400, fencedhttp.TypeBadToken},
		{[]string{"1 "}, 400, fencedhttp.TypeBadToken},
		{[]string{" 1"}, 400, fencedhttp.TypeBadToken},
		{[]string{"1\x00"}, 400, fencedhttp.TypeBadToken},
		{[]string{"١"}, 400, fencedhttp.TypeBadToken}, // a digit, but not of ours
		{[]string{"33, 34"}, 400, fencedhttp.TypeBadToken},
		{[]string{"33", "34"}, 400, fencedhttp.TypeBadToken},
		{[]string{"33", "33"}, 400, fencedhttp.TypeBadToken},
		{[]string{"token"}, 400, fencedhttp.TypeBadToken},
		{[]string{"9223372036854775808"}, 400, fencedhttp.TypeBadToken},
		{[]string{"10000000000000000000"}, 400, fencedhttp.TypeBadToken},
		{[]string{strings.Repeat("9", 64)}, 400, fencedhttp.TypeBadToken},
		{[]string{strings.Repeat("x", 1<<16)}, 400, fencedhttp.TypeBadToken},
	} {
		store := &fencedhttp.MemoryStore{}
		w := ask(t.Context(), byPath(store).Middleware(echo), "/r", tc.values...)
		if tc.status == 200 {
			if want := tc.values[0] + " true"; w.Code != 200 || w.Body.String() != want {
				t.Errorf("%q: status %d, %q; want %q", tc.values, w.Code, w.Body, want)
			}
			continue
		}
		if d := wantProblem(t, w, tc.status, tc.kind); len(d.Detail) > 400 {
			t.Errorf("the answer to %.20q has %d bytes", tc.values, len(d.Detail))
		}
		if last, err := store.Advance(t.Context(), "/r", 1); last != 1 || err != nil {
			t.Errorf("%.20q has moved the fence to %d, %v", tc.values, last, err)
		}
	}
}

func FuzzHeader(f *testing.F) {
	for _, seed := range []string{"1", "33", "0", "-1", "+1", "007", " 7", "7 ", "7, 8", "1e3", "9223372036854775807",
		"9223372036854775808", "", "\x00", "١", "٠", "99999999999999999999"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := strconv.ParseUint(text, 10, 64)
		good := err == nil && n > 0 && n <= math.MaxInt64 && strconv.FormatUint(n, 10) == text
		w := ask(t.Context(), byPath(&fencedhttp.MemoryStore{}).Middleware(echo), "/r", text)
		switch {
		case good && (w.Code != 200 || w.Body.String() != text+" true"):
			t.Errorf("%q: status %d, %q", text, w.Code, w.Body)
		case !good:
			wantProblem(t, w, 400, fencedhttp.TypeBadToken)
		}
	})
}

func TestI3_NoRequestPassesAfterAGreaterToken(t *testing.T) {
	t.Parallel()
	for name, serialize := range map[string]bool{"by default": false, "with Serialize": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := byPath(&fencedhttp.MemoryStore{})
			v.Serialize = serialize
			h := v.Middleware(echo)
			for _, tc := range []struct {
				path   string
				token  int64
				passes bool
			}{
				{"/a", 33, true}, {"/a", 33, true}, {"/b", 7, true}, {"/a", 34, true}, {"/a", 33, false},
				{"/a", 1, false},
				{"/a", 34, true}, {"/b", 8, true}, {"/a", math.MaxInt64, true}, {"/a", math.MaxInt64 - 1, false},
			} {
				w := ask(t.Context(), h, tc.path, strconv.FormatInt(tc.token, 10))
				if tc.passes && w.Code == 200 {
					continue
				}
				if d := wantProblem(t, w, 409, fencedhttp.TypeStaleToken); tc.passes || d.Token != tc.token ||
					d.LastToken <= tc.token || d.Resource != tc.path {
					t.Errorf("%s with token %d: %+v", tc.path, tc.token, d)
				}
			}
		})
	}
}

func TestMethodsThatAreNotCheckedPass(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		unchecked []string
		method    string
		checked   bool
	}{
		{nil, "GET", false}, {nil, "HEAD", false}, {nil, "OPTIONS", false},
		{nil, "POST", true}, {nil, "DELETE", true}, {nil, "TRACE", true}, {nil, "get", true}, {nil, "PURGE", true},
		{[]string{}, "GET", true}, {[]string{"POST"}, "POST", false}, {[]string{"POST"}, "GET", true},
	} {
		v := byPath(&fencedhttp.MemoryStore{})
		v.Unchecked = tc.unchecked
		w := httptest.NewRecorder()
		v.Middleware(echo).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tc.method, "/r", nil))
		if want := map[bool]int{false: 200, true: 428}[tc.checked]; w.Code != want {
			t.Errorf("%s with Unchecked %v: status %d, want %d", tc.method, tc.unchecked, w.Code, want)
		}
		if !tc.checked && w.Body.String() != "0 false" {
			t.Errorf("%s: the handler found the token %q", tc.method, w.Body)
		}
	}
}

// storeFunc is a TokenStore.
type storeFunc func(context.Context, string, pglock.Token) (pglock.Token, error)

func (f storeFunc) Advance(ctx context.Context, resource string, token pglock.Token) (pglock.Token, error) {
	return f(ctx, resource, token)
}

func TestAVerifierThatCannotCompareAdmitsNobody(t *testing.T) {
	t.Parallel()
	secret := errors.New("password is swordfish")
	resource := func(*http.Request) (string, error) { return "r", nil }
	named := func(name string, err error) func(*http.Request) (string, error) {
		return func(*http.Request) (string, error) { return name, err }
	}
	forgets := storeFunc(func(context.Context, string, pglock.Token) (pglock.Token, error) { return 3, nil })
	fails := storeFunc(func(context.Context, string, pglock.Token) (pglock.Token, error) { return 0, secret })
	full := &fencedhttp.MemoryStore{MaxResources: 1}
	must.Get(full.Advance(t.Context(), "other", 1))(t)
	memory := &fencedhttp.MemoryStore{}
	for name, tc := range map[string]struct {
		verifier *fencedhttp.Verifier
		next     http.Handler
		status   int
		kind     string
		reported error // nil: anything
	}{
		"store fails": {&fencedhttp.Verifier{Store: fails, Resource: resource}, echo, 503, fencedhttp.TypeNoStore,
			secret},
		"store forgets": {&fencedhttp.Verifier{Store: forgets, Resource: resource}, echo, 503,
			fencedhttp.TypeNoStore, nil},
		"store is full": {&fencedhttp.Verifier{Store: full, Resource: resource}, echo, 503, fencedhttp.TypeNoStore,
			fencedhttp.ErrFull},
		"serialized": {&fencedhttp.Verifier{Store: fails, Resource: resource, Serialize: true}, echo, 503,
			fencedhttp.TypeNoStore, secret},
		"no resource": {&fencedhttp.Verifier{Store: memory, Resource: named("", secret)}, echo, 400,
			fencedhttp.TypeBadResource, secret},
		"empty resource": {&fencedhttp.Verifier{Store: memory, Resource: named("", nil)}, echo, 400,
			fencedhttp.TypeBadResource, pglock.ErrInvalid},
		"long resource": {&fencedhttp.Verifier{Store: memory, Resource: named(strings.Repeat("r", 513), nil)}, echo,
			400, fencedhttp.TypeBadResource, pglock.ErrInvalid},
		"no Store":         {&fencedhttp.Verifier{Resource: resource}, echo, 500, fencedhttp.TypeMisconfigured, nil},
		"no Resource func": {&fencedhttp.Verifier{Store: memory}, echo, 500, fencedhttp.TypeMisconfigured, nil},
		"no handler": {&fencedhttp.Verifier{Store: memory, Resource: resource}, nil, 500,
			fencedhttp.TypeMisconfigured, nil},
	} {
		var reported error
		tc.verifier.OnError = func(_ *http.Request, err error) { reported = err }
		for range 2 { // what one request leaves behind harms no other
			w := ask(t.Context(), tc.verifier.Middleware(tc.next), "/", "5")
			wantProblem(t, w, tc.status, tc.kind)
			if strings.Contains(w.Body.String(), "swordfish") {
				t.Errorf("%s: the answer tells %q", name, w.Body)
			}
		}
		if reported == nil || tc.reported != nil && !errors.Is(reported, tc.reported) {
			t.Errorf("%s: OnError was told %v, want %v", name, reported, tc.reported)
		}
	}
}
