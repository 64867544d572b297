package main

import "slices"

// The SQL is broken in the migration that is made of migrations/schema: it has the same texts, and is what programs embed.
const schema = "migrations/000001_pglock.up.sql"

// The packages whose tests must notice.
const (
	integration = "./integration"
	library     = "./pglock"
	store       = "./fencedstore"
	migrating   = "./migrations"
	command     = "./cmd/pglock-admin"
	protocol    = "./internal/protocol"
	coalescing  = "./internal/coalesce"
	bridging    = "./advisory"
)

// all are the known faults. The first word of a name is the invariant or the trap, where it has one.
var all = slices.Concat(ofGrants, ofTheFirstStatement, ofTokens, ofEnds, ofReleases, ofTheQueue, ofModes, ofTurns, ofFences, ofGuards, ofTrust, ofRequests,
	ofTheBeat, ofClose, ofUpkeep, ofAdvisory)
