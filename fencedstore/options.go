package fencedstore

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/pglock"
)

// FenceOption changes how a write is fenced. A bad value makes the call fail before anything is sent.
type FenceOption func(*config) error

type config struct {
	resource      string
	sameToken     bool
	of            time.Time     // WithRetention
	keep          time.Duration // WithRetention; 0: for ever
	limit         time.Duration // WithTimeLimit; 0: what the lease has left
	transactionOp pgx.TxOptions
	inTransaction bool     // WithTxOptions was given
	receipt       *Receipt // WithReceipt
}

// WithResource names what the fence protects, in 1 to 512 bytes. All writers of the resource must use the same name.
// Defaults to Lease.Resource: the lock's name, and for a slot of a shared or limited lock the name, '#', and the slot.
func WithResource(name string) FenceOption {
	return func(c *config) error {
		c.resource = name
		return checkText("resource", name, pglock.MaxNameBytes)
	}
}

// WithSameToken lets one grant write to the resource any number of times. Without it a grant writes once, so repeating
// a write does no harm.
func WithSameToken() FenceOption {
	return func(c *config) error {
		c.sameToken = true
		return nil
	}
}

// WithTxOptions sets the isolation level and the access mode of the transaction. BeginQuery and CommitQuery must be
// empty. Defaults to the session's. Under REPEATABLE READ and SERIALIZABLE the server refuses a write that takes longer
// than the lease had left in the transaction's snapshot, also when the heartbeat has renewed the lease meanwhile; give
// WithTimeLimit then.
func WithTxOptions(o pgx.TxOptions) FenceOption {
	return func(c *config) error {
		if o.BeginQuery != "" || o.CommitQuery != "" {
			return invalid("transaction options", "with a BeginQuery or CommitQuery", "have neither")
		}
		levels := []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
		if !slices.Contains(levels, o.IsoLevel) {
			return invalid("isolation level", string(o.IsoLevel), "be one of pgx's")
		}
		if o.AccessMode == pgx.ReadOnly {
			return invalid("access mode", string(o.AccessMode), "be read write: passing a fence writes")
		}
		c.transactionOp, c.inTransaction = o, true
		return nil
	}
}

// newConfig refuses what is wrong in any database.
func newConfig(lease *pglock.Lease, opts []FenceOption) (config, error) {
	if lease == nil || lease.Token() == 0 {
		return config{}, invalid("lease", "nil or zero", "be a *pglock.Lease that a Client was granted")
	}
	c := config{resource: lease.Resource()}
	for _, o := range opts {
		if o == nil {
			return config{}, invalid("option", "nil", "be an option of this package")
		}
		if err := o(&c); err != nil {
			return config{}, err
		}
	}
	return c, nil
}

// WithReceipt is for Guard and its relatives, whose COMMIT the application sends. The transaction leaves a receipt, and
// the call writes its name to *r. When nobody answers the COMMIT, Store.Outcome or OutcomeSQL says what became of it.
// Each receipt takes a row for a week. Store.Write and its relatives leave receipts without this option, in rows that
// they use again.
func WithReceipt(r *Receipt) FenceOption {
	return func(c *config) error {
		if r == nil {
			return invalid("receipt", "nil", "be a *Receipt to write to")
		}
		c.receipt = r
		return nil
	}
}

// refuse refuses options that the call has no use for.
func (c config) refuse(transaction, key bool) error {
	switch {
	case c.inTransaction && !transaction:
		return invalid("WithTxOptions", "given",
			"be left out: the transaction has begun already, or the caller has none")
	case c.receipt != nil && transaction:
		return invalid("WithReceipt", "given",
			"be given to Guard and its relatives alone: this call leaves a receipt by itself")
	case c.keep > 0 && !key:
		return invalid("WithRetention", "given", "be given to Once and its relatives alone")
	}
	return nil
}
