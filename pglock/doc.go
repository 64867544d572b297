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
// At most one holder has a lock at a time, or as many as its mode allows. Each grant gives the holder a lease and a
// fencing token. The lease ends at a time of the server's clock unless it is renewed; the client renews it in the
// background. The token is greater than that of every earlier grant of the lock.
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
// The database decides who holds a lock. It compares expiries with its own clock (clock_timestamp) and draws tokens
// from one sequence while the lock's row is locked. It answers a grant or a renewal only when that is on disk, and
// on a synchronous standby where there is one, whatever synchronous_commit the session has.
//
// The process only decides when to stop. It trusts a lease up to a deadline before the expiry:
//
//	deadline = sent + left - min(left/20, 1s)    left = min(TTL, what the server said is left)
//
// sent is the local time at which the request was sent, not that of its answer. The client reads both the monotonic
// and the wall clock and uses the one that has moved further: one may stop while a machine sleeps, the other can be
// set back. So a wrongly set clock ends trust too early, never too late; the margin is for clocks that run slowly.
// Renewals are sent after a third of the TTL, less up to a tenth of that. While a lease is extended (Lease.Extend),
// the length of the extension stands in the formula instead of the TTL.
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
// A renewal never revives a lease that has ended. Lease.Extend makes a lease last for longer than its TTL: the
// heartbeat goes on renewing it and does not shorten it, and the deadline follows. If requests are queued, a release
// or a break grants the lock to the next one in the same step.
//
// In the process:
//
//	valid ──▶ released   Release, Do or Close                          Err is ErrReleased
//	  └─────▶ lost       deadline passed, or the server said so        Err is ErrLost, a *LostError with its Reason
//
// Both ends are final. At either, Valid turns false and Context is done, with Err as its cause. Valid compares the
// clocks when it is called, so it is right in the first instruction after a pause; Context follows within a second.
//
// A call under a context that has ended fails with an error that matches the context's error and its cause. So a call
// under the Context of a lost lease matches context.Canceled and ErrLost; LostError.Lock says which lease that is.
//
// # Waiting
//
// Acquire, AcquireAll and Do queue: the transaction that finds the lock held also writes a ticket. Tickets are
// served in order, whatever their mode, and later requests do not overtake them; TryAcquire is refused while others
// are queued. A release grants the lock to the next ticket in its own transaction, and then notifies the waiter's
// client. When a lease runs out, the next request does this; the first waiter in the queue asks as soon as the
// server's clock says so.
//
// Each call has a ticket of its own, also beside other calls of its client. If many goroutines of one process want one
// lock, let them take a sync.Mutex first: then one of them at a time asks the server.
//
// The notification is a hint for one ticket. Nobody can forge it, and it may be lost: the row of the lock decides.
// While calls wait, the client looks at its tickets every second, or less often if looks take long. While each of them
// has eight others before it, and none of their owners holds a lock, it looks every two and a half seconds, or four
// times in a shorter TTL of the session or of the lease. If they all ask for exclusive leases of four seconds or more,
// and looks have found nobody served for five seconds, the client stops listening half a minute later, because each
// notification wakes all that listen. It listens again as soon as a look finds somebody served or a ticket near. If it
// receives no notifications, as behind a pooler that shares connections between transactions, it looks after 20 ms and
// then at intervals that grow to a second. WithListenConfig gives the listener a direct connection.
//
// A client with waiting calls counts as alive for its session TTL after each look (WithSessionTTL, 10 s). The queue
// skips a client that does not look because it was killed, paused or cut off; when it looks again it queues at the
// end. Leases do not depend on this.
//
// A call whose context ends leaves the queue. If it was granted the lock at that moment, the grant goes to the next
// waiter. The error matches the context's error and ErrHeld, with the lock's holder and the place in the queue.
// HeldError.Holder is "" if nobody holds the lock and it is still not free: a waiter is next, or a transaction has
// locked the lock's row, such as a COMMIT of the last holder.
//
// # Modes
//
// A lock is exclusive unless the request says WithShared, for any number of holders together, or WithLimit(n), for
// at most n. All modes wait in one queue: readers do not overtake a waiting writer. Shared and limited leases have a
// slot (Lease.Slot), which no two leases of a lock have at the same time. Each slot has its own fence
// (Lease.Resource). Tokens increase over all slots.
//
// # Owners
//
// An owner is one line of work that may hold several locks. Lease.Context carries it: a request under that context
// has the same owner as the lease. Every other request has a new owner. An owner that asks for a lock that it holds
// gets ErrSelfDeadlock at once, unless it asks WithNewOwner. If owners wait for each other in a circle, in any number
// of processes, the one that queued last gets ErrDeadlock within a second; the others wait until it releases what it
// holds.
//
// An owner counts as one line of work: if several goroutines ask under one lease's context, all count as waiting
// when one of them waits. Circles through requests whose context carries no lease, or through anything but locks,
// are not seen.
//
// # Promises
//
//   - By the server's clock, the leases of one lock never overlap.
//   - The tokens of one lock strictly increase, across crashes, restarts, and failovers that lose no commit.
//   - Only whoever knows the grant ID renews or releases a lease. A second release changes nothing and says so.
//   - A request whose answer was lost is repeated with the same grant ID and yields the same grant and token. A
//     grant that nobody waits for any more is given back.
//   - A holder learns of a loss by its deadline at the latest, with no message from the server.
//   - A live waiter is granted the lock in the order of tickets, over all processes. Only a holder that hands the
//     lock to a waiter it names (Lease.HandOver) changes that order. No release is missed: a lost notification costs
//     the time until the next look. A release wakes one waiter if it grants to one.
//   - A waiting call holds no connection, and an abandoned wait leaves no lock held.
//   - A lease that Break has ended stays ended.
//   - A refused call changes nothing and says why.
//
// # Not promised
//
//   - Availability: without the server there are no locks.
//   - Fairness beyond the order of tickets. There are no priorities, and a crash of the server may lose the newest
//     tickets: their requests queue again.
//   - That the next in the queue lives: a waiter that dies in the last seconds before its turn may be granted the
//     lock,
//     which is then taken for that waiter's TTL.
//   - That nobody else believes in the lock: a holder whose lease has just ended may, up to its deadline. Use a
//     fence.
//   - Anything about resources that no fence protects.
//   - That a grant survives a failover that lost its commit. Tokens still ascend, but the lock is free again while
//     its holder believes in it. Use synchronous replication and ObserveCommits, or WithGrace.
//   - Answers from standbys: they are refused with ErrReadOnly.
//
// # Failures
//
//   - The process is paused past the TTL: it loses the lease as soon as it continues. Others get the lock after the
//     expiry.
//   - The process dies: the lock is free when the lease runs out, and goes to the first in the queue. The queue
//     skips
//     its waiting calls when its session TTL has passed.
//   - The connection that listens is lost, or brings nothing: waits continue by looks; the client replaces it after 50
//     ms to a minute.
//   - Looks fail because there is no server: waiting calls tolerate this for 30 s. A restarted server still has the
//     tickets.
//   - The answer to an acquire is lost: the client asks again with the same grant ID, for 10 s or the TTL; then it
//     returns ErrOutcomeUnknown and takes the request back in the background. Acquire and Do tolerate 30 s without a
//     server.
//   - A connection hangs in silence: other leases are renewed on another one, as soon as they have waited for a quarter
//     of their time; those of the silent renewal are asked for again after half of the time that they had left. Every
//     other statement has 10 s; then the call asks again, or fails. A call whose ctx ends returns at once, or after
//     a quarter of a second for its place in the queue: its statement continues without it, and what that brings goes
//     back.
//   - Renewals fail: they are repeated every twentieth to tenth of the TTL, at most a second apart, until the
//     deadline;
//     then the lease is lost, and LostError.Err holds the last failure.
//   - The server restarts: leases are rows and continue; they are lost if it is away past their deadline.
//   - The server's clock jumps forward: leases end early. It is set back: those of dead holders end late.
//   - A failover loses the grant: the next renewal reports the lease as lost, unknown or taken over.
//   - An operator breaks the lease: the next heartbeat reports it.
//   - The pool is exhausted: leases are kept and released; other calls wait for a connection as long as their ctx.
//   - The server has no free slot for a connection: leases are kept and released, and waiting calls are granted their
//     locks, over the client's connection or an idle one of the pool. Acquire and Do tolerate half a minute without
//     either.
//   - Release cannot reach the server while ctx allows: its error says so, the client keeps trying, and at worst
//     the
//     lease runs out by itself. The same holds if the server crashes just after a release, which does not wait for the
//     disk.
//   - The server refuses to show a watched lock, for example for want of a right, or the pool is closed: the watch
//     ends with that error.
//
// # What a client owns
//
// Goroutines: two for its whole life, the heartbeat and the watch that ends leases at their deadlines; a third, which
// listens, from the first wait or Watch on; one that reads from the open connection while no statement does; one that
// calls the observer, if there is one (WithObserver); one for each dial under way, for at most ten seconds; and one
// for each statement of calls under way, of which up to twelve stay for the next.
//
// Connections outside the pool: one. It is for renewals and LISTEN, while the client waits, watches, or holds leases
// for longer than ten seconds or a third of their TTL; it is made as the pool makes its own. Looks use it if the pool
// has no idle one. If it cannot be opened, an idle one of the pool serves for one statement at a time, and the client
// does not listen. If it does not answer, others are opened beside it for a moment; so they are, up to four in all,
// for calls that release while the application holds its whole pool, and for questions of package fencedstore. It is
// closed after 30 s without use, or after a minute at the latest where leases come and go. With WithListenConfig a
// second connection listens instead. If the pool's configuration has no application_name, the connection appears in
// pg_stat_activity as "pglock host/program[pid]".
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
// Only listening needs session state, so the client works behind a pooler that shares connections between
// transactions.
package pglock
