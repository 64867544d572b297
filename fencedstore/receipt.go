package fencedstore

import (
	"fmt"
	"sync"

	"github.com/google/uuid"
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

// receipts are the rows that a store's writes may use: as many as it ever had writes at once. A row is free when it is known
// what became of the write that used it last.
type receipts struct {
	mu   sync.Mutex
	free map[string][]uuid.UUID // by schema
}

// take gives a row to one write.
func (rs *receipts) take(schema string) (r Receipt, err error) {
	r.Schema = schema
	if r.Write, err = uuid.NewRandom(); err != nil {
		return r, fmt.Errorf("fencedstore: choose a receipt: %w", err)
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if free := rs.free[schema]; len(free) > 0 {
		r.ID, rs.free[schema] = free[len(free)-1], free[:len(free)-1]
		return r, nil
	}
	if r.ID, err = uuid.NewRandom(); err != nil {
		return r, fmt.Errorf("fencedstore: choose a receipt: %w", err)
	}
	return r, nil
}

func (rs *receipts) putBack(r Receipt) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.free == nil {
		rs.free = make(map[string][]uuid.UUID)
	}
	rs.free[r.Schema] = append(rs.free[r.Schema], r.ID)
}
