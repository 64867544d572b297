package migrations_test

import (
	"context"
	"os"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// upVariable makes this binary do nothing but migrate the database that it names: one of many processes.
const upVariable = "PGLOCK_MIGRATIONS_TEST_UP"

func TestMain(m *testing.M) {
	if url := os.Getenv(upVariable); url != "" {
		if err := migrations.Up(context.Background(), url); err != nil {
			println(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m, pgtest.PGOptions("-c jit=off")) // compiling a query that runs once takes longer than the query
}
