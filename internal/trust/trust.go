// Package trust knows how long a holder may believe in a lease. It can only make a holder stop sooner; the server's
// clock decides.
package trust

import "time"

// Instant is one reading of both local clocks. The monotonic clock stops while a machine is suspended; the wall clock
// can be set back. The one that has moved further counts, so an error of one can only end trust sooner.
type Instant struct {
	Mono time.Duration // since the clock was made
	Wall time.Time     // without a monotonic reading
}

// Clock reads the local clocks.
type Clock func() Instant

// SystemClock is the clock of this machine.
func SystemClock() Clock {
	base := time.Now()
	return func() Instant {
		now := time.Now()
		return Instant{Mono: now.Sub(base), Wall: now.Round(0)}
	}
}

// Add is the instant d later.
func (i Instant) Add(d time.Duration) Instant { return Instant{i.Mono + d, i.Wall.Add(d)} }

// Reached reports whether by either clock the instant i is not before t.
func (i Instant) Reached(t Instant) bool { return i.Mono >= t.Mono || !i.Wall.Before(t.Wall) }

// Until is the time left from i to t by the clock that is further ahead.
func (i Instant) Until(t Instant) time.Duration { return min(t.Mono-i.Mono, t.Wall.Sub(i.Wall)) }

// Earlier is the earlier one of two deadlines by each clock.
func (i Instant) Earlier(o Instant) Instant {
	if o.Wall.Before(i.Wall) {
		i.Wall = o.Wall
	}
	i.Mono = min(i.Mono, o.Mono)
	return i
}

// Deadline is the time up to which a holder may believe in a lease. It counts from when the request was sent, not
// from the answer: by no more than the TTL, and no more than the server said was left, less a margin of 1/20 of it,
// at most a second, for clocks that run at different rates.
func Deadline(sent Instant, ttl, remaining time.Duration) Instant {
	left := min(ttl, remaining)
	return sent.Add(left - min(left/20, time.Second))
}
