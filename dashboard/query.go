package dashboard

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/pglock"
)

// The sizes of a page of a list.
const (
	DefaultLimit = 200
	MaxLimit     = 10_000
)

// query is what somebody wants to see: one lock, or a page of the list. Equal queries share a feed.
type query struct {
	name  string // of one lock; "" means a list
	match string
	order string
	free  bool
	limit int
	after string
}

var orders = []string{"name", "age", "waiting", "expiry"}

// arguments reads the arguments of an address, and remembers the first one that is wrong.
type arguments struct {
	values url.Values
	wrong  error
}

func readArguments(raw string, allowed ...string) *arguments {
	a := &arguments{}
	var err error
	if a.values, err = url.ParseQuery(raw); err != nil {
		a.fail("query", argument.Shorten(raw), "be a valid query string")
	}
	for _, field := range slices.Sorted(maps.Keys(a.values)) {
		switch {
		case !slices.Contains(allowed, field):
			a.fail("argument", argument.Shorten(field), "be one of "+strings.Join(allowed, ", "))
		case len(a.values[field]) > 1:
			a.fail(field, "given twice", "be given once")
		}
	}
	return a
}

func (a *arguments) fail(field, value, rule string) {
	if a.wrong == nil {
		a.wrong = invalid(field, value, rule)
	}
}

// text reads a text as long as a name at most; it may be missing or empty.
func (a *arguments) text(field string) string {
	if a.values.Get(field) == "" {
		return ""
	}
	return a.needed(field)
}

// needed reads a text that must not be missing.
func (a *arguments) needed(field string) string {
	value := a.values.Get(field)
	if p := argument.Text(field, value, pglock.MaxNameBytes); p != nil {
		a.fail(p.Field, p.Value, p.Rule)
	}
	return value
}

func (a *arguments) limit() int {
	return int(cmp.Or(a.positive("limit", MaxLimit, "be from 1 to "+strconv.Itoa(MaxLimit)), DefaultLimit))
}

// choice reads one of some words; the first one if it is missing.
func (a *arguments) choice(field, rule string, words ...string) string {
	value := cmp.Or(a.values.Get(field), words[0])
	if !slices.Contains(words, value) {
		a.fail(field, argument.Shorten(value), rule)
	}
	return value
}

// positive reads a whole number from 1 to most; 0 if it is missing.
func (a *arguments) positive(field string, most int64, rule string) int64 {
	value := a.values.Get(field)
	if value == "" {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 1 || n > most {
		a.fail(field, argument.Shorten(value), rule)
	}
	return n
}

// listArguments are those of api/locks.
var listArguments = []string{"match", "order", "free", "limit", "after"}

func (a *arguments) list() query {
	q := query{
		match: a.text("match"),
		order: a.choice("order", "be one of "+strings.Join(orders, ", "), orders...),
		free:  a.choice("free", "be 0 or 1", "0", "1") == "1",
		limit: a.limit(),
		after: a.text("after"),
	}
	if q.after != "" && q.order != orders[0] {
		a.fail("after", argument.Shorten(q.after), "be given with order=name only")
	}
	return q
}

// stream reads the arguments of api/stream: the name of a lock, or those of a list.
func streamQuery(raw string) (query, error) {
	if a := readArguments(raw, "name"); a.wrong == nil && a.values.Has("name") {
		q := query{name: a.needed("name")}
		return q, a.wrong
	}
	a := readArguments(raw, append([]string{"name"}, listArguments...)...)
	if a.values.Has("name") {
		a.fail("name", argument.Shorten(a.values.Get("name")), "be given alone")
	}
	q := a.list()
	return q, a.wrong
}
