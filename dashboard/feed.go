package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"
)

const (
	// A feed reads again after this pause, or after four times as long as the last read took.
	pollEvery = 800 * time.Millisecond
	pollShare = 4

	// MaxFeeds limits how many different queries streams have at once.
	MaxFeeds = 32
)

// The names of the events.
const (
	eventLocks   = "locks"
	eventLock    = "lock"
	eventProblem = "problem"
)

// errManyStreams and errManyFeeds: the limits of streams.
var (
	errManyStreams = errors.New("dashboard: too many streams")
	errManyFeeds   = errors.New("dashboard: too many different queries")
)

// feeds has the queries that streams watch. Streams with the same query share a feed, and its reads of the database.
type feeds struct {
	mu      sync.Mutex
	open    map[query]*feed
	streams int
}

// feed reads one query again and again while somebody watches it.
type feed struct {
	watchers int // under feeds.mu
	end      context.CancelFunc
	ended    chan struct{}

	mu   sync.Mutex
	now  state
	next chan struct{} // closed when now is replaced
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
	if d.feeds.streams >= d.streamLimit {
		return nil, errManyStreams
	}
	f := d.feeds.open[q]
	if f == nil {
		if len(d.feeds.open) >= MaxFeeds {
			return nil, errManyFeeds
		}
		f = &feed{ended: make(chan struct{}), next: make(chan struct{})}
		ctx, end := context.WithCancel(d.life)
		f.end = end
		d.feeds.open[q] = f
		go d.run(ctx, f, q)
	}
	f.watchers++
	d.feeds.streams++
	return f, nil
}

// leave ends the feed with its last watcher, and waits for its goroutine.
func (d *Dashboard) leave(q query, f *feed) {
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
	timer := time.NewTimer(0)
	defer timer.Stop()
	var seen []byte
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		next, print := d.look(ctx, q)
		if ctx.Err() != nil {
			return
		}
		if !bytes.Equal(print, seen) {
			seen = print
			f.publish(next)
		}
		timer.Reset(max(pollEvery, pollShare*time.Since(began)))
	}
}

func (f *feed) publish(s state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.number = f.now.number + 1
	f.now = s
	close(f.next)
	f.next = make(chan struct{})
}

// current returns the present state, and a channel that is closed when there is another one.
func (f *feed) current() (state, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.next
}

// look reads the database once. The fingerprint is equal for two states that differ only in the time that has passed.
func (d *Dashboard) look(ctx context.Context, q query) (s state, fingerprint []byte) {
	v, event, print, err := d.lookAt(ctx, q)
	if err == nil {
		s.event = event
		s.data, err = json.Marshal(v)
	}
	if err != nil {
		f := d.explain(err)
		s = state{event: eventProblem, data: f.json()}
		return s, s.data
	}
	return s, print
}

func (d *Dashboard) lookAt(ctx context.Context, q query) (v any, event string, fingerprint []byte, err error) {
	if q.name == "" {
		locks, err := d.readLocks(ctx, q)
		return locks, eventLocks, locks.fingerprint(), err
	}
	lock, err := d.readLock(ctx, q.name)
	return lock, eventLock, lock.fingerprint(), err
}
