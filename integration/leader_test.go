package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// aCandidate is a candidate's process, with a network line of its own.
type aCandidate struct {
	*process
	label string
	line  *line
}

// spell is the time in which a leader's work had a live context, by the wall clock of this machine.
type spell struct {
	label      string
	token      int64
	from, till time.Time
	asleep     time.Duration // its process did not run for so long, near the end
	stopped    bool          // by the test
}

// said is what a candidate has reported.
type said struct {
	*aCandidate
	report
}

// anElection is several candidates for the lock x, and what they have reported.
type anElection struct {
	t       *testing.T
	url     string
	ttl     time.Duration
	reports chan said
	spells  []*spell // in the order of their beginnings
	late    []said   // what became of writes of deposed leaders
	count   int
}

// newActs makes the table to which leaders write.
func newActs(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `CREATE TABLE acts (n bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL,
		at timestamptz NOT NULL DEFAULT clock_timestamp())`)
}

// join starts a candidate.
func (e *anElection) join() *aCandidate {
	e.t.Helper()
	e.count++
	c := &aCandidate{label: fmt.Sprintf("candidate %d", e.count), line: newLine(e.t, e.url)}
	c.process = startProcess(e.t, "candidate", c.line.url, candidateVariable+"="+c.label,
		candidateTTLVariable+"="+e.ttl.String())
	go func() {
		for r := range c.reports {
			e.reports <- said{c, r}
		}
	}()
	return c
}

// await reads reports until one fits.
func (e *anElection) await(what string, fits func(said) bool) said {
	e.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case s := <-e.reports:
			e.note(s)
			if fits(s) {
				return s
			}
		case <-timeout:
			e.t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

func (e *anElection) note(s said) {
	switch s.Event {
	case "leads":
		e.spells = append(e.spells, &spell{label: s.label, token: s.Token, from: s.At})
	case "ended":
		e.spell(s.Token).till, e.spell(s.Token).asleep = s.At, s.Gap
	case "late":
		e.late = append(e.late, s)
	case "error":
		e.t.Errorf("%s: %s", s.label, s.Err)
	}
}

func (e *anElection) spell(token int64) *spell {
	i := slices.IndexFunc(e.spells, func(s *spell) bool { return s.token == token })
	if i < 0 {
		e.t.Fatalf("no leader had token %d", token)
	}
	return e.spells[i]
}

// next waits until another candidate than the last leads.
func (e *anElection) next() said {
	e.t.Helper()
	return e.await("the next leader", func(s said) bool { return s.Event == "leads" })
}

// The leader is killed, stopped for longer than its lease, cut off, and asked to resign, again and again. The
// contexts under which leaders work never overlap, except where a process did not run; and whatever a deposed leader
// tries, its rows are not there: the tokens of the guarded table never go back, and none of its rows was written
// after the next leader's grant.
func TestAtNoMomentTwoLeadersAct(t *testing.T) {
	pgtest.Long(t, "TestI7_DeadlineIsTheTTLOrWhatIsLeftLessAMargin", "TestNobodyElseLeadsBeforeTheWorkHasStopped")
	t.Parallel() // most of it is waiting for leases to end
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	newActs(t, look)
	must.Do(t, fencedstore.GuardTable(t.Context(), db.Pool(t), "acts", fencedstore.WithTableResource("x")))
	e := &anElection{t: t, url: db.URL(), ttl: 3 * time.Second, reports: make(chan said, 1024)}
	members := make(map[string]*aCandidate)
	for range 3 {
		c := e.join()
		members[c.label] = c
	}
	now := e.next()
	took := make(map[string][]time.Duration)
	refused := 0
	rounds := 2
	if pgtest.LargeLoads {
		rounds = 6 // each takes a quarter of a minute
	}
	for range rounds {
		for _, how := range []string{"killed", "resigned", "stopped", "cut off", "ended"} {
			c := now.aCandidate
			awaitQueue(t, look, "x", 2)
			pgtest.Eventually(t, "the leader to write", func() bool {
				return one[bool](t, look, `SELECT EXISTS (SELECT FROM acts WHERE token = $1)`, now.Token)
			})
			if pgtest.LargeLoads {
				time.Sleep(rand.N(e.ttl)) // so that it comes at any moment between two renewals
			}
			began := time.Now()
			switch how {
			case "killed":
				c.signal(syscall.SIGKILL)
				e.spell(now.Token).till = time.Now()
			case "resigned":
				c.signal(syscall.SIGUSR1)
			case "stopped":
				c.signal(syscall.SIGSTOP)
				e.spell(now.Token).stopped = true
			case "cut off":
				c.line.silence(t, "upstream")
				c.line.silence(t, "downstream")
			case "ended":
				c.signal(syscall.SIGTERM)
			}
			next := e.next()
			took[how] = append(took[how], next.At.Sub(began))
			if next.label == c.label || next.Token <= now.Token {
				t.Errorf("%s with token %d follows %s with token %d", next.label, next.Token, c.label, now.Token)
			}
			switch how {
			case "killed", "ended":
				delete(members, c.label)
				another := e.join()
				members[another.label] = another
			case "stopped", "cut off":
				c.signal(syscall.SIGCONT)
				c.line.mend()
				e.await("the late write of the old leader", func(s said) bool {
					return s.Event == "late" && s.Token == now.Token
				})
				refused++
			}
			now = next
		}
	}
	now.aCandidate.signal(syscall.SIGTERM)
	e.await("the last leader to end", func(s said) bool { return s.Event == "ended" && s.Token == now.Token })
	for how, all := range took {
		slices.Sort(all)
		t.Logf("%s: the next leader worked %v (median of %d, from %v to %v) later; the TTL is %v",
			how, all[len(all)/2], len(all), all[0], all[len(all)-1], e.ttl)
	}

	slices.SortFunc(e.spells, func(a, b *spell) int { return cmp.Compare(a.token, b.token) })
	for i, s := range e.spells[1:] {
		before := e.spells[i]
		if before.till.IsZero() {
			t.Errorf("%+v has not ended", before)
		}
		over := before.till.Sub(s.from)
		if !before.stopped {
			t.Logf("token %d ended %v before token %d began", before.token, -over, s.token)
		}
		if over > before.asleep && !before.stopped {
			t.Errorf("two leaders had a live context for %v: %+v, %+v", over, before, s)
		}
	}
	for _, s := range e.late {
		if !slices.Contains([]string{"LK001", "LK002", "LK003"}, s.Err) {
			t.Errorf("the server answered %q to the late write of %s with token %d", s.Err, s.label, s.Token)
		}
	}
	if len(e.late) < refused {
		t.Errorf("%d late writes of %d deposed leaders", len(e.late), refused)
	}
	wantCount(t, look, 0, "I3: the tokens of the guarded table go back %d times", `SELECT count(*) FROM (
			SELECT token, lag(token) OVER (ORDER BY n) AS before FROM acts) a WHERE token < before`)
	wantCount(t, look, 0, "I4: %d rows were written by a deposed leader",
		`SELECT count(*) FROM acts a WHERE EXISTS (SELECT FROM public.grant_log g
			WHERE g.new_token > a.token AND g.new_expires > '-infinity' AND g.granted_at <= a.at)`)
	leaders := one[int](t, look, `SELECT count(DISTINCT token) FROM acts`)
	t.Logf("%d leaders wrote %d rows; %d late writes were refused", leaders,
		one[int](t, look, `SELECT count(*) FROM acts`), len(e.late))
	if leaders < 5*rounds {
		t.Errorf("%d leaders have written, want %d", leaders, 5*rounds)
	}
	checkGrants(t, look)
}

// The named candidate is killed. While its session counts as alive it is granted the lock, and the next in the queue
// leads when its lease has ended; after that nobody of that name waits, and the leader goes on.
func TestHandOverToACandidateThatHasDied(t *testing.T) {
	pgtest.Long(t, "TestHandOverMakesTheNamedCandidateLead", "TestDeadWaitersArePassedOver")
	t.Parallel() // most of it is waiting for sessions and leases to end
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	e := &anElection{t: t, url: db.URL(), ttl: 2 * time.Second, reports: make(chan said, 1024)}
	newActs(t, look)
	c := newCandidate(t, newClient(t, db.Pool(t)), "x", leader.WithHolder("first"), leader.WithTTL(e.ttl))
	terms, over := make(chan context.Context), make(chan error, 1)
	ctx, leave := context.WithCancel(t.Context())
	defer func() { leave(); <-over }()
	go func() {
		over <- c.Run(ctx, func(ctx context.Context, _ *pglock.Lease) error {
			select {
			case terms <- ctx:
				<-ctx.Done()
			case <-ctx.Done():
			}
			return nil
		})
	}()
	term := <-terms
	queue := func(n int) (all []*aCandidate) {
		for i := range n {
			all = append(all, e.join())
			awaitQueue(t, look, "x", i+1)
		}
		return all
	}

	dead := queue(1)[0]
	dead.signal(syscall.SIGKILL)
	pgtest.Eventually(t, "the session of the dead candidate to be dead", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.list_waiters('x') WHERE NOT alive`) == 1
	})
	if err := c.HandOver(t.Context(), dead.label); !errors.Is(err, pglock.ErrNoWaiter) || term.Err() != nil {
		t.Errorf("HandOver to a candidate that is known to be dead: %v; the work: %v", err, term.Err())
	}
	look.exec(t, `DELETE FROM pglock.waiters`) // as sweep does, later

	others := queue(3)
	others[2].signal(syscall.SIGKILL)
	began := time.Now()
	must.Do(t, c.HandOver(t.Context(), others[2].label))
	next := e.next()
	took := next.At.Sub(began)
	t.Logf("the next leader worked %v after the hand-over to a dead candidate; the TTL is %v", took, e.ttl)
	if next.label != others[0].label || took < e.ttl || took > e.ttl+patience/2 {
		t.Errorf("%s led after %v, want %s after %v", next.label, took, others[0].label, e.ttl)
	}
	awaitQueue(t, look, "x", 2) // the other one, and the leader that handed over
}

func newCandidate(t *testing.T, client *pglock.Client, name string, opts ...leader.Option) *leader.Candidate {
	t.Helper()
	c := must.Get(leader.New(client, name, opts...))(t)
	return c
}
