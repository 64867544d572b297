package lockadmin

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// conclude draws the verdicts from the facts: the present first, then the past, and the gravest of each first. Among
// equals, what causes comes before what follows.
func (l *look) conclude() {
	switch {
	case l.Standby != nil && l.State != LockUnknown:
		l.circleVerdict()
		l.standbyVerdict()
	case l.barred():
		l.tableVerdict()
	case l.State == LockUnknown:
		l.unknownVerdicts()
	default:
		l.preparedVerdicts()
		l.rowVerdicts()
		l.circleVerdict()
		l.writeVerdicts()
		l.waitsVerdict()
		kept := l.rowKept() // whoever has locked the row keeps the holder from renewing, unless that is the renewal
		for _, h := range l.Holders {
			if heart := l.heartbeat(h); !kept || hangs(heart) && awaitsStandby(*heart) {
				l.pulseVerdict(h)
			}
		}
		l.freeVerdicts()
		sure := func(v Verdict) bool {
			return (v.Severity != SeverityBusy || silenced[v.Kind]) && !v.perhaps()
		}
		if !slices.ContainsFunc(l.Verdicts, sure) {
			l.heldVerdict() // besides what is perhaps a circle
		}
		l.deadVerdict()
		l.pastVerdicts()
		if len(l.tables) > 0 {
			l.tableVerdict()
		}
	}
	l.guardVerdict()
	if l.Standby != nil {
		l.askPrimary()
	}
	slices.SortStableFunc(l.Verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(boolean(besides[a.Kind]), boolean(besides[b.Kind])),
			cmp.Compare(rank[b.Severity], rank[a.Severity]))
	})
	l.Severity = l.Verdicts[0].Severity
}

var rank = map[Severity]int{SeverityOK: 0, SeverityBusy: 1, SeverityNote: 2, SeverityWarning: 3, SeverityStuck: 4}

// silenced are the verdicts on a holder that gives no sign of life: the lease of a BUSY one ends soon.
var silenced = map[string]bool{whyGone: true, whyStopped: true, whySilent: true}

// besides are the verdicts that are not about how the lock is now.
var besides = map[string]bool{whyDeadWaiters: true, whyGap: true, whyLosses: true}

func (l *look) has(kind string) bool {
	return slices.ContainsFunc(l.Verdicts, func(v Verdict) bool { return v.Kind == kind })
}

func (l *look) add(v Verdict) {
	v.Steps = append([]Step{}, v.Steps...) // none is not null
	l.Verdicts = append(l.Verdicts, v)
}

// lock is the lock's name within a sentence.
func (l *look) lock() string { return word(l.Lock) }

// heldBy begins a sentence.
func (l *look) heldBy(who string) string { return l.lock() + " is held by " + who }

// say is fmt.Sprintf that rounds durations for people.
func say(format string, args ...any) string {
	for n, arg := range args {
		if d, is := arg.(time.Duration); is {
			args[n] = shown.Age(d)
		}
	}
	return fmt.Sprintf(format, args...)
}

// word is a name within a sentence, in quotes if it could be read as a part of the sentence. It escapes nothing:
// whoever shows the sentence does.
func word(name string) string {
	if name == "" || shown.Argument(name) != name {
		return `"` + name + `"`
	}
	return name
}

// label is what a program or a person calls itself, within a sentence: in quotes if it could be read as a part of the
// sentence. A connection of pglock's calls itself pglock and the label.
func label(s string) string {
	if s == "" || strings.ContainsAny(strings.TrimPrefix(s, "pglock "), " \t\n\"") {
		return `"` + s + `"`
	}
	return s
}

// rowLocked reports whether a verdict is about somebody who has locked the lock's row.
func (l *look) rowLocked() bool {
	return l.has(whyRow) || l.has(whyPrepared) && len(l.using(BackendRow)) > 0
}

// rowKept reports whether that is sure, and no program of pglock in the middle of a statement.
func (l *look) rowKept() bool {
	return slices.ContainsFunc(l.Verdicts, func(v Verdict) bool {
		return v.Kind == whyRow && v.Severity != SeverityBusy
	}) || l.has(whyPrepared) && len(l.using(BackendRow)) > 0
}

// grave is how urgent it is if somebody waits for the lock, and if nobody does.
func (l *look) grave() Severity { return stuckIf(l.alive() > 0 || len(l.Obstructed) > 0) }

// graveRow is grave while somebody has locked the lock's row: then the looks of live waiters hang there too, so that
// they seem dead. Whoever asks for the free lock hangs there, too, before it has a ticket.
func (l *look) graveRow() Severity { return stuckIf(l.Queue.Waiting > 0 || len(l.asking()) > 0) }

// asking are those who wait for the row of the lock, which is free.
func (l *look) asking() []Backend {
	if l.State != LockFree {
		return nil
	}
	return l.using(BackendAtRow)
}

func stuckIf(somebodyWaits bool) Severity {
	if somebodyWaits {
		return SeverityStuck
	}
	return SeverityWarning
}

// alive is how many live waiters there are, as far as they were looked at. If all that were looked at are dead, nobody
// knows of one, though there may be more behind them. A standby counts all.
func (l *look) alive() int {
	if l.Queue.Alive == nil && l.Standby == nil {
		return 0
	}
	return l.Queue.Waiting - l.Queue.Dead
}

func (l *look) next() string {
	if l.Queue.Alive == nil && len(l.Obstructed) > 0 {
		return say("then it is no longer in the way of %s", label(l.Obstructed[0].Holder))
	}
	if l.Queue.Alive == nil {
		return "then it is free: nobody waits for it"
	}
	if others := l.alsoWaitsFor(); others != "" {
		return say("then %s still waits for %s", label(l.Queue.Alive.Holder), others)
	}
	return say("then %s gets it, the first of %s", label(l.Queue.Alive.Holder), count(l.alive(), "waiter"))
}

// alsoWaitsFor is what keeps the lock from the first in the queue when one lease has ended; "": nothing.
func (l *look) alsoWaitsFor() string {
	first := l.Queue.Alive
	switch n := len(l.Holders) - 1; {
	case n > 0 && (first.Mode != pglock.ModeLimit || l.Holders[0].Mode != pglock.ModeLimit):
		return several(n, "the other holder", "%d other holders")
	case len(l.Obstacles) > 0:
		return word(l.Obstacles[0].Lock)
	}
	return ""
}

func count(n int, what string) string { return several(n, "1 "+what, "%d "+what+"s") }

// more is several for what may be none, of which it says nothing.
func more(n int, one, many string) string {
	if n <= 0 {
		return ""
	}
	return several(n, one, many)
}

// several says of one thing, or with %d of so many, what is so.
func several(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return strings.Replace(many, "%d", strconv.Itoa(n), 1)
}

func (l *look) breakHolder(h HolderFacts, reason string) Step {
	return l.breakStep(l.Lock, h.Token, h.Holder, reason)
}

func (l *look) breakStep(name string, token pglock.Token, holder, reason string) Step {
	effect := say("Takes the lock away at once. It stops no program: if %s still runs, it goes on until it "+
		"notices. The fence refuses its later writes; what it does without a fence, such as files and mails, nothing "+
		"refuses.", label(holder))
	if name == l.Lock && l.Queue.Alive != nil && l.alsoWaitsFor() == "" {
		effect = strings.Replace(effect, "at once.", say("at once and gives it to %s.", label(l.Queue.Alive.Holder)), 1)
	}
	return Step{Do: "Take the lock away from this holder.", Run: RunAdmin,
		Command: say("break %s --token %d --reason %s", shown.Name(name), int64(token), shown.Argument(reason)),
		Effect:  effect, Needs: "the role pglock_admin"}
}

func again(do, name string) Step {
	all := name == ""
	return Step{Do: do, Run: RunAdmin, Command: "why" + shown.Either(all, "", " "+shown.Name(name))}
}

// heartbeat is the process that serves a holder's heartbeat; nil if none is known.
func (l *look) heartbeat(h HolderFacts) *Backend {
	for _, b := range l.Processes {
		if b.Use == BackendHeartbeat && b.PID == h.Heartbeat {
			return &b
		}
	}
	return nil
}

// connection says what a holder's connection tells of its program.
func (l *look) connection(h HolderFacts) string {
	b := l.heartbeat(h)
	if b == nil {
		return ""
	}
	var facts []string
	if b.Client != "" {
		facts = append(facts, "comes from "+b.Client)
	} else if !b.Hidden {
		facts = append(facts, "comes over a local socket")
	}
	if b.Application != "" {
		facts = append(facts, "calls itself "+label(b.Application))
	}
	told := say("Its heartbeat connection (server process %d)", b.PID)
	if len(facts) > 0 {
		told += " " + strings.Join(facts, " and ")
	}
	return told + "."
}

// labelParts reads the default label, host/program[pid]. A label may be anything that somebody claims: process 1 runs
// the host, and no command names it.
func labelParts(label string) (host, pid string) {
	parts := defaultLabel.FindStringSubmatch(label)
	if parts == nil || shown.Argument(parts[1]) != parts[1] {
		return "", ""
	}
	if n, err := strconv.Atoi(parts[2]); err != nil || n < 2 {
		return "", ""
	}
	return parts[1], parts[2]
}

// claimed is said of a host and a process that only a label names.
const claimed = "Host and number are what its label claims: compare the command line first. "

var defaultLabel = regexp.MustCompile(`^([^/]*)/[^[]*\[([0-9]{1,10})\]$`)

// process is the holder's, by its label or else by the name of its heartbeat's connection.
func (l *look) process(h HolderFacts) (host, pid string) {
	if host, pid = labelParts(h.Holder); pid != "" {
		return host, pid
	}
	if b := l.heartbeat(h); b != nil {
		return labelParts(strings.TrimPrefix(b.Application, "pglock "))
	}
	return "", ""
}

func (l *look) find(h HolderFacts, effect string) Step {
	host, pid := l.process(h)
	if pid == "" {
		return Step{Do: "Find the program. Its label is " + label(h.Holder) + ".",
			Effect: strings.TrimSpace(l.connection(h) + " " + effect)}
	}
	_, labelled := labelParts(h.Holder)
	its := shown.Either(labelled == "", " with the label "+label(h.Holder), "")
	return Step{Do: say("Look at the program%s. Run this on host %s.", its, host), Run: RunShell,
		Command: "ps -o pid,stat,etime,args -p " + pid,
		Effect:  strings.TrimSpace(claimed + "No process there means that the program is dead. " + effect)}
}

func (l *look) heldVerdict() {
	if len(l.Holders) == 0 {
		return
	}
	h := l.Holders[0]
	v := Verdict{Kind: whyHeld, Severity: SeverityOK, Text: l.heldBy(label(h.Holder)), Who: h.Holder,
		Since: h.AcquiredAt}
	switch {
	case len(l.Holders) > 1:
		v.Text = say("%s has %s, and all of them renew in time.", l.lock(), count(len(l.Holders), "holder"))
		if free := h.Limit - len(l.Holders); h.Mode == pglock.ModeLimit && free > 0 {
			v.Text += say(" %d of %d places %s free.", free, h.Limit, several(free, "is", "are"))
		}
		for _, h := range l.Holders {
			if h.Life == LifeUnknown && gone(h) {
				v.Text += say(" The connection of %s has ended since its last sign of life, %s ago.", label(h.Holder),
					h.Silent)
			}
		}
	case h.Life == LifeUnknown && gone(h):
		v.Text += say(". Its last sign of life came %s ago, and its connection has ended since: it is dead, or opens "+
			"another within %s.", h.Silent, signDue(h))
	case signedSince(h):
		v.Text += ", which is alive: it gave a sign of life " + asItShould(h.Silent, signDue(h))
	case h.Renewed:
		v.Text += ", which is alive: it renewed " + asItShould(h.SinceRenewal, due(h))
	default:
		v.Text += say(". It got the lock %s ago and should give a sign of life every %s, so nothing shows yet whether "+
			"it is alive.", h.HeldFor, signDue(h))
	}
	switch n := l.alive(); {
	case n > 0:
		l.slow(&v, h, n)
	case len(l.Obstructed) > 0:
		v.Because = "Nobody waits in its queue, and nothing in the server stands in its way."
		v.Text += l.elsewhere()
		v.IfNothing = "The others wait until this lease ends."
		v.Steps = l.slowSteps(h, l.Obstructed[0].Waiting)
	default:
		v.Because = "Nobody waits for it, and nothing in the server stands in its way."
		if len(l.Holders) == 1 && h.Life == LifeUnknown {
			v.Steps = []Step{again("Look again after its next sign of life.", l.Lock)}
		}
	}
	if b := l.lastBreak(); b != nil && l.At.Sub(b.At) < recently && b.Token < h.Token {
		v.Text += say(" %s broke the lease of %s %s ago.", label(b.Actor), label(b.Holder), l.At.Sub(b.At))
		if strings.HasPrefix(b.Reason, circleReason) {
			v.Text += " The deadlock is gone: the holder no longer waits in a circle."
		}
		v.Text += " The break stopped no program: the old one may still be working without the lock."
		v.Kind, v.Severity, v.Who, v.Since = whyBroken, SeverityNote, b.Actor, b.At
		v.Steps = append(oldProgram(b.Holder), v.Steps...)
	}
	l.add(v)
}

// asItShould compares the time since a sign with the time in which one is due. A little later is not late yet.
func asItShould(since, due time.Duration) string {
	return say("%s ago%s every %s.", since, shown.Either(since > due, "; it should", ", as it should"), due)
}

// slow is about a lock that works, and that others wait for.
func (l *look) slow(v *Verdict, h HolderFacts, waiting int) {
	first := l.Queue.Alive
	v.Kind, v.Severity, v.Since = whySlow, SeverityBusy, first.Since
	v.Text += shown.Either(waiting == 1, say(" %s has waited for it for %s", label(first.Holder), first.Waiting),
		say(" %d wait for it, the first of them for %s", waiting, first.Waiting))
	if first.Waiting > 2*h.HeldFor && first.Waiting > 10*time.Second {
		v.Text += ", mostly for earlier holders"
	}
	v.Text += "." + l.elsewhere()
	if h.Mode == pglock.ModeShared && first.Mode == pglock.ModeExclusive {
		v.Text += say(" Readers hold the lock, and the first in the queue, %s, wants it alone: it waits for "+
			"all of them.", label(first.Holder))
		v.Text += more(l.readers, " 1 reader waits behind it.", " %d readers wait behind it.")
		v.Text += " Whoever asks to read now does not pass it either."
	}
	v.Because = say("Nothing in PostgreSQL blocks the holder as far as can be seen, and the queue is in order. %s "+
		"has held the lock for %s.", label(h.Holder), h.HeldFor)
	v.IfNothing = "The waiters get the lock in their order."
	l.besidesTree(v)
	if l.Queue.HandedPast {
		l.handedPast(v, h)
		return
	}
	if w := l.perhapsWaits(); w != nil {
		by := shown.Either(w.Holder != "", " of "+label(w.Holder), "")
		v.Text += say(" %s itself has waited for lock %s%s for %s.", label(w.Waiter), word(w.For), by, w.Waiting)
		v.Because += " Whether its work under this lock is what waits for the other one cannot be seen: another line " +
			"of its work may wait, or it asked without the context of its lease."
		v.Steps = append(v.Steps, again("If it is the same work, the cause is there: look at that lock.", w.For))
	}
	same := func(h HolderFacts) bool { return h.Session == first.Session }
	if slices.ContainsFunc(l.Holders, same) {
		v.Text += " The client that holds it waits for it itself."
		// Whoever waits for a lease of its own asked after the grant. And another holder's place may come free.
		since := func(h HolderFacts) bool { return same(h) && h.HeldFor >= first.Waiting }
		other := func(h HolderFacts) bool { return h.Mode == pglock.ModeLimit && !same(h) }
		itself := slices.ContainsFunc(l.Holders, since) && !slices.ContainsFunc(l.Holders, other)
		if itself && first.Waiting > time.Minute { // until then it is mostly other work of a busy program
			v.IfNothing = "If it is other work, the waiters get the lock in their order. If it is the same, it waits " +
				"for ever, unless its wait has a limit."
			v.Steps = append(v.Steps, Step{Do: "If both are the same work, it waits for itself: end the program, and " +
				"let it ask with the context of its lease (lease.Context()). Then it gets ErrSelfDeadlock at once."})
		}
	}
	v.Steps = append(v.Steps, l.slowSteps(h, first.Waiting)...)
}

// slowSteps are what to do about a holder that lives and keeps others waiting. Nothing is, while that is not long.
func (l *look) slowSteps(h HolderFacts, waiting time.Duration) []Step {
	look := again("Look again in a minute. Another holder: the queue moves. The same: its work takes long, or hangs.",
		l.Lock)
	if waiting <= time.Minute {
		return []Step{look}
	}
	return []Step{
		look,
		l.find(h, "See in its log what it does. If its work hangs, end the program: "+l.ends(h)),
		{Do: "Do not break the lock only because it is slow: a break stops no program, and two would work at the " +
			"same time."},
	}
}

// handedPast is about holders that choose who comes next, past the first in the queue.
func (l *look) handedPast(v *Verdict, h HolderFacts) {
	first := label(l.Queue.Alive.Holder)
	v.Kind, v.Severity = whyHandedPast, SeverityNote
	if n := l.Queue.HandOvers; n != nil {
		v.Text += say(" Since then it was handed over %s (HandOver), also past %s.", count(*n, "time"), first)
	} else {
		v.Text += say(" Since then it was handed over past %s (HandOver). The history does not say how "+
			"often: at level all it would.", first)
	}
	v.Because = say("Sure: the lock was granted to a ticket that came later. Nothing in PostgreSQL blocks the holder "+
		"as far as can be seen. %s has held the lock for %s.", label(h.Holder), h.HeldFor)
	v.IfNothing = say("%s gets the lock when a holder releases it. As long as they hand it over, nobody "+
		"knows when that is.", first)
	v.Steps = []Step{{Do: "If that is not meant, let the programs release the lock instead. A release gives it to " +
		"the first in the queue."},
		again("Look again in a minute.", l.Lock)}
}

// ends says when the lock is free after the holder's program has ended.
func (l *look) ends(h HolderFacts) string {
	return say("the lock is free at once if it closes its client, otherwise when its lease ends, in up to %s.",
		max(h.TTL, h.Remaining))
}
