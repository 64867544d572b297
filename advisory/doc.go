// Package advisory is a bridge from PostgreSQL's advisory locks to pglock, for the time in which old and new programs
// run together.
//
// Old programs take an advisory lock alone. While any of them runs, new programs take two locks through a Bridge: the
// lock of pglock, and then the same advisory lock. When no old program runs any more, a later release drops the
// bridge:
//
//	                     time ───────────────────────────────────────────────────────────▶
//	release 1  old       ██ advisory lock ███████████
//	release 2  bridge             ██ lease, then advisory lock ██████████████████
//	release 3  pglock                                       ██ lease ████████████████████
//	                              └ 1 and 2 exclude ┘       └ 2 and 3 exclude ┘
//	                                each other by             each other by
//	                                the advisory lock         the lease
//
// Releases 1 and 3 share no lock: they must never run together. Start release 3 when the last program of release 1 has
// ended. On the way back, start release 1 when the last program of release 3 has ended.
//
//	bridge, err := advisory.New(client)
//	key := advisory.Hashtext("nightly-report") // the old programs: pg_advisory_lock(hashtext('nightly-report'))
//	err = bridge.Do(ctx, "nightly-report", key, func(ctx context.Context, held *advisory.Held) error {
//		return held.Write(ctx, func(ctx context.Context, tx pgx.Tx) error { … })
//	})
//
// Release 3 has client.Do and store.Write in their place, with the same name.
//
// # Order
//
// A bridge takes the lease first, and the advisory lock after it. Old programs never wait for a lease, so the two
// orders cannot make a circle. New programs queue for the lease, in order and without a connection. Only the one that
// has the lease waits for the advisory lock, so old programs meet one new program at a time. Release gives the
// advisory lock back first: an old program that waits in pg_advisory_lock has it next, before the next new program.
//
// Two circles remain, and nobody sees them. An old program that holds advisory lock A and waits for B, while a new
// one holds B and waits for A: take them in the order of the old programs. And a call of Acquire inside an open
// transaction whose rows the holder waits for. Bound such waits with ctx or pglock.WithMaxWait.
//
// # Who is served
//
// Among new programs, pglock's queue decides. Against old ones, the server's queue for the advisory lock decides, for
// half a second: then the bridge leaves that queue for some milliseconds and joins it again at its end. A statement
// that waits holds a snapshot; a long wait would stop VACUUM, and a CREATE INDEX CONCURRENTLY of the holder would
// wait for it in a circle. So:
//
//   - An old program that waits in pg_advisory_lock is served by the next release, and every old program that queues
//     before the next bridge does.
//   - A bridge is served in the server's order as long as those before it hold the lock for less than half a second
//     together. Beyond that, old programs that queue anew can overtake it.
//   - An old program that asks with pg_try_advisory_lock now and then is refused while a bridge waits or holds.
//     Between two new programs the lock is free for some milliseconds alone: while new programs are always queued,
//     such an old program may never have the lock.
//
// # When the session ends
//
// An advisory lock lives as long as its session. Each Held therefore has a connection of its own, which does nothing
// else and is watched. When the server or the network ends it, the advisory lock is free at once, and an old program
// may have it. What the bridge does about that:
//
//   - The server ends the session, restarts or crashes, or the connection is reset: the Context is done as soon as
//     this process hears of it, within milliseconds. For these milliseconds both may believe that they hold.
//   - The network is cut in silence, or the host freezes: the server keeps the lock for one and a half TTLs at least,
//     and for up to a quarter of a TTL more (idle_session_timeout). The bridge asks every quarter of the TTL, 5 s at
//     most, and waits for the answer for half of the TTL, 10 s at most. So the Context is done first, and after a
//     pause the lease is lost first (Held.Err). Only if somebody ends the session on the server during the cut, both
//     may believe that they hold, for three quarters of the TTL at most.
//   - The process dies: an old program can have the lock at once, a new one when the lease has ended. A COMMIT that
//     was under way on another connection may still go on then.
//   - The lease is lost: the Context is done, and the bridge gives the advisory lock back.
//
// When the session is lost, the lease is released too: from then on every fence refuses the holder. A frozen host
// keeps the next holder out for up to one and three quarter TTLs, where pglock alone takes one.
//
// # Writes
//
// A fence knows nothing of old programs, which have no token. So what keeps a write from coming after an old
// program's?
//
//	Held.Write                            The transaction runs on the session that has the advisory
//	                                      lock. What frees the lock has ended the transaction.
//	                                      No gap. One write at a time.
//	Store.Write, ending with Held.Guard   It looks whether the session still has the lock. The gap is
//	                                      from that look to the end of COMMIT, and only if the
//	                                      session ends just then.
//	Store.Write alone                     The gap lasts until this process knows that the session
//	                                      has ended.
//
// All three refuse a holder whose lease has ended. Old programs write as unprotected as they did before: a fence, and
// fencedstore.GuardTable, can only protect from those that take part. A guarded table refuses old programs; put the
// guard on when the last of them has gone.
//
// If the old programs do all of their work in one transaction, under pg_advisory_xact_lock, there is a simpler way
// without this package: call pg_advisory_xact_lock in the transaction of Store.Write, as its first statement.
//
// # Poolers
//
// Session advisory locks do not work through a pooler that shares sessions between transactions: one session takes
// the lock, another gives it back. A bridge refuses a connection whose server process is not the one that the
// connection names (ErrPooler); that is so behind PgBouncer in every mode. Give WithConnConfig a way to the server
// itself.
//
// # What it costs
//
// One connection for each lock that is held, or whose lease is held while the advisory lock is waited for; it is
// opened for each Acquire, outside the pool, and counts in max_connections. Two statements more for an Acquire, one
// for a Release, and one ping every quarter of the TTL. A bridge is for the time of a change, and for locks that are
// taken some times a second at most.
//
// Session advisory locks count: a session may take one twice. A bridge does not: an owner that asks for what it holds
// gets pglock.ErrSelfDeadlock, as for any lease.
package advisory
