package pglock

import (
	"context"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/server"
)

const (
	// watchLasting is how long the server announces changes after one request.
	watchLasting = time.Minute
	// watchLook is how often a watcher looks that hears no notifications, or whose lock has just changed. One that
	// hears looks for what nobody has announced: after a tenth (1/watchPart) of the time for which the lock has stood
	// still, and so often that the server goes on announcing.
	watchLook = time.Second
	watchPart = 10
	watchRest = watchLasting / 3
)

// ChangeKind says what happened to a watched lock.
type ChangeKind string

// The kinds of changes.
const (
	ChangeState    ChangeKind = "state"    // nothing: the state when the watch began
	ChangeGranted  ChangeKind = "granted"  // also when the lock went directly from one holder to the next
	ChangeReleased ChangeKind = "released" // by its holder
	ChangeExpired  ChangeKind = "expired"  // or lost by a failover or a restore
	ChangeBroken   ChangeKind = "broken"   // by an operator
)

// Change is one change of a watched lock: what happened, to which lease, and who holds the lock now. Times are
// the server's.
type Change struct {
	Kind    ChangeKind
	Lease   LockInfo   // that was granted or has ended; with ChangeState the holder, or the last holder of a free lock
	Holders []LockInfo // after the change, by slot; none if the lock is free
}

// watcher is one Watch. Only its own goroutine uses it, except wake.
type watcher struct {
	name    string
	channel string
	wake    chan struct{} // 1-buffered: the lock may have changed
}

// Watch yields the lock's present state and then each change, for as long as the loop runs. A slow loop body
// may miss older changes: it gets the newest one instead, so the last one is always the present state. The lock
// need not exist yet. The server announces changes only while somebody watches. Where no notifications arrive,
// changes are seen within a second. Where one is lost while others arrive, a look sees the change: after a tenth
// of the time for which the lock has stood still, from one second to twenty. While the server is unreachable
// nothing is yielded, and the watch continues when it is back.
//
//	for change, err := range client.Watch(ctx, "report") {
//		if err != nil {
//			return err
//		}
//		…
//	}
//	return context.Cause(ctx) // without an error the loop ends only when ctx ends
//
// An error ends the loop: ErrInvalid, ErrClosed, the first look's failure, or later the server's lasting
// refusal to show the lock, or a closed pool. Watch starts no goroutine.
func (c *Client) Watch(ctx context.Context, name string) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		err := c.follow(ctx, name, func(news Change) bool { return yield(news, nil) })
		if err != nil && ctx.Err() == nil {
			yield(Change{}, failure.At(ctx, err, "pglock: watch lock %q", name))
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

// follow looks at the lock whenever something may have changed, and reports changes, until nobody listens any
// more.
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
	if !tell(change(ChangeState, before, before)) { // a loop that wants no more needs no listener
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
	signal(w.wake) // look again, now that we receive the notifications of this channel
	looking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	for changed := time.Now(); w.await(looking, c.untilLook(time.Since(changed), before), before); {
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
		if news, differs := compare(before, after); differs {
			if changed = time.Now(); !tell(news) {
				return nil
			}
		}
		before = after
	}
	return ErrClosed // unless ctx has ended
}

// untilLook is how long a watcher waits for a notification before it looks, if its lock has not changed for so long. An
// extended lease may run out after its TTL: nobody announces the end of an extension.
func (c *Client) untilLook(still time.Duration, before []LockInfo) time.Duration {
	if !c.queue.Hears() {
		return watchLook
	}
	next := min(still/watchPart, watchRest)
	for _, i := range before {
		if i.Remaining > i.TTL {
			next = min(next, i.TTL)
		}
	}
	next = max(watchLook, next)
	return next - rand.N(next/4) // or many would look at once
}

// await blocks until something may have changed since the last look, for next at most. False: ctx has ended.
func (w *watcher) await(ctx context.Context, next time.Duration, before []LockInfo) bool {
	for _, i := range before {
		if i.Held {
			next = min(next, i.Remaining+queue.AskLate) // nobody announces an expiry
		}
	}
	due := time.After(next)
	pause.For(ctx, min(next, againPause))
	select {
	case <-due:
	case <-w.wake:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// unseen is the error of a look that has failed for good.
func (c *Client) unseen(name string, err error) error {
	if c.isClosed() {
		return ErrClosed
	}
	return errorFromSQL(err, name, 0)
}

// compare finds the change between two looks; of several changes, the last.
func compare(before, after []LockInfo) (Change, bool) {
	was := make(map[int]LockInfo)
	for _, i := range before {
		was[i.Slot] = i
	}
	var kind ChangeKind
	var of LockInfo
	for _, i := range after {
		old, known := was[i.Slot]
		if known && !i.Held && i.Token < old.Token { // what was before it: the grant is gone as if without a row
			continue
		}
		delete(was, i.Slot)
		switch {
		case i.Held && (!known || i.Token != old.Token || !old.Held): // the last cannot happen
			if kind != ChangeGranted || i.Token > of.Token {
				kind, of = ChangeGranted, i
			}
		case kind == ChangeGranted || i.Held || !known && i.EndedAt.IsZero() && i.ExpiresAt.IsZero():
		case known && old.Held || known && i.Token != old.Token: // it has ended, perhaps after a grant that we missed
			switch {
			case known && old.Held && i.Token != old.Token && i.Holder == old.Holder &&
				i.AcquiredAt.Equal(old.AcquiredAt):
				kind = ChangeBroken
			case !i.EndedAt.IsZero():
				kind = ChangeReleased
			default:
				kind = ChangeExpired
			}
			of = i
		}
	}
	for _, i := range before {
		if _, gone := was[i.Slot]; gone && i.Held && kind == "" { // a failover or a restore has lost it
			i.Held, i.Remaining = false, 0
			kind, of = ChangeExpired, i
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
	case kind == ChangeState && len(ch.Holders) > 0:
		ch.Lease = ch.Holders[0]
	case len(of) > 0:
		ch.Lease = of[0]
	}
	return ch
}
