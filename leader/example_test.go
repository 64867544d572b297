package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// databaseURL is the connection string of a database with the schema; an application has its own.
func databaseURL() string { return pgtest.URL() }

// The leader writes under a fence, so that a leader that was deposed without knowing it cannot do harm.
func ExampleCandidate_Run() {
	ctx, cancel := context.WithCancel(context.Background()) // ends when the program is to end
	defer cancel()
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
	if _, err := pool.Exec(ctx, "CREATE TABLE ticks (n int)"); err != nil {
		fmt.Println(err)
		return
	}
	store := fencedstore.New(pool)

	candidate, err := leader.New(client, "leader/scheduler", leader.WithHolder("process 1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	err = candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		fmt.Println(lease.Holder(), "leads")
		term := fencedstore.Fence{Lease: lease, SameToken: true} // it writes more than once
		for n := range 3 {
			err := store.Write(ctx, term, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO ticks VALUES ($1)", n)
				return err
			})
			if err != nil {
				return err // also when leadership was lost: then Run campaigns again
			}
		}
		cancel() // as at the end of a program
		<-ctx.Done()
		return nil
	})
	fmt.Println("ended by its ctx:", errors.Is(err, context.Canceled))
	info, err := leader.Current(context.Background(), client, "leader/scheduler")
	fmt.Println("led:", info.Led, err)
	// Output:
	// process 1 leads
	// ended by its ctx: true
	// led: false <nil>
}

// An operator makes another process lead. The named candidate is served before all others.
func ExampleCandidate_HandOver() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	leads := make(chan string)
	over := make(chan error, 2)
	candidates := make(map[string]*leader.Candidate)
	for _, label := range []string{"process 1", "process 2"} {
		client, err := pglock.New(ctx, pool)
		if err != nil {
			fmt.Println(err)
			return
		}
		defer client.Close(context.Background())
		c, err := leader.New(client, "leader/scheduler", leader.WithHolder(label))
		if err != nil {
			fmt.Println(err)
			return
		}
		candidates[label] = c
		go func() {
			over <- c.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
				leads <- lease.Holder()
				<-ctx.Done()
				return nil
			})
		}()
	}
	first := <-leads
	other := map[string]string{"process 1": "process 2", "process 2": "process 1"}[first]

	err = candidates[first].HandOver(ctx, "process 3")
	fmt.Println("nobody of that name waits:", errors.Is(err, pglock.ErrNoWaiter))
	for errors.Is(err, pglock.ErrNoWaiter) { // until the other process waits
		err = candidates[first].HandOver(ctx, other)
	}
	fmt.Println("handed over:", err)
	fmt.Println("the other one leads:", <-leads == other)
	cancel()
	<-over
	<-over
	// Output:
	// nobody of that name waits: true
	// handed over: <nil>
	// the other one leads: true
}

// Whoever wants to reach the leader reads its address from the metadata.
func ExampleObserve() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
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
	defer client.Close(context.Background())
	candidate, err := leader.New(client, "leader/scheduler", leader.WithHolder("process 1"),
		leader.WithMetadata(json.RawMessage(`{"address": "10.0.0.1:8080"}`)))
	if err != nil {
		fmt.Println(err)
		return
	}

	over := make(chan error, 1)
	for info, err := range leader.Observe(ctx, client, "leader/scheduler") {
		if err != nil {
			fmt.Println(err)
			return
		}
		if !info.Led {
			fmt.Println("nobody leads")
			go func() {
				over <- candidate.Run(ctx, func(ctx context.Context, _ *pglock.Lease) error {
					<-ctx.Done()
					return nil
				})
			}()
			continue
		}
		fmt.Println(info.Holder, "leads, at", string(info.Metadata))
		break
	}
	cancel()
	<-over
	// Output:
	// nobody leads
	// process 1 leads, at {"address": "10.0.0.1:8080"}
}

func ExampleCandidate_Health() {
	ctx := context.Background()
	client, err := pglock.Open(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	candidate, err := leader.New(client, "leader/scheduler")
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /healthz", candidate.Health())

	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	var body struct{ Lock, State string }
	if err := json.Unmarshal(answer.Body.Bytes(), &body); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(answer.Code, body.Lock, body.State)
	// Output: 200 leader/scheduler idle
}
