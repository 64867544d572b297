package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The screen. It shows the verdicts in full, the facts in a line or two each, and the steps of the gravest verdict. If
// there is nothing to do, it has three lines.

const whyWidth = 100

// DrawWhy draws an explanation for people.
func DrawWhy(w *cli.Page, o *cli.Options, e lockadmin.Explanation) {
	width := w.AtMost(whyWidth)
	if IsWell(e) || isSoon(e) {
		drawWell(w, o, e, width)
		return
	}
	first := e.Verdicts[0]
	fmt.Fprintf(w, "\n%s\n", behind(cli.Mark(first.Severity)+"  ", first.Text, width))
	because := first.Because
	if first.Statement != "" {
		because += " Its last statement: " + first.Statement
	}
	for _, more := range [][2]string{{"", because}, {"If you do nothing: ", first.IfNothing}} {
		if more[1] != "" {
			fmt.Fprintln(w, behind("  ", more[0]+more[1], width))
		}
	}
	for _, v := range e.Verdicts[1:] {
		also := shown.Either(GoesOn(first.Severity) && !GoesOn(v.Severity), fmt.Sprintf("Also, a %s: ", v.Severity),
			"Also: ")
		fmt.Fprintln(w, behind("  ", also+v.Text, width))
	}
	if facts := whyFacts(e); len(facts) > 0 {
		fmt.Fprintln(w)
		for _, f := range facts {
			fmt.Fprintln(w, behind(fmt.Sprintf("  %-9s ", f[0]), f[1], width))
		}
	}
	steps := whySteps(e)
	if len(steps) > 0 {
		fmt.Fprintf(w, "\nWHAT TO DO NEXT\n")
	}
	leftOut := false
	for n, s := range steps {
		fmt.Fprintln(w, behind(fmt.Sprintf("  %d. ", n+1), s.Do, width))
		if s.Command != "" && !isSame(s, e.Lock) {
			command := command(o, s)
			fmt.Fprintf(w, "       %s\n", command)
			leftOut = leftOut || o.LeavesOut(command)
		}
		effect := s.Effect
		if s.Needs != "" {
			effect = strings.TrimSpace(effect + " Needs " + s.Needs + ".")
		}
		if effect != "" {
			fmt.Fprintln(w, behind("     ", effect, width))
		}
	}
	if leftOut {
		fmt.Fprintln(w, behind("  ", "The commands leave out the password: "+cli.PasswordFirst+".", width))
	}
}

// IsWell reports whether there is nothing to do, and nothing to say about the queue or the past.
func IsWell(e lockadmin.Explanation) bool {
	return len(e.Verdicts) == 1 && e.Verdicts[0].Severity == lockadmin.SeverityOK
}

// isSoon reports whether the lock serves its users, and there is nothing to do but to look again.
func isSoon(e lockadmin.Explanation) bool {
	return len(e.Verdicts) == 1 && GoesOn(e.Verdicts[0].Severity) &&
		!slices.ContainsFunc(e.Verdicts[0].Steps, func(s lockadmin.Step) bool { return !isSame(s, e.Lock) })
}

// GoesOn says that the lock serves its users as it should.
func GoesOn(s lockadmin.Severity) bool {
	return s == lockadmin.SeverityOK || s == lockadmin.SeverityBusy
}

// drawWell leaves out what the sentences say already, and what show tells.
func drawWell(w *cli.Page, o *cli.Options, e lockadmin.Explanation, width int) {
	v := e.Verdicts[0]
	fmt.Fprintf(w, "\n%s\n", behind(cli.Mark(v.Severity)+"  ", strings.TrimSpace(v.Text+" "+v.Because), width))
	for _, f := range whyFacts(e) {
		if f[0] == "holder" || f[0] == "before" || f[0] == "unseen" {
			fmt.Fprintln(w, behind(fmt.Sprintf("  %-9s ", f[0]), f[1], width))
		}
	}
	for _, s := range v.Steps {
		if s.Command == "" || isSame(s, e.Lock) {
			fmt.Fprintln(w, behind("  ", s.Do, width))
		} else if line := "  " + strings.TrimSuffix(shown.Line(s.Do), ".") + ": " +
			command(o, s); len([]rune(line)) <= width {
			fmt.Fprintln(w, line)
		} else {
			fmt.Fprintf(w, "%s\n     %s\n", behind("  ", s.Do, width), command(o, s))
		}
	}
}

// isSame reports whether a step is to look again, as the reader has just done.
func isSame(s lockadmin.Step, lock string) bool {
	return s.Run == lockadmin.RunAdmin && s.Command == "why "+shown.Name(lock) && s.Database == "" && s.Schema == ""
}

// behind escapes a text and wraps it behind a mark, and indents its other lines as far.
func behind(mark, text string, width int) string {
	n, text := len([]rune(mark)), shown.Line(text)
	if width-n < cli.LeastWidth {
		n = min(n, 4)
		return strings.TrimRight(mark, " ") + cli.Indented("\n"+cli.Wrapped(text, max(width-n, 10)), n)
	}
	return mark + cli.Indented(cli.Wrapped(text, width-n), n)
}

// whySteps are those of the first verdict, and of others that are as grave. If the lock is well now, what is wrong with
// its past counts too; and if there is nothing to do about the first, what is said of the next.
func whySteps(e lockadmin.Explanation) []lockadmin.Step {
	steps := e.Verdicts[0].Steps
	const most = 5
	for _, v := range e.Verdicts[1:] {
		if len(steps) == 0 {
			steps = v.Steps
			continue
		}
		grave := v.Severity == lockadmin.SeverityStuck && e.Severity == v.Severity ||
			v.Severity == lockadmin.SeverityWarning && GoesOn(e.Severity)
		if grave && len(steps)+len(v.Steps) <= most {
			steps = slices.Concat(steps, v.Steps)
		}
	}
	told := map[[3]string]bool{}
	return slices.DeleteFunc(slices.Clone(steps), func(s lockadmin.Step) bool { // two may end with the same process
		what := [3]string{s.Command, s.Database, s.Schema} // the same command elsewhere is another
		again := s.Command != "" && told[what]
		told[what] = true
		return again
	})
}

// whyFacts are the facts, in the order in which one asks for them.
func whyFacts(e lockadmin.Explanation) (facts [][2]string) {
	add := func(name, text string) { facts = append(facts, [2]string{name, text}) }
	rest := func(n int, what string) {
		if n > 0 {
			add("", fmt.Sprintf("and %d more%s", n, what))
		}
	}
	const most = 3
	for _, h := range e.Holders[:min(most, len(e.Holders))] {
		add("holder", fmt.Sprintf("%s, %s, token %d, for %s (since %s)", shown.Text(h.Holder),
			look.SlotText(h.LockInfo),
			int64(h.Token), shown.Age(h.HeldFor), h.AcquiredAt.UTC().Format("15:04:05 UTC")))
		add("lease", leaseText(h))
	}
	rest(len(e.Holders)-most, " holders")
	for _, o := range e.Obstacles[:min(most, len(e.Obstacles))] {
		add(o.Place(e.Lock), obstacleText(o))
	}
	rest(len(e.Obstacles)-most, " in the way")
	if l := e.Last; l != nil && !(l.EndedAt.IsZero() && l.ExpiresAt.IsZero()) {
		add("last", fmt.Sprintf("%s, %s, token %d", shown.Text(l.Holder), look.SlotText(l.LockInfo), int64(l.Token)))
	}
	if q := e.Queue; q.Waiting > 0 {
		add("queue", queueText(q, e.Standby == nil))
	} else if e.State == lockadmin.LockHeld || e.State == lockadmin.LockFree {
		add("queue", "nobody waits")
	}
	for _, w := range e.Waits[:min(most, len(e.Waits))] {
		if len(e.Circle) == 0 && w.Holds == e.Lock {
			whose := shown.Either(w.SameOwner, "", " (perhaps another line of its work)")
			by := shown.Either(w.By != "", ", and so for "+shown.Name(w.By), "")
			add("waits for", fmt.Sprintf("%s waits for lock %s%s of %s, for %s%s", shown.Text(w.Waiter),
				shown.Name(w.For), by, shown.Text(w.Holder), shown.Age(w.Waiting), whose))
		}
	}
	if hidden := slices.IndexFunc(e.Holders, func(h lockadmin.HolderFacts) bool {
		return h.Connected == nil && h.Life == lockadmin.LifeAlive
	}); hidden >= 0 && e.Standby == nil {
		add("server", fmt.Sprintf("no process is known for the heartbeat of %s, as behind a pooler such as PgBouncer",
			shown.Text(e.Holders[hidden].Holder)))
	}
	for _, b := range e.Processes[:min(most+1, len(e.Processes))] {
		add("server", processText(b))
	}
	rest(len(e.Processes)-most-1, ": pglock-admin show")
	for _, ev := range e.Events[:min(most, len(e.Events))] {
		add("before", shown.Age(e.At.Sub(ev.At))+" ago: "+look.Tell(ev))
	}
	for _, u := range e.Unseen {
		add("unseen", u)
	}
	return facts
}

func obstacleText(o lockadmin.Obstacle) string {
	what := shown.Either(o.Token == 0, fmt.Sprintf("waits, ticket %d", o.Ticket), fmt.Sprintf("token %d", o.Token))
	return fmt.Sprintf("%s, %s, %s, %s, for %s (since %s)", shown.Name(o.Lock), shown.Text(o.Holder),
		look.ModeText(o.Mode, 0, o.Subtree), what, shown.Age(o.For), o.Since.UTC().Format("15:04:05 UTC"))
}

func leaseText(h lockadmin.HolderFacts) string {
	text := fmt.Sprintf("%s %s of %s left", cli.LeaseCells(h.LockInfo.Remaining, h.TTL, 10),
		shown.Age(h.LockInfo.Remaining), shown.Duration(h.TTL))
	if h.LockInfo.Remaining > h.TTL {
		text = fmt.Sprintf("%s %s left (extended for a long write)", cli.LeaseCells(1, 1, 10),
			shown.Age(h.LockInfo.Remaining))
	}
	if !h.Renewed {
		return fmt.Sprintf("%s; not renewed yet, due every %s", text, shown.Age(h.TTL/3))
	}
	text += fmt.Sprintf("; renewed %s ago, due every %s", shown.Age(h.SinceRenewal), shown.Age(h.TTL/3))
	if h.SlowestRenewal > h.SinceRenewal {
		text += fmt.Sprintf(", longest gap %s", shown.Age(h.SlowestRenewal))
	}
	return text
}

func queueText(q lockadmin.QueueFacts, telling bool) string {
	alive := q.Waiting - q.Dead
	text := shown.Either(alive == 1, "1 waits", fmt.Sprintf("%d wait", alive))
	if alive == 0 {
		text = "nobody waits"
	}
	if q.Dead > 0 {
		text += fmt.Sprintf(", and %d %s passed over", q.Dead, shown.Either(q.Dead == 1, "is", "are"))
	}
	var next []string
	for _, w := range q.First {
		if w.Alive || !telling {
			next = append(next, shown.Text(w.Holder)+" "+shown.Age(w.Waiting))
		}
	}
	if a := q.Alive; len(next) == 0 && a != nil {
		next = append(next, shown.Text(a.Holder)+" "+shown.Age(a.Waiting))
	}
	if len(next) == 0 {
		return text
	}
	return text + "; next: " + strings.Join(next[:min(3, len(next))], ", ")
}

func processText(b lockadmin.Backend) string {
	if b.Prepared != "" {
		return fmt.Sprintf("prepared transaction %s of user %s, %s old: %s", shown.Text(b.Prepared),
			shown.Text(b.User), shown.Age(b.Transaction), useText(b))
	}
	text := "process " + strconv.Itoa(b.PID)
	if b.Application != "" {
		text += " " + shown.Text(b.Application)
	}
	text += ", user " + shown.Text(b.User) + ": " + useText(b)
	switch {
	case b.Hidden:
		text += "; hidden"
	case b.State != "" && (b.Use != lockadmin.BackendHeartbeat || b.State != "idle"):
		text += "; " + shown.Text(b.State) + " for " + shown.Age(b.InState)
		if b.Transaction > 0 && b.Transaction > b.InState {
			text += ", transaction open for " + shown.Age(b.Transaction)
		}
	}
	var pids []string
	for _, p := range b.BlockedBy {
		if p != 0 { // that is a prepared transaction
			pids = append(pids, strconv.Itoa(p))
		}
	}
	if len(pids) > 0 {
		text += "; waits for process " + strings.Join(pids[:min(3, len(pids))], ", ")
	}
	if b.BlockedByPrepared != "" {
		text += "; waits for prepared transaction " + shown.Text(b.BlockedByPrepared)
	} else if len(pids) < len(b.BlockedBy) {
		text += "; waits for a prepared transaction"
	}
	return text
}

func useText(b lockadmin.Backend) string {
	return cmp.Or(map[lockadmin.BackendUse]string{
		lockadmin.BackendHeartbeat: "the holder's heartbeat",
		lockadmin.BackendWrite:     "has passed " + fenceText(b),
		lockadmin.BackendAtFence:   "waits at " + fenceText(b),
		lockadmin.BackendRow:       "has locked the lock's row",
		lockadmin.BackendAtRow:     "waits for the lock's row",
	}[b.Use], "blocks another")
}

func fenceText(b lockadmin.Backend) string {
	return shown.Either(b.Resource == "", "a fence that nobody had passed before",
		"the fence of "+shown.Text(b.Resource))
}
