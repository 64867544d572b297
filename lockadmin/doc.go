// Package lockadmin looks at locks of package pglock, and breaks them. It is for people and their tools: a dashboard, a runbook, a
// command line as pglock-admin, which is made of it.
//
//	admin, err := lockadmin.New(ctx, pool)       // *pgxpool.Pool; nothing to close
//	for lock, err := range admin.Locks(ctx) {    // who holds what
//		…
//	}
//	broken, err := admin.Break(ctx, "report", "its host is gone", lockadmin.WithToken(42))
//
// It holds no lock, so it has no heartbeat, no goroutine and no connection of its own: each call borrows one from the pool and gives
// it back.
//
// # Lists
//
// Locks, Waiters, Events and Fences are iterators. They read a page with one statement when the loop comes to it, and no further
// than the loop goes. A page is what the server had at one moment; from page to page things move on. An error is the last thing that
// a loop is given. What all lists have in common: the name "" means all locks, and WithPageSize says how much one statement reads.
//
// # From a lock to its program
//
// Admin.Backends tells which processes of the server work for a lock: the heartbeats of its holders, and open fenced transactions. Their
// client address and application_name lead to the program. Connections that the library opens itself are called
// "pglock host/program[pid]", unless the application has a name.
//
// # Rights
//
// The role pglock_user may look. Break, Events and Prune need pglock_admin. Answers from standbys are refused with
// pglock.ErrReadOnly, but for Diagnose.
package lockadmin
