package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"sync"

	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// Dashboard serves the page, its files and its data. It is an http.Handler, and safe for concurrent use. Its goroutines
// read the database while streams are open; Close ends and joins them.
type Dashboard struct {
	config  Config
	people  []person
	admin   *lockadmin.Admin
	files   map[string]file
	place   string // title, server, database and schema, on one line
	server  []byte // what the page calls it, in JSON
	routes  map[string]route
	origins http.CrossOriginProtection

	reads  chan struct{} // one entry for each read of the database under way
	breaks chan struct{} // one entry for each break under way
	feeds  feeds
	asked  *shared

	life    context.Context // ends with Close
	end     context.CancelFunc
	streams sync.WaitGroup
}

// New makes the page over an Admin, which stays the caller's. It asks the server nothing: while the database is away
// the page says so. Close it before you close the Admin's pool.
//
// Errors: pglock.ErrInvalid.
func New(admin *lockadmin.Admin, c Config) (*Dashboard, error) {
	if admin == nil {
		return nil, refuse.Nil("admin", "be a *lockadmin.Admin")
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	people, err := admit(c.People)
	if err != nil {
		return nil, err
	}
	c.People = nil // their secrets
	place := shown.Line(admin.Place().String())
	server, _ := json.Marshal(cmp.Or(c.Title, place)) // a text
	if c.Title != "" {
		place = shown.Line(c.Title) + ": " + place // two servers may have the same words behind a tunnel
	}
	d := &Dashboard{
		config: c, people: people, admin: admin, files: readFiles(), place: place, server: server,
		reads: make(chan struct{}, c.Connections), breaks: make(chan struct{}, breaksAtOnce),
		asked: newShared(),
	}
	d.life, d.end = context.WithCancel(context.Background()) // the streams of many requests share what it ends
	d.feeds.open = make(map[query]*feed)
	d.routes = d.allRoutes()
	return d, nil
}

// Close ends every stream, and returns when all goroutines of the Dashboard have ended. Later streams are refused with
// 503; everything else is still served. Call it when the server begins to shut down, for instance by
// http.Server.RegisterOnShutdown: Shutdown waits for open streams.
func (d *Dashboard) Close() {
	d.feeds.mu.Lock()
	d.feeds.closed = true
	d.feeds.mu.Unlock()
	d.end()
	d.streams.Wait()
}
