// Package migrating has the programs of docs/migrating.md: for each kind of lock the program before the change to
// pglock, and the one during it, which holds the old and the new lock. The one after it is fromadvisory.LockAfter, or
// stands beside them. The tests run all of them, alone and against each other.
//
// This is a module of its own, so that neither Redis nor etcd is a dependency of pglock.
package migrating
