// Package lockadmin shows the locks of package pglock, and breaks them. It is for people and their tools, such as a
// dashboard or a runbook; pglock-admin is built on it.
//
//	admin, err := lockadmin.New(ctx, pool)       // *pgxpool.Pool; nothing to close
//	if err != nil {
//		return err
//	}
//	for lock, err := range admin.Locks(ctx, lockadmin.LocksQuery{}) { // who holds what
//		…
//	}
//	broken, err := admin.Break(ctx, "report", "its host is gone", lockadmin.BreakOptions{Token: &token})
//
// It holds no lock, so it has no heartbeat, goroutine or connection: each call borrows a connection from the pool.
//
// # Lists
//
// Locks, Waiters, Fences, Sessions and History are iterators, each with a query that chooses what it yields. They read
// one page per statement, when the loop comes to it, and stop with the loop. A page is the server's state at one
// moment; the next page may be of a later state. An error ends the loop. The zero value of a query chooses everything.
//
// # From a lock to its program
//
// Admin.Backends tells which processes of the server work for a lock or stand in its way: the heartbeats of its
// holders, open fenced transactions, and whoever blocks them. Their client address and application_name lead to the
// program. Connections that the library opens itself are called "pglock host/program[pid]", unless the application has
// a name.
//
// # History
//
// History yields how each tenure ended, the time for which somebody held a lease. At the default level it has those
// that expired, were taken over or broken; SetHistory makes it have all. Verify reports tenures that ran at the same
// time, and tokens that went back. docs/history.md says what its answer proves.
//
// # Rights
//
// The role pglock_user may look, also in sessions that are read-only. Break, Prune, Verify and all that is about the
// history need pglock_admin.
//
// # Standbys
//
// On a standby everything that looks answers, with the past: Admin.Standby says how far it is behind. No client is
// called silent or dead there. Whatever writes fails with pglock.ErrReadOnly.
package lockadmin
