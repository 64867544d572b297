package pgtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// token is a word of SQL or PL/pgSQL: an identifier or keyword in lower case, a quoted identifier, a text, a number,
// an operator, or a sign.
type token struct {
	kind rune // i, q, t, n, o, or s
	text string
}

var words = regexp.MustCompile(`(?s)^(?:(\s+|--[^\n]*|/\*.*?\*/|#\w+ \w+)|([a-zA-Z_][\w$]*)|("(?:[^"]|"")+")|('(?:[^']|'')*')|(\d+(?:\.\d+)?)|(:=|=>|::|\.\.|[(),;.:\[\]])|([-+*/<>=~!@#%^&|` + "`" + `?]+))`)

func tokens(source string) (all []token, err error) {
	kinds := " iqtnso"
	for source != "" {
		m := words.FindStringSubmatch(source)
		if m == nil {
			return nil, fmt.Errorf("what begins with %.20q is unknown", source)
		}
		for n, kind := range kinds {
			if m[n+1] != "" && kind != ' ' {
				text := m[n+1]
				if kind == 'i' {
					text = strings.ToLower(text)
				}
				all = append(all, token{kind, text})
			}
		}
		source = source[len(m[0]):]
	}
	return all, nil
}

// What may precede a parenthesis that is not a call, and a text that is not a constant of a type.
var keywords = strings.Fields(`all and any array as begin by case coalesce else elsif end exists from greatest having if into is join
	least limit not null offset on only operator or perform returning row select set some then union using values when where with`)

// What looks up an operator by name although none is written, or runs a text that cannot be read beforehand.
var hidden = strings.Fields(`between cast collate distinct execute ilike in like natural nullif overlay position similar
	substring treat trim using`)

// The types that the language itself knows, which no search_path changes.
var ownTypes = strings.Fields(`bigint boolean int integer smallint`)

// Unqualified lists what a function's text leaves to its caller's search_path: every call, operator, type and table
// without pg_catalog or the schema. It knows only as much of the language as fully qualified functions need, and
// reports whatever it does not know.
func Unqualified(source, schema string) (found []string) {
	all, err := tokens(source)
	if err != nil {
		return []string{err.Error()}
	}
	at := func(i int) token {
		if i < 0 || i >= len(all) {
			return token{}
		}
		return all[i]
	}
	complain := func(what string, i int) {
		var near []string
		for n := max(0, i-3); n < min(len(all), i+4); n++ {
			near = append(near, all[n].text)
		}
		found = append(found, what+": "+strings.Join(near, " "))
	}
	name := func(t token) string { return strings.Trim(t.text, `"`) }
	// qualified: the name that begins here belongs to pg_catalog or to the schema.
	qualified := func(i int) bool {
		return (name(at(i)) == "pg_catalog" || name(at(i)) == schema) && at(i+1).text == "." &&
			(at(i+2).kind == 'i' || at(i+2).kind == 'q' || at(i+2).kind == 'o')
	}
	relation := func(i int) { // begins what a query reads or writes
		for at(i).text == "only" || at(i).text == "lateral" || at(i).text == "rows" || at(i-1).text == "rows" {
			i++
		}
		if at(i).text != "(" && !qualified(i) {
			complain("table", i)
		}
	}
	// For every open parenthesis: whether it is in a list of tables, and in a list of assignments.
	type level struct{ tables, set bool }
	open := []level{{}}
	for i, t := range all {
		here := &open[len(open)-1]
		switch t.kind {
		case 'o':
			assigned := t.text == "=" && here.set && (at(i-2).text == "set" || at(i-2).text == ",")
			inOperator := at(i-1).text == "." && name(at(i-2)) == "pg_catalog" && at(i-3).text == "(" &&
				at(i-4).text == "operator"
			everything := t.text == "*" && at(i-1).text == "select"
			if !assigned && !inOperator && !everything {
				complain("operator", i)
			}
		case 't':
			if at(i-1).kind == 'q' || at(i-1).kind == 'i' && !slices.Contains(keywords, at(i-1).text) {
				complain("type of a constant", i)
			}
		case 'q', 'i':
			if at(i+1).text == "(" && at(i-1).text != "." && at(i-1).text != "]" && at(i-1).text != "as" &&
				(t.kind == 'q' || !slices.Contains(keywords, t.text)) {
				complain("call", i)
			}
			if at(i+1).text == "(" && at(i-1).text == "." && !qualified(i-2) && at(i-3).text != "into" {
				complain("call", i)
			}
		case 's':
			switch t.text {
			case "(":
				open = append(open, level{})
			case ")":
				if len(open) > 1 {
					open = open[:len(open)-1]
				}
			case ";":
				*here = level{}
			case "::":
				named, _, _ := strings.Cut(strings.Trim(at(i-1).text, "'"), ".")
				if !qualified(i + 1) {
					complain("type", i+1)
				} else if strings.HasPrefix(name(at(i+3)), "reg") && strings.Trim(named, `"`) != "pg_catalog" &&
					strings.Trim(named, `"`) != schema {
					complain("name", i-1)
				}
			case ",":
				if here.tables {
					relation(i + 1)
				}
			}
		}
		if t.kind != 'i' || at(i-1).text == "." {
			continue
		}
		switch {
		case t.text == "in" && at(i-2).text == "for": // a loop
		case t.text == "collate" && qualified(i+1):
		case slices.Contains(hidden, t.text):
			complain("hidden operator", i)
		case t.text == "operator" && (at(i+1).text != "(" || !qualified(i+2)):
			complain("operator", i)
		case t.text == "case" && at(i+1).text != "when" && at(i-1).text != "end":
			complain("hidden operator", i)
		}
		switch t.text {
		case "from", "join":
			here.tables, here.set = true, false
			relation(i + 1)
		case "update":
			if before := at(i - 1).text; before != "for" && before != "key" && before != "do" {
				relation(i + 1)
			}
		case "into":
			if at(i-1).text == "insert" {
				relation(i + 1)
			}
		case "declare":
			for n := i + 1; n < len(all) && all[n].text != "begin"; n++ { // a variable, and its type
				if n++; at(n).text == "constant" {
					n++
				}
				if !qualified(n) && !slices.Contains(ownTypes, at(n).text) {
					complain("type", n)
				}
				for n < len(all) && all[n].text != ";" {
					n++
				}
			}
		case "set":
			here.tables, here.set = false, true
		case "where", "order", "group", "limit", "returning", "having", "window", "for", "union":
			here.tables, here.set = false, false
		}
	}
	return found
}
