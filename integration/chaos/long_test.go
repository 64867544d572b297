//go:build unix && long

package main

import (
	"testing"
	"time"
)

// A minute of everything at once.
func TestAMinuteOfChaos(t *testing.T) {
	chaos(t, options{seed: 7, duration: time.Minute, workers: 8, goroutines: 4, pace: 120 * time.Millisecond, stormCalls: 2000, sessionTTL: 2 * time.Second}, "all")
}
