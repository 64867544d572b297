//go:build unix

package history

import "time"

// Time is a moment of the machine's monotonic clock in nanoseconds, which is the same for all its processes.
type Time int64

// Duration is a time.Duration that travels as a number.
type Duration = time.Duration

// Sub is how long after u the moment is.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }

// Add is the moment d later.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Wall says where the wall clock stands beside the monotonic one, so that the server's moments can be compared with ours:
// they are of the same machine.
type Wall struct {
	mono Time
	wall time.Time
}

// ReadWall reads both clocks.
func ReadWall() Wall { return Wall{Now(), time.Now()} }

// Time is the wall clock's moment on the monotonic clock.
func (w Wall) Time(at time.Time) Time { return w.mono.Add(at.Sub(w.wall)) }
