package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

const (
	// observedMost limits the events that wait for the observer.
	observedMost = 1024
	// observedLast is how long Close waits for the observer.
	observedLast = time.Second
	// heldLong is after how long the observer hears of a lease that is still renewed.
	heldLong = time.Hour
)

// observing brings a client's events to its observers, in one goroutine. nil: there are none.
type observing struct {
	observers []Observer
	noCall    context.Context // of events that no call caused
	wake      chan struct{}   // 1-buffered: there are events, or the end
	done      chan struct{}   // closed when the goroutine has ended

	mu       sync.Mutex // a leaf: no other mutex is taken under it, and no observer is called
	events   []observed
	waiting  int // events that no observer was told yet, also of the batch under way
	dropped  int
	panics   int
	panicked error
	closing  bool // it takes no more events
	left     bool // Close does not wait any more
}

type observed struct {
	ctx   context.Context
	event Event
}

// observe starts the goroutine, if there are observers.
func observe(observers []Observer, life context.Context) *observing {
	if len(observers) == 0 {
		return nil
	}
	o := &observing{observers: observers, noCall: context.WithoutCancel(life), wake: make(chan struct{}, 1),
		done: make(chan struct{})}
	go o.run() // ended and joined by close
	return o
}

// tell queues an event. It never waits for an observer. ctx is that of the call, or noCall.
func (o *observing) tell(ctx context.Context, e Event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closing:
	case o.waiting >= observedMost:
		o.dropped++
	default:
		o.waiting++
		o.events = append(o.events, observed{context.WithoutCancel(ctx), e})
		signal(o.wake)
	}
}

// run delivers events until close.
func (o *observing) run() {
	defer close(o.done)
	var batch []observed
	for closing := false; !closing; {
		<-o.wake
		o.mu.Lock()
		batch, o.events, closing = o.events, batch[:0], o.closing
		o.mu.Unlock()
		for i, next := range batch {
			if !o.about(1) {
				return
			}
			o.deliver(next)
			batch[i] = observed{} // it may hold much
		}
	}
	o.about(0)
}

// about tells the observers what they have missed, before so many more events. False: Close does not wait any more.
func (o *observing) about(more int) bool {
	o.mu.Lock()
	o.waiting -= more
	e := Event{Kind: EventObserver, At: time.Now(), Count: o.dropped, Panics: o.panics, Err: o.panicked}
	o.dropped, o.panics, o.panicked = 0, 0, nil
	left := o.left
	o.mu.Unlock()
	if e.Count+e.Panics > 0 && !left {
		o.deliver(observed{o.noCall, e})
	}
	return !left
}

func (o *observing) deliver(next observed) {
	for _, to := range o.observers {
		o.call(to, next)
	}
}

// call calls one observer, and survives its panic.
func (o *observing) call(to Observer, next observed) {
	defer func() {
		if p := recover(); p != nil {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.panics++
			o.panicked = fmt.Errorf("the observer panicked at the event %q: %v", next.event.Kind, p)
		}
	}()
	to.Observe(next.ctx, next.event)
}

// close delivers what still waits, and ends the goroutine. If an observer takes too long, the goroutine ends when that
// returns.
func (o *observing) close() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	o.closing = true
	o.mu.Unlock()
	signal(o.wake)
	select {
	case <-o.done:
		return nil
	case <-time.After(observedLast):
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.left = true
	return fmt.Errorf("an observer has not returned for %v: its goroutine ends when it returns", observedLast)
}

// sight is what the observer is to know of one call for a lock, and then of its lease. nil: there is no observer. The
// fields are guarded as those of the call, and then of the lease, are.
type sight struct {
	ctx     context.Context // of the call
	began   time.Duration   // on the monotonic clock
	granted trust.Instant
	ended   trust.Instant // the deadline where that was before
	place   int
	waits   bool // it was told of the wait,
	held    bool // of the grant,
	long    bool // that the lease is held for long,
	over    bool // of the lease's end,
	late    bool // and of work after that
}

// look begins to observe a call. Without an observer it does nothing.
func (c *Client) look(ctx context.Context) *sight {
	if c.observing == nil {
		return nil
	}
	return &sight{ctx: ctx, began: c.now().Mono}
}

func (r *request) event(kind EventKind) Event {
	return Event{Kind: kind, Lock: r.Name, Mode: Mode(r.Mode), Holder: r.Holder, TTL: r.TTL, Place: r.sight.place}
}

func (l *Lease) event(kind EventKind) Event {
	return Event{Kind: kind, Lock: l.name, Mode: l.mode, Slot: l.slot, Token: l.token, Holder: l.holder, TTL: l.ttl}
}

// waiting tells that a call begins to wait, at which place, and for whom.
func (c *Client) waiting(r *request, a protocol.Answer) {
	if s := r.sight; s != nil && !s.waits {
		s.waits, s.place = true, a.Place
		e := r.event(EventWait)
		e.Err = c.heldError(a, r.Name)
		c.observing.tell(s.ctx, e)
	}
}

// failed tells that a call ends without a lease.
func (c *Client) failed(r *request, err error) {
	if s := r.sight; s != nil {
		e := r.event(EventFailed)
		e.Waited, e.Err = c.now().Mono-s.began, err
		c.observing.tell(s.ctx, e)
	}
}

// held tells of a grant. Call it before others can end the lease.
func (l *Lease) held(now trust.Instant) {
	s := l.sight
	if s == nil {
		return
	}
	s.held, s.granted = true, now
	e := l.event(EventGrant)
	e.Place, e.Waited = s.place, now.Mono-s.began
	if l.queued {
		e.Place = max(e.Place, 1)
	}
	l.client.observing.tell(s.ctx, e)
}

// over tells once how the lease has ended. ctx is of the call that ended it, or had it. The caller has the lease's
// mutex.
func (l *Lease) over(ctx context.Context, cause error) {
	s := l.sight
	if s == nil || !s.held || s.over {
		return
	}
	s.over = true
	now := l.client.now()
	e := l.event(EventRelease)
	e.At, e.Held = time.Now().Add(now.Until(s.ended)), max(0, -s.ended.Until(s.granted))
	if lost, is := errors.AsType[*LostError](cause); is {
		e.Kind, e.Reason, e.Gap, e.Err = EventLost, lost.Reason, now.Mono-l.fresh, lost
	} else if cause != nil && cause != ErrReleased {
		e.Err = cause
	}
	l.client.observing.tell(ctx, e)
}

// stillHeld tells once of a lease that is renewed for long. The caller has the lease's mutex.
func (l *Lease) stillHeld(now trust.Instant) {
	s := l.sight
	if s == nil || !s.held || s.long || -now.Until(s.granted) < heldLong {
		return
	}
	s.long = true
	e := l.event(EventHeldLong)
	e.Held = -now.Until(s.granted)
	l.client.observing.tell(s.ctx, e)
}

// noteEnd notes that the lease has ended, and tells of a loss. How a release ends is told when it is known (released);
// handed: HandOver has made this release, and may not learn of it. The caller has the lease's mutex.
func (l *Lease) noteEnd(now trust.Instant, cause error, handed bool) {
	if l.sight == nil {
		return
	}
	l.sight.ended = now
	if now.Reached(l.deadline) {
		l.sight.ended = l.deadline
	}
	if cause != ErrReleased || handed {
		l.over(l.sight.ctx, cause)
	}
}

// released tells how the end of the lease by its holder went.
func (l *Lease) released(ctx context.Context, err error) {
	if l.sight == nil {
		return
	}
	l.mu.Lock()
	l.over(ctx, err)
	l.mu.Unlock()
	l.outlived(ctx)
}

// outlived tells of work that went on after its lease was lost.
func (l *Lease) outlived(ctx context.Context) {
	s := l.sight
	if s == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost *LostError
	if !s.held || s.late || !errors.As(l.ended, &lost) && !errors.As(l.lost, &lost) {
		return
	}
	s.late = true
	e := l.event(EventOutlived)
	if e.Reason = lost.Reason; error(lost) == l.ended { // else the release has found the loss
		e.Late = -l.client.now().Until(s.ended)
	}
	l.client.observing.tell(ctx, e)
}

// write tells what became of a write under the lease's fence.
func (l *Lease) write(ctx context.Context, what hooks.Observed) {
	if s := l.sight; s != nil && s.held {
		e := l.event(EventKind(what.Kind))
		e.Resource, e.LastToken, e.Took, e.Err = what.Resource, Token(what.LastToken), what.Took, what.Err
		e.Age = -l.client.now().Until(s.granted)
		l.client.observing.tell(ctx, e)
	}
}

// gap is how long a lease had not been renewed.
type gap struct {
	d    time.Duration
	late bool
}

// gap returns how long the lease has not been renewed. The caller has the lease's mutex.
func (l *Lease) gap(now trust.Instant) gap {
	d := now.Mono - l.fresh
	return gap{d, d > l.ttl*2/3 && len(l.holds) == 0}
}

func (l *Lease) sinceRenewed() time.Duration {
	now := l.client.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gap(now).d
}

// tally is what one statement has done for leases: those that it has renewed, of them those that it has renewed late,
// and those that it could not renew.
type tally struct{ done, late, undone tallied }

// tallied are some leases of a statement, and the one of them that was the nearest to its end.
type tallied struct {
	count int
	worst *Lease
	gap   time.Duration
}

func (r *tallied) add(l *Lease, gap time.Duration) {
	if r.count++; r.worst == nil || float64(gap)*float64(r.worst.ttl) > float64(r.gap)*float64(l.ttl) {
		r.worst, r.gap = l, gap
	}
}

func (t *tally) renewed(l *Lease, g gap) {
	t.done.add(l, g.d)
	if g.late {
		t.late.add(l, g.d)
	}
}

func (t *tally) failed(l *Lease, gap time.Duration) { t.undone.add(l, gap) }

// tellRenewals tells what a statement has done, and err if it could not renew some leases.
func (c *Client) tellRenewals(ctx context.Context, did tally, sent trust.Instant, err error) {
	if c.observing == nil || c.ctx.Err() != nil {
		return
	}
	took := c.now().Mono - sent.Mono
	tell := func(kind EventKind, r tallied, err error) {
		if r.count > 0 {
			e := r.worst.event(kind)
			e.Count, e.Took, e.Gap, e.Err = r.count, took, r.gap, err
			c.observing.tell(ctx, e)
		}
	}
	tell(EventRenew, did.done, nil)
	tell(EventRenewLate, did.late, nil)
	tell(EventRenewFailed, did.undone, err)
}

// outside is the context of events that no call has caused.
func (o *observing) outside() context.Context {
	if o == nil {
		return nil
	}
	return o.noCall
}

// tellOutside tells of something that no call has caused, unless the client is closing.
func (c *Client) tellOutside(e Event) {
	if c.observing != nil && c.ctx.Err() == nil {
		c.observing.tell(c.observing.noCall, e)
	}
}

// polls tells that the client hears no notifications.
func (c *Client) polls(attempts int, since time.Duration, err error) {
	c.tellOutside(Event{Kind: EventPolling, Connection: connectionListener, Count: attempts, Took: since, Err: err})
}

// listens tells that it hears them again.
func (c *Client) listens(after time.Duration, err error) {
	c.tellOutside(Event{Kind: EventReconnect, Connection: connectionListener, Took: after, Err: err})
}

// beatsAgain tells that the heartbeat has a new connection.
func (c *Client) beatsAgain(after time.Duration, err error) {
	c.tellOutside(Event{Kind: EventReconnect, Connection: connectionHeartbeat, Took: after, Err: err})
}

// unnamed tells that statements go without names.
func (c *Client) unnamed(count int, lasting time.Duration, err error) {
	c.tellOutside(Event{Kind: EventUnnamed, Count: count, Took: lasting, Err: err})
}
