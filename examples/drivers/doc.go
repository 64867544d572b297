// Package drivers shows locks and fenced writes through the common ways to speak to PostgreSQL from Go. Each file is
// one way, short enough to be copied; the tests run all of them against the same refusals on a real server.
//
// LibPQ, PGX, GORM, Ent, SQLC and Bun are whole programs for database/sql and the libraries on top of it: a client of
// pglock.Open, a write under the fence, and a key that is done once. docs/drivers.md shows them.
//
// WritePool, WriteFunc, WriteQueries and GuardQueries are for pgxpool. Those that guard a transaction of the
// application's own do this, in this order: begin a transaction; take the fence before the first read that the write
// depends on; write; seal; commit. The commit checks the lease once more, inside the server, so its error is as much a
// refusal as the fence's and goes through Guarded.Explain.
//
// An error of such a COMMIT that tells of a lost connection, with no SQLSTATE, with one of class 08 or 57P, or with
// severity FATAL or PANIC, leaves open whether the write was committed. Writing again with the same lease is safe,
// because a grant that has written is refused as stale, unless its Fence has SameToken.
//
// Grant, in plainsql.go, uses none of pglock's Go code, as a program in another language would not.
//
// This is a module of its own, so that none of these drivers is a dependency of pglock.
package drivers

//go:generate go run github.com/sqlc-dev/sqlc/cmd/sqlc@v1.31.1 generate -f accounts/sqlc.yaml
