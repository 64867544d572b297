package main

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/lockadmin"
)

// options has the flags of every command.
type options struct {
	databaseURL string
	schema      string
	output      string
	timeout     time.Duration

	getenv  func(string) string
	started bool               // the command line is valid: a later error is not one of usage
	config  *pgxpool.Config    // of a command that connects to a database
	at      *target            // the server and database
	role    string             // that the command needs; empty: pglock_user
	standby *lockadmin.Standby // of a command that only reads; nil: the server is none
}

const defaultSchema = "pglock"

// check refuses what no command can work with.
func (o *options) check() error {
	switch {
	case !slices.Contains(outputs, o.output):
		value := o.output
		o.output = outputTable
		return usageErrorf("-o table, -o json or -o yaml", "--output is %q: it must be table, json or yaml", value)
	case o.timeout <= 0:
		return usageErrorf("--timeout 10s", "--timeout is %s: it must be greater than 0", durationText(o.timeout))
	}
	return nil
}
