//go:build unix

package demo

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/timeline"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/shown"
)

// result is a write as the final ledger shows it.
type result struct {
	report
	act     int
	worker  string
	late    bool // by the worker that was stopped
	balance int64
}

func (r result) refused() bool { return r.Says == saysRefused }

// pace is how long the workers take for their work: slow enough to follow, and short as a whole.
type pace struct {
	thinking time.Duration // between A's read and its stop
	working  time.Duration // of every other worker, while it holds the lock
	overlap  time.Duration // the end of working, while the next one already waits
	pause    time.Duration // before A is continued
}

func (o options) pace() pace {
	others := time.Duration(o.workers - 1)
	return pace{
		thinking: min(o.ttl/4, 400*time.Millisecond),
		working:  min(max(o.ttl/3, 120*time.Millisecond), 500*time.Millisecond, 1600*time.Millisecond/others),
		overlap:  60 * time.Millisecond,
		pause:    min(o.ttl/4, 300*time.Millisecond),
	}
}

// scene is an act while it is played.
type scene struct {
	*performance
	pace
	act     int
	fenced  bool
	rows    []*timeline.Row
	balance *timeline.Row
}

// act plays the story once: A takes the lock, reads, and is stopped; its lease ends; the others take the lock in turn
// and write; A continues and writes what it computed long ago.
func (p *performance) act(ctx context.Context, number int, fenced bool) error {
	s := &scene{performance: p, pace: p.pace(), act: number, fenced: fenced, balance: &timeline.Row{Label: "balance"}}
	title := fmt.Sprintf("ACT %d, %s", number, actTitle(fenced))
	p.stage.print("\n%s  %s starts at %d", p.stage.style(styleTitle, title), p.account, opening)
	p.stage.print("deposits: %s", p.list())
	if err := setBalance(ctx, p.pool, p.schema, p.account, opening); err != nil {
		return err
	}
	line := &timeline.Timeline{}
	for i, name := range p.names {
		s.rows = append(s.rows, &timeline.Row{Label: letter(i) + " " + name})
	}
	line.Rows = append(append(line.Rows, s.rows...), s.balance)
	p.stage.open(line)
	defer p.stage.shut()
	s.balance.Note(0, timeline.Plain, fmt.Sprint(opening))

	if err := s.firstHolds(ctx); err != nil {
		return err
	}
	leaseEnds, err := s.firstIsStopped(ctx)
	if err != nil {
		return err
	}
	for i := 1; i < p.workers; i++ {
		if err := s.otherWorks(ctx, i, leaseEnds); err != nil {
			return err
		}
	}
	if err := passes(ctx, s.pause); err != nil {
		return err
	}
	if err := s.firstGoesOn(ctx); err != nil {
		return err
	}
	if fenced {
		if err := s.firstStartsOver(ctx); err != nil {
			return err
		}
	}
	return s.finish(ctx)
}

func actTitle(fenced bool) string { return shown.Either(fenced, "with the fence", "without the fence") }

func (p *performance) list() string {
	var all []string
	for i, d := range p.deposits {
		all = append(all, fmt.Sprintf("%s +%d", letter(i), d))
	}
	return strings.Join(all, "  ")
}

func (s *scene) firstHolds(ctx context.Context) error {
	granted, err := s.players[0].ask(ctx, command{Do: doAcquire}, saysGranted)
	if err != nil {
		return err
	}
	return s.holds(ctx, 0, granted.Token, fmt.Sprintf("holds the lock: token %d, lease %v", granted.Token, s.ttl))
}

// holds tells that a worker has the lock, and lets it read.
func (s *scene) holds(ctx context.Context, i int, token int64, what string) error {
	s.stage.tell(letter(i), what, func(now time.Duration) {
		s.rows[i].Add(timeline.Span{Kind: timeline.Held, From: now, To: timeline.Open,
			Text: fmt.Sprintf("token %d", token), Short: fmt.Sprint(token)})
	})
	read, err := s.players[i].ask(ctx, command{Do: doRead}, saysRead)
	if err != nil {
		return err
	}
	s.stage.tell(letter(i), fmt.Sprintf("reads %d and computes %d + %d = %d", read.Read, read.Read, s.deposits[i],
		read.Read+s.deposits[i]), nil)
	return nil
}

// firstIsStopped stops A in the middle of its work. Nothing renews its lease from then on, so its end is known.
func (s *scene) firstIsStopped(ctx context.Context) (leaseEnds time.Duration, err error) {
	if err := passes(ctx, s.thinking); err != nil {
		return 0, err
	}
	if err := s.players[0].signal(syscall.SIGSTOP); err != nil {
		return 0, err
	}
	info, err := s.admin.Get(ctx, s.account)
	if err != nil {
		return 0, err
	}
	s.stage.tell("A", fmt.Sprintf("is stopped before it writes (SIGSTOP); its lease has %v left",
		info.Remaining.Round(time.Millisecond)), func(now time.Duration) {
		leaseEnds = now + info.Remaining
		s.rows[0].Add(timeline.Span{Kind: timeline.HeldStopped, From: now, To: leaseEnds})
		s.rows[0].Add(timeline.Span{Kind: timeline.Stopped, From: leaseEnds, To: timeline.Open})
	})
	return leaseEnds, s.asks(1)
}

func (s *scene) asks(i int) error {
	if err := s.players[i].send(command{Do: doAcquire}); err != nil {
		return err
	}
	s.stage.tell(letter(i), "asks for the lock and waits", func(now time.Duration) {
		s.rows[i].Add(timeline.Span{Kind: timeline.Waiting, From: now, To: timeline.Open})
	})
	return nil
}

// otherWorks is the turn of a worker that has already asked for the lock.
func (s *scene) otherWorks(ctx context.Context, i int, leaseEnds time.Duration) error {
	if i == 1 {
		if err := passes(ctx, leaseEnds-s.stage.elapsed()); err != nil {
			return err
		}
		s.stage.tell("A", "its lease has ended; A does not know, it is stopped", nil)
	}
	granted, err := s.players[i].expect(ctx, 2*s.ttl+patience, saysGranted)
	if err != nil {
		return err
	}
	if err := s.holds(ctx, i, granted.Token, fmt.Sprintf("holds the lock: token %d", granted.Token)); err != nil {
		return err
	}
	if err := passes(ctx, s.working-s.overlap); err != nil {
		return err
	}
	if i+1 < s.workers {
		if err := s.asks(i + 1); err != nil {
			return err
		}
	}
	if err := passes(ctx, s.overlap); err != nil {
		return err
	}
	return s.writesAndReleases(ctx, i)
}

func (s *scene) writesAndReleases(ctx context.Context, i int) error {
	p := s.players[i]
	wrote, err := p.ask(ctx, s.write(i), saysWrote, saysInvalid, saysRefused)
	if err != nil {
		return err
	}
	if wrote.Says != saysWrote {
		return fmt.Errorf("%w: worker %s lost its own lease: %s (this machine is too busy for leases of %v)", errStory,
			p.name, wrote.Message, s.ttl)
	}
	if err := s.record(ctx, i, wrote, false); err != nil {
		return err
	}
	s.stage.tell(p.name, fmt.Sprintf("writes %d and releases the lock", wrote.Wrote), func(now time.Duration) {
		s.rows[i].End(now)
		s.rows[i].Note(now, timeline.Good, timeline.Written)
		s.balance.Note(now, timeline.Good, fmt.Sprint(wrote.Wrote))
	})
	_, err = p.ask(ctx, command{Do: doRelease}, saysReleased)
	return err
}

func (s *scene) write(i int) command {
	return command{Do: doWrite, Amount: s.deposits[i], Act: s.act, Fenced: s.fenced}
}

// record keeps a write for the ledger, with the resulting balance.
func (s *scene) record(ctx context.Context, i int, r report, late bool) error {
	balance, err := readBalance(ctx, s.pool, s.schema, s.account)
	s.results = append(s.results, result{report: r, act: s.act, worker: letter(i), late: late, balance: balance})
	return err
}

// firstGoesOn continues A, whose next step is to write: its computing is done.
func (s *scene) firstGoesOn(ctx context.Context) error {
	a := s.players[0]
	if err := a.send(s.write(0)); err != nil {
		return err
	}
	s.stage.tell("A", shown.Either(s.fenced, "is continued (SIGCONT) where it stopped",
		"is continued (SIGCONT); like most programs it checks nothing now"), nil)
	if err := a.signal(syscall.SIGCONT); err != nil {
		return err
	}
	r, err := a.expect(ctx, patience, saysInvalid, saysWrote, saysRefused)
	if err != nil {
		return err
	}
	if r.Says == saysInvalid {
		s.stage.tell("A", "lease.Valid() is false at once; it writes nevertheless:", nil)
		if r, err = a.expect(ctx, patience, saysWrote, saysRefused); err != nil {
			return err
		}
	}
	if err := s.record(ctx, 0, r, true); err != nil {
		return err
	}
	if r.Says == saysRefused {
		s.stage.tell("A",
			fmt.Sprintf("writes %d: %s", r.Wrote, s.stage.style(styleBad, "REFUSED by the database, SQLSTATE "+
				r.State)), func(now time.Duration) {
				s.rows[0].End(now)
				s.rows[0].Note(now, timeline.Bad, timeline.Refused)
			})
		s.stage.tell("", s.stage.style(styleBad, r.Message), nil)
		return nil
	}
	lost := shown.Either(s.workers == 2, fmt.Sprintf("B's deposit of %d is DESTROYED", s.deposits[1]),
		fmt.Sprintf("deposits of %d are DESTROYED", s.total()-opening-s.deposits[0]))
	s.stage.tell("A", fmt.Sprintf("writes %d, which is accepted: %s", r.Wrote, s.stage.style(styleBad, lost)),
		func(now time.Duration) {
			s.rows[0].End(now)
			s.rows[0].Note(now, timeline.Bad, timeline.Destroyed)
			s.balance.Note(now, timeline.Bad, fmt.Sprint(r.Wrote))
		})
	return nil
}

// firstStartsOver is what a refused worker does: it takes the lock again and reads again.
func (s *scene) firstStartsOver(ctx context.Context) error {
	granted, err := s.players[0].ask(ctx, command{Do: doAcquire}, saysGranted)
	if err != nil {
		return err
	}
	again := fmt.Sprintf("starts over: holds the lock again, token %d", granted.Token)
	if err := s.holds(ctx, 0, granted.Token, again); err != nil {
		return err
	}
	if err := passes(ctx, s.working); err != nil {
		return err
	}
	return s.writesAndReleases(ctx, 0)
}

func (s *scene) finish(ctx context.Context) error {
	balance, err := readBalance(ctx, s.pool, s.schema, s.account)
	if err != nil {
		return err
	}
	accepted, err := countWrites(ctx, s.pool, s.schema, s.act)
	if err != nil {
		return err
	}
	s.outcomes = append(s.outcomes, outcome{balance: balance, accepted: accepted})
	s.stage.shut()
	verdict := s.stage.style(styleBad, fmt.Sprintf("%s WRONG: it must be %d", timeline.Refused, s.total()))
	if balance == s.total() {
		verdict = s.stage.style(styleGood, fmt.Sprintf("%s right", timeline.Written))
	}
	s.stage.print("The balance is %d  %s", balance, verdict)
	return nil
}

// total is the balance with every deposit in it.
func (p *performance) total() int64 {
	sum := int64(opening)
	for _, d := range p.deposits {
		sum += d
	}
	return sum
}

// passes waits for the time that the work takes.
func passes(ctx context.Context, d time.Duration) error {
	if !pause.Exactly(ctx, d) {
		return ctx.Err()
	}
	return nil
}
