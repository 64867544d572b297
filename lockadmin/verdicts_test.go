package lockadmin

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

// holderOf is a holder with a TTL of 30 s, as it looks so long after its last renewal.
func holderOf(since time.Duration) HolderFacts {
	now := time.Date(2026, 11, 22, 3, 16, 0, 0, time.UTC)
	yes := true
	h := HolderFacts{Renewed: true, SinceRenewal: since, HeldFor: time.Minute, Heartbeat: 20001,
		LockInfo: pglock.LockInfo{Name: "report", Held: true, Session: "one",
			Holder: "app-1/reporter[4711]", Token: 2, TTL: 30 * time.Second, Remaining: 30*time.Second - since,
			AcquiredAt: now.Add(-time.Minute), Mode: pglock.ModeExclusive}}
	h.HolderLife = HolderLife{Life: LifeAlive, SignedAt: now.Add(-since), Silent: since, Connected: &yes}
	if since > 15*time.Second {
		h.Life = LifeSilent
	}
	return h
}

// short is a holder with a TTL of 6 s, four of which it has not renewed for.
func short(life Life, connected *bool) *look {
	h := holderOf(4 * time.Second)
	h.TTL, h.Remaining, h.Life, h.Connected = 6*time.Second, 2*time.Second, life, connected
	if connected == nil || !*connected {
		h.Heartbeat = 0
	}
	return lookAt(h).queued(time.Second, true)
}

// signing is a holder with a TTL of an hour, as it looks so long after a sign of life that is no renewal.
func signing(life Life, silent time.Duration, connected *bool) *look {
	h := holderOf(time.Minute)
	h.TTL, h.Remaining, h.Renewed = time.Hour, 59*time.Minute, false
	h.HolderLife = HolderLife{Life: life, SignedAt: h.AcquiredAt, Silent: silent, Connected: connected}
	if silent == 0 {
		h.SignedAt = time.Time{}
	}
	if connected == nil || !*connected {
		h.Heartbeat = 0
	}
	return lookAt(h)
}

func lookAt(holders ...HolderFacts) *look {
	l := &look{Explanation: Explanation{Lock: "report", State: LockHeld, Holders: holders,
		At: time.Date(2026, 11, 22, 3, 16, 0, 0, time.UTC)}}
	if len(holders) > 0 {
		l.Processes = []Backend{{Use: BackendHeartbeat, PID: 20001, Token: 2, State: "idle"}}
	}
	return l
}

func (l *look) queued(waiting time.Duration, alive bool) *look {
	w := Waiter{Lock: "report", Ticket: 7, Place: 1, Holder: "app-2/reporter[963]", Session: "two", Alive: alive,
		Waiting: waiting}
	l.Queue = QueueFacts{Waiting: 1, Read: 1, First: []Waiter{w}}
	if alive {
		l.Queue.Alive = &w
	} else {
		l.Queue.Dead = 1
	}
	return l
}

// writing is a holder whose fenced write has been idle for so long, and somebody waits.
func writing(idle time.Duration) *look {
	l := lookAt(holderOf(time.Second)).queued(time.Minute, true)
	l.Processes = append(l.Processes, Backend{Use: BackendWrite, PID: 30002, Resource: "report",
		State: "idle in transaction", InState: idle, Transaction: idle})
	return l
}

// blockedFor is a holder whose fenced write waits for somebody for so long. Its lease has so much left.
func blockedFor(waits, remaining time.Duration) *look {
	h := holderOf(time.Second)
	h.Remaining = remaining
	l := lookAt(h).queued(time.Minute, true)
	l.Processes = append(l.Processes, Backend{Use: BackendWrite, PID: 30002, Resource: "report", State: "active",
		Query: waits, Transaction: waits + time.Second, BlockedBy: []int{30003}},
		Backend{Use: BackendBlocker, PID: 30003, User: "alice", State: "idle in transaction", InState: time.Minute})
	return l
}

// readers hold the lock, a writer is first in the queue, and so many readers are behind it.
func readers(behind int) *look {
	h := holderOf(time.Second)
	h.Mode, h.Slot = pglock.ModeShared, 1
	l := lookAt(h).queued(time.Minute, true)
	l.Queue.Alive.Mode, l.readers = pglock.ModeExclusive, behind
	return l
}

// brokeCircle is a holder that got the lock after a break had ended a deadlock.
func brokeCircle() *look {
	l := lookAt(holderOf(time.Second))
	l.Events = []HistoryEntry{{Kind: EventBreak, Holder: "app-1/reporter[4711]", Actor: "alice", Token: 1,
		Reason: circleReason + "app-2", At: l.At.Add(-time.Minute)}}
	return l
}

func TestVerdictFollowsFromTheFacts(t *testing.T) {
	t.Parallel()
	gone := holderOf(20 * time.Second)
	yes, no := true, false
	gone.Heartbeat, gone.Life, gone.Connected = 0, LifeDead, &no
	never := gone
	never.Renewed, never.HolderLife = false, HolderLife{Life: LifeSilent}
	young := holderOf(time.Second)
	young.Renewed, young.Heartbeat, young.HolderLife = false, 0, HolderLife{Life: LifeUnknown}
	signs := holderOf(19 * time.Second)
	signs.Life, signs.Silent = LifeAlive, 3*time.Second
	hangs := lookAt(holderOf(20*time.Second)).queued(time.Second, true)
	hangs.Processes[0] = Backend{Use: BackendHeartbeat, PID: 20001, Token: 2, State: "active", Query: 18 * time.Second,
		WaitsFor: "IPC: SyncRep"}
	gap := holderOf(time.Second)
	gap.SlowestRenewal = 25 * time.Second
	lost := func(last time.Duration) *look {
		l := lookAt(holderOf(time.Second))
		for n := range 3 {
			l.Events = append(l.Events, HistoryEntry{Kind: EventTakeover, Holder: "app-3",
				At: l.At.Add(-last - time.Duration(n)*time.Minute)})
		}
		return l
	}
	free := func(since time.Duration) *look {
		l := lookAt()
		l.State = LockFree
		l.Last = &HolderFacts{LockInfo: pglock.LockInfo{Name: "report", Holder: "app-1", Token: 2,
			TTL: 30 * time.Second, ExpiresAt: l.At.Add(-since)}}
		return l
	}
	onRow := Backend{Use: BackendRow, PID: 30001, User: "alice", State: "idle in transaction", InState: time.Minute,
		Transaction: time.Minute}
	row := lookAt(holderOf(20*time.Second)).queued(time.Second, true)
	row.Processes = append(row.Processes, onRow)
	for name, c := range map[string]struct {
		look     *look
		kind     string
		severity Severity
		says     []string
	}{
		"renewed a moment ago": {lookAt(holderOf(time.Second)), whyHeld, SeverityOK,
			[]string{"which is alive", "renewed 1s ago"}},
		"renewed as late as is usual": {lookAt(holderOf(12 * time.Second)), whyHeld, SeverityOK, nil},
		"one renewal is missing": {lookAt(holderOf(13 * time.Second)), whyLate, SeverityWarning,
			[]string{"Not sure yet"}},
		"one renewal is missing, and the connection": {func() *look {
			h := holderOf(14 * time.Second)
			h.Heartbeat, h.Life, h.Connected = 0, LifeUnknown, &no
			return lookAt(h)
		}(), whyLate, SeverityWarning, []string{"its connection to the server has ended", "Not sure yet",
			"opens another connection within seconds"}},
		"renewals of a short lease are missing": {short(LifeAlive, &yes), whyLate, SeverityWarning,
			[]string{"for 4s", "every 2s", "In 2s the lease ends; then app-2/reporter[963] gets it"}},
		"the same, and the connection": {short(LifeUnknown, &no), whyLate, SeverityWarning,
			[]string{"its connection to the server has ended"}},
		"the same, behind a pooler": {short(LifeAlive, nil), whyLate, SeverityWarning, []string{"Not sure yet"}},
		"no renewal, connected": {lookAt(holderOf(19 * time.Second)), whyStopped, SeverityWarning,
			[]string{"for 19s", "every 10s", "kill -CONT 4711", "In 11s the lease ends; then it is free"}},
		"no renewal, somebody waits": {lookAt(holderOf(19*time.Second)).queued(time.Second, true), whyStopped,
			SeverityStuck, []string{"then app-2/reporter[963] gets it"}},
		"no renewal, not connected": {lookAt(gone), whyGone, SeverityWarning,
			[]string{"its connection to the server has ended", "--token 2", "It stops no program"}},
		"no renewal, but signs": {lookAt(signs), whyLate, SeverityWarning,
			[]string{"which is alive, and a renewal is late", "Its last sign of life came 3s ago"}},
		"signs between renewals": {signing(LifeAlive, 3*time.Second, &yes), whyHeld, SeverityOK,
			[]string{"which is alive: it gave a sign of life 3s ago, as it should every 10s"}},
		"a sign is a little late": {signing(LifeAlive, 11*time.Second, &yes), whyHeld, SeverityOK,
			[]string{"which is alive: it gave a sign of life 11s ago; it should every 10s"}},
		"signs behind a pooler": {signing(LifeAlive, 3*time.Second, nil), whyHeld, SeverityOK,
			[]string{"which is alive: it gave a sign of life 3s ago"}},
		"no signs, connected": {signing(LifeSilent, 20*time.Second, &yes), whyStopped, SeverityWarning,
			[]string{"no sign of life for 20s; it should every 10s", "Sure that it gives no sign of life",
				"still open"}},
		"no signs, not connected": {signing(LifeDead, 20*time.Second, &no), whyGone, SeverityWarning,
			[]string{"no sign of life for 20s", "its connection to the server has ended"}},
		"no signs behind a pooler": {signing(LifeSilent, 20*time.Second, nil), whySilent, SeverityWarning,
			[]string{"stopped, dead or cut off", "as behind a pooler"}},
		"never a sign": {signing(LifeSilent, 0, nil), whySilent, SeverityWarning,
			[]string{"no sign of life since it got the lock 1m ago"}},
		"its connection just ended": {signing(LifeUnknown, 2*time.Second, &no), whyHeld, SeverityOK,
			[]string{"2s ago, and its connection has ended since"}},

		"never renewed": {lookAt(never), whySilent, SeverityWarning,
			[]string{"never renewed", "dies while it waits", "STAT T", "kill -CONT 4711",
				"Host and number are what its label claims: compare the command line first. No process there means " +
					"that the program is dead. The break below then harms nobody."}},
		"never renewed, of no known host": {func() *look {
			h := never
			h.Holder = "worker"
			return lookAt(h)
		}(), whySilent, SeverityWarning, []string{"If it is dead, the break below harms nobody.",
			"If ps shows it with STAT T, it is stopped: kill -CONT and its number"}},
		"a label of one's own": {func() *look {
			h := holderOf(19 * time.Second)
			h.Holder = "worker"
			l := lookAt(h)
			l.Processes = []Backend{{Use: BackendHeartbeat, PID: h.Heartbeat,
				Application: "pglock app-1/reporter[4711]"}}
			return l
		}(), whyStopped, SeverityWarning, []string{"Look at the program with the label worker. Run this on host app-1",
			"-p 4711", "kill -CONT 4711"}},
		"a label that reads like a sentence": {func() *look {
			l := lookAt(holderOf(time.Second)).queued(5*time.Second, true)
			l.Holders[0].Holder, l.Queue.Alive.Holder = "nobody. Run this", "all is well"
			return l
		}(), whySlow, SeverityBusy, []string{`is held by "nobody. Run this"`, `"all is well" has waited for it`}},
		"just granted":      {lookAt(young), whyHeld, SeverityOK, []string{"nothing shows yet"}},
		"the renewal hangs": {hangs, whyHeartbeat, SeverityStuck, []string{"SyncRep", "standby"}},
		"nearly lost":       {lookAt(gap), whyHeld, SeverityOK, []string{"which is alive", "did not renew for 25s"}},
		"lost again and again": {lost(20 * time.Minute), whyHeld, SeverityOK,
			[]string{"3 times in the last hour", "(app-3), the last time 20m ago"}},
		"lost again and again, until now": {lost(time.Minute), whyFlapping, SeverityWarning,
			[]string{"3 times in the last hour", "history report"}},
		"lost once by one program with three places": {func() *look {
			l := lost(time.Minute)
			for n := range l.Events {
				l.Events[n].Slot = n + 1
			}
			return l
		}(), whyHeld, SeverityOK, []string{"which is alive"}},
		"lost again and again, and another place of it": {func() *look {
			l := lost(time.Minute)
			l.Events = append(l.Events, HistoryEntry{Kind: EventTakeover, Holder: "app-4", Slot: 2,
				At: l.At.Add(-5 * time.Minute)})
			return l
		}(), whyFlapping, SeverityWarning, []string{"4 times in the last hour", "(app-3, app-4)"}},
		"lost again and again, and others wait": {lost(time.Minute).queued(5*time.Second, true), whyFlapping,
			SeverityWarning, []string{"app-2/reporter[963] has waited for it for 5s."}},
		"one waits": {lookAt(holderOf(time.Second)).queued(5*time.Second, true), whySlow, SeverityBusy,
			[]string{"app-2/reporter[963] has waited for it for 5s."}},
		"one waits for long": {lookAt(holderOf(time.Second)).queued(2*time.Minute, true), whySlow, SeverityBusy,
			[]string{"waited for it for 2m.", "Do not break", "in up to 30s"}},
		"one waits for a minute": {lookAt(holderOf(time.Second)).queued(time.Minute, true), whySlow, SeverityBusy,
			[]string{"waited for it for 1m.", "Look again in a minute"}},
		"the holder's client waits for its own lock": {func() *look {
			h := holderOf(time.Second)
			h.HeldFor = 5 * time.Minute
			l := lookAt(h).queued(2*time.Minute, true)
			l.Queue.Alive.Session = "one"
			return l
		}(), whySlow, SeverityBusy, []string{"The client that holds it waits for it itself.",
			"If both are the same work", "lease.Context()", "ErrSelfDeadlock"}},
		"the holder's client has only begun to wait": {func() *look {
			l := lookAt(holderOf(time.Second)).queued(5*time.Second, true)
			l.Queue.Alive.Session = "one"
			return l
		}(), whySlow, SeverityBusy, []string{"The client that holds it waits for it itself.",
			"Look again in a minute"}},
		"the holder's client waited before it was granted": {func() *look {
			l := lookAt(holderOf(time.Second)).queued(2*time.Minute, true)
			l.Queue.Alive.Session = "one"
			return l
		}(), whySlow, SeverityBusy, []string{"waits for it itself", "in their order"}},
		"one of the holders of places waits for its own": {func() *look {
			one, other := holderOf(time.Second), holderOf(time.Second)
			one.Mode, one.Slot, other.Mode, other.Slot = pglock.ModeLimit, 1, pglock.ModeLimit, 2
			one.HeldFor, other.HeldFor, other.Session = 5*time.Minute, 5*time.Minute, "two"
			l := lookAt(one, other).queued(2*time.Minute, true)
			l.Queue.Alive.Session = "one"
			return l
		}(), whySlow, SeverityBusy, []string{"waits for it itself", "in their order"}},
		"the client of one of two holders waits": {func() *look {
			one, other := holderOf(time.Second), holderOf(time.Second)
			one.Mode, one.Slot, other.Mode, other.Slot = pglock.ModeShared, 1, pglock.ModeShared, 2
			other.Session = "two"
			return lookAt(one, other).queued(time.Second, true)
		}(), whySlow, SeverityBusy, []string{"waits for it itself"}},
		"one waits, and the holder for another lock": {func() *look {
			l := lookAt(holderOf(time.Second)).queued(5*time.Second, true)
			l.Waits = []Wait{{Holds: "report", Waiter: "app-1/reporter[4711]", For: "invoices", Holder: "app-3",
				Waiting: 4 * time.Minute}}
			return l
		}(), whySlow, SeverityBusy,
			[]string{"app-1/reporter[4711] itself has waited for lock invoices of app-3 for 4m.", "cannot be seen",
				"why invoices"}},
		"one waited for earlier holders": {lookAt(holderOf(time.Second)).queued(22*time.Minute, true), whySlow,
			SeverityBusy, []string{"waited for it for 22m, mostly for earlier holders"}},
		"readers, and a writer waits": {readers(1), whySlow, SeverityBusy,
			[]string{"app-2/reporter[963], wants it alone: it waits for all of them. 1 reader waits behind it. " +
				"Whoever asks to read now does not pass it either."}},
		"just granted, one waits": {lookAt(young).queued(5*time.Second, true), whySlow, SeverityBusy,
			[]string{"nothing shows yet"}},
		"its write is idle for a second": {writing(time.Second), whyIdle, SeverityNote,
			[]string{"idle for 1s", "Look again"}},
		"its write is idle for longer": {writing(11 * time.Second), whyIdle, SeverityStuck,
			[]string{"idle for 11s", "pg_terminate_backend(30002)", "in up to 30s"}},
		"its write waits": {blockedFor(5*time.Second, 29*time.Second), whyBlocked, SeverityStuck,
			[]string{"(in 25s at the latest, unless its program has given it more time than its lease of 30s)"}},
		"its write has waited for nearly all": {blockedFor(29*time.Second, 29*time.Second), whyBlocked, SeverityStuck,
			[]string{"(in 1s at the latest, unless"}},
		"its write has waited, unrenewed": {blockedFor(5*time.Second, 2*time.Second), whyBlocked, SeverityStuck,
			[]string{"(in 3s at the latest, unless"}},
		"its write has waited for longer": {blockedFor(40*time.Second, 29*time.Second), whyBlocked, SeverityStuck,
			[]string{"at the write's time limit (which its program has set: it cannot be seen)."}},
		"its write has waited, of an hour": {blockedFor(9*time.Second, 50*time.Minute), whyBlocked, SeverityStuck,
			[]string{"(in 50m1s at the latest)."}},
		"the write of a former holder": {blockedFor(2*time.Minute, 29*time.Second), whyBlocked, SeverityStuck,
			[]string{"A write of a former holder", "at the write's time limit."}},
		"a dead one, or the row lock": {func() *look {
			l := lookAt(holderOf(20*time.Second)).queued(time.Second, false)
			l.Processes = append(l.Processes, onRow)
			return l
		}(), whyRow, SeverityStuck, []string{"1 waiter is not heard from. The row lock may be why"}},
		"a break has ended a deadlock": {brokeCircle(), whyBroken, SeverityNote,
			[]string{"alice broke the lease of app-1/reporter[4711] 1m ago. The deadlock is gone",
				"the old one may still be working"}},
		"a dead one waits": {lookAt(holderOf(time.Second)).queued(time.Minute, false), whyHeld,
			SeverityOK, []string{"which is alive", "1 waiter is passed over: no sign of life", "no harm"}},
		"free": {free(time.Hour), whyFree, SeverityOK,
			[]string{"ran out 1h ago, without a release"}},
		"ended, and the history unseen": {func() *look {
			l := free(time.Hour)
			l.Last.EndedAt = l.At.Add(-time.Hour)
			return l
		}(), whyFree, SeverityOK, []string{"ended 1h ago, by a release or a break"}},
		"free, the next comes": {free(time.Second).queued(time.Minute, true), whyBetween, SeverityNote, nil},
		"free, the next does not come": {free(6*time.Second).queued(time.Minute, true), whyTurn, SeverityStuck,
			[]string{"does not take it"}},
		"free, but the row is locked": {func() *look {
			l := free(6*time.Second).queued(time.Minute, true)
			l.Processes = append(l.Processes, onRow)
			return l
		}(), whyRow, SeverityStuck, []string{"Nobody gets report until"}},
		"no renewal: the row is locked": {row, whyRow, SeverityStuck,
			[]string{"cannot renew", "although its program may be well", "pg_terminate_backend(30001)"}},
		"the tables are locked": {&look{closed: true, Explanation: Explanation{Lock: "report"}}, whyTable,
			SeverityStuck, []string{"cannot be seen any more"}},
		"nobody has used it, and no one": {&look{Explanation: Explanation{Lock: "report", State: LockUnknown}},
			whyUnknown, SeverityWarning, []string{"no lock has been used here yet"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := c.look
			l.conclude()
			v := l.Verdicts[0]
			if v.Kind != c.kind || v.Severity != c.severity || l.Severity != c.severity {
				t.Errorf("%q, %s, want %q, %s: %s", v.Kind, v.Severity, c.kind, c.severity, v.Text)
			}
			text := v.Text + " " + v.Because + " " + v.IfNothing
			for _, s := range v.Steps {
				text += " " + s.Do + " " + s.Command + " " + s.Effect
			}
			for _, other := range l.Verdicts[1:] {
				text += " " + other.Text
			}
			if v.Kind == whyLate && strings.Contains(text, "break ") && !strings.Contains(text, "which is alive") {
				t.Errorf("nobody is called silent, and the lease may be broken: %s", text)
			}
			if first := l.Queue.Alive; v.Kind == whySlow && first.Waiting <= time.Minute &&
				(strings.Contains(text, "Do not break") || strings.Contains(text, "ErrSelfDeadlock")) {
				t.Errorf("nothing is to be done yet: %s", text)
			}
			if (strings.Contains(name, "before it was granted") || strings.Contains(name, "of places")) &&
				strings.Contains(text, "ErrSelfDeadlock") {
				t.Errorf("it cannot wait for itself: %s", text)
			}
			if v.Kind == whySlow && l.Queue.Alive.Session != l.Holders[len(l.Holders)-1].Session &&
				strings.Contains(text, "ErrSelfDeadlock") {
				t.Errorf("nobody waits for its own lock: %s", text)
			}
			if v.Severity != SeverityStuck && strings.Contains(text, "pg_terminate_backend") {
				t.Errorf("nothing is stuck: %s", text)
			}
			for _, s := range c.says {
				if !strings.Contains(text, s) {
					t.Errorf("no %q in %s", s, text)
				}
			}
			if v.Text == "" || v.Steps == nil {
				t.Errorf("%+v", v)
			}
			for _, other := range l.Verdicts[1:] {
				if other.Kind == whyStopped && v.Kind == whyRow {
					t.Errorf("whoever has locked the row keeps the holder from renewing, and not: %s", other.Text)
				}
			}
		})
	}
}

// A holder that gives signs of life is alive from the first one on, though it has not renewed yet; and it stays so if
// only its tickets count no more. Of several holders the one whose connection has ended is named.
func TestASignOfLifeIsBelieved(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	ended := signing(LifeUnknown, 2*time.Second, &no).Holders[0]
	ended.Holder = "app-9/reporter[1]"
	ended.Mode, ended.Slot = pglock.ModeShared, 2
	other := holderOf(time.Second)
	other.Mode, other.Slot, other.Life = pglock.ModeShared, 1, LifeAlive
	for what, c := range map[string]struct {
		l          *look
		says, nots []string
	}{
		"just signed": {signing(LifeAlive, 500*time.Millisecond, &yes),
			[]string{"which is alive: it gave a sign of life"}, []string{"nothing shows yet", "Look again"}},
		"its tickets are dead": {signing(LifeSilent, 3*time.Second, &yes), nil,
			[]string{"stopped", "cut off", "break "}},
		"one of two has ended": {lookAt(other, ended),
			[]string{"has 2 holders", "The connection of app-9/reporter[1] has ended"}, nil},
	} {
		c.l.conclude()
		v := c.l.Verdicts[0]
		text := v.Text + " " + v.Because
		for _, s := range v.Steps {
			text += " " + s.Do + " " + s.Command
		}
		if v.Kind != whyHeld {
			t.Errorf("%s: %s: %s", what, v.Kind, text)
		}
		for _, s := range c.says {
			if !strings.Contains(text, s) {
				t.Errorf("%s: no %q in %s", what, s, text)
			}
		}
		for _, s := range c.nots {
			if strings.Contains(text, s) {
				t.Errorf("%s: %q in %s", what, s, text)
			}
		}
	}
}

func TestCircleLeadsBackToTheLock(t *testing.T) {
	t.Parallel()
	wait := func(ticket int64, session, holds, wants, holder string) Wait {
		return Wait{Waiter: session, Session: session, Holds: holds, For: wants, Ticket: ticket, Holder: holder,
			HolderSession: holder, Waiting: 2 * standing, HeldFor: 2 * standing}
	}
	with := func(change func(*Wait)) []Wait {
		waits := []Wait{wait(1, "A", "a", "b", "B"), wait(2, "B", "b", "a", "A")}
		change(&waits[1])
		return waits
	}
	for name, c := range map[string]struct {
		waits []Wait
		want  string // the locks that are waited for
	}{
		"nobody waits": {nil, ""},
		"a chain":      {[]Wait{wait(1, "A", "a", "b", "B"), wait(2, "B", "b", "c", "C")}, ""},
		"two":          {[]Wait{wait(1, "A", "a", "b", "B"), wait(2, "B", "b", "a", "A")}, "b a"},
		"three, and a longer way": {[]Wait{wait(1, "A", "a", "x", "X"), wait(2, "A", "a", "b", "B"),
			wait(3, "X", "x", "b", "B"), wait(4, "B", "b", "c", "C"), wait(5, "C", "c", "a", "A")}, "b c a"},
		"back to another holder of it": {[]Wait{wait(1, "A", "a", "b", "B"), wait(2, "B", "b", "a", "A2")}, ""},
		"a circle that does not touch it": {[]Wait{wait(1, "A", "a", "b", "B"), wait(2, "B", "b", "c", "C"),
			wait(3, "C", "c", "b", "B")}, ""},
		"a lock of one's own": {[]Wait{{Waiter: "A", Session: "A", Holds: "a", For: "a", Holder: "A",
			HolderSession: "A", SameOwner: true}}, "a"},
		"two, one of which has just queued":     {with(func(w *Wait) { w.Waiting = time.Second }), ""},
		"two, one of which has just got a lock": {with(func(w *Wait) { w.HeldFor = time.Second }), ""},
		"a place of several":                    {with(func(w *Wait) { w.AnyOf = true }), ""},
		"two owners, for a moment": {[]Wait{{Session: "A", Holds: "a", For: "b", HolderSession: "B", SameOwner: true},
			{Session: "B", Holds: "b", For: "a", HolderSession: "A", SameOwner: true}}, "b a"},
		"one program with two locks":    {[]Wait{wait(1, "A", "a", "b", "A"), wait(2, "A", "b", "a", "A")}, ""},
		"the program's own queue":       {[]Wait{wait(1, "A", "a", "a", "A")}, ""},
		"a holder who holds it no more": {[]Wait{wait(1, "A", "a", "b", "")}, ""},
	} {
		var locks []string
		for _, w := range circle("a", c.waits) {
			locks = append(locks, w.For)
		}
		if got := strings.Join(locks, " "); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestSimilarNamesAreThoseThatSomebodyMayHaveMeant(t *testing.T) {
	t.Parallel()
	all := []string{"nightly-report", "nightly-export", "invoices", "gpu", "jobs/nightly-report", "a",
		strings.Repeat("x", 500)}
	for name, want := range map[string][]string{
		"nightly_report": {"nightly-report", "jobs/nightly-report", "nightly-export"},
		"Nightly-Report": {"nightly-report", "jobs/nightly-report", "nightly-export"},
		"nigthly-report": {"nightly-report"},
		"invoice":        {"invoices"},
		"gpus":           {"gpu"},
		"customers":      nil,
	} {
		got := similar(name, slices.Clone(all))
		if len(got) < len(want) || !slices.Equal(got[:len(want)], want) || want == nil && got != nil {
			t.Errorf("%s: %q, want %q first", name, got, want)
		}
	}
	if got := similar(strings.Repeat("y", 512), all); got != nil {
		t.Errorf("%q", got)
	}
}

func TestWhatProgramALabelNames(t *testing.T) {
	t.Parallel()
	for label, want := range map[string][2]string{
		"app-1/reporter[4711]": {"app-1", "4711"}, "app-1/reporter": {}, "worker": {}, "": {}, "a b/c[7]": {},
		"x/y[1;rm -rf /]": {}, "x/y[]": {},
		"$(touch pwned)/y[7]": {}, "x/y[99999999999]": {}, "x/y[2]": {"x", "2"},
		"x/y[1]": {}, "x/y[0]": {}, "x/y[01]": {},
	} {
		if host, pid := labelParts(label); (host == "" || pid == "") != (want[0] == "") || pid != want[1] {
			t.Errorf("%q: %q, %q", label, host, pid)
		}
	}
}
