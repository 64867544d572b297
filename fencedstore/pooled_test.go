package fencedstore_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// A connection whose prepared statements are lost, as behind a pooler that shares connections, fails writes: their
// errors name the cure.
func TestALostPreparedStatementNamesTheCure(t *testing.T) {
	db := pgtest.Parallel(t)
	b := newBenchOn(t, db)
	lease := b.acquire(t, "report")
	for what, mine := range map[string]string{
		"of the library":     "",
		"of the application": "SELECT $1::int",
	} {
		one := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
		store := fencedstore.New(one)
		lose := func(ctx context.Context) {
			must.Get(one.Exec(ctx, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol))(t)
		}
		write := func() error {
			return store.Write(t.Context(), fencedstore.Fence{Lease: lease, SameToken: true},
				func(ctx context.Context, tx pgx.Tx) error {
					if mine == "" {
						return nil
					}
					if _, err := tx.Exec(ctx, "DEALLOCATE ALL", pgx.QueryExecModeSimpleProtocol); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, mine, 1)
					return err
				})
		}
		must.Get(one.Exec(t.Context(), "SELECT $1::int", 1))(t)
		if mine == "" {
			must.Do(t, write())
			lose(t.Context())
		}
		err := write()
		if err == nil || code(err) != "26000" || !strings.Contains(err.Error(), "default_query_exec_mode=exec") {
			t.Errorf("%s: %v, want that the statement is missing, and the cure", what, err)
		}
	}
}
