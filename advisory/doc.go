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
//	bridge, err := advisory.New(client, advisory.Config{})
//	key := advisory.Hashtext("nightly-report") // the old programs: pg_advisory_lock(hashtext('nightly-report'))
//	err = bridge.Do(ctx, "nightly-report", key, func(ctx context.Context, held *advisory.Held) error {
//		return held.Write(ctx, func(ctx context.Context, tx pgx.Tx) error { … })
//	})
//
// Release 3 has client.Do and store.Write in their place, with the same name.
//
// # Order
//
// A bridge takes the lease first, and then the advisory lock. Old programs never wait for a lease, so the two cannot
// wait for each other in a circle. New programs queue for the lease, in order and without a connection. Only the
// program that has the lease waits for the advisory lock, so old programs compete with one new program at a time.
// Release gives the advisory lock back first: an old program that waits in pg_advisory_lock gets it before the next new
// program.
//
// Two circles remain that nobody detects:
//
//   - An old program holds advisory lock A and waits for B, while a new program holds B and waits for A. Take the locks
//     in the order of the old programs.
//   - A program calls Acquire inside an open transaction, and the holder waits for rows of that transaction. Limit such
//     waits with ctx or pglock.WithMaxWait.
//
// # Who is served
//
// Among new programs, pglock's queue decides. Between new and old programs, the server's queue for the advisory lock
// decides. A bridge stays in that queue for half a second, leaves it for some milliseconds, and joins it again at its
// end. It leaves because a statement that waits holds a snapshot: a long wait would keep VACUUM from cleaning up, and a
// CREATE INDEX CONCURRENTLY of the holder would wait for the bridge in a circle. So:
//
//   - The next release serves an old program that waits in pg_advisory_lock, and every old program that queues before
//     the next bridge does.
//   - The server serves a bridge in order as long as those before it hold the lock for less than half a second
//     together. Beyond that, old programs that queue later can overtake it.
//   - An old program that calls pg_try_advisory_lock from time to time is refused while a bridge waits or holds.
//     Between two new programs the lock is free for only some milliseconds. So if new programs are always queued, such
//     an old program may never get the lock.
//
// # When the session ends
//
// An advisory lock lives as long as its session. So each Held has its own connection, uses it for nothing else, and
// watches it. When the server or the network ends the connection, the advisory lock is free at once, and an old program
// may take it. What the bridge does about that:
//
//   - The server ends the session, restarts or crashes, or the connection is reset: the Context is done as soon as
//     this process hears of it, within milliseconds. For these milliseconds both programs may believe that they hold.
//   - The network is cut in silence, or the host freezes: the server keeps the lock for at least one and a half TTLs,
//     and for up to a quarter of a TTL more (idle_session_timeout). The bridge asks every quarter of the TTL, 5 s at
//     most, and waits for the answer for half of the TTL, 10 s at most. So the Context is done before the lock is free,
//     and after a pause the lease is lost before it (Held.Err). If somebody ends the session on the server during the
//     cut, both programs may believe that they hold, for three quarters of the TTL at most.
//   - The same of a lease that is extended (pglock.Lease.Extend, fencedstore.WithTimeLimit): the server keeps the lock
//     for one and a half times as long as the lease lasts. The server learns of an extension with the bridge's next
//     question. After a freeze that began between the two, an old program may have the lock before the lease ends.
//   - The process dies: an old program can take the lock at once, a new one when the lease has ended. A COMMIT that
//     was under way on another connection may still go on then.
//   - The lease is lost: the Context is done, and the bridge gives the advisory lock back.
//
// When the session is lost, the bridge releases the lease too: from then on every fence refuses the holder. A frozen
// host keeps the next holder out for up to one and three quarter TTLs; with pglock alone it is one TTL. If it is frozen
// in the middle of COPY FROM STDIN in Held.Write, it keeps everybody out for as long as it is frozen: the server looks
// at no limit there.
//
// # Writes
//
// A fence cannot order a write against those of old programs, because old programs have no token. There are three ways
// to keep a late write from coming after an old program's:
//
//	Held.Write                            The transaction runs on the session that has the advisory
//	                                      lock. Whatever frees the lock has ended the transaction.
//	                                      No gap. One write at a time.
//	Store.Write, ending with Held.Guard   Guard asks whether the session still has the lock. If the
//	                                      session ends between that look and the end of COMMIT, an
//	                                      old program may have the lock.
//	Store.Write alone                     The gap lasts until this process knows that the session
//	                                      has ended.
//
// All three refuse a holder whose lease has ended. Old programs write as unprotected as before, because a fence only
// stops programs that pass it. A guarded table (fencedstore.GuardTable) refuses every write of old programs: add the
// guard when the last of them has ended.
//
// If old programs do all of their work in one transaction, under pg_advisory_xact_lock, you do not need this package:
// call pg_advisory_xact_lock as the first statement of the transaction of Store.Write.
//
// # Poolers
//
// Session advisory locks do not work through a pooler that shares sessions between transactions. A bridge refuses a
// connection if another server process answers than the connection names (ErrPooler), as behind PgBouncer in every
// mode. Config.ConnConfig leads to the server itself.
//
// # What it costs
//
// Each Acquire opens a connection outside the pool, as soon as it has the lease; it lasts until Release. An Acquire
// sends two more statements, a Release one, and the bridge pings once every quarter of the TTL, 5 s at most. Use a
// bridge only during a change, and for locks that you take some times a second at most.
//
// Session advisory locks count: a session may take one twice. A bridge does not count: an owner that asks for a lock
// that it holds gets pglock.ErrSelfDeadlock, as for any lease.
package advisory
