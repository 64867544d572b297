package explain

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// overviewView is an overview in JSON, with the commands as they are pasted.
type overviewView struct {
	lockadmin.Overview
	Locks []summaryView `json:"locks"`
}

type summaryView struct {
	lockadmin.Summary
	Next whyStep `json:"next,omitzero"`
	Why  string  `json:"why,omitempty"` // the command that says more
}

// overview is why without a name.
func overview(o *cli.Options, cmd *cobra.Command, limit int) error {
	return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		all, err := admin.Overview(ctx, limit)
		if err != nil {
			return err
		}
		view := overviewView{all, []summaryView{}}
		for _, s := range all.Locks {
			v := summaryView{Summary: s}
			if s.Next != (lockadmin.Step{}) {
				v.Next = pasteableStep(o, s.Next)
			}
			if s.Lock != "" {
				v.Why = command(o, lockadmin.Step{Run: lockadmin.RunAdmin, Command: "why " + shown.Name(s.Lock)})
			}
			view.Locks = append(view.Locks, v)
		}
		return o.Show(cmd, view, func(w *cli.Page) { drawOverview(w, o, view, limit) })
	})
}

func drawOverview(w *cli.Page, o *cli.Options, view overviewView, limit int) {
	if len(view.Locks) > 0 {
		t := cli.Table{Titles: []string{"VERDICT", "LOCK", "FOR", "WAITING", "WHAT", "WHO", "NEXT"},
			Right: []string{"FOR", "WAITING"}, Spare: []string{"NEXT", "WAITING"}}
		for _, s := range view.Locks {
			t.Rows = append(t.Rows, []string{cli.Mark(s.Severity),
				shown.Either(s.Lock == "", "(all)", shown.Name(s.Lock)),
				shown.Either(s.Since.IsZero(), "-", shown.Age(view.At.Sub(s.Since).Round(time.Millisecond))),
				strconv.Itoa(s.Waiting), s.Text, shown.Either(s.Who == "", "", shown.Text(s.Who)),
				cmp.Or(s.Next.Paste, s.Why)})
		}
		t.Draw(w)
		first := view.Locks[0]
		todo := first.Why
		switch next := first.Next; {
		case todo == "":
			todo = strings.TrimSpace(shown.Line(next.Do) + " " + next.Paste)
		case next.Run == lockadmin.RunAdmin && strings.HasPrefix(next.Command, "why "): // the cause is there
			todo = next.Paste
		}
		fmt.Fprintf(w, "\nWhat to do: %s\n", todo)
		if o.LeavesOut(first.Why + first.Next.Paste) {
			fmt.Fprintf(w, "The commands leave out the password: %s.\n", cli.PasswordFirst)
		}
	}
	for _, line := range overviewRest(view.Overview, limit) {
		fmt.Fprintln(w, line)
	}
	if view.Busy > 0 {
		fmt.Fprintf(w, "Who has waited longest: pglock-admin waiters --order age --limit 3%s\n", o.Same())
	}
}

// overviewRest tells of the locks that are well, and of those that nobody has looked at.
func overviewRest(all lockadmin.Overview, limit int) (lines []string) {
	var unseen []string
	for _, u := range all.Unseen {
		unseen = append(unseen, "Not seen: "+shown.Line(u))
	}
	if len(all.Locks) > 0 && all.Locks[0].Lock == "" && all.Known == 0 { // nobody has looked further
		return unseen
	}
	counts := fmt.Sprintf("%s in use, %d held", cli.Count(int64(all.Known), "lock"), all.Held)
	well, others := "All is well", "All others are well"
	if all.Known > 1000 { // Overview counts no further, and rows at that; and does not look at all
		counts = "more than 1,000 rows of locks, held and free"
		well, others = "No trouble was found", "No other trouble was found"
	}
	if all.Standby {
		return []string{fmt.Sprintf("The primary alone knows how the locks are. Here: %s.", counts)}
	}
	ill := len(all.Locks) > 0 && all.Known <= 1000 && all.More == 0
	if ill && all.Known > 0 {
		counts += shown.Either(all.Well == 0, ", none well", fmt.Sprintf(", %d well", all.Well))
	}
	if all.Busy > 0 {
		counts += fmt.Sprintf(", %d %sBUSY (somebody waits; the holder lives, or its lease ends in a moment)", all.Busy,
			shown.Either(ill, "of them ", ""))
	}
	switch {
	case all.More > 0:
		lines = append(lines, fmt.Sprintf("%d more may not be well: --limit %d and a longer --timeout look at "+
			"them too. Here: %s.", all.More, min(1000, limit+all.More), counts))
	case ill && all.Well == 0:
		lines = append(lines, fmt.Sprintf("Here: %s.", counts))
	case len(all.Locks) > 0:
		lines = append(lines, fmt.Sprintf("%s. Here: %s.", others, counts))
	default:
		lines = append(lines, fmt.Sprintf("OK  %s. Here: %s.", well, counts))
	}
	lines = append(lines, unseen...)
	if all.Partly {
		lines = append(lines, "So much waits here, or is silent, that some was not looked at.")
	}
	return lines
}
