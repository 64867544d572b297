package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/lockadmin"
)

func newRecord(o *options) *cobra.Command {
	var level, by string
	keep := time.Duration(0)
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Show or set what the history records, and for how long",
		Long: `Show which tenures the history has and for how long it is kept. With --level or --keep, set it for every program that
uses these locks.

  losses  leases that ended without their holder: taken over, broken, or expired and pruned. This
          is the default, and costs nothing where locks are acquired and released.
  all     also releases and hand-overs: every tenure. Each release then writes one more row.

A change of the level needs the table of locks for a moment. While others use the table, record tries again until
--timeout; none of them waits for longer than a tenth of a second.

Events older than --keep are removed a thousand at a time: by every program that holds a lock, about once a minute, and
by pglock-admin prune, which removes all of them.

You need the role pglock_admin.`,
		Example: `  pglock-admin record
  pglock-admin record --level all --keep 30d`,
		Args:        noArguments,
		Annotations: forOperators,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts := []lockadmin.HistoryOption{lockadmin.WithChanger(actor())}
			if by != "" {
				opts[0] = lockadmin.WithChanger(by)
			}
			if cmd.Flags().Changed("level") {
				if l := lockadmin.HistoryLevel(level); l != lockadmin.HistoryLosses && l != lockadmin.HistoryAll {
					return usageErrorf("--level all", "--level is %s: it must be losses or all",
						shellQuote(escapeText(level)))
				}
				opts = append(opts, lockadmin.WithLevel(lockadmin.HistoryLevel(level)))
			}
			if cmd.Flags().Changed("keep") {
				if keep < lockadmin.MinKeep || keep > lockadmin.MaxKeep {
					return usageErrorf("--keep 30d", "--keep is %s: it must be from %s to %s", durationText(keep),
						durationText(lockadmin.MinKeep), durationText(lockadmin.MaxKeep))
				}
				opts = append(opts, lockadmin.WithKeep(keep))
			}
			return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				if len(opts) == 1 {
					s, err := admin.HistorySettings(ctx)
					if err != nil {
						return err
					}
					return o.show(cmd, recordViewOf(s), func(w *page) { drawRecord(w, s) })
				}
				s, err := admin.SetHistory(ctx, opts...)
				if errors.Is(err, lockadmin.ErrInUse) {
					return &advised{code: exitFailure,
						text: fmt.Sprintf("nothing was changed within %s (--timeout): open transactions have written "+
							"to the table of locks", durationText(o.timeout)),
						hint: "a quieter time, or a longer --timeout. Who they are:\n" + o.writersOfLocks()}
				}
				if err != nil {
					return err
				}
				return o.changed(cmd, recordViewOf(s), func(w *page) { drawRecord(w, s) })
			})
		},
	}
	cmd.Flags().StringVar(&level, "level", "", "`level` to set: losses or all")
	durationVar(cmd.Flags(), &keep, "keep", "`duration` for which to keep the history, from 1d to 36525d; 90d at first")
	cmd.Flags().StringVar(&by, "by", "", "`name` of whoever does it, for the history (default user@host)")
	return cmd
}

func drawRecord(w *page, s lockadmin.HistorySettings) {
	level, since := "losses: leases that were taken over or broken, or that expired and were pruned", ""
	if s.Level == lockadmin.HistoryAll {
		level, since = "all: every tenure", moment(s.Since)
	}
	drawFields(w, [][2]string{{"level", level}, {"since", since}, {"kept for", durationText(s.Keep)},
		{"pruned up to", moment(s.Pruned)}})
}
