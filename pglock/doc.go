// Package pglock is named locks with leases and fencing tokens, as rows of a table in the application's own PostgreSQL.
//
// A lock is a name that at most one holder has at a time. A grant gives its holder a lease, which ends at a moment of the
// server's clock unless it is renewed, and a fencing token, which is greater than that of every earlier grant of the
// lock. Package fencedstore uses both to refuse the writes of a holder that has lost its lease. A lease alone protects
// nothing: its holder may be paused for longer than the lease lasts, and wake up in the middle of a write.
//
// The smallest program:
//
//	client, err := pglock.New(ctx, pool) // *pgxpool.Pool; one client for each process
//	defer client.Close(ctx)
//	err = client.Do(ctx, "report", func(ctx context.Context, lease *pglock.Lease) error {
//		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error { … })
//	})
//
// # Who decides
//
// The database decides who holds a lock. It compares expiries with its own clock (clock_timestamp), draws tokens from one
// sequence while the lock's row is locked, and answers a grant or a renewal only when it is on disk, and on a synchronous
// standby where there is one, whatever synchronous_commit the session has.
//
// The process decides only when to stop. It trusts a lease up to a deadline that comes before the expiry:
//
//	deadline = sent + left - min(left/20, 1s)    left = min(TTL, what the server said is left)
//
// where sent is the local moment at which the request was sent, not that of its answer. The monotonic and the wall clock
// are both read, and the one that has moved further counts: one stops while a machine sleeps, the other can be set back.
// So a clock that is set wrongly ends trust too soon, never too late; the margin is for clocks that run slowly. Renewals
// are sent at a third of the TTL, less up to a tenth of that.
//
// # The life of a lease
//
// On the server:
//
//	         grant: a new token
//	free ─────────────────────────▶ held ──┐ renew: a later expiry, the same token
//	 ▲                               │ ▲   │
//	 │ released   by its owner       │ └───┘
//	 │ broken     by an operator     │
//	 │ expired    by the clock       │
//	 └───────────────────────────────┘
//
// A lock stays a row when it is free; the row keeps the last token. A broken lease has its token replaced by a greater
// one. A renewal never revives a lease that has ended.
//
// In the process:
//
//	valid ──▶ released   Release, Do or Close                          Err is ErrReleased
//	  └─────▶ lost       deadline passed, or the server said so        Err is ErrLost, a *LostError with its Reason
//
// Both ends are final. At either, Valid turns false and Context is done, with Err as its cause. Valid compares the clocks
// when it is called, so it is right in the first instruction after a pause; Context follows within a second.
//
// # Promises
//
//   - By the server's clock, the leases of one lock never overlap.
//   - The tokens of one lock strictly increase, across crashes, restarts, and failovers that lose no commit.
//   - Only who knows the grant ID renews or releases a lease. A second release changes nothing and says so.
//   - A request whose answer was lost is repeated with the same grant ID and yields the same grant and token. A grant that
//     nobody waits for any more is given back.
//   - A holder learns of a loss by its deadline at the latest, with no message from the server.
//   - What Break ended stays ended.
//   - A refused call changes nothing and says why.
//
// # Not promised
//
//   - Availability: without the server there are no locks.
//   - Fairness: there is no queue. Acquire looks again when the holder's lease ends, and at intervals that grow to about a
//     second; whoever looks first is granted the lock.
//   - That nobody else believes in the lock: one whose lease has just ended may, up to its deadline. Use a fence.
//   - Anything about resources that no fence protects.
//   - Order of tokens after a failover that lost commits. Use synchronous replication, and ObserveCommits.
//   - Answers from standbys: they are refused with ErrReadOnly.
//
// # Failures
//
//   - The process is paused past the TTL: the lease is lost at once when it goes on; the lock is granted after the expiry.
//   - The process dies: the lock is free when the lease runs out.
//   - The answer to an acquire is lost: it is asked for again, for 10 s or the TTL; then ErrOutcomeUnknown, and the grant, if
//     there was one, is given back in the background. Acquire and Do bear 30 s without a server.
//   - A connection hangs in silence: a renewal is given up after a third of the shortest TTL, 10 s at most, and tried on a
//     new connection. Calls with a ctx wait as long as ctx: give it a deadline.
//   - Renewals fail: they are repeated every twentieth to tenth of the TTL, a second at most, until the deadline; then the
//     lease is lost, and LostError.Err holds the last failure.
//   - The server restarts: leases are rows and go on; they are lost if it is away past their deadline.
//   - The server's clock jumps forward: leases end early. It is set back: those of dead holders end late.
//   - A failover loses the grant: the next renewal says that it is lost, as unknown or taken over.
//   - An operator breaks the lease: the next heartbeat says that it is lost.
//   - The pool is exhausted: leases are kept; calls wait for a connection as long as their ctx.
//   - The release of a lease cannot be told to the server: Release says so, and the lease runs out by itself. The same if
//     the server crashes just after a release: a release does not wait for the disk.
//
// # What a client owns
//
// Two goroutines for as long as it lives, the heartbeat and the watch that ends leases at their deadlines, and short ones
// that give back grants nobody waits for. One connection outside the pool, made as the pool makes its own, while it holds
// leases for longer than a third of their TTL; it is closed after 30 s without a lease. Close ends all of them and returns
// when they have ended. The pool stays the caller's: close it after the client. No session state is needed, so that the
// client works behind a pooler that shares connections between transactions.
package pglock
