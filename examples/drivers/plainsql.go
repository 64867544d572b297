package drivers

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/lib/pq"
)

// Grant is what the SQL functions ask of a holder. This file uses none of pglock's Go code, as a program in another
// language would not: what it does, and what it leaves out, is the same there. Nothing here renews a lease by itself.
type Grant struct {
	Name    string
	Token   int64
	GrantID string // proves that the lease is its caller's own: keep it secret
}

// ErrHeld: somebody else holds the lock.
var ErrHeld = errors.New("drivers: the lock is held")

// ErrStop: the lease has ended or was overtaken, nothing was written, and the work that the lock protects must stop.
// errors.As with **pq.Error tells more.
var ErrStop = errors.New("drivers: stop the work")

// Acquire asks for the lock once, and does not wait. The TTL is PostgreSQL's text of an interval, such as "30 s".
func Acquire(ctx context.Context, db *sql.DB, name, holder, ttl string) (Grant, error) {
	g := Grant{Name: name, GrantID: uuid.NewString()}
	var granted bool
	var token sql.NullInt64
	var more sql.NullString
	err := db.QueryRowContext(ctx,
		`SELECT granted, token, more FROM pglock.acquire_lease($1, $2, $3, $4, $5::interval)`,
		name, g.GrantID, uuid.NewString(), holder, ttl).Scan(&granted, &token, &more)
	if err != nil {
		return Grant{}, explain(err)
	}
	who, err := announce(ctx, db, name, more)
	if !granted {
		return Grant{}, errors.Join(fmt.Errorf("%w: %q by %q", ErrHeld, name, who), err)
	}
	g.Token = token.Int64
	return g, nil
}

// Renew gives the lease its full TTL again. Call it at a third of the TTL, and before a long write: a fenced
// transaction may last no longer than the lease had left when it began. It waits for the lease's row for a second at
// most, as somebody may be about to queue for the lock: 55P03.
func (g Grant) Renew(ctx context.Context, db *sql.DB) error {
	var outcome string
	err := db.QueryRowContext(ctx,
		`SELECT outcome FROM pglock.renew_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[0], '1 s')`,
		g.Name, g.Token, g.GrantID).Scan(&outcome)
	if err == nil && outcome != "renewed" {
		return fmt.Errorf("%w: the lease of lock %q was not renewed: %s", ErrStop, g.Name, outcome)
	}
	return explain(err)
}

// Write runs fn in a transaction under the fence of the lock's own name.
func (g Grant) Write(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // after a commit it does nothing
	if _, err := tx.ExecContext(ctx, `SELECT pglock.fence($1, $2, $3)`, g.Name, g.Token, g.GrantID); err != nil {
		return explain(err)
	}
	if err := fn(tx); err != nil {
		return explain(err)
	}
	if _, err := tx.ExecContext(ctx, `SELECT pglock.seal(ARRAY[$1])`, g.Name); err != nil {
		return explain(err)
	}
	return explain(tx.Commit()) // which checks the lease again
}

// Release ends the lease, so that the next one can have the lock, and tells that one. A lease that has ended before is
// an ErrStop.
func (g Grant) Release(ctx context.Context, db *sql.DB) error {
	var released bool
	var more sql.NullString
	err := db.QueryRowContext(ctx, `SELECT released, more FROM pglock.release_lease($1, $2, $3)`, g.Name, g.Token,
		g.GrantID).Scan(&released, &more)
	if err != nil {
		return explain(err)
	}
	if !released {
		return fmt.Errorf("%w: the lease of lock %q had ended before its release", ErrStop, g.Name)
	}
	_, _ = announce(ctx, db, g.Name, more)
	return nil
}

// announce reads what an answer has beside the lock itself: who holds it, and whom the call has handed it and who
// watches it. These are told in a transaction after that of the call. If that fails, the call stands: they look again
// by themselves, only later.
func announce(ctx context.Context, db *sql.DB, name string, answer sql.NullString) (holder string, err error) {
	var more struct {
		Holder  string
		Watched bool
		Handed  struct{ Slots []int32 }
	}
	if !answer.Valid {
		return "", nil // there is nothing to say, as mostly
	}
	if err := json.Unmarshal([]byte(answer.String), &more); err != nil {
		return "", err
	}
	var slots []sql.NullInt32
	for _, slot := range more.Handed.Slots {
		slots = append(slots, sql.NullInt32{Int32: slot, Valid: true})
	}
	if len(slots) == 0 && more.Watched {
		slots = []sql.NullInt32{{}} // none but who watches
	}
	if len(slots) == 0 {
		return more.Holder, nil
	}
	names := make([]string, len(slots))
	for i := range names {
		names[i] = name
	}
	_, err = db.ExecContext(ctx, `SELECT pglock.announce($1, $2)`, pq.Array(names), pq.Array(slots))
	return more.Holder, err
}

// explain marks what tells a holder to stop: LK001, expired; LK002, a greater token has written; LK003, not the holder.
func explain(err error) error {
	var refusal *pq.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case "LK001", "LK002", "LK003":
		return fmt.Errorf("%w: %w (%s)", ErrStop, err, strings.TrimSpace(refusal.Detail))
	}
	return err
}
