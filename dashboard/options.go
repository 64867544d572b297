package dashboard

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pglock-dev/pglock/internal/refuse"
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
	if err := refuse.Options(&c, opts); err != nil {
		return c, err
	}
	switch {
	case c.auth != nil && c.people != nil:
		return c, refuse.Invalid("WithAuth", "given with WithBasicAuth or WithToken", "be given alone")
	case c.mayBreak && c.auth == nil && c.people == nil:
		return c, refuse.Invalid("WithBreaks", "given alone",
			"be given with WithAuth, WithBasicAuth or WithToken: the history names whoever breaks a lock")
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
		return refuse.If(who == nil, "auth", "nil", "be a function")
	}
}

// WithBasicAuth lets in a person with this name and password, by HTTP basic authentication. Give it once for each
// person. The Dashboard keeps a hash of the password, and compares in constant time. Use TLS: browsers send the
// password with every request. A name has 1 to pglock.MaxHolderBytes bytes and no colon, a password MinPasswordBytes
// to MaxPasswordBytes.
func WithBasicAuth(name, password string) Option {
	return func(c *config) error { return c.admit(name, "password", password) }
}

// WithToken lets in whoever shows this token, under the name: a program as "Authorization: Bearer TOKEN", a browser as
// the password that goes with the name, or with any other. Give it once for each token. Lengths are those of
// WithBasicAuth.
func WithToken(name, token string) Option {
	return func(c *config) error { return c.admit(name, "token", token) }
}

// WithTitle names the installation on the page, for instance "production, eu-1", beside the server and the database.
// Up to MaxTitleBytes. Defaults to none.
func WithTitle(text string) Option {
	return func(c *config) error {
		c.title = text
		return refuse.Text("title", text, MaxTitleBytes)
	}
}

// WithMaxStreams limits how many streams are open at once, from 1 to MaxStreams; a page has one or two. Defaults to
// DefaultStreams. More are refused with 503.
func WithMaxStreams(n int) Option {
	return func(c *config) error {
		c.streamLimit = n
		return refuse.Number("streams", n, 1, MaxStreams)
	}
}

// WithMaxConnections limits how many connections of the Admin's pool the page uses at once to read, from 1 to
// MaxConnections. Defaults to DefaultConnections. Breaks use up to two more.
func WithMaxConnections(n int) Option {
	return func(c *config) error {
		c.connections = n
		return refuse.Number("connections", n, 1, MaxConnections)
	}
}

// WithOnError has f called with failures of the database. The page shows them in plain words; the error has details
// that are not for everybody who sees the page. f is called from many goroutines and must not block.
func WithOnError(f func(error)) Option {
	return func(c *config) error {
		c.onError = f
		return refuse.If(f == nil, "on error", "nil", "be a function")
	}
}

// checkSecret never repeats the value.
func checkSecret(field, value string) error {
	bad := len(value) < MinPasswordBytes || len(value) > MaxPasswordBytes || strings.ContainsAny(value, "\x00\r\n")
	return refuse.If(bad, field, fmt.Sprintf("%d bytes long", len(value)),
		fmt.Sprintf("have %d to %d bytes, and no line break or NUL byte", MinPasswordBytes, MaxPasswordBytes))
}
