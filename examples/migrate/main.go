// Command migrate shows six replicas that start at once after a deployment. One of them changes the schema, and is
// killed in the middle of a migration.
//
//	go run ./examples/migrate
package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/internal/stage"
)

// limit is long enough for all replicas to come to wait for the one that hangs, also on a busy machine.
const limit = 8 * time.Second

// app is the application whose replicas these are.
const app = "shop"

func main() {
	stage.Main(stage.Play{
		Name: "migrate",
		Tables: `CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL);
			INSERT INTO customers SELECT n, 'Customer ' || n FROM generate_series(1, 1000) AS n;
			CREATE TABLE made (number int NOT NULL, by text NOT NULL)`,
		Story:  story,
		Worker: replica,
	})
}

func story(ctx context.Context, s *stage.Stage) (string, error) {
	a, err := s.Start("A", "hangs")
	if err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "in the middle", a); err != nil {
		return "", err
	}
	if _, err := s.StartAll("B", "C", "D", "E", "F"); err != nil {
		return "", err
	}
	if err := s.AwaitQueue(ctx, app+"/migrations", 5); err != nil {
		return "", err
	}
	if err := a.Kill(); err != nil {
		return "", err
	}
	if err := s.AwaitAll(ctx, 5, "serves"); err != nil {
		return "", err
	}
	return "one of six replicas made each migration; of the one that was cut nothing stayed, and the next replica " +
			"made it.",
		errors.Join(
			s.Check(ctx, "migrations made", "1 2 3", "SELECT string_agg(number::text, ' ' ORDER BY number) FROM made"),
			s.Check(ctx, "the first was made by", "A", "SELECT by FROM made WHERE number = 1"),
			s.Check(ctx, "customers with an address", 1000,
				"SELECT count(*) FROM customers WHERE address LIKE 'customer%@example.com'"),
		)
}

func replica(ctx context.Context, w *stage.Worker) error {
	w.Say("starts")
	victim := len(w.Args) > 0
	migrations := []Migration{
		{Name: "0001 address", Limit: limit, Up: SQL("ALTER TABLE customers ADD COLUMN address text")},
		{Name: "0002 fill address", Limit: limit, Up: func(ctx context.Context, tx pgx.Tx) error {
			const fill = "UPDATE customers SET address = 'customer' || id || '@example.com' WHERE id BETWEEN $1 AND $2"
			if _, err := tx.Exec(ctx, fill, 1, 500); err != nil {
				return err
			}
			if victim {
				return w.Hang(ctx, "has filled 500 of 1000 addresses: in the middle of the second migration")
			}
			_, err := tx.Exec(ctx, fill, 501, 1000)
			return err
		}},
		{Name: "0003 address not null", Limit: limit,
			Up: SQL("ALTER TABLE customers ALTER COLUMN address SET NOT NULL")},
	}
	for i, m := range migrations { // and say who made it
		migrations[i].Up = func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "INSERT INTO made VALUES ($1, $2)", i+1, w.Name); err != nil {
				return err
			}
			w.Say("makes %s", m.Name)
			return m.Up(ctx, tx)
		}
	}
	if err := Migrate(ctx, w.Client, w.Store, app, migrations); err != nil {
		return err
	}
	w.Say("serves, all migrations are made")
	return nil
}
