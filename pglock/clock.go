package pglock

import "time"

// instant is one reading of both local clocks. The monotonic clock stops while a machine is suspended; the wall clock
// can be set back. Whichever has moved further is believed, so that an error of one can only end trust sooner.
type instant struct {
	mono time.Duration // since the clock was made
	wall time.Time     // without a monotonic reading
}

// clock reads the local clocks. It only ever makes a holder stop sooner; the server's clock decides.
type clock func() instant

func systemClock() clock {
	base := time.Now()
	return func() instant {
		now := time.Now()
		return instant{mono: now.Sub(base), wall: now.Round(0)}
	}
}

func (i instant) add(d time.Duration) instant { return instant{i.mono + d, i.wall.Add(d)} }

// reached reports whether by either clock the instant i is not before t.
func (i instant) reached(t instant) bool { return i.mono >= t.mono || !i.wall.Before(t.wall) }

// until is the time left from i to t by the clock that is further ahead.
func (i instant) until(t instant) time.Duration { return min(t.mono-i.mono, t.wall.Sub(i.wall)) }

// trustDeadline is the moment up to which a holder may believe in a lease: counted from when the request was sent, not
// from when the answer came, by no more than the TTL and no more than the server said was left, less a margin of 1/20
// of it, at most a second, for clocks that run at different rates.
func trustDeadline(sent instant, ttl, remaining time.Duration) instant {
	left := min(ttl, remaining)
	return sent.add(left - min(left/20, time.Second))
}
