package lockadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Tenure is the time for which somebody held a lease: an entry of the history, or what the row of a lock says now.
// Times are the server's, in UTC.
type Tenure struct {
	ID        int64        `json:"id,omitempty"` // of its event; 0: it is not in the history yet
	Kind      EventKind    `json:"kind"`         // how it ended; TenureHeld, TenureOver
	Token     pglock.Token `json:"token"`
	NewToken  pglock.Token `json:"new_token,omitempty"`
	Holder    string       `json:"holder"`
	Slot      int          `json:"slot,omitempty"`
	Mode      pglock.Mode  `json:"mode"`
	Limit     int          `json:"limit,omitempty"`
	Subtree   bool         `json:"subtree,omitempty"` // it covered all names below, too
	GrantedAt time.Time    `json:"granted_at"`
	EndedAt   time.Time    `json:"ended_at"` // of TenureHeld: until then at least
	Number    int64        `json:"number"`   // of the tenure among those of the lock's row, from 1

	at      time.Time // when its event was written
	after   int64     // the ID of the event before it in its slot, which it was granted after; 0: not known
	lock    string
	session string
}

// What the row of a lock says of its last grant, where the history has nothing of it yet.
const (
	TenureHeld EventKind = "held" // the lease runs
	TenureOver EventKind = "over" // the lease has run out
	tenureFree EventKind = "free" // the lease was released or broken: there is no tenure, only a count
)

// ViolationKind says what the history contradicts.
type ViolationKind string

// The kinds of violations.
const (
	// ViolationOverlap: two tenures that exclude each other ran at the same time.
	ViolationOverlap ViolationKind = "overlap"
	// ViolationLimit: more tenures ran at the same time than the limit of the lock allows.
	ViolationLimit ViolationKind = "limit"
	// ViolationToken: a later grant has a token that is not greater.
	ViolationToken ViolationKind = "token"
	// ViolationClock: the server's clock was set back, and therefore the times of two tenures, or of one, look wrong.
	// Verify lists these in Verification.Clock.
	ViolationClock ViolationKind = "clock"
)

// Violation is a contradiction between two tenures of a lock.
type Violation struct {
	Kind   ViolationKind `json:"kind"`
	Lock   string        `json:"lock"`
	First  Tenure        `json:"first"`
	Second Tenure        `json:"second"`
	By     time.Duration `json:"-"`      // for how long both ran, or by how much a time went back
	Detail string        `json:"detail"` // what is wrong, in a sentence
	// of an overlap with the lease of a subtree that Lock lies below: its name; one of the two tenures is of that
	Subtree string `json:"subtree,omitempty"`
}

// MarshalJSON writes By in microseconds.
func (v Violation) MarshalJSON() ([]byte, error) {
	type plain Violation
	return json.Marshal(struct {
		plain
		By int64 `json:"by_us"`
	}{plain(v), v.By.Microseconds()})
}

// GapCause says why tenures are missing.
type GapCause string

// The causes of gaps.
const (
	GapPruned GapCause = "pruned" // they are older than the history was kept
	GapLevel  GapCause = "level"  // the level was not HistoryAll when they ended, or nobody knows when they did
	// they should be there: somebody has removed them, or the server could not write them
	GapUnknown GapCause = "unknown"
)

// Gap is a run of tenures of a lock's row that are not in the history.
type Gap struct {
	Lock    string       `json:"lock"`
	Slot    int          `json:"slot,omitempty"`
	After   pglock.Token `json:"after,omitempty"`  // the token of the tenure before; 0: the record begins with the gap
	Before  pglock.Token `json:"before,omitempty"` // the token of the tenure after; 0: the gap is at the end
	Missing int64        `json:"missing"`
	Cause   GapCause     `json:"cause"`
}

// MaxFindings limits how many findings of each kind a Verification lists. It counts all.
const MaxFindings = 100

// Verification is what Verify has found.
type Verification struct {
	Locks    int64           `json:"locks"`   // that have a tenure in the history or in the table of locks
	Tenures  int64           `json:"tenures"` // that were compared
	From     time.Time       `json:"from,omitzero"`
	To       time.Time       `json:"to,omitzero"` // the tenures are from this time: the first grant, and the last end
	Settings HistorySettings `json:"history"`

	Violations     []Violation `json:"violations"` // at most MaxFindings
	ViolationCount int64       `json:"violation_count"`
	Clock          []Violation `json:"clock"` // what looks wrong because the server's clock was set back
	ClockCount     int64       `json:"clock_count"`
	Gaps           []Gap       `json:"gaps"`
	GapCount       int64       `json:"gap_count"`
	Missing        int64       `json:"missing"`         // tenures in all gaps
	MissingUnknown int64       `json:"missing_unknown"` // of these in gaps of GapUnknown
	// tenures of subtrees that were not compared with what lies below: more than 100,000 of names above each other
	SubtreesLeft int64 `json:"subtrees_left,omitempty"`
}

// Verify replays the history of one lock, or with name "" of all, together with the leases of the present. It looks for
// tenures that exclude each other and ran at the same time, for more tenures at once than a limit allows, and for
// tokens that did not grow from grant to grant. It finds gaps in the record by the number that each tenure has.
//
// It compares tenures of subtrees (pglock.WithSubtree) with those of the locks below, but not two of one session:
// whoever has a subtree may take what lies below, too, and the history does not say for which line of work a lease was.
// With a name it compares that lock with the subtrees above it, and not with the locks below.
//
// docs/history.md says what the answer proves. It compares the tenures that are in the history, by the server's clock;
// at level HistoryLosses those are few. A history without violations says nothing about what is missing from it, about
// grants that a failover has lost, or about what a program did after its lease.
//
// Where the record shows that the server's clock was set back, a contradiction between times is in Clock instead of in
// Violations, unless the record also shows that the earlier tenure was granted after that. The record shows it only if
// an event was written between the two moments.
//
// Verify reads in the order of an index, a page per statement, so a million tenures need little memory and hold up
// nobody. Others may use the locks meanwhile. The database user needs the role pglock_admin. Errors are those of Locks.
func (a *Admin) Verify(ctx context.Context, name string) (Verification, error) {
	if name != "" {
		if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
			return Verification{}, err
		}
	}
	v, err := a.verify(ctx, name)
	if err != nil {
		return Verification{}, failed(ctx, err, "verify the history")
	}
	return v, nil
}

func (a *Admin) verify(ctx context.Context, name string) (Verification, error) {
	steps, err := a.clockSteps(ctx)
	if err != nil {
		return Verification{}, err
	}
	r := replay{steps: steps, only: name}
	r.found.Violations, r.found.Clock, r.found.Gaps = []Violation{}, []Violation{}, []Gap{} // no null in JSON

	for i := range name { // what lies above comes first, as in the order of all names
		if i > 0 && name[i] == '/' && err == nil {
			err = a.replay(ctx, name[:i], &r)
		}
	}
	if err == nil {
		err = a.replay(ctx, name, &r)
	}
	return r.found, err
}

const pageOfTenures = 5000

// replay reads every tenure of a lock, or of all, by lock, token and ID. It reads the settings after each page, because
// a prune that has removed some of the page has said so before.
func (a *Admin) replay(ctx context.Context, name string, r *replay) error {
	last := Tenure{lock: name}
	for {
		page, err := server.Rows(ctx, a.db, a.db.Queries.Replay, []any{name, pageOfTenures, last.lock, last.Token,
			last.ID}, scanTenure)
		if err != nil {
			return err
		}
		if r.found.Settings, err = a.historySettings(ctx); err != nil {
			return err
		}
		for _, last = range page {
			r.next(last)
		}
		if len(page) < pageOfTenures {
			return nil
		}
	}
}

func scanTenure(rows pgx.Rows) (t Tenure, err error) {
	err = rows.Scan(&t.ID, moment(&t.at), &t.Kind, &t.lock, &t.Token, null(&t.NewToken), null(&t.Holder),
		null(&t.Slot), null(&t.Mode), null(&t.Limit), moment(&t.GrantedAt), moment(&t.EndedAt), null(&t.Number),
		null(&t.session), &t.Subtree)
	return t, err
}

// clockStep is a place in the history where the server's clock was set back: the event with this ID has the time to,
// the one before it has from.
type clockStep struct {
	id       int64
	from, to time.Time
}

// maxClockSteps limits how many are read. A clock that is set back more often explains nothing any more.
const maxClockSteps = 1000

var errUnsteady = errors.New("the server's clock was set back more than a thousand times within the history: nothing " +
	"can be told by it")

func (a *Admin) clockSteps(ctx context.Context) (steps []clockStep, err error) {
	for after := int64(0); ; {
		var last *int64
		page, err := server.Rows(ctx, a.db, a.db.Queries.ClockSteps, []any{after},
			func(rows pgx.Rows) (s clockStep, err error) {
				err = rows.Scan(null(&s.id), moment(&s.from), moment(&s.to), &last)
				return s, err
			})
		if err != nil {
			return nil, err
		}
		for _, s := range page {
			if s.id != 0 {
				steps = append(steps, s)
			}
		}
		if len(steps) > maxClockSteps {
			return nil, errUnsteady
		}
		if last == nil {
			return steps, nil
		}
		after = *last
	}
}

func (t Tenure) String() string { return fmt.Sprintf("token %d", t.Token) }
