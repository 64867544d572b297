package pglock

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// Waiter is one place in the queue of a lock. Times are the server's, in UTC.
type Waiter struct {
	Lock     string          `json:"lock"`
	Ticket   int64           `json:"ticket"`
	Place    int             `json:"place"` // 1 is next
	Mode     Mode            `json:"mode"`
	Limit    int             `json:"limit,omitempty"` // of ModeLimit
	Holder   string          `json:"holder"`          // the label that its lease will have
	Session  string          `json:"session"`
	Alive    bool            `json:"alive"` // false: its session gives no sign of life, and it will be passed over
	TTL      time.Duration   `json:"-"`
	Since    time.Time       `json:"since"`
	Waiting  time.Duration   `json:"-"`                // at the answer
	Behind   string          `json:"behind"`           // the label of whom it waits for: of the waiter before it, or of the holder
	Before   int64           `json:"before,omitempty"` // the ticket of the waiter before it; 0 when it waits for the holder
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// Waiters tells the queue of one lock, or with name "" of all locks in byte order of their names, in the order in which
// they will be served; at most limit, from 1 to 10,000.
func (c *Client) Waiters(ctx context.Context, name string, limit int) ([]Waiter, error) {
	if limit < 1 || limit > 10000 {
		return nil, &ArgumentError{"limit", fmt.Sprint(limit), "be from 1 to 10000"}
	}
	if name != "" {
		if err := checkText("name", name, MaxNameBytes); err != nil {
			return nil, err
		}
	}
	if c.isClosed() {
		return nil, ErrClosed
	}
	var waiters []Waiter
	err := c.pg.rows(ctx, c.pg.Queries.Waiters, []any{name, limit}, func(rows pgx.Rows) error {
		var w Waiter
		var capacity *int
		var ttl, waiting int64
		var since, before *int64
		var behind, metadata *string
		err := rows.Scan(&w.Lock, &w.Ticket, &w.Place, &w.Mode, &capacity, &w.Holder, &w.Session, &w.Alive, &ttl, &since, &waiting,
			&before, &behind, &metadata)
		w.Limit, w.Since, w.Before, w.Behind = protocol.OrZero(capacity), protocol.Moment(since), protocol.OrZero(before), protocol.OrZero(behind)
		w.TTL, w.Waiting = time.Duration(ttl)*time.Microsecond, time.Duration(waiting)*time.Microsecond
		if metadata != nil {
			w.Metadata = json.RawMessage(*metadata)
		}
		waiters = append(waiters, w)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pglock: read waiters: %w", ErrorFromSQL(err, "", 0))
	}
	return waiters, nil
}
