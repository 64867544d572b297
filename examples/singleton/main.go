// Command singleton shows a worker of which one process works at a time and the others wait. Two of its processes are
// killed in the middle of a step.
//
//	go run ./examples/singleton
package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/internal/stage"
)

const (
	orders = 12
	pace   = 20 * time.Millisecond
)

func main() {
	stage.Main(stage.Play{
		Name: "singleton",
		Tables: `CREATE TABLE progress (shipped int NOT NULL); INSERT INTO progress VALUES (0);
			CREATE TABLE shipments (number int NOT NULL, by text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		Story:  story,
		Worker: shipper,
	})
}

// story starts three shippers. The first and the second are killed in the middle of the orders 5 and 9.
func story(ctx context.Context, s *stage.Stage) (string, error) {
	if _, err := s.Start("A", "5"); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "ships order 1"); err != nil {
		return "", err
	}
	for i, name := range []string{"B", "C"} {
		if _, err := s.Start(name, []string{"9", "never"}[i]); err != nil {
			return "", err
		}
		if err := s.AwaitQueue(ctx, "shipping", i+1); err != nil {
			return "", err
		}
	}
	for _, number := range []int{5, 9} {
		p, err := s.Await(ctx, fmt.Sprintf("in the middle of order %d", number))
		if err != nil {
			return "", err
		}
		if err := p.Kill(); err != nil {
			return "", err
		}
	}
	if _, err := s.Await(ctx, "finds nothing left"); err != nil {
		return "", err
	}
	return "one process at a time shipped the orders, and each who took over went on where the last whole step had " +
			"ended.",
		errors.Join(
			s.Check(ctx, "orders shipped, in this order", "1 2 3 4 5 6 7 8 9 10 11 12",
				"SELECT string_agg(number::text, ' ' ORDER BY at) FROM shipments"),
			s.Check(ctx, "shippers, in this order", "A B C",
				"SELECT string_agg(by, ' ' ORDER BY first) FROM (SELECT by, min(at) AS first FROM shipments GROUP BY "+
					"by) AS each"),
		)
}

func shipper(ctx context.Context, w *stage.Worker) error {
	err := Singleton(ctx, w.Client, w.Store, "shipping", func(ctx context.Context, tx pgx.Tx) (bool, error) {
		var number int
		const next = "UPDATE progress SET shipped = shipped + 1 WHERE shipped < $1 RETURNING shipped"
		err := tx.QueryRow(ctx, next, orders).Scan(&number)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO shipments (number, by) VALUES ($1, $2)", number, w.Name); err != nil {
			return false, err
		}
		if strconv.Itoa(number) == w.Args[0] {
			return false, w.Hang(ctx, "is in the middle of order %d", number)
		}
		w.Say("ships order %d", number)
		return true, stage.Pause(ctx, pace)
	})
	if err == nil {
		w.Say("finds nothing left")
	}
	return err
}
