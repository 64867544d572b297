package coalesce

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
