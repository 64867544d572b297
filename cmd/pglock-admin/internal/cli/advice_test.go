package cli

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// To try again does not help while the server's disk is full.
func TestAFullDiskHasToBeFreedFirst(t *testing.T) {
	t.Parallel()
	code, hint := new(Options).serverAdvice(&pgconn.PgError{Code: "53100", Message: "could not extend file"})
	if code != ExitFailure || !strings.HasPrefix(hint, "free room on the server's disk") {
		t.Errorf("exit code %d, %q", code, hint)
	}
}
