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

// Tokens, tickets and numbers of events are texts in JSON (string), because programs that keep numbers as doubles
// change those above 2^53.

type lockView struct {
	Name       string          `json:"name"`
	Slot       int             `json:"slot"`
	Mode       pglock.Mode     `json:"mode"`
	Limit      int             `json:"limit"`
	Subtree    bool            `json:"subtree"`
	Held       bool            `json:"held"`
	Holder     string          `json:"holder"`
	Life       lockadmin.Life  `json:"life,omitempty"` // of the holder, in the list alone; "" if it is free
	Session    string          `json:"session"`
	Token      pglock.Token    `json:"token,string"`
	AcquiredAt time.Time       `json:"acquired_at"`
	RenewedAt  time.Time       `json:"renewed_at"`
	ExpiresAt  time.Time       `json:"expires_at,omitzero"`
	EndedAt    time.Time       `json:"ended_at,omitzero"`
	Remaining  int64           `json:"remaining_ms"`
	TTL        int64           `json:"ttl_ms"`
	HeldFor    int64           `json:"held_for_ms"`
	Waiting    int             `json:"waiting"`
	Grants     int64           `json:"grants"`
	Slowest    int64           `json:"slowest_renewal_ms"`
	Longest    int64           `json:"longest_wait_ms"`
	Metadata   json.RawMessage `json:"metadata"`

	Verdict lockadmin.Severity `json:"verdict,omitempty"` // of the lock, as why judges it; "": nobody has looked
	Kind    string             `json:"kind,omitempty"`
}

func viewLock(i pglock.LockInfo) lockView {
	v := lockView{
		Name: i.Name, Slot: i.Slot, Mode: i.Mode, Limit: i.Limit, Subtree: i.Subtree,
		Held: i.Held, Holder: i.Holder, Session: i.Session,
		Token: i.Token, AcquiredAt: i.AcquiredAt, RenewedAt: i.RenewedAt, ExpiresAt: i.ExpiresAt,
		EndedAt:   i.EndedAt,
		Remaining: i.Remaining.Milliseconds(), TTL: i.TTL.Milliseconds(), Waiting: i.Waiting,
		Grants: i.Grants, Slowest: i.SlowestRenewal.Milliseconds(), Longest: i.LongestWait.Milliseconds(),
		Metadata: i.Metadata, HeldFor: lists.HeldFor(i).Milliseconds(),
	}
	return v
}

// stable is the view without what changes by itself as time passes.
func (v lockView) stable() lockView {
	v.Remaining, v.HeldFor, v.Longest = 0, 0, 0
	return v
}

type waiterView struct {
	Place   int         `json:"place"`
	Ticket  int64       `json:"ticket,string"`
	Mode    pglock.Mode `json:"mode"`
	Limit   int         `json:"limit"`
	Holder  string      `json:"holder"`
	Session string      `json:"session"`
	Alive   bool        `json:"alive"`
	Since   time.Time   `json:"since"`
	Waiting int64       `json:"waiting_ms"`
	Behind  string      `json:"behind"`
	// the lock of that holder, or of its request, if another is in the way
	BehindLock string          `json:"behind_lock,omitempty"`
	Subtree    bool            `json:"subtree"`
	Metadata   json.RawMessage `json:"metadata"`
}

func viewWaiter(w lockadmin.Waiter) waiterView {
	return waiterView{Place: w.Place, Ticket: w.Ticket, Mode: w.Mode, Limit: w.Limit,
		Holder:  w.Holder,
		Session: w.Session, Alive: w.Alive, Since: w.Since, Waiting: w.Waiting.Milliseconds(), Behind: w.Behind,
		BehindLock: w.BehindLock, Subtree: w.Subtree,
		Metadata: w.Metadata}
}

type fenceView struct {
	Resource   string       `json:"resource"`
	LastToken  pglock.Token `json:"last_token,string"`
	Lock       string       `json:"lock"`
	AdvancedAt time.Time    `json:"advanced_at"`
}

func viewFence(f lockadmin.FenceInfo) fenceView { return fenceView(f) }

// locksView is the answer of api/locks.
type locksView struct {
	At    time.Time  `json:"at"`
	Locks []lockView `json:"locks"`
	More  bool       `json:"more"`
	Ill   illView    `json:"ill"`
}

// illView is what is wrong in the whole database, the worst first.
type illView struct {
	Locks  []lockadmin.Summary `json:"locks"`
	More   int                 `json:"more"`   // that may not be well either, and that nobody has looked at
	All    bool                `json:"all"`    // every lock was looked at
	Partly bool                `json:"partly"` // so much waits that some was not looked at
}

func viewIll(o lockadmin.Overview) illView {
	return illView{Locks: o.Locks, More: o.More, All: o.Known <= 1000 && !o.Partly, Partly: o.Partly}
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

// oneView is the answer of api/lock. Lock is the holder of the lowest slot, or the last holder.
type oneView struct {
	At          time.Time    `json:"at"`
	Lock        lockView     `json:"lock"`
	Holders     []lockView   `json:"holders"`
	Waiters     []waiterView `json:"waiters"`
	MoreWaiters bool         `json:"more_waiters"`
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
}

// viewWhy makes commands for a shell. It names the schema, unless it is the usual one. It names no server: that has
// perhaps another address where people paste them.
func viewWhy(e lockadmin.Explanation, schema string) *whyView {
	verdicts := slices.Clone(e.Verdicts)
	for n := range verdicts {
		steps := slices.Clone(verdicts[n].Steps)
		for i, s := range steps {
			there := cmp.Or(s.Schema, schema)
			switch {
			case s.Run == lockadmin.RunSQL:
				steps[i].Command = `psql "$DATABASE_URL" -c ` + shown.Query(s.Command)
			case s.Run == lockadmin.RunAdmin && there != pglockSchema:
				steps[i].Command += " --schema " + shown.Argument(there)
			}
		}
		verdicts[n].Steps, verdicts[n].Statement = steps, "" // it may hold secrets
	}
	return &whyView{e.State, e.Severity, verdicts, e.Unseen}
}

const pglockSchema = "pglock"

type sessionView struct {
	ID             string         `json:"id"`
	Holder         string         `json:"holder"`
	Version        string         `json:"version"`
	Leases         int            `json:"leases"`
	Tickets        int            `json:"tickets"`
	Life           lockadmin.Life `json:"life"`
	LastHeartbeat  time.Time      `json:"last_heartbeat,omitzero"`
	SinceHeartbeat *int64         `json:"since_heartbeat_ms"` // null: nothing was heard of it yet
	PID            int            `json:"pid"`                // 0: not known
	User           string         `json:"user"`
	Application    string         `json:"application"`
	Client         string         `json:"client"`
	State          string         `json:"state"`
}

func viewSession(s lockadmin.Session) sessionView {
	v := sessionView{ID: s.ID, Holder: s.Holder, Version: s.Version, Leases: s.Leases, Tickets: s.Tickets, Life: s.Life,
		LastHeartbeat: s.LastHeartbeat, PID: s.PID, User: s.User, Application: s.Application,
		Client: s.Client, State: s.State}
	if !s.LastHeartbeat.IsZero() {
		v.SinceHeartbeat = new(s.Silent.Milliseconds())
	}
	return v
}

// sessionsView is the answer of api/sessions.
type sessionsView struct {
	At       time.Time     `json:"at"`
	Sessions []sessionView `json:"sessions"`
	More     bool          `json:"more"`
}

// eventView is an event in JSON, with the fields of a lockadmin.HistoryEntry. Of what is no tenure it has no times but
// At.
type eventView struct {
	ID        int64               `json:"id,string"`
	At        time.Time           `json:"at"`
	Kind      lockadmin.EventKind `json:"kind"`
	Lock      string              `json:"lock"`
	Token     pglock.Token        `json:"token,string"`
	NewToken  pglock.Token        `json:"new_token,string"`
	Holder    string              `json:"holder"`
	Actor     string              `json:"actor"`
	DBUser    string              `json:"db_user"`
	Reason    string              `json:"reason"`
	Resource  string              `json:"resource"`
	Session   string              `json:"session"`
	Slot      int                 `json:"slot"`
	Mode      pglock.Mode         `json:"mode"`
	Limit     int                 `json:"limit"`
	GrantedAt time.Time           `json:"granted_at,omitzero"`
	EndedAt   time.Time           `json:"ended_at,omitzero"`
	Subtree   bool                `json:"subtree"`
	Number    int64               `json:"-"`
}

func viewEvent(e lockadmin.HistoryEntry) eventView { return eventView(e) }

// historyView is the answer of api/history.
type historyView struct {
	At     time.Time              `json:"at"`
	Events []eventView            `json:"events"`
	More   bool                   `json:"more"`
	Level  lockadmin.HistoryLevel `json:"level"`
	Keep   int64                  `json:"keep_ms"`
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

func (v oneView) fingerprint() []byte {
	v.At, v.Lock = time.Time{}, v.Lock.stable()
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
