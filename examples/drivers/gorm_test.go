package drivers_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

var (
	gormWay         = way{"gorm", gormDeposit(postgres.Config{}, gorm.Config{})}
	gormPreparedWay = way{"gorm, prepared statements", gormDeposit(postgres.Config{}, preparing)}
	gormSimpleWay   = way{"gorm, simple protocol", gormDeposit(postgres.Config{PreferSimpleProtocol: true}, gorm.Config{})}
)

var preparing = gorm.Config{PrepareStmt: true, TranslateError: true}

// Account is the model of the table accounts.
type Account struct {
	ID      int64
	Balance int64
}

func openGORM(t *testing.T, s *scene, dialect postgres.Config, config gorm.Config) *gorm.DB {
	t.Helper()
	dialect.DSN = s.url
	config.Logger = logger.Discard
	db, err := gorm.Open(postgres.New(dialect), &config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool, err := db.DB()
		if err != nil {
			t.Error(err)
			return
		}
		_ = pool.Close()
	})
	return db
}

func add(tx *gorm.DB, account, amount int64) error {
	return tx.Model(&Account{}).Where("id = ?", account).Update("balance", gorm.Expr("balance + ?", amount)).Error
}

func gormDeposit(dialect postgres.Config, config gorm.Config) func(*testing.T, *scene) deposit {
	return func(t *testing.T, s *scene) deposit {
		db := openGORM(t, s, dialect, config)
		return func(ctx context.Context, lease *pglock.Lease, amounts []int64, last func() error, opts ...fencedstore.FenceOption) error {
			return drivers.WriteGORM(ctx, db, lease, func(tx *gorm.DB) error {
				for _, amount := range amounts {
					if err := add(tx, s.account, amount); err != nil {
						return err
					}
				}
				return last()
			}, opts...)
		}
	}
}

var errInner = errors.New("the inner transaction changed its mind")

// GORM makes a savepoint of a nested transaction. One that is rolled back takes back what came after it alone: the fence
// came before, so the rest is still under it, and is refused at COMMIT when the lease is lost.
func TestI10_SavepointInsideTheFenceLeavesTheFenceWhereItIs(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"live": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			db := openGORM(t, s, postgres.Config{}, gorm.Config{})
			lease := s.lease(t)
			err := drivers.WriteGORM(t.Context(), db, lease, func(tx *gorm.DB) error {
				if err := add(tx, s.account, 60); err != nil {
					return err
				}
				err := tx.Transaction(func(nested *gorm.DB) error {
					if err := add(nested, s.account, 7); err != nil {
						return err
					}
					return errInner
				})
				if !errors.Is(err, errInner) {
					return err
				}
				if lost {
					s.breakLock(t)
				}
				return nil
			})
			if lost {
				isBroken(t, err, lease)
				s.has(t, 0)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s.has(t, 60)
		})
	}
}

// The other way round the fence goes with the savepoint, and what the outer transaction writes is under none. Only Seal
// notices.
func TestI3_FenceTakenInsideASavepointGoesWithItAndSealRefuses(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	db := openGORM(t, s, postgres.Config{}, gorm.Config{})
	lease := s.lease(t)
	err := db.Transaction(func(tx *gorm.DB) error {
		inner, err := drivers.SQLTx(tx)
		if err != nil {
			return err
		}
		err = tx.Transaction(func(*gorm.DB) error {
			if err := fencedstore.GuardSQL(t.Context(), inner, lease); err != nil {
				return err
			}
			return errInner
		})
		if !errors.Is(err, errInner) {
			return err
		}
		s.overtake(t) // for whom no fence is in the way any more
		if err := add(tx, s.account, 60); err != nil {
			return err
		}
		return fencedstore.SealSQL(t.Context(), inner, lease)
	})
	if !errors.Is(err, fencedstore.ErrLeftFence) {
		t.Errorf("the write answered %v, want %v", err, fencedstore.ErrLeftFence)
	}
	s.has(t, 1000)
}

// A fence in a savepoint that is kept is kept too: the outer transaction is checked at COMMIT.
func TestI10_FenceTakenInsideASavepointThatIsKeptHoldsAtCommit(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	db := openGORM(t, s, postgres.Config{}, gorm.Config{})
	lease := s.lease(t)
	err := db.Transaction(func(tx *gorm.DB) error {
		err := tx.Transaction(func(nested *gorm.DB) error {
			inner, err := drivers.SQLTx(nested)
			if err != nil {
				return err
			}
			return fencedstore.GuardSQL(t.Context(), inner, lease)
		})
		if err != nil {
			return err
		}
		s.breakLock(t)
		return add(tx, s.account, 60)
	})
	isBroken(t, fencedstore.Explain(err, lease), lease)
	s.has(t, 0)
}

func TestFencedWriteInsideATransactionOfGORMIsRefused(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]gorm.Config{"plain": {}, "prepared statements": preparing} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			db := openGORM(t, s, postgres.Config{}, config)
			lease := s.lease(t)
			err := db.Transaction(func(tx *gorm.DB) error {
				return drivers.WriteGORM(t.Context(), tx, lease, func(tx *gorm.DB) error { return add(tx, s.account, 60) })
			})
			if !errors.Is(err, drivers.ErrNested) {
				t.Errorf("the write answered %v, want %v", err, drivers.ErrNested)
			}
			s.has(t, 0)
		})
	}
}

func TestConnectionOfGORMOutsideATransactionIsRefusedWithItsType(t *testing.T) {
	t.Parallel()
	db := openGORM(t, newScene(t), postgres.Config{}, gorm.Config{})
	_, err := drivers.SQLTx(db)
	if err == nil || !strings.Contains(err.Error(), "is *sql.DB: it must be a *sql.Tx") {
		t.Errorf("SQLTx answered %v", err)
	}
}
