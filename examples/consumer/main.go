// Command consumer shows consumers that handle each message once, although the broker delivers each three times. A
// consumer is killed in the middle of a message.
//
//	go run ./examples/consumer
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/fencedstore"
)

const (
	messages = 6
	fatal    = 4 // A dies in the middle of it
)

func main() {
	stage.Main(stage.Play{
		Name: "consumer",
		Tables: `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
			INSERT INTO accounts VALUES (0, 0), (1, 0);
			CREATE TABLE bookings (message text NOT NULL, amount bigint NOT NULL)`,
		Story:  story,
		Worker: consume,
	})
}

// story is the broker.
func story(ctx context.Context, s *stage.Stage) (string, error) {
	both, err := s.StartAll("A", "B")
	if err != nil {
		return "", err
	}
	now := time.Now()
	deliver := func(to *stage.Process, first, last int, sent time.Time) error {
		for number := first; number <= last; number++ {
			m := Message{ID: fmt.Sprint("message-", number), SentAt: sent, Account: int64(number % 2), Amount: 10}
			line, err := json.Marshal(m)
			if err != nil {
				return err
			}
			if err := to.Tell(string(line)); err != nil {
				return err
			}
		}
		s.Say("broker", "has sent message-%d to message-%d to %s", first, last, to.Name)
		return nil
	}
	a, b := both[0], both[1]
	if err := errors.Join(deliver(a, 1, messages, now), deliver(b, 1, fatal-1, now)); err != nil {
		return "", err
	}
	if _, err := s.Await(ctx, "in the middle", a); err != nil {
		return "", err
	}
	if err := errors.Join(deliver(b, fatal, messages, now), s.AwaitQueue(ctx, "accounts/0", 1), a.Kill()); err != nil {
		return "", err
	}
	if err := s.AwaitAll(ctx, messages, "acknowledges", b); err != nil {
		return "", err
	}
	c, err := s.Start("C")
	if err != nil {
		return "", err
	}
	old := now.Add(-keep - 24*time.Hour)
	if err := errors.Join(deliver(c, 1, messages, now), deliver(c, messages+1, messages+1, old)); err != nil {
		return "", err
	}
	err = errors.Join(s.AwaitAll(ctx, messages, "acknowledges", c), s.AwaitAll(ctx, 1, "puts message-7 aside", c))
	if err != nil {
		return "", err
	}
	return "each message was handled once, although it came three times and a consumer died in the middle of one.",
		errors.Join(
			s.Check(ctx, "messages handled", messages, "SELECT count(DISTINCT message) FROM bookings"),
			s.Check(ctx, "handled twice", 0, "SELECT count(*) - count(DISTINCT message) FROM bookings"),
			s.Check(ctx, "balances", "{30,30}", "SELECT array_agg(balance ORDER BY id) FROM accounts"),
		)
}

func consume(ctx context.Context, w *stage.Worker) error {
	c := &Consumer{Name: "bookings", Client: w.Client, Store: w.Store}
	c.Apply = func(ctx context.Context, tx pgx.Tx, m Message) error {
		if _, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ($1, $2)", m.ID, m.Amount); err != nil {
			return err
		}
		if w.Name == "A" && m.ID == fmt.Sprint("message-", fatal) {
			return w.Hang(ctx, "is in the middle of %s", m.ID)
		}
		w.Say("handles %s", m.ID)
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", m.Amount, m.Account)
		return err
	}
	for order := range w.Orders {
		var m Message
		if err := json.Unmarshal([]byte(order), &m); err != nil {
			return err
		}
		switch err := c.Handle(ctx, m); {
		case err == nil:
			w.Say("acknowledges %s", m.ID)
		case errors.Is(err, fencedstore.ErrKeyTooOld):
			w.Say("puts %s aside: too old", m.ID)
		default:
			return err
		}
	}
	return nil
}
