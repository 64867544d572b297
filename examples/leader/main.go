// Command leader shows three processes of which one leads. The first leader is killed in the middle of its work, the second
// resigns.
//
//	go run ./examples/leader
package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

const every = 30 * time.Millisecond

func main() {
	stage.Main(stage.Play{
		Name: "leader",
		Tables: `CREATE TABLE clock (ticks int NOT NULL); INSERT INTO clock VALUES (0);
			CREATE TABLE ticks (at timestamptz NOT NULL DEFAULT clock_timestamp(), number int NOT NULL, by text NOT NULL)`,
		Story:  story,
		Worker: candidate,
	})
}

func story(ctx context.Context, s *stage.Stage) (shown string, err error) {
	client, err := pglock.New(ctx, s.Pool, pglock.WithSchema(s.Schema))
	if err != nil {
		return "", err
	}
	observing, stop := context.WithCancel(ctx)
	observed := make(chan error, 1)
	go func() { observed <- observe(observing, s, client) }()
	defer func() {
		stop()
		err = errors.Join(err, <-observed, client.Close(ctx))
	}()

	if _, err := s.Start("A"); err != nil {
		return "", err
	}
	a, err := s.Await(ctx, "ticks for the 2nd time")
	if err != nil {
		return "", err
	}
	for i, name := range []string{"B", "C"} {
		if _, err := s.Start(name); err != nil {
			return "", err
		}
		if err := s.AwaitQueue(ctx, "scheduler", i+1); err != nil {
			return "", err
		}
	}
	if err := a.Tell("hang"); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "in the middle", a); err != nil {
		return "", err
	}
	if err := a.Kill(); err != nil {
		return "", err
	}
	b, err := s.Await(ctx, "ticks for the 2nd time")
	if err != nil {
		return "", err
	}
	if err := b.Tell("resign"); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "has resigned", b); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "ticks for the 2nd time"); err != nil {
		return "", err
	}
	return "one process at a time led; another followed the one that was killed and the one that resigned, and no tick was lost or made twice.",
		errors.Join(
			s.Check(ctx, "leaders, in this order", "A B C",
				"SELECT string_agg(by, ' ' ORDER BY first) FROM (SELECT by, min(at) AS first FROM ticks GROUP BY by) AS each"),
			s.Check(ctx, "ticks that are missing, there twice, or not in order", 0,
				"SELECT count(*) FROM (SELECT number, row_number() OVER (ORDER BY at) AS place FROM ticks) AS each WHERE number <> place"),
		)
}

// observe tells who leads, as any process can see it.
func observe(ctx context.Context, s *stage.Stage, client *pglock.Client) error {
	for info, err := range leader.Observe(ctx, client, "scheduler") {
		switch {
		case err != nil:
			return err
		case info.Led:
			s.Say("observer", "sees that %s leads, token %d", info.Holder, info.Token)
		default:
			s.Say("observer", "sees that nobody leads")
		}
	}
	return nil
}

func candidate(ctx context.Context, w *stage.Worker) error {
	hang, mine := make(chan struct{}), 0
	me := leader.New(w.Client, "scheduler")
	scheduler := &Scheduler{Candidate: me, Store: w.Store, Every: every, Tick: func(ctx context.Context, tx pgx.Tx) error {
		var number int
		if err := tx.QueryRow(ctx, "UPDATE clock SET ticks = ticks + 1 RETURNING ticks").Scan(&number); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "INSERT INTO ticks (number, by) VALUES ($1, $2)", number, w.Name); err != nil {
			return err
		}
		select {
		case <-hang:
			return w.Hang(ctx, "is in the middle of tick %d", number)
		default:
		}
		if mine++; mine == 2 {
			w.Say("ticks for the 2nd time: tick %d", number)
		}
		return nil
	}}
	ended := make(chan error, 1)
	go func() { ended <- scheduler.Run(ctx) }()
	for {
		select {
		case order, more := <-w.Orders:
			if !more {
				return <-ended
			}
			switch order {
			case "hang":
				close(hang)
			case "resign":
				if err := me.Resign(ctx); err != nil {
					return errors.Join(err, <-ended)
				}
				w.Say("has resigned and queues again")
			}
		case err := <-ended:
			return err
		}
	}
}
