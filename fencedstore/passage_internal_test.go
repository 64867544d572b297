package fencedstore

import (
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// What failed before any transaction began, such as an extension that waited for the lease's row, was no time limit of
// one.
func TestNoTimeLimitEndsATransactionThatHasNotBegun(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"55P03", "57014", "25P03", "25P04"} {
		if late := (passage{}).explain(&pgconn.PgError{Severity: "ERROR", Code: state}, false); late != nil {
			t.Errorf("%s: %v", state, late)
		}
	}
}
