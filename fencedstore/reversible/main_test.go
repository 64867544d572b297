package reversible_test

import (
	"context"
	"flag"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "32") // tests that are parallel mostly wait; the command line says it better
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}
