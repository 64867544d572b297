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
	case l.closed:
		l.tableVerdict()
	case l.State == LockUnknown:
		l.unknownVerdicts()
	default:
		l.preparedVerdicts()
		l.rowVerdicts()
		l.circleVerdict()
		l.writeVerdicts()
		l.waitsVerdict()
		if !l.has(whyRow) { // whoever has locked the row keeps the holder from renewing
			for _, h := range l.Holders {
				l.pulseVerdict(h)
			}
		}
		l.freeVerdicts()
		if len(l.Verdicts) == 0 {
			l.heldVerdict()
		}
		l.deadVerdict()
		l.pastVerdicts()
	}
	l.guardVerdict()
	if l.Standby != nil {
		l.askPrimary()
	}
	slices.SortStableFunc(l.Verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(boolean(besides[a.Kind]), boolean(besides[b.Kind])),
			cmp.Compare(rank[b.Severity], rank[a.Severity]))
	})
	for i, v := range l.Verdicts {
		if v.Steps == nil {
			l.Verdicts[i].Steps = []Step{}
		}
	}
	l.Severity = l.Verdicts[0].Severity
}

var rank = map[Severity]int{SeverityOK: 0, SeverityBusy: 1, SeverityNote: 2, SeverityWarning: 3, SeverityStuck: 4}

// besides are the verdicts that are not about how the lock is now.
var besides = map[string]bool{whyDeadWaiters: true, whyGap: true, whyLosses: true}

func (l *look) has(kind string) bool {
	return slices.ContainsFunc(l.Verdicts, func(v Verdict) bool { return v.Kind == kind })
}

func (l *look) add(v Verdict) { l.Verdicts = append(l.Verdicts, v) }

// lock is the lock's name within a sentence.
func (l *look) lock() string { return word(l.name) }

// word is a name within a sentence, in quotes if it could be read as a part of the sentence. It escapes nothing:
// whoever shows the sentence does.
func word(name string) string {
	if name == "" || shown.Argument(name) != name {
		return `"` + name + `"`
	}
	return name
}

// grave is critical if somebody waits for the lock, and otherwise a warning.
func (l *look) grave() Severity {
	if l.alive() > 0 || len(l.Obstructed) > 0 {
		return SeverityStuck
	}
	return SeverityWarning
}

// graveRow is grave while somebody has locked the lock's row: then the looks of live waiters hang there too, so that
// they seem dead.
func (l *look) graveRow() Severity {
	if l.Queue.Waiting > 0 {
		return SeverityStuck
	}
	return SeverityWarning
}

// alive is how many live waiters there are, as far as they were looked at.
func (l *look) alive() int { return l.Queue.Waiting - l.Queue.Dead }

func (l *look) next() string {
	if l.Queue.Alive == nil && len(l.Obstructed) > 0 {
		return fmt.Sprintf("then it is no longer in the way of %s", l.Obstructed[0].Holder)
	}
	if l.Queue.Alive == nil {
		return "then it is free: nobody waits for it"
	}
	return fmt.Sprintf("then %s gets it, the first of %s", l.Queue.Alive.Holder, count(l.alive(), "waiter"))
}

func count(n int, what string) string { return several(n, "1 "+what, "%d "+what+"s") }

// several says of one thing, or with %d of so many, what is so.
func several(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return strings.Replace(many, "%d", strconv.Itoa(n), 1)
}

// breakStep takes the lock away from a holder.
func (l *look) breakStep(name string, token pglock.Token, holder, reason string) Step {
	effect := fmt.Sprintf("Takes the lock away at once. It stops no program: if %s still runs, it goes on until it "+
		"notices. The fence refuses its later writes; what it does without a fence, such as files and mails, nothing "+
		"refuses.", holder)
	if name == l.name && l.Queue.Alive != nil {
		effect = strings.Replace(effect, "at once.", fmt.Sprintf("at once and gives it to %s.",
			l.Queue.Alive.Holder), 1)
	}
	return Step{Do: "Take the lock away from this holder.", Run: RunAdmin,
		Command: fmt.Sprintf("break %s --token %d --reason %s", shown.Name(name), int64(token), shown.Argument(reason)),
		Effect:  effect, Needs: "the role pglock_admin"}
}

func again(do, name string) Step {
	if name == "" { // all
		return Step{Do: do, Run: RunAdmin, Command: "why"}
	}
	return Step{Do: do, Run: RunAdmin, Command: "why " + shown.Name(name)}
}

// connection says what a holder's connection tells of its program.
func (l *look) connection(h HolderFacts) (told string) {
	for _, b := range l.heartbeats {
		if b.PID != h.Heartbeat {
			continue
		}
		var facts []string
		if b.Client != "" {
			facts = append(facts, "comes from "+b.Client)
		} else if !b.Hidden {
			facts = append(facts, "comes over a local socket")
		}
		if b.Application != "" {
			facts = append(facts, "calls itself "+b.Application)
		}
		if told = fmt.Sprintf("Its heartbeat connection (server process %d)", b.PID); len(facts) > 0 {
			told += " " + strings.Join(facts, " and ")
		}
		told += "."
	}
	return told
}

// labelParts reads the default label, host/program[pid].
func labelParts(label string) (host, pid string) {
	parts := defaultLabel.FindStringSubmatch(label)
	if parts == nil || shown.Argument(parts[1]) != parts[1] {
		return "", ""
	}
	return parts[1], parts[2]
}

var defaultLabel = regexp.MustCompile(`^([^/]*)/[^[]*\[([0-9]{1,10})\]$`)

// process is the holder's, by its label or else by the name of its heartbeat's connection.
func (l *look) process(h HolderFacts) (host, pid string) {
	if host, pid = labelParts(h.Holder); pid != "" {
		return host, pid
	}
	for _, b := range l.heartbeats {
		if b.PID == h.Heartbeat {
			return labelParts(strings.TrimPrefix(b.Application, "pglock "))
		}
	}
	return "", ""
}

// find says how to find the holder's program.
func (l *look) find(h HolderFacts, effect string) Step {
	host, pid := l.process(h)
	if pid == "" {
		return Step{Do: "Find the program. Its label is " + h.Holder + ".",
			Effect: strings.TrimSpace(l.connection(h) + " " + effect)}
	}
	program := "the program"
	if _, labelled := labelParts(h.Holder); labelled == "" {
		program += " with the label " + h.Holder
	}
	return Step{Do: fmt.Sprintf("Look at %s. Run this on host %s.", program, host), Run: RunShell,
		Command: "ps -o pid,stat,etime,args -p " + pid,
		Effect:  strings.TrimSpace("No process there means that the program is dead. " + effect)}
}

func (l *look) heldVerdict() {
	if len(l.Holders) == 0 {
		return
	}
	h := l.Holders[0]
	v := Verdict{Kind: whyHeld, Severity: SeverityOK, Who: h.Holder, Since: h.AcquiredAt}
	switch {
	case len(l.Holders) > 1:
		v.Text = fmt.Sprintf("%s has %s, and all of them renew in time.", l.lock(), count(len(l.Holders), "holder"))
		if free := h.Limit - len(l.Holders); h.Mode == pglock.ModeLimit && free > 0 {
			v.Text += fmt.Sprintf(" %d of %d places %s free.", free, h.Limit, several(free, "is", "are"))
		}
		for _, h := range l.Holders {
			if h.Life == LifeUnknown && gone(h) {
				v.Text += fmt.Sprintf(" The connection of %s has ended since its last sign of life, %s ago.",
					h.Holder, shown.Age(h.Silent))
			}
		}
	case h.Life == LifeUnknown && gone(h):
		v.Text = fmt.Sprintf("%s is held by %s. Its last sign of life came %s ago, and its connection has ended "+
			"since: it is dead, or opens another within %s.",
			l.lock(), h.Holder, shown.Age(h.Silent), shown.Age(signDue(h)))
	case signedSince(h):
		v.Text = fmt.Sprintf("%s is held by %s, which is alive: it gave a sign of life %s ago%s every %s.",
			l.lock(), h.Holder, shown.Age(h.Silent), asItShould(h.Silent, signDue(h)), shown.Age(signDue(h)))
	case h.Renewed:
		v.Text = fmt.Sprintf("%s is held by %s, which is alive: it renewed %s ago%s every %s.", l.lock(),
			h.Holder, shown.Age(h.SinceRenewal), asItShould(h.SinceRenewal, due(h)), shown.Age(due(h)))
	default:
		v.Text = fmt.Sprintf("%s is held by %s. It got the lock %s ago and should give a sign of life every %s, so "+
			"nothing shows yet whether it is alive.",
			l.lock(), h.Holder, shown.Age(h.HeldFor), shown.Age(signDue(h)))
	}
	if n := l.alive(); n > 0 {
		l.slow(&v, h, n)
	} else {
		v.Because = "Nobody waits for it, and nothing in the server stands in its way."
		if len(l.Obstructed) > 0 {
			v.Because = "Nobody waits in its queue, and nothing in the server stands in its way."
			v.Text += l.elsewhere()
			v.IfNothing = "The others wait until this lease ends."
			v.Steps = l.slowSteps(h)
		} else if len(l.Holders) == 1 && h.Life == LifeUnknown {
			v.Steps = []Step{again("Look again after its next sign of life.", l.name)}
		}
	}
	if b := l.lastBreak(); b != nil && l.At.Sub(b.At) < recently && b.Token < h.Token {
		v.Text += fmt.Sprintf(" %s broke the lease of %s %s ago.", b.Actor, b.Holder,
			shown.Age(l.At.Sub(b.At)))
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
	if since > due {
		return "; it should"
	}
	return ", as it should"
}

// slow is about a lock that works, and that others wait for.
func (l *look) slow(v *Verdict, h HolderFacts, waiting int) {
	first := l.Queue.Alive
	v.Kind, v.Severity, v.Since = whySlow, SeverityBusy, first.Since
	waits := fmt.Sprintf("%d wait for it, the first of them for %s", waiting, shown.Age(first.Waiting))
	if waiting == 1 {
		waits = fmt.Sprintf("%s has waited for it for %s", first.Holder, shown.Age(first.Waiting))
	}
	if first.Waiting > 2*h.HeldFor && first.Waiting > 10*time.Second {
		waits += ", mostly for earlier holders"
	}
	v.Text += fmt.Sprintf(" %s.%s", waits, l.elsewhere())
	if h.Mode == pglock.ModeShared && first.Mode == pglock.ModeExclusive {
		v.Text += fmt.Sprintf(" Readers hold the lock, and the first in the queue, %s, wants it alone: it waits for "+
			"all of them.", first.Holder)
		if l.readers > 0 {
			v.Text += several(l.readers, " 1 reader waits behind it.", " %d readers wait behind it.")
		}
		v.Text += " Whoever asks to read now does not pass it either."
	}
	v.Because = fmt.Sprintf("Nothing in PostgreSQL blocks the holder as far as can be seen, and the queue is in "+
		"order. %s has held the lock for %s.",
		h.Holder, shown.Age(h.HeldFor))
	v.IfNothing = "The waiters get the lock in their order."
	l.besidesTree(v)
	if l.Queue.HandedPast {
		l.handedPast(v, h)
		return
	}
	if w := l.perhapsWaits(); w != nil {
		by := ""
		if w.Holder != "" {
			by = " of " + w.Holder
		}
		v.Text += fmt.Sprintf(" %s itself has waited for lock %s%s for %s.", w.Waiter, word(w.For),
			by, shown.Age(w.Waiting))
		v.Because += " Whether its work under this lock is what waits for the other one cannot be seen: another line " +
			"of its work may wait, or it asked without the context of its lease."
		v.Steps = append(v.Steps, again("If it is the same work, the cause is there: look at that lock.", w.For))
	}
	v.Steps = append(v.Steps, l.slowSteps(h)...)
}

// slowSteps are what to do about a holder that lives and keeps others waiting.
func (l *look) slowSteps(h HolderFacts) []Step {
	return []Step{
		again("Look again in a minute. Another holder: the queue moves. The same: its work takes long, or hangs.",
			l.name),
		l.find(h, "See in its log what it does. If its work hangs, end the program: "+l.ends(h)),
		{Do: "Do not break the lock only because it is slow: a break stops no program, and two would work at the " +
			"same time."},
	}
}

// handedPast is about holders that choose who comes next, past the first in the queue.
func (l *look) handedPast(v *Verdict, h HolderFacts) {
	first := l.Queue.Alive.Holder
	v.Kind, v.Severity = whyHandedPast, SeverityNote
	if n := l.Queue.HandOvers; n != nil {
		v.Text += fmt.Sprintf(" Since then it was handed over %s (HandOver), also past %s.", count(*n, "time"), first)
	} else {
		v.Text += fmt.Sprintf(" Since then it was handed over past %s (HandOver). The history does not say how "+
			"often: at level all it would.", first)
	}
	v.Because = fmt.Sprintf("Sure: the lock was granted to a ticket that came later. Nothing in PostgreSQL blocks "+
		"the holder as far as can be seen. %s has held the lock for %s.",
		h.Holder, shown.Age(h.HeldFor))
	v.IfNothing = fmt.Sprintf("%s gets the lock when a holder releases it. As long as they hand it over, nobody "+
		"knows when that is.", first)
	v.Steps = []Step{{Do: "If that is not meant, let the programs release the lock instead. A release gives it to " +
		"the first in the queue."},
		again("Look again in a minute.", l.name)}
}

// ends says when the lock is free after the holder's program has ended.
func (l *look) ends(h HolderFacts) string {
	return fmt.Sprintf("the lock is free at once if it closes its client, otherwise when its lease ends, in up to %s.",
		shown.Age(max(h.TTL, h.Remaining)))
}
