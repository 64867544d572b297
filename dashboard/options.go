package dashboard

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/pglock"
)

// The defaults and the greatest values of the limits.
const (
	DefaultStreams     = 256
	MaxStreams         = 10_000
	DefaultConnections = 4
	MaxConnections     = 100

	MaxTitleBytes = 200
)

// Option configures New. A bad value makes it fail.
type Option func(*config) error

type config struct {
	title       string
	mayBreak    bool
	auth        func(*http.Request) (Identity, error)
	people      []person
	streamLimit int
	connections int
	onError     func(error)
	pace        pace
}

func newConfig(opts []Option) (config, error) {
	c := config{streamLimit: DefaultStreams, connections: DefaultConnections, onError: func(error) {},
		pace: defaultPace}
	for _, o := range opts {
		if o == nil {
			return c, &pglock.ArgumentError{Field: "option", Value: "nil", Rule: "be an option of this package"}
		}
		if err := o(&c); err != nil {
			return c, err
		}
	}
	switch {
	case c.auth != nil && c.people != nil:
		return c, &pglock.ArgumentError{Field: "WithAuth", Value: "given with WithBasicAuth or WithToken",
			Rule: "be given alone"}
	case c.mayBreak && c.auth == nil && c.people == nil:
		return c, &pglock.ArgumentError{Field: "WithBreaks", Value: "given alone",
			Rule: "be given with WithAuth, WithBasicAuth or WithToken: the history names whoever breaks a lock"}
	}
	return c, nil
}

// WithBreaks lets people break locks from the page. Without it the page is read-only. It needs WithAuth, WithBasicAuth
// or WithToken, and a database user with the role pglock_admin.
func WithBreaks() Option {
	return func(c *config) error {
		c.mayBreak = true
		return nil
	}
}

// WithAuth asks the application who sends a request, before anything else is done with it. An error refuses the
// request: with 403 if it is ErrForbidden, otherwise with 401. The answer does not contain the error. The function is
// called from many goroutines, also for every file of the page. To show a form for the login instead of a refusal, put
// the Dashboard behind the application's own middleware.
func WithAuth(who func(*http.Request) (Identity, error)) Option {
	return func(c *config) error {
		c.auth = who
		if who == nil {
			return &pglock.ArgumentError{Field: "auth", Value: "nil", Rule: "be a function"}
		}
		return nil
	}
}

// WithBasicAuth lets in a person with this name and password, by HTTP basic authentication. Give it once for each
// person. The Dashboard keeps a hash of the password, and compares in constant time. Use TLS: browsers send the
// password with every request. A name has 1 to pglock.MaxHolderBytes bytes and no colon, a password MinPasswordBytes
// to MaxPasswordBytes.
func WithBasicAuth(name, password string) Option {
	return func(c *config) error {
		if err := checkSecret("password", password); err != nil {
			return err
		}
		return c.admit(name, password, false)
	}
}

// WithToken lets in whoever shows this token, under the name: a program as "Authorization: Bearer TOKEN", a browser as
// the password that goes with the name, or with any other. Give it once for each token. Lengths are those of
// WithBasicAuth.
func WithToken(name, token string) Option {
	return func(c *config) error {
		if err := checkSecret("token", token); err != nil {
			return err
		}
		return c.admit(name, token, true)
	}
}

// WithTitle names the installation on the page, for instance "production, eu-1", beside the server and the database.
// Up to MaxTitleBytes. Defaults to none.
func WithTitle(text string) Option {
	return func(c *config) error {
		c.title = text
		return checkText("title", text, MaxTitleBytes)
	}
}

// WithMaxStreams limits how many streams are open at once, from 1 to MaxStreams; a page has one or two. Defaults to
// DefaultStreams. More are refused with 503.
func WithMaxStreams(n int) Option {
	return func(c *config) error {
		c.streamLimit = n
		return checkNumber("streams", n, MaxStreams)
	}
}

// WithMaxConnections limits how many connections of the Admin's pool the page uses at once to read, from 1 to
// MaxConnections. Defaults to DefaultConnections. Breaks use up to two more.
func WithMaxConnections(n int) Option {
	return func(c *config) error {
		c.connections = n
		return checkNumber("connections", n, MaxConnections)
	}
}

// WithOnError has f called with failures of the database. The page shows them in plain words; the error has details
// that are not for everybody who sees the page. f is called from many goroutines and must not block.
func WithOnError(f func(error)) Option {
	return func(c *config) error {
		c.onError = f
		if f == nil {
			return &pglock.ArgumentError{Field: "on error", Value: "nil", Rule: "be a function"}
		}
		return nil
	}
}

func checkText(field, value string, most int) error {
	if p := argument.Text(field, value, most); p != nil {
		return (*pglock.ArgumentError)(p)
	}
	return nil
}

func checkNumber(field string, n, most int) error {
	if n < 1 || n > most {
		return &pglock.ArgumentError{Field: field, Value: fmt.Sprint(n), Rule: fmt.Sprintf("be from 1 to %d", most)}
	}
	return nil
}

// checkSecret never repeats the value.
func checkSecret(field, value string) error {
	if len(value) < MinPasswordBytes || len(value) > MaxPasswordBytes || strings.ContainsAny(value, "\x00\r\n") {
		return &pglock.ArgumentError{Field: field, Value: fmt.Sprintf("%d bytes long", len(value)),
			Rule: fmt.Sprintf("have %d to %d bytes, and no line break or NUL byte", MinPasswordBytes, MaxPasswordBytes)}
	}
	return nil
}
