package fencedstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// badly is a driver whose transactions cannot be rolled back.
type badly struct{}

func (badly) Connect(context.Context) (driver.Conn, error) { return badConn{}, nil }

func (badly) Driver() driver.Driver { return nil }

type badConn struct{ driver.Conn }

func (badConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return badTx{}, nil }

func (badConn) Close() error { return nil }

type badTx struct{}

func (badTx) Commit() error { return driver.ErrBadConn }

func (badTx) Rollback() error { return driver.ErrBadConn }

// database/sql may close a connection at the moment in which it is asked for what the driver has for it.
func TestAConnectionThatDatabaseSQLClosesMeanwhileIsDead(t *testing.T) {
	db := sql.OpenDB(badly{})
	defer db.Close()
	rounds := 5000
	if pgtest.EveryTest {
		rounds *= 4
	}
	for range rounds {
		lent := must.Get(sqlDatabase{db: db}.lend(t.Context()))(t)
		c := lent.(*sqlConn)
		must.Do(t, c.beginTx(t.Context(), pgx.TxOptions{}))
		c.end()
		for !c.isDead() {
		}
		c.giveBack(t.Context(), false)
	}
}
