package peer

// Two Go libraries for locks on PostgreSQL have no file here, because the module proxy does not serve them:
// cirello.io/pglock and allisson/go-pglock. Nothing is claimed of them. Who has their modules adds them as any other
// peer: a file cirello.go with
//
//	func Cirello() Kind { return Kind{Name: "cirello", Server: Postgres, In: …, Open: openCirello, …} }
//
// in which openCirello makes the client as the library's documentation says, and its name in the list of registry.go. A
// pool for the counted connections is made by pool, and database/sql over it by stdlib.OpenDBFromPool, as in goose.go.
