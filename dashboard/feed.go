package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// MaxFeeds limits how many different queries streams have at once.
	MaxFeeds = 32
)

// The names of the events.
const (
	eventLocks   = "locks"
	eventLock    = "lock"
	eventProblem = "problem"
)

// Why a stream does not begin.
var (
	shuttingDown = refused(http.StatusServiceUnavailable, "The server is shutting down.")
	manyStreams  = refused(http.StatusServiceUnavailable, "Too many pages are open. Close some, or try again later.")
	manyFeeds    = refused(http.StatusServiceUnavailable, "Too many different views are open. Try again later.")
)

// feeds has the queries that streams watch. Streams with the same query share a feed, and its reads of the database.
type feeds struct {
	mu      sync.Mutex
	open    map[query]*feed
	streams int
	closed  bool // no stream may begin any more
}

// feed reads one query again and again while somebody watches it.
type feed struct {
	watchers int // under feeds.mu
	end      context.CancelFunc
	ended    chan struct{}

	mu   sync.Mutex
	now  state
	next chan struct{} // closed when now is replaced, and when a read has panicked
	fell any           // what with
}

// state is what every watcher of a feed sees. A watcher that is slow skips states.
type state struct {
	number int    // 0 before the first read
	event  string // locks, lock, or problem
	data   []byte // an object of JSON, the same for all readers
}

// join counts a stream, and starts the feed of its query if there is none.
func (d *Dashboard) join(q query) (*feed, error) {
	d.feeds.mu.Lock()
	defer d.feeds.mu.Unlock()
	f := d.feeds.open[q]
	switch {
	case d.feeds.closed:
		return nil, shuttingDown
	case d.feeds.streams >= d.config.Streams:
		return nil, manyStreams
	case f == nil && len(d.feeds.open) >= MaxFeeds:
		return nil, manyFeeds
	case f == nil:
		f = &feed{ended: make(chan struct{}), next: make(chan struct{})}
		ctx, end := context.WithCancel(d.life)
		f.end = end
		d.feeds.open[q] = f
		go d.run(ctx, f, q)
	}
	f.watchers++
	d.feeds.streams++
	d.streams.Add(1)
	return f, nil
}

// leave ends the feed with its last watcher, and waits for its goroutine.
func (d *Dashboard) leave(q query, f *feed) {
	defer d.streams.Done()
	d.feeds.mu.Lock()
	d.feeds.streams--
	f.watchers--
	last := f.watchers == 0
	if last {
		delete(d.feeds.open, q)
	}
	d.feeds.mu.Unlock()
	if last {
		f.end()
		<-f.ended
	}
}

// run reads until ctx ends. It belongs to the watchers: the last one ends it and waits for it.
func (d *Dashboard) run(ctx context.Context, f *feed, q query) {
	defer close(f.ended)
	defer func() { f.fall(recover()) }()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen glance
	var told time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		now := d.look(ctx, q)
		again := now.err == nil && q.name != "" && began.Sub(told) >= d.config.pace.again
		news := again || !now.sameAs(seen)
		if ctx.Err() != nil {
			return
		}
		if news {
			seen, told = glance{fingerprint: now.fingerprint, begins: now.begins}, began
		}
		if news || now.err == nil {
			f.set(d.stateOf(now), news)
		}
		timer.Reset(max(d.config.pace.poll, time.Since(began)))
	}
}

// set keeps a state. It wakes the watchers if it is news: a state that differs only in the time that has passed is for
// those who join later.
func (f *feed) set(s state, news bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.number = f.now.number
	if news {
		s.number++
		close(f.next)
		f.next = make(chan struct{})
	}
	f.now = s
}

// fall tells the watchers what a read has panicked with.
func (f *feed) fall(with any) {
	if with == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fell = with
	close(f.next)
}

// current returns the present state, and a channel that is closed when there is another one. It panics with what a read
// has panicked with: in the request, where the server of the application survives it.
func (f *feed) current() (state, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fell != nil {
		panic(f.fell)
	}
	return f.now, f.next
}

// glance is what one read of the database has found.
type glance struct {
	view interface { // a locksView, or a oneView
		fingerprint() []byte
		begins() []time.Time
	}
	err         error
	fingerprint []byte // equal for two glances that differ only in the time that has passed, and in begins
	begins      []time.Time
}

// sameAs reports that two glances differ only in the time that has passed.
func (g glance) sameAs(other glance) bool {
	near := func(a, b time.Time) bool { return a.Sub(b).Abs() < 2*time.Second }
	return bytes.Equal(g.fingerprint, other.fingerprint) && slices.EqualFunc(g.begins, other.begins, near)
}

// look reads what the query asks for.
func (d *Dashboard) look(ctx context.Context, q query) (g glance) {
	if q.name == "" {
		g.view, g.err = d.readLocks(ctx, q)
	} else {
		g.view, g.err = d.readLock(ctx, q.name)
	}
	g.fingerprint, g.begins = g.view.fingerprint(), g.view.begins()
	if g.err != nil && ctx.Err() == nil {
		g.fingerprint, g.begins = d.explain(g.err).problem(), nil
	}
	return g
}

// stateOf makes what the watchers see.
func (d *Dashboard) stateOf(g glance) (s state) {
	if g.err != nil {
		return state{event: eventProblem, data: g.fingerprint}
	}
	s.event = eventLocks
	if _, is := g.view.(oneView); is {
		s.event = eventLock
	}
	var err error
	if s.data, err = json.Marshal(g.view); err != nil {
		return state{event: eventProblem, data: d.explain(err).problem()}
	}
	return s
}
