package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

var (
	ErrFunds   = errors.New("insufficient funds") // the account has less than the amount
	ErrAmount  = errors.New("the amount is not positive")
	ErrAccount = errors.New("there is no such account to give to")
)

// Guard puts the table of accounts under guard. Call it once, after you have made the table. From then on PostgreSQL
// refuses every write to account 42, from any program, unless its transaction has passed the fence of accounts/42.
func Guard(ctx context.Context, db fencedstore.DB, opts ...fencedstore.TableOption) error {
	return fencedstore.GuardTable(ctx, db, "accounts", append(opts, fencedstore.WithTableKey("id"))...)
}

// Ledger moves money between accounts.
type Ledger struct {
	Client *pglock.Client
	Store  *fencedstore.Store
}

// Transfer moves the amount. It holds the locks of both accounts; each lock has the name of the account's fence. After
// a *fencedstore.OutcomeUnknownError ask Store.Outcome before you try again; after any other error nothing was written.
func (l *Ledger) Transfer(ctx context.Context, from, to, amount int64) error {
	if amount <= 0 {
		return ErrAmount
	}
	leases, err := l.Client.AcquireAll(ctx, []string{fmt.Sprint("accounts/", from), fmt.Sprint("accounts/", to)})
	if err != nil {
		return err
	}
	defer func() { _ = leases.Release(ctx) }() // at worst they end with their TTL
	var fences fencedstore.Fences
	for _, lease := range leases.All() {
		fences = append(fences, fencedstore.Fence{Lease: lease})
	}
	return l.Store.Write(ctx, fences, func(ctx context.Context, tx pgx.Tx) error {
		const take = "UPDATE accounts SET balance = balance - $2 WHERE id = $1 AND balance >= $2"
		took, err := tx.Exec(ctx, take, from, amount)
		if err != nil {
			return err
		}
		if took.RowsAffected() == 0 {
			return ErrFunds
		}
		const give = "UPDATE accounts SET balance = balance + $2 WHERE id = $1"
		gave, err := tx.Exec(ctx, give, to, amount)
		if err != nil {
			return err
		}
		if gave.RowsAffected() == 0 {
			return ErrAccount
		}
		const note = "INSERT INTO transfers (from_id, to_id, amount) VALUES ($1, $2, $3)"
		_, err = tx.Exec(ctx, note, from, to, amount)
		return err
	})
}
