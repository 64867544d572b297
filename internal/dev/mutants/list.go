package main

import "slices"

// The SQL is broken in the migration that is generated from migrations/schema: it has the same texts, and programs
// embed it.
const schema = "migrations/000001_pglock.up.sql"

const operation = "fencedstore/reversible/reversible.go"

// The packages whose tests must notice.
const (
	integration = "./integration"
	library     = "./pglock"
	store       = "./fencedstore"
	outside     = "./fencedstore/reversible"
	services    = "./fencedhttp"
	listening   = "./internal/listener"
	drivers     = "./examples/drivers"
	migrating   = "./migrations"
	command     = "./cmd/pglock-admin"
	protocol    = "./internal/protocol"
	coalescing  = "./internal/coalesce"
	electing    = "./leader"
	bridging    = "./advisory"
	looking     = "./cmd/pglock-admin/internal/look"
	explaining  = "./cmd/pglock-admin/internal/explain"
	screens     = "./cmd/pglock-admin/internal/live"
	minding     = "./cmd/pglock-admin/internal/minder"

	lendingPackage = "./internal/lending"
	scheduling     = "./schedulers"

	administration = "./lockadmin"
)

// all are the known faults. A name begins with its invariant or trap, if it has one.
var all = slices.Concat(ofGrants, ofTheFirstStatement, ofTokens, ofEnds, ofReleases, ofTheQueue, ofSubtrees, ofModes,
	ofFences, ofExtensions, ofGuards, ofTrust, ofRequests,
	ofTheBeat, ofTheSchedule, ofConnections, ofClose, ofUpkeep, ofLeaders, ofAdvisory, ofRuns, ofObservers, ofHistory,
	ofLists,
	ofErrors, ofWaiting, ofSuccession, ofSeals, ofDeadlines, ofWhatIsSaid, ofSigns,
	ofOverview)
