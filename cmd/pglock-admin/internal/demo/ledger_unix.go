//go:build unix

package demo

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// opening is the balance with which every act begins.
const opening = 1000

// entry is a write as the ledger keeps it. The worker writes the balance and its entry in one transaction.
type entry struct {
	Act    int
	Worker string
	Token  int64
	Read   int64
	Wrote  int64
}

type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// in writes the schema where a statement has "@".
func in(schema, sql string) string {
	return strings.ReplaceAll(sql, "@", pgx.Identifier{schema}.Sanitize())
}

// makeLedger makes the application's tables: an account, and a list of what was written to it.
func makeLedger(ctx context.Context, q querier, schema, account string) error {
	if _, err := q.Exec(ctx, in(schema, `CREATE TABLE @.accounts (name text PRIMARY KEY, balance bigint NOT NULL);
		CREATE TABLE @.ledger (at timestamptz NOT NULL DEFAULT clock_timestamp(), act int NOT NULL,
			worker text NOT NULL, token bigint NOT NULL, read bigint NOT NULL, wrote bigint NOT NULL)`)); err != nil {
		return fmt.Errorf("demo: make the account: %w", err)
	}
	_, err := q.Exec(ctx, in(schema, "INSERT INTO @.accounts VALUES ($1, $2)"), account, opening)
	return err
}

func dropLedger(ctx context.Context, q querier, schema string) error {
	_, err := q.Exec(ctx, in(schema, "DROP TABLE IF EXISTS @.accounts, @.ledger"))
	return err
}

func setBalance(ctx context.Context, q querier, schema, account string, balance int64) error {
	_, err := q.Exec(ctx, in(schema, "UPDATE @.accounts SET balance = $2 WHERE name = $1"), account, balance)
	return err
}

func readBalance(ctx context.Context, q querier, schema, account string) (balance int64, err error) {
	err = q.QueryRow(ctx, in(schema, "SELECT balance FROM @.accounts WHERE name = $1"), account).Scan(&balance)
	return balance, err
}

func writeBalance(ctx context.Context, q querier, schema, account string, e entry) error {
	if err := setBalance(ctx, q, schema, account, e.Wrote); err != nil {
		return err
	}
	_, err := q.Exec(ctx, in(schema, "INSERT INTO @.ledger (act, worker, token, read, wrote) "+
		"VALUES ($1, $2, $3, $4, $5)"), e.Act, e.Worker, e.Token, e.Read, e.Wrote)
	return err
}

func countWrites(ctx context.Context, q querier, schema string, act int) (n int, err error) {
	err = q.QueryRow(ctx, in(schema, "SELECT count(*) FROM @.ledger WHERE act = $1"), act).Scan(&n)
	return n, err
}
