package lockadmin_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	if holder != nil {
		holder()
	}
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}

// holder does what a process does that a test has started, if this is one. It is nil where no test does that.
var holder func()

func newAdmin(t *testing.T, pool *pgxpool.Pool) *lockadmin.Admin {
	t.Helper()
	a := must.Get(lockadmin.New(t.Context(), pool))(t)
	return a
}
