package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// keep is how long handled messages are remembered. It must be longer than the broker goes on redelivering a message.
const keep = 7 * 24 * time.Hour

// Message is what the broker delivers at least once: sometimes twice, even to two consumers at the same time.
type Message struct {
	ID      string
	SentAt  time.Time // set by the sender, the same in every delivery
	Account int64
	Amount  int64
}

// Consumer handles each message once.
type Consumer struct {
	Name   string // of the program, so that two programs handle each message once each; never rename it
	Client *pglock.Client
	Store  *fencedstore.Store
	// Apply does what the message says, in the given transaction.
	Apply func(context.Context, pgx.Tx, Message) error
}

// Handle handles the message unless that was done before. If it returns nil, acknowledge the message. If it returns
// fencedstore.ErrKeyTooOld, put the message aside: nobody knows any more whether it was handled. After any other error
// let the broker deliver it again.
func (c *Consumer) Handle(ctx context.Context, m Message) error {
	if c.Name == "" {
		return errors.New("the consumer has no name")
	}
	// One lock for each account: messages for different accounts do not wait for each other.
	err := c.Client.Do(ctx, fmt.Sprint("accounts/", m.Account), func(ctx context.Context, lease *pglock.Lease) error {
		store := c.Store.With(fencedstore.WithRetention(m.SentAt, keep))
		return store.Once(ctx, lease, c.Name+"/message/"+m.ID, func(ctx context.Context, tx pgx.Tx) error {
			return c.Apply(ctx, tx, m)
		})
	})
	if errors.Is(err, fencedstore.ErrDone) {
		return nil
	}
	return err
}
