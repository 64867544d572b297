//go:build unix

// Package check decides from the record whether the library has kept its promises. It does not know how the library
// works inside.
package check

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
)

// Violation is a promise that was not kept.
type Violation struct {
	Check    string // the name of the check
	What     string // one sentence
	At       history.Time
	Evidence []string // what it follows from
	Trail    []string // what happened to the locks and resources lately, oldest first
}

// Names of the checks, with what each of them concludes.
var Names = []struct{ Name, About string }{
	{"chain", "every write builds on the one before it: no update is lost, none is made on an old value"},
	{"stale token", "the tokens that write to a resource ascend, and none writes twice that was not allowed to"},
	{"outside its lease", "no write is committed after its lease was ended, or the lock was granted to another"},
	{"nil lost", "a write that was answered nil is there"},
	{"refused applied", "a write that was answered with an error other than \"unknown\" is not there"},
	{"tokens", "the tokens of a lock ascend from grant to grant, over all processes, crashes and promotions"},
	{"two tenures", "by the server's clock no two leases run at once that exclude each other, of a lock, or of a " +
		"subtree and what it covers"},
	{"two believers", "no two holders that exclude each other see Valid() at once, but for one whose lease was " +
		"broken or lost with a failover, up to its deadline"},
	{"lost for nothing", "no lease of a second or more runs out while its process runs, reaches the server, and is " +
		"answered soon; none of less beside thousands of others"},
	{"extension", "no lease runs out before its extension has, whatever becomes of its process and its connections"},
	{"overtaken", "no request for a subtree, or below one, is granted before one that it would exclude and that had " +
		"queued when it was asked for, above it or below, but for a hand-over"},
	{"held by nobody", "no lock stays held for more than a second after the call that it was granted to, or its " +
		"release, has returned"},
	{"waits for nobody", "no ticket stays in a queue for more than three seconds after its call has returned"},
	{"free but waited for", "no lock stays free for more than four seconds while somebody waits for it"},
	{"guards", "a table under guard refuses unfenced writes; a guard that was tampered with is named by who looks " +
		"for it, and can be repaired"},
	{"stuck", "every call comes back within its context, and some seconds for what is said to the server; a step of " +
		"a prune within two"},
	{"held up", "who queues, or ends its session, and leaves its transaction open, keeps nobody from renewing or " +
		"releasing for more than a second, or from breaking for more than five"},
	{"works again", "every worker is granted a lock and writes within three minutes after the last fault, in each " +
		"pause of the faults and at the end"},
	{"leftovers", "goroutines, heap, locks, tickets and sessions go back to nothing"},
	{"growth", "with --report: memory and goroutines of the workers that nobody kills, connections, tables and " +
		"indexes do not grow from the second third of the run to the last"},
	{"errors", "no error reaches a caller that nothing explains"},
	{"server log", "the server panics never, and reports no deadlock and no error that is a defect"},
}

// court is what all checks share.
type court struct {
	faults *history.Faults
	report func(Violation)
	line   func(string) // writes the history
	trail  []string     // its end, oldest first
}

const (
	trailLength = 30_000
	trailShown  = 80 // lines about one lock
)

// blame reports a violation about a lock or a resource, with what happened to it lately.
func (c *court) blame(check string, at history.Time, about []string, what string, evidence ...any) {
	v := Violation{Check: check, What: what, At: at}
	for _, e := range evidence {
		v.Evidence = append(v.Evidence, strings.Split(describe(e), "\n")...)
	}
	for _, line := range c.trail {
		if slices.ContainsFunc(about, func(name string) bool { return strings.Contains(line, quoted(name)) }) {
			v.Trail = append(v.Trail, line)
		}
	}
	v.Trail = v.Trail[max(0, len(v.Trail)-trailShown):]
	c.report(v)
}

// note adds to the trail. Names are in quotes.
func (c *court) note(line string) {
	if len(c.trail) == trailLength {
		c.trail = slices.Delete(c.trail, 0, trailLength/10)
	}
	c.trail = append(c.trail, line)
	c.line(line)
}

func quoted(name string) string { return `"` + name + `"` }

// Judge receives everything in the order in which it becomes known. It is safe for concurrent use.
type Judge struct {
	mu sync.Mutex
	*court
	wall history.Wall

	chains    chains
	answers   answers
	tokens    tokens
	tenures   tenures
	believers believers
	losses    losses
	usage     usage
	looks     looks
	trees     trees
	lastLook  history.Time
	answered  map[string]map[string]int // operations by kind and class, for the report
}

// New makes a judge. While it holds its mutex it reports violations, and every event as a line.
func New(faults *history.Faults, report func(Violation), line func(string)) *Judge {
	c := &court{faults: faults, report: report, line: line}
	j := &Judge{court: c, wall: history.ReadWall(), answered: make(map[string]map[string]int)}
	j.chains = chains{court: c, last: make(map[string]history.Link), lost: make(map[int64]bool)}
	j.answers = newAnswers(c)
	j.tokens = newTokens(c)
	j.tenures = newTenures(c, j.wall)
	j.believers = believers{court: c, asked: make(map[int64]history.Time), open: make(map[int64]*belief),
		past: make(map[string][]*belief), paths: make(paths)}
	j.losses = losses{court: c, since: make(map[int64]history.Event), until: make(map[int64]history.Time),
		last: make(map[int64]history.Time), late: make(map[int][]span)}
	j.usage = usage{of: make(map[place]*use), dead: make(map[int64]bool), calls: make(map[int64]*call),
		leases: make(map[int64]held)}
	j.trees = newTrees(c)
	j.looks = looks{court: c, usage: &j.usage, trees: &j.trees, suspects: make(map[string]suspect),
		blamed: make(map[string]bool)}
	return j
}

// Event hears what a worker says.
func (j *Judge) Event(e history.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if e.Kind == history.Late {
		j.line(sayEvent(e)) // there are many: not in the trail
		j.losses.event(e)
		return
	}
	j.note(sayEvent(e))
	j.count(e)
	j.answers.event(e)
	j.tokens.event(e)
	j.believers.event(e)
	j.losses.event(e)
	j.usage.event(e)
	j.trees.event(e)
	j.leftovers(e)
	j.errors(e)
	j.guards(e)
	if e.Kind == history.Stalled {
		// then the machine is busy, and not only this process waits
		if !j.faults.Disturbed(worker(e.Who), e.From, e.At, 0) {
			j.losses.answered(e.From, e.At)
		}
		j.faults.Was(history.Fault{Name: stalledName, Worker: int(e.Who / history.Lives), Begin: e.From, End: e.At})
	}
}

// Recorded beside the injected faults: this machine was too busy.
const (
	stalledName = "(a worker did not run)"
	lateName    = "(the server answered late)"
	lateAnswer  = 300 * time.Millisecond // of a look
	lateLook    = time.Second            // after the one before
)

// Died notes that a worker was killed: what it held runs out, and what it was about to report is unknown.
func (j *Judge) Died(who int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note(fmt.Sprintf("%s killed", sayWho(who)))
	j.believers.died(who)
	j.usage.died(who)
	j.trees.died(who)
}

// Commit notes a transaction, in the order of commits.
func (j *Judge) Commit(c history.Commit) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, v := range c.Versions {
		j.note(sayVersion(j.wall, c, v))
		j.tokens.version(v)
	}
	j.tenures.commit(c.Versions)
	for _, l := range c.Links {
		j.note(sayLink(j.wall, c, l))
		j.tenures.link(l, j.wall.Time(c.At))
		j.chains.link(l, j.wall.Time(c.At))
		j.answers.link(l, j.wall.Time(c.At))
	}
	if c.Mark != 0 {
		j.answers.marked(c.Mark)
	}
}

// Marking notes that a mark is about to be sent: whatever was answered before is committed before it.
func (j *Judge) Marking(n int64, at history.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.answers.marks[n] = at
}

// Marked notes for how long a mark was under way. It waits for the disk, as renewals do and looks do not.
func (j *Judge) Marked(from, to history.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.losses.answered(from, to)
}

// Breaking notes that an operator is about to break a lease, or the present holder's; call what it returns when that
// is done.
func (j *Judge) Breaking(name string) (done func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b := &breaking{name: name, begin: history.Now()}
	j.believers.breaks = append(j.believers.breaks, b)
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		b.end = history.Now()
		j.note(fmt.Sprintf("%s an operator has broken %q", sayTime(b.end), name))
	}
}

// Pruned notes that an operator has removed locks. Meanwhile perhaps nobody could renew: it must be short.
func (j *Judge) Pruned(from, to history.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if took := to.Sub(from); took > longestPrune && !j.faults.Disturbed(history.Everybody, from.Add(-settling), to,
		settling) {
		j.blame("stuck", to, nil, fmt.Sprintf("one step of a prune took %v", took))
	}
}

// Took notes that something was done for which others must not keep anybody waiting, and how it ended. It was done with
// a lease that there was since a moment: whatever was slow since then may have cost it.
func (j *Judge) Took(what string, since, from, to history.Time, most time.Duration, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	took := to.Sub(from)
	if err == nil && took <= most || j.losses.wasSlow(since, to) ||
		j.faults.Disturbed(history.Everybody, since.Add(-lossSettle), to, lossSettle) {
		return
	}
	j.blame("held up", to, nil, fmt.Sprintf("%s took %v, of %v at most, and ended with: %v", what, took, most, err))
}

// Promoted notes that a standby has taken over, before anybody reaches it.
func (j *Judge) Promoted(p history.Promotion) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note(fmt.Sprintf("%s a standby was promoted, lossy: %v; safe %s, dead %s", sayTime(p.Opened), p.Lossy,
		sayTime(p.Safe), sayTime(p.Dead)))
	j.answers.promoted(p)
	j.tokens.promoted(p)
	j.tenures.promoted(p)
	j.chains.promoted(p)
	j.believers.promotions = append(j.believers.promotions, p)
	j.trees.promoted()
	if p.Lossy {
		j.losses.went = append(j.losses.went, p)
	}
}

// Look hears what the server lists.
func (j *Judge) Look(l history.Look) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lastLook == 0 {
		j.lastLook = l.Began
	}
	if l.Ended.Sub(l.Began) > lateAnswer || l.Began.Sub(j.lastLook) > lateLook {
		j.faults.Was(history.Fault{Name: lateName, Worker: history.Everybody, Begin: j.lastLook, End: l.Ended})
	}
	j.lastLook = l.Ended
	j.losses.answered(l.Began, l.Ended)
	j.looks.look(l)
	j.trees.look(l)
}

// Finish receives the final state, when every worker has ended.
func (j *Judge) Finish(s history.State, logs []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.chains.finish(s)
	j.answers.finish(s)
	j.tokens.finish()
	j.losses.finish()
	for _, log := range logs {
		j.serverLog(log)
	}
}

// Blame reports what the laboratory itself has found out.
func (j *Judge) Blame(check, what string, about ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.blame(check, history.Now(), about, what)
}

// worker is the number of a process's worker.
func worker(who int64) int { return int(who / history.Lives) }

// longestPrune is how long one step of a prune may take.
const longestPrune = 2 * time.Second

// settling is how long clients may take after a fault to recover.
const settling = 2 * time.Second
