package fencedstore

import (
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/hooks"
)

// Receipt names what a fenced write leaves of itself on the server, in its own transaction. Whoever did not hear the answer to
// its COMMIT asks for it with Store.Outcome: the receipt is there if the transaction was committed, on the server that is the
// primary now, and no other write takes its place before the outcome was asked for. Receipts are kept for a week.
type Receipt struct {
	Schema string    `json:"schema"`
	ID     uuid.UUID `json:"id"`
	Write  uuid.UUID `json:"write"`
}

// String is for logs.
func (r Receipt) String() string { return fmt.Sprintf("%s/%s/%s", r.Schema, r.ID, r.Write) }

// rows are the receipts' rows that the writes of this process may use: of each database as many as there ever were writes at once. A
// row is free when it is known what became of the write that used it last.
var rows freeRows

type freeRows struct {
	mu   sync.Mutex
	free map[hooks.Grant][]uuid.UUID // by database and schema
}

// take gives a row to one write.
func (rs *freeRows) take(home hooks.Grant) (r Receipt, err error) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if r, err = newReceipt(home.Schema); err != nil {
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
	if rs.free == nil {
		rs.free = make(map[hooks.Grant][]uuid.UUID)
	}
	rs.free[home] = append(rs.free[home], r.ID)
}

// newReceipt names a row that nobody has used.
func newReceipt(schema string) (r Receipt, err error) {
	r.Schema = schema
	if r.ID, err = uuid.NewRandom(); err == nil {
		r.Write, err = uuid.NewRandom()
	}
	if err != nil {
		return r, fmt.Errorf("fencedstore: choose a receipt: %w", err)
	}
	return r, nil
}
