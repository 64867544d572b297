package lockadmin

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// circleReason begins the reason of a break that ends a circle.
const circleReason = "deadlock with "

func (l *look) circleVerdict() {
	if len(l.Circle) == 0 {
		return
	}
	var links []string
	for _, w := range l.Circle {
		links = append(links, say("%s holds %s and waits for %s, %s", label(w.Waiter), word(w.Holds), word(w.For),
			w.which()))
	}
	last := slices.MinFunc(l.Circle, func(a, b Wait) int { return cmp.Compare(a.Waiting, b.Waiting) })
	v := Verdict{Kind: whyCircle, Severity: SeverityStuck, Who: strings.Join(programs(l.Circle), ", "),
		Since: l.since(last.Waiting)} // a deadlock lasts since its last wait began
	v.Text = say("A deadlock: %s.", strings.Join(links, "; "))
	if len(l.Circle) == 1 {
		v.Text = say("A deadlock: %s holds %s and waits for the same lock.", label(l.Circle[0].Waiter), l.lock())
	}
	v.Because = "Sure: in each of these programs the line of work that holds is the one that waits. The newest " +
		"waiter should have got ErrDeadlock within a second, so that program is probably stopped." +
		shown.Either(slices.ContainsFunc(l.Circle, func(w Wait) bool { return w.AnyOf }),
			" The work that has the other places waits so, too.", "")
	v.IfNothing = "They wait for each other until somebody gives up: for ever, if their waits have no limit. Their " +
		"leases are renewed all the time."
	end := Step{Do: say("Choose one that may lose its work, and end that program: %s. Its lock is free within its "+
		"TTL, and the others go on.", strings.Join(programs(l.Circle), " or "))}
	advice := Step{Do: "Then tell the developers: ask for the second lock with the context of the first lease, or " +
		"take all locks with AcquireAll, or in one order."}
	if isDeadlock(l.Circle) {
		v.Steps = []Step{end, l.breakLeast(), again("Then look again, whether the deadlock is gone.", l.Lock), advice}
		l.add(v)
		return
	}
	v.Severity = SeverityBusy
	if !slices.ContainsFunc(l.Circle, func(w Wait) bool { return min(w.Waiting, w.HeldFor) < 10*standing }) {
		v.Severity = SeverityNote // the overview has it: in most programs work does not last so long
	}
	v.Text = say("Perhaps a deadlock: %s.", strings.Join(links, "; "))
	v.Because = say("Not sure. All that has been so for %s and longer. But pglock does not know whether the work "+
		"that holds is the work that waits: another line of work of the same program may wait, or a program has asked "+
		"for its second lock without the context of its first lease. In a deadlock of that kind nobody gets "+
		"ErrDeadlock.", shown.Age(standing))
	v.IfNothing = "If other work waits, all go on when the work under these leases ends. If it is the same work, " +
		"they wait for each other until somebody gives up: for ever, if their waits have no limit."
	end.Do = "Only if it is the same work: " + strings.ToLower(end.Do[:1]) + end.Do[1:]
	v.Steps = []Step{
		again("Look again in some minutes. If a lease or a wait is a new one, it is no deadlock.", l.Lock),
		{Do: say("If nothing changes, see in the logs of these programs what the work under each lease does: %s.",
			strings.Join(programs(l.Circle), ", "))},
		end, l.breakLeast(), advice}
	l.add(v)
}

// perhaps reports whether the verdict is a circle that may be none: the lock itself may also be told of.
func (v Verdict) perhaps() bool { return v.Kind == whyCircle && v.Severity != SeverityStuck }

// breakLeast breaks the youngest lease of the circle.
func (l *look) breakLeast() Step {
	least, waiter := 0, l.Circle[0].Waiter
	for n, w := range l.Circle {
		if w.HeldFor <= l.Circle[least].HeldFor {
			least, waiter = n, w.Waiter
		}
	}
	w := l.Circle[least]
	step := l.breakStep(w.held(), w.Token, w.Holder, circleReason+shown.Text(waiter))
	step.Do = "Or break one lease."
	step.Effect = say("%s loses %s at once, and its fenced writes are refused: its work under that lock is lost and "+
		"must be done again. %s gets the lock, ends its work, and lets go of both.", label(w.Holder), word(w.held()),
		label(waiter))
	if len(l.Circle) > 1 {
		step.Do = say("Or break one lease. That of %s costs the least work, going by the time: it has held its lock "+
			"for %s.", label(w.Holder), w.HeldFor)
		var others []string
		for n, o := range l.Circle {
			if n != least {
				others = append(others, say("%s, token %d, held by %s for %s", word(o.held()), int64(o.Token),
					label(o.Holder), o.HeldFor))
			}
		}
		step.Effect += " The others: " + strings.Join(others, "; ") + "."
	}
	return step
}

func programs(waits []Wait) (all []string) {
	for _, w := range waits {
		if p := label(w.Waiter); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

func (l *look) waitsVerdict() {
	if isDeadlock(l.Circle) {
		return
	}
	for _, w := range l.Waits {
		if w.Holds != l.Lock || !w.SameOwner || w.Waiting < unremarkable {
			continue
		}
		v := Verdict{Kind: whyWaits, Severity: l.grave(), Who: w.Waiter, Since: l.since(w.Waiting)}
		v.Text = l.heldBy(label(w.Waiter)) + say(", which waits itself: for lock %s, %s. It has waited for %s.",
			word(w.For), w.which(), w.Waiting)
		v.Because = "Sure: it has a ticket in the queue of that lock, and the same line of work holds this one."
		v.IfNothing = say("%s goes on when it gets %s, and lets go of %s after its work.", label(w.Waiter),
			word(w.For), l.lock())
		v.Steps = []Step{again("The cause is there: look at that lock.", w.For),
			again("Then at this one again.", l.Lock)}
		l.add(v)
		return
	}
}

// perhapsWaits is a wait for another lock by a program that holds this one, if nobody knows whether it is the same line
// of work; nil if there is none.
func (l *look) perhapsWaits() *Wait {
	if len(l.Circle) > 0 { // that says it
		return nil
	}
	n := slices.IndexFunc(l.Waits, func(w Wait) bool {
		return w.Holds == l.Lock && !w.SameOwner && !w.inTurn() && w.Waiting >= unremarkable
	})
	if n < 0 {
		return nil
	}
	return &l.Waits[n]
}

// recently is how long ago something still counts as news.
const recently = 10 * time.Minute

func (l *look) freeVerdicts() {
	if l.State != LockFree || l.Last == nil {
		return
	}
	if l.alive() > 0 {
		l.betweenVerdict()
		return
	}
	last := l.Last
	if l.rowKept() || l.historyVerdict(last.ExpiresAt) {
		return
	}
	v := Verdict{Kind: whyFree, Severity: SeverityOK, Who: last.Holder}
	switch ended := last.EndedAt; {
	case ended.IsZero() && last.ExpiresAt.IsZero(): // its row was made by somebody who waited or watched
		v.Text, v.Who = say("%s is free: nobody has held it yet, and nobody waits for it.", l.lock()), ""
	case !ended.IsZero():
		// without the right to read them, a break looks the same
		how := shown.Either(l.Events == nil, "by a release or a break", "by a release")
		v.Text = say("%s is free: nobody holds it, and nobody waits for it. The last holder was %s; its lease ended "+
			"%s ago, %s.", l.lock(), label(last.Holder), l.At.Sub(ended), how)
	default:
		v.Text = say("%s is free: nobody holds it, and nobody waits for it. The last holder was %s; its lease ran "+
			"out %s ago, without a release.", l.lock(), label(last.Holder), l.At.Sub(last.ExpiresAt))
		v.Because = "A lease that runs out without a release means that its program died, was stopped, or lost its " +
			"connection for too long."
	}
	if b := l.lastBreak(); b != nil && b.NewToken >= last.Token {
		ago := l.At.Sub(b.At)
		v.Text = say("%s is free: %s broke the lease of %s %s ago. Nobody holds it now, and nobody waits for it.",
			l.lock(), label(b.Actor), label(b.Holder), ago)
		v.Because = say("The reason they gave: %s. The break stopped no program: if %s still runs, its fenced writes "+
			"are refused, and whatever it does without a fence goes on.", b.Reason, label(b.Holder))
		if ago < recently {
			v.Kind, v.Severity, v.Who, v.Since = whyBroken, SeverityNote, b.Actor, b.At
		}
	}
	if v.Kind == whyBroken {
		v.Steps = oldProgram(l.lastBreak().Holder)
	}
	v.Steps = append(v.Steps, Step{Do: "If a program cannot get it, check that it uses this database and schema.",
		Run: RunAdmin, Command: "list"})
	l.add(v)
}

// oldProgram is what to do about the program whose lease was broken; nothing if its label does not say which it is.
func oldProgram(holder string) []Step {
	host, pid := labelParts(holder)
	if pid == "" {
		return nil
	}
	return []Step{{Do: say("Make sure that the old program does no harm, on host %s.", host), Run: RunShell,
		Command: "ps -o pid,stat,etime,args -p " + pid,
		Effect: claimed + "No process there means that it is dead. If it still runs and does things without a " +
			"fence, end it."}}
}

// lastBreak is the newest break of the history, if nothing has come after it.
func (l *look) lastBreak() *HistoryEntry {
	for _, e := range l.Events {
		if e.Kind == EventBreak {
			return &e
		}
		if e.Kind == EventTakeover {
			return nil
		}
	}
	return nil
}

func (l *look) betweenVerdict() {
	if l.rowLocked() {
		return // that is why
	}
	if len(l.Obstacles) > 0 {
		l.treeVerdict()
		return
	}
	first := l.Queue.Alive
	over := later(cmp.Or(l.Last.EndedAt, l.Last.ExpiresAt), l.clear)
	since := l.At.Sub(over)
	v := Verdict{Kind: whyBetween, Severity: SeverityNote, Who: first.Holder, Since: over}
	v.Text = say("Nobody has held %s for %s, and %s for it: it goes from one holder to the next.", l.lock(), since,
		waitWord(l.alive()))
	v.Because = "That takes a moment, up to about a second after a lease that has run out."
	v.Steps = []Step{again("Look again.", l.Lock)}
	if l.historyVerdict(over) {
		return
	}
	if since > 3*time.Second {
		v.Kind, v.Severity = whyTurn, SeverityStuck
		v.Text = say("Nobody has held %s for %s, although %s for it. It is the turn of %s, which does not take it.",
			l.lock(), since, waitWord(l.alive()), label(first.Holder))
		v.Because = "That program has shown a sign of life not long ago. Probably it was stopped or cut off since then."
		v.IfNothing = "When it gives no sign of life for 10s (by default), the queue passes over it."
		v.Steps = []Step{again("Wait ten seconds, and look again.", l.Lock),
			l.find(HolderFacts{LockInfo: pglock.LockInfo{Holder: first.Holder}}, "If ps shows STAT T, it is "+
				"stopped. Ending it lets the next waiter go on.")}
	}
	l.add(v)
}

func (l *look) deadVerdict() {
	n := l.Queue.Dead
	if n == 0 {
		return
	}
	also := shown.Either(l.alive() > 0, " more", "")
	what := several(n, "1"+also+" waiter is", "%d"+also+" waiters are")
	if l.Queue.Waiting > l.Queue.Read {
		what = say("Of the first %d, %s", l.Queue.Read, what)
	}
	v := Verdict{Kind: whyDeadWaiters, Severity: SeverityOK, Text: what + " passed over: no sign of life. " +
		"That does no harm.",
		Because: "Their programs have given no sign of life for longer than their session allows.",
		Steps:   []Step{{Do: "Nothing to do. Do not delete them by hand."}}}
	if l.rowLocked() {
		v.Text = say("%s not heard from. The row lock may be why.", what)
	}
	l.add(v)
}

func (l *look) guardVerdict() {
	if len(l.Guards) == 0 {
		return
	}
	g := l.Guards[0]
	v := Verdict{Kind: whyGuard, Severity: SeverityWarning, Who: "table " + g.Table}
	v.Text = say("The guard of table %s is broken: %s.", g.Table, g.Problem)
	v.Text += more(len(l.Guards)-1, " So is that of 1 more table of this lock.",
		" So are those of %d more tables of this lock.")
	v.Because = "Sure: the catalog has it. Somebody has changed the table, its triggers or its rights since it was " +
		"put under guard."
	v.IfNothing = "Programs without the lock, and holders that have lost it, may write to the table."
	if strings.Contains(g.Problem, "REVOKE TRIGGER ") {
		v.Steps = append(v.Steps, Step{Do: "As the table's owner run the REVOKE that stands above. Ask who was given " +
			"the right, and why.",
			Effect: "Nobody else can make triggers on the table any more. Those that are there stay."})
	}
	if hasNoKey(g) {
		if v.IfNothing = "Nobody can write a row whose key cannot be read, not even a holder."; strings.Contains(
			g.Problem, "; ") {
			v.IfNothing += " What else the guard lacks lets others in."
		}
		v.Steps = append(v.Steps, guardStep("guard drop "+shown.Argument(g.Table)+" --yes", Step{
			Do: "Drop the guard, as the table's owner: by that column it cannot be made again.",
			Effect: "It waits for open transactions that have read or written the table. Until there is another " +
				"guard, programs without the lock may write to the table."}),
			Step{Do: "Then put the table under guard by another key: guard add TABLE --key COLUMN."})
		l.add(v)
		return
	}
	command := say("guard add %s --resource %s", shown.Argument(g.Table), shown.Argument(g.Resource))
	if g.Key != "" {
		command += " --key " + shown.Argument(g.Key)
	}
	v.Steps = append(v.Steps, guardStep(command, Step{Do: "Put the table under guard again, as its owner.",
		Effect: "Adds what is missing and replaces what is not as it was made. It waits for open writes."}))
	l.add(v)
}

// hasNoKey tells of a guard whose key column is gone, or can be a key no more: guard add refuses it.
func hasNoKey(g BrokenGuard) bool {
	return g.Key != "" && (strings.Contains(g.Problem, " has no column ") ||
		strings.Contains(g.Problem, ": drop the guard"))
}

// guardStep has the command if that can be shown as it is.
func guardStep(command string, s Step) Step {
	if shown.AllPrint(command) {
		s.Run, s.Command = RunAdmin, command
	}
	return s
}

func (l *look) pastVerdicts() {
	for _, h := range l.Holders {
		if h.SlowestRenewal > h.TTL*6/10 {
			l.add(Verdict{Kind: whyGap, Severity: SeverityWarning,
				Text: say("%s has nearly lost %s before: once it did not renew for %s, and the lease lasts %s.",
					label(h.Holder), l.lock(),
					shown.Age(h.SlowestRenewal), shown.Duration(h.TTL)),
				Because: "Sure: the server measures it. The program paused, or it could not reach the server.",
				Steps: []Step{{Do: "Find out what paused it (garbage collection, a busy machine, the network), or " +
					"use a longer TTL."}}})
			break
		}
	}
	bySlot := make(map[int][]time.Time) // a program may hold several slots, and lose all of them at once
	var lost []time.Time                // of the slot that was lost most often, newest first
	var holders []string
	times := 0
	for _, e := range l.Events {
		if e.Kind == EventTakeover && l.At.Sub(e.At) < time.Hour {
			times++
			bySlot[e.Slot] = append(bySlot[e.Slot], e.At)
			if len(bySlot[e.Slot]) > len(lost) {
				lost = bySlot[e.Slot]
			}
			if who := label(e.Holder); !slices.Contains(holders, who) && len(holders) < 3 {
				holders = append(holders, who)
			}
		}
	}
	if n := len(lost); n >= 3 {
		v := Verdict{Kind: whyLosses, Severity: SeverityWarning, Who: strings.Join(holders, ", "), Since: lost[n-1]}
		if l.At.Sub(lost[0]) < recently {
			v.Kind = whyFlapping
		}
		v.Text = say("%d times in the last hour a holder lost this lock because its lease ran out (%s), the last "+
			"time %s ago.", times, v.Who, l.At.Sub(lost[0]))
		v.Because = "Sure: the history has it. Programs crash, pause for longer than the lease lasts, or cannot " +
			"reach the server."
		v.Steps = []Step{{Do: "See when that was, and who.", Run: RunAdmin, Command: "history " + shown.Name(l.Lock)},
			{Do: "Find out why these programs ended or paused. If they pause (garbage collection, a busy machine), " +
				"use a longer TTL."}}
		l.add(v)
	}
}
