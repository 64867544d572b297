package server

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// Whoever asks a standby asks again until it is promoted, or another connection reaches the primary.
func TestWhatPassesIsNotLasting(t *testing.T) {
	for _, tc := range []struct {
		name    string
		err     error
		lasting bool
	}{
		{"a standby", &pgconn.PgError{Code: "25006"}, false},
		{"a standby that is asked to write", &pgconn.PgError{Code: "0A000", Routine: "call_bool_check_hook"}, false},
		{"what the server has not", &pgconn.PgError{Code: "0A000", Routine: "transformStmt"}, true},
		{"no memory", &pgconn.PgError{Code: "53200"}, false},
		{"no right", &pgconn.PgError{Code: "42501"}, true},
		{"a crash", &pgconn.PgError{Code: "XX000", SeverityUnlocalized: "PANIC"}, false},
		{"a refused login, by another driver", &pgconn.PgError{Code: "3D000", SeverityUnlocalized: "FATAL"}, true},
		{"a crash by what would be refused", &pgconn.PgError{Code: "22023", SeverityUnlocalized: "PANIC"}, false},
		{"a reset line", errors.New("reset"), false},
		{"a closed pool", puddle.ErrClosedPool, true},
	} {
		if got := Lasting(tc.err); got != tc.lasting {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.lasting)
		}
	}
}
