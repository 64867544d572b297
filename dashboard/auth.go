package dashboard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net/http"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// The limits of passwords and tokens, in bytes.
const (
	MinPasswordBytes = 8
	MaxPasswordBytes = 256
)

// ErrForbidden is an error for the function of WithAuth: it knows the person, who may not see the page.
var ErrForbidden = errors.New("dashboard: forbidden")

// Identity is a person or a program that uses the page.
type Identity struct {
	Name     string // for the history, 1 to pglock.MaxHolderBytes bytes; "" may look, and break nothing
	MayBreak bool   // may break locks, if the Dashboard has WithBreaks
}

// person is somebody whom WithBasicAuth or WithToken lets in.
type person struct {
	Identity
	key    [sha256.Size]byte // of the hashes, random
	name   [sha256.Size]byte
	secret [sha256.Size]byte
	token  bool // the name does not matter
}

// admit lets somebody in. The kind of the secret is password or token.
func (c *config) admit(name, kind, secret string) error {
	if err := checkSecret(kind, secret); err != nil {
		return err
	}
	if err := refuse.Text("name", name, pglock.MaxHolderBytes); err != nil {
		return err
	}
	if strings.ContainsAny(name, ":\r\n") {
		return refuse.Invalid("name", argument.Shorten(name), "have no colon or line break")
	}
	for _, p := range c.people {
		if p.Name == name {
			return refuse.Invalid("name", argument.Shorten(name), "be given once")
		}
	}
	p := person{Identity: Identity{Name: name, MayBreak: true}, token: kind == "token"}
	_, _ = rand.Read(p.key[:]) // it never fails
	p.name, p.secret = p.digest(name), p.digest(secret)
	c.people = append(c.people, p)
	return nil
}

// digest makes texts of any length comparable in constant time.
func (p *person) digest(text string) (sum [sha256.Size]byte) {
	mac := hmac.New(sha256.New, p.key[:])
	mac.Write([]byte(text))
	mac.Sum(sum[:0])
	return sum
}

// errUnknown: the request shows no credentials, or wrong ones.
var errUnknown = errors.New("dashboard: no valid credentials")

func (d *Dashboard) identify(r *http.Request) (Identity, error) {
	switch {
	case d.auth != nil:
		who, err := d.auth(r)
		if err != nil {
			return Identity{}, err
		}
		if err := refuse.Text("name", who.Name, pglock.MaxHolderBytes); who.Name != "" && err != nil {
			d.onError(failure.Told(err, "dashboard: the function of WithAuth has returned a wrong name"))
			return Identity{}, errUnknown
		}
		return who, nil
	case d.people != nil:
		return d.known(r)
	}
	return Identity{}, nil
}

// known compares with everybody, so that the time tells nothing about who there is.
func (d *Dashboard) known(r *http.Request) (Identity, error) {
	name, secret, basic := r.BasicAuth()
	if !basic {
		scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return Identity{}, errUnknown
		}
		name, secret = "", strings.TrimSpace(rest)
	}
	if len(name) > pglock.MaxHolderBytes || len(secret) > MaxPasswordBytes {
		return Identity{}, errUnknown
	}
	found := -1
	for n := range d.people {
		p := &d.people[n]
		theName, theSecret := p.digest(name), p.digest(secret)
		match := subtle.ConstantTimeCompare(theSecret[:], p.secret[:])
		sameName := subtle.ConstantTimeCompare(theName[:], p.name[:])
		if p.token {
			sameName = 1
		}
		found = subtle.ConstantTimeSelect(match&sameName, n, found)
	}
	if found < 0 {
		return Identity{}, errUnknown
	}
	return d.people[found].Identity, nil
}

// authenticate finds out who sends a request, or refuses it. Refusals give no reasons.
func (d *Dashboard) authenticate(w http.ResponseWriter, r *http.Request) (Identity, error) {
	who, err := d.identify(r)
	switch {
	case err == nil:
		who.MayBreak = who.MayBreak && d.mayBreak && who.Name != ""
		return who, nil
	case errors.Is(err, ErrForbidden):
		return Identity{}, refused(http.StatusForbidden, "You may not see this page.")
	case d.people != nil:
		w.Header().Set("WWW-Authenticate", `Basic realm="pglock", charset="UTF-8"`)
	}
	return Identity{}, refused(http.StatusUnauthorized, "Log in first.")
}

// Protect puts another handler, such as one for metrics, behind the authentication of the page, and gives its answers
// the headers of the page, by which browsers trust nothing else.
func (d *Dashboard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		distrust(w.Header())
		if _, err := d.authenticate(w, r); err != nil {
			d.explain(err).write(w)
			return
		}
		next.ServeHTTP(w, r)
	})
}
