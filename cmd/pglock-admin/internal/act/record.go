package act

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

func NewRecord(o *cli.Options) *cobra.Command {
	var level, by string
	keep := time.Duration(0)
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Show or set what the history records, and for how long",
		Long: `Show which tenures the history has and for how long it is kept. With --level or --keep, set it for every program that
uses these locks.

  losses  leases that ended without their holder: taken over, broken, or expired and pruned. This is the default
  all     also releases and hand-overs: every tenure. Each release then writes one more row

While others use the table of locks, a change of the level tries again until --timeout. Programs that hold a lock, and
prune, remove events older than --keep. docs/history.md says what the levels cost. You need the role pglock_admin.`,
		Example: `  pglock-admin record
  pglock-admin record --level all --keep 30d`,
		Annotations: cli.ForOperators,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("keep") && (keep < lockadmin.MinKeep || keep > lockadmin.MaxKeep) {
				return cli.UsageErrorf("--keep 30d", "--keep is %s: it must be from %s to %s", shown.Duration(keep),
					shown.Duration(lockadmin.MinKeep), shown.Duration(lockadmin.MaxKeep))
			}
			if given := cmd.Flags().Changed; given("by") && !given("level") && !given("keep") {
				return cli.UsageErrorf("--level or --keep as well, or no --by", "--by does not go without --level or "+
					"--keep: nothing would be set")
			}
			return o.WithAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				if level == "" && keep == 0 {
					s, err := admin.HistorySettings(ctx)
					if err != nil {
						return err
					}
					return o.Show(cmd, s, func(w *cli.Page) { drawRecord(w, s) })
				}
				s, err := admin.SetHistory(ctx, lockadmin.HistoryChange{Level: lockadmin.HistoryLevel(level),
					Keep: keep, Actor: cmp.Or(by, cli.Actor())})
				if errors.Is(err, lockadmin.ErrInUse) {
					return cli.Errorf(cli.ExitFailure, "a quieter time, or a longer --timeout. Who they are:\n"+
						whoWrites(o), "nothing was changed within %s (--timeout): open transactions have "+
						"written to the table of locks, or to the record of the installation",
						shown.Duration(o.Timeout))
				}
				if err != nil {
					return err
				}
				return o.Changed(cmd, s, func(w *cli.Page) { drawRecord(w, s) })
			})
		},
	}
	cli.WordVar(cmd, &level, "level", "`level` to set: ", string(lockadmin.HistoryLosses), string(lockadmin.HistoryAll))
	cli.DurationVar(cmd.Flags(), &keep, "keep", "`duration` for which to keep the history, from 1d to 36525d; 90d at "+
		"first")
	cmd.Flags().StringVar(&by, "by", "", "`name` of whoever does it, for the history (default user@host)")
	return cmd
}

func drawRecord(w *cli.Page, s lockadmin.HistorySettings) {
	level, since := "losses: leases that were taken over or broken, or that expired and were pruned", ""
	if s.Level == lockadmin.HistoryAll {
		level, since = "all: every tenure", cli.Moment(s.Since)
	}
	cli.DrawFields(w, [][2]string{{"level", level}, {"since", since}, {"kept for", shown.Duration(s.Keep)},
		{"pruned up to", cli.Moment(s.Pruned)}})
}
