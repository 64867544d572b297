package lockadmin

import (
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// processes names some processes of the server.
func processes(pids []int) string {
	var all []string
	for _, pid := range pids[:min(3, len(pids))] {
		all = append(all, shown.Either(pid == 0, "a prepared transaction", say("process %d", pid)))
	}
	return strings.Join(all, ", ")
}

func (l *look) tableVerdict() {
	v := Verdict{Kind: whyTable, Severity: SeverityStuck}
	v.Text = say("Nobody can read the tables of pglock: no answer within %s.", patience)
	v.Because = "The one who has locked them cannot be seen any more."
	v.Steps = []Step{again("Look again.", l.Lock)}
	if len(l.tables) > 0 {
		t := l.tables[0]
		b := t.Backend
		v.Who, v.Since = process(b), l.since(b.Transaction)
		v.Text = say("Nobody can use any lock: %s has locked the whole table %s of pglock.", about(b), t.table)
		v.Because = "Sure: pg_locks shows it. LOCK TABLE, ALTER TABLE, VACUUM FULL, TRUNCATE and a migration lock " +
			"so. " + does(b)
		v.Statement = statement(b)
		if len(t.waitsFor) > 0 {
			v.Text = say("Nobody can use any lock: %s wants to lock the whole table %s of pglock, and everybody "+
				"queues behind it. It waits itself, for %s.", about(b), t.table, processes(t.waitsFor))
		}
		v.Steps = l.endLocker(t)
		l.Processes = []Backend{b}
	}
	v.IfNothing = "Every grant, renewal and release waits. Holders lose their leases when these run out."
	l.add(v)
}

// endLocker ends whoever has locked a table, or those that it waits for.
func (l *look) endLocker(t tableLock) (steps []Step) {
	if len(t.waitsFor) == 0 {
		return l.endProcess(t.Backend)
	}
	for _, pid := range t.waitsFor {
		if pid == 0 { // as the server says it
			steps = append(steps, Step{Do: "Find the prepared transaction that is in the way, and end it with COMMIT " +
				"PREPARED or ROLLBACK PREPARED.", Run: RunSQL,
				Command: "SELECT gid, owner, database, prepared FROM pg_prepared_xacts ORDER BY prepared"})
			continue
		}
		steps = append(steps, terminate("End the connection of process %d, which is in the way.",
			Backend{PID: pid, MayEnd: true}, "Rolls its transaction back: what it has not committed is lost."))
	}
	return append(steps, terminate("Or end the connection of process %d: then everybody else goes on.", t.Backend, ""))
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
	v := Verdict{Kind: whyHistory, Severity: l.grave(), Who: process(b), Since: over, Statement: statement(b)}
	v.Text = say("Nobody has held %s for %s, and nobody can get it: %s has locked the history of pglock, its table %s.",
		l.lock(), since, about(b), t.table)
	if len(t.waitsFor) > 0 {
		v.Text = say("Nobody has held %s for %s, and nobody can get it: %s wants to lock the history of pglock, its "+
			"table %s, and everybody who writes there queues behind it. It waits itself, for %s.", l.lock(), since,
			about(b), t.table, processes(t.waitsFor))
	}
	if n := l.alive(); n > 0 {
		v.Text += " " + waitWord(n) + shown.Either(n > 1, ", the first of them is ", ": ") + l.Queue.Alive.Holder + "."
	}
	v.Because = say("Sure: pg_locks shows it, and the last lease, of %s, ran out without a release. The next grant "+
		"has to note that in the history. LOCK TABLE, ALTER TABLE, VACUUM FULL, REINDEX and CREATE INDEX lock so. ",
		l.Last.Holder) + does(b)
	v.IfNothing = "The lock stays free until that transaction ends. So do others whose last lease ran out, and a " +
		"break waits. All else goes on."
	v.Steps = l.endLocker(t)
	b.Use = BackendBlocker
	if !slices.ContainsFunc(l.Processes, func(p Backend) bool { return process(p) == process(b) }) {
		l.Processes = append(l.Processes, b)
	}
	l.add(v)
	return true
}
