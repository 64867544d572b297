package dashboard

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"

	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// The views have what package lockadmin writes in JSON. Tokens, tickets and numbers of events are texts (string):
// programs that keep numbers as doubles change those above 2^53. Durations are in milliseconds.

type lockView struct {
	pglock.LockInfo
	Life      lockadmin.Life `json:"life,omitempty"` // of the holder, in the list alone; "" if it is free
	Token     pglock.Token   `json:"token,string"`
	Remaining int64          `json:"remaining_ms"`
	TTL       int64          `json:"ttl_ms"`
	HeldFor   int64          `json:"held_for_ms"`
	Slowest   int64          `json:"slowest_renewal_ms"`
	Longest   int64          `json:"longest_wait_ms"`

	Verdict lockadmin.Severity `json:"verdict,omitempty"` // of the lock, as why judges it; "": nobody has looked
	Kind    string             `json:"kind,omitempty"`
}

func viewLock(i pglock.LockInfo) lockView {
	return lockView{LockInfo: i, Token: i.Token, Remaining: i.Remaining.Milliseconds(), TTL: i.TTL.Milliseconds(),
		HeldFor: lists.HeldFor(i).Milliseconds(), Slowest: i.SlowestRenewal.Milliseconds(),
		Longest: i.LongestWait.Milliseconds()}
}

// stable is the view without what changes by itself as time passes.
func (v lockView) stable() lockView {
	v.Remaining, v.HeldFor, v.Longest = 0, 0, 0
	return v
}

// The types of package lockadmin without their MarshalJSON.
type (
	plainWaiter lockadmin.Waiter
	plainEvent  lockadmin.HistoryEntry
)

type waiterView struct {
	plainWaiter
	Ticket  int64 `json:"ticket,string"`
	Before  int64 `json:"before,string,omitempty"`
	Waiting int64 `json:"waiting_ms"`
}

func viewWaiter(w lockadmin.Waiter) waiterView {
	return waiterView{plainWaiter(w), w.Ticket, w.Before, w.Waiting.Milliseconds()}
}

type fenceView struct {
	lockadmin.FenceInfo
	LastToken pglock.Token `json:"last_token,string"`
}

func viewFence(f lockadmin.FenceInfo) fenceView { return fenceView{f, f.LastToken} }

// locksView is the answer of api/locks.
type locksView struct {
	At    time.Time  `json:"at"`
	Locks []lockView `json:"locks"`
	More  bool       `json:"more"`
	Ill   illView    `json:"ill"`
}

// illView is what is wrong in the whole database, the worst first.
type illView struct {
	Locks   []lockadmin.Summary `json:"locks"`
	More    int                 `json:"more"`    // that may not be well either, and that nobody has looked at
	All     bool                `json:"all"`     // every lock was looked at; not on a standby
	Partly  bool                `json:"partly"`  // so much waits that some was not looked at
	Standby bool                `json:"standby"` // the server is one: the primary alone knows how the locks are
}

func viewIll(o lockadmin.Overview) illView {
	return illView{Locks: o.Locks, More: o.More, All: o.Known <= 1000 && !o.Partly && !o.Standby, Partly: o.Partly,
		Standby: o.Standby}
}

// closed says that somebody has locked a whole table of pglock, so that nobody can read the locks.
func (v illView) closed() bool { return len(v.Locks) > 0 && v.Locks[0].Lock == "" }

// stable is the view without what changes by itself as time passes.
func (v illView) stable() illView {
	v.Locks = slices.Clone(v.Locks)
	for n := range v.Locks {
		v.Locks[n].Since, v.Locks[n].Next = time.Time{}, lockadmin.Step{}
	}
	return v
}

// oneView is the answer of api/lock. Lock is the holder of the lowest slot, or the last holder. While somebody has
// locked a whole table, so that nobody can read the locks, there is no Lock, and Why says who.
type oneView struct {
	At          time.Time    `json:"at"`
	Lock        *lockView    `json:"lock"`
	Holders     []lockView   `json:"holders"`
	Waiters     []waiterView `json:"waiters"`
	MoreWaiters bool         `json:"more_waiters"`
	AllWaiters  string       `json:"all_waiters,omitempty"` // if there are more: the command that lists them all
	Fences      []fenceView  `json:"fences"`
	MoreFences  bool         `json:"more_fences"`
	Why         *whyView     `json:"why"` // null: nobody can tell now
}

// whyView is what people need of an Explanation. It has no statements of other programs: they may hold secrets.
type whyView struct {
	State    lockadmin.LockState `json:"state"`
	Severity lockadmin.Severity  `json:"severity"`
	Verdicts []lockadmin.Verdict `json:"verdicts"`
	Unseen   []string            `json:"unseen"`
	Standby  bool                `json:"standby"` // the server is one: nobody can tell whether clients live
}

// viewWhy makes commands for a shell. It names the schema, unless it is the usual one. It names no server: that has
// perhaps another address where people paste them.
func viewWhy(e lockadmin.Explanation, schema string) *whyView {
	verdicts := slices.Clone(e.Verdicts)
	for n := range verdicts {
		steps := slices.Clone(verdicts[n].Steps)
		for i, s := range steps {
			switch s.Run {
			case lockadmin.RunSQL:
				steps[i].Command = `psql "$DATABASE_URL" -c ` + shown.Query(s.Command)
			case lockadmin.RunAdmin:
				steps[i].Command = inSchema(s.Command, cmp.Or(s.Schema, schema))
			}
		}
		verdicts[n].Steps, verdicts[n].Statement = steps, "" // it may hold secrets
	}
	return &whyView{e.State, e.Severity, verdicts, e.Unseen, e.Standby != nil}
}

// inSchema makes a command that pglock-admin runs in a schema.
func inSchema(command, schema string) string {
	if schema == pglockSchema {
		return command
	}
	return command + " --schema " + shown.Argument(schema)
}

const pglockSchema = "pglock"

// stable is the view without what changes by itself as time passes.
func (v *whyView) stable() *whyView {
	if v == nil {
		return nil
	}
	verdicts := make([]lockadmin.Verdict, len(v.Verdicts))
	for n, one := range v.Verdicts {
		verdicts[n] = lockadmin.Verdict{Kind: one.Kind, Severity: one.Severity, Who: one.Who}
	}
	return &whyView{State: v.State, Severity: v.Severity, Verdicts: verdicts, Standby: v.Standby}
}

// sessionsView is the answer of api/sessions.
type sessionsView struct {
	At       time.Time           `json:"at"`
	Sessions []lockadmin.Session `json:"sessions"`
	More     bool                `json:"more"`
}

// eventView is an event in JSON. Of what is no tenure it has no times but At.
type eventView struct {
	plainEvent
	ID       int64        `json:"id,string"`
	Token    pglock.Token `json:"token,string"`
	NewToken pglock.Token `json:"new_token,string"`
}

func viewEvent(e lockadmin.HistoryEntry) eventView {
	return eventView{plainEvent(e), e.ID, e.Token, e.NewToken}
}

// historyView is the answer of api/history.
type historyView struct {
	At     time.Time              `json:"at"`
	Events []eventView            `json:"events"`
	More   bool                   `json:"more"`
	Level  lockadmin.HistoryLevel `json:"level"`
	Keep   int64                  `json:"keep_ms"`
	Record string                 `json:"record,omitempty"` // the command to have every tenure, unless it is so
}

type brokenView struct {
	Name     string       `json:"name"`
	Holder   string       `json:"holder"`
	Token    pglock.Token `json:"token,string"`
	NewToken pglock.Token `json:"new_token,string"`
}

// fingerprint is equal for two answers that differ only in the time that has passed.
func (v locksView) fingerprint() []byte {
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, l := range v.Locks {
		_ = e.Encode(l.stable()) // a hash takes everything
	}
	_ = e.Encode(v.More)
	_ = e.Encode(v.Ill.stable())
	return h.Sum(nil)
}

// begins are the moments since when the ages of the list last, as far as a read that takes its time can tell.
func (v locksView) begins() (all []time.Time) {
	for _, l := range v.Locks {
		if l.Waiting > 0 {
			all = append(all, v.At.Add(-l.LongestWait))
		}
	}
	for _, one := range v.Ill.Locks {
		all = append(all, one.Since)
	}
	return all
}

func (v oneView) begins() []time.Time { return nil } // it is told again and again

func (v oneView) fingerprint() []byte {
	v.At, v.Why = time.Time{}, v.Why.stable()
	if v.Lock != nil {
		v.Lock = new(v.Lock.stable())
	}
	v.Holders = slices.Clone(v.Holders)
	for n, l := range v.Holders {
		v.Holders[n] = l.stable()
	}
	v.Waiters = slices.Clone(v.Waiters)
	for n := range v.Waiters {
		v.Waiters[n].Waiting = 0
	}
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(v) // a hash takes everything
	return h.Sum(nil)
}
