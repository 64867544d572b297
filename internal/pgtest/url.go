package pgtest

import (
	"context"
	"os"
)

// stdout is the process's own: while an Example runs, os.Stdout is what its
// output is read from.
var stdout = os.Stdout

// URL gives an Example, which has no testing.TB, the connection string of a
// database of its own, made as Database makes one. Main drops it. It panics
// when there is no server to be had.
func URL() string {
	if _, err := shared.get(); err != nil {
		panic(err)
	}
	template, err := shared.migrated()
	if err != nil {
		panic(err)
	}
	name := shared.databases.next()
	ctx, cancel := context.WithTimeout(shared.ctx, databaseTimeout)
	defer cancel()
	if err := shared.create(ctx, name, template); err != nil {
		panic(err)
	}
	return shared.urlOf(name)
}
