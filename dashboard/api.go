package dashboard

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/pglock-dev/pglock/pglock"
)

// beginnings has the first fields of every answer, for those who may not break locks and for those who may. The other
// fields are the same for all readers of a query.
type beginnings struct{ looks, breaks []byte }

func newBeginnings(title string) (b beginnings, err error) {
	server, err := json.Marshal(title)
	if err != nil {
		return b, err
	}
	b.looks = fmt.Appendf(nil, `{"server":%s,"can_break":false,`, server)
	b.breaks = fmt.Appendf(nil, `{"server":%s,"can_break":true,`, server)
	return b, nil
}

// of gives the beginning for a reader. The rest of an object follows it, from its second byte.
func (b beginnings) of(who Identity) []byte {
	if who.MayBreak {
		return b.breaks
	}
	return b.looks
}

// reply writes an answer.
func (d *Dashboard) reply(w http.ResponseWriter, who Identity, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		d.explain(err).write(w)
		return
	}
	writeBody(w, http.StatusOK, jsonKind, d.beginnings.of(who), body[1:])
}

func (d *Dashboard) serveLocks(w http.ResponseWriter, r *http.Request, who Identity) {
	a := readArguments(r.URL.RawQuery, listArguments...)
	q := a.list()
	if a.wrong != nil {
		a.wrong.write(w)
		return
	}
	v, err := d.readLocks(r.Context(), q)
	if err != nil {
		d.explain(err).write(w)
		return
	}
	d.reply(w, who, v)
}

func (d *Dashboard) serveLock(w http.ResponseWriter, r *http.Request, who Identity) {
	a := readArguments(r.URL.RawQuery, "name")
	name := a.name()
	if a.wrong != nil {
		a.wrong.write(w)
		return
	}
	v, err := d.readLock(r.Context(), name)
	if err != nil {
		d.explain(err).write(w)
		return
	}
	v.Why = d.readWhy(r.Context(), name)
	d.reply(w, who, v)
}

func (d *Dashboard) serveHistory(w http.ResponseWriter, r *http.Request, who Identity) {
	a := readArguments(r.URL.RawQuery, "name", "before", "limit")
	name, before, limit := a.text("name", pglock.MaxNameBytes), a.number("before"), a.limit()
	if a.wrong != nil {
		a.wrong.write(w)
		return
	}
	v, err := d.readHistory(r.Context(), name, before, limit)
	if err != nil {
		d.lacks(err, "pglock_admin", "see the history").write(w)
		return
	}
	d.reply(w, who, v)
}

func (d *Dashboard) serveSessions(w http.ResponseWriter, r *http.Request, who Identity) {
	a := readArguments(r.URL.RawQuery, "match", "after", "limit")
	match, after, limit := a.text("match", pglock.MaxNameBytes), a.text("after", pglock.MaxNameBytes), a.limit()
	if a.wrong != nil {
		a.wrong.write(w)
		return
	}
	v, err := d.readSessions(r.Context(), match, after, limit)
	if err != nil {
		d.explain(err).write(w)
		return
	}
	d.reply(w, who, v)
}
