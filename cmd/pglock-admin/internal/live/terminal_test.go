package live

import (
	"os"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
)

func TestAScreenRefusesATerminalThatIsDumb(t *testing.T) {
	t.Parallel()
	dumb := func(name string) string {
		if name == "TERM" {
			return "dumb"
		}
		return os.Getenv(name)
	}
	o := &cli.Options{Output: cli.OutputTable, Getenv: dumb}
	if err := checkTerminal(o, true, "pglock-admin list"); err == nil ||
		!strings.Contains(err.Error(), "TERM is dumb") {
		t.Error(err)
	}
}
