package lockadmin

import (
	"strings"
	"testing"
	"time"
)

// with adds processes to a look.
func (l *look) with(processes ...Backend) *look {
	l.Processes = append(l.Processes, processes...)
	return l
}

// Programs of pglock lock the row too. Nobody is accused whose transaction may be one of theirs, in the middle of its
// commit; and a holder that is dead is told, whoever has locked the row at that moment.
func TestWhoHasLockedTheRowForAMomentIsNoPersonOrScript(t *testing.T) {
	t.Parallel()
	commits := Backend{Use: BackendRow, PID: 30001, User: "app", State: "active", Transaction: 2 * time.Second,
		Query: 2 * time.Second, WaitsFor: "IO: WalSync"}
	long := commits
	long.Transaction, long.Query = 11*time.Second, 11*time.Second
	idle := Backend{Use: BackendRow, PID: 30001, User: "alice", State: "idle in transaction", InState: time.Second,
		Transaction: time.Second}
	between := idle
	between.InState = 10 * time.Millisecond
	hidden := Backend{Use: BackendRow, PID: 30001, User: "app", Hidden: true}
	waiting := func(since time.Duration) *look { return lookAt(holderOf(since)).queued(time.Minute, true) }
	free := func(since time.Duration) *look {
		l := lookAt().queued(time.Minute, true)
		l.State, l.Last = LockFree, &HolderFacts{}
		l.Last.EndedAt = l.At.Add(-since)
		return l
	}
	for name, c := range map[string]struct {
		l     *look
		kinds string // of the verdicts
		sure  bool
	}{
		"a commit on a slow disk":        {waiting(time.Second).with(commits), "row slow", false},
		"between two statements":         {waiting(time.Second).with(between), "row slow", false},
		"a commit, and nobody waits":     {lookAt(holderOf(time.Second)).with(commits), "row held", false},
		"a commit, and a stopped holder": {waiting(19 * time.Second).with(commits), "stopped row", false},
		"a long statement":               {waiting(time.Second).with(long), "row", true},
		"somebody's psql":                {waiting(time.Second).with(idle), "row", true},
		"hidden":                         {waiting(time.Second).with(hidden), "row slow", false},
		"hidden, and no renewal":         {waiting(19 * time.Second).with(hidden), "row", true},
		"hidden, and just free":          {free(time.Second).with(hidden), "row", false},
		"hidden, and free for long":      {free(time.Minute).with(hidden), "row", true},
	} {
		c.l.conclude()
		var kinds []string
		for _, v := range c.l.Verdicts {
			kinds = append(kinds, v.Kind)
			if v.Kind != whyRow {
				continue
			}
			if sure := strings.HasPrefix(v.Because, "Sure"); sure != c.sure ||
				(v.Severity == SeverityStuck) != c.sure || (v.Severity == SeverityBusy) == c.sure {
				t.Errorf("%s: %s: %s", name, v.Severity, v.Because)
			}
			accused := strings.Contains(v.Because, "so this is a person or a script")
			if hidden := c.l.using(BackendRow)[0].Hidden; accused != (c.sure && !hidden) {
				t.Errorf("%s: %s", name, v.Because)
			}
			if !c.sure && v.Steps[0].Command != "why report" {
				t.Errorf("%s: %+v", name, v.Steps)
			}
		}
		if got := strings.Join(kinds, " "); got != c.kinds {
			t.Errorf("%s: %s, want %s", name, got, c.kinds)
		}
	}
}

// Whoever asks for a free lock waits for its row, and has no ticket yet: it waits in vain all the same.
func TestWhoeverAsksForAFreeLockWaitsForItsRow(t *testing.T) {
	t.Parallel()
	l := lookAt().with(
		Backend{Use: BackendRow, PID: 30001, User: "alice", State: "idle in transaction", InState: 9 * time.Second,
			Transaction: 9 * time.Second},
		Backend{Use: BackendAtRow, PID: 30002, User: "app", State: "active", BlockedBy: []int{30001}})
	l.State, l.Last = LockFree, &HolderFacts{}
	l.conclude()
	if v := l.Verdicts[0]; len(l.Verdicts) != 1 || v.Kind != whyRow || v.Severity != SeverityStuck ||
		!strings.Contains(v.Text, "1 process that wants the free lock") {
		t.Errorf("%+v", l.Verdicts)
	}
}

// A prepared transaction that has locked the row keeps the holder from renewing, and from letting go.
func TestAPreparedTransactionKeepsTheHolderFromRenewing(t *testing.T) {
	t.Parallel()
	l := lookAt(holderOf(19*time.Second)).queued(time.Minute, true).with(
		Backend{Use: BackendRow, Prepared: "transfer", User: "app", State: "prepared", Transaction: 15 * time.Second})
	l.conclude()
	if v := l.Verdicts[0]; len(l.Verdicts) != 1 || v.Kind != whyPrepared ||
		!strings.Contains(v.IfNothing, "can neither renew nor release its lease, which then ends in 11s. After that "+
			"nobody gets report.") {
		t.Errorf("%+v", l.Verdicts)
	}
}

// A renewal that waits for a standby has locked the row, too: that keeps nobody from saying so.
func TestARenewalThatWaitsForAStandbyIsNoPersonOrScript(t *testing.T) {
	t.Parallel()
	l := lookAt(holderOf(20*time.Second)).queued(time.Minute, true)
	heart := Backend{Use: BackendHeartbeat, PID: 20001, Token: 2, State: "active", Query: 18 * time.Second,
		Transaction: 18 * time.Second, WaitsFor: "IPC: SyncRep"}
	row := heart
	row.Use, row.Token = BackendRow, 0
	l.Processes = []Backend{heart, row}
	l.conclude()
	var kinds []string
	for _, v := range l.Verdicts {
		kinds = append(kinds, v.Kind)
		for _, s := range v.Steps {
			if strings.Contains(s.Command, "_backend(") {
				t.Errorf("%s: %+v", v.Kind, s)
			}
		}
		if strings.Contains(v.Because, "a person or a script") {
			t.Errorf("%s: %s", v.Kind, v.Because)
		}
	}
	if got := strings.Join(kinds, " "); got != "row heartbeat" {
		t.Errorf("%s, want both", got)
	}
}
