package look

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type historyView struct {
	Events  []lockadmin.HistoryEntry  `json:"events"` // newest first
	More    bool                      `json:"more"`   // --limit left some out
	History lockadmin.HistorySettings `json:"history"`
}

func NewHistory(o *cli.Options) *cobra.Command {
	var q lockadmin.HistoryQuery
	var since, until time.Duration
	var kinds []string
	cmd := &cobra.Command{
		Use:   "history [NAME]",
		Short: "Show who held a lock, from when until when, and how it ended",
		Long: `Show the history of one lock, or of all. A line is a tenure: the time for which somebody held a lease. The line that the
server wrote last comes first. The present holder has none yet: see pglock-admin show.

  takeover  the lease ran out, and the lock was granted to the next
  break     an operator ended the lease
  expired   the lease ran out, and prune removed the lock
  release   the holder ended the lease
  handover  the holder ended the lease and chose the next
  overlap   the lock was granted before its lease was over: must never happen

The history has release, handover and overlap only at level all: pglock-admin record. Other lines are what operators
did: bypass (of a guard), epoch and level. docs/history.md says more. You need the role pglock_admin.`,
		Example: `  pglock-admin history nightly-report
  pglock-admin history --kind takeover,break --since 1h
  pglock-admin history nightly-report --before 4711 -o json`,
		Annotations: cli.ForOperators,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := cli.OptionalName(cmd, args)
			if err != nil {
				return err
			}
			if err := readHistoryFlags(cmd, &q, since, until, kinds); err != nil {
				return err
			}
			limit := q.Limit
			q.Lock, q.Limit, q.PageSize = name, limit+1, limit+1
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				events, more, err := lists.First(limit, admin.History(ctx, q))
				if err != nil {
					return err
				}
				settings, err := admin.HistorySettings(ctx)
				if err != nil {
					return err
				}
				view := historyView{Events: events, More: more, History: settings}
				return o.Show(cmd, view, func(w *cli.Page) { drawHistory(w, o, view, name) })
			})
		},
	}
	cmd.Flags().IntVar(&q.Limit, "limit", 100, "show at most this `number`")
	cmd.Flags().Int64Var(&q.Before, "before", 0, "continue after the event with this `ID`, toward older ones")
	cmd.Flags().StringSliceVar(&kinds, "kind", nil, "show only these `kinds`, such as takeover,break")
	cli.DurationVar(cmd.Flags(), &since, "since", "show only what happened within this `duration`")
	cli.DurationVar(cmd.Flags(), &until, "until", "show only what happened longer ago than this `duration`")
	return cmd
}

func readHistoryFlags(cmd *cobra.Command, q *lockadmin.HistoryQuery, since, until time.Duration, kinds []string) error {
	if q.Limit < 1 || q.Limit > 9999 {
		return cli.UsageErrorf("--limit 100", "--limit is %d: it must be from 1 to 9999", q.Limit)
	}
	if cmd.Flags().Changed("before") && q.Before < 1 {
		return cli.UsageErrorf("--before 4711", "--before is %d: it must be the ID of an event", q.Before)
	}
	for _, ago := range []struct {
		flag string
		d    time.Duration
		to   *time.Time
	}{{"since", since, &q.Since}, {"until", until, &q.Until}} {
		if !cmd.Flags().Changed(ago.flag) {
			continue
		}
		if ago.d < 0 {
			return cli.UsageErrorf("--"+ago.flag+" 1h", "--%s is %s: it must not be negative", ago.flag,
				shown.Duration(ago.d))
		}
		*ago.to = time.Now().Add(-ago.d)
	}
	for _, k := range kinds {
		if !slices.Contains(lockadmin.EventKinds(), lockadmin.EventKind(k)) {
			return cli.UsageErrorf("--kind takeover,break", "--kind is %s: it must be of %s",
				shown.Argument(shown.Lines(k)), strings.Join(shown.Words(lockadmin.EventKinds()), ", "))
		}
		q.Kinds = append(q.Kinds, lockadmin.EventKind(k))
	}
	return nil
}

func drawHistory(w *cli.Page, o *cli.Options, view historyView, name string) {
	if len(view.Events) == 0 {
		fmt.Fprintln(w, "the history has no such entry")
	} else {
		t := cli.Table{Titles: []string{"ENDED", "EVENT", "LOCK", "TOKEN", "HELD-FOR", "HOLDER", "WHAT"},
			Right: []string{"TOKEN", "HELD-FOR"}}
		for _, v := range view.Events {
			what := note(v)
			if v.Subtree { // it covered all names below, too
				what = strings.TrimSuffix("subtree; "+what, "; ")
			}
			t.Rows = append(t.Rows, []string{cli.Moment(cmp.Or(v.EndedAt, v.At)), shown.Text(string(v.Kind)),
				shown.Either(v.Lock != "", shown.Name(v.Lock), ""),
				shown.Either(v.Token != 0, strconv.FormatInt(int64(v.Token), 10), ""),
				shown.Either(v.GrantedAt.IsZero(), "", shown.Age(v.HeldFor())),
				shown.Either(v.Holder != "", shown.Text(v.Holder), ""), what})
		}
		if name != "" {
			t.Without("LOCK")
		}
		t.Draw(w)
	}
	if view.More {
		fmt.Fprintf(w, "\nthere is more: --before %d, or a greater --limit\n", view.Events[len(view.Events)-1].ID)
	}
	if view.History.Level != lockadmin.HistoryAll && o.Standby == nil {
		fmt.Fprintf(w, "\nreleases and hand-overs are not recorded; to have them too: pglock-admin record --level "+
			"all%s\n", o.Same())
	}
}

// note says of an event what its other columns do not.
func note(e lockadmin.HistoryEntry) string {
	switch e.Kind {
	case lockadmin.EventTakeover, lockadmin.EventHandover:
		return fmt.Sprintf("next: %s, token %d", shown.Text(e.Actor), e.NewToken)
	case lockadmin.EventBreak:
		return fmt.Sprintf("by %s (%s): %s", shown.Text(e.Actor), shown.Text(e.DBUser), shown.Text(e.Reason))
	case lockadmin.EventExpired, lockadmin.EventRelease:
		return ""
	}
	return Tell(e)
}
