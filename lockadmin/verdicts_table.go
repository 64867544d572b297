package lockadmin

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// others names some of those that somebody waits for.
func (t tableLock) others() string {
	var all []string
	for _, pid := range t.waitsFor[:min(3, len(t.waitsFor))] {
		all = append(all, t.other(pid))
	}
	return strings.Join(all, ", ")
}

// other names one of them; 0 is a prepared transaction, as the server says it.
func (t tableLock) other(pid int) string {
	if pid == 0 {
		var names []string
		for _, w := range t.prepared() {
			names = append(names, process(w.Backend))
		}
		return cmp.Or(strings.Join(names, ", "), "a prepared transaction")
	}
	w := t.blocker(pid)
	return process(w.Backend) + shown.Either(w.writes, " (a fenced write)", "")
}

// blocker is one of them, as far as it was seen: of one that has ended meanwhile nobody knows a right that it takes.
func (t tableLock) blocker(pid int) inTheWay {
	if n := slices.IndexFunc(t.inTheWay, func(w inTheWay) bool { return w.PID == pid }); n >= 0 {
		return t.inTheWay[n]
	}
	return inTheWay{Backend: Backend{PID: pid, MayEnd: true}}
}

// prepared are the prepared transactions among them, as far as they are known.
func (t tableLock) prepared() (found []inTheWay) {
	for _, w := range t.inTheWay {
		if w.Prepared != "" {
			found = append(found, w)
		}
	}
	return found
}

// last reports whether the others are to be ended first: t has changed something, or they keep everybody out, too.
func (t tableLock) last() bool {
	return t.holds || slices.ContainsFunc(t.inTheWay, func(w inTheWay) bool { return w.closes })
}

// cause names whoever is to be ended first.
func (t tableLock) cause() string {
	if len(t.waitsFor) > 0 && t.last() {
		return t.other(t.waitsFor[0])
	}
	return process(t.Backend)
}

// blamed shows the processes of a table's lock.
func (l *look) blamed(t tableLock) {
	all := []Backend{t.Backend}
	for _, w := range t.inTheWay {
		all = append(all, w.Backend)
	}
	for _, b := range all {
		if !slices.ContainsFunc(l.Processes, func(p Backend) bool { return process(p) == process(b) }) {
			l.Processes = append(l.Processes, b)
		}
	}
	l.sayHidden()
	l.wanted = len(t.waitsFor) > 0
}

// needed are the tables that no request can do without, or that few can: the gravest first.
var needed = []string{"locks", "installation", "waiters", "sessions", "fences"}

// without says what nobody can do while somebody has locked a table, and what then waits.
type without struct{ nobody, waits string }

var (
	withoutTable = map[string]without{
		"locks": {"use any lock", "Every grant, renewal and release waits. Holders lose their leases when these run " +
			"out."},
		"installation": {"get any lock", "Every grant waits, and so does every client that starts. Renewals go on."},
		"waiters": {"wait for a lock, or get one that they wait for", "Releases to the next in the queue wait, too. " +
			"Renewals go on."},
		"sessions": {"begin to wait for a lock", "Signs of life wait, too: soon the queue passes over whoever waits, " +
			"and holders seem dead. Renewals go on."},
		"fences": {"write under a fence", "Every fenced write waits. Grants, renewals and releases go on."},
	}
	withoutAnother = without{"see how the locks are", "Whatever needs that table waits."}
)

func (l *look) tableVerdict() {
	v := Verdict{Kind: whyTable, Severity: SeverityStuck}
	v.Text = say("Nobody can read the tables of pglock: no answer within %s.", patience)
	v.Because = "The one who has locked them cannot be seen any more."
	v.IfNothing = withoutAnother.waits
	v.Steps = []Step{again("Look again.", l.Lock)}
	if len(l.tables) > 0 {
		t := l.tables[0]
		b := t.Backend
		v.Who = t.cause()
		if age := t.age(); age > 0 {
			v.Since = l.since(age)
		}
		without, is := withoutTable[t.table]
		if !is {
			without = withoutAnother
		}
		v.IfNothing = without.waits
		v.Text = say("Nobody can %s: %s has locked the whole table %s of pglock%s.", without.nobody, about(b), t.table,
			shown.Either(t.closesToReaders(), "", " against writes"))
		v.Because = "Sure: pg_locks shows it. " + shown.Either(t.closesToReaders(), "LOCK TABLE, ALTER TABLE, "+
			"VACUUM FULL, TRUNCATE and a migration", "LOCK TABLE, CREATE INDEX, REINDEX and CREATE TRIGGER") +
			" lock so. " + does(b)
		v.Statement = statement(b)
		if len(t.waitsFor) > 0 {
			v.Text = say("Nobody can %s: %s waits for a lock of the whole table %s of pglock, and everybody else "+
				"queues behind it. It waits for %s.", without.nobody, about(b), t.table, t.others())
		}
		v.Steps = l.endLocker(t)
		if more := len(l.tables) - 1; more > 0 {
			v.Steps = append(v.Steps, again(several(more, "Look again: 1 more wants to lock a whole table.",
				"Look again: %d more want to lock a whole table."), l.Lock))
		}
		l.blamed(t)
	}
	l.add(v)
}

// endLocker ends whoever has locked a table, or wants to. Whoever wants to, and has changed nothing, loses least: those
// that it waits for may be healthy writes.
func (l *look) endLocker(t tableLock) (steps []Step) {
	if len(t.waitsFor) == 0 {
		return l.endProcess(t.Backend)
	}
	begin := shown.Either(t.last(), "End", "Or end")
	if !t.last() {
		steps = []Step{terminate("End the connection of process %d, which waits: then everybody else goes on.",
			t.Backend, "It has changed nothing in a table yet.")}
	}
	for _, pid := range t.waitsFor {
		if pid == 0 { // as the server says it
			steps = append(steps, Step{Do: shown.Either(t.last(), "Find", "Or find") + " what is in the way, " +
				t.other(0) + ", and end it with COMMIT PREPARED or ROLLBACK PREPARED.", Run: RunSQL,
				Command: "SELECT gid, owner, database, prepared FROM pg_prepared_xacts ORDER BY prepared"})
			for _, w := range t.prepared() {
				steps = append(steps, endPrepared(w.Backend)...)
			}
			continue
		}
		if b := t.blocker(pid).Backend; awaitsStandby(b) {
			steps = append(steps, l.endProcess(b)...)
		} else {
			steps = append(steps, terminate(begin+" the connection of process %d, which is in the way.", b,
				"Rolls its transaction back: what it has not committed is lost."))
		}
	}
	if t.last() {
		steps = append(steps, terminate("Or end the connection of process %d: then everybody else goes on.", t.Backend,
			""))
	}
	return steps
}

// historyVerdict is about somebody who has locked the history, which the next grant needs. It reports whether somebody
// has, for longer than a moment.
func (l *look) historyVerdict(over time.Time) bool {
	n := slices.IndexFunc(l.history, func(t tableLock) bool { return t.Hidden || t.Transaction >= unremarkable })
	since := l.At.Sub(over)
	if n < 0 || since <= 3*time.Second {
		return false
	}
	t := l.history[n]
	b := t.Backend
	v := Verdict{Kind: whyHistory, Severity: l.grave(), Who: t.cause(), Since: over, Statement: statement(b)}
	v.Text = say("Nobody has held %s for %s, and nobody can get it: %s has locked the history of pglock, its table %s.",
		l.lock(), since, about(b), t.table)
	if len(t.waitsFor) > 0 {
		v.Text = say("Nobody has held %s for %s, and nobody can get it: %s waits for a lock of the whole "+
			"history of pglock, its table %s, and everybody else who writes there queues behind it. It waits for %s.",
			l.lock(), since, about(b), t.table, t.others())
	}
	if n := l.alive(); n > 0 {
		v.Text += say(" %s%s%s.", waitWord(n), shown.Either(n > 1, ", the first of them is ", ": "),
			label(l.Queue.Alive.Holder))
	}
	v.Because = say("Sure: pg_locks shows it, and the last lease, of %s, ran out without a release. The next grant "+
		"has to note that in the history. LOCK TABLE, ALTER TABLE, VACUUM FULL, REINDEX and CREATE INDEX lock so. ",
		label(l.Last.Holder)) + does(b)
	v.IfNothing = "The lock stays free until that transaction ends. So do others whose last lease ran out, and a " +
		"break waits. All else goes on."
	v.Steps = l.endLocker(t)
	t.Use = BackendBlocker
	l.blamed(t)
	l.add(v)
	return true
}
