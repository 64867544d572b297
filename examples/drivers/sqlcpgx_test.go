package drivers_test

import (
	"context"
	"testing"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/examples/drivers/accounts"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

var (
	sqlcStoreWay = way{"sqlc in a fenced store", func(_ *testing.T, s *scene) deposit {
		store := fencedstore.New(s.pool)
		return func(ctx context.Context, lease *pglock.Lease, amounts []int64, last func() error,
			opts ...fencedstore.FenceOption) error {
			return drivers.WriteQueries(ctx, store, lease, func(ctx context.Context, q *accounts.Queries) error {
				return deposits(ctx, q, s.account, amounts, last)
			}, opts...)
		}
	}}
	sqlcGuardWay = way{"sqlc in a guarded transaction", func(_ *testing.T, s *scene) deposit {
		queries := accounts.New(s.pool)
		return func(ctx context.Context, lease *pglock.Lease, amounts []int64, last func() error,
			opts ...fencedstore.FenceOption) error {
			return drivers.GuardQueries(ctx, s.pool, queries, lease, func(q *accounts.Queries) error {
				return deposits(ctx, q, s.account, amounts, last)
			}, opts...)
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
