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
// A bridge takes the lease first. Each Held has a connection outside the pool. Behind a pooler give Config.ConnConfig
// one that leads to the server itself; otherwise Acquire returns ErrPooler. When the connection ends, the advisory lock
// is free at once: the Context is done as soon as this process hears of it. [What a bridge does] says who is served in
// which order, what happens when a session ends, and what it costs.
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
// [What a bridge does]: https://github.com/pglock-dev/pglock/blob/main/docs/migrating.md#what-a-bridge-does
package advisory
