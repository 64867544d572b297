package pgtest

import (
	"testing"
	"time"
)

// patience is how long a test waits for what must come.
const patience = 30 * time.Second

// Eventually waits until something is so that nothing announces, and fails the test if it does not come within half a
// minute. Its looks become rarer, up to twenty a second: tests that wait for long leave the machine to the others.
func Eventually(tb testing.TB, what string, so func() bool) {
	tb.Helper()
	pause := time.Millisecond
	for deadline := time.Now().Add(patience); !so(); pause = min(pause*5/4+100*time.Microsecond, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("waited %v in vain: %s", patience, what)
		}
		time.Sleep(pause)
	}
}
