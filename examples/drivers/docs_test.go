package drivers_test

import (
	"os"
	"strings"
	"testing"
)

// docs/drivers.md shows these files, without their package clause, in this order.
var shown = []string{"libpq.go", "pgx.go", "gorm.go", "ent.go", "sqlc.go", "bun.go"}

func TestPageOnDriversShowsTheProgramsThatAreTested(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/drivers.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != len(shown) {
		t.Fatalf("the page has %d programs, want %d", len(blocks), len(shown))
	}
	for i, file := range shown {
		program, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, want, _ := strings.Cut(string(program), "package drivers\n\n")
		if got, _, _ := strings.Cut(blocks[i], "```"); got != want {
			t.Errorf("block %d of docs/drivers.md is not %s", i+1, file)
		}
	}
	if len(shown) != len(copied) {
		t.Errorf("%d programs are shown, and %d are tested", len(shown), len(copied))
	}
}
