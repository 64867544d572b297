package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func TestTwoProgramsHandleAMessageOnceEach(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	handled := map[string]int{}
	for _, name := range []string{"bookings", "mails", "bookings", "mails"} {
		consumer := &Consumer{Name: name, Client: client, Store: fencedstore.New(pool)}
		consumer.Apply = func(context.Context, pgx.Tx, Message) error { handled[name]++; return nil }
		if err := consumer.Handle(t.Context(), Message{ID: "message-1", SentAt: time.Now(), Account: 16}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(handled) != 2 || handled["bookings"] != 1 || handled["mails"] != 1 {
		t.Errorf("handled: %v, want each program once", handled)
	}
}

// The recipe of a ledger, and every guard with a key, fences account 16 as accounts/16.
func TestAConsumerPassesTheFenceThatAGuardOfTheAccountsAsksFor(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
		INSERT INTO accounts VALUES (16, 0)`); err != nil {
		t.Fatal(err)
	}
	must.Do(t, fencedstore.GuardTable(t.Context(), pool, "accounts", fencedstore.WithTableKey("id")))
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	consumer := &Consumer{Name: "bookings", Client: client, Store: fencedstore.New(pool)}
	consumer.Apply = func(ctx context.Context, tx pgx.Tx, m Message) error {
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", m.Amount, m.Account)
		return err
	}
	m := Message{ID: "message-1", SentAt: time.Now(), Account: 16, Amount: 10}
	if err := consumer.Handle(t.Context(), m); err != nil {
		t.Error(err)
	}
	if has := pgtest.One[int](t, pool, "SELECT balance FROM accounts"); has != 10 {
		t.Errorf("the balance is %d, want 10", has)
	}
}
