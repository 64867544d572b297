package queue

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

type owner bool

func (o owner) Nested() bool { return bool(o) }

func at(d time.Duration) trust.Instant {
	return trust.Instant{Mono: d, Wall: time.UnixMicro(0).Add(d)}
}

var far = protocol.Sighting{Ahead: protocol.Far, Kept: true}

// put queues a new ticket of this number.
func put(q *Queue, number int64, first bool, now time.Duration) (*Ticket, uuid.UUID) {
	t, id := NewTicket(owner(false), time.Minute, true), uuid.New()
	q.Put(t, id, protocol.Answer{Ticket: number, First: first, Remaining: time.Minute}, at(now), at(now))
	return t, id
}

func hintFor(number int64, id uuid.UUID) string {
	said := fmt.Sprintf("%d 9 0 30000000", number)
	return digest(said, id) + " " + said
}

// A server that has crashed draws the numbers of the tickets that it has lost again. Calls of one client then swap
// them.
func TestI8_ACallIsFoundThoughItsNumberWasAnothers(t *testing.T) {
	ask := func(q *Queue, t *Ticket, number int64) uuid.UUID {
		id := uuid.New()
		q.Put(t, id, protocol.Answer{Ticket: number, Remaining: time.Minute}, at(time.Second), at(time.Second))
		return id
	}
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		q := New(time.Minute)
		a, _ := put(q, 1, true, 0)
		b, _ := put(q, 2, false, 0)
		calls, numbers, ids := []*Ticket{a, b}, []int64{2, 1}, make([]uuid.UUID, 2)
		for _, n := range order {
			ids[n] = ask(q, calls[n], numbers[n])
		}
		first := calls[order[0]]
		if n, _ := q.TakeNews(first, at(0)); n.AskAgain { // the other had its number still
			ids[order[0]] = ask(q, first, numbers[order[0]])
		}
		for n, c := range calls {
			q.Hear(hintFor(numbers[n], ids[n]), nil)
			if n, _ := q.TakeNews(c, at(0)); n.Hint == nil || q.Len() != 2 {
				t.Errorf("I8: of %d calls one heard %+v", q.Len(), n)
			}
		}
	}
	q := New(time.Minute)
	a, _ := put(q, 1, true, 0)
	b, _ := put(q, 2, false, 0)
	look, _ := q.DueLook(at(time.Minute))
	ask(q, a, 2)
	q.Looked(look, map[int64]protocol.Sighting{2: {Circle: []protocol.Link{{}}}}, at(time.Minute), at(time.Minute), 0)
	q.Remove(b)
	if n, _ := q.TakeNews(b, at(0)); !n.AskAgain || q.Len() != 1 {
		t.Errorf("I8: the call whose number another has got heard %+v, and there are %d tickets", n, q.Len())
	}
}

func TestHintGoesToItsTicketAlone(t *testing.T) {
	q := New(time.Minute)
	one, id := put(q, 1, true, 0)
	two, _ := put(q, 2, false, 0)
	q.Hear(hintFor(2, id), nil) // with the proof of another
	q.Hear(hintFor(1, id), nil)
	if n, _ := q.TakeNews(two, at(0)); n.Any() {
		t.Errorf("the other ticket heard %+v", n)
	}
	n, _ := q.TakeNews(one, at(0))
	if n.Hint == nil || n.Hint.Token != 9 || n.Hint.Left != 30*time.Second {
		t.Fatalf("it heard %+v", n)
	}
	if n, _ := q.TakeNews(one, at(0)); n.Any() {
		t.Errorf("the news came twice: %+v", n)
	}
}

// Trust in a grant counts from when its ticket was last seen in the queue, or from a moment before the grant that is
// known.
func TestI7_HintIsDatedByWhenItsTicketWasLastSeen(t *testing.T) {
	q := New(time.Minute)
	one, id := put(q, 1, true, time.Second)
	look, _ := q.DueLook(at(time.Minute))
	q.Looked(look, map[int64]protocol.Sighting{1: far}, at(50*time.Second), at(51*time.Second), pause.Never)
	q.Hear(hintFor(1, id), nil)
	if n, _ := q.TakeNews(one, at(0)); n.Hint == nil || n.Hint.Seen.Mono != 50*time.Second {
		t.Errorf("%+v, want it seen at 50 s", n.Hint)
	}
	sent := at(55 * time.Second)
	q.Hear(hintFor(1, id), &sent)
	if n, _ := q.TakeNews(one, at(0)); n.Hint == nil || n.Hint.Seen != sent {
		t.Errorf("%+v, want it seen at 55 s", n.Hint)
	}
}

func TestHintsThatComeBeforeTheirTicketsAreKeptUpToABound(t *testing.T) {
	q := New(time.Minute)
	id := uuid.New()
	for i := range 3 * earlyMost {
		q.Hear(hintFor(int64(100+i), uuid.New()), nil)
	}
	q.Hear(hintFor(7, id), nil)
	if len(q.early) > earlyMost {
		t.Errorf("%d hints are kept", len(q.early))
	}
	ticket := NewTicket(owner(false), time.Minute, true)
	q.Put(ticket, id, protocol.Answer{Ticket: 7}, at(0), at(0))
	if n, _ := q.TakeNews(ticket, at(0)); n.Hint == nil {
		t.Error("the last of them was not kept")
	}
}

// The first in the queue asks when the holder's lease ends; where that is over already, soon, and then less and less
// often.
func TestFirstInTheQueueAsksAgain(t *testing.T) {
	q := New(time.Minute)
	first, id := put(q, 1, true, 0)
	if _, wait := q.TakeNews(first, at(0)); wait != time.Minute+AskLate {
		t.Errorf("it asks after %v", wait)
	}
	second, _ := put(q, 2, false, 0)
	if _, wait := q.TakeNews(second, at(0)); wait != pause.Never {
		t.Errorf("the second asks after %v", wait)
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 100, 100} {
		q.Put(first, id, protocol.Answer{Ticket: 1, First: true}, at(0), at(0))
		if _, wait := q.TakeNews(first, at(0)); wait != want*time.Millisecond {
			t.Errorf("it asks after %v, want %v ms", wait, int(want))
		}
	}
}

func TestLookTellsEveryTicketHowItStands(t *testing.T) {
	q := New(time.Minute)
	gone, _ := put(q, 1, true, 0)
	circled, _ := put(q, 2, false, 0)
	next, _ := put(q, 3, false, 0)
	if look, wait := q.DueLook(at(0)); look != nil || wait <= 0 {
		t.Fatalf("a look at once: %v, %v", look, wait)
	}
	look, _ := q.DueLook(at(time.Second))
	late, _ := put(q, 4, false, time.Second) // too late for this look
	circle := []protocol.Link{{Lock: "a"}}
	q.Looked(look, map[int64]protocol.Sighting{2: {Circle: circle}, 3: {Remaining: time.Second}},
		at(time.Second), at(2*time.Second), pause.Never)
	if n, _ := q.TakeNews(gone, at(0)); !n.AskAgain {
		t.Errorf("a ticket that is not queued any more: %+v", n)
	}
	if n, _ := q.TakeNews(circled, at(0)); !slices.Equal(n.Circle, circle) {
		t.Errorf("a ticket in a circle: %+v", n)
	}
	if n, wait := q.TakeNews(next, at(2*time.Second)); n.Any() || wait != time.Second || len(next.Wake) != 1 {
		t.Errorf("the next: %+v, asks after %v", n, wait)
	}
	if n, _ := q.TakeNews(late, at(0)); n.Any() {
		t.Errorf("a ticket that came after the look was sent: %+v", n)
	}
}

// Looks that fail end the waits after half a minute, and not those that have begun since.
func TestLooksThatFailEndWaitsInTheEnd(t *testing.T) {
	q := New(time.Minute)
	one, _ := put(q, 1, true, 0)
	failure := errors.New("no server")
	for now := time.Second; now <= Outage+2*time.Second; now += time.Second {
		look, _ := q.DueLook(at(now + time.Hour))
		q.LookFailed(look, failure, at(now), at(now))
		n, _ := q.TakeNews(one, at(0))
		if ended := now-time.Second > Outage; (n.Err == failure) != ended {
			t.Errorf("after %v: %v", now-time.Second, n.Err)
		}
	}
}

func TestLooksComeSeldomWhereHintsAreHeard(t *testing.T) {
	q := New(time.Minute)
	q.SetHears(true, at(0))
	put(q, 1, true, 0)
	if wait := q.UntilLook(at(0)); wait < lastLook*3/4-time.Millisecond || wait > lastLook {
		t.Errorf("the first look comes after %v", wait)
	}
	if !q.SetHears(false, at(0)) || q.UntilLook(at(0)) != 0 {
		t.Error("no look at once when hints cannot be counted on any more")
	}
	if q.SetHears(false, at(0)) {
		t.Error("the same again is a change")
	}
	for want := firstLook; want < lastLook; want *= 2 {
		q.DueLook(at(0))
		if wait := q.UntilLook(at(0)); wait < want*3/4-time.Millisecond || wait > want {
			t.Errorf("a look comes after %v, want %v", wait, want)
		}
		q.next = at(0)
	}
}

// A ticket is a stray if no call has it, and if none had it when a look first showed it, as far as all calls since
// then have had their answers.
func TestTrap9_TicketThatNoCallHasIsFoundInTheEnd(t *testing.T) {
	q := New(time.Minute)
	put(q, 1, true, 0)
	look := func(now, answered time.Duration) []int64 {
		l, _ := q.DueLook(at(now + time.Hour))
		return q.Looked(l, map[int64]protocol.Sighting{1: far, 5: far}, at(now), at(now), answered)
	}
	if s := look(time.Second, pause.Never); s != nil {
		t.Errorf("at the first look: %v", s)
	}
	if s := look(2*time.Second, time.Second); s != nil {
		t.Errorf("while a call has asked since before it: %v", s)
	}
	if s := look(3*time.Second, 2*time.Second); !slices.Equal(s, []int64{5}) {
		t.Errorf("then: %v", s)
	}
	if s := look(4*time.Second, pause.Never); s != nil {
		t.Errorf("while it is being taken back: %v", s)
	}
}

// The client looks again soon where something is not as it should be, also while its tickets are far from the front.
func TestFarFromTheFrontLooksComeSoonAfterAFailureAndWhileThereAreStrays(t *testing.T) {
	q := New(10 * time.Second)
	q.SetHears(true, at(0))
	put(q, 1, false, 0)
	now := time.Second
	look := func() *Look {
		l, _ := q.DueLook(at(now + time.Hour))
		q.next = at(now + farLook)
		return l
	}
	wantNext := func(what string, most time.Duration) {
		t.Helper()
		if wait := q.UntilLook(at(now)); wait > most || wait <= lastLook && most > lastLook {
			t.Errorf("%s: a look after %v, want %v at most", what, wait, most)
		}
	}
	found := map[int64]protocol.Sighting{1: far}
	q.Looked(look(), found, at(now), at(now), pause.Never)
	wantNext("far", farLook)
	q.LookFailed(look(), errors.New("no server"), at(now), at(now))
	wantNext("after a failure", lastLook)
	q.Looked(look(), found, at(now), at(now), pause.Never)
	wantNext("far again", farLook)
	q.Looked(look(), map[int64]protocol.Sighting{1: far, 5: {}}, at(now), at(now), pause.Never)
	wantNext("behind a ticket that no call has", lastLook)
	q.Looked(look(), map[int64]protocol.Sighting{1: {}}, at(now), at(now), pause.Never)
	wantNext("near", lastLook)
}

// While a ticket rests its client looks every ten seconds. It looks again within a second if something else has to be
// looked after, also if that comes while a look is under way, or if the session may die before.
func TestALookThatRestsIsFollowedSoonByTheNextWhereItMust(t *testing.T) {
	moved, lost := far, far
	moved.Served, lost.Kept = 7, false
	for name, tc := range map[string]struct {
		during func(q *Queue, now time.Duration)
		found  protocol.Sighting
		most   time.Duration
	}{
		"nothing":        {func(*Queue, time.Duration) {}, far, restLook},
		"a new ticket":   {func(q *Queue, now time.Duration) { put(q, 2, false, now) }, far, lastLook},
		"a held lock":    {func(q *Queue, now time.Duration) { q.Held(at(now)) }, far, lastLook},
		"movement":       {func(*Queue, time.Duration) {}, moved, farLook},
		"a session lost": {func(*Queue, time.Duration) {}, lost, lastLook},
	} {
		t.Run(name, func(t *testing.T) {
			q := New(10 * time.Second)
			q.SetHears(true, at(0))
			put(q, 1, false, 0)
			now := time.Duration(0)
			for now < 3*time.Minute {
				now += restLook
				l, _ := q.DueLook(at(now))
				q.Looked(l, map[int64]protocol.Sighting{1: far}, at(now), at(now), pause.Never)
			}
			if wait := q.UntilLook(at(now)); wait < restLook*3/4 {
				t.Fatalf("it looks after %v: it does not rest", wait)
			}
			now += restLook
			l, _ := q.DueLook(at(now))
			if wait := q.UntilLook(at(now)); wait > lastLook {
				t.Errorf("without an answer the next look comes after %v, want %v at most", wait, lastLook)
			}
			tc.during(q, now+300*time.Millisecond)
			answered := now + 310*time.Millisecond
			found := map[int64]protocol.Sighting{1: tc.found}
			q.Looked(l, found, at(answered-10*time.Millisecond), at(answered), pause.Never)
			wait := q.UntilLook(at(answered))
			if wait > tc.most || tc.most == restLook && wait < lastLook {
				t.Errorf("the next look comes after %v, want %v at most", wait, tc.most)
			}
		})
	}
}

// A ticket may close a circle. So its client looks at once, or as soon as a look that takes long is answered.
func TestATicketThatMayCloseACircleIsLookedAtAsSoonAsPossible(t *testing.T) {
	q := New(10 * time.Second)
	q.SetHears(true, at(0))
	put(q, 1, true, 0)
	found := map[int64]protocol.Sighting{1: {Kept: true}}
	look, _ := q.DueLook(at(time.Second))
	q.Looked(look, found, at(time.Second), at(1400*time.Millisecond), pause.Never) // so the next comes later than usual
	const again = 5 * time.Second
	look, _ = q.DueLook(at(again))
	now := again + 1100*time.Millisecond
	if !q.Put(NewTicket(owner(true), time.Minute, true), uuid.New(), protocol.Answer{Ticket: 2}, at(now), at(now)) {
		t.Error("the client does not hear that the next look comes sooner")
	}
	now += 200 * time.Millisecond
	q.Looked(look, found, at(again), at(now), pause.Never)
	if wait := q.UntilLook(at(now)); wait > 0 {
		t.Errorf("the next look comes after %v, want at once", wait)
	}
}

// A question may have been answered before something changed that the server then told. So news to ask again that comes
// before the answer is not lost.
func TestNewsThatComesDuringAQuestionIsKept(t *testing.T) {
	q := New(10 * time.Second)
	ticket, id := put(q, 7, true, 0)
	said := "7 0 0 0" // ticket, no token, no slot, no time
	q.Hear(digest(said, id)+" "+said, nil)
	if n, _ := q.TakeNews(ticket, at(0)); !n.AskAgain || n.Hint != nil {
		t.Fatalf("%+v, want to ask again", n)
	}
	q.Hear(digest(said, id)+" "+said, nil)
	q.Put(ticket, id, protocol.Answer{Ticket: 7, First: true, Remaining: time.Minute}, at(0), at(0))
	if n, _ := q.TakeNews(ticket, at(0)); !n.AskAgain {
		t.Errorf("%+v, want to ask again", n)
	}
	q.Hear(digest(said, id)+" "+said, nil)
	q.Put(ticket, id, protocol.Answer{Ticket: 8, First: true, Remaining: time.Minute}, at(0), at(0)) // another ticket
	if n, _ := q.TakeNews(ticket, at(0)); n.Any() {
		t.Errorf("%+v, want no news of another ticket", n)
	}
}
