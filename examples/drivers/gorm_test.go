package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/fencedstore"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

var (
	gormWay         = way{"gorm", gormDeposit(postgres.Config{}, gorm.Config{})}
	gormPreparedWay = way{"gorm, prepared statements", gormDeposit(postgres.Config{}, preparing)}
	gormSimpleWay   = way{"gorm, simple protocol", gormDeposit(postgres.Config{PreferSimpleProtocol: true},
		gorm.Config{})}
)

var preparing = gorm.Config{PrepareStmt: true, TranslateError: true}

func openGORM(t *testing.T, s *scene, dialect postgres.Config, config gorm.Config) *gorm.DB {
	t.Helper()
	dialect.DSN = s.url
	config.Logger = logger.Discard
	db := must.Get(gorm.Open(postgres.New(dialect), &config))(t)
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
	return tx.Model(&drivers.Account{}).Where("id = ?", account).Update("balance",
		gorm.Expr("balance + ?", amount)).Error
}

func gormDeposit(dialect postgres.Config, config gorm.Config) func(*testing.T, *scene) deposit {
	return func(t *testing.T, s *scene) deposit {
		db := openGORM(t, s, dialect, config)
		pool := must.Get(db.DB())(t)
		return func(ctx context.Context, fenced fencedstore.Fenced, amounts []int64, last func() error) error {
			return fencedstore.NewSQL(pool).Write(ctx, fenced, func(ctx context.Context, tx *sql.Tx) error {
				for _, amount := range amounts {
					if err := add(drivers.GORMIn(ctx, db, tx), s.account, amount); err != nil {
						return err
					}
				}
				return last()
			})
		}
	}
}

var errInner = errors.New("the inner transaction changed its mind")

// GORM makes a savepoint of a nested transaction. One that is rolled back takes back what came after it alone: the
// fence came before, so the rest is still under it, and is refused at COMMIT when the lease is lost.
func TestI10_SavepointInsideTheFenceLeavesTheFenceWhereItIs(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]bool{"live": false, "broken": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t)
			db := openGORM(t, s, postgres.Config{}, gorm.Config{})
			pool, err := db.DB()
			if err != nil {
				t.Fatal(err)
			}
			lease := s.lease(t)
			err = fencedstore.NewSQL(pool).Write(t.Context(), lease, func(ctx context.Context, inner *sql.Tx) error {
				tx := drivers.GORMIn(ctx, db, inner)
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
		var guarded *fencedstore.Guarded
		err := tx.Transaction(func(nested *gorm.DB) (err error) {
			if guarded, err = fencedstore.GuardSQL(t.Context(), sqlTx(nested), lease); err != nil {
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
		return guarded.Seal(t.Context())
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
	var guarded *fencedstore.Guarded
	err := db.Transaction(func(tx *gorm.DB) error {
		err := tx.Transaction(func(nested *gorm.DB) (err error) {
			guarded, err = fencedstore.GuardSQL(t.Context(), sqlTx(nested), lease)
			return err
		})
		if err != nil {
			return err
		}
		s.breakLock(t)
		return add(tx, s.account, 60)
	})
	isBroken(t, guarded.Explain(err), lease)
	s.has(t, 0)
}

// sqlTx is what a transaction of GORM's own gives to GuardSQL.
func sqlTx(tx *gorm.DB) fencedstore.SQLTx { return tx.Statement.ConnPool.(fencedstore.SQLTx) }
