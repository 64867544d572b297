package main

import (
	"context"
	"errors"
	"testing"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

func TestARefusedTransferLeavesTheAccountsAsTheyWere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	if _, err := pool.Exec(t.Context(), `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
		INSERT INTO accounts VALUES (1, 100), (2, 0);
		CREATE TABLE transfers (from_id bigint NOT NULL, to_id bigint NOT NULL, amount bigint NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	must.Do(t, Guard(t.Context(), pool))
	client := must.Get(pglock.New(t.Context(), pool))(t)
	defer client.Close(context.WithoutCancel(t.Context()))
	ledger := &Ledger{Client: client, Store: fencedstore.New(pool)}
	for name, tc := range map[string]struct {
		from, to, amount int64
		want             error
	}{
		"to nobody":     {1, 99, 30, ErrAccount},
		"from nobody":   {99, 1, 30, ErrFunds},
		"less than 0":   {1, 2, -50, ErrAmount},
		"nothing":       {1, 2, 0, ErrAmount},
		"more than all": {1, 2, 101, ErrFunds},
	} {
		if err := ledger.Transfer(t.Context(), tc.from, tc.to, tc.amount); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		const all = "SELECT string_agg(balance::text, ' ' ORDER BY id) FROM accounts"
		if has := pgtest.One[string](t, pool, all); has != "100 0" {
			t.Errorf("%s: the balances are %s, want 100 0", name, has)
		}
	}
	if noted := pgtest.One[int](t, pool, "SELECT count(*) FROM transfers"); noted != 0 {
		t.Errorf("%d transfers are noted that were refused", noted)
	}
}
