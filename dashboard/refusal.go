package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// refusal is an answer that something was not done, in words that everybody who sees the page may read.
type refusal struct {
	Status int    `json:"-"`
	Text   string `json:"error"`
	Field  string `json:"field,omitempty"` // of an invalid argument
	Value  string `json:"value,omitempty"`
	Rule   string `json:"rule,omitempty"`
}

func refused(status int, text string) refusal { return refusal{Status: status, Text: text} }

func (f refusal) Error() string { return f.Text }

var notFound = refused(http.StatusNotFound, "There is nothing at this address.")

func (f refusal) write(w http.ResponseWriter) {
	if f.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	body, _ := json.Marshal(f) // it has only texts
	writeBody(w, f.Status, jsonKind, body)
}

// problem is for a stream, which has begun with another status.
func (f refusal) problem() []byte {
	body, _ := json.Marshal(struct { // it has only texts and a number
		Status int `json:"status"`
		refusal
	}{f.Status, f})
	return body
}

// endedInTime is the server's word for a statement that took too long.
const endedInTime = "57014"

// late reports whether the database did not answer in time.
func late(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || protocol.State(err) == endedInTime
}

const jsonKind = "application/json; charset=utf-8"

func invalid(field, value, rule string) refusal {
	return refusal{Status: http.StatusBadRequest, Text: fmt.Sprintf("%s is %s: it must %s.", field, value, rule),
		Field: field, Value: value, Rule: rule}
}

// explain finds the words for an error. Details that a reader of the page should not see, such as names of hosts and
// users, go to OnError alone.
func (d *Dashboard) explain(err error) refusal {
	var known refusal
	var argument *pglock.ArgumentError
	var schema *pglock.SchemaError
	unavailable := func(text string) refusal {
		d.config.OnError(err)
		return refused(http.StatusServiceUnavailable, text)
	}
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &argument):
		return invalid(argument.Field, argument.Value, argument.Rule)
	case errors.Is(err, lockadmin.ErrNotFound):
		return refused(http.StatusNotFound, "There is no lock of this name.")
	case errors.Is(err, pglock.ErrInvalid):
		d.config.OnError(err)
		return refused(http.StatusBadRequest, "The database refuses an argument.")
	case errors.Is(err, pglock.ErrPermission):
		d.config.OnError(err)
		return refused(http.StatusForbidden,
			"The database user of this page needs the role pglock_user to see the locks.")
	case errors.As(err, &schema):
		return unavailable(fmt.Sprintf("The schema of the locks has version %d, and this page needs %d.", schema.Have,
			schema.Need))
	case errors.Is(err, pglock.ErrSchema):
		return unavailable("The schema of the locks is missing, or another version than this page needs.")
	case errors.Is(err, pglock.ErrReadOnly):
		return unavailable("The database accepts no writes: it is a standby. This page needs the primary.")
	case errors.Is(err, errBusy):
		return refused(http.StatusServiceUnavailable, "Too many requests are waiting for the database. Try again.")
	case late(err):
		return unavailable("The database does not answer in time.")
	}
	return unavailable("The database cannot be reached, or it failed.")
}

// lacks refuses something that needs the role pglock_admin, if that is why it failed.
func (d *Dashboard) lacks(err error, what string) error {
	if errors.Is(err, pglock.ErrPermission) {
		d.config.OnError(err)
		return refused(http.StatusForbidden,
			"The database user of this page needs the role pglock_admin to "+what+".")
	}
	return err
}
