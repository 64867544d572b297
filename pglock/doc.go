// Package pglock is named locks with leases and fencing tokens, as rows of a table in the application's own PostgreSQL.
//
// A lock is a name that at most one holder has at a time, or as many as its mode allows. A grant gives its holder a
// lease, which ends at a moment of the server's clock unless it is renewed, and a fencing token, which is greater than
// that of every earlier grant of the lock. Package fencedstore uses both to refuse the writes of a holder that has lost
// its lease. A lease alone protects nothing: its holder may be paused for longer than the lease lasts, and wake up in the
// middle of a write.
//
// The smallest program:
//
//	client, err := pglock.New(ctx, pool) // *pgxpool.Pool; one client for each process. Without such a pool: pglock.Open(ctx, url)
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
// one. A renewal never revives a lease that has ended. Where requests are queued, a release and a break grant the lock to
// the next one in the same step.
//
// In the process:
//
//	valid ──▶ released   Release, Do or Close                          Err is ErrReleased
//	  └─────▶ lost       deadline passed, or the server said so        Err is ErrLost, a *LostError with its Reason
//
// Both ends are final. At either, Valid turns false and Context is done, with Err as its cause. Valid compares the clocks
// when it is called, so it is right in the first instruction after a pause; Context follows within a second.
//
// # Waiting
//
// Acquire, AcquireAll and Do queue: the server writes a ticket in the same transaction that found the lock held. Tickets
// are served in their order, whatever their mode, and a request that comes later does not overtake them; TryAcquire is
// refused while others are queued. Whoever releases the lock grants it to the next in the queue in its own transaction,
// and then notifies the waiter's client. When a lease runs out, whoever asks first does that; the first in the queue asks
// as soon as the server's clock says so.
//
// Calls of one client that wait for the same lock in the same way share a ticket. Its grant passes from one to the next in
// memory, in the order in which they called, each with a lease and a token of its own: for 20 ms from its first turn on and 64
// times, at most (WithTurns). Then the lock goes to the next ticket. So, beside the turn that runs, a call waits for one such
// block at most of each ticket before its own:
//
//	                     20 ms                              20 ms
//	client 1  ticket 8 ├─A─B─C─D─┤ ticket 11 ··············├─F─G─┤
//	client 2  ticket 9 ··········├──E──┤
//	client 3      ticket 10 ···········├──H──┤
//
// A lease that was exported (Lease.Export), or that fencedstore has written under, is not passed on that way: its release goes through the server.
//
// The notification is a hint for one ticket, which nobody can forge and which may be lost: the row of the lock decides. While
// calls wait, the client looks at its tickets every second, and less often where looks take long; where it hears no
// notifications, as behind a pooler that shares connections between transactions, it looks after 20 ms first, and then at
// intervals that grow to a second. WithListenConfig gives the listener a connection of its own making.
//
// A client whose calls wait counts as alive for no longer than its session TTL after a look (WithSessionTTL, 10 s). The queue
// passes over a client that does not look, because it was killed, paused or cut off; when it looks again it queues at the end.
// A lease never depends on that.
//
// A call whose context ends leaves the queue. If it was granted the lock in that moment, the grant goes to the next. The
// error is the context's and ErrHeld, with who holds the lock and the place in the queue. HeldError.Holder is "" while nobody
// holds the lock and it is still not free: somebody is being granted it, or a COMMIT of the last holder is under way.
//
// # Modes
//
// A lock is exclusive unless a request says WithShared, for any number of holders together, or WithLimit(n), for n at most. All
// modes wait in one queue: readers do not overtake a writer that waits. Shared and limited leases have a slot
// (Lease.Slot), which no two leases of a lock have at the same time, and each slot has a fence of its own
// (Lease.Resource). Tokens increase over all slots.
//
// # Owners
//
// An owner is one line of work that may hold several locks. Lease.Context carries it: a request under that context is one of
// the lease's owner. Other requests have a new owner each. An owner that asks for a lock
// that it holds gets ErrSelfDeadlock at once. When owners wait for each other in a circle, in any number of processes,
// the one that queued last gets ErrDeadlock within a second; the others wait until it releases what it holds. An owner
// counts as one line of work: if several goroutines ask under one lease's context, each counts as waiting when one of
// them does. Circles through requests whose context carries no lease, and through anything but locks, are not seen.
//
// # Promises
//
//   - By the server's clock, the leases of one lock never overlap.
//   - The tokens of one lock strictly increase, across crashes, restarts, and failovers that lose no commit.
//   - Only whoever knows the grant ID renews or releases a lease. A second release changes nothing and says so.
//   - A request whose answer was lost is repeated with the same grant ID and yields the same grant and token. A grant
//     that nobody waits for any more is given back.
//   - A holder learns of a loss by its deadline at the latest, with no message from the server.
//   - A waiter that lives is granted the lock in the order of tickets; calls that share a ticket pass its grant on for 20 ms at
//     most. No release is missed: a notification that is lost costs the time to the next look. A release wakes one waiter
//     where one is granted the lock.
//   - A waiting call holds no connection, and a wait that is given up leaves no lock that nobody knows of.
//   - What Break ended stays ended.
//   - A refused call changes nothing and says why.
//
// # Not promised
//
//   - Availability: without the server there are no locks.
//   - Fairness beyond the order of tickets. There are no priorities, and a crash of the server may lose the newest
//     tickets: their requests queue again.
//   - That the next in the queue lives: a waiter that dies in the last seconds before its turn may be granted the lock, which
//     is then taken for the TTL that it asked for.
//   - That nobody else believes in the lock: a holder whose lease has just ended may, up to its deadline. Use a fence.
//   - Anything about resources that no fence protects.
//   - That a grant outlives a failover that lost its commit. Tokens ascend all the same, but the lock is free again while
//     its holder believes in it. Use synchronous replication, and ObserveCommits; or WithGrace.
//   - Answers from standbys: they are refused with ErrReadOnly.
//
// # Failures
//
//   - The process is paused past the TTL: the lease is lost at once when it goes on; the lock is granted after the
//     expiry.
//   - The process dies: the lock is free when the lease runs out, and goes to the first in the queue. Its waiting calls
//     are passed over when its session TTL has passed.
//   - The listener's connection is lost, or hears nothing: waits go on by looks; it is made anew after 50 ms to a minute.
//   - Looks fail, as there is no server: waiting calls bear it for 30 s. A server that was restarted has the tickets
//     still.
//   - The answer to an acquire is lost: the client asks again with the same grant ID, for 10 s or the TTL; then
//     ErrOutcomeUnknown, and the client takes the request back in the background. Acquire and Do bear 30 s without a server.
//   - A connection hangs in silence: the client gives a renewal up after a third of the shortest TTL, 10 s at most, and tries it
//     on a new connection. Every other statement has 10 s; then the call asks again, or fails. A call whose ctx ends returns at
//     once: what it has sent goes on without it, and what that brings goes back.
//   - Renewals fail: they are repeated every twentieth to tenth of the TTL, a second at most, until the deadline; then
//     the lease is lost, and LostError.Err holds the last failure.
//   - The server restarts: leases are rows and go on; they are lost if it is away past their deadline.
//   - The server's clock jumps forward: leases end early. It is set back: those of dead holders end late.
//   - A failover loses the grant: the next renewal says that it is lost, as unknown or taken over.
//   - An operator breaks the lease: the next heartbeat says that it is lost.
//   - The pool is exhausted: leases are kept; calls wait for a connection as long as their ctx.
//   - Release cannot reach the server while ctx allows: its error says so, the client goes on trying, and at worst the lease runs out
//     by itself. The same if the server crashes
//     just after a release: a release does not wait for the disk.
//   - The server refuses to show a watched lock, for want of a right, say, or the pool is closed: the watch ends with that error.
//
// # What a client owns
//
// Two goroutines for as long as it lives, the heartbeat and the watch that ends leases at their deadlines; from the first
// wait or Watch on a third, which listens; one for each line of calls that wait for the same lock,
// while any does; and one for each statement of its calls that is under way, ten seconds at most.
// Outside the pool at most two connections: one for renewals and looks, while it holds leases for longer than a third of
// their TTL or waits, made as the pool makes its own; and one that listens, while any call waits or watches, made
// likewise or by WithListenConfig. Both are closed after 30 s without use, the first after a minute at
// the latest where leases come and go. Where the pool's configuration has no application_name, both appear in pg_stat_activity as
// "pglock host/program[pid]".
//
// Close leaves all queues, releases all leases, waits for calls that are under way, takes back what they leave, ends all of
// these and returns when they have ended. For what it says to the server it has as long as ctx allows, as Release has: five seconds
// where ctx has no deadline or has ended before, and never longer than ctx otherwise. Its error says what it could not give back. The pool stays the caller's: close it after the client. A pool that Open has made is the
// client's, and Close ends it too. No session state is needed
// but for listening, so that the client works behind a pooler that shares connections between transactions.
package pglock
