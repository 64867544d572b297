package pgtest

import (
	"sync"
	"testing"
	"time"
)

// Group is for goroutines that report to the test. The test does not end before they do, also if it fails while they
// are at work: a report that comes later panics, and then nobody sees why the test failed. The test's context ends
// before it waits for them, for half a minute at most.
func Group(tb testing.TB) *sync.WaitGroup {
	tb.Helper()
	var group sync.WaitGroup
	tb.Cleanup(func() {
		ended := make(chan struct{})
		go func() { group.Wait(); close(ended) }()
		select {
		case <-ended:
		case <-time.After(patience):
			tb.Errorf("pgtest: waited %v in vain: the test's goroutines to end", patience)
		}
	})
	return &group
}
