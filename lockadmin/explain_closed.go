package lockadmin

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/shown"
)

// tableLock is somebody who keeps others from a table of pglock.
type tableLock struct {
	Backend
	table    string
	mode     string
	waitsFor []int         // processes, while it does not have the lock yet
	waiting  time.Duration // for the lock; 0 if it has it
	holds    bool          // it has locked a table to change something, which its end undoes
	inTheWay []inTheWay
}

// age is that of its transaction. Where the server hides that, it is at least as old as its wait. 0: nobody knows.
func (t tableLock) age() time.Duration { return cmp.Or(t.Transaction, t.waiting) }

// lasts reports whether it keeps others for longer than a moment. Where the server hides that, it may be one of the
// server's own, or a program of pglock that prunes or migrates: these take a moment.
func (t tableLock) lasts() bool {
	age := t.age()
	return age >= unremarkable || age == 0 && t.Hidden && t.User != "" && !strings.HasPrefix(t.Application, "pglock ")
}

// bars reports whether it lasts, and keeps others from what they need. They only read the record of the installation.
func (t tableLock) bars() bool {
	return slices.Contains(needed, t.table) && (t.table != "installation" || t.closesToReaders()) && t.lasts()
}

// hides reports whether nobody can see how a lock is. That takes no record of the installation.
func (t tableLock) hides() bool { return t.closesToReaders() && t.table != "installation" }

func (t tableLock) closesToReaders() bool { return slices.Contains(closedToReaders, t.mode) }

// inTheWay is a process, or a prepared transaction, that somebody waits for who wants to lock a table.
type inTheWay struct {
	Backend
	waiter int  // of a prepared transaction: the process that waits
	writes bool // it has passed a fence
	closes bool // it keeps others from writing to a table of pglock itself
}

func (l *look) scanTableLock(r pgx.Rows) (t tableLock, err error) {
	var at time.Time
	err = r.Scan(&t.table, null(&t.PID), null(&t.Prepared), null(&t.User), null(&t.Application), null(&t.State),
		micros(&t.Transaction), null(&t.Statement), micros(&t.InState), &t.waitsFor, moment(&at), &t.holds,
		null(&t.MayEnd), null(&t.WaitsFor), micros(&t.waiting), &t.mode)
	l.reckon(at, &t.Transaction, &t.InState, &t.waiting)
	slices.Sort(t.waitsFor)
	t.waitsFor = slices.Compact(t.waitsFor) // 0 for each prepared transaction
	t.Query, t.Hidden = t.InState, t.State == "" && t.Prepared == ""
	t.BlockedBy = t.waitsFor
	return t, err
}

// The modes of a lock on a table that keep others from reading it, and from writing to it.
var (
	closedToReaders = []string{"AccessExclusiveLock"}
	closedToWriters = append([]string{"ExclusiveLock", "ShareRowExclusiveLock", "ShareLock"}, closedToReaders...)
)

func (l *look) scanInTheWay(r pgx.Rows) (w inTheWay, err error) {
	var at time.Time
	err = r.Scan(&w.PID, null(&w.User), null(&w.Application), null(&w.State), micros(&w.Transaction),
		micros(&w.InState), moment(&at), &w.writes, &w.closes, null(&w.MayEnd), null(&w.WaitsFor))
	l.reckon(at, &w.Transaction, &w.InState)
	w.Use, w.Query, w.Hidden = BackendBlocker, w.InState, w.State == ""
	return w, err
}

func (l *look) scanPrepared(r pgx.Rows) (w inTheWay, err error) {
	var at time.Time
	err = r.Scan(&w.waiter, &w.Prepared, null(&w.User), micros(&w.Transaction), moment(&at), &w.closes,
		null(&w.MayEnd))
	l.reckon(at, &w.Transaction)
	w.Use, w.State, w.InState = BackendBlocker, "prepared", w.Transaction
	return w, err
}

// lockers reads who has locked tables of pglock in some modes, or wants to: whoever waits for another of them last, and
// the first of the tables and the oldest transaction first.
func (l *look) lockers(r *reader, modes []string, tables ...string) []tableLock {
	found := rows(r, protocol.TableLocks, []any{l.schema, tables, modes}, l.scanTableLock)
	var pids, behindPrepared []int32
	second := func(t tableLock) bool {
		return slices.ContainsFunc(found, func(o tableLock) bool {
			return o.PID != 0 && slices.Contains(t.waitsFor, o.PID)
		})
	}
	slices.SortStableFunc(found, func(a, b tableLock) int {
		return cmp.Or(cmp.Compare(boolean(second(a)), boolean(second(b))),
			cmp.Compare(slices.Index(tables, a.table), slices.Index(tables, b.table)), cmp.Compare(b.age(), a.age()))
	})
	for _, t := range found {
		for _, pid := range t.waitsFor {
			pids = append(pids, int32(pid))
		}
		if slices.Contains(t.waitsFor, 0) {
			behindPrepared = append(behindPrepared, int32(t.PID))
		}
	}
	if len(pids) == 0 {
		return found
	}
	all := rows(r, protocol.InTheWay, []any{l.schema, pids, closedToWriters}, l.scanInTheWay)
	if len(behindPrepared) > 0 {
		all = append(all, rows(r, protocol.PreparedInTheWay, []any{behindPrepared, closedToWriters}, l.scanPrepared)...)
	}
	for n, t := range found {
		for _, w := range all {
			if slices.Contains(t.waitsFor, w.PID) && (w.Prepared == "" || w.waiter == t.PID) {
				found[n].inTheWay = append(found[n].inTheWay, w)
			}
		}
		if w := found[n].prepared(); len(w) > 0 {
			found[n].BlockedByPrepared = w[0].Prepared
		}
		closes := func(pid int) bool {
			return slices.ContainsFunc(found[n].inTheWay, func(w inTheWay) bool { return w.PID == pid && w.closes })
		}
		slices.SortStableFunc(t.waitsFor, func(a, b int) int {
			return cmp.Compare(boolean(closes(b)), boolean(closes(a)))
		})
	}
	return found
}

// readTableLocks reads who keeps others from what they need, once for all looks of a call.
func (l *look) readTableLocks(r *reader) {
	if p := l.past; !p.looked {
		p.tables = slices.DeleteFunc(l.lockers(r, closedToWriters, needed...), func(t tableLock) bool {
			return !t.bars()
		})
		p.looked = r.err == nil
	}
	l.tables = l.past.tables
}

// barred reports whether nobody can use the lock, whatever else is so.
func (l *look) barred() bool {
	return l.closed || slices.ContainsFunc(l.tables, func(t tableLock) bool { return t.table != "fences" })
}

// past is what the looks of one call know of the tables: when one has found the history locked, no other waits for it.
type past struct {
	looked bool
	tables []tableLock

	closed bool
	by     []tableLock // who has locked the history, as it was then
}

// ofHistory lets f read the history, and says why it could not: that takes a right, and somebody may have locked its
// table, for which a look waits no longer than a renewal does.
func (l *look) ofHistory(r *reader, f func(*reader)) (unseen string) {
	const what = "the history of takeovers and breaks: "
	if !l.past.closed {
		err := r.apart(func(r *reader) {
			r.row(protocol.LookBriefly, []any{millis(historyPatience), millis(longestLook)}, moment(&r.at))
			f(r)
		})
		switch {
		case protocol.State(err) == "42501":
			return what + "you need the role pglock_admin"
		case !protocol.LockedOut(err):
			r.err = cmp.Or(r.err, err)
			return ""
		}
		l.past.closed, l.past.by = true, l.lockers(r, closedToReaders, "events")
	}
	unseen = what + "somebody has locked its table"
	if len(l.past.by) > 0 {
		t := l.past.by[0]
		if unseen += ": " + about(t.Backend); len(t.waitsFor) > 0 {
			unseen = what + say("somebody wants to lock its table: %s, which waits for %s", about(t.Backend),
				t.others())
		}
		unseen += "; a break waits for that, too"
	}
	return unseen
}

func (l *look) readEvents(r *reader, q *protocol.Queries) {
	kinds := shown.Words([]EventKind{EventTakeover, EventBreak})
	unseen := l.ofHistory(r, func(r *reader) {
		l.Events = rows(r, q.History, []any{l.Lock, eventsRead, nil, kinds, nil, nil}, scanEntry)
	})
	if unseen != "" {
		l.Unseen = append(l.Unseen, unseen)
	}
}

// readHistoryLocks reads who has locked the history, if the next grant needs it. Everybody may know that.
func (l *look) readHistoryLocks(r *reader, _ *protocol.Queries) {
	if l.Standby == nil && l.ranOut() {
		l.history = l.lockers(r, closedToWriters, "events")
	}
}

// ranOut reports whether nobody holds the lock, and its last lease ran out: the next grant waits for its entry in the
// history.
func (l *look) ranOut() bool {
	return l.State == LockFree && l.Last != nil && l.Last.EndedAt.IsZero() && !l.Last.ExpiresAt.IsZero()
}
