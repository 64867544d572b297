package lockadmin

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// BackendUse says what a process of the server does for a lock.
type BackendUse string

// The uses of backends.
const (
	BackendHeartbeat BackendUse = "heartbeat" // it serves the connection over which a holder renews its leases
	BackendWrite     BackendUse = "write"     // its transaction has passed a fence of the lock and is still open
	BackendAtFence   BackendUse = "at fence"  // its transaction waits for such a one at the fence
	BackendRow       BackendUse = "row"       // its transaction has locked the row of the lock itself
	BackendAtRow     BackendUse = "at row"    // it waits for such a one
	// it has nothing to do with the lock, and keeps one of the others from going on
	BackendBlocker BackendUse = "blocker"
)

// Backend is a process of the server that works for a lock or stands in its way, as pg_stat_activity shows it, or a
// prepared transaction. The server shows PID, User and Application to everybody; the rest it shows to members of User's
// role and of pg_read_all_stats, and to nobody what a process does whose track_activities is off. Hidden says that it
// did not.
type Backend struct {
	Use    BackendUse   `json:"use"`
	Slot   int          `json:"slot,omitempty"`   // of BackendHeartbeat: the lease's, as in pglock.LockInfo
	Token  pglock.Token `json:"token,omitempty"`  // of BackendHeartbeat: the lease's
	Holder string       `json:"holder,omitempty"` // of BackendHeartbeat: the lease's
	// of BackendWrite and BackendAtFence: the fence's; "": see Backends
	Resource    string        `json:"resource,omitempty"`
	PID         int           `json:"pid"`                // 0 of a prepared transaction
	Prepared    string        `json:"prepared,omitempty"` // the identifier of a prepared transaction
	User        string        `json:"user"`
	Application string        `json:"application_name"`
	Hidden      bool          `json:"hidden"`                // the server does not show what it does
	Client      string        `json:"client_addr,omitempty"` // "" for a Unix socket
	StartedAt   time.Time     `json:"started_at,omitzero"`   // by the server's clock, in UTC
	State       string        `json:"state,omitempty"`       // active, idle, idle in transaction, …
	InState     time.Duration `json:"-"`                     // for how long
	Transaction time.Duration `json:"-"`                     // the age of the open transaction; 0: there is none
	Query       time.Duration `json:"-"`                     // since when the last statement began
	WaitsFor    string        `json:"waits_for,omitempty"`   // the type and name of the event, as in "Lock: tuple"
	// this user may call pg_terminate_backend on it, or COMMIT PREPARED
	MayEnd    bool   `json:"may_end"`
	Statement string `json:"statement,omitempty"` // the last one; of BackendHeartbeat ""

	BlockedBy         []int  `json:"blocked_by,omitempty"`          // the PIDs that it waits for
	BlockedByPrepared string `json:"blocked_by_prepared,omitempty"` // the prepared transaction that it waits for
	BlockedAt         string `json:"blocked_at,omitempty"`          // where, as in "a row of public.accounts"
}

// MarshalJSON writes durations in milliseconds; null where the server hides them, and where no transaction is open.
func (b Backend) MarshalJSON() ([]byte, error) {
	var inState, transaction, query *int64
	if !b.Hidden {
		inState, query = new(b.InState.Milliseconds()), new(b.Query.Milliseconds())
		if b.Transaction > 0 {
			transaction = new(b.Transaction.Milliseconds())
		}
	}
	type plain Backend
	return json.Marshal(struct {
		plain
		InState     *int64 `json:"in_state_ms"`
		Transaction *int64 `json:"transaction_ms"`
		Query       *int64 `json:"query_ms"`
	}{plain(b), inState, transaction, query})
}

// Backends tells which processes of the server work for a lock, so that people find the program that holds it: the
// heartbeats of its holders first, by slot, then open fenced transactions. After them come those that have locked the
// lock's row or wait for it, and whoever keeps one of all these from going on.
//
// It does not find everything. A client opens the connection of its heartbeat when its first lease has lasted for ten
// seconds, or a third of its TTL. Behind a pooler such as PgBouncer a process serves many clients in turn, so
// Backends leaves out the heartbeats. A transaction that passes the fence of a resource for the first time has no
// Resource if its program has named one (fencedstore.Fence), and is found by its first eight such fences.
// Under a fence that another lock's holder has passed last it is found with that lock. A transaction may belong to a
// former holder, and the next holder waits for it at the fence.
//
// To end a process of BackendHeartbeat ends no lease: the client connects again. To end one of BackendWrite rolls its
// transaction back. Break takes the lock away from its holder; the holder's program runs until somebody stops it.
//
// Errors are those of Locks. If nobody works for the lock, or there is none of that name, the list is empty.
func (a *Admin) Backends(ctx context.Context, name string) ([]Backend, error) {
	if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
		return nil, err
	}
	backends, err := server.Rows(ctx, a.db, a.db.Queries.Backends, []any{name}, scanBackend)
	return backends, failed(ctx, err, "find the backends of lock %q", name)
}

func scanBackend(rows pgx.Rows) (Backend, error) {
	b, _, err := scanBackendAt(rows)
	return b, err
}

// scanBackendAt also reads the time to which its ages count.
func scanBackendAt(rows pgx.Rows) (b Backend, at time.Time, err error) {
	err = rows.Scan(null(&b.Slot), null(&b.Token), null(&b.Holder), &b.Use, null(&b.Resource), null(&b.PID),
		null(&b.User), null(&b.Application), &b.Hidden, null(&b.Client), moment(&b.StartedAt), null(&b.State),
		micros(&b.InState), micros(&b.Transaction), micros(&b.Query), null(&b.WaitsFor), null(&b.MayEnd),
		null(&b.Statement), null(&b.Prepared), &b.BlockedBy, null(&b.BlockedByPrepared), null(&b.BlockedAt),
		moment(&at))
	if b.Use == BackendHeartbeat { // it holds nothing
		b.Statement = ""
	}
	b.InState, b.Transaction, b.Query = max(0, b.InState), max(0, b.Transaction), max(0, b.Query)
	return b, at, err
}
