package lockadmin

import (
	"strings"
	"testing"
)

// The server has the number 0 for a prepared transaction, which nobody can end like a process.
func TestAPreparedTransactionInTheWayIsNoProcess(t *testing.T) {
	t.Parallel()
	in := tableLock{Backend: Backend{PID: 8, MayEnd: true}, table: "events", waitsFor: []int{0, 7}, holds: true}
	if got := in.others(); got != "a prepared transaction, process 7" {
		t.Error(got)
	}
	steps := new(look).endLocker(in)
	if len(steps) != 3 || !strings.Contains(steps[0].Command, "pg_prepared_xacts") ||
		steps[1].Command != "SELECT pg_terminate_backend(7)" || steps[2].Command != "SELECT pg_terminate_backend(8)" {
		t.Errorf("%+v", steps)
	}
}
