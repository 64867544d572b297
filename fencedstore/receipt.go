package fencedstore

import (
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/hooks"
)

// Receipt names the row that a fenced write leaves in its own transaction. If COMMIT gets no answer, ask for the
// receipt with Store.Outcome: the current primary has the row if the transaction was committed. Another
// database refuses the receipt. No other write uses the row before somebody has asked. The server keeps receipts for a
// week.
type Receipt struct {
	DatabaseID uuid.UUID `json:"database_id"` // as in pglock.Grant
	Schema     string    `json:"schema"`
	ID         uuid.UUID `json:"id"`
	Write      uuid.UUID `json:"write"`
}

// String is for logs.
func (r Receipt) String() string {
	return fmt.Sprintf("%s/%s/%s/%s", r.DatabaseID, r.Schema, r.ID, r.Write)
}

// rows are the rows of receipts that the writes of this process may use again. Of each database there are as many as
// there ever were writes at once, and those of writes in doubt. A row is free when it is known what became of the write
// that used it last.
var rows = freeRows{free: make(map[hooks.Grant][]uuid.UUID)}

type freeRows struct {
	mu   sync.Mutex
	free map[hooks.Grant][]uuid.UUID // by database and schema
}

// take gives a row to one write.
func (rs *freeRows) take(home hooks.Grant) (r Receipt, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r, err = newReceipt(home); err != nil {
		return r, err
	}
	if free := rs.free[home]; len(free) > 0 {
		r.ID, rs.free[home] = free[len(free)-1], free[:len(free)-1]
	}
	return r, nil
}

func (rs *freeRows) putBack(home hooks.Grant, r Receipt) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.free[home] = append(rs.free[home], r.ID)
}

// newReceipt names a row that nobody has used yet.
func newReceipt(home hooks.Grant) (r Receipt, err error) {
	r.DatabaseID, r.Schema = home.DatabaseID, home.Schema
	if r.ID, err = uuid.NewRandom(); err == nil {
		r.Write, err = uuid.NewRandom()
	}
	if err != nil {
		return r, fmt.Errorf("choose a receipt: %w", err)
	}
	return r, nil
}
