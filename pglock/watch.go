package pglock

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/server"
)

const (
	// watchLasting is for how long one asking makes the server tell of changes.
	watchLasting = time.Minute
	// watchLook is how often a watcher looks by itself, in case it was not told.
	watchLook = time.Second
)

// ChangeKind says what happened to a watched lock.
type ChangeKind string

// The kinds of changes.
const (
	ChangeNone     ChangeKind = "state"    // nothing: the state when the watch began
	ChangeGranted  ChangeKind = "granted"  // also when it went from one holder to the next in one step
	ChangeReleased ChangeKind = "released" // by its holder
	ChangeExpired  ChangeKind = "expired"
	ChangeBroken   ChangeKind = "broken" // by an operator
)

// Change is what Watch tells: what happened, to which lease, and who holds the lock after it. Times are the server's.
type Change struct {
	Kind    ChangeKind
	Lease   LockInfo   // that was granted or has ended; in ChangeNone the holder, or the last one of a free lock
	Holders []LockInfo // after the change, by slot; none when the lock is free
}

// watcher is one Watch. Only its own goroutine uses it, but for wake.
type watcher struct {
	name    string
	channel string
	wake    chan struct{} // 1-buffered: the lock may have changed
}

// Watch tells the lock's present state and then each change, for as long as the loop goes on. Where the loop's body is slow, it is
// told the newest change in place of older ones that it has missed: the last one is how things are. The lock need not exist yet.
// Nobody else pays for it: the server tells of changes only while somebody watches. Where notifications do not come through,
// changes are seen within a second. While the server cannot be reached nothing is told, and the watch goes on when it can.
//
//	for change, err := range client.Watch(ctx, "report") {
//		if err != nil {
//			return err
//		}
//		…
//	}
//	return ctx.Err() // the loop ends by itself when ctx ends, and for no other reason
//
// An error is the last that the loop is given: ErrInvalid, ErrClosed, what the first look failed with, or later that the server
// refuses to show the lock, as it will again, or that the pool is closed. It has no goroutine.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		err := c.follow(ctx, name, func(news Change) bool { return yield(news, nil) })
		if err != nil && ctx.Err() == nil {
			yield(Change{}, fmt.Errorf("watch lock %q: %w", name, err))
		}
	}
}

// watchers are those of a client, by channel.
type watchers struct {
	mu  sync.Mutex // no other is taken while it is held
	all map[string]map[*watcher]struct{}
}

func (ws *watchers) add(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.all == nil {
		ws.all = make(map[string]map[*watcher]struct{})
	}
	if ws.all[w.channel] == nil {
		ws.all[w.channel] = make(map[*watcher]struct{})
	}
	ws.all[w.channel][w] = struct{}{}
}

func (ws *watchers) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.all[w.channel], w)
	if len(ws.all[w.channel]) == 0 {
		delete(ws.all, w.channel)
	}
}

// changed wakes those who watch on the channel.
func (ws *watchers) changed(channel string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for w := range ws.all[channel] {
		signal(w.wake)
	}
}

// allChanged wakes all of them.
func (ws *watchers) allChanged() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	for _, some := range ws.all {
		for w := range some {
			signal(w.wake)
		}
	}
}

// follow looks at the lock when something may have changed, and tells what has, until nobody wants to hear more.
func (c *Client) follow(ctx context.Context, name string, tell func(Change) bool) error {
	if err := checkText("name", name, MaxNameBytes); err != nil {
		return err
	}
	if c.isClosed() {
		return ErrClosed
	}
	before, channel, err := c.backend.Watch(ctx, name, watchLasting)
	if err != nil {
		return c.unseen(name, err)
	}
	if !tell(change(ChangeNone, before, before)) { // a loop that wants no more needs no listener
		return nil
	}
	w := &watcher{name: name, channel: channel, wake: make(chan struct{}, 1)}
	if !c.calls.beginEnd() { // the listener may have to be started
		return ErrClosed
	}
	c.watchers.add(w)
	c.listener.Want(channel)
	c.calls.ends.Done()
	defer c.watchers.remove(w)
	defer c.listener.Unwant(channel)
	signal(w.wake) // look again, now that we shall be told
	looking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for w.await(looking, before) {
		after, _, err := c.backend.Watch(looking, name, watchLasting)
		switch {
		case err == nil:
		case looking.Err() == nil && server.Lasting(err):
			return c.unseen(name, err)
		default:
			pause.For(looking, 200*time.Millisecond)
			signal(w.wake)
			continue
		}
		if news, changed := compare(before, after); changed && !tell(news) {
			return nil
		}
		before = after
	}
	return ErrClosed // unless ctx has ended
}

// await blocks until something may have changed since a look. False says that nobody looks any more.
func (w *watcher) await(ctx context.Context, before []LockInfo) bool {
	next := watchLook
	for _, i := range before {
		if i.Held {
			next = min(next, i.Remaining+queue.AskLate) // an expiry is told by nobody
		}
	}
	timer := time.NewTimer(next)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// unseen is why a look failed for good.
func (c *Client) unseen(name string, err error) error {
	if c.isClosed() {
		return ErrClosed
	}
	return errorFromSQL(err, name, 0)
}

// compare finds what has changed from one look to the next; the last change where there were several.
func compare(before, after []LockInfo) (Change, bool) {
	was := make(map[int]LockInfo)
	for _, i := range before {
		was[i.Slot] = i
	}
	var kind ChangeKind
	var of LockInfo
	for _, i := range after {
		old, known := was[i.Slot]
		switch {
		case i.Held && (!known || i.Token != old.Token || !old.Held): // the last cannot be; it would be a grant
			if kind != ChangeGranted || i.Token > of.Token {
				kind, of = ChangeGranted, i
			}
		case kind == ChangeGranted || i.Held || !known && i.EndedAt.IsZero() && i.ExpiresAt.IsZero():
		case known && old.Held || known && i.Token != old.Token: // it has ended, perhaps after a grant that was not seen
			switch {
			case known && old.Held && i.Token != old.Token && i.Holder == old.Holder && i.AcquiredAt.Equal(old.AcquiredAt):
				kind = ChangeBroken
			case !i.EndedAt.IsZero():
				kind = ChangeReleased
			default:
				kind = ChangeExpired
			}
			of = i
		}
	}
	return change(kind, []LockInfo{of}, after), kind != ""
}

func change(kind ChangeKind, of, all []LockInfo) Change {
	ch := Change{Kind: kind}
	for _, i := range all {
		if i.Held {
			ch.Holders = append(ch.Holders, i)
		}
	}
	slices.SortFunc(ch.Holders, func(a, b LockInfo) int { return a.Slot - b.Slot })
	switch {
	case kind == ChangeNone && len(ch.Holders) > 0:
		ch.Lease = ch.Holders[0]
	case len(of) > 0:
		ch.Lease = of[0]
	}
	return ch
}
