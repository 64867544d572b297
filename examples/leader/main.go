// Command leader shows four processes of which one leads. The first leader is killed, the second hands over to the
// last in the queue, and that one ends in an orderly way.
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

const (
	lock = "leader/planner"
	pace = 20 * time.Millisecond
)

func main() {
	stage.Main(stage.Play{
		Name: "leader",
		Tables: `CREATE TABLE plans (number int GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL, by text NOT NULL,
			at timestamptz NOT NULL DEFAULT clock_timestamp())`,
		Story:  story,
		Worker: planner,
	})
}

func story(ctx context.Context, s *stage.Stage) (string, error) {
	processes := make(map[string]*stage.Process)
	for i, name := range []string{"A", "B", "C", "D"} {
		p, err := s.Start(name)
		if err != nil {
			return "", err
		}
		processes[name] = p
		if i == 0 {
			_, err = s.Await(ctx, "leads", p)
		} else {
			err = s.AwaitQueue(ctx, lock, i)
		}
		if err != nil {
			return "", err
		}
	}
	a, b, c, d := processes["A"], processes["B"], processes["C"], processes["D"]
	if err := a.Kill(); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "leads", b); err != nil { // when the lease of A has ended
		return "", err
	}
	if err := b.Tell("D"); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "leads", d); err != nil { // before C, which keeps its place
		return "", err
	}
	if err := d.Stop(ctx); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "leads", c); err != nil {
		return "", err
	}
	return "one process led at a time, and the next one followed whether the leader died, handed over or ended.",
		errors.Join(
			s.Check(ctx, "leaders, in this order", "A B D C",
				"SELECT string_agg(by, ' ' ORDER BY first) FROM (SELECT by, min(at) AS first FROM plans GROUP BY by) "+
					"AS each"),
			s.Check(ctx, "plans of a leader after the next one began", 0,
				"SELECT count(*) FROM plans p WHERE token < (SELECT max(token) FROM plans o WHERE o.number < "+
					"p.number)"),
		)
}

// planner campaigns, and hands over to whomever the story names.
func planner(ctx context.Context, w *stage.Worker) error {
	candidate, err := leader.New(w.Client, lock, leader.WithHolder(w.Name))
	if err != nil {
		return err
	}
	handing := make(chan error, 1)
	go func() {
		for to := range w.Orders { // until the story lets go of the process
			if err := candidate.HandOver(ctx, to); err != nil {
				handing <- err
			}
		}
		handing <- nil
	}()
	var led pglock.Token
	var plans int // of this term
	err = Lead(ctx, candidate, w.Store, pace, func(ctx context.Context, tx pgx.Tx, lease *pglock.Lease) error {
		if _, err := tx.Exec(ctx, "INSERT INTO plans (token, by) VALUES ($1, $2)", lease.Token(), w.Name); err != nil {
			return err
		}
		if lease.Token() != led {
			led, plans = lease.Token(), 0
		}
		if plans++; plans == 2 { // the first one is committed
			w.Say("leads with token %d", led)
		}
		return nil
	})
	return errors.Join(err, <-handing)
}
