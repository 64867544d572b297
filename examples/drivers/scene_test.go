package drivers_test

import (
	"context"
	"database/sql"
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/examples/drivers/accounts"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

//go:embed accounts/schema.sql
var accountsSchema string

const patience = 20 * time.Second

// A scene is an account of balance 0 and its lock, a client that is to hold the lock, and somebody else's client. What
// the other does, the holder's client is not told.
type scene struct {
	url     string
	pool    *pgxpool.Pool
	holder  *pglock.Client
	other   *pglock.Client
	admin   *lockadmin.Admin
	account int64
	lock    string // protects the account
}

// newScene makes a scene in a database of its own.
func newScene(t *testing.T) *scene {
	t.Helper()
	db := pgtest.Database(t)
	s := &scene{url: db.URL(), pool: db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 4 * int32(len(ways)) })}
	must.Get(s.pool.Exec(t.Context(), accountsSchema))(t)
	s.holder, s.other = newClient(t, s.pool), newClient(t, s.pool)
	var err error
	if s.admin, err = lockadmin.New(t.Context(), s.pool); err != nil {
		t.Fatal(err)
	}
	return s.with(t, 16)
}

// with is the scene with another account.
func (s *scene) with(t *testing.T, account int64) *scene {
	t.Helper()
	must.Get(s.pool.Exec(t.Context(), "INSERT INTO accounts VALUES ($1)", account))(t)
	another := *s
	another.account, another.lock = account, fmt.Sprintf("account/%d", account)
	return &another
}

func newClient(t *testing.T, pool *pgxpool.Pool) *pglock.Client {
	t.Helper()
	c := must.Get(pglock.New(t.Context(), pool))(t)
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

// lease is the holder's; a renewal does not come in between by itself.
func (s *scene) lease(t *testing.T) *pglock.Lease { return s.leaseOf(t, time.Minute) }

func (s *scene) leaseOf(t *testing.T, ttl time.Duration) *pglock.Lease {
	t.Helper()
	l := must.Get(s.holder.TryAcquire(t.Context(), s.lock, pglock.WithTTL(ttl)))(t)
	return l
}

// breakLock ends the lease of whoever holds the lock.
func (s *scene) breakLock(t *testing.T) {
	t.Helper()
	must.Get(s.admin.Break(t.Context(), s.lock, "its host is gone", lockadmin.BreakOptions{}))(t)
}

// overtake ends the holder's lease and has the other write in its place. It returns the other's token.
func (s *scene) overtake(t *testing.T) pglock.Token {
	t.Helper()
	s.breakLock(t)
	return s.succeed(t)
}

// succeed has the other acquire the lock, which is free, and deposit 1000. It returns the other's token.
func (s *scene) succeed(t *testing.T) pglock.Token {
	t.Helper()
	l, err := s.other.TryAcquire(t.Context(), s.lock)
	if err != nil {
		t.Fatal(err)
	}
	err = fencedstore.New(s.pool).Write(t.Context(), l, func(ctx context.Context, tx pgx.Tx) error {
		_, err := accounts.New(tx).Deposit(ctx, accounts.DepositParams{ID: s.account, Amount: 1000})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return l.Token()
}

// has fails the test unless the account has the balance.
func (s *scene) has(t *testing.T, balance int64) {
	t.Helper()
	got := must.Get(accounts.New(s.pool).Balance(t.Context(), s.account))(t)
	if got != balance {
		t.Errorf("the balance is %d, want %d", got, balance)
	}
}

// isLeftAlone waits until no transaction has a change of the account open.
func (s *scene) isLeftAlone(t *testing.T) {
	t.Helper()
	s.eventually(t, "the account's transaction to end",
		`SELECT count(*) = 1 FROM (SELECT FROM accounts WHERE id = $1 FOR UPDATE SKIP LOCKED) AS free`, s.account)
}

// eventually waits until the query answers true.
func (s *scene) eventually(t *testing.T, what, query string, args ...any) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		var done bool
		must.Do(t, s.pool.QueryRow(t.Context(), query, args...).Scan(&done))
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond) // between two looks; nothing depends on its length
	}
}

// openSQL opens the database with a driver of database/sql.
func openSQL(t *testing.T, driver, url string) *sql.DB {
	t.Helper()
	db := must.Get(sql.Open(driver, url))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}
