package dashboard

import (
	"cmp"
	"net/http"

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

// Config says how the page is served. It must say whom the page lets in: by exactly one of Auth, People and Anybody.
type Config struct {
	// Title names the installation on the page, for instance "production, eu-1", beside the server and the database.
	// Up to MaxTitleBytes.
	Title string
	// Breaks lets people break locks from the page. It needs Auth or People, and a database user with the role
	// pglock_admin.
	Breaks bool
	// Auth asks the application who sends a request, before anything else is done with it. An error refuses the
	// request: with 403 if it is ErrForbidden, otherwise with 401. The answer does not contain the error. Auth is
	// called from many goroutines, also for every file of the page. To show a form for the login instead of a refusal,
	// put the Dashboard behind the application's own middleware.
	Auth func(*http.Request) (Identity, error)
	// People are let in instead, each by a password or a token. Nil, or at least one.
	People []Person
	// Anybody who reaches the handler is let in, to read: what is in front of it has asked who they are.
	Anybody bool
	// Streams limits how many streams are open at once, up to MaxStreams; a page has one or two. More are refused with
	// 503. 0: DefaultStreams.
	Streams int
	// Connections limits how many connections of the Admin's pool the page uses at once to read, up to MaxConnections.
	// Breaks use up to two more. 0: DefaultConnections.
	Connections int
	// OnError is called with failures of the database. The page shows them in plain words; the error has details that
	// are not for everybody who sees the page. It is called from many goroutines and must not block.
	OnError func(error)

	pace pace
}

func (c *Config) check() error {
	c.Streams, c.Connections = cmp.Or(c.Streams, DefaultStreams), cmp.Or(c.Connections, DefaultConnections)
	c.pace = cmp.Or(c.pace, defaultPace)
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if err := refuse.Text("title", c.Title, MaxTitleBytes); c.Title != "" && err != nil {
		return err
	}
	return cmp.Or(refuse.Number("streams", c.Streams, 1, MaxStreams),
		refuse.Number("connections", c.Connections, 1, MaxConnections),
		refuse.If(c.People != nil && len(c.People) == 0, "People", "empty", "have somebody, or be nil"),
		refuse.If(c.Auth != nil && c.People != nil, "Auth", "given with People", "be given alone"),
		refuse.If(c.Anybody && c.Auth != nil, "Anybody", "given with Auth", "be given alone"),
		refuse.If(c.Anybody && c.People != nil, "Anybody", "given with People", "be given alone"),
		refuse.If(c.Breaks && c.Auth == nil && c.People == nil, "Breaks", "given alone",
			"be given with Auth or People: the history names whoever breaks a lock"),
		refuse.If(!c.Anybody && c.Auth == nil && c.People == nil, "Auth", "nil",
			"be given, or People; or Anybody, where whoever reaches the page may read it"))
}
