package explain

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type verifyView struct {
	lockadmin.Verification
	OK bool `json:"ok"` // nothing needs attention
}

func NewVerify(o *cli.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify [NAME]",
		Short: "Check the history for overlaps and for tokens that went back",
		Long: `Check the history of one lock, or of all, together with the present leases. With a NAME, verify compares that lock also
with the subtrees above it, and not with the locks below. It reports

  overlap  two tenures that exclude each other ran at the same time
  limit    more tenures ran at the same time than the limit allows
  token    a later grant has a token that is not greater than all before
  clock    the times of tenures contradict each other, and the history shows that the server's clock was set back
  gaps     tenures that are missing from the history, and why: up to a hundred that should be there, and three of the others

The exit code is 7 if verify finds anything but gaps that the level of the history or pruning explains. docs/history.md
says what each finding means, and what the answer proves: at level losses the history lacks most.

A million tenures take some seconds: mind --timeout. You need the role pglock_admin.`,
		Example: `  pglock-admin verify
  pglock-admin verify nightly-report -o json
  pglock-admin verify --timeout 10m`,
		Annotations: cli.ForOperators,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := cli.OptionalName(cmd, args)
			if err != nil {
				return err
			}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				v, err := admin.Verify(ctx, name)
				if err == nil && name != "" && v.Tenures == 0 && v.GapCount == 0 {
					_, err = admin.Get(ctx, name)
				}
				if err != nil {
					return look.NoSuchLock(o, name, err)
				}
				view := verifyView{v, v.ViolationCount+v.ClockCount+v.MissingUnknown == 0}
				if err := o.Show(cmd, view, func(w *cli.Page) { drawVerify(w, v) }); err != nil || view.OK {
					return err
				}
				return cli.Errorf(cli.ExitAttention, "docs/history.md says what each finding means, and what to do",
					"%s", summary(v))
			})
		},
	}
}

func summary(v lockadmin.Verification) string {
	var found []string
	if v.ViolationCount > 0 {
		found = append(found, cli.Count(v.ViolationCount, "violation"))
	}
	if v.ClockCount > 0 {
		found = append(found, cli.Count(v.ClockCount, "contradiction")+" of a clock that was set back")
	}
	if v.MissingUnknown > 0 {
		found = append(found, cli.Count(v.MissingUnknown, "tenure")+" missing without a known cause")
	}
	if len(found) > 0 {
		return strings.Join(found, ", ")
	}
	return shown.Either(v.Tenures == 0, "no tenure to check", "nothing wrong")
}

func drawVerify(w *cli.Page, v lockadmin.Verification) {
	checked := fmt.Sprintf("%s of %s", cli.Count(v.Tenures, "tenure"), cli.Count(v.Locks, "lock"))
	missing := shown.Either(v.Missing > 0, fmt.Sprintf("%d, which were not checked", v.Missing), "none")
	span := shown.Either(v.From.IsZero(), "", cli.Moment(v.From)+" to "+cli.Moment(v.To))
	if v.SubtreesLeft > 0 {
		checked += fmt.Sprintf("; %s not compared with what lies below: they are too many",
			cli.Count(v.SubtreesLeft, "tenure")+" of subtrees")
	}
	cli.DrawFields(w, [][2]string{{"found", summary(v)}, {"checked", checked}, {"from", span}, {"missing", missing},
		{"history", fmt.Sprintf("level %s, kept for %s", v.Settings.Level, shown.Duration(v.Settings.Keep))}})
	drawFound := func(title string, some []lockadmin.Violation, all int64) {
		if all == 0 {
			return
		}
		fmt.Fprintf(w, "\n%s\n", title)
		for _, one := range some {
			fmt.Fprintf(w, "  %s: %s\n", shown.Name(one.Lock), shown.Lines(one.Detail))
			fmt.Fprintf(w, "    %s\n", tenureText(one.First))
			if one.Second != one.First {
				fmt.Fprintf(w, "    %s\n", tenureText(one.Second))
			}
		}
		if more := all - int64(len(some)); more > 0 {
			fmt.Fprintf(w, "  and %d more\n", more)
		}
	}
	drawFound("VIOLATIONS", v.Violations, v.ViolationCount)
	drawFound("THE SERVER'S CLOCK WAS SET BACK", v.Clock, v.ClockCount)
	drawGaps(w, v)
}

func tenureText(t lockadmin.Tenure) string {
	text := fmt.Sprintf("token %d", t.Token)
	if t.Holder != "" {
		text += " of " + shown.Text(t.Holder)
	}
	if t.Mode != "" {
		text += ", " + look.ModeText(t.Mode, t.Limit, t.Subtree)
	}
	text += ", from " + cli.Exactly(t.GrantedAt)
	if !t.EndedAt.IsZero() {
		text += " to " + cli.Exactly(t.EndedAt)
	}
	if t.Kind != "" {
		text += ", " + string(t.Kind)
	}
	return text
}

var gapTexts = map[lockadmin.GapCause]string{
	lockadmin.GapPruned:  "older than the history was kept",
	lockadmin.GapLevel:   "the level may not have been all when they ended",
	lockadmin.GapUnknown: "UNKNOWN: they should be there",
}

// explained is how many gaps with a known cause are listed: they need nothing.
const explained = 3

func drawGaps(w *cli.Page, v lockadmin.Verification) {
	if v.GapCount == 0 {
		return
	}
	fmt.Fprintf(w, "\nGAPS\n\n")
	switch {
	case v.MissingUnknown == v.Missing:
	case v.Settings.Level == lockadmin.HistoryLosses:
		fmt.Fprintf(w, "At level losses the history has no tenure that its holder ended, so gaps are usual.\n\n")
	default:
		fmt.Fprintf(w, "Tenures from before level all, or older than the history is kept, are missing: that is "+
			"usual.\n\n")
	}
	token := func(t pglock.Token) string { return shown.Either(t == 0, "–", strconv.FormatInt(int64(t), 10)) }
	t := cli.Table{Titles: []string{"LOCK", "SLOT", "MISSING", "AFTER TOKEN", "BEFORE TOKEN", "WHY"},
		Right: []string{"SLOT", "MISSING", "AFTER TOKEN", "BEFORE TOKEN"}}
	shownOf, listed := map[bool]int{}, int64(0)
	for _, g := range v.Gaps {
		unknown := g.Cause == lockadmin.GapUnknown
		if shownOf[unknown]++; !unknown && shownOf[unknown] > explained {
			continue
		}
		listed++
		t.Rows = append(t.Rows, []string{shown.Name(g.Lock), strconv.Itoa(g.Slot), strconv.FormatInt(g.Missing, 10),
			token(g.After), token(g.Before), gapTexts[g.Cause]})
	}
	t.Draw(w)
	if more := v.GapCount - listed; more > 0 {
		fmt.Fprintf(w, "and %s\n", cli.Count(more, "more gap"))
	}
}
