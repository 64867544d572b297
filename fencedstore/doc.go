// Package fencedstore makes writes that a holder which has lost its lease cannot make.
//
// # The rule
//
// A fence is a row that remembers the highest token that wrote to a resource: the lock's name, unless WithResource names
// another. Every writer of the resource must write under the same fence. A fenced transaction does this, in this order:
//
//  1. It takes the row of the fence, which may wait for the open transaction of a predecessor.
//  2. The lease's token must be greater than every token that has passed; with WithSameToken the one that passed last may
//     pass again, if it is of the same grant.
//  3. The lease must not have ended, by the server's clock, after that wait.
//  4. The write runs.
//  5. Inside COMMIT a deferred trigger checks the lease once more: not ended, not broken, not granted to somebody else. It
//     holds the lock's row in a way that lets renewals pass and makes the next grant wait for the commit.
//
// So the fence admits tokens in ascending order alone, no write commits after its lease ended at the last check, and no
// other grant comes between that check and the commit. The database orders the two; no clock of a client has a part in it.
//
// Store.Write does all five: BEGIN and the fence travel together, and so do the last check and COMMIT, so that a fenced
// write has as many round trips as a plain transaction. Guard and GuardSQL do 1 to 3 in a transaction of the
// application's own; 5 comes with its COMMIT, whoever sends it. WriteAll and GuardAll pass several fences at once, in an
// order in which transactions cannot wait for each other in a circle. Once does the work of a key at most once, whoever asks
// and however often.
//
// # Guarded tables
//
// A fence refuses a stale writer that asks. GuardTable makes every writer ask: psql, an ORM, another language, old code. A
// trigger then refuses each write of the table whose transaction has not passed the fence of the table's resource, or of the
// row's, as in accounts/42. What proves it is the row of the fence, which carries the transaction's ID and which no client
// can write; so a fence that was rolled back with a savepoint, or a write after a raw COMMIT, is refused too.
//
// # Outside the database
//
// Store.Run does an operation on a file, an object or a service between two checks of the lease, and undoes it when the
// second fails (Reversible). A service that can compare tokens by itself does so with package fencedhttp.
//
// # What is refused
//
//   - ErrStaleToken (StaleTokenError): a greater token has written, or this one has, without WithSameToken. One write for
//     each grant makes a retried write harmless.
//   - pglock.ErrLost (LostError): the lease has expired, or was broken, released elsewhere or taken over. A holder that was
//     overtaken at the fence hears of the token first.
//   - pglock.ErrReleased: the lease was released here; nothing was sent.
//   - ErrLeftFence: the callback left the transaction, see below.
//   - pglock.ErrWrongDatabase: this database knows no such lease; another database, or another schema, has granted it.
//   - ErrUnfenced (UnfencedError): a guarded table was written without its fence. ErrDone (DoneError), ErrKeyTooOld: of Once.
//   - SQLSTATE 40001 from COMMIT under REPEATABLE READ and SERIALIZABLE: a grant to somebody else, a release or a break came
//     after the snapshot. Trying again with the same lease says which, as pglock.ErrLost.
//
// A refused write is rolled back whole. The error is all that is left of it: the audit has only what the server itself did, and
// a program that wants to count refusals counts these errors.
//
// # Limits
//
// The fence gives its transaction time limits, so that a holder that hangs does not block the next one at the fence. From
// what the lease has left it sets lock_timeout, statement_timeout, idle_in_transaction_session_timeout, tcp_user_timeout
// and, from PostgreSQL 17 on, transaction_timeout; and client_connection_check_interval to a second. A limit that the
// user has set lower stays. All of them end with the transaction.
//
// From PostgreSQL 17 on a fenced transaction therefore lasts no longer than the lease had left when it began. Before, each
// limit counts from when its statement, or its pause between two statements, has begun: a holder that works first and hangs
// then is ended later than its lease by as much as it has worked; one short statement after the other, and work inside
// COMMIT, are not bounded. Such a transaction cannot commit after its lease, but until it ends the next holder waits at the
// fence, for as long as that one's own lease lasts. A client that does not read what it is sent is ended over TCP alone.
//
// Renewals do not move the limits: for a long write call lease.Renew first, and choose the TTL for it.
//
// Under REPEATABLE READ and SERIALIZABLE a write that outlives the expiry which its snapshot shows is refused, also when
// the lease was renewed meanwhile.
//
// A fenced write is as durable as the session's synchronous_commit makes it: unlike a grant, it does not force it on.
// The fence and the write are lost together or not at all.
//
// # Unknown outcomes
//
// A write of a Store leaves a receipt, a row that its own transaction writes. So the receipt is there if the write was committed,
// and only then:
//
//	BEGIN, fence, receipt ── write ── COMMIT ──╳ no answer
//	                                              Outcome(receipt) waits until that transaction has ended
//	                                              the receipt is there       OutcomeCommitted
//	                                              it is not, and cannot be   OutcomeRolledBack
//
// When COMMIT is not answered, Write asks for its receipt, for five seconds: nil means committed, an error that does not match
// pglock.ErrOutcomeUnknown means rolled back. Where nobody answers, or the wait for a synchronous standby was cut short, the
// error is an OutcomeUnknownError. Give its Receipt to Store.Outcome later, also from another process: it answers for a week,
// also after a crash, and after a failover as the new primary knows it. The store uses a receipt's row for another write only when
// it knows what became of the one before, so nobody overwrites a receipt that is still to be read.
//
// Only connections whose configuration went through pglock.ObserveCommits show that a wait for the standby was cancelled. A
// retry with the same lease is safe without WithSameToken: if the first attempt was committed, the second is stale. When a
// connection was cut in silence, Write gives COMMIT up five seconds after the TTL, or when ctx ends, and asks; give ctx a
// deadline of its own where that is too long. A transaction of Guard has no receipt: its COMMIT is the application's.
//
// # What the callback must not do
//
//   - COMMIT or ROLLBACK. Write then fails with ErrLeftFence, but what commits by itself after a raw COMMIT stays, unfenced.
//   - PREPARE TRANSACTION: the last check runs then, and not at COMMIT PREPARED; the lock cannot be granted, broken or
//     released in between. Write fails with ErrLeftFence, and somebody has to end the prepared transaction.
//   - Raise the limits that the fence has set: the next holder would wait for longer.
//   - With Guard or GuardSQL, SET CONSTRAINTS ALL IMMEDIATE: it uses up the check inside COMMIT. In Write it only
//     makes breaks and releases of the lease wait for the end of the transaction.
//   - After Guard or GuardSQL, ROLLBACK TO a savepoint from before it: the fence goes with it, and nobody notices. Guard the
//     outermost transaction, not a nested one. Seal, as the last statement before COMMIT, closes this hole and the one
//     before, as it does in Write.
//   - Write through another connection: that one is under no fence.
//   - Keep the pgx.Tx beyond its return.
package fencedstore
