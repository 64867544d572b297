//go:build unix

package check

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// losses checks that no lease runs out although its process runs, reaches the server, and the server answers soon; and
// that none runs out before its extension, whatever happens.
type losses struct {
	*court
	since map[int64]history.Event // of leases: when they were given
	until map[int64]history.Time  // of leases: they are extended until then
	last  map[int64]history.Time  // of leases that are being released: until then they were certainly valid
	slow  []span                  // of looks and marks that took long: everybody's requests did
	went  []history.Promotion     // that lost commits
	late  map[int][]span          // of workers: when they, or the server, were a little late
	brief []loss                  // of short leases: a pause that cost one is told when it is over
}

// loss is one that nothing explains yet.
type loss struct {
	history.Event
	has  history.Event // when the lease was given
	last history.Time  // it was certainly valid until then
}

const (
	shortest   = time.Second            // shorter leases run out on a machine that is merely busy
	stillValid = 10 * time.Millisecond  // from the last look at a lease to its release
	slowAnswer = 100 * time.Millisecond // of a look or a mark
	lossSettle = 3 * time.Second        // after a fault
	mayBeLate  = 4                      // a short lease must bear this part of its TTL
	toldBy     = time.Second            // so long after its beginning a pause is told
)

// answered notes how long the server took for something that takes no time.
func (l *losses) answered(from, to history.Time) {
	if to.Sub(from) > slowAnswer {
		long := func(old span) bool { return old.to.Add(remembered) < from }
		l.slow = append(slices.DeleteFunc(l.slow, long), span{from, to})
	}
}

func (l *losses) event(e history.Event) {
	l.judge(e.At.Add(-toldBy))
	switch e.Kind {
	case history.Has:
		l.since[e.Lease] = e
	case history.Late:
		l.late[worker(e.Who)] = append(slices.DeleteFunc(l.late[worker(e.Who)], func(old span) bool {
			return old.to.Add(remembered) < e.At
		}), span{e.From, e.At})
	case history.Extends:
		if e.Class == "" {
			l.until[e.Lease] = e.From.Add(e.TTL - min(e.TTL/20, time.Second)) // holders stop sooner, by so much
		}
	case history.Shortens:
		delete(l.until, e.Lease)
	case history.Lets:
		l.last[e.Lease] = e.Until
		if e.At.Sub(e.Until) < stillValid {
			delete(l.since, e.Lease) // it was held until its release
		}
	case history.Left:
		has, known := l.since[e.Lease]
		until, last := l.until[e.Lease], l.last[e.Lease]
		delete(l.since, e.Lease)
		delete(l.until, e.Lease)
		delete(l.last, e.Lease)
		if !known || e.Reason != "expired" {
			return
		}
		if e.At < until && !l.wasLost(until, e.At) {
			l.blame("extension", e.At, []string{e.Name}, fmt.Sprintf(
				"%s the lease of lock %q with token %d ran out %v before its extension: %s",
				sayWho(e.Who), e.Name, has.Token, until.Sub(e.At), e.Error))
			return
		}
		from := has.At.Add(-time.Second)
		if l.faults.Disturbed(worker(e.Who), from, e.At, lossSettle) || l.wasSlow(from, e.At) {
			return
		}
		switch lost := (loss{e, has, last}); {
		case has.TTL >= shortest:
			l.unexplained(lost)
		case has.How == history.Brief:
			l.brief = append(l.brief, lost)
		}
	}
}

// judge decides about the short leases that were lost until then.
func (l *losses) judge(until history.Time) {
	for len(l.brief) > 0 && l.brief[0].At <= until {
		lost := l.brief[0]
		l.brief = l.brief[1:]
		ttl := lost.has.TTL
		if l.lateness(worker(lost.Who), lost.last.Add(-ttl), lost.last.Add(ttl)) < ttl/mayBeLate {
			l.unexplained(lost)
		}
	}
}

func (l *losses) unexplained(e loss) {
	l.blame("lost for nothing", e.At, []string{e.Name},
		fmt.Sprintf("%s the lease of lock %q with token %d and a TTL of %v "+
			"ran out, with no fault that explains it: %s", sayWho(e.Who), e.Name, e.has.Token, e.has.TTL, e.Error))
}

// finish is called when nothing more will be told.
func (l *losses) finish() { l.judge(history.Time(math.MaxInt64)) }

func (l *losses) wasSlow(from, to history.Time) bool {
	return slices.ContainsFunc(l.slow, func(k span) bool { return k.from <= to && k.to >= from })
}

// wasLost reports whether the present primary may not know of an extension.
func (l *losses) wasLost(until, at history.Time) bool {
	return slices.ContainsFunc(l.went, func(p history.Promotion) bool {
		return p.Safe <= at && p.Opened.Add(remembered) >= until
	})
}

// lateness is for how long the worker, or the server, was late in that time, all in all.
func (l *losses) lateness(worker int, from, to history.Time) (sum time.Duration) {
	for _, s := range l.late[worker] {
		if s.from <= to && s.to >= from {
			sum += s.to.Sub(s.from)
		}
	}
	return sum
}
