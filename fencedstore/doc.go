// Package fencedstore makes writes that PostgreSQL refuses when their holder has lost its lease.
//
// # The rule
//
// A fence is a row that remembers the greatest token that has written to a resource. The resource is the lock's name,
// unless Fence.Resource names another. All writers of a resource must pass the same fence. A fenced transaction takes
// these steps, in this order:
//
//  1. It takes the row of the fence. It may have to wait for the open transaction of a predecessor.
//  2. The server compares tokens. The lease's token must be greater than every token that has passed. With
//     Fence.SameToken, the token that passed last may pass again, if it is of the same grant.
//  3. The server checks, after that wait and by its own clock, that the lease has not ended.
//  4. The write runs.
//  5. Inside COMMIT, a deferred trigger checks the lease once more: it has not ended, nobody has broken it, and nobody
//     else was granted the lock. The trigger locks the lock's row, so the next grant waits for the commit. Renewals
//     pass.
//
// So tokens pass the fence in ascending order, no write commits if its lease had ended at the last check, and no grant
// comes between that check and the commit. No client's clock matters. [docs/fencing.md] has the pictures, the cases of
// each isolation level, and the holes that remain.
//
// # Ways to write
//
//	                 begins and commits the transaction   through
//	Store.Write      this package                         a *pgxpool.Pool
//	SQLStore.Write   this package                         a *sql.DB of any driver, such as lib/pq or pgx's stdlib
//	Guard            the application                      a pgx.Tx
//	GuardSQL         the application                      a *sql.Tx, or what GORM makes of one (SQLTx)
//
// What is fenced comes first, and the work last:
//
//	store := fencedstore.New(pool)
//	err := store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { … })
//	err = store.Write(ctx, fencedstore.Fence{Lease: lease, Resource: "accounts/42"}, work)
//	err = store.Write(ctx, fencedstore.Fences{{Lease: from}, {Lease: to}}, work)
//
// Both stores take all five steps. Store sends BEGIN together with the fence, and the last check together with COMMIT:
// a fenced write has as many round trips as a plain transaction. SQLStore has two more. Guard and GuardSQL take steps 1
// to 3. Step 5 comes with the COMMIT, whoever sends it.
//
// Fences pass several fences at once, in an order that keeps transactions from waiting for each other in a circle.
// Once, and Guard WithKey, do the work of a key at most once, whoever asks and however often. With gives a store with
// options.
//
// # Guarded tables
//
// A fence refuses a stale writer that asks. GuardTable makes every writer ask: psql, an ORM, another language, old
// code. A trigger refuses each write of the table unless its transaction has passed the fence of the table's resource,
// or of the row's, as in accounts/42. It also refuses a write whose fence was rolled back with a savepoint, and a write
// after a raw COMMIT.
//
// # Outside the database
//
// Package fencedstore/reversible does an operation on a file, an object or a service between two checks of the lease,
// and undoes it when the second check fails. A service that can compare tokens by itself does so with package
// fencedhttp.
//
// # What is refused
//
//   - ErrStaleToken (StaleTokenError): a greater token has written. Without SameToken also: this token has written.
//     Because a grant writes once, repeating a write does no harm.
//   - pglock.ErrLost (LostError): the lease has expired, or was broken, released elsewhere or taken over. A holder that
//     was overtaken at the fence gets ErrStaleToken first.
//   - pglock.ErrReleased: the lease was released here. Nothing was sent.
//   - ErrTimeLimit (TimeLimitError): the transaction took too long. See the next section.
//   - ErrLeftFence: the callback left the transaction. See the last section.
//   - pglock.ErrWrongDatabase: another database granted the lease, or Fences have leases of several schemas. A lease of
//     another schema of this database passes the fences of that schema, which no guard of this one heeds.
//   - ErrUnfenced (UnfencedError): a guarded table was written without its fence.
//   - ErrDone (DoneError) and ErrKeyTooOld: see Store.Once.
//   - SQLSTATE 40001 from COMMIT, under REPEATABLE READ and SERIALIZABLE: after the snapshot the lock was granted to
//     somebody else, released or broken; or a client that has lost the answer to its request for the lock took the
//     request back. Try again with the same lease: then the write succeeds, or the error is pglock.ErrLost and says
//     which.
//
// The server rolls the whole refused write back, and its history has no refusals. The observer of the lease's client
// hears of them, and of each committed write (pglock.WithObserver).
//
// # Time limits
//
// A fence limits its transaction: to what the lease has left, or to the d of WithTimeLimit(d). [A holder that hangs]
// says how. If a limit ends the transaction, the error is a TimeLimitError. After one of a transaction of Guard the
// application has to close the connection: with pgx by tx.Conn().Close; with database/sql by returning
// driver.ErrBadConn from the function of sql.Conn.Raw. The stores do that themselves.
//
// A write within a write of the same resource, or of the same key, would wait for itself. While the callback runs a
// store refuses such a write (pglock.ErrInvalid) under the callback's context or one made of it. So a goroutine that
// outlives the callback needs another context. Under another context, or within a transaction of Guard, the write waits
// until its time limit.
//
// # Unknown outcomes
//
// If COMMIT gets no answer, the write asks [what became of it]. If that gets no answer either, the error is an
// OutcomeUnknownError, which does not match pglock.ErrLost even if the lease has ended. It is safe to try again with
// the same lease and without SameToken: if the first attempt was committed, the second is stale.
//
// # What the callback must not do
//
//   - COMMIT or ROLLBACK. The write then fails with ErrLeftFence. But statements after a raw COMMIT commit by
//     themselves, without a fence, and stay.
//   - PREPARE TRANSACTION. The last check runs then, and not at COMMIT PREPARED. In between nobody can be granted the
//     lock, break it or release it. The write fails with ErrLeftFence, and somebody has to end the prepared
//     transaction.
//   - End with a role that lacks pglock_user, as after SET LOCAL ROLE: the last check runs with it, and the write fails
//     with pglock.ErrPermission. RESET ROLE comes last, or the role has pglock_user.
//   - Raise the limits that the fence has set. The next holder would wait for longer.
//   - SET CONSTRAINTS ALL IMMEDIATE after Guard. It uses up the check inside COMMIT. In a write of a store it only
//     makes breaks and releases of the lease wait for the end of the transaction.
//   - ROLLBACK TO a savepoint from before Guard. It takes the fence back, and nobody notices. Guard the outermost
//     transaction, not a nested one. Guarded.Seal, as the last statement before COMMIT, closes this hole and the
//     previous one, as it does in a write of a store.
//   - Write through another connection, which no fence protects.
//   - Keep the transaction after the callback has returned.
//
// [docs/fencing.md]: https://github.com/pglock-dev/pglock/blob/main/docs/fencing.md
// [A holder that hangs]: https://github.com/pglock-dev/pglock/blob/main/docs/fencing.md#a-holder-that-hangs
// [what became of it]: https://github.com/pglock-dev/pglock/blob/main/docs/fencing.md#a-commit-without-an-answer
package fencedstore
