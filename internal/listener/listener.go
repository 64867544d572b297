// Package listener receives notifications of grants, and of changes of watched locks, on a connection, while anybody
// wants them. A notification is only a hint: it makes waits shorter, and nothing else depends on it.
package listener

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
)

const (
	// probeEvery is how often a listener proves that it still hears, and probeWait how long a proof may take.
	probeEvery = 30 * time.Second
	probeWait  = 3 * time.Second
	// lastWait is for what has just arrived.
	lastWait = 10 * time.Millisecond
	// ownEvery is for how long a listener counts on what others send, at most: they may be connected to another server
	// than those that notify this client.
	ownEvery = 10 * time.Minute
	// A failed listener connects again, at first soon. One that cannot connect, as after a failover, lets no more time
	// pass from attempt to attempt than a sixteenth of that for which it was deaf, or half a second.
	firstRetry = 50 * time.Millisecond
	soonRetry  = 500 * time.Millisecond
	lastRetry  = time.Minute
	soonPart   = 16
	// idle is how long an unused connection stays open.
	idle = 30 * time.Second

	// probes is the channel of the probes of all listeners: each notification wakes every listener of the database, so
	// one for all of them is enough.
	probes = "pglock_probe"
)

// Config says what a Listener works with. The listener's goroutine calls its functions, without holding its mutex.
type Config struct {
	Life    context.Context // the listener ends with it
	Own     string          // on which the server notifies this client of its grants
	Connect func(ctx context.Context) (Conn, error)
	Notify  func(ctx context.Context, channel, payload string) error // over another connection

	Hint    func(payload string) // a notification on the own channel
	Changed func(channel string) // a notification on another channel, or possibly one before LISTEN
	Hears   func(bool)           // from now on notifications arrive, or do not

	Deaf func(attempts int, since time.Duration, err error) // an attempt to hear has failed while channels are wanted
	Back func(after time.Duration, err error)               // after Deaf: they arrive; err is of the last attempt
}

// Listener owns a goroutine that hears what comes over a connection, which runs from the first Want to the end of its
// life.
type Listener struct {
	Config
	wake  chan struct{} // 1-buffered: what is wanted has changed
	tasks sync.WaitGroup

	mu      sync.Mutex
	wanted  map[string]int // channels, and how many users each has
	started bool

	deaf   deafness // the goroutine's own
	doubts bool     // so is this: a probe was lost, and none was heard since
}

// deafness is since when channels are wanted and nothing is heard.
type deafness struct {
	attempts int // 0: it hears, or nobody has wanted it since
	since    time.Time
	err      error // of the last attempt; nil: nobody was told of one, or of its end
}

// New makes a listener without channels.
func New(config Config) *Listener {
	return &Listener{Config: config, wake: make(chan struct{}, 1), wanted: make(map[string]int)}
}

// Want adds one user of a channel.
func (l *Listener) Want(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wanted[channel]++; l.wanted[channel] == 1 {
		l.changed()
	}
	if !l.started && l.Life.Err() == nil {
		l.started = true
		l.tasks.Go(l.listen)
	}
}

// Unwant ends what Want has begun.
func (l *Listener) Unwant(channel string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.wanted[channel]--; l.wanted[channel] == 0 {
		delete(l.wanted, channel)
		l.changed()
	}
}

func (l *Listener) changed() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Wait returns when the listener has ended, after its life.
func (l *Listener) Wait() { l.tasks.Wait() }

func (l *Listener) wants() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.wanted)
}

// failed notes an attempt that has failed.
func (l *Listener) failed(err error) {
	if len(l.wants()) == 0 || l.Life.Err() != nil {
		return
	}
	if l.deaf.attempts++; l.deaf.attempts == 1 {
		l.deaf.since = time.Now()
	}
	l.deaf.err = err
	l.Deaf(l.deaf.attempts, time.Since(l.deaf.since), err)
}

// hears notes that notifications arrive.
func (l *Listener) hears() {
	if l.Hears(true); l.deaf.err == nil {
		return
	}
	var after time.Duration
	if l.deaf.attempts > 0 {
		after = time.Since(l.deaf.since)
	}
	l.Back(after, l.deaf.err)
	l.deaf = deafness{}
}

func (l *Listener) listen() {
	began := time.Now()
	for delay := firstRetry; l.Life.Err() == nil; {
		if len(l.wants()) == 0 {
			l.deaf = deafness{err: l.deaf.err}
			select {
			case <-l.wake:
			case <-l.Life.Done():
			}
			continue
		}
		s := session{Listener: l, began: began, subscribed: make(map[string]bool), nonce: crand.Text(),
			sent: make(chan error, 1), idleSince: -1}
		err := s.run()
		if err != nil {
			l.failed(err)
		}
		if s.heard || s.proven && !l.doubts {
			delay = firstRetry
		}
		if len(l.wants()) > 0 && pause.For(l.Life, delay) {
			delay = min(2*delay, lastRetry)
			if err != nil && !errors.Is(err, ErrDeaf) {
				delay = min(delay, max(soonRetry, time.Since(l.deaf.since)/soonPart))
			}
		}
	}
}

// session is the life of one connection. A connection that takes LISTEN may still hear nothing, behind a pooler or on
// a dead line. So it sends itself a notification through another connection from time to time, and at first unless it
// is certain to hear. Once it has heard its own, it counts on those of others, too.
type session struct {
	*Listener
	began      time.Time
	conn       Conn
	subscribed map[string]bool
	stale      bool          // what is wanted may have changed since
	heard      bool          // anything but the probes of others
	proven     bool          // it has heard a probe of its own, or is certain to hear
	sent       chan error    // 1-buffered: the outcome of sending a probe
	probe      int           // the number of the last one
	due        time.Duration // the next probe, or the end of waiting for one, unless others use the connection
	asked      time.Duration // when the last one was sent
	waiting    bool          // for the probe to be heard
	nonce      string        // in its probes: nobody else sends one of these
	trusts     time.Duration // until then it counts on the probes of others
	idleSince  time.Duration // since when there are no users; -1 while there are
}

func (s *session) now() time.Duration { return time.Since(s.began) }

// run uses one connection until it fails, or until nobody wants it any more: then the error is nil.
func (s *session) run() (err error) {
	ctx, cancel := context.WithTimeout(s.Life, protocol.Patience)
	conn, err := s.Connect(ctx)
	cancel()
	if err != nil {
		return err
	}
	defer func() { conn.Close(err == nil) }()
	defer s.Hears(false) // before Close, which may wait for whoever uses the connection
	s.conn, s.due, s.stale = conn, s.now(), true
	for s.Life.Err() == nil {
		if s.stale {
			if goOn, err := s.subscribe(); !goOn {
				return err
			}
		}
		if !s.proven && conn.Certain() && !s.doubts {
			s.trust()
		}
		s.prove()
		channel, payload, err := s.next()
		if errors.Is(err, ErrQuiet) && s.lost() { // unless the end of a statement has just brought it
			channel, payload, err = s.next()
		}
		switch {
		case errors.Is(err, ErrQuiet):
			s.stale = true // perhaps nobody has wanted anything for long
			if s.lost() {
				s.doubts = true
				return errUnheard
			}
		case err != nil:
			return err
		default:
			s.hear(channel, payload)
		}
	}
	return nil
}

// subscribe listens to the wanted channels. False ends the connection, with the error or because nobody wants it.
func (s *session) subscribe() (goOn bool, err error) {
	s.stale = false
	wanted := s.wants()
	switch {
	case len(wanted) > 0:
		s.idleSince = -1
	case s.idleSince < 0:
		s.idleSince = s.now()
	case s.now()-s.idleSince >= idle:
		return false, nil
	}
	wanted[s.Own], wanted[probes] = 1, 1 // also between two waits
	var missing, surplus []string
	for channel := range wanted {
		if !s.subscribed[channel] {
			missing = append(missing, channel)
		}
	}
	slices.Sort(missing)
	if err := s.tell(s.conn.Subscribe, missing); err != nil {
		return false, err
	}
	for _, channel := range missing {
		if s.subscribed[channel] = true; channel != probes {
			s.Changed(channel) // earlier changes are found by looking
		}
	}
	for channel := range s.subscribed {
		if wanted[channel] == 0 {
			surplus = append(surplus, channel)
			delete(s.subscribed, channel)
		}
	}
	err = s.tell(s.conn.Unsubscribe, surplus)
	return err == nil, err
}

// tell begins or ends to listen to channels, if there are any.
func (s *session) tell(do func(ctx context.Context, channels ...string) error, channels []string) error {
	if len(channels) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.Life, protocol.Patience)
	defer cancel()
	return do(ctx, channels...)
}

// lost reports whether the last probe was sent and did not arrive, when nothing more is heard.
func (s *session) lost() bool {
	if s.settle(); !s.waiting || s.now() < s.due {
		return false
	}
	if !s.conn.InUse() || s.now()-s.asked >= protocol.Patience { // no statement takes longer
		return true
	}
	s.due = s.now() + probeWait
	return false
}

// settle learns whether the last probe was sent.
func (s *session) settle() {
	select {
	case err := <-s.sent:
		if err != nil { // it was not sent, which proves nothing
			s.waiting, s.due = false, s.now()+probeEvery/2
			if !s.proven { // try again soon
				s.due = s.now() + time.Second
				s.failed(fmt.Errorf("send a notification to itself: %w", err))
			}
		}
	default:
	}
}

// prove sends a probe when one is due.
func (s *session) prove() {
	if s.settle(); s.waiting || s.now() < s.due {
		return
	}
	s.probe++
	s.waiting, s.asked, s.due = true, s.now(), s.now()+probeWait
	payload := s.payload()
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.Life, probeWait*2/3)
		defer cancel()
		select {
		case s.sent <- s.Notify(ctx, probes, payload):
		default:
		}
	})
}

// next waits for a notification, until there is something else to do.
func (s *session) next() (channel, payload string, err error) {
	until := s.due
	if s.idleSince >= 0 {
		until = min(until, s.idleSince+idle)
	}
	ctx, cancel := context.WithTimeout(s.Life, max(until-s.now(), lastWait))
	woken := make(chan struct{})
	go func() {
		defer close(woken)
		select {
		case <-s.wake:
			s.stale = true
			cancel()
		case <-ctx.Done():
		}
	}()
	channel, payload, err = s.conn.Next(ctx)
	cancel()
	<-woken
	return channel, payload, err
}

func (s *session) hear(channel, payload string) {
	own := channel == probes && payload == s.payload()
	s.heard = s.heard || own || channel != probes
	switch channel {
	case s.Own:
		s.Hint(payload)
	case probes:
		s.hearProbe(own)
	default:
		s.Changed(channel)
	}
}

// payload distinguishes the last probe from all others.
func (s *session) payload() string { return s.nonce + " " + strconv.Itoa(s.probe) }

// hearProbe plans the next one.
func (s *session) hearProbe(own bool) {
	if own {
		s.waiting, s.doubts = false, false
		s.trust()
	} else if !s.waiting && s.proven {
		s.plan()
	}
}

// trust begins to count on notifications, also on the probes of others.
func (s *session) trust() {
	s.trusts = s.now() + ownEvery - rand.N(ownEvery/2)
	if s.plan(); !s.proven {
		s.proven = true
		s.hears()
	}
}

// plan sets a random time for the next probe: of many listeners one is the first, and all others hear that.
func (s *session) plan() { s.due = min(s.now()+probeEvery-rand.N(probeEvery/2), s.trusts) }
