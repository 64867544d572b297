package lockadmin

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// patient is how long a holder may be idle in its own write before that counts as stuck: it may well call somebody.
const patient = 10 * time.Second

// unremarkable is how long a transaction may be open, or a wait last, without a word about it.
const unremarkable = time.Second

func (l *look) preparedVerdicts() {
	var told []string
	locking := l.using(BackendRow, BackendWrite)
	for _, b := range locking {
		if b.Prepared == "" || slices.Contains(told, b.Prepared) {
			continue
		}
		told = append(told, b.Prepared)
		var row bool
		var fences []string
		for _, o := range locking {
			switch {
			case o.Prepared != b.Prepared:
			case o.Use == BackendRow:
				row = true
			default:
				fences = append(fences, fenceOf(o))
			}
		}
		v := Verdict{Kind: whyPrepared, Severity: l.grave(), Who: process(b), Since: l.since(b.Transaction)}
		if b.Use == BackendRow {
			v.Severity = l.graveRow()
		}
		v.Text = say("A prepared transaction, %s of user %s, prepared %s ago, keeps %s.", b.Prepared, b.User,
			b.Transaction, l.keeps(row, fences))
		v.Because = "Sure: pg_prepared_xacts lists it. It was half of a two-phase commit. It belongs to no process, " +
			"so it survives the program and restarts of the server."
		v.IfNothing = "It stays until somebody ends it. " + l.consequence(row, fences)
		v.Steps = endPrepared(b)
		l.add(v)
	}
}

// keeps says what a transaction has locked.
func (l *look) keeps(row bool, fences []string) string {
	var what []string
	if row {
		what = append(what, "the row of lock "+l.lock()+" locked")
	}
	if len(fences) > 0 {
		slices.Sort(fences)
		fences = slices.Compact(fences)
		what = append(what, strings.Join(fences[:min(3, len(fences))], ", ")+" closed")
	}
	return strings.Join(what, " and ")
}

func (l *look) consequence(row bool, fences []string) string {
	switch {
	case row && l.State != LockHeld:
		return say("Until then nobody gets %s.", l.lock())
	case row:
		return say("The holder probably can neither renew nor release its lease, which then ends in %s. After that "+
			"nobody gets %s.", l.Holders[0].Remaining, l.lock())
	case len(fences) > 0:
		return "Until then every other write under that fence waits, and fails at its time limit."
	}
	return ""
}

func endPrepared(b Backend) []Step {
	needs := say("user %s, or a superuser, in this database", b.User)
	return []Step{
		{Do: "Ask whoever runs the two-phase commits (a transaction manager, a job) which way the other half went. " +
			"Both halves must end alike. Then one of:"},
		{Do: "Make its changes permanent.", Run: RunSQL, Command: "COMMIT PREPARED " + shown.SQL(b.Prepared),
			Effect: "Keeps what it wrote. If it is fenced, its lease was checked when it was prepared.", Needs: needs},
		{Do: "Or throw its changes away.", Run: RunSQL, Command: "ROLLBACK PREPARED " + shown.SQL(b.Prepared),
			Effect: "What it wrote is lost for ever.", Needs: needs},
	}
}

// about describes a server process: whose it is, and what it does.
func about(b Backend) string {
	if b.Prepared != "" {
		return say("prepared transaction %s of user %s", b.Prepared, b.User)
	}
	var whose []string
	if b.Application != "" {
		whose = append(whose, label(b.Application))
	}
	if b.User != "" {
		whose = append(whose, "user "+b.User)
	}
	if b.Client != "" {
		whose = append(whose, "from "+b.Client)
	}
	return say("server process %d", b.PID) + inBrackets(whose)
}

func inBrackets(texts []string) string {
	return shown.Either(len(texts) > 0, " ("+strings.Join(texts, ", ")+")", "")
}

// process names a server process, or a prepared transaction, in a few words.
func process(b Backend) string {
	switch {
	case b.Prepared != "":
		return "prepared transaction " + b.Prepared
	case b.Application != "":
		return say("process %d, %s", b.PID, label(b.Application))
	}
	return say("process %d", b.PID)
}

// sinceOf is since for what a process does; zero where the server hides that.
func (l *look) sinceOf(b Backend, d time.Duration) time.Time {
	if b.Hidden {
		return time.Time{}
	}
	return l.since(d)
}

// since is when something began that has lasted for so long.
func (l *look) since(d time.Duration) time.Time { return l.At.Add(-d) }

// does says what a process does, as far as the server shows it.
func does(b Backend) string {
	switch {
	case b.Prepared != "":
		return say("It was prepared %s ago and waits for its COMMIT PREPARED or ROLLBACK PREPARED.", b.Transaction)
	case b.Hidden:
		return "The server does not show what it does."
	case strings.HasPrefix(b.State, "idle in transaction"):
		return say("It has been idle in its transaction for %s: no statement runs, and nobody has ended the "+
			"transaction.", b.InState)
	case waits(b):
		return say("It waits itself, for %s.", b.Query)
	case awaitsClient(b):
		return say("It has been in the middle of a statement for %s, and waits for what its program sends, as in "+
			"COPY FROM STDIN.", b.Query)
	case awaitsStandby(b):
		return say("It commits, and waits for a synchronous standby; its statement began %s ago.", b.Query)
	case b.State == "active":
		return say("It has been running a statement for %s.", b.Query)
	}
	return say("It is %s.", b.State)
}

// awaitsClient tells whether a process is in the middle of a statement and waits for what its program sends, as in COPY
// FROM STDIN. Then it heeds neither a time limit nor pg_cancel_backend.
func awaitsClient(b Backend) bool { return b.State == "active" && b.WaitsFor == "Client: ClientRead" }

// awaitsStandby tells whether the commit of a process waits for a synchronous standby. No time limit ends that wait.
// Whoever ends it, or the process, leaves committed here what a failover may lose.
func awaitsStandby(b Backend) bool { return b.WaitsFor == "IPC: SyncRep" }

// bringStandbyBack is what to do about a commit that waits for a standby.
func bringStandbyBack(more string) Step {
	return Step{Do: "Bring the standby back, or change synchronous_standby_names." + more, Run: RunSQL,
		Command: "SELECT application_name, state, sync_state FROM pg_stat_replication",
		Effect:  "Shows the standbys that are connected. It changes nothing."}
}

// statement is the last statement of a process, in one line.
func statement(b Backend) string {
	s := strings.Join(strings.Fields(b.Statement), " ")
	if r := []rune(s); len(r) > 100 {
		s = string(r[:100]) + "…"
	}
	return s
}

// waits reports whether a process waits for another one in the server.
func waits(b Backend) bool { return len(b.BlockedBy) > 0 || b.BlockedByPrepared != "" }

// blocking are those that a process waits for.
func (l *look) blocking(b Backend) (found []Backend) {
	for _, p := range l.Processes {
		if p.Prepared == "" && slices.Contains(b.BlockedBy, p.PID) ||
			p.Prepared != "" && p.Prepared == b.BlockedByPrepared {
			found = append(found, p)
		}
	}
	return found
}

// roots follows a process to those at the end of its wait, and tells how many are in between.
func (l *look) roots(b Backend) (ends []Backend, between int) {
	seen := map[string]bool{process(b): true}
	for front := []Backend{b}; len(front) > 0; front = front[1:] {
		at := front[0]
		if at.PID != b.PID {
			if !waits(at) {
				ends = append(ends, at)
				continue
			}
			between++
		}
		for _, p := range l.blocking(at) {
			if seen[process(p)] {
				continue
			}
			if seen[process(p)] = true; p.Prepared != "" {
				ends = append(ends, p)
			} else {
				front = append(front, p)
			}
		}
	}
	return ends, between
}

func (l *look) endProcess(b Backend) []Step {
	if b.Prepared != "" {
		return endPrepared(b)
	}
	if awaitsStandby(b) {
		return []Step{bringStandbyBack(say(" Do not end process %d, nor cancel its statement: that ends only the "+
			"wait. Its transaction is committed here already, and a failover may lose it.", b.PID))}
	}
	var steps []Step
	if strings.HasPrefix(b.State, "idle in transaction") {
		steps = append(steps,
			Step{Do: say("Let user %s (%s) type COMMIT or ROLLBACK there. That is the gentle way.",
				b.User, shown.Either(b.Application == "", "whoever runs it", label(b.Application)))})
	} else if b.State == "active" && len(b.BlockedBy) == 0 && !awaitsClient(b) {
		steps = append(steps, Step{Do: say("Cancel the statement of process %d.", b.PID), Run: RunSQL,
			Command: say("SELECT pg_cancel_backend(%d)", b.PID),
			Effect: "The statement fails, and with it what its transaction has done so far. The connection stays. " +
				"If a person runs it, ask them first.", Needs: rightToEnd(b)})
	}
	return append(steps, terminate("End the connection of process %d.", b, "Rolls its transaction back: what it has "+
		"not committed is lost. Whoever waits for it goes on at once."))
}

// rightToEnd is the right that it takes to end a process, or to cancel what it does; "" if this user has it.
func rightToEnd(b Backend) string {
	switch {
	case b.MayEnd:
		return ""
	case b.User == "": // the server's own
		return "a superuser"
	}
	return say("a member of the role %s or of pg_signal_backend (a superuser, if that role is one)", b.User)
}

// terminate ends the connection of a process; do may name its PID with %d.
func terminate(do string, b Backend, effect string) Step {
	pid := strconv.Itoa(b.PID)
	return Step{Do: strings.Replace(do, "%d", pid, 1), Run: RunSQL, Command: "SELECT pg_terminate_backend(" + pid + ")",
		Effect: effect, Needs: rightToEnd(b)}
}

// keepsRow reports whether a process that has locked the lock's row keeps it. A grant, a renewal or a release may be in
// the middle of its commit. Where the server hides what it does, that tells which should have happened meanwhile.
func (l *look) keepsRow(b Backend) bool {
	switch {
	case b.Hidden && l.State == LockHeld:
		return slices.ContainsFunc(l.Holders, func(h HolderFacts) bool { return pulseOf(h) != onTime })
	case b.Hidden:
		return l.Last != nil && l.Queue.Waiting > 0 &&
			l.At.Sub(cmp.Or(l.Last.EndedAt, l.Last.ExpiresAt)) > 3*time.Second
	case strings.HasPrefix(b.State, "idle in transaction"):
		return b.InState >= unremarkable/2
	}
	return waits(b) || b.Transaction >= patient
}

func (l *look) rowVerdicts() {
	for _, b := range l.using(BackendRow) {
		if b.Prepared != "" || !b.Hidden && b.Transaction < unremarkable ||
			slices.ContainsFunc(l.using(BackendWrite), func(w Backend) bool { return w.PID == b.PID }) {
			continue // a grant, a renewal or a commit takes a moment
		}
		v := Verdict{Kind: whyRow, Severity: l.graveRow(), Who: process(b), Since: l.sinceOf(b, b.Transaction)}
		v.Text = say("Somebody has locked the row of lock %s in pglock's own table: %s.", l.lock(), about(b))
		if !b.Hidden {
			v.Text += say(" That transaction is %s old.", b.Transaction)
		}
		if !l.keepsRow(b) {
			v.Severity = SeverityBusy
			v.Because = "Not sure that this is a trouble. Programs that use pglock lock this row too, for " +
				"milliseconds, or for longer on a slow disk. " + does(b)
			v.IfNothing = "If it is such a program, its transaction ends in a moment."
			v.Steps = []Step{again(say("Look again in ten seconds. If %s has still locked the row, %s.", process(b),
				shown.Either(awaitsStandby(b), "a standby does not answer", "it is a person or a script")), l.Lock)}
			l.add(v)
			continue
		}
		v.Because = "Sure: the row names the transaction. " + does(b)
		if !b.Hidden && !awaitsStandby(b) {
			v.Because = "Sure: the row names the transaction. Programs that use pglock hold this row for " +
				"milliseconds; so this is a person or a script. " + does(b)
		}
		cause := b
		if ends, between := l.roots(b); len(ends) > 0 { // it may be a grant that waits
			cause = ends[0]
			v.Who = process(cause)
			v.Text += " It waits itself" + forWhat(b) + atTheEnd(ends, between)
			v.Because = say("Sure: the row names the transaction, and pg_blocking_pids says who waits for whom. About "+
				"%s: %s", process(cause), does(cause))
		}
		v.Statement = statement(cause)
		switch {
		case l.State != LockHeld:
			v.Text += more(len(l.asking()), " 1 process that wants the free lock, or its row, waits for that.",
				" %d processes that want the free lock, or its row, wait for that.")
			v.IfNothing = say("Nobody gets %s until that transaction ends.", l.lock())
		case slices.ContainsFunc(l.Holders, func(h HolderFacts) bool { return pulseOf(h) != onTime }):
			h := l.Holders[0]
			v.Severity = SeverityStuck
			v.Text += say(" So %s cannot renew its lease: the last time was %s ago.", label(h.Holder), h.SinceRenewal)
			v.IfNothing = say("In %s %s loses the lock, although its program may be well. After that nobody gets it "+
				"until that transaction ends.", h.Remaining, label(h.Holder))
		default:
			v.IfNothing = say("The holder probably cannot renew. Then its lease ends in %s, and after that nobody "+
				"gets the lock until that transaction ends.", l.Holders[0].Remaining)
		}
		v.Steps = append(l.endProcess(cause), Step{Do: "Do not break the lock: a break would wait for the same row."})
		l.add(v)
	}
}
