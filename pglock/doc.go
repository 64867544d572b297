// Package pglock provides named locks with leases and fencing tokens. The locks are rows in the application's own
// PostgreSQL.
//
//	func send(ctx context.Context, pool *pgxpool.Pool) error {
//		client, err := pglock.New(ctx, pool) // one client for each process
//		if err != nil {
//			return err
//		}
//		defer client.Close(ctx)
//		store := fencedstore.New(pool)
//		return client.Do(ctx, "report", func(ctx context.Context, lease *pglock.Lease) error {
//			return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
//				_, err := tx.Exec(ctx, "UPDATE reports SET sent = true WHERE day = current_date")
//				return err
//			})
//		})
//	}
//
// At most one holder has a lock at a time, or as many as its mode allows. Each grant gives the holder a lease, which
// ends at a time of the server's clock unless it is renewed; the client renews it in the background. The grant also has
// a fencing token, which is greater than that of every earlier grant of the lock.
//
// A lease alone protects nothing: its holder may be paused for longer than the lease lasts, and wake up in the
// middle of a write. Package fencedstore uses lease and token to refuse such a write, as in the program above.
//
// A program that uses database/sql, an ORM or another driver has no such pool: Open makes a client with a small one.
//
// The schema must exist: run `pglock-admin migrate up`, or use package migrations.
//
// # Who decides
//
// The database decides who holds a lock. It compares expiries with its own clock and draws tokens from one sequence
// while the lock's row is locked. It answers a grant or a renewal only when that is on disk, and on a synchronous
// standby where there is one, whatever synchronous_commit the session has.
//
// The process only decides when to stop. It trusts a lease up to a deadline before the expiry:
//
//	deadline = sent + left - min(left/20, 1s)    left = min(TTL, what the server said is left)
//
// sent is the local time at which the request was sent. The client reads both the monotonic and the wall clock and
// uses the one that has moved further: one may stop while a machine sleeps, the other can be set back. So a wrongly
// set clock ends trust too early, never too late; the margin is for clocks that run slowly. Renewals are sent after a
// third of the TTL, less up to a tenth of that. While a lease is extended (Lease.Extend), the length of the extension
// stands in the formula instead of the TTL.
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
// A free lock keeps its row, and the row keeps the last token. Breaking a lease replaces its token by a greater one.
// A renewal never revives a lease that has ended. Lease.Extend makes a lease last for longer than its TTL; renewals do
// not shorten it. If requests are queued, a release or a break grants the lock to the next one in the same step.
//
// In the process:
//
//	valid ──▶ released   Release, Do or Close                          Err is ErrReleased
//	  └─────▶ lost       deadline passed, or the server said so        Err is ErrLost, a *LostError with its Reason
//
// Both ends are final. At either, Valid turns false and Context is done, with Err as its cause. Valid compares the
// clocks when it is called, so it is right in the first instruction after a pause; Context follows within a second. If
// a hypervisor stopped the clocks too, both learn at the next renewal, at the latest at the deadline by these clocks.
//
// A call under a context that has ended fails with an error that matches the context's error and its cause. So a call
// under the Context of a lost lease matches context.Canceled and ErrLost; LostError.Lock says which lease that is. But
// an ErrOutcomeUnknown does not match the cause, because the call may have been carried out.
//
// # Waiting
//
// Acquire, AcquireAll and Do queue: the transaction that finds the lock held also writes a ticket. A release grants the
// lock to the next ticket in its own transaction, and then notifies the waiter's client. When a lease runs out, the
// next request does this; the first waiter in the queue asks as soon as the server's clock says so. TryAcquire is
// refused while others are queued.
//
// Each call has a ticket of its own, also beside other calls of its client. If many goroutines of one process want one
// lock, let them take a sync.Mutex first: then one of them at a time asks the server.
//
// A waiting call holds no connection. The notification is a hint, and may be lost: while calls wait, the client looks
// at its tickets every second, or less often far from the front of a queue ([docs/protocol.md]). If it receives no
// notifications, as behind a pooler that shares connections between transactions, it looks after 20 ms and then at
// intervals that grow to a second. WithListenConfig gives the listener a direct connection.
//
// A client with waiting calls counts as alive for its session TTL after each look (WithSessionTTL, 10 s), or up to
// twice as long far from the front of a queue that stands still. The queue skips a client that does not look because
// it was killed, paused or cut off; when it looks again it queues at the end. Leases do not depend on this.
//
// A call whose context ends leaves the queue. If it was granted the lock at that moment, the grant goes to the next
// waiter. The error matches the context's error and ErrHeld, with the lock's holder and the place in the queue.
// If the request fits beside all holders, as a reader beside readers, HeldError.Holder is the waiter that goes first,
// with token 0. It is "" if nobody holds the lock and it is still not free: a waiter is next, or a transaction has
// locked the lock's row, such as a COMMIT of the last holder.
//
// # Modes
//
// A lock is exclusive unless the request says WithShared, for any number of holders together, or WithLimit(n), for
// at most n. All modes wait in one queue: readers do not overtake a waiting writer. Shared and limited leases have a
// slot (Lease.Slot), which no two leases of a lock have at the same time. Each slot has its own fence
// (Lease.Resource). Tokens increase over all slots.
//
// WithSubtree adds all names below: those that begin with the name and '/'. Nobody else has a lease below then, unless
// both are shared. Tickets order the requests of a tree, too: those below do not overtake a subtree that waits.
//
// # Owners
//
// An owner is one line of work that may hold several locks. Lease.Context carries it: a request under that context
// has the same owner as the lease. Every other request has a new owner. An owner that asks for a lock that it holds
// gets ErrSelfDeadlock at once, unless it asks WithNewOwner. While the server still has a lease of it that has ended
// here, the lock is held, as by anybody else. If owners wait for each other in a circle, in any number of processes,
// the one that queued last gets ErrDeadlock within a second; the others wait until it releases what it holds. If
// several goroutines ask under one lease's context, all count as waiting when one of them waits. Circles through
// requests whose context carries no lease, or through anything but locks, are not seen.
//
// # Promises
//
//   - I1: The leases of one lock never overlap, by the server's clock.
//   - I2: A lock's tokens increase from grant to grant, across crashes, restarts and failovers.
//   - I3: No write passes a fence after a greater token has passed it.
//   - I4: No fenced write commits if its lease had ended at the check inside COMMIT.
//   - I5: Only the owner of a grant renews or releases it.
//   - I6: A lost answer leaves no lock that nobody knows of.
//   - I7: A holder learns of a lost lease by its local deadline at the latest.
//   - I8: No live waiter misses a release.
//   - I9: Waiters are served in the order of their tickets, over all processes.
//   - I10: A lease that an operator broke stays broken.
//   - I11: A refused call changes nothing and says why.
//
// Also, an abandoned wait leaves no lock held. [docs/guarantees.md] has the conditions of each promise, and says what
// is not promised. Above all: without the server there are no locks. A holder whose lease has just ended may believe in
// it up to its deadline, so use a fence. A failover that loses commits frees locks while their holders believe in them:
// use synchronous replication and ObserveCommits, or WithGrace.
//
// # Failures
//
// [docs/guarantees.md] says of each failure what the holder sees, what others see, and what becomes of the data. In
// short:
//
//   - After any ErrLost stop, and take the lock again to go on. LostError has the Reason, and in Err the last failure.
//   - Without a server, or a free slot of it, Acquire, AcquireAll and Do go on for 30 s. TryAcquire fails within a
//     second if the server refuses, and within ten if it is silent or an answer was lost. While the pool is exhausted
//     they wait as long as ctx allows, and TryAcquire for ten seconds at most. If an answer is lost, the client asks
//     again with the same grant ID.
//   - A call returns within a quarter of a second after the end of its ctx, and AcquireAll within half a second: give
//     it a deadline. What ends a lease after that end takes five seconds at most: Release, HandOver, Close, and when
//     their function has returned Do, leader.Run and the Do of package advisory.
//   - After ErrOutcomeUnknown of a request for a lock the client takes it back in the background. It also goes on with
//     a release that the server has not confirmed; at worst the lease runs out.
//   - A full pool, a full server or a restart costs no lease, if the client gets a connection before the deadline.
//
// # What a client owns
//
// Goroutines: two for its whole life, the heartbeat and the watch that ends leases at their deadlines; a third, which
// listens, from the first wait or Watch on; one that reads from the open connection while no statement does; one that
// calls the observer, if there is one (WithObserver); one for each dial under way, for at most ten seconds, and one for
// each server that it tries; and one for each statement of calls under way, of which up to twenty stay for the next.
//
// Connections: one outside the pool, while the client waits, watches, or holds leases for longer than some seconds;
// with WithListenConfig a second one. For a moment there may be a few more: [docs/connections.md].
//
// Close leaves all queues, releases all leases, waits for calls that are under way, takes back what they leave, and
// ends all goroutines and connections before it returns. Writes of package fencedstore are not among those calls: their
// leases are released, so they fail or have committed. Close talks to the server for as long as ctx allows, as
// Release does: five seconds if ctx has no deadline or has already ended. Its error says what it could not give
// back. The pool stays the caller's: close it after the client. A pool that Open made is the client's, and Close
// ends it too.
//
// An observer that does not return keeps its goroutine: Close waits for it for a second, and says so.
//
// [docs/guarantees.md]: https://github.com/pglock-dev/pglock/blob/main/docs/guarantees.md
// [docs/protocol.md]: https://github.com/pglock-dev/pglock/blob/main/docs/protocol.md
// [docs/connections.md]: https://github.com/pglock-dev/pglock/blob/main/docs/connections.md
package pglock
