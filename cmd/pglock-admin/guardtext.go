package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// resourceText is a guard's resource, with /<column> if each row has its own.
func resourceText(g guardView) string {
	if g.Key == "" {
		return printable(g.Resource)
	}
	return printable(g.Resource + "/<" + g.Key + ">")
}

func coveredText(g guardView) string {
	if g.Covered == 1 {
		return "itself alone"
	}
	return fmt.Sprintf("%d tables: itself, its partitions and its children", g.Covered)
}

// addAgain is the command that makes a guard, and that adds what it lacks.
func addAgain(g guardView, o *options) string {
	s := fmt.Sprintf("pglock-admin guard add %s --resource %s", shellQuote(g.Table), shellQuote(g.Resource))
	if g.Key != "" {
		s += " --key " + shellQuote(g.Key)
	}
	if !allPrint(s) {
		return "the same pglock-admin guard add as before"
	}
	return s + o.same()
}

func drawGuarded(w *page, o *options, v guardedView) {
	state := "is guarded from now on"
	switch {
	case !v.Changed:
		state = "was guarded in this way already"
	case v.mended:
		state = "was guarded already; the missing parts were added"
	}
	fmt.Fprintf(w, "table %s %s\n\n", printable(v.Table), state)
	if v.Part {
		fmt.Fprintln(w, "It is a part of another table, whose guard it is under: pglock-admin guard list"+o.same())
		return
	}
	one := v.Resource
	if v.Key != "" {
		one += "/…"
	}
	drawFields(w, [][2]string{
		{"resource", resourceText(v.guardView)}, {"covers", coveredText(v.guardView)},
		{"in Go", printable("fencedstore.WithResource(" + strconv.Quote(one) + ")")},
		{"in SQL", printable("fence(name, token, grant_id, p_resource => '" + strings.ReplaceAll(one, "'", "''") +
			"')")},
	})
	fmt.Fprint(w, `
Whoever writes to the table must pass the fence of that resource first, in the
same transaction; other writes fail with SQLSTATE LK011. A lock that has the
resource's name needs no WithResource and no p_resource.
`)
	if v.Key != "" {
		fmt.Fprintf(w, "… is the value of column %s; TRUNCATE needs the fence of %s.\n", printable(v.Key),
			printable(v.Resource))
	}
	if v.Covered > 1 {
		fmt.Fprint(w, `A partition that is made later guards its rows by itself. Against TRUNCATE, and
for the rows of a child, run this command again.
`)
	}
}

func drawUnguarded(w *page, o *options, v guardView) {
	fmt.Fprintf(w, "table %s is not guarded any more\n\n", printable(v.Table))
	drawFields(w, [][2]string{{"resource was", resourceText(v)}, {"covered", coveredText(v)}})
	fmt.Fprintf(w, `
Whoever has the rights to write to it may now do so without a fence, even a
holder that has lost its lease. To guard it again as it was:
%s
`, addAgain(v, o))
}

// problemWidth is the width to which a problem is wrapped.
const problemWidth = 36

func drawGuards(w *page, o *options, v guardsView) {
	if len(v.Guards) == 0 {
		fmt.Fprintln(w, "no table is under guard")
		return
	}
	var rows [][]string
	var gaps []guardView
	for _, g := range v.Guards {
		problem := "-"
		if g.Problem != "" {
			problem = wrapped(printable(g.Problem), problemWidth)
			gaps = append(gaps, g)
		}
		rows = append(rows, []string{printable(g.Table), resourceText(g), strconv.Itoa(g.Covered), problem})
	}
	drawTable(w, []string{"TABLE", "RESOURCE", "COVERS", "PROBLEM"}, rows, 2)
	if len(gaps) > 0 {
		fmt.Fprintf(w, "\nincomplete: %d of %d. The same guard again mends what is its own:\n", len(gaps),
			len(v.Guards))
		for _, g := range gaps {
			fmt.Fprintln(w, addAgain(g, o))
		}
		if slices.ContainsFunc(gaps, func(g guardView) bool { return strings.Contains(g.Problem, "REVOKE TRIGGER ") }) {
			fmt.Fprint(w, "\nWhere others may make triggers, run the REVOKE first, as the table's owner.\n")
		}
		if slices.ContainsFunc(gaps, func(g guardView) bool { return strings.Contains(g.Problem, "column ") }) {
			fmt.Fprint(w, "\nWhere a key column is gone or has a type that cannot be a key, replace the\nguard: "+
				"guard drop, then guard add.\n")
		}
	}
}
