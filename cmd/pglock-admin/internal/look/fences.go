package look

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type fencesView struct {
	Fences []lockadmin.FenceInfo `json:"fences"`
	More   bool                  `json:"more"` // --limit left some out
}

func NewFences(o *cli.Options) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "fences [NAME]",
		Short: "Show which token has written to which resource",
		Long: `Show the fences. Each has a resource, the highest fencing token that has written to it, and the lock of that token.
The fence refuses a write with a lower token. With a NAME the command shows the fences of that lock, and the fence of
the resource with the same name.`,
		Example: `  pglock-admin fences nightly-report
  pglock-admin fences --order age --older 30d      what nobody has written to for a month`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := flags.read(cmd, args)
			if err != nil {
				return err
			}
			limit, page := flags.ends()
			q := lockadmin.FencesQuery{Lock: name, Prefix: flags.prefix, Match: flags.match, Older: flags.older,
				Order: lockadmin.Order(flags.order), After: flags.after, Limit: limit, PageSize: page}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				fences, more, err := lists.First(flags.limit, admin.Fences(ctx, q))
				if err != nil {
					return err
				}
				view := fencesView{Fences: fences, More: more}
				return o.Show(cmd, view, func(w *cli.Page) { drawFences(w, view, name, flags) })
			})
		},
	}
	flags.add(o, cmd, map[string]string{
		"prefix": "show only resources whose names begin with this `text`",
		"match":  "show only fences with this `text` in the name of resource or lock",
		"older":  "show only fences that nobody has passed for this `duration`",
		"after":  "begin after the resource with this `name`",
	}, lockadmin.OrderName, lockadmin.OrderAge)
	return cmd
}

func drawFences(w *cli.Page, view fencesView, name string, flags listFlags) {
	nothing := shown.Either(name == "", "nobody has passed a fence", "no fence belongs to lock "+shown.Name(name))
	last := ""
	for _, f := range view.Fences {
		last = f.Resource
	}
	flags.draw(w, fenceTable(view.Fences), "fence", nothing, view.More, last)
}

func fenceTable(fences []lockadmin.FenceInfo) cli.Table {
	t := cli.Table{Titles: []string{"FENCE OF", "LAST TOKEN", "LOCK", "ADVANCED"}, Right: []string{"LAST TOKEN"}}
	for _, f := range fences {
		t.Rows = append(t.Rows, []string{shown.Name(f.Resource), strconv.FormatInt(int64(f.LastToken), 10),
			shown.Name(f.Lock), cli.Moment(f.AdvancedAt)})
	}
	return t
}
