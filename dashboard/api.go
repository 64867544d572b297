package dashboard

import (
	"encoding/json"
	"net/http"

	"github.com/pglock-dev/pglock/pglock"
)

// answer is data together with what depends on its reader.
func answer(v any, who Identity) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return forReader(body, who), nil
}

// forReader adds a field to an object of JSON.
func forReader(object []byte, who Identity) []byte {
	body := []byte(`{"can_break":false,`)
	if who.MayBreak {
		body = []byte(`{"can_break":true,`)
	}
	return append(body, object[1:]...)
}

// reply writes an answer.
func (d *Dashboard) reply(w http.ResponseWriter, r *http.Request, who Identity, v any) {
	body, err := answer(v, who)
	if err != nil {
		d.explain(err).write(w)
		return
	}
	writeBody(w, r, http.StatusOK, jsonKind, body)
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
	d.reply(w, r, who, v)
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
	d.reply(w, r, who, v)
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
	d.reply(w, r, who, v)
}

func (d *Dashboard) serveSessions(w http.ResponseWriter, _ *http.Request, _ Identity) {
	refusal{Status: http.StatusNotImplemented, Error: "Sessions are not there yet."}.write(w)
}
