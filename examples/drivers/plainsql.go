package drivers

import (
	"context"
	"database/sql"
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
	var who sql.NullString
	var handed []sql.NullInt32
	var watched bool
	err := db.QueryRowContext(ctx, `SELECT granted, token, holder, handed, coalesce(watched, false)
		FROM pglock.acquire_lease($1, $2, $3, $4, $5::interval)`, name, g.GrantID, uuid.NewString(), holder, ttl).
		Scan(&granted, &token, &who, pq.Array(&handed), &watched)
	if err != nil {
		return Grant{}, explain(err)
	}
	if err := announce(ctx, db, name, handed, watched); err != nil {
		return Grant{}, err
	}
	if !granted {
		return Grant{}, fmt.Errorf("%w: %q by %q", ErrHeld, name, who.String)
	}
	g.Token = token.Int64
	return g, nil
}

// Renew gives the lease its full TTL again. Call it at a third of the TTL, and before a long write: a fenced transaction
// may last no longer than the lease had left when it began.
func (g Grant) Renew(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `SELECT pglock.renew_lease($1, $2, $3)`, g.Name, g.Token, g.GrantID)
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

// Release ends the lease, so that the next one can have the lock, and tells that one. A lease that has ended before is an
// ErrStop.
func (g Grant) Release(ctx context.Context, db *sql.DB) error {
	var released, watched bool
	var handed []sql.NullInt32
	err := db.QueryRowContext(ctx, `SELECT released, handed, coalesce(watched, false) FROM pglock.release_lease($1, $2, $3)`,
		g.Name, g.Token, g.GrantID).Scan(&released, pq.Array(&handed), &watched)
	if err != nil {
		return explain(err)
	}
	if !released {
		return fmt.Errorf("%w: the lease of lock %q had ended before its release", ErrStop, g.Name)
	}
	return announce(ctx, db, g.Name, handed, watched)
}

// announce tells those whom a call has handed the lock, and who watches it. It is a transaction after that of the call.
func announce(ctx context.Context, db *sql.DB, name string, handed []sql.NullInt32, watched bool) error {
	if len(handed) == 0 && watched {
		handed = []sql.NullInt32{{}} // none but who watches
	}
	if len(handed) == 0 {
		return nil
	}
	names := make([]string, len(handed))
	for i := range names {
		names[i] = name
	}
	_, err := db.ExecContext(ctx, `SELECT pglock.announce($1, $2)`, pq.Array(names), pq.Array(handed))
	return err
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
