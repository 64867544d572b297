package protocol

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
)

// Statements go without names for a while after one was lost: for longer each time that names are lost again. Names
// that work are used again.
func TestStatementsGoWithoutNamesForAWhileAfterOneWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n names
		usable := func() bool { return n.usable(pgx.QueryExecModeCacheStatement) }
		lost := func(want time.Duration) {
			t.Helper()
			if n.lost(); usable() {
				t.Fatal("names are used again at once")
			}
			time.Sleep(want - time.Nanosecond)
			if usable() {
				t.Fatalf("names are used again before %v have passed", want)
			}
			if time.Sleep(time.Nanosecond); !usable() {
				t.Fatalf("names are not used again after %v", want)
			}
		}
		for range 3 {
			for want := firstNameless; want < lastNameless; want *= 2 {
				lost(want)
			}
			lost(lastNameless)
			lost(lastNameless)
			n.worked()
		}
	})
}

func TestModesOfPoolersHaveNoNames(t *testing.T) {
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		if new(names).usable(mode) {
			t.Errorf("names are used in mode %v", mode)
		}
	}
}
