package fencedhttp_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

// A service that remembers tokens, its holder, and the request of a holder that was overtaken.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}

	verifier := &fencedhttp.Verifier{
		Store:    &fencedhttp.MemoryStore{},
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil },
	}
	service := httptest.NewServer(verifier.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
	defer service.Close()
	web := &http.Client{Transport: &fencedhttp.Transport{Base: service.Client().Transport}}
	put := func(lease *pglock.Lease) (*http.Response, error) {
		req, err := http.NewRequestWithContext(fencedhttp.ContextWithLease(lease.Context(), lease), http.MethodPut,
			service.URL+"/prices", strings.NewReader("…"))
		if err != nil {
			return nil, err
		}
		return web.Do(req)
	}

	a, err := client.Acquire(ctx, "prices")
	if err != nil {
		fmt.Println(err)
		return
	}
	// An operator ends the lease of A, which does not know yet. B comes, and writes.
	if _, err := admin.Break(ctx, "prices", "the host is gone", lockadmin.BreakOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	b, err := client.Acquire(ctx, "prices")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, lease := range []*pglock.Lease{b, a} {
		resp, err := put(lease)
		if err != nil {
			fmt.Println(err)
			return
		}
		err = fencedhttp.Refusal(resp)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, errors.Is(err, fencedhttp.ErrRefused))
	}
	// Once A knows, nothing is sent.
	_, err = a.Check(ctx)
	fmt.Println("lost:", errors.Is(err, pglock.ErrLost))
	_, err = put(a)
	fmt.Println("lost:", errors.Is(err, pglock.ErrLost))
	// Output:
	// 200 false
	// 409 true
	// lost: true
	// lost: true
}

func ExampleVerifier() {
	verifier := &fencedhttp.Verifier{
		Store:    &fencedhttp.MemoryStore{},
		Resource: func(r *http.Request) (string, error) { return r.URL.Path, nil },
	}
	handler := verifier.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := fencedhttp.TokenFromContext(r.Context())
		fmt.Fprintf(w, "written with token %d\n", token) // … WHERE token <= $1, in the transaction that writes
	}))
	for _, token := range []string{"33", "34", "33", "33rd", ""} {
		request := httptest.NewRequest(http.MethodPut, "/prices", nil)
		if token != "" {
			request.Header.Set(fencedhttp.Header, token)
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		fmt.Println(answer.Code, strings.TrimSpace(answer.Body.String()))
	}
	// Output:
	// 200 written with token 33
	// 200 written with token 34
	// 409 {"type":"https://github.com/pglock-dev/pglock/problems/stale-fencing-token","title":"Stale fencing token","status":409,"detail":"Token 33 is refused: token 34 has been here. Stop the work that the lock protects; acquire it again to go on.","token":33,"lastToken":34,"resource":"/prices"}
	// 400 {"type":"https://github.com/pglock-dev/pglock/problems/malformed-fencing-token","title":"Malformed fencing token","status":400,"detail":"the header Fencing-Token is \"33rd\": it must be a decimal number from 1 to 9223372036854775807, without sign, spaces or leading zeros"}
	// 428 {"type":"https://github.com/pglock-dev/pglock/problems/fencing-token-required","title":"Fencing token required","status":428,"detail":"Send the fencing token of your lease in the header Fencing-Token."}
}

func ExampleTableStore() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL()) // of the service's own database
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	store, err := fencedhttp.NewTableStore(pool, pgx.Identifier{"fencing_tokens"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := store.Create(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for _, token := range []pglock.Token{33, 33, 34, 33} {
		last, err := store.Advance(ctx, "/prices", token)
		fmt.Println(token, "passes:", last == token, err)
	}
	// Output:
	// 33 passes: true <nil>
	// 33 passes: true <nil>
	// 34 passes: true <nil>
	// 33 passes: false <nil>
}
