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

// WithResource names what the fence protects, 1 to 512 bytes. Every writer of the resource must use the same name.
// Defaults to the lock's name, and for a slot of a shared or limited lock to the name, '#', and the slot (Lease.Resource).
func WithResource(name string) FenceOption {
	return func(c *config) error {
		c.resource = name
		return checkText("resource", name, pglock.MaxNameBytes)
	}
}

// WithSameToken lets one grant write to the resource any number of times. Without it a grant writes once, which makes a
// retried write harmless.
func WithSameToken() FenceOption {
	return func(c *config) error {
		c.sameToken = true
		return nil
	}
}

// WithTxOptions sets the isolation level and the access mode of the transaction; BeginQuery and CommitQuery must be
// empty. Defaults to the session's. Under REPEATABLE READ and SERIALIZABLE a write that outlives the expiry which its
// snapshot shows is refused, also when the lease was renewed meanwhile.
func WithTxOptions(o pgx.TxOptions) FenceOption {
	return func(c *config) error {
		if o.BeginQuery != "" || o.CommitQuery != "" {
			return &pglock.ArgumentError{Field: "transaction options", Value: "with a BeginQuery or CommitQuery", Rule: "have neither"}
		}
		levels := []pgx.TxIsoLevel{"", pgx.ReadUncommitted, pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
		if !slices.Contains(levels, o.IsoLevel) {
			return &pglock.ArgumentError{Field: "isolation level", Value: string(o.IsoLevel), Rule: "be one of pgx's"}
		}
		if o.AccessMode == pgx.ReadOnly {
			return &pglock.ArgumentError{Field: "access mode", Value: string(o.AccessMode), Rule: "be read write: passing a fence writes"}
		}
		c.transactionOp, c.inTransaction = o, true
		return nil
	}
}

// newConfig refuses what can be known to be wrong without asking the server.
func newConfig(lease *pglock.Lease, opts []FenceOption) (config, error) {
	if lease == nil || lease.Token() == 0 {
		return config{}, &pglock.ArgumentError{Field: "lease", Value: "nil or zero", Rule: "be a *pglock.Lease that a Client was granted"}
	}
	c := config{resource: lease.Resource()}
	for _, o := range opts {
		if o == nil {
			return config{}, &pglock.ArgumentError{Field: "option", Value: "nil", Rule: "be an option of this package"}
		}
		if err := o(&c); err != nil {
			return config{}, err
		}
	}
	return c, lease.Err()
}

// WithReceipt makes Guard, GuardOnce, GuardAll and their forms for database/sql leave a receipt, which they write to *r: where the
// COMMIT that the application sends is not answered, Store.Outcome or OutcomeSQL says what became of it. Each receipt is a row of its own
// that is kept for a week. Store.Write and its relatives leave receipts without this option, and use their rows again.
func WithReceipt(r *Receipt) FenceOption {
	return func(c *config) error {
		if r == nil {
			return &pglock.ArgumentError{Field: "receipt", Value: "nil", Rule: "be a *Receipt to write to"}
		}
		c.receipt = r
		return nil
	}
}

// refuse names an option that the call has no use for.
func (c config) refuse(transaction, key bool) error {
	switch {
	case c.inTransaction && !transaction:
		return &pglock.ArgumentError{Field: "WithTxOptions", Value: "given", Rule: "be left out: the transaction has begun already, or is none of the caller's"}
	case c.receipt != nil && transaction:
		return &pglock.ArgumentError{Field: "WithReceipt", Value: "given", Rule: "be given to Guard and its relatives only: this call leaves a receipt by itself"}
	case c.keep > 0 && !key:
		return &pglock.ArgumentError{Field: "WithRetention", Value: "given", Rule: "be given to Once and its relatives only"}
	}
	return nil
}
