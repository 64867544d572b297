package dashboard_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
)

// A team mounts the page in its back office, and lets its own sessions decide who may look and who may break locks.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.URL()) // the application's own
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		panic(err)
	}

	sessions := map[string]dashboard.Identity{ // what the back office knows of whoever is logged in
		"cookie-of-ann": {Name: "ann@example.com", MayBreak: true},
		"cookie-of-bob": {Name: "bob@example.com"},
	}
	locks, err := dashboard.New(admin, dashboard.Config{
		Title:  "production",
		Breaks: true,
		Auth: func(r *http.Request) (dashboard.Identity, error) {
			cookie, err := r.Cookie("session")
			if err != nil {
				return dashboard.Identity{}, err
			}
			who, found := sessions[cookie.Value]
			if !found {
				return dashboard.Identity{}, errors.New("no such session")
			}
			return who, nil
		},
	})
	if err != nil {
		panic(err)
	}
	defer locks.Close()

	backOffice := http.NewServeMux()
	backOffice.Handle("/admin/locks/", http.StripPrefix("/admin/locks", locks))
	server := httptest.NewServer(backOffice)
	defer server.Close()

	for _, session := range []string{"", "cookie-of-ann", "cookie-of-eve"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/admin/locks/", nil)
		if err != nil {
			panic(err)
		}
		if session != "" {
			r.AddCookie(&http.Cookie{Name: "session", Value: session})
		}
		answer, err := server.Client().Do(r)
		if err != nil {
			panic(err)
		}
		answer.Body.Close()
		fmt.Println(answer.StatusCode)
	}
	// Output:
	// 401
	// 200
	// 401
}
