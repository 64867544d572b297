package lockadmin

import (
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// A holder that gives no sign of life keeps nobody for longer than its lease: whoever waits gets the lock before a
// person could act. Then there is no other verdict, such as that it lives.
func TestNobodyIsStuckForAMoment(t *testing.T) {
	t.Parallel()
	left := func(d time.Duration) HolderFacts { return holderOf(30*time.Second - d) }
	hangs := lookAt(left(time.Second)).queued(time.Second, true)
	hangs.Processes[0] = Backend{Use: BackendHeartbeat, PID: 20001, Token: 2, State: "active", Query: 9 * time.Second}
	places := lookAt(holderOf(0), left(soon)).queuedAs(pglock.ModeLimit)
	for n := range places.Holders {
		places.Holders[n].Mode = pglock.ModeLimit
	}
	for name, c := range map[string]struct {
		look     *look
		kind     string
		severity Severity
	}{
		"more than a moment is left": {lookAt(left(soon+time.Millisecond)).queued(time.Second, true), whyStopped,
			SeverityStuck},
		"the lease ends":            {lookAt(left(soon)).queued(time.Second, true), whyStopped, SeverityBusy},
		"that of one of two places": {places, whyStopped, SeverityBusy},
		"nobody waits":              {lookAt(left(soon)), whyStopped, SeverityWarning},
		"its renewal hangs":         {hangs, whyHeartbeat, SeverityStuck},
		"its write stands there":    {besideWrite(left(soon)), whyIdle, SeverityStuck},
	} {
		c.look.conclude()
		v := c.look.Verdicts[0]
		if v.Kind != c.kind || v.Severity != c.severity || c.look.Severity != c.severity {
			t.Errorf("%s: %q, %s, want %q, %s: %s", name, v.Kind, v.Severity, c.kind, c.severity, v.Text)
		}
		if v.Severity == SeverityBusy && (len(c.look.Verdicts) != 1 || len(v.Steps) != 1 ||
			v.Steps[0].Command != "why report" ||
			!strings.HasSuffix(v.Text, " In 3s the lease ends; then app-2/reporter[963] gets it, the first of 1 "+
				"waiter.")) {
			t.Errorf("%s: %+v", name, c.look.Verdicts)
		}
	}
}

// queuedAs is queued for somebody who waits with that mode.
func (l *look) queuedAs(mode pglock.Mode) *look {
	l.queued(time.Second, true).Queue.Alive.Mode = mode
	return l
}

// Whoever needs more than this lease is not said to get the lock when it ends.
func TestWhoStillWaitsForOthersDoesNotGetTheLock(t *testing.T) {
	t.Parallel()
	soonOver := holderOf(30*time.Second - soon)
	two, below := lookAt(holderOf(0), soonOver), lookAt(soonOver)
	below.Obstacles = []Obstacle{{Lock: "report/1"}}
	for want, l := range map[string]*look{
		"then app-2/reporter[963] still waits for the other holder.": two.queuedAs(pglock.ModeExclusive),
		"then app-2/reporter[963] still waits for report/1.":         below.queuedAs(pglock.ModeExclusive),
	} {
		l.conclude()
		if v := l.Verdicts[0]; v.Severity != SeverityBusy || !strings.HasSuffix(v.Text, want) {
			t.Errorf("%s: %s, want …%s", v.Severity, v.Text, want)
		}
	}
}

// besideWrite is a holder whose fenced write is open and idle, while somebody waits.
func besideWrite(h HolderFacts) *look {
	l := writing(time.Minute)
	l.Holders = []HolderFacts{h}
	return l
}
