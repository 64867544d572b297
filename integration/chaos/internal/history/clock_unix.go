//go:build unix

package history

import "golang.org/x/sys/unix"

// Now reads the monotonic clock.
func Now() Time {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every Unix has this clock
	}
	return Time(t.Nano())
}
