package lockadmin

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Summary is what Explain says of one lock, in a line.
type Summary struct {
	Lock     string    `json:"lock"` // "" for all locks, while somebody has locked a whole table of pglock
	Severity Severity  `json:"severity"`
	Kind     string    `json:"kind"`
	Text     string    `json:"text"`            // the verdict in a few words
	Who      string    `json:"who,omitempty"`   // who is the cause: a label, or a process of the server
	Since    time.Time `json:"since,omitzero"`  // when that began
	Waiting  int       `json:"waiting"`         // how many wait for the lock, dead ones too, as in pglock.LockInfo
	Next     Step      `json:"next,omitzero"`   // the first thing to do, if a command does it from anywhere
	Hidden   bool      `json:"hidden,omitzero"` // nobody has looked: too many may not be well, or time was short
}

// Overview says which locks of the database are not well.
type Overview struct {
	At    time.Time `json:"looked_at"`
	Locks []Summary `json:"locks"` // worst first; of these what somebody waits for, then in the order of Since
	More  int       `json:"more"`  // that may not be well either, and that nobody has looked at

	Busy   int  `json:"busy"`   // locks that somebody waits for, and that are well
	Held   int  `json:"held"`   // held locks; 0 where there are more than a thousand names
	Well   int  `json:"well"`   // of Known, surely well, as those of Busy; 0 of more than a thousand, or on a standby
	Known  int  `json:"known"`  // names in use; 1,001 stands for more than a thousand rows
	Partly bool `json:"partly"` // there is so much that some was not looked at: see Admin.Overview

	Unseen  []string `json:"unseen,omitempty"` // what could not be seen, and why
	Standby bool     `json:"-"`                // the server is a standby: the primary alone knows how the locks are
}

// overviewMost is how many locks an Overview has at most, and looks at closely.
const overviewMost = 1000

// Overview finds the locks that are not well, and says of each what Explain says first: those of SeverityNote and
// graver. limit is how many it has at most, from 1 to 1,000; an overview that is cheap enough to be asked for every
// second has some twenty. It looks closely at up to 3*limit+20 locks, the most suspicious first, and at no
// further one when half of the time is over that ctx has.
//
// If the locks have up to a thousand rows, it finds all that are not well; a lock has one row, and one more for each
// holder of a shared or limited lease. With more rows it does not read them all. It then finds locks that somebody
// waits for; those of holders that gave signs of life and give none now (a client gives the first within ten seconds,
// if its leases are longer than half a minute); those of which an open transaction keeps the row or a fence; those with
// a broken guard; and those that were broken in the last ten minutes, or lost for the third time within an hour, if the
// last thousand entries of the history tell it. So there it misses a holder that nobody waits for, if that has died
// within ten seconds of its grant, or if its lease ends within half a minute. It looks at 20,000 tickets, 1,000 queues,
// 1,000 locks of clients and 20,000 rows of each kind; Partly says that there were more of the first three.
// Held and Known count to 1,000.
//
// Errors are those of Locks.
func (a *Admin) Overview(ctx context.Context, limit int) (Overview, error) {
	if err := refuse.Number("limit", limit, 1, overviewMost); err != nil {
		return Overview{}, err
	}
	var o Overview
	var found suspected
	p, inTime := new(past), firstHalf(ctx)
	err := a.read(ctx, func(r *reader) {
		all := a.look("") // somebody who has locked a whole table mostly keeps everybody from all locks
		all.At, all.past = r.at, p
		all.readTableLocks(r)
		told := []Summary{}
		if len(p.tables) > 0 {
			barred := all.barred() || slices.ContainsFunc(p.tables, tableLock.closesToReaders)
			all.unread(r)
			all.conclude()
			if o = all.overview(); barred {
				return
			}
			told, p.tables = o.Locks, nil // the other looks need not tell it
		}
		found = a.suspects(r, nil, min(overviewMost, 3*limit+20))
		o = Overview{At: r.at, Locks: told, Busy: found.queues, Held: found.held, Known: found.known,
			Partly: found.partly, Standby: found.standby, Well: found.known}
	})
	looked := 0
	for ; err == nil && looked < len(found.names) && len(o.Locks) < limit && inTime(); looked++ {
		var l *look
		if l, err = a.explained(ctx, found.names[looked], p); err == nil {
			o.note(l)
		}
	}
	o.More = found.all - looked
	o.Well = max(0, o.Well-o.More)
	if protocol.LockedOut(err) {
		l := a.look("")
		if err = l.readTables(ctx, a); err == nil {
			o = l.overview()
		}
	}
	if err != nil {
		return Overview{}, failed(ctx, err, "look for locks that are not well")
	}
	if o.Busy = max(0, o.Busy); o.Known > 1000 {
		o.Held = 0
	}
	if o.Known > 1000 || o.Standby {
		o.Well = 0
	}
	slices.SortStableFunc(o.Locks, worstFirst)
	return o, nil
}

// firstHalf tells whether the first half of the time lasts that a call has: after it no further lock is looked at
// closely, so that the call still tells what it has found, also over a slow line. Without a deadline it lasts for ever.
func firstHalf(ctx context.Context) func() bool {
	end, limited := ctx.Deadline()
	half := time.Now().Add(time.Until(end) / 2)
	return func() bool { return !limited || time.Now().Before(half) }
}

func worstFirst(a, b Summary) int {
	return cmp.Or(cmp.Compare(rank[b.Severity], rank[a.Severity]), cmp.Compare(boolean(b.Waiting > 0),
		boolean(a.Waiting > 0)), a.Since.Compare(b.Since), cmp.Compare(a.Lock, b.Lock))
}

// note takes down what was found about one lock.
func (o *Overview) note(l *look) {
	for _, u := range l.Unseen {
		if !slices.Contains(o.Unseen, u) {
			o.Unseen = append(o.Unseen, u)
		}
	}
	s := l.summary()
	if l.State == LockUnknown && s.Kind != whyGuard { // it was pruned meanwhile
		return
	}
	if l.alive() > 0 && s.Severity != SeverityBusy {
		o.Busy--
	}
	if rank[s.Severity] >= rank[SeverityNote] && s.Kind != whyBetween {
		o.Locks = append(o.Locks, s)
		if l.State != LockUnknown { // Known has it
			o.Well--
		}
	}
}

// overview is that of a lock on a whole table.
func (l *look) overview() Overview {
	return Overview{At: l.At, Locks: []Summary{l.summary()}, Partly: true, Unseen: l.Unseen,
		Standby: l.Standby != nil}
}

const summariesLooked = 50

// Summaries says of the lock of each lease what Explain says first. It looks closely at those that may not be well,
// fifty at most, and at no further one when half of the time is over that ctx has; a Summary of others is Hidden.
// Errors are those of Locks.
func (a *Admin) Summaries(ctx context.Context, leases []pglock.LockInfo) ([]Summary, error) {
	names := make([]string, 0, len(leases))
	for _, l := range leases {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	ill, p, inTime := make(map[string]Summary), new(past), firstHalf(ctx)
	for some := range slices.Chunk(names, overviewMost) { // no more can be suspect than are named
		var found suspected
		err := a.read(ctx, func(r *reader) { found = a.suspects(r, some, overviewMost) })
		if err == nil && found.standby { // the primary alone knows
			for _, name := range some {
				ill[name] = Summary{Lock: name, Severity: SeverityNote, Kind: whyStandby, Text: inWords[whyStandby]}
			}
			continue
		}
		for n := 0; err == nil && n < len(found.names); n++ {
			s := Summary{Lock: found.names[n], Hidden: true}
			if len(ill) < summariesLooked && inTime() {
				var l *look
				if l, err = a.explained(ctx, s.Lock, p); err == nil {
					s = l.summary()
				}
			}
			ill[found.names[n]] = s
		}
		if err != nil {
			return nil, failed(ctx, err, "look for locks that are not well")
		}
	}
	all := make([]Summary, len(leases))
	for i, l := range leases {
		s, is := ill[l.Name]
		if !is {
			s = wellSummary(l)
		}
		all[i] = s
	}
	return all, nil
}

// wellSummary is that of a lock that is not suspect.
func wellSummary(l pglock.LockInfo) Summary {
	s := Summary{Lock: l.Name, Severity: SeverityOK, Kind: whyFree, Who: l.Holder, Waiting: l.Waiting}
	if l.Held {
		s.Kind, s.Since = whyHeld, l.AcquiredAt
	}
	if l.Held && l.Waiting > 0 {
		s.Severity, s.Kind, s.Since = SeverityBusy, whySlow, lists.SeenAt(l).Add(-l.LongestWait)
	}
	if !l.Held && l.Waiting > 0 { // if nothing were in the way, it would be suspect
		s.Severity, s.Kind = SeverityBusy, whySubtree
	}
	s.Text = inWords[s.Kind]
	return s
}

func (l *look) summary() Summary {
	v := l.Verdicts[0]
	s := Summary{Lock: l.Lock, Severity: v.Severity, Kind: v.Kind, Text: inWords[v.Kind], Who: v.Who, Since: v.Since,
		Waiting: l.Queue.Waiting}
	if v.perhaps() {
		s.Text = "perhaps a " + s.Text
	}
	if l.wanted && v.Kind == whyTable {
		s.Text = "somebody waits to lock a whole table"
	}
	if l.wanted && v.Kind == whyHistory {
		s.Text = "somebody waits to lock the history"
	}
	if first := v.Steps[:min(1, len(v.Steps))]; l.Lock == "" { // nobody can ask why
		s.Next = v.Steps[0]
		if i := slices.IndexFunc(v.Steps, func(s Step) bool { return s.Command != "" }); i > 0 {
			s.Next = v.Steps[i]
			s.Next.Do = v.Steps[0].Do + " Otherwise:"
		}
	} else if len(first) > 0 && first[0].Command != "" && first[0].Needs == "" && first[0].Run != RunShell {
		s.Next = first[0]
	}
	return s
}

// inWords says what a verdict is about, for a line of a table.
var inWords = map[string]string{
	whyHeld:            "its holder lives",
	whySlow:            "its holder lives, others wait",
	whyHandedPast:      "handed over past who waits",
	whyLate:            "a renewal is late",
	whyGone:            "its holder is dead or cut off",
	whyStopped:         "its holder is stopped or cut off",
	whySilent:          "its holder gives no sign of life",
	whyHeartbeat:       "a renewal hangs in the server",
	whyRow:             "somebody has locked its row",
	whyPrepared:        "a prepared transaction is open",
	whyBlocked:         "a write is blocked",
	whyIdle:            "a write is open and idle",
	whyFence:           "a write waits at the fence",
	whyCircle:          "deadlock",
	whyWaits:           "its holder waits for another lock",
	whyTurn:            "the next one does not take it",
	whyFlapping:        "its holders lose it again and again",
	whyGuard:           "the guard of a table is broken",
	whyFree:            "free",
	whyBroken:          "broken by an operator",
	whySubtree:         "one above or below is in the way",
	whyBetween:         "goes to the next one",
	whyUnknown:         "nobody has used it",
	whyAnotherDatabase: "nobody has used it here",
	whyAnotherSchema:   "it is in another schema",
	whyStandby:         "the primary alone knows",
	whyTable:           "a table of pglock is locked",
	whyHistory:         "somebody has locked the history",
}

// suspected are locks that may not be well.
type suspected struct {
	names                    []string
	all, queues, known, held int
	partly, standby          bool
}

func (a *Admin) suspects(r *reader, names []string, limit int) (s suspected) {
	r.row(a.db.Queries.Suspects, []any{names, limit}, &s.names, &s.all, &s.queues, &s.partly, &s.known, &s.held,
		&s.standby)
	return s
}
