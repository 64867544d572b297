package fencedstore_test

import (
	"context"
	"flag"
	"testing"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
)

// refused is the error of Guard alone.
func refused(_ *fencedstore.Guarded, err error) error { return err }

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "32") // tests that are parallel mostly wait; the command line says it better
	pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error { return migrations.Up(ctx, url) }))
}
