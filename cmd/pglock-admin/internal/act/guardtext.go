package act

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
)

// resourceText is a guard's resource, with /<column> if each row has its own.
func resourceText(g GuardView) string {
	return shown.Text(g.Resource + shown.Either(g.Key == "", "", "/<"+g.Key+">"))
}

func coveredText(g GuardView) string {
	return shown.Either(g.Covered == 1, "itself alone",
		fmt.Sprintf("%d tables: itself, its partitions and its children", g.Covered))
}

// addAgain is the command that makes a guard, and that adds what it lacks.
func addAgain(g GuardView, o *cli.Options) string {
	s := fmt.Sprintf("pglock-admin guard add %s --resource %s", shown.Argument(g.Table), shown.Argument(g.Resource))
	if g.Key != "" {
		s += " --key " + shown.Argument(g.Key)
	}
	if !shown.AllPrint(s) {
		return "the same pglock-admin guard add as before"
	}
	return s + o.Same()
}

func drawGuarded(w *cli.Page, o *cli.Options, v GuardedView) {
	state := "is guarded from now on"
	switch {
	case !v.Changed:
		state = "was guarded in this way already"
	case v.mended:
		state = "was guarded already; the missing parts were added"
	}
	fmt.Fprintf(w, "table %s %s\n\n", shown.Text(v.Table), state)
	if v.Part {
		fmt.Fprintln(w, "It is a part of another table, whose guard it is under: pglock-admin guard list"+o.Same())
		return
	}
	one := v.Resource + shown.Either(v.Key == "", "", "/…")
	cli.DrawFields(w, [][2]string{
		{"resource", resourceText(v.GuardView)}, {"covers", coveredText(v.GuardView)},
		{"in Go", shown.Text("fencedstore.Fence{Lease: lease, Resource: " + strconv.Quote(one) + "}")},
		{"in SQL", shown.Text("fence(name, token, grant_id, p_resource => '" + strings.ReplaceAll(one, "'", "''") +
			"')")},
	})
	fmt.Fprint(w, `
Whoever writes to the table must pass the fence of that resource first, in the
same transaction; other writes fail with SQLSTATE LK011. A lock that has the
resource's name needs no Fence.Resource and no p_resource.
`)
	if v.Key != "" {
		fmt.Fprintf(w, "… is the value of column %s; TRUNCATE needs the fence of %s.\n", shown.Text(v.Key),
			shown.Text(v.Resource))
	}
	if v.Covered > 1 {
		fmt.Fprint(w, `A partition that is made later guards its rows by itself. Against TRUNCATE, and
for the rows of a child, run this command again.
Whoever makes a partition needs the role pglock_user.
`)
	}
}

func drawUnguarded(w *cli.Page, o *cli.Options, v GuardView) {
	fmt.Fprintf(w, "table %s is not guarded any more\n\n", shown.Text(v.Table))
	cli.DrawFields(w, [][2]string{{"resource was", resourceText(v)}, {"covered", coveredText(v)}})
	fmt.Fprintf(w, `
Whoever has the rights to write to it may now do so without a fence, even a
holder that has lost its lease. To guard it again as it was:
%s
`, addAgain(v, o))
}

const problemWidth = 36

func drawGuards(w *cli.Page, o *cli.Options, v GuardsView) {
	if len(v.Guards) == 0 {
		fmt.Fprintln(w, "no table is under guard")
		return
	}
	t := cli.Table{Titles: []string{"TABLE", "RESOURCE", "COVERS", "PROBLEM"}, Right: []string{"COVERS"}}
	var gaps []GuardView
	for _, g := range v.Guards {
		problem := "-"
		if g.Problem != "" {
			problem = cli.Wrapped(shown.Text(g.Problem), problemWidth)
			gaps = append(gaps, g)
		}
		t.Rows = append(t.Rows, []string{shown.Text(g.Table), resourceText(g), strconv.Itoa(g.Covered), problem})
	}
	t.Draw(w)
	if len(gaps) > 0 {
		fmt.Fprintf(w, "\nincomplete: %d of %d. The same guard again mends what is its own:\n", len(gaps),
			len(v.Guards))
		for _, g := range gaps {
			fmt.Fprintln(w, addAgain(g, o))
		}
		if slices.ContainsFunc(gaps, func(g GuardView) bool { return strings.Contains(g.Problem, "REVOKE TRIGGER ") }) {
			fmt.Fprint(w, "\nWhere others may make triggers, run the REVOKE first, as the table's owner.\n")
		}
		if slices.ContainsFunc(gaps, func(g GuardView) bool { return strings.Contains(g.Problem, "column ") }) {
			fmt.Fprint(w, "\nWhere a key column is gone or can be a key no more, replace the\nguard: "+
				"guard drop, then guard add with another key.\n")
		}
	}
}
