// Package drivers shows fenced writes through the common ways to speak to PostgreSQL from Go: GORM, database/sql with
// pgx and with lib/pq, pgxpool, code that sqlc generates, and SQL functions alone. Each file is one way, short enough to
// be copied; the tests run all of them against the same refusals on a real server.
//
// What every way does is the same, in this order: begin a transaction; take the fence before the first read that the
// write depends on; write; seal; commit. The commit checks the lease once more, inside the server, so its error is as
// much a refusal as the fence's and goes through fencedstore.Explain.
//
// An error of COMMIT that tells of a lost connection, with no SQLSTATE or with one of class 08 or 57P, leaves open whether
// the write was committed. Writing again with the same lease is safe, because a grant that has written is refused as stale,
// unless AllowSameToken is given.
//
// This is a module of its own, so that none of these drivers is a dependency of pglock.
package drivers
