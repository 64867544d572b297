package lockadmin

import (
	"time"

	"github.com/pglock-dev/pglock/internal/shown"
)

// soon is what goes on by itself before anybody could have acted: nobody is stuck for that.
const soon = 3 * time.Second

// due is how often a holder renews: when a third of its TTL is over.
func due(h HolderFacts) time.Duration { return h.TTL / 3 }

type pulse int

const (
	onTime pulse = iota
	late         // one renewal is missing
	none         // there is time for no more than one
)

// pulseOf allows a renewal a quarter more than its time, and at least a quarter of a second.
func pulseOf(h HolderFacts) pulse {
	switch {
	case h.SinceRenewal <= due(h)+max(due(h)/4, 250*time.Millisecond):
		return onTime
	case h.SinceRenewal <= h.TTL*6/10:
		return late
	}
	return none
}

// gone reports that a holder's own connection was known, and has ended.
func gone(h HolderFacts) bool { return h.Connected != nil && !*h.Connected }

// signedSince reports that a holder gave a sign of life after its last renewal, and not just with that, or has not
// renewed yet.
func signedSince(h HolderFacts) bool {
	return h.Life == LifeAlive && (!h.Renewed || h.SinceRenewal-h.Silent > time.Second)
}

// quiet reports that a holder gives no sign of life. One whose tickets alone count no more does.
func quiet(h HolderFacts) bool {
	return (h.Life == LifeSilent || h.Life == LifeDead) && (h.SignedAt.IsZero() || h.Silent > 15*time.Second)
}

// signDue is how often a holder gives a sign of life.
func signDue(h HolderFacts) time.Duration { return min(due(h), 10*time.Second) }

// pulseVerdict is about a holder that does not renew in time, or gives no sign of life.
func (l *look) pulseVerdict(h HolderFacts) {
	p, quiet := pulseOf(h), quiet(h)
	if p == onTime && !quiet {
		return
	}
	does, of, lasts, every := "does not renew", "it has not renewed for %s", h.SinceRenewal, due(h)
	if !h.Renewed {
		of = "it has never renewed since it got the lock %s ago"
	}
	if p == onTime { // no renewal is due
		does, of, lasts, every = "gives no sign of life", "it has given no sign of life for %s", h.Silent, signDue(h)
		if h.SignedAt.IsZero() {
			of, lasts = "it has given no sign of life since it got the lock %s ago", h.HeldFor
		}
	}
	held, sure := l.heldBy(label(h.Holder)), say("Sure that it %s.", does)
	of, since := say(of+"; it should every %s", lasts, every), shown.Age(lasts)
	v := Verdict{Severity: l.grave(), IfNothing: say("In %s the lease ends; %s.", h.Remaining, l.next()), Who: h.Holder,
		Since: h.RenewedAt}
	if quiet { // its last sign of life, however long ago the last renewal was
		if v.Since = h.SignedAt; v.Since.IsZero() {
			v.Since = h.AcquiredAt
		}
	}
	heart := l.heartbeat(h)
	wait := again("Or wait until the lease ends, and look again.", l.Lock)
	switch {
	case hangs(heart):
		v.Kind, v.Text = whyHeartbeat, held+", whose renewal hangs in the server: "+of+"."
		v.Because = say("Sure: server process %d has worked on the renewal for %s", heart.PID, heart.Query)
		if heart.WaitsFor != "" {
			v.Because += ", and waits for " + heart.WaitsFor
		}
		v.Because += "."
		if awaitsStandby(*heart) {
			v.Because += " SyncRep means: a commit waits for a standby that does not answer."
			v.Steps = append(v.Steps, bringStandbyBack(""))
		}
		v.Steps = append(v.Steps, Step{Do: "See what the server is busy with.", Run: RunAdmin, Command: "doctor"}, wait)
	case p != onTime && signedSince(h):
		v.Kind, v.Severity = whyLate, SeverityWarning
		v.Text = held + ", which is alive, and a renewal is late: " + of + "."
		v.Because = say("Its last sign of life came %s ago. A busy machine or server can delay renewals.", h.Silent)
		v.Steps = []Step{again("Look again in a few seconds.", l.Lock), wait}
		if p == none {
			v.Steps = append(v.Steps, l.breakHolder(h, "the holder does not renew for "+since))
		}
	case !quiet: // nor do the lists call it silent or dead
		v.Kind, v.Severity = whyLate, SeverityWarning
		ended := shown.Either(gone(h), ", and its connection to the server has ended", "")
		v.Text = held + ", and a renewal is late: " + of + ended + "."
		v.Because = "Not sure yet: a busy machine or a slow network can delay renewals" +
			shown.Either(ended != "", ", and a program that lives opens another connection within seconds", "") + "."
		v.Steps = []Step{again("Look again in a few seconds. If it still has not renewed, it is stopped, cut off or "+
			"dead.", l.Lock)}
	case heart != nil:
		v.Kind = whyStopped
		v.Text = held + ", and that program is stopped or cut off: " + of + ". Its heartbeat connection to the " +
			"server is still open."
		v.Because = sure + " A program that ends closes its connection; so this one probably exists and is paused " +
			"(stopped by a signal, in a debugger, on a frozen machine), or the network lost it."
		v.Steps = []Step{l.find(h, l.ifStopped(h)), l.breakHolder(h, "the holder "+does+" for "+since), wait}
	case gone(h):
		v.Kind = whyGone
		v.Text = held + ", and that program is dead or cut off: " + of + ", and its connection to the server has " +
			"ended."
		v.Because = sure + " A program that lives opens another connection within seconds, so this one was " +
			"probably killed, or it is cut off."
		v.Steps = []Step{l.find(h, l.ifDead(h)),
			l.breakHolder(h, "the holder is dead: no sign of life for "+since), wait}
	default:
		v.Kind = whySilent
		if h.SignedAt.IsZero() {
			v.Text = held + ", which gives no sign of life: " + of + "."
			v.Because = "Either it ended before its first sign of life, as when it dies while it waits for the lock, " +
				"or it is stopped or cut off. Only a program that calls the SQL functions itself, such as psql, may " +
				"live and give none."
		} else {
			v.Text = held + ", and that program is stopped, dead or cut off: " + of + "."
			v.Because = sure + " It has no connection of its own that can be seen, as behind a pooler such as " +
				"PgBouncer."
		}
		v.Steps = []Step{l.find(h, l.ifDead(h)+" "+l.ifStopped(h)),
			l.breakHolder(h, "the holder gives no sign of life for "+since), wait}
	}
	if v.Severity == SeverityStuck && v.Kind != whyHeartbeat && h.Remaining <= soon { // what hangs there stays
		v.Severity, v.Text, v.IfNothing = SeverityBusy, v.Text+" "+v.IfNothing, ""
		v.Steps = []Step{again("Wait until the lease ends, and look again.", l.Lock)}
	}
	l.add(v)
}

// hangs reports whether the server has worked on a renewal for long; heart may be nil.
func hangs(heart *Backend) bool {
	return heart != nil && heart.State == "active" && heart.Query > time.Second
}

// ifStopped says what to do about a program that ps shows as stopped.
func (l *look) ifStopped(h HolderFacts) string {
	_, pid := l.process(h)
	if pid == "" {
		return "If ps shows it with STAT T, it is stopped: kill -CONT and its number lets it go on."
	}
	return say("STAT T means stopped: kill -CONT %s lets it go on. kill -9 %s ends it: what it has not "+
		"committed or written to disk is lost.", pid, pid)
}

// ifDead says what a break then does; find has said before how that shows, if it knows the process.
func (l *look) ifDead(h HolderFacts) string {
	if _, pid := l.process(h); pid == "" {
		return "If it is dead, the break below harms nobody."
	}
	return "The break below then harms nobody."
}
