package fencedstore

import (
	"cmp"
	"context"
	"database/sql"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
)

// Store makes fenced writes through the application's pool. The pool stays the caller's. A store is safe for concurrent
// use and has no goroutines.
type Store struct{ w writer }

// New makes a store. Its pool must lead to the database that grants the locks. The store's calls refuse a nil pool.
func New(pool *pgxpool.Pool) *Store {
	if pool == nil {
		return &Store{writer{config: config{bad: refuse.Nil("pool", "be a *pgxpool.Pool")}}}
	}
	return &Store{writer{db: pgxDatabase{pool}}}
}

// With gives a store with these options too; the store that it is called of stays as it is. It costs next to nothing:
// call it for one write if you like. Options: WithTimeLimit, WithTxOptions, WithRetention.
func (s *Store) With(opts ...Option) *Store { return &Store{s.of().with(opts)} }

// Write runs fn in a transaction under the fence of the lease's resource, or under what Fence or Fences say. It commits
// only if the lease still holds by the server's clock, checked inside COMMIT. BEGIN and the fence travel together, and
// so do the last check and COMMIT: a fenced write has as many round trips as a plain transaction.
//
// The server first takes the row of the fence, which may have to wait for a predecessor's open transaction. Then it
// compares the token, checks the lease, and fn runs. fn must neither commit nor roll back. The transaction may take as
// long as the lease has left when it passes the fence, or as long as WithTimeLimit says. fn's context ends with ctx and
// with the lease.
//
// An error or a panic of fn, and the end of ctx, roll the transaction back. Write returns fn's error as it is; if the
// lease is lost by then, or fn has ended the transaction by itself (ErrLeftFence), the error tells that first, and
// matches both. A nil return means committed.
//
// Errors: ErrStaleToken (StaleTokenError), ErrLeftFence, ErrTimeLimit (TimeLimitError), ErrUnfenced (UnfencedError),
// pglock.ErrLost, ErrReleased, ErrInvalid, ErrWrongDatabase, ErrPermission, ErrReadOnly, ErrSchema, and
// pglock.ErrOutcomeUnknown (OutcomeUnknownError) if the answer to COMMIT was lost and nobody could say what became of
// it. It is safe to try again with the same lease and without SameToken: if the first attempt was committed, the fence
// refuses the second as stale.
func (s *Store) Write(ctx context.Context, fenced Fenced, fn func(context.Context, pgx.Tx) error) error {
	return s.of().write(ctx, fenced, inPgx(fn))
}

// Once runs fn's writes at most once for each key, whichever process asks and however often. A key is a job, a message,
// a slot of a schedule. The transaction that does the work records the key, under the fence of the lease's resource:
// both are committed, or neither is. A key has 1 to 512 bytes. All locks of a schema share its keys.
//
// Whoever asks again gets ErrDone (DoneError); Once then does not call fn, and changes nothing. ErrDone comes when the
// disk and the synchronous standby, if there is one, have the work. If they do not confirm that within five seconds,
// the error is ErrOutcomeUnknown: ask again. Whoever asks while another does the work waits for that transaction, and
// does the work if it was rolled back. The same grant may do the work of many keys, as with SameToken. A lost answer
// does no harm: ask again, with any lease.
//
// WithRetention limits how long the server keeps a key. A day after the retention is over, clients that are granted
// locks remove it, one for all, the first time within a minute of their start. Where no program lives for that long,
// pglock-admin prune must. Other errors are those of Write, and ErrKeyTooOld. The work of a key has one fence: Once
// refuses several (pglock.ErrInvalid).
func (s *Store) Once(ctx context.Context, fenced Fenced, key string, fn func(context.Context, pgx.Tx) error) error {
	return s.of().write(ctx, fenced, inPgx(fn), WithKey(key))
}

// Outcome asks what became of the write of an OutcomeUnknownError, or of a transaction of Guard WithReceipt. It waits
// until the answer is final, asking again cannot help, or ctx ends. The answer is then on disk, and on the synchronous
// standby if you have one. If the server does not know a write, for instance because a failover lost it, the write was
// rolled back. The server forgets receipts after a week, so ask sooner. A database other than the write's, such as
// another shard, refuses the receipt (pglock.ErrWrongDatabase). Other errors: pglock.ErrInvalid, ErrPermission,
// ErrReadOnly, ErrSchema.
func (s *Store) Outcome(ctx context.Context, receipt Receipt) (Outcome, error) {
	return s.of().outcome(ctx, receipt)
}

// SQLStore is Store for database/sql, with any driver for PostgreSQL whose errors have a method SQLState, as lib/pq and
// pgx's stdlib have. Promises and errors are those of Store, with these differences. The fence follows BEGIN, and
// COMMIT follows the last check, each in its own round trip. If a callback commits by itself, COMMIT still checks the
// lease, but ErrLeftFence comes without the last check. If a statement of the store's own hangs because the network was
// cut, under a driver that does not heed contexts, such as lib/pq, the store closes the connection when ctx has ended.
// What became of an unanswered COMMIT it asks over a connection of the lease's client; also of one that was answered
// with an error whose severity the driver does not tell.
//
// Errors name what was refused if the driver's errors have a method Get, as those of lib/pq have, or fields with pgx's
// names. Otherwise a StaleTokenError does not tell the last token, nor a LostError the reason; and under several fences
// there are ErrStaleToken and pglock.ErrLost, which do not say which.
type SQLStore struct{ w writer }

// NewSQL makes a store. Its db must lead to the database that grants the locks. The store's calls refuse a nil db.
func NewSQL(db *sql.DB) *SQLStore {
	if db == nil {
		return &SQLStore{writer{config: config{bad: refuse.Nil("db", "be a *sql.DB")}}}
	}
	return &SQLStore{writer{db: sqlDatabase{db}}}
}

// With is Store.With.
func (s *SQLStore) With(opts ...Option) *SQLStore { return &SQLStore{s.of().with(opts)} }

// Write is Store.Write. fn may give the *sql.Tx to whatever takes one; it must neither commit nor roll back, and must
// not keep it. If fn sends COMMIT as SQL and then returns an error, nobody tells: Write returns that error, though the
// work is committed. Store.Write notices, unless fn has begun another transaction.
func (s *SQLStore) Write(ctx context.Context, fenced Fenced, fn func(context.Context, *sql.Tx) error) error {
	return s.of().write(ctx, fenced, inSQL(fn))
}

// Once is Store.Once.
func (s *SQLStore) Once(ctx context.Context, fenced Fenced, key string, fn func(context.Context, *sql.Tx) error) error {
	return s.of().write(ctx, fenced, inSQL(fn), WithKey(key))
}

// Outcome is Store.Outcome. Under a driver that does not heed contexts when it connects, such as lib/pq without
// connect_timeout, it may return later than ctx ends.
func (s *SQLStore) Outcome(ctx context.Context, receipt Receipt) (Outcome, error) {
	return s.of().outcome(ctx, receipt)
}

// of is zero if somebody has a nil store.
func (s *Store) of() writer    { return protocol.OrZero(s).w }
func (s *SQLStore) of() writer { return protocol.OrZero(s).w }

// writer is what both stores have.
type writer struct {
	config
	db database // nil: none
}

// work is what a write does between the fence and COMMIT.
type work func(context.Context, connection) error

func (w writer) with(opts []Option) writer { return writer{w.config.with(opts), w.db} }

func (w writer) write(ctx context.Context, fenced Fenced, fn work, more ...Option) error {
	if err := w.check(); err != nil {
		return err
	}
	if fn == nil {
		return refuse.Nil("fn", "be a function")
	}
	o, err := w.config.with(more).open(fenced, false)
	if err == nil {
		err = o.refuseWithin(ctx)
	}
	if err != nil {
		return err
	}
	return write(ctx, w.db, o, fn)
}

func (w writer) outcome(ctx context.Context, receipt Receipt) (Outcome, error) {
	if err := w.check(); err != nil {
		return "", err
	}
	if receipt.Schema == "" || receipt.ID == uuid.Nil || receipt.Write == uuid.Nil {
		return "", refuse.Invalid("receipt", receipt.String(), "be that of an OutcomeUnknownError, or of WithReceipt")
	}
	if receipt.DatabaseID == uuid.Nil {
		return "", refuse.Invalid("receipt.DatabaseID", "zero", "be that of the lease under which the write was made")
	}
	became, err := outcome(ctx, receipt, w.db.look)
	return became, failure.At(ctx, err, "fencedstore: outcome of write %s", receipt.Write)
}

func (w writer) check() error {
	return cmp.Or(w.bad, refuse.If(w.db == nil, "store", "nil or zero", "be made by New or NewSQL"),
		refuse.If(w.key != "", "WithKey", "given", "be given to Guard alone: Once takes its key by itself"))
}
