package lockadmin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// Places tells where else on the server pglock is in use: databases to which clients of pglock are connected, and other
// schemas of this database that have its functions. It runs none of them. Where somebody may have made them who cannot
// act as this user, or as the owner of the schema of WithSchema, anyway, the place has an Owner and comes last.
// Connections count that have the application_name which pglock gives them, if no connection to this database has the
// same. It needs no schema of pglock, and no Admin.
//
// Errors: pglock.ErrInvalid, or the failure to connect.
func Places(ctx context.Context, pool *pgxpool.Pool, opts ...Option) ([]Elsewhere, error) {
	c, err := newConfig(pool, opts)
	if err != nil {
		return nil, err
	}
	a := Admin{pool: pool, schema: c.schema}
	var places []Elsewhere
	err = a.read(ctx, func(r *reader) {
		places = rows(r, protocol.Elsewhere, []any{c.schema}, scanElsewhere)
	})
	return places, failed(ctx, err, "find places")
}

func scanElsewhere(r pgx.Rows) (e Elsewhere, err error) {
	err = r.Scan(&e.Database, null(&e.Schema), &e.Connections, &e.Applications, null(&e.Owner))
	return e, err
}

// How much is searched for similar names.
const (
	namesRead    = 1000 // from the first on
	namesAlike   = 200  // that begin in the same way
	namesShown   = 5
	longestAlike = 128 // bytes of a name that is compared letter by letter
)

// readNeighbours finds similar names, and other places where the lock could be.
func (l *look) readNeighbours(r *reader, a *Admin) {
	var found []string
	find := func(sql string, args ...any) {
		for _, i := range rows(r, sql, args, scanLock) {
			found = append(found, i.Name)
		}
	}
	list := func(prefix string, limit int) {
		find(a.db.Queries.List, prefix, true, "", limit, "", "", nil, "", false, nil, "name", false)
	}
	for _, v := range variants(l.Lock) {
		find(a.db.Queries.Get, v)
	}
	list("", namesRead)
	l.names = len(slices.Compact(slices.Clone(found)))
	if l.names >= namesRead {
		for _, n := range []int{2, 4} {
			if prefix := []rune(l.Lock); len(prefix) >= n {
				list(string(prefix[:len(prefix)-len(prefix)/n]), namesAlike)
			}
		}
	}
	l.Similar = similar(l.Lock, found)
	for _, p := range rows(r, protocol.Elsewhere, []any{a.schema}, scanElsewhere) {
		if p.Owner != "" {
			continue
		}
		if p.Schema != "" {
			p.Holds = l.isIn(r, p.Schema)
		}
		l.Elsewhere = append(l.Elsewhere, p)
	}
	slices.SortStableFunc(l.Elsewhere, func(a, b Elsewhere) int {
		return cmp.Compare(boolean(b.Holds), boolean(a.Holds))
	})
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

// isIn reports whether another schema has the lock, if this user may know.
func (l *look) isIn(r *reader, schema string) (is bool) {
	_ = r.apart(func(r *reader) {
		is = len(rows(r, protocol.NewQueries(schema).Get, []any{l.Lock}, scanLock)) > 0
	})
	return is
}

// variants are other ways to write a name.
func variants(name string) (all []string) {
	for _, v := range []string{strings.ToLower(name), strings.ToUpper(name), strings.TrimSpace(name),
		strings.ReplaceAll(name, "_", "-"),
		strings.ReplaceAll(name, "-", "_"), strings.ReplaceAll(name, ":", "/"), strings.ReplaceAll(name, ".", "/"),
		strings.Trim(name, "/")} {
		if v != "" && v != name && len(v) <= pglock.MaxNameBytes && !slices.Contains(all, v) {
			all = append(all, v)
		}
	}
	return all
}

// similar chooses the names that somebody may have meant, the likeliest first.
func similar(name string, names []string) []string {
	apart := make(map[string]int)
	folded := []rune(fold(name))
	for _, n := range names {
		f := []rune(fold(n))
		most := max(2, len(folded)/3)
		switch {
		case n == name:
		case len(folded) >= 4 && strings.Contains(string(f), string(folded)), len(f) >= 4 &&
			strings.Contains(string(folded), string(f)):
			apart[n] = 1 + abs(len(f)-len(folded))/4
		case abs(len(f)-len(folded)) <= most && len(n) <= longestAlike && len(name) <= longestAlike:
			if d := distance(folded, f); d <= most {
				apart[n] = d
			}
		}
	}
	likely := slices.SortedFunc(maps.Keys(apart), func(a, b string) int {
		return cmp.Or(cmp.Compare(apart[a], apart[b]), cmp.Compare(a, b))
	})
	return likely[:min(len(likely), namesShown)]
}

func abs(n int) int { return max(n, -n) }

// fold leaves out what people mix up.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune("-_/:. ", r) {
			return '-'
		}
		return r
	}, strings.ToLower(strings.TrimSpace(s)))
}

// distance is how many letters must be changed, added or left out.
func distance(a, b []rune) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i, x := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j, y := range b {
			cost := diagonal
			if x != y {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// inPlace looks at a lock of the same name in another schema or database. A name that does not print is in no command.
func (l *look) inPlace(do, schema, database string) Step {
	if !shown.AllPrint(schema + database) {
		return Step{Do: do}
	}
	step := again(do, l.Lock)
	step.Schema, step.Database = schema, database
	return step
}

func (l *look) unknownVerdicts() {
	here := "no lock has been used here yet"
	switch {
	case l.names >= namesRead:
		here = say("%d names and more are in use here", namesRead)
	case l.names > 0:
		here = several(l.names, "1 other name is in use here", "%d other names are in use here")
	}
	v := Verdict{Kind: whyUnknown, Severity: SeverityWarning,
		Text: say("Nobody has used a lock named %s in schema %s of this database; %s.", l.lock(),
			word(l.schema), here),
		Because: "Sure, unless the lock has been free for long and prune has removed it."}
	var alike []string
	for _, s := range l.Similar[:min(3, len(l.Similar))] {
		alike = append(alike, word(s))
		v.Steps = append(v.Steps, again(say("Did you mean %s?", word(s)), s))
	}
	databases := slices.DeleteFunc(slices.Clone(l.Elsewhere), func(e Elsewhere) bool { return e.Schema != "" })
	for _, e := range l.Elsewhere {
		if e.Holds {
			v.Kind = whyAnotherSchema
			v.Text = say("This is the wrong schema: nobody has used %s in schema %s, and schema %s of this "+
				"database has a lock of that name.", l.lock(), word(l.schema), word(e.Schema))
			v.Because = "Sure: it was found there."
			v.Steps = append([]Step{l.inPlace("Look there.", e.Schema, "")}, v.Steps...)
		}
	}
	var there []Step
	for _, e := range databases[:min(3, len(databases))] {
		there = append(there, l.inPlace(say("Look in database %s.", word(e.Database)), "", e.Database))
	}
	switch {
	case v.Kind == whyUnknown && len(l.Similar) > 0:
		v.Text += say(" Similar to it: %s.", strings.Join(alike, ", "))
		v.Because = "Sure that this very name is unknown here. Probably it is misspelt, or the lock is in another " +
			"database."
		v.Steps = append(v.Steps, there...)
	case v.Kind == whyUnknown && len(databases) > 0:
		e := databases[0]
		v.Kind = whyAnotherDatabase
		v.Text = say("Probably this is the wrong database: nobody has used a lock named %s here, and %s. "+
			"Programs that use pglock are connected to database %s of the same server: %s.",
			l.lock(), here, word(e.Database), count(e.Connections, "connection")+inBrackets(e.Applications))
		v.Because = "Sure that it is unknown here. That it is in the other database is a guess, from the names of " +
			"the connections there."
		v.Steps = append(there, v.Steps...)
	}
	for _, e := range l.Elsewhere {
		if e.Schema != "" && !e.Holds {
			v.Steps = append(v.Steps,
				l.inPlace(say("Schema %s has locks of pglock too.", word(e.Schema)), e.Schema, ""))
		}
	}
	if len(l.Guards) > 0 { // its name is that of a resource
		v.Severity = SeverityNote
	}
	v.Steps = append(v.Steps, Step{Do: "See which names are in use here.", Run: RunAdmin, Command: "list --all"})
	l.add(v)
}
