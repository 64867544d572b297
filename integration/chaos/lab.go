//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/load"
)

// lab is one run.
type lab struct {
	options
	screen   *screen
	injected *history.Faults
	judge    *check.Judge
	evidence *evidence
	cluster  *cluster.Cluster
	patroni  *cluster.Patroni // which keeps the cluster, or nil
	outages  outages
	eye      *eye
	crew     []*member
	began    time.Time
	server   string // its version

	endurance endurance

	calm       sync.RWMutex // faults hold it for reading; nothing is injected while it is held for writing
	turnsTaken sync.Mutex
	turns      map[string]int // of the workers, by what they are ordered to do

	broken chan error // the laboratory itself cannot go on
	enough chan struct{}
	once   sync.Once
}

// result is what a run has found.
type result struct {
	violations int
	folder     string   // of the evidence, when there is any
	idle       []string // faults that have done nothing
}

// run is the whole of it. Whatever way it returns, it leaves nothing but the evidence of violations.
func run(ctx context.Context, o options, s *screen, problems io.Writer) (_ result, err error) {
	l := &lab{options: o, screen: s, injected: &history.Faults{}, broken: make(chan error, 1),
		enough: make(chan struct{}), began: time.Now(), endurance: newEndurance()}
	if l.evidence, err = openEvidence(problems, l.violated, o.keep); err != nil {
		return result{}, err
	}
	defer func() { err = errors.Join(err, l.evidence.close()) }()
	l.judge = check.New(l.injected, l.evidence.violation, l.evidence.line)
	s.say("seed %d, %d workers with %d goroutines each, %v of faults", o.seed, o.workers, o.goroutines, o.duration)
	err = l.live(ctx)
	if err == nil && ctx.Err() == nil || l.evidence.count() > 0 {
		summary := l.summary()
		l.evidence.write("summary.txt", summary)
		s.print(summary)
		if l.report != "" {
			err = errors.Join(err, l.writeReport())
		}
	}
	return result{l.evidence.count(), l.evidence.kept(), l.idle()}, err
}

// violated hears of every violation.
func (l *lab) violated(first bool) {
	if first {
		l.screen.say("the first violation after %v", time.Since(l.began).Round(time.Millisecond))
	}
	if l.untilViolation {
		l.once.Do(func() { close(l.enough) })
	}
}

// live starts everything, injects faults, and brings everything to its end.
func (l *lab) live(ctx context.Context) (err error) {
	if err = l.startCluster(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.cluster.Stop()) }()
	defer l.keepLogs()
	l.screen.say("%s", l.cluster.Description())
	l.server, _, _ = strings.Cut(l.cluster.Description(), " from ")
	if l.eye, err = openEye(ctx, l.cluster, l.judge); err != nil {
		return err
	}
	defer l.eye.close()
	if l.wantsStandby() {
		if err := l.cluster.BuildStandby(ctx); err != nil {
			return err
		}
	}
	defer l.dismiss()
	watching, blind := context.WithCancel(ctx)
	var eyes sync.WaitGroup
	// before the workers: how soon the server answers is known from their first call on
	eyes.Go(func() { l.eye.watch(watching) })
	eyes.Go(func() { l.progress(watching) })
	defer eyes.Wait()
	defer blind()
	if err := l.hire(ctx); err != nil {
		return err
	}
	if err := l.inject(ctx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return l.finish(ctx)
}

// keepLogs keeps the servers' logs with the evidence.
func (l *lab) keepLogs() {
	for i, log := range l.cluster.Logs() {
		l.evidence.write(fmt.Sprintf("server%d.log", i), log)
	}
}

func (l *lab) committed(c history.Commit) {
	l.judge.Commit(c)
	if c.Mark > 0 {
		l.eye.marked.Store(c.Mark)
	}
}

// giveUp ends the run: the laboratory cannot go on.
func (l *lab) giveUp(err error) {
	select {
	case l.broken <- err:
	default:
	}
}

// hire starts the workers: half without prepared statements, at three isolation levels.
func (l *lab) hire(ctx context.Context) error {
	levels := []string{"read committed", "serializable", "repeatable read"}
	for n := range l.workers {
		line, connString, err := l.way(n)
		if err != nil {
			return err
		}
		m := &member{n: n, line: line, hear: l.heard, ended: l.ended}
		m.setup = func(who int64) load.Setup {
			return load.Setup{Who: who, Seed: l.seed, URL: connString, Label: label(who),
				Exec: n%2 == 1, Isolation: levels[n%len(levels)],
				SessionTTL: l.sessionTTL, Goroutines: l.goroutines, Pace: l.pace}
		}
		l.crew = append(l.crew, m)
		if err := m.start(); err != nil {
			return err
		}
	}
	for _, m := range l.crew {
		now := m.now()
		if _, came := now.await(ctx, now.ready, time.Minute); !came {
			return fmt.Errorf("worker %d did not begin: %s", m.n, now.stderr)
		}
	}
	return nil
}

func (l *lab) heard(e history.Event) {
	l.endurance.heard(e)
	if e.Kind == history.Measured {
		return // there are many: not in the history
	}
	l.judge.Event(e)
	l.outages.event(e)
}

// ended hears of the end of a process. What it wrote to standard error is a panic, or a report of the race detector.
func (l *lab) ended(x *life) {
	if !x.isExpected() {
		l.judge.Blame("errors", fmt.Sprintf("worker %s has ended by itself", label(x.who)))
		l.judge.Died(x.who)
	}
	if said := x.stderr.String(); said != "" {
		l.judge.Blame("errors", fmt.Sprintf("worker %s has written to standard error: %s", label(x.who), said))
	}
}

// dismiss ends what is left of the workers, and their lines.
func (l *lab) dismiss() {
	for _, m := range l.crew {
		m.kill()
		_ = m.line.Close()
	}
}

func (l *lab) wantsStandby() bool {
	return slices.ContainsFunc(l.faults, func(f fault) bool { return f.standby })
}

// inject runs the faults for as long as was asked for, or until something ends the run.
func (l *lab) inject(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, l.duration)
	defer stop()
	var lanes sync.WaitGroup
	defer lanes.Wait()
	for _, where := range lanesOf(l.faults) {
		if where == serverLane && l.patroni != nil {
			lanes.Go(func() { l.rounds(ctx) })
			continue
		}
		lanes.Go(func() { l.drive(ctx, where) })
	}
	lanes.Go(func() { l.keepCalm(ctx) })
	if l.report != "" {
		lanes.Go(func() { l.sample(ctx) })
		lanes.Go(func() { l.tidy(ctx) })
	}
	select {
	case <-ctx.Done():
	case <-l.enough:
		stop()
	case err := <-l.broken:
		stop()
		return err
	}
	return nil
}

// finish ends the calls, looks at what is left, ends the clients, and looks again.
func (l *lab) finish(ctx context.Context) error {
	l.screen.say("faults are over; every worker works, and then every call ends")
	for _, m := range l.crew {
		l.endurance.recovery.Never(atTheEnd, m.n)
	}
	l.seesWork(ctx, workAgain)
	l.judgeGrowth()
	ends := func(do string, kind history.Kind, patience time.Duration) {
		said := make([]<-chan history.Event, len(l.crew))
		for i, m := range l.crew {
			said[i] = m.now().next(kind)
			if do == load.Close {
				m.now().expect()
			}
			_ = m.now().tell(load.Order{Do: do})
		}
		for i, m := range l.crew {
			if _, came := m.now().await(ctx, said[i], patience); !came && ctx.Err() == nil {
				l.judge.Blame("stuck", fmt.Sprintf("worker %s was told to %s and has not come to it in %v",
					label(m.now().who), do, patience))
			}
		}
	}
	ends(load.Drain, history.Drained, 60*time.Second)
	l.endurance.recovery.End()
	if err := l.lookForLeftovers(ctx, l.longestTTL()+2*time.Second); err != nil {
		return err
	}
	ends(load.Close, history.Closed, 40*time.Second)
	if err := l.lookForSessions(ctx); err != nil {
		return err
	}
	if !l.eye.flush(ctx) && ctx.Err() == nil {
		return errors.New("the order of commits does not come to its end")
	}
	state, err := l.cluster.State(ctx)
	if err != nil {
		return err
	}
	l.judge.Finish(state, l.cluster.Logs())
	return ctx.Err()
}

// alive says which labels are of processes that were not killed.
func (l *lab) alive(holder string) bool {
	return slices.ContainsFunc(l.crew, func(m *member) bool { return owns(label(m.now().who), holder) })
}

// longestTTL is how long what could not be released runs on.
func (l *lab) longestTTL() time.Duration {
	if l.patroni != nil {
		return slices.Max(keepTTLs)
	}
	return crowdTTL
}

// lookForLeftovers waits until no call holds anything or is queued: every call has returned a while ago.
func (l *lab) lookForLeftovers(ctx context.Context, patience time.Duration) (err error) {
	var look history.Look
	for deadline := time.Now().Add(patience); ctx.Err() == nil; wait(ctx, 100*time.Millisecond) {
		if look, err = l.eye.look(ctx); err == nil {
			look.Tickets = slices.DeleteFunc(look.Tickets, func(t history.Ticket) bool {
				return !t.Alive || !l.alive(t.Label)
			})
			look.Holders = slices.DeleteFunc(look.Holders, func(h history.Holder) bool { return !l.alive(h.Label) })
			if len(look.Tickets)+len(look.Holders) == 0 {
				return nil
			}
		}
		if time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("look for leftovers: %w", err)
	}
	if n := len(look.Tickets); n > 0 {
		x := look.Tickets[0]
		l.judge.Blame("leftovers", fmt.Sprintf("%d tickets are left %v after every call has returned, the first of "+
			"lock %q and %s", n, patience, x.Name, x.Label), x.Name)
	}
	if n := len(look.Holders); n > 0 {
		x := look.Holders[0]
		l.judge.Blame("leftovers", fmt.Sprintf("%d locks are held %v after every call has returned, the first of "+
			"them %q by %s", n, patience, x.Name, x.Label), x.Name)
	}
	return nil
}

// lookForSessions checks that no session counts as alive when its client has been closed for longer than its TTL, and,
// if that was asked for, that nothing is left in the tables when the dead have been swept away.
func (l *lab) lookForSessions(ctx context.Context) error {
	left, err := l.awaitLeftovers(ctx, max(l.sessionTTL, load.ThrongSession)+2*time.Second,
		func(left cluster.Leftovers) bool {
			return len(left.Alive) == 0
		})
	if err != nil {
		return err
	}
	if len(left.Alive) > 0 {
		l.judge.Blame("leftovers", fmt.Sprintf("%d sessions still count as alive although every client is closed: %q",
			len(left.Alive), left.Alive))
	}
	if !l.sweep {
		l.screen.say("left for a sweep, which takes what has been dead for a minute: %d tickets, %d sessions",
			left.Tickets, left.Sessions)
		return nil
	}
	const minute = 62 * time.Second
	l.screen.say("waiting for %v, to sweep %d tickets and %d sessions away", minute, left.Tickets, left.Sessions)
	wait(ctx, minute)
	left, err = l.awaitLeftovers(ctx, 10*time.Second, func(left cluster.Leftovers) bool {
		_ = l.cluster.Exec(ctx, `SELECT pglock.sweep()`)
		return left.Tickets == 0 && left.Sessions == 0
	})
	if err == nil && (left.Tickets > 0 || left.Sessions > 0) {
		l.judge.Blame("leftovers", fmt.Sprintf("%d tickets and %d sessions are left a minute after every client was "+
			"closed, and a sweep", left.Tickets, left.Sessions))
	}
	return err
}

// awaitLeftovers reads what is left until that is enough, or the time is over.
func (l *lab) awaitLeftovers(ctx context.Context, patience time.Duration,
	enough func(cluster.Leftovers) bool) (left cluster.Leftovers, err error) {
	for deadline := time.Now().Add(patience); ctx.Err() == nil; wait(ctx, 50*time.Millisecond) {
		left, err = l.cluster.Leftovers(ctx)
		if err == nil && enough(left) || time.Now().After(deadline) {
			break
		}
	}
	if err != nil {
		return left, fmt.Errorf("read what is left in the tables: %w", err)
	}
	return left, nil
}
