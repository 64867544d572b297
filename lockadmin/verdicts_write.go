package lockadmin

import (
	"slices"
	"strings"

	"github.com/pglock-dev/pglock/internal/shown"
)

// writeVerdicts are about fenced transactions: those that wait in the server, and those that are open and idle.
func (l *look) writeVerdicts() {
	var told []int
	for _, b := range l.using(BackendWrite, BackendAtFence) {
		if b.Prepared != "" || slices.Contains(told, b.PID) {
			continue
		}
		told = append(told, b.PID)
		switch stuck := waits(b); {
		case stuck && b.Use == BackendAtFence:
			l.fenceVerdict(b)
		case stuck && (b.Hidden || b.Query >= unremarkable):
			l.blockedVerdict(b)
		case strings.HasPrefix(b.State, "idle in transaction") && b.InState >= unremarkable:
			l.idleVerdict(b)
		}
	}
}

func fenceOf(b Backend) string {
	return shown.Either(b.Resource == "", "a fence that nobody had passed before", "the fence of "+b.Resource)
}

// writer names the program of a fenced transaction: the holder's, or an older one.
func (l *look) writer(b Backend) (who string, present bool) {
	if len(l.Holders) == 1 && (b.Hidden || b.Transaction <= l.Holders[0].HeldFor+unremarkable) {
		return label(l.Holders[0].Holder), true
	}
	if len(l.Holders) > 1 {
		return "one of its holders", true
	}
	return "a former holder", false
}

func (l *look) blockedVerdict(b Backend) {
	who, present := l.writer(b)
	ends, between := l.roots(b)
	v := Verdict{Kind: whyBlocked, Severity: l.grave(), Who: who, Since: l.sinceOf(b, b.Query)}
	v.Text = shown.Either(present, l.heldBy(who)+", and its write waits in PostgreSQL",
		say("A write of a former holder of %s waits in PostgreSQL", l.lock())) + forWhat(b)
	if len(ends) == 0 {
		v.Text += ", in a circle of server processes."
		v.Because = say("Sure: pg_blocking_pids says so. PostgreSQL finds such a circle after "+
			"deadlock_timeout, one second by default, and ends one transaction (server process %d waits).", b.PID)
		v.Steps = []Step{again("Look again in a few seconds.", l.Lock)}
		l.add(v)
		return
	}
	end := ends[0]
	v.Who = process(end)
	v.Text += atTheEnd(ends, between)
	v.Because = "Sure: pg_blocking_pids says who waits for whom. " + does(end)
	v.Statement = statement(end)
	v.IfNothing = "The write goes on when that transaction ends. Otherwise it fails at the write's time limit" +
		l.atTheLatest(b) + "."
	if l.alive() > 0 && present {
		v.IfNothing += say(" Until then %s keeps the lock, and %s for it.", who, waitWord(l.alive()))
	}
	v.Steps = append(l.endProcess(end), Step{Do: "Do not break the lock for this: the next holder would meet the " +
		"same transaction."})
	if !present && b.Use == BackendWrite {
		v.IfNothing = "That write goes on when that transaction ends, and is then refused, because its lease has " +
			"ended. Otherwise it fails at the write's time limit."
		v.Steps = append(l.endProcess(end), l.endPasser(b, end))
		if behind := l.behind(b); behind > 0 {
			v.Severity = SeverityStuck
			v.IfNothing += " " + closedFor(behind)
		}
	}
	l.add(v)
}

// atTheEnd says whom a process waits for: who has locked what it wants, or stands at the end of the chain.
func atTheEnd(ends []Backend, between int) string {
	text := say(": %s has locked it.", about(ends[0]))
	if between > 0 {
		text = several(between, ". 1 other process stands", ". %d other processes stand") +
			say(" in between; at the end stands %s.", about(ends[0]))
	}
	return text + more(len(ends)-1, " 1 process more blocks it too.", " %d processes more block it too.")
}

// forWhat says for what a process waits, as far as the server shows it.
func forWhat(b Backend) string { return shown.Either(b.BlockedAt != "", " for "+b.BlockedAt, "") }

func closedFor(behind int) string {
	return "Until then the fence is closed: " + several(behind, "1 write waits there.", "%d writes wait there.")
}

// endPasser ends a write that has passed a fence and waits for somebody.
func (l *look) endPasser(passer, end Backend) Step {
	_, present := l.writer(passer)
	which := "that write back" + shown.Either(present, "", ", which cannot commit any more")
	return terminate("Or end the connection of process %d, the write that has passed the fence.", passer,
		say("Rolls %s, and opens the fence. A later write of the same rows then waits for %s itself.", which,
			process(Backend{PID: end.PID, Prepared: end.Prepared})))
}

// atTheLatest says when the server ends the transaction of a write that waits or is idle, as far as can be seen. Its
// limit is what the lease had left when it passed the fence, or less, and counts from the beginning of its statement or
// of its idleness. Renewals since then have not made it longer. Nobody sees whether its program has extended the lease
// for it, unless the lease lasts for longer than its TTL still.
func (l *look) atTheLatest(b Backend) string {
	if _, present := l.writer(b); !present || len(l.Holders) != 1 || b.Hidden {
		return ""
	}
	h, since := l.Holders[0], b.Query
	if b.State != "active" {
		since = b.InState
	}
	most := h.Remaining + b.Transaction
	if h.Remaining > h.TTL {
		return say(" (in %s at the latest)", most-since)
	}
	left := min(most, h.TTL) - since
	if left <= 0 {
		return " (which its program has set: it cannot be seen)"
	}
	return say(" (in %s at the latest, unless its program has given it more time than its lease of %s)", left,
		shown.Duration(h.TTL))
}

func waitWord(n int) string { return several(n, "1 waits", "%d wait") }

func (l *look) idleVerdict(b Backend) {
	who, present := l.writer(b)
	behind := l.behind(b)
	v := Verdict{Kind: whyIdle, Severity: stuckIf(l.alive() > 0 || behind > 0), Who: process(b),
		Since: l.sinceOf(b, b.InState)}
	v.Text = shown.Either(present, l.heldBy(who)+", which has left its own transaction open",
		say("A former holder of %s has left a transaction open that has passed %s", l.lock(), fenceOf(b)))
	v.Text += say(": it is %s old, and idle for %s.", b.Transaction, b.InState)
	v.Because = say("Sure: %s has passed %s and runs no statement. Its program does something else in the "+
		"middle of its write, or hangs.", about(b), fenceOf(b))
	v.Statement = statement(b)
	v.IfNothing = "The server ends that transaction at the write's time limit" + l.atTheLatest(b) +
		". What it wrote is then rolled back."
	if !present {
		v.IfNothing = "The server ends that transaction at the write's time limit. It cannot commit any more, " +
			"because its lease has ended."
	}
	if behind > 0 {
		v.IfNothing += " " + closedFor(behind)
	}
	end := terminate("End that transaction.", b, "Rolls back what this transaction wrote, and opens the fence. The "+
		"program keeps the lock, gets an error, and may write again.")
	if present && !b.Hidden && b.InState < patient {
		v.Severity = SeverityNote
		v.Text = l.heldBy(who) + say(", whose write has been idle for %s.", b.InState)
		v.Because = say("Server process %d has passed %s and runs no statement at this moment. Between two "+
			"statements that is usual.", b.PID, fenceOf(b))
		v.Steps = []Step{again("Look again in ten seconds.", l.Lock)}
		l.add(v)
		return
	}
	if present && len(l.Holders) == 1 {
		h := l.Holders[0]
		v.Steps = []Step{l.find(h, "See in its log what it waits for: a call of another service, or another lock, in "+
			"the middle of the transaction. If you end the program: "+l.ends(h)), end,
			l.breakHolder(h, "its transaction is idle")}
		v.Steps[2].Effect += " Its open transaction can no longer commit, but it stays open and keeps its rows until " +
			"the write's time limit."
	} else {
		end.Effect = "Rolls back what this transaction wrote, and opens the fence for the present holder."
		v.Steps = []Step{end, again("Or wait, and look again.", l.Lock)}
	}
	l.add(v)
}

func (l *look) behind(b Backend) (n int) {
	for _, p := range l.Processes {
		if slices.Contains(p.BlockedBy, b.PID) {
			n++
		}
	}
	return n
}

// passer follows a process that waits at a fence to the transaction that has passed it. Others that wait there too may
// stand in between. It is nil if that one is not seen.
func (l *look) passer(b Backend) *Backend {
	seen := map[int]bool{b.PID: true}
	for front := []Backend{b}; len(front) > 0; front = front[1:] {
		for _, p := range l.blocking(front[0]) {
			switch {
			case seen[p.PID]:
			case p.Use == BackendAtFence:
				seen[p.PID] = true
				front = append(front, p)
			default:
				return &p
			}
		}
	}
	return nil
}

// fenceVerdict is about a write that waits at the fence for an older transaction, which may wait for somebody itself.
func (l *look) fenceVerdict(b Backend) {
	passer := l.passer(b)
	ends, _ := l.roots(b)
	if passer == nil || len(ends) == 0 || passer.Prepared != "" || !b.Hidden && b.Query < unremarkable {
		return // a prepared transaction and a circle have their own verdicts
	}
	end, waits := ends[0], passer.PID != ends[0].PID
	for _, v := range l.Verdicts {
		if v.Kind == whyFence || v.Kind == whyIdle && !waits && end.Use == BackendWrite {
			return
		}
	}
	v := Verdict{Kind: whyFence, Severity: l.grave(), Who: process(end), Since: l.sinceOf(b, b.Query)}
	v.Text = say("A write under %s waits at %s: %s has passed it earlier and is still open.", l.lock(),
		fenceOf(b), about(*passer))
	v.Because = "Sure: pg_blocking_pids says who waits for whom. " + does(end)
	v.Statement = statement(end)
	v.IfNothing = "It goes on when that transaction ends, at the latest when the lease of that transaction is over, " +
		"or the time limit that its program has set."
	if awaitsClient(end) {
		v.IfNothing = "It goes on when that program sends what the server waits for, or its connection ends. No time " +
			"limit ends a COPY that waits for its data."
	}
	if awaitsStandby(end) {
		v.IfNothing = "It goes on when the standby answers. No time limit ends a commit that waits for one."
	}
	v.Steps = l.endProcess(end)
	if waits {
		_, between := l.roots(*passer)
		v.Text += " That transaction waits itself" + forWhat(*passer) + atTheEnd(ends, between)
		v.Because = say("Sure: pg_blocking_pids says who waits for whom. About %s: %s", process(end), does(end))
		v.Steps = append(v.Steps, l.endPasser(*passer, end))
	}
	v.Steps = append(v.Steps, again("Or wait, and look again.", l.Lock))
	l.add(v)
}
