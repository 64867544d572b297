package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"github.com/pglock-dev/pglock/lockadmin"
)

// beginning has the first fields of every answer. The rest of an object, which is the same for all readers of a query,
// follows it from its second byte.
func (d *Dashboard) beginning(who Identity) []byte {
	place, _ := json.Marshal(d.place) // a text
	return fmt.Appendf(nil, `{"server":%s,"place":%s,"can_break":%t,`, d.server, place, who.MayBreak)
}

func (d *Dashboard) reply(w http.ResponseWriter, who Identity, v any) error {
	body, err := json.Marshal(v)
	if err == nil {
		writeBody(w, http.StatusOK, jsonKind, d.beginning(who), body[1:])
	}
	return err
}

// answer reads what a request asks for, and replies, unless one of its arguments is wrong.
func (d *Dashboard) answer(w http.ResponseWriter, r *http.Request, who Identity, a *arguments,
	read func(context.Context) (any, error)) error {
	if a.wrong != nil {
		return a.wrong
	}
	v, err := d.asked.read(r.Context(), r.URL.Path+"?"+a.values.Encode(), read)
	if err != nil {
		return err
	}
	return d.reply(w, who, v)
}

func (d *Dashboard) serveLocks(w http.ResponseWriter, r *http.Request, who Identity) error {
	a := readArguments(r.URL.RawQuery, listArguments...)
	q := a.list()
	return d.answer(w, r, who, a, func(ctx context.Context) (any, error) { return d.readLocks(ctx, q) })
}

func (d *Dashboard) serveLock(w http.ResponseWriter, r *http.Request, who Identity) error {
	a := readArguments(r.URL.RawQuery, "name")
	name := a.needed("name")
	return d.answer(w, r, who, a, func(ctx context.Context) (any, error) { return d.readLock(ctx, name) })
}

func (d *Dashboard) serveHistory(w http.ResponseWriter, r *http.Request, who Identity) error {
	a := readArguments(r.URL.RawQuery, "name", "before", "limit")
	name := a.text("name")
	before := a.positive("before", math.MaxInt64, "be a whole number from 1")
	limit := a.limit()
	return d.answer(w, r, who, a, func(ctx context.Context) (any, error) {
		v, err := d.readHistory(ctx, name, before, limit)
		return v, d.lacks(err, "see the history")
	})
}

func (d *Dashboard) serveSessions(w http.ResponseWriter, r *http.Request, who Identity) error {
	a := readArguments(r.URL.RawQuery, "match", "after", "after_holder", "limit")
	limit := a.limit()
	q := lockadmin.SessionsQuery{Match: a.text("match"), After: a.text("after"), AfterHolder: a.text("after_holder"),
		Limit: limit + 1, PageSize: min(limit+1, lockadmin.MaxPageSize)}
	return d.answer(w, r, who, a, func(ctx context.Context) (any, error) { return d.readSessions(ctx, q) })
}
