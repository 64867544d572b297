package schedulers

import (
	"fmt"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// Schedule plans times: Next gives the first that is later than t, or the zero time. cron.Schedule of
// github.com/robfig/cron/v3 is one.
type Schedule interface {
	Next(t time.Time) time.Time
}

// Every plans one time in each interval d, at the offset at. Intervals count from midnight UTC on a Monday, and not
// from the start of a replica. Every(24*time.Hour, 2*time.Hour) is 02:00 UTC each day.
func Every(d, at time.Duration) Schedule { return every{d, at} }

type every struct{ d, at time.Duration }

func (e every) Next(t time.Time) time.Time {
	if e.d <= 0 {
		return time.Time{}
	}
	return t.Add(-e.at).Truncate(e.d).Add(e.d + e.at)
}

// earliest is how long before a planned time its run may begin, at most; a tenth of the gap is the other limit.
const earliest = time.Minute

// longestGap is how far back the last planned time may be.
const longestGap = 10 * 365 * 24 * time.Hour

// checkSchedule refuses a schedule whose times depend on when the replica started.
func checkSchedule(s Schedule, now time.Time) error {
	if s == nil {
		return &pglock.ArgumentError{Field: "schedule", Value: "nil", Rule: "be a Schedule"}
	}
	next := s.Next(now)
	if next.IsZero() || !next.After(now) {
		return &pglock.ArgumentError{Field: "schedule", Value: fmt.Sprintf("%T", s), Rule: "plan a time that is yet " +
			"to come"}
	}
	if between := s.Next(now.Add(next.Sub(now) / 2)); !between.Equal(next) {
		return &pglock.ArgumentError{Field: "schedule", Value: fmt.Sprintf("%T, which counts from the start", s),
			Rule: "plan the same times in all replicas: use Every in place of @every"}
	}
	return nil
}

// slotAt is the planned time that a run which begins at now is for.
func slotAt(s Schedule, now time.Time) (time.Time, error) {
	for back := time.Second; back <= longestGap; back *= 2 {
		last := s.Next(now.Add(-back))
		if last.IsZero() || last.After(now) {
			continue // nothing was planned since then
		}
		next := s.Next(last)
		for !next.IsZero() && !next.After(now) {
			last, next = next, s.Next(next)
		}
		if !next.IsZero() && next.Sub(now) <= min(next.Sub(last)/10, earliest) {
			return next, nil
		}
		return last, nil
	}
	rule := "have planned a time before " + now.Format(time.RFC3339)
	return time.Time{}, &pglock.ArgumentError{Field: "schedule", Value: fmt.Sprintf("%T", s), Rule: rule}
}
