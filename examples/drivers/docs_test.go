package drivers_test

import (
	"os"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

// docs/drivers.md shows these files, without their package clause, in this order.
var shown = []string{"libpq.go", "pgx.go", "gorm.go", "ent.go", "sqlc.go", "bun.go"}

func TestPageOnDriversShowsTheProgramsThatAreTested(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/drivers.md"))(t)
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != len(shown) {
		t.Fatalf("the page has %d programs, want %d", len(blocks), len(shown))
	}
	for i, file := range shown {
		program := must.Get(os.ReadFile(file))(t)
		_, want, _ := strings.Cut(string(program), "package drivers\n\n")
		if got, _, _ := strings.Cut(blocks[i], "```"); got != want {
			t.Errorf("block %d of docs/drivers.md is not %s", i+1, file)
		}
	}
	if len(shown) != len(copied) {
		t.Errorf("%d programs are shown, and %d are tested", len(shown), len(copied))
	}
}
