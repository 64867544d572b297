package cli

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// To try again does not help while the server's disk is full, somebody has locked a table, or the user's own settings
// end the statement.
func TestWhereTryingAgainDoesNotHelpTheAdviceSaysWhatDoes(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"53100": "free room on the server's disk",
		"55P03": "pglock-admin why",
		"57014": "PGOPTIONS='-c statement_timeout=0'",
	} {
		code, hint := new(Options).serverAdvice(&pgconn.PgError{Code: state})
		if code != ExitFailure || !strings.Contains(hint, want) {
			t.Errorf("%s: exit code %d, %q", state, code, hint)
		}
	}
}
