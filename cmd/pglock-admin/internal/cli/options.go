package cli

import (
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// Options has the flags of every command.
type Options struct {
	DatabaseURL string
	Schema      string
	Output      string
	Timeout     time.Duration

	Getenv  func(string) string
	Started bool               // the command line is valid: a later error is not one of usage
	Config  *pgxpool.Config    // of a command that connects to a database
	Pool    *pgxpool.Pool      // of such a command, while it runs
	At      *Target            // the server and database
	again   string             // the command and its names
	Role    string             // that the command needs; empty: pglock_user
	Standby *lockadmin.Standby // of a command that only reads; nil: the server is none
}

// DefaultSchema is the schema where no flag names one.
const DefaultSchema = "pglock"

// Check refuses what no command can work with, or not this one.
func (o *Options) Check(cmd *cobra.Command) error {
	switch {
	case o.Output == OutputTree && cmd.Annotations["tree"] != "":
	case !slices.Contains(Outputs, o.Output):
		value := o.Output
		o.Output = OutputTable
		return UsageErrorf("-o table, -o json or -o yaml", "--output is %q: it must be table, json or yaml", value)
	}
	if o.Timeout <= 0 {
		return UsageErrorf("--timeout 10s", "--timeout is %s: it must be greater than 0", shown.Duration(o.Timeout))
	}
	return nil
}
