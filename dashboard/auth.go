package dashboard

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"slices"
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

// ErrForbidden is an error for Config.Auth: it knows the person, who may not see the page.
var ErrForbidden = errors.New("dashboard: forbidden")

// Identity is a person or a program that uses the page.
type Identity struct {
	Name     string // for the history, 1 to pglock.MaxHolderBytes bytes; "" may look, and break nothing
	MayBreak bool   // may break locks, if the Config has Breaks
}

// Person is somebody whom a password or a token lets in. The Dashboard keeps a hash of it, and compares in constant
// time. Use TLS: browsers send it with every request.
type Person struct {
	Name   string // 1 to pglock.MaxHolderBytes bytes, no colon; each person has another
	Secret string // MinPasswordBytes to MaxPasswordBytes
	// Token says that the secret is a token: a program sends it as "Authorization: Bearer TOKEN", a browser as the
	// password that goes with the name, or with any other. Otherwise it is a password, for HTTP basic authentication.
	Token bool
}

// person is a Person without the secret.
type person struct {
	Identity
	key    [sha256.Size]byte // of the hashes, random
	name   [sha256.Size]byte
	secret [sha256.Size]byte
	token  bool // the name does not matter
}

// admit never repeats a secret.
func admit(people []Person) (known []person, err error) {
	for n, p := range people {
		length := len(p.Secret)
		bad := length < MinPasswordBytes || length > MaxPasswordBytes || strings.ContainsAny(p.Secret, "\x00\r\n")
		kind := "password"
		if p.Token {
			kind = "token"
		}
		short := argument.Shorten(p.Name)
		namesake := func(other Person) bool { return other.Name == p.Name }
		if err := cmp.Or(refuse.If(bad, kind, fmt.Sprintf("%d bytes long", length),
			fmt.Sprintf("have %d to %d bytes, and no line break or NUL byte", MinPasswordBytes, MaxPasswordBytes)),
			refuse.Text("name", p.Name, pglock.MaxHolderBytes),
			refuse.If(strings.ContainsAny(p.Name, ":\r\n"), "name", short, "have no colon or line break"),
			refuse.If(slices.ContainsFunc(people[:n], namesake), "name", short, "be given once")); err != nil {
			return nil, err
		}
		one := person{Identity: Identity{Name: p.Name, MayBreak: true}, token: p.Token}
		_, _ = rand.Read(one.key[:]) // it never fails
		one.name, one.secret = one.digest(p.Name), one.digest(p.Secret)
		known = append(known, one)
	}
	return known, nil
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
	case d.config.Auth != nil:
		who, err := d.config.Auth(r)
		if err != nil {
			return Identity{}, err
		}
		if err := refuse.Text("name", who.Name, pglock.MaxHolderBytes); who.Name != "" && err != nil {
			d.config.OnError(failure.Told(err, "dashboard: Auth has returned a wrong name"))
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
		who.MayBreak = who.MayBreak && d.config.Breaks && who.Name != ""
		return who, nil
	case errors.Is(err, ErrForbidden):
		return Identity{}, refused(http.StatusForbidden, "You may not see this page.")
	case d.people != nil:
		w.Header().Set("WWW-Authenticate", `Basic realm="pglock", charset="UTF-8"`)
	}
	return Identity{}, refused(http.StatusUnauthorized, "Log in first.")
}

// Protect puts another handler, such as one for metrics, behind the authentication of the page, and gives its answers
// the headers of the page, by which browsers trust nothing else. Each has to be made and read within half a minute,
// unless the handler sets another deadline by http.ResponseController.
func (d *Dashboard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		distrust(w.Header())
		if _, err := d.authenticate(w, r); err != nil {
			d.explain(err).write(w)
			return
		}
		hurry(w)
		next.ServeHTTP(w, r)
	})
}
