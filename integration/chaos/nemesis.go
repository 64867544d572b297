//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// fault is something that can be done to the workers, to their lines, or to the server.
type fault struct {
	name, about string
	lane        lane
	weight      int                  // how often, beside the others of its lane
	standby     bool                 // it needs one
	quiet       bool                 // it keeps nobody from the server
	moves       bool                 // another server takes over
	full        bool                 // it keeps everybody from connecting anew
	delays      time.Duration        // it may delay the end of a lease, or a grant, for so long
	choose      func(h *hit) *member // which worker is concerned; nil: any
	run         func(h *hit) error   // it may return errNothing
}

// errNothing is what a fault returns that has found nothing to do, or was kept from it.
var errNothing = errors.New("it has done nothing")

// lane is what goes on one after the other. What is in different lanes happens at the same time.
type lane string

const (
	serverLane lane = "server"
	useLane    lane = "use"
	crowdLane  lane = "crowds" // does not pause with the others, and comes seldom
	firstLane  lane = "workers"
	secondLane lane = "other workers" // the same faults as in firstLane
)

// allFaults in the order in which they are listed.
var allFaults = slices.Concat(processFaults, extendFaults, networkFaults, serverFaults, fullFaults, guardFaults,
	useFaults,
	openFaults, manyFaults)

// hit is one injection of a fault.
type hit struct {
	*lab
	ctx   context.Context // ends with the run
	rand  *rand.Rand
	m     *member       // in the lanes of workers, the one that is concerned
	front *waiting      // what it waits for, where the choice went by that
	ttl   time.Duration // of what it holds, where the choice went by that
	over  func()        // says that clients can recover, before the fault returns
}

// lanesOf are the lanes that the faults need.
func lanesOf(faults []fault) (lanes []lane) {
	for _, where := range []lane{serverLane, useLane, firstLane, secondLane, crowdLane} {
		if len(ofLane(faults, where)) > 0 {
			lanes = append(lanes, where)
		}
	}
	return lanes
}

func ofLane(faults []fault, where lane) []fault {
	if where == secondLane {
		where = firstLane
	}
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool { return f.lane != where })
}

// Calm comes every now and then, so that what is to happen within a second can be seen to.
const (
	stormy   = 15 * time.Second
	calmness = 6 * time.Second

	betweenCrowds = time.Minute // at most
)

// keepCalm holds back all faults for a while, again and again.
func (l *lab) keepCalm(ctx context.Context) {
	for {
		wait(ctx, stormy)
		if ctx.Err() != nil {
			return
		}
		l.calm.Lock()
		wait(ctx, settlesIn)
		l.isCalm(history.Now())
		wait(ctx, calmness-settlesIn)
		l.seesWork(ctx, workAgain)
		l.isCalm(0)
		l.calm.Unlock()
	}
}

// drive injects the faults of a lane, one after the other, in an order that the seed draws: each of them once, and then
// as often as their weights say.
func (l *lab) drive(ctx context.Context, where lane) {
	faults := ofLane(l.faults, where)
	number := uint64(slices.Index([]lane{serverLane, useLane, firstLane, secondLane, crowdLane}, where))
	untilEffect := l.oneRound && l.patroni == nil
	first := rand.New(rand.NewPCG(l.seed, number<<32-1)).Perm(len(faults))
	pause, calm := 1500*time.Millisecond, sync.Locker(l.calm.RLocker())
	if where == crowdLane {
		calm = &sync.Mutex{}
	}
	for n := 0; ctx.Err() == nil; n++ {
		r := rand.New(rand.NewPCG(l.seed, number<<32+uint64(n))) // what one fault draws does not move the next
		wait(ctx, upTo(r, pause))
		if where == crowdLane {
			pause = betweenCrowds
		}
		if untilEffect && n >= len(first) {
			faults = slices.DeleteFunc(faults, func(f fault) bool { return l.endurance.effects(f.name) > 0 })
			if len(faults) == 0 {
				return
			}
		}
		total := 0
		for _, f := range faults {
			total += f.weight
		}
		drawn := r.IntN(total)
		f := faults[slices.IndexFunc(faults, func(f fault) bool { drawn -= f.weight; return drawn < 0 })]
		if n < len(first) {
			f = faults[first[n]]
		}
		calm.Lock()
		if ctx.Err() == nil {
			l.hit(ctx, f, r)
		}
		calm.Unlock()
		if untilEffect && len(l.idle()) == 0 {
			l.once.Do(func() { close(l.enough) })
		}
	}
}

// idle are the faults that have not done anything yet.
func (l *lab) idle() (names []string) {
	for _, f := range l.faults {
		if l.endurance.effects(f.name) == 0 {
			names = append(names, f.name)
		}
	}
	return names
}

// hit injects one fault and writes it down.
func (l *lab) hit(ctx context.Context, f fault, r *rand.Rand) {
	h := &hit{lab: l, ctx: ctx, rand: r}
	note := history.Fault{Name: f.name, Worker: history.Everybody, Quiet: f.quiet, Full: f.full, Moves: f.moves,
		Delays: f.delays}
	if f.lane == firstLane {
		h.m = l.crew[r.IntN(len(l.crew))]
		if f.choose != nil {
			h.m = f.choose(h)
		}
		if !h.m.faults.TryLock() {
			return // the other lane has it
		}
		defer h.m.faults.Unlock()
		note.Worker = h.m.n
	}
	l.evidence.line(fmt.Sprintf("%s fault %s of worker %d begins", sayNow(), f.name, note.Worker))
	ended := l.injected.Began(note)
	passed := l.endurance.began(note, l.operations(), l.evidence.count())
	h.over = sync.OnceFunc(func() { l.endurance.recovery.Over(note) })
	err := f.run(h)
	h.over()
	passed(l.operations(), l.evidence.count(), !errors.Is(err, errNothing))
	ended()
	l.evidence.line(fmt.Sprintf("%s fault %s of worker %d has ended, %v", sayNow(), f.name, note.Worker, err))
	if err != nil && !errors.Is(err, errNothing) && ctx.Err() == nil {
		l.giveUp(fmt.Errorf("fault %s: %w", f.name, err))
	}
}

// active are the faults of this moment.
func (l *lab) active() (names []string) {
	now := history.Now()
	for _, f := range l.injected.Between(now, now) {
		if f.End == 0 {
			names = append(names, f.Name)
		}
	}
	return names
}

// upTo draws a time below d; between draws one that is not below low.
func upTo(r *rand.Rand, d time.Duration) time.Duration { return time.Duration(r.Int64N(int64(d))) }

func between(r *rand.Rand, low, high time.Duration) time.Duration { return low + upTo(r, high-low) }

// wait is the pace of the nemesis.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func sayNow() string { return check.SayTime(history.Now()) }
