package drivers_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }),
		// GORM's cache of prepared statements has a goroutine that GORM never ends.
		pgtest.IgnoreLeaks(goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")))
}
