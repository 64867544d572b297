package lockadmin

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Life says whether a client lives, as far as the server can know. A client that holds or waits gives a sign of life
// every ten seconds or more often; the SQL function life_of judges by that, in all lists.
type Life string

// The lives of clients.
const (
	LifeAlive  Life = "alive"  // it gave a sign within 15 s
	LifeSilent Life = "silent" // it gave none; its connection is open, or cannot be seen
	LifeDead   Life = "dead"   // it gave none, and its connection has ended
	// too early to tell: a new lease, or a connection that has just ended; on a standby, no sign has arrived
	LifeUnknown Life = "unknown"
	LifeIdle    Life = "idle" // it holds nothing and waits for nothing, so it need give no sign
)

// HolderLife is what the server knows of the holder of a lease.
type HolderLife struct {
	Life     Life          `json:"life"`
	SignedAt time.Time     `json:"signed_at,omitzero"` // its last sign of life; zero: none yet
	Silent   time.Duration `json:"-"`                  // since then, at the answer
	// its own connection is open, or has ended; nil: none is known, as on a standby
	Connected *bool `json:"connected,omitempty"`
}

const livesAsked = 10_000

// Lives says of each lease whether its holder lives. Of one that is not held any more the result is zero. Errors are
// those of Locks.
func (a *Admin) Lives(ctx context.Context, leases []pglock.LockInfo) ([]HolderLife, error) {
	lives := make([]HolderLife, 0, len(leases))
	for some := range slices.Chunk(leases, livesAsked) {
		found, err := server.List(ctx, a.db, a.db.Queries.HolderLives, livesArgs(some), scanHolderLife)
		if err != nil {
			return nil, failed(ctx, err, "list holders")
		}
		known := livesOf(found)
		for _, l := range some {
			lives = append(lives, known[leaseOf(l)])
		}
	}
	return lives, nil
}

func livesArgs(leases []pglock.LockInfo) []any {
	names, slots := make([]string, len(leases)), make([]int32, len(leases))
	for i, l := range leases {
		names[i], slots[i] = l.Name, int32(l.Slot)
	}
	return []any{names, slots}
}

type leaseLife struct {
	lease
	HolderLife
}

// lease is a grant of a slot: one that was granted again has another token.
type lease struct {
	name  string
	slot  int
	token pglock.Token
}

// leaseOf is zero for a lease that is not held.
func leaseOf(i pglock.LockInfo) lease {
	if !i.Held {
		return lease{}
	}
	return lease{i.Name, i.Slot, i.Token}
}

func scanHolderLife(rows pgx.Rows) (l leaseLife, err error) {
	err = rows.Scan(&l.name, &l.slot, &l.token, &l.Life, moment(&l.SignedAt), micros(&l.Silent), &l.Connected)
	return l, err
}

func livesOf(found []leaseLife) map[lease]HolderLife {
	known := make(map[lease]HolderLife, len(found))
	for _, l := range found {
		known[l.lease] = l.HolderLife
	}
	return known
}
