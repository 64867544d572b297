// Package fencedstore makes writes that PostgreSQL refuses when their holder has lost its lease.
//
// # The rule
//
// A fence is a row that remembers the greatest token that has written to a resource. The resource is the lock's name,
// unless WithResource names another. All writers of a resource must pass the same fence. A fenced transaction takes
// these steps, in this order:
//
//  1. It takes the row of the fence. It may have to wait for the open transaction of a predecessor.
//  2. The server compares tokens. The lease's token must be greater than every token that has passed. With
//     WithSameToken, the token that passed last may pass again, if it is of the same grant.
//  3. The server checks, after that wait and by its own clock, that the lease has not ended.
//  4. The write runs.
//  5. Inside COMMIT, a deferred trigger checks the lease once more: it has not ended, nobody has broken it, and nobody
//     else was granted the lock. The trigger locks the lock's row, so the next grant waits for the commit. Renewals
//     pass.
//
// So tokens pass the fence in ascending order, no write commits if its lease had ended at the last check, and no grant
// comes between that check and the commit. The database orders them. No client's clock matters.
//
// # Ways to write
//
//	              begins and commits the transaction   through
//	Store.Write   this package                         a *pgxpool.Pool
//	WriteSQL      this package                         a *sql.DB of any driver, such as lib/pq or pgx's stdlib
//	Guard         the application                      a pgx.Tx
//	GuardSQL      the application                      a *sql.Tx, or what GORM, ent or bun make of one (SQLTx)
//
// Store.Write and WriteSQL take all five steps. Store.Write sends BEGIN together with the fence, and the last check
// together with COMMIT: a fenced write has as many round trips as a plain transaction. WriteSQL has two more. Guard and
// GuardSQL take steps 1 to 3. Step 5 comes with the COMMIT, whoever sends it.
//
// Each has relatives. WriteAll, WriteAllSQL, GuardAll and GuardAllSQL pass several fences at once, in an order in which
// transactions cannot wait for each other in a circle. Once, OnceSQL, GuardOnce and GuardOnceSQL do the work of a key
// at most once, whoever asks and however often.
//
// # Guarded tables
//
// A fence refuses a stale writer that asks. GuardTable makes every writer ask: psql, an ORM, another language, old
// code. A trigger refuses each write of the table unless its transaction has passed the fence of the table's resource,
// or of the row's, as in accounts/42. The proof is the row of the fence: it carries the transaction's ID, and no client
// can write it. So the trigger also refuses a write whose fence was rolled back with a savepoint, and a write after a
// raw COMMIT.
//
// # Outside the database
//
// Store.Run does an operation on a file, an object or a service between two checks of the lease. It undoes the
// operation when the second check fails (Reversible). A service that can compare tokens by itself does so with package
// fencedhttp.
//
// # What is refused
//
//   - ErrStaleToken (StaleTokenError): a greater token has written. Without WithSameToken also: this token has written.
//     Because a grant writes once, repeating a write does no harm.
//   - pglock.ErrLost (LostError): the lease has expired, or was broken, released elsewhere or taken over. A holder that
//     was overtaken at the fence gets ErrStaleToken first.
//   - pglock.ErrReleased: the lease was released here. Nothing was sent.
//   - ErrTimeLimit (TimeLimitError): the transaction took too long. See the next section.
//   - ErrLeftFence: the callback left the transaction. See the last section.
//   - pglock.ErrWrongDatabase: another database or another schema has granted the lease.
//   - ErrUnfenced (UnfencedError): a guarded table was written without its fence.
//   - ErrDone (DoneError) and ErrKeyTooOld: see Store.Once.
//   - SQLSTATE 40001 from COMMIT, under REPEATABLE READ and SERIALIZABLE: after the snapshot the lock was granted to
//     somebody else, released or broken. Try again with the same lease: the error is then pglock.ErrLost and says
//     which.
//
// A refused write is rolled back whole. The error is the only trace of it: the audit holds what the server itself did.
// A program that wants to count refusals counts these errors.
//
// # Time limits
//
// A holder that hangs in a fenced transaction keeps the next one waiting at the fence. So the fence limits its
// transaction. Without WithTimeLimit the limit is what the lease has left at the fence. With WithTimeLimit(d) it is d:
//
//	err := store.Write(ctx, lease, nightlyJob, fencedstore.WithTimeLimit(20*time.Minute))
//
// If d is longer than what the lease has left, the lease is extended to d before BEGIN. Renewals do not shorten it, and
// after the write it goes back to its TTL. Choose d with care: it is also how long a holder that hangs, or dies, can
// keep the next one waiting.
//
// The fence sets lock_timeout, statement_timeout, idle_in_transaction_session_timeout, tcp_user_timeout and, from
// PostgreSQL 17 on, transaction_timeout. It sets client_connection_check_interval to a second. A lower limit that the
// user has set stays. All of them end with the transaction. When one of them ends it, the error is a TimeLimitError,
// which names it and how long it was. A driver of database/sql may say "driver: bad connection" in such a case; the
// error is a TimeLimitError all the same. Explain finds it for a transaction of Guard.
//
// From PostgreSQL 17 on no fenced transaction outlasts its limit. Before, each setting counts from the beginning of its
// statement, or of its pause between two statements. So a holder that works first and hangs then is ended later, by as
// long as it has worked. Many short statements, and work inside COMMIT, have no limit there. The callback of a write
// with WithTimeLimit loses its context two seconds after the limit, on every version. A transaction whose lease has
// ended cannot commit, whatever its limits. A client that does not read what it is sent is ended over TCP alone.
//
// Under REPEATABLE READ and SERIALIZABLE the last check sees the expiry of the transaction's snapshot. It refuses a
// write that takes longer than that, also when the heartbeat has renewed the lease meanwhile. WithTimeLimit extends the
// lease before the snapshot.
//
// A fenced write is as durable as the session's synchronous_commit makes it. Unlike a grant, it does not turn it on.
// The fence and the write are lost together or not at all.
//
// # Unknown outcomes
//
// A write leaves a receipt, a row that its own transaction writes. So the receipt is there if the write was committed,
// and only then:
//
//	BEGIN, fence, receipt ── write ── COMMIT ──╳ no answer
//	                                              Outcome(receipt) waits until that transaction has ended
//	                                              the receipt is there       OutcomeCommitted
//	                                              it is not, and cannot be   OutcomeRolledBack
//
// When nobody answers COMMIT, the write asks for its receipt, for five seconds. It returns nil if the transaction was
// committed. It returns an error that does not match pglock.ErrOutcomeUnknown if it was rolled back. Where nobody
// answers either, or somebody cut the wait for a synchronous standby short, the error is an OutcomeUnknownError. Give
// its Receipt to Store.Outcome or OutcomeSQL later, also from another process. They answer for a week, also after a
// crash, and after a failover as the new primary knows it. A program uses a receipt's row for another write only when
// it knows what became of the one before. So nobody overwrites a receipt that is still to be read.
//
// Only connections whose configuration went through pglock.ObserveCommits show that a wait for the standby was
// cancelled; through database/sql these are pgx's alone. It is safe to try again with the same lease and without
// WithSameToken: if the first attempt was committed, the second is stale. When a connection was cut in silence, the
// write waits for COMMIT until ctx ends, at most for the TTL and five seconds; with WithTimeLimit at most until five
// seconds after the time limit, if that is later. Then it asks. Give ctx a deadline where that is too long. A
// transaction of Guard leaves a receipt with WithReceipt: its COMMIT is the application's, and so is the question.
//
// # What the callback must not do
//
//   - COMMIT or ROLLBACK. The write then fails with ErrLeftFence. But what commits by itself after a raw COMMIT stays,
//     unfenced.
//   - PREPARE TRANSACTION. The last check runs then, and not at COMMIT PREPARED. In between nobody can be granted the
//     lock, break it or release it. The write fails with ErrLeftFence, and somebody has to end the prepared
//     transaction.
//   - Raise the limits that the fence has set. The next holder would wait for longer.
//   - SET CONSTRAINTS ALL IMMEDIATE after Guard or GuardSQL. It uses up the check inside COMMIT. In a write of this
//     package it only makes breaks and releases of the lease wait for the end of the transaction.
//   - ROLLBACK TO a savepoint from before Guard or GuardSQL. The fence goes with it, and nobody notices. Guard the
//     outermost transaction, not a nested one. Seal, as the last statement before COMMIT, closes this hole and the one
//     before, as it does in a write of this package.
//   - Write through another connection. That one is under no fence.
//   - Keep the transaction after it has returned.
package fencedstore
