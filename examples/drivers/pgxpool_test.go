package drivers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/fencedstore"
)

var (
	poolWay = way{"pgxpool with Begin", func(_ *testing.T, s *scene) deposit { return poolDeposit(s, pgx.TxOptions{}) }}
	funcWay = way{"pgxpool with pgx.BeginFunc", func(_ *testing.T, s *scene) deposit {
		return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
			return drivers.WriteFunc(ctx, s.pool, fenced, poolUpdates(ctx, s, amounts, last))
		}
	}}
)

func poolDeposit(s *scene, o pgx.TxOptions) deposit {
	return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
		return drivers.WritePool(ctx, s.pool, fenced, o, poolUpdates(ctx, s, amounts, last))
	}
}

func poolUpdates(ctx context.Context, s *scene, amounts []int64, last func() error) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		for _, amount := range amounts {
			if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $1 WHERE id = $2", amount,
				s.account); err != nil {
				return err
			}
		}
		return last()
	}
}

// A snapshot hides the break: the server refuses the COMMIT without knowing the reason, and a second try is told it.
func TestI18_BrokenLeaseIsRefusedAtCommitUnderASnapshotToo(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			lease := s.lease(t)
			d := poolDeposit(s, pgx.TxOptions{IsoLevel: level})
			err := d(t.Context(), lease, []int64{60}, func() error {
				s.breakLock(t)
				return nil
			})
			var refused *pgconn.PgError
			if !errors.As(err, &refused) || refused.Code != "40001" {
				t.Errorf("the COMMIT answered %v, want SQLSTATE 40001", err)
			}
			isBroken(t, d(t.Context(), lease, []int64{60}, nothing), lease)
			s.has(t, 0)
		})
	}
}
