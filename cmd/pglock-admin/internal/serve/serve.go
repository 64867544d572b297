package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/metrics"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// The limits of the server.
const (
	serveHeaders     = 64 << 10
	serveHeadersIn   = 5 * time.Second
	serveBodyIn      = 30 * time.Second
	serveIdle        = time.Minute
	serveEndsWithin  = 5 * time.Second
	serveConnections = dashboard.DefaultConnections + 4 // breaks, metrics and probes
)

// serving is what a command line asks of serve.
type serving struct {
	listen      string
	enableBreak bool
	withoutAuth bool
	people      credentials
	cert, key   string
	hosts       []string
	title       string
	streams     int
	named       int // locks in /metrics
}

type serveView struct {
	URL      string `json:"url"`
	CanBreak bool   `json:"can_break"`
	Auth     bool   `json:"auth"`
}

func New(o *cli.Options) *cobra.Command {
	s := &serving{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Show the locks on a web page",
		Long: `Serve a web page that shows the locks, their queues and their history, and follows them as they change. It runs until
Ctrl-C or TERM.

The page listens on this machine alone, and changes nothing. Anybody who can reach it sees it. --listen lets others
reach it, and then needs --basic-auth-file, --token-file or --without-auth. --enable-break lets people break locks
from the page. It needs a database user with the role pglock_admin, and serve does not start without.

A basic-auth file has a line NAME:PASSWORD for each person, a token file a line NAME:TOKEN for each program or person.
Empty lines and lines that begin with # are left out. The same lines may be in $PGLOCK_SERVE_BASIC_AUTH and
$PGLOCK_SERVE_TOKENS. The history names whoever breaks a lock by NAME. A program sends "Authorization: Bearer TOKEN"; in
a browser the token is the password.

/metrics has numbers for Prometheus. It asks for the same password or token as the page. /healthz asks for none; it
answers 200 while the database is well, and 503 otherwise.`,
		Example: `  pglock-admin serve
  pglock-admin serve --enable-break --basic-auth-file /etc/pglock/people
  pglock-admin serve --listen :8443 --tls-cert cert.pem --tls-key key.pem --token-file /run/secrets/tokens`,
		Annotations: cli.UsesDatabase,
		RunE:        func(cmd *cobra.Command, _ []string) error { return serve(o, cmd, s) },
	}
	flags := cmd.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080",
		"listen on this `string`, HOST:PORT; port 0 takes a free one")
	flags.BoolVar(&s.enableBreak, "enable-break", false, "let people break locks from the page")
	flags.StringVar(&s.people.passwordFile, "basic-auth-file", "", "`name` of a file with lines NAME:PASSWORD")
	flags.StringVar(&s.people.tokenFile, "token-file", "", "`name` of a file with lines NAME:TOKEN")
	flags.BoolVar(&s.withoutAuth, "without-auth", false, "let everybody who reaches --listen see the locks")
	flags.StringVar(&s.cert, "tls-cert", "", "`name` of a file with the certificate, for https")
	flags.StringVar(&s.key, "tls-key", "", "`name` of the file with its key")
	flags.StringArrayVar(&s.hosts, "host", nil, "`name` in the address of the page, if it is no IP address; repeat "+
		"it for several")
	flags.StringVar(&s.title, "title", "", "`text` at the top of the page, before the server and the database")
	flags.IntVar(&s.streams, "max-streams", dashboard.DefaultStreams, "serve at most this `number` of open pages")
	flags.IntVar(&s.named, "metrics-locks", metrics.DefaultTop, "name at most this `number` of locks in /metrics")
	return cmd
}

func serve(o *cli.Options, cmd *cobra.Command, s *serving) error {
	ctx := cmd.Context()
	page, err := s.check(o)
	if err != nil {
		return err
	}
	certificates, err := s.certificates()
	if err != nil {
		return err
	}
	o.Config.MaxConns = serveConnections
	pool, err := pgxpool.NewWithConfig(ctx, o.Config)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(pool)
	admin, err := firstLook(ctx, o, pool, s.enableBreak)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen)
	if err != nil {
		return &cli.Advised{Text: "cannot listen on " + shown.Text(s.listen), Err: cli.Innermost(err),
			Code: cli.ExitFailure,
			Hint: "--listen 127.0.0.1:0 takes a free port"}
	}
	defer listener.Close()
	notes := cli.NewNotes(cmd.ErrOrStderr())
	defer notes.End()
	complaints := &complaints{notes: notes}
	page.OnError = complaints.add
	board, err := dashboard.New(admin, page)
	if err != nil {
		return err
	}
	defer board.Close()
	site, err := siteOf(board, admin, s.named, complaints.add)
	if err != nil {
		return err
	}
	server := newServer(s.guarded(site), certificates, notes)
	view := serveView{URL: s.url(listener.Addr()), CanBreak: s.enableBreak, Auth: s.people.any()}
	if err := o.Show(cmd, view, func(w *cli.Page) { drawServing(w, view) }); err != nil {
		return err
	}
	return runServer(ctx, server, listener, board)
}

// firstLook finds out before anything is served that the database is there, has the schema, and lets its user break
// locks if the page is to do so: the settings of the history need the same role.
func firstLook(ctx context.Context, o *cli.Options, pool *pgxpool.Pool, breaks bool) (*lockadmin.Admin, error) {
	ctx, cancel := o.Bounded(ctx)
	defer cancel()
	admin, err := o.OnPrimary(ctx, pool)
	if err == nil && breaks {
		_, err = admin.HistorySettings(ctx)
	}
	return admin, cli.Because(ctx, o.WithRights(ctx, pool, err))
}

func drawServing(w *cli.Page, v serveView) {
	what := shown.Either(v.CanBreak, "People may break locks there.", "It changes nothing.")
	who := shown.Either(v.Auth, "It asks for a name and a password.", "Everybody who reaches it sees it.")
	fmt.Fprintf(w, "the page is at %s\n%s\n", v.URL, cli.Wrapped(what+" "+who+" Ctrl-C ends it.", cli.TextWidth(w)))
}

// siteOf has the page, and what machines ask for. Whoever may not see the page may not see the metrics, which have
// names.
func siteOf(board *dashboard.Dashboard, admin *lockadmin.Admin, named int, onError func(error)) (http.Handler, error) {
	numbers, err := metrics.New(admin, metrics.Config{Top: named, OnError: onError})
	if err != nil {
		return nil, err
	}
	health, err := metrics.Health(admin, metrics.Config{OnError: onError})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/", board)
	mux.Handle("/metrics", board.Protect(numbers))
	mux.Handle("/healthz", health)
	return mux, nil
}

func newServer(handler http.Handler, certificates *tls.Config, notes *cli.Notes) *http.Server {
	return &http.Server{
		Handler:           handler,
		TLSConfig:         certificates,
		ReadHeaderTimeout: serveHeadersIn,
		ReadTimeout:       serveBodyIn, // with its body; the answer may take longer
		IdleTimeout:       serveIdle,
		MaxHeaderBytes:    serveHeaders,
		ErrorLog:          log.New(&complaints{notes: notes}, "", 0), // strangers may cause many
	}
}

// runServer serves until ctx ends: then the streams end, answers under way are finished, and the rest is cut off.
func runServer(ctx context.Context, server *http.Server, listener net.Listener, board *dashboard.Dashboard) error {
	ended := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			ended <- server.ServeTLS(listener, "", "")
			return
		}
		ended <- server.Serve(listener)
	}()
	select {
	case err := <-ended:
		return &cli.Advised{Text: "the server has failed", Err: err, Code: cli.ExitFailure, Hint: cli.Again}
	case <-ctx.Done():
	}
	board.Close()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), serveEndsWithin)
	defer cancel()
	if server.Shutdown(last) != nil {
		_ = server.Close() // what is left has had its time
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// complaints notes failures: each once a minute, and no more than complaintsKept in a minute.
type complaints struct {
	notes *cli.Notes
	mu    sync.Mutex
	at    map[string]time.Time
}

const (
	complainEvery  = time.Minute
	complaintsKept = 100
)

func (c *complaints) add(err error) { c.print(cli.Message(err)) }

// Write takes a line of the http package.
func (c *complaints) Write(line []byte) (int, error) {
	c.print(strings.TrimSpace(string(line)))
	return len(line), nil
}

func (c *complaints) print(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(c.at, func(_ string, at time.Time) bool { return now.Sub(at) >= complainEvery })
	if _, said := c.at[text]; said || len(c.at) >= complaintsKept {
		return
	}
	if c.at == nil {
		c.at = make(map[string]time.Time)
	}
	if c.notes.Write("%s", text) { // else nobody has heard it
		c.at[text] = now
	}
}
