package drivers_test

import (
	"context"
	"testing"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/examples/drivers/accounts"
	"github.com/pglock-dev/pglock/fencedstore"
)

var (
	sqlcStoreWay = way{"sqlc in a fenced store", func(_ *testing.T, s *scene) deposit {
		store := fencedstore.New(s.pool)
		return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
			return drivers.WriteQueries(ctx, store, fenced, func(ctx context.Context, q *accounts.Queries) error {
				return deposits(ctx, q, s.account, amounts, last)
			})
		}
	}}
	sqlcGuardWay = way{"sqlc in a guarded transaction", func(_ *testing.T, s *scene) deposit {
		queries := accounts.New(s.pool)
		return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
			return drivers.GuardQueries(ctx, s.pool, queries, fenced, func(q *accounts.Queries) error {
				return deposits(ctx, q, s.account, amounts, last)
			})
		}
	}}
)

func deposits(ctx context.Context, q *accounts.Queries, account int64, amounts []int64, last func() error) error {
	for _, amount := range amounts {
		if _, err := q.Deposit(ctx, accounts.DepositParams{ID: account, Amount: amount}); err != nil {
			return err
		}
	}
	return last()
}
