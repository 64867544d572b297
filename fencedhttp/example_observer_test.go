package fencedhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/pglock"
)

// A service that hears of the requests that its verifier refuses.
func ExampleVerifier_observer() {
	verifier := &fencedhttp.Verifier{
		Store:    &fencedhttp.MemoryStore{},
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil },
		Observer: pglock.ObserverFunc(func(_ context.Context, e pglock.Event) {
			fmt.Println(e.Kind, e.Resource, e.Token, e.LastToken)
		}),
	}
	handler := verifier.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, token := range []string{"34", "33"} {
		r := httptest.NewRequest(http.MethodPut, "/accounts/16", nil)
		r.Header.Set(fencedhttp.Header, token)
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output: stale token /accounts/16 33 34
}
