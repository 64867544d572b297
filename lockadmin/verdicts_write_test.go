package lockadmin

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// atTheFence is a holder whose write waits at the fence for process 30002, a former holder's write, which may wait too.
func atTheFence(passer Backend, others ...Backend) *look {
	l := lookAt(holderOf(time.Second))
	passer.Use, passer.PID, passer.Resource, passer.User = BackendWrite, 30002, "report", "app"
	l.Processes = append([]Backend{passer,
		{Use: BackendAtFence, PID: 30004, Resource: "report", State: "active", Query: 3 * time.Second,
			Transaction: 3 * time.Second, BlockedBy: []int{30005}},
		{Use: BackendAtFence, PID: 30005, Resource: "report", State: "active", Query: 4 * time.Second,
			Transaction: 4 * time.Second, BlockedBy: []int{30002}},
	}, others...)
	return l
}

// Whoever has passed the fence is named as that, and not whoever that one waits for.
func TestAWriteAtTheFenceWaitsForWhoeverHasPassedIt(t *testing.T) {
	t.Parallel()
	const long = 10 * time.Minute
	alice := Backend{Use: BackendBlocker, PID: 30003, User: "alice", State: "idle in transaction", InState: long}
	waits := Backend{State: "active", Query: long, Transaction: long, BlockedBy: []int{30003},
		BlockedAt: "a row of public.accounts"}
	behind := alice
	behind.PID = 30006
	between := Backend{Use: BackendBlocker, PID: 30003, User: "bob", State: "active", BlockedBy: []int{30006}}
	prepared := waits
	prepared.BlockedBy, prepared.BlockedByPrepared = nil, "transfer"
	for name, c := range map[string]struct {
		look     *look
		severity Severity
		text     string
		commands []string // of its steps
	}{
		"one that works": {atTheFence(Backend{State: "active", Query: long, Transaction: long}), SeverityWarning,
			"server process 30002 (user app) has passed it earlier and is still open.",
			[]string{"SELECT pg_cancel_backend(30002)", "SELECT pg_terminate_backend(30002)", "why report"}},
		"one that waits for its program's data": {atTheFence(Backend{State: "active", Query: long, Transaction: long,
			WaitsFor: "Client: ClientRead"}), SeverityWarning,
			"server process 30002 (user app) has passed it earlier and is still open.",
			[]string{"SELECT pg_terminate_backend(30002)", "why report"}},
		"one that waits": {atTheFence(waits, alice), SeverityWarning,
			"server process 30002 (user app) has passed it earlier and is still open. That transaction waits itself " +
				"for a row of public.accounts: server process 30003 (user alice) has locked it.",
			[]string{"SELECT pg_terminate_backend(30003)", "SELECT pg_terminate_backend(30002)", "why report"}},
		"one that waits for one that waits": {atTheFence(waits, between, behind).queued(time.Minute, true),
			SeverityStuck,
			"30002 (user app) has passed it earlier and is still open. That transaction waits itself for a row of " +
				"public.accounts. 1 other process stands in between; at the end stands server process 30006 " +
				"(user alice).",
			[]string{"SELECT pg_terminate_backend(30006)", "SELECT pg_terminate_backend(30002)", "why report"}},
		"one that waits for a prepared transaction": {
			atTheFence(prepared, Backend{Use: BackendBlocker, Prepared: "transfer", User: "alice"}), SeverityWarning,
			"30002 (user app) has passed it earlier and is still open. That transaction waits itself for a row of " +
				"public.accounts: prepared transaction transfer of user alice has locked it.",
			[]string{"COMMIT PREPARED 'transfer'", "ROLLBACK PREPARED 'transfer'", "SELECT pg_terminate_backend(30002)",
				"why report"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.look.conclude()
			n := 0
			for _, v := range c.look.Verdicts {
				if v.Kind != whyFence {
					continue
				}
				n++
				var commands []string
				for _, s := range v.Steps {
					if s.Command != "" {
						commands = append(commands, s.Command)
					}
				}
				if v.Severity != c.severity || !strings.HasSuffix(v.Text, c.text) {
					t.Errorf("%s: %s\nwant %s: %s", v.Severity, v.Text, c.severity, c.text)
				}
				if strings.Join(commands, "; ") != strings.Join(c.commands, "; ") {
					t.Errorf("the commands are %q, want %q", commands, c.commands)
				}
			}
			if n != 1 {
				t.Errorf("%d verdicts about the fence: %+v", n, c.look.Verdicts)
			}
		})
	}
}

// A process that waits for the data of a COPY heeds no time limit, whatever the lease: nobody is told to wait for one.
func TestACopyThatWaitsForItsDataIsNotSaidToEndWithItsLease(t *testing.T) {
	t.Parallel()
	l := atTheFence(Backend{State: "active", Query: 10 * time.Minute, Transaction: 10 * time.Minute,
		WaitsFor: "Client: ClientRead"})
	l.conclude()
	v := l.Verdicts[0]
	if v.Kind != whyFence || strings.Contains(v.IfNothing, "lease") || !strings.Contains(v.Because, "COPY FROM STDIN") {
		t.Errorf("%+v", v)
	}
}

// The write of a former holder that has passed the fence and waits: the write behind it counts, and both may be ended.
func TestAFormerHoldersWriteThatWaitsClosesTheFence(t *testing.T) {
	t.Parallel()
	l := atTheFence(Backend{State: "active", Query: 10 * time.Minute, Transaction: 10 * time.Minute,
		BlockedBy: []int{30003}, BlockedAt: "a row of public.accounts"},
		Backend{Use: BackendBlocker, PID: 30003, User: "alice", State: "idle in transaction"})
	l.conclude()
	v := l.Verdicts[0]
	last := v.Steps[len(v.Steps)-1]
	if v.Kind != whyBlocked || v.Severity != SeverityStuck || v.Who != "process 30003" ||
		!strings.Contains(v.IfNothing, "then refused") || !strings.Contains(v.IfNothing, "1 write waits there.") ||
		last.Command != "SELECT pg_terminate_backend(30002)" ||
		!strings.Contains(last.Effect, "for process 30003 itself") {
		t.Errorf("%+v", v)
	}
}

// A prepared transaction may have passed one fence twice: it keeps one.
func TestAPreparedTransactionNamesEachFenceOnce(t *testing.T) {
	t.Parallel()
	l := lookAt(holderOf(time.Second))
	passed := Backend{Use: BackendWrite, Prepared: "transfer", User: "alice", Resource: "report"}
	l.Processes = []Backend{passed, passed}
	l.conclude()
	if text := l.Verdicts[0].Text; !strings.HasSuffix(text, "keeps the fence of report closed.") {
		t.Error(text)
	}
}

// A lock that somebody waits for comes before one that nobody waits for, though that has been ill for longer.
func TestTheOverviewBeginsWithALockThatSomebodyWaitsFor(t *testing.T) {
	t.Parallel()
	working := Backend{State: "active", Query: 3 * time.Second, Transaction: 10 * time.Minute}
	named := func(name string, l *look, since time.Duration) Summary {
		l.Lock = name
		l.conclude()
		s := l.summary()
		s.Since = l.At.Add(-since)
		return s
	}
	all := []Summary{
		named("silent", signing(LifeSilent, 20*time.Minute, nil), 20*time.Minute),
		named("late, one waits", lookAt(holderOf(13*time.Second)).queued(time.Second, true), time.Second),
		named("fence, one waits", atTheFence(working).queued(time.Second, true), 3*time.Second),
		named("fence", atTheFence(working), 3*time.Second),
	}
	slices.SortStableFunc(all, worstFirst)
	var got []string
	for _, s := range all {
		got = append(got, s.Lock+": "+string(s.Severity))
	}
	want := "fence, one waits: stuck; late, one waits: warning; silent: warning; fence: warning"
	if strings.Join(got, "; ") != want {
		t.Errorf("%s, want %s", strings.Join(got, "; "), want)
	}
}
