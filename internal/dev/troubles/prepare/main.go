//go:build unix

// Command prepare makes a lock in trouble on a throwaway server, prints the connection string, and waits until it is
// interrupted. Somebody who does not know what is wrong then looks at the lock, says what it is, and mends it:
//
//	go run ./internal/dev/troubles/prepare stopped-holder
//	pglock-admin why nightly-report --database-url …
//
// Without a name it lists the troubles.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/troubles"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/migrations"
)

func main() {
	if troubles.IsWorker() {
		os.Exit(troubles.Work())
	}
	if len(os.Args) != 2 {
		for _, t := range troubles.All() {
			fmt.Println(t.Name)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string) error {
	starting, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	programs, kind, err := pgserver.LocatePrograms(starting, "", os.Stderr)
	if err != nil {
		return err
	}
	server, err := pgserver.Start(starting, pgserver.Options{Programs: programs, Kind: kind, InMemory: true,
		Settings: map[string]string{"max_prepared_transactions": "10"}})
	if err != nil {
		return err
	}
	defer server.Stop() //nolint:errcheck // the minder ends it otherwise
	if err := migrations.Up(starting, server.URL()); err != nil {
		return err
	}
	stage, err := troubles.Prepare(starting, name, server.URL())
	if err != nil {
		return err
	}
	defer stage.Close()
	fmt.Printf("export DATABASE_URL=%s\npglock-admin why %s\n", shown.Argument(stage.URL), shown.Name(stage.Lock))
	<-ctx.Done()
	return nil
}
