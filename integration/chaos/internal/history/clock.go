//go:build unix

package history

import "time"

// Time is a reading of the machine's monotonic clock in nanoseconds, which is the same for all its processes.
type Time int64

// Duration is a time.Duration that travels as a number.
type Duration = time.Duration

// Sub is how long after u the moment is.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add is the moment d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Wall relates the wall clock to the monotonic one, so that the server's times can be compared with ours: both are of
// the same machine.
type Wall struct {
	mono Time
	wall time.Time
}

// ReadWall reads both clocks.
func ReadWall() Wall { return Wall{Now(), time.Now()} }

// Time is the wall clock's moment on the monotonic clock.
func (w Wall) Time(at time.Time) Time { return w.mono.Add(at.Sub(w.wall)) }
