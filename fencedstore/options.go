package fencedstore

import (
	"cmp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/refuse"
)

// Option changes how a transaction is fenced: all those of a store (Store.With, SQLStore.With), or one (Guard). A call
// with a bad option fails before anything is sent (pglock.ErrInvalid).
type Option func(*config) error

// config is what the options say.
type config struct {
	limit         time.Duration // WithTimeLimit; 0: what the lease has left
	transactionOp pgx.TxOptions
	inTransaction bool          // WithTxOptions was given
	key           string        // whose work it does; "": of none
	of            time.Time     // WithRetention
	keep          time.Duration // WithRetention; 0: for ever
	receipt       bool          // WithReceipt
	bad           error         // the first option that is refused
}

// with is the config and more options. It remembers what is wrong with them for the calls.
func (c config) with(opts []Option) config {
	for _, o := range opts {
		if err := refuse.Option(&c, o); c.bad == nil {
			c.bad = err
		}
	}
	return c
}

// WithTxOptions sets the isolation level and the access mode of a store's transactions. BeginQuery and CommitQuery must
// be empty. Defaults to the session's. Under REPEATABLE READ and SERIALIZABLE the server refuses a write that takes
// longer than the lease had left in the transaction's snapshot, also when the heartbeat has renewed the lease
// meanwhile; give WithTimeLimit then.
func WithTxOptions(o pgx.TxOptions) Option {
	return func(c *config) error {
		c.transactionOp, c.inTransaction = o, true
		_, known := isolation[o.IsoLevel]
		return cmp.Or(refuse.If(o.BeginQuery != "" || o.CommitQuery != "", "transaction options",
			"with a BeginQuery or CommitQuery", "have neither"),
			refuse.If(!known, "isolation level", string(o.IsoLevel), "be one of pgx's"),
			refuse.If(o.AccessMode != "" && o.AccessMode != pgx.ReadWrite, "access mode", string(o.AccessMode),
				"be read write: passing a fence writes"),
			refuse.If(!slices.Contains([]pgx.TxDeferrableMode{"", pgx.Deferrable, pgx.NotDeferrable}, o.DeferrableMode),
				"deferrable mode", string(o.DeferrableMode), "be one of pgx's"))
	}
}

// WithReceipt is for Guard, where the application sends COMMIT: the transaction leaves a receipt (Guarded.Receipt).
// When nobody answers the COMMIT, Store.Outcome says what became of it. Each receipt takes a row for a week. A store
// leaves receipts without this option, in rows that it uses again.
func WithReceipt() Option {
	return func(c *config) error {
		c.receipt = true
		return nil
	}
}

// refuse refuses options that the call has no use for.
func (c config) refuse(guard bool) error {
	return cmp.Or(c.bad,
		refuse.If(c.inTransaction && guard, "WithTxOptions", "given",
			"be given to a store: the transaction of Guard has begun already"),
		refuse.If(c.receipt && !guard, "WithReceipt", "given",
			"be given to Guard alone: a store leaves receipts by itself"),
		refuse.If(c.keep > 0 && c.key == "", "WithRetention", "given",
			"be given where there is a key: to Once, or to Guard WithKey"))
}
