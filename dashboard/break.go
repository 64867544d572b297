package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// placeBytes is room for the place in a request to break a lock.
const placeBytes = 1024 + 4*MaxTitleBytes // a byte that does not print is \x00

// breakBytes limits the body of a request to break a lock: each byte of its texts may be written as six.
const breakBytes = 6*(pglock.MaxNameBytes+lockadmin.MaxReasonBytes+placeBytes+userBytes) + 1024

// userBytes is room for a person's name there.
const userBytes = 4 * pglock.MaxHolderBytes

type breakRequest struct {
	Name   string    `json:"name"`
	Token  tokenText `json:"token"`
	Reason string    `json:"reason"`
	Place  string    `json:"place"` // of the locks that the caller sees; "": any
	User   *string   `json:"user"`  // whom the caller's page names, and so the history must; "": nobody; nil: any

	// AcquiredAt is of the lease that the caller sees; zero: any. A lease keeps it. In another database none has it,
	// though the place, the name and the token may be the same.
	AcquiredAt time.Time `json:"acquired_at"`
}

// tokenText is a token as somebody has sent it: a text, or a number.
type tokenText string

func (t *tokenText) UnmarshalJSON(value []byte) error {
	if value[0] != '"' {
		*t = tokenText(value)
		return nil
	}
	return json.Unmarshal(value, (*string)(t))
}

func (d *Dashboard) serveBreak(w http.ResponseWriter, r *http.Request, who Identity) error {
	switch {
	case !d.config.Breaks:
		return refused(http.StatusForbidden, "This page is read-only.")
	case !who.MayBreak:
		return refused(http.StatusForbidden, "You may not break locks.")
	}
	// What sends no origin is no browser, or may not send this type of body to another origin without asking it first.
	if err := d.origins.Check(r); err != nil {
		return refused(http.StatusForbidden, "The request comes from another site.")
	}
	request, err := readBreak(w, r)
	if err != nil {
		return err
	}
	if request.Place != "" && request.Place != d.place {
		return refused(http.StatusConflict, fmt.Sprintf(
			"This address leads to another database now: %s. Nothing was broken. Load the page again.", d.place))
	}
	if user := shown.Line(who.Name); request.User != nil && *request.User != user {
		return refused(http.StatusConflict, fmt.Sprintf(
			"The history would now name %s. Nothing was broken. Load the page again.", user))
	}
	number, err := strconv.ParseInt(string(request.Token), 10, 64)
	if err != nil {
		return invalid("token", argument.Shorten(string(request.Token)), "be the token of the lease to break")
	}
	broken, err := d.breakLock(r.Context(), request, pglock.Token(number), who.Name)
	if err != nil {
		return d.notBroken(r.Context(), request.Name, number, err)
	}
	return d.reply(w, who, struct {
		Broken brokenView `json:"broken"`
	}{brokenView{broken.Name, broken.Holder, broken.Token, broken.NewToken}})
}

func readBreak(w http.ResponseWriter, r *http.Request) (request breakRequest, err error) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return request, refused(http.StatusUnsupportedMediaType, "The body must be application/json.")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, breakBytes))
	decoder.DisallowUnknownFields()
	if err = decoder.Decode(&request); err == nil {
		if _, err = decoder.Token(); err == nil {
			err = errors.New("there is more after the object")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return request, refused(http.StatusRequestEntityTooLarge,
			fmt.Sprintf("The body has more than %d bytes.", breakBytes))
	case errors.Is(err, os.ErrDeadlineExceeded):
		return request, refused(http.StatusRequestTimeout, "The body did not arrive in time.")
	case err != nil:
		return request, invalid("body", "something else",
			`be an object {"name", "token", "reason", "place", "user", "acquired_at"}`)
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // at it the server would take the client for gone
	return request, nil
}

// notBroken finds the words for a break that was not done.
func (d *Dashboard) notBroken(ctx context.Context, name string, was int64, err error) error {
	switch {
	case errors.Is(err, errOtherLease):
		return refused(http.StatusConflict, fmt.Sprintf("The lease with token %d is another one than you see: this "+
			"address may lead to another database now. Nothing was broken. Load the page again.", was))
	case errors.Is(err, lockadmin.ErrNotHeld):
		var infos []pglock.LockInfo
		lookErr := inTurn(ctx, d.reads, func(ctx context.Context) (err error) {
			infos, err = d.admin.Holders(ctx, name)
			return err
		})
		switch {
		case errors.Is(lookErr, lockadmin.ErrNotFound):
			return lookErr
		case lookErr == nil && infos[0].Held:
			return refused(http.StatusConflict,
				fmt.Sprintf("The lock has moved on: no lease has token %d any more. Nothing was broken.", was))
		}
		return refused(http.StatusConflict, "The lock is not held any more. Nothing was broken.")
	case errors.Is(err, pglock.ErrInvalid), errors.Is(err, errBusy):
		return err
	case errors.Is(err, pglock.ErrPermission):
		return d.lacks(err, "break locks")
	case errors.Is(err, context.DeadlineExceeded):
		d.config.OnError(err)
		return refused(http.StatusServiceUnavailable, "The database does not answer, or a transaction keeps the "+
			"lease from being broken until it ends. "+lookFirst)
	case errors.Is(err, pglock.ErrReadOnly), errors.Is(err, pglock.ErrSchema):
		return err
	}
	d.config.OnError(err)
	return refused(http.StatusServiceUnavailable, "The connection to the database was lost, or it failed. "+lookFirst)
}

// errOtherLease: the lease with this token was granted at another moment.
var errOtherLease = errors.New("dashboard: another lease has this token")

const lookFirst = "Look at the lock before you try again: it is unknown whether the lease was broken."
