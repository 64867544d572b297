package lockadmin

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// rowOfLocks is the ID of what the row of a lock says now, which comes after every event.
const rowOfLocks = math.MaxInt64

// maxActive limits how many tenures of a lock are kept for comparison. So many run at once only in a history in which
// each has been reported already.
const maxActive = 10_000

// replay compares the tenures of one lock after the other. Tenures come in the order of their tokens, and a grant under
// the lock of a row gets a greater token than all before. So this is the order of the grants too, or else a token went
// back.
//
// Two clocks order tenures besides tokens. The server's clock orders all of a lock. The IDs of events order those of
// one slot, whatever the clock says: a row has one tenure at a time, and each draws its ID when it ends.
type replay struct {
	found Verification
	steps []clockStep

	lock   string
	counts bool           // the lock has a tenure
	slots  map[int]Tenure // of each slot the last
	latest Tenure         // which was granted last by the clock
	active []Tenure       // which may run when the next one is granted

	covers []cover // of the subtrees that the lock may lie below
	kept   int     // tenures in them
	only   string  // the lock that is checked, if it is one; others are read for their subtrees alone
}

func (r *replay) next(t Tenure) {
	if t.lock != r.lock || r.slots == nil {
		r.climb(t.lock)
		r.lock, r.counts, r.slots, r.latest, r.active = t.lock, false, map[int]Tenure{}, Tenure{}, nil
	}
	before, known := r.slots[t.Slot]
	if known && before.ID < t.ID {
		t.after = before.ID
	}
	// Else a token went back, and the tenure before is the later one. The row of locks is of the moment of its page: a
	// later page may have a later tenure.
	if t.Kind != tenureFree &&
		(!known || before.ID < t.ID || before.ID == rowOfLocks && t.Number > before.Number) {
		r.slots[t.Slot] = t
	}
	if r.only != "" && t.lock != r.only {
		if t.Kind != tenureFree {
			r.keep(t)
		}
		return
	}
	if t.Kind == tenureFree {
		r.numbers(before, known, t, 0)
		return
	}
	if !r.counts {
		r.counts = true
		r.found.Locks++
	}
	r.found.Tenures++
	r.span(t)
	r.alone(t)
	if !r.tokens(before, known, t) {
		r.numbers(before, known, t, 1)
	}
	r.together(t)
	r.under(t)
	r.keep(t)
}

// span notes the times that the record covers.
func (r *replay) span(t Tenure) {
	if r.found.From.IsZero() || t.GrantedAt.Before(r.found.From) {
		r.found.From = t.GrantedAt
	}
	if t.EndedAt.After(r.found.To) {
		r.found.To = t.EndedAt
	}
}

// tokens compares a tenure with the one before it in its slot, and with the one that the clock says was granted last.
// It reports whether a token went back.
func (r *replay) tokens(before Tenure, known bool, t Tenure) (back bool) {
	wentBack := func(first, second Tenure, detail string, args ...any) Violation {
		back = true
		return Violation{Kind: ViolationToken, First: first, Second: second, Detail: fmt.Sprintf(detail, args...)}
	}
	switch {
	case known && t.Token <= before.Token:
		r.report(wentBack(before, t, "%v was granted after %v: the same token twice", t, before))
	case known && t.ID < before.ID && t.Number <= before.Number:
		v := wentBack(t, before, "%v was granted after %v: tokens went back", before, t)
		v.By = max(0, before.GrantedAt.Sub(t.GrantedAt))
		r.report(v)
	case known && before.Kind == EventBreak && t.Token <= before.NewToken:
		r.report(wentBack(before, t, "%v was granted after a break had drawn token %d", t, before.NewToken))
	case r.latest.Token != 0 && r.latest.Slot != t.Slot && t.Token <= r.latest.Token:
		r.report(wentBack(r.latest, t, "%v and %v have a token in common", r.latest, t))
	case r.latest.Token != 0 && t.GrantedAt.Before(r.latest.GrantedAt):
		v := wentBack(t, r.latest, "by the server's clock, %v was granted after %v", r.latest, t)
		v.By = r.latest.GrantedAt.Sub(t.GrantedAt)
		r.judge(v, r.latest.GrantedAt, r.latest.after, t)
	}
	if r.latest.Token == 0 || !t.GrantedAt.Before(r.latest.GrantedAt) {
		r.latest = t
	}
	return back
}

// numbers finds gaps: the tenures of a row are numbered without one. They begin with 1 again when the row was pruned.
// own is 1 if t is a tenure, and 0 if it only tells the number of the last one.
func (r *replay) numbers(before Tenure, known bool, t Tenure, own int64) {
	gap := Gap{Lock: t.lock, Slot: t.Slot, Missing: t.Number - own, Before: t.Token}
	var since time.Time
	if own == 0 {
		gap.Before = 0
	}
	if known {
		gap.After, since = before.Token, before.EndedAt
		if t.Number > before.Number-1+own {
			gap.Missing -= before.Number
		}
	}
	if gap.Missing <= 0 || t.Number == 0 { // 0: it was recorded without a number
		return
	}
	gap.Cause = r.cause(known, since)
	r.found.GapCount++
	r.found.Missing += gap.Missing
	if gap.Cause == GapUnknown {
		r.found.MissingUnknown += gap.Missing
		if len(r.found.Gaps) == MaxFindings { // it is listed rather than another one
			r.found.Gaps = slices.DeleteFunc(r.found.Gaps, func(g Gap) bool { return g.Cause != GapUnknown })
		}
	}
	if len(r.found.Gaps) < MaxFindings {
		r.found.Gaps = append(r.found.Gaps, gap)
	}
}

// cause says why tenures are missing that ended after this moment, if it is known. Pruning removes the oldest.
func (r *replay) cause(known bool, since time.Time) GapCause {
	s := r.found.Settings
	switch {
	case known && s.Level == HistoryAll && !since.Before(s.Since) && !since.Before(s.Pruned):
		return GapUnknown
	case !s.Pruned.IsZero() && (!known || since.Before(s.Pruned)):
		return GapPruned
	}
	return GapLevel
}

// alone finds what is wrong with one tenure.
func (r *replay) alone(t Tenure) {
	overlap := Violation{Kind: ViolationOverlap, First: t, By: max(0, t.EndedAt.Sub(t.at)),
		Second: Tenure{Token: t.NewToken, Slot: t.Slot, GrantedAt: t.at}}
	switch {
	case t.Kind == EventOverlap:
		overlap.Detail = fmt.Sprintf("token %d was granted when %v was not over", t.NewToken, t)
		r.report(overlap)
	case (t.Kind == EventTakeover || t.Kind == EventExpired) && t.at.Before(t.EndedAt):
		overlap.Detail = fmt.Sprintf("%v was taken for expired before its expiry", t)
		r.judge(overlap, t.EndedAt, t.after, t)
	case t.EndedAt.Before(t.GrantedAt):
		if len(r.steps) < 2*maxClockSteps {
			r.steps = append(r.steps, clockStep{id: t.ID, from: t.GrantedAt, to: t.EndedAt})
		}
		r.note(Violation{First: t, Second: t, By: t.GrantedAt.Sub(t.EndedAt),
			Detail: fmt.Sprintf("%v ended before it began", t)})
	}
}

// together compares a tenure with all that may have run when it was granted.
func (r *replay) together(t Tenure) {
	r.active = slices.DeleteFunc(r.active, func(o Tenure) bool { return !o.EndedAt.After(t.GrantedAt) })
	var beside []Tenure // limited ones
	for _, o := range r.active {
		if !o.GrantedAt.Before(t.EndedAt) {
			continue
		}
		switch {
		case o.Mode == pglock.ModeLimit && t.Mode == pglock.ModeLimit && o.Slot != t.Slot:
			beside = append(beside, o)
		case o.Mode == pglock.ModeShared && t.Mode == pglock.ModeShared && o.Slot != t.Slot:
		// alone has told it
		case o.NewToken == t.Token && (o.Kind == EventOverlap || o.Kind == EventTakeover && o.at.Before(o.EndedAt)):
		default:
			r.judge(Violation{Kind: ViolationOverlap, First: o, Second: t,
				By: both(o, t), Detail: fmt.Sprintf("%v was granted before %v had ended", t, o)},
				o.EndedAt, o.after, t)
		}
	}
	if v, crowded := crowd(t, beside); crowded {
		without := slices.DeleteFunc(beside, func(o Tenure) bool { return r.setBack(o.EndedAt, o.after, t.ID) })
		if sure, still := crowd(t, without); still {
			r.report(sure)
		} else {
			r.note(v)
		}
	}
	if r.active = append(r.active, t); len(r.active) > maxActive {
		first := slices.MinFunc(r.active, func(a, b Tenure) int { return a.EndedAt.Compare(b.EndedAt) })
		r.active = slices.DeleteFunc(r.active, func(o Tenure) bool { return o.EndedAt.Equal(first.EndedAt) })
	}
}

// crowd reports whether a tenure was one too many beside these.
func crowd(t Tenure, beside []Tenure) (v Violation, crowded bool) {
	limit, limited := t.Limit, len(beside)
	for _, o := range beside {
		limit = min(limit, o.Limit)
	}
	if limited >= limit && limited > 0 {
		other := slices.MaxFunc(beside, func(a, b Tenure) int { return a.EndedAt.Compare(b.EndedAt) })
		return Violation{Kind: ViolationLimit, First: other, Second: t,
			By: earlier(other.EndedAt, t.EndedAt).Sub(t.GrantedAt),
			Detail: fmt.Sprintf("%v was the tenure number %d to run at once: the limit is %d", t, limited+1,
				limit)}, true
	}
	return Violation{}, false
}

func earlier(a, b time.Time) time.Time { return slices.MinFunc([]time.Time{a, b}, time.Time.Compare) }
func later(a, b time.Time) time.Time   { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// both is for how long two tenures ran at once.
func both(a, b Tenure) time.Duration {
	return earlier(a.EndedAt, b.EndedAt).Sub(later(a.GrantedAt, b.GrantedAt))
}

// judge reports a contradiction between times, unless the clock was set back over that moment before the event of the
// second tenure, and after the event that the first one was granted after. The first is the one with the lower token:
// if only the clock makes them overlap, it ended before the second was granted.
func (r *replay) judge(v Violation, moment time.Time, after int64, second Tenure) {
	if r.setBack(moment, after, second.ID) {
		r.note(v)
		return
	}
	r.report(v)
}

// setBack reports whether the clock had reached a moment and was then set back before it, after an event and no later
// than at another.
func (r *replay) setBack(moment time.Time, after, id int64) bool {
	return slices.ContainsFunc(r.steps, func(s clockStep) bool {
		return s.id > after && s.id <= id && !s.from.Before(moment) && s.to.Before(moment)
	})
}

func (r *replay) report(v Violation) { r.list(v, &r.found.Violations, &r.found.ViolationCount) }

// note lists what only a clock that was set back can have caused.
func (r *replay) note(v Violation) {
	v.Kind = ViolationClock
	r.list(v, &r.found.Clock, &r.found.ClockCount)
}

// list leaves out the ID of what is no event.
func (r *replay) list(v Violation, listed *[]Violation, count *int64) {
	*count++
	if len(*listed) == MaxFindings {
		return
	}
	v.Lock = r.lock
	for _, t := range []*Tenure{&v.First, &v.Second} {
		if t.ID == rowOfLocks {
			t.ID = 0
		}
	}
	*listed = append(*listed, v)
}
