package act

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type PruneView struct {
	Locks     int64 `json:"locks"`
	Events    int64 `json:"events"`
	Leftovers int64 `json:"leftovers"` // rows that sweep() removes
	Idle      int64 `json:"idle_ms"`
	Older     int64 `json:"events_older_than_ms"`
	Waits     int   `json:"waits"` // how often the table of locks, or the record, was in use
}

func NewPrune(o *cli.Options) *cobra.Command {
	idle, older := lockadmin.DefaultIdle, time.Duration(0)
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove idle locks, old events and leftovers",
		Long: `Remove what nobody needs any more: locks that have been free for longer than --idle and that nobody waits for, events
that are older than the history is kept (pglock-admin record), and leftovers of dead sessions, old requests, old writes
and work done once. Held locks and fences are never removed, and tokens never go back.

While others use the table of locks, or the record of the installation, prune tries again until --timeout. What it has
removed by then stays removed, and the next run goes on from there. docs/operations.md says how long others wait for it.

You need the role pglock_admin.`,
		Example: `  pglock-admin prune
  pglock-admin prune --idle 1w --events 365d -o json
  pglock-admin prune --timeout 10m                   the first time, or when much has piled up`,
		Annotations: cli.ForOperators,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if idle < 0 {
				return cli.UsageErrorf("--idle 1d", "--idle is %s: it must not be negative", shown.Duration(idle))
			}
			if older < 0 {
				return cli.UsageErrorf("--events 90d", "--events is %s: it must not be negative",
					shown.Duration(older))
			}
			opts := lockadmin.PruneOptions{Idle: &idle, OnInUse: func() {
				if o.Output == cli.OutputTable {
					fmt.Fprintf(cmd.ErrOrStderr(), "pglock-admin: the table of locks is in use, or the record of the "+
						"installation; waiting up to --timeout (%s) for whoever writes to it\n",
						shown.Duration(o.Timeout))
				}
			}}
			if cmd.Flags().Changed("events") {
				opts.EventAge = &older
			}
			return o.WithAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				done, err := admin.Prune(ctx, opts)
				view := PruneView{Locks: done.Locks, Events: done.Events, Leftovers: done.Leftovers, Waits: done.Waits,
					Idle: idle.Milliseconds(), Older: done.EventAge.Milliseconds()}
				if err != nil {
					return explainPrune(ctx, o, view, err)
				}
				return o.Changed(cmd, view, func(w *cli.Page) { drawPruned(w, view, idle, done.EventAge) })
			})
		},
	}
	cli.DurationVar(cmd.Flags(), &idle, "idle", "remove locks that have been free for longer than this `duration`")
	cli.DurationVar(cmd.Flags(), &older, "events", "remove events older than this `duration` (default: as long as the "+
		"history is kept)")
	return cmd
}

// explainPrune says what prune has removed before the error, and gives advice.
func explainPrune(ctx context.Context, o *cli.Options, v PruneView, err error) error {
	// --timeout ended a statement, rather than an administrator
	late := cli.StateOf(err) == "57014" && pause.OutOfTime(ctx) || errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case errors.Is(err, lockadmin.ErrInUse):
		return cli.Errorf(cli.ExitFailure, "a quieter time, or a longer --timeout. prune waits for VACUUM, and for "+
			"open transactions that have acquired,\n  renewed or released a lock, or advanced the epoch. Who they "+
			"are:\n"+whoWrites(o), "the table of locks is in use, or the record of the installation; %s, after %s",
			v.removed(), cli.Count(int64(v.Waits), "wait"))
	case late:
		return cli.Errorf(cli.ExitFailure, cli.Again+", which goes on from there, or a longer --timeout",
			"%s (--timeout) was too short to remove everything; %s", shown.Duration(o.Timeout), v.removed())
	case ctx.Err() != nil: // interrupted
		return cli.Errorf(cli.ExitInterrupted, cli.Again+", which goes on from there", "interrupted; %s", v.removed())
	case v.Locks+v.Leftovers+v.Events > 0:
		code, hint := o.Advice(ctx, err)
		return &cli.Advised{Code: code, Text: v.removed(), Err: err, Hint: hint}
	}
	return err
}

// whoWrites is the SQL that finds who keeps in use the table of locks, or the record of the installation: of this also
// who has only locked it.
func whoWrites(o *cli.Options) string {
	table := func(name string) string {
		return "'" + strings.ReplaceAll(pgx.Identifier{o.Schema, name}.Sanitize(), "'", "''") + "'::regclass"
	}
	return whoUses("(l.relation = " + table("locks") + " AND l.mode <> 'RowShareLock' OR l.relation = " +
		table("installation") + ")\n  AND l.granted AND l.mode <> 'AccessShareLock'")
}

// whoUses is the SQL that shows, for people, who has some locks of this database, or waits for them.
func whoUses(locks string) string {
	return "  SELECT l.pid, a.usename, a.application_name, a.state, a.xact_start, l.mode, a.query,\n" +
		"  " + prepared + "\n  FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)\n" +
		"  WHERE " + inThisDatabase + "\n  AND " + locks
}

// Parts of a query of pg_locks l.
const (
	inThisDatabase = "l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
	// prepared is the prepared transaction that has the lock, if no process has.
	prepared = "(SELECT p.gid FROM pg_prepared_xacts p JOIN pg_locks t ON t.transactionid = p.transaction " +
		"WHERE t.pid IS NULL AND l.pid IS NULL AND t.virtualtransaction = l.virtualtransaction) AS prepared"
)

func (v PruneView) removed() string {
	return fmt.Sprintf("removed %s, %s and %s", cli.Count(v.Locks, "lock"), cli.Count(v.Leftovers, "leftover"),
		cli.Count(v.Events, "event"))
}

func drawPruned(w *cli.Page, v PruneView, idle, older time.Duration) {
	fmt.Fprintln(w, "removed")
	cli.DrawFields(w, [][2]string{
		{"  locks", fmt.Sprintf("%d, free for longer than %s", v.Locks, shown.Age(idle))},
		{"  events", fmt.Sprintf("%d, older than %s", v.Events, shown.Age(older))},
		{"  leftovers", fmt.Sprintf("%d, of dead sessions, old requests and work done once", v.Leftovers)},
	})
}
