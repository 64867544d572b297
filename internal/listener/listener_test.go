package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/protocol"
)

// stage is a listener with connections that the test speaks through.
type stage struct {
	*Listener
	mu    sync.Mutex
	all   []string      // what was told, in order
	conns []*conn       // that were made
	deaf  bool          // probes do not come through
	mute  error         // probes cannot be sent
	down  error         // nor can a connection be made
	sure  bool          // connections are certain to hear
	busy  time.Time     // until then others use them
	asked func()        // comes before the answer whether they do
	slow  time.Duration // so long they take to subscribe, and to end that
	since time.Duration // of the last report that nothing, or something again, was heard
}

type conn struct {
	stage  *stage
	said   chan [2]string // closed: it breaks
	closed bool
}

func start(t *testing.T) *stage {
	s := &stage{}
	life, end := context.WithCancel(t.Context())
	s.Listener = New(Config{Life: life, Own: "own",
		Connect: func(context.Context) (Conn, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.down != nil {
				return nil, s.down
			}
			s.conns = append(s.conns, &conn{s, make(chan [2]string, 200), false})
			return s.conns[len(s.conns)-1], nil
		},
		Notify: func(_ context.Context, channel, payload string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.mute != nil {
				return s.mute
			}
			if !s.deaf {
				s.conns[len(s.conns)-1].said <- [2]string{channel, payload}
			}
			return nil
		},
		Hint:    func(text string) { s.note("hint " + text) },
		Changed: func(channel string) { s.note("changed " + channel) },
		Hears:   func(hears bool) { s.note(fmt.Sprint("hears ", hears)) },
		Deaf: func(attempts int, since time.Duration, err error) {
			s.note(fmt.Sprintf("deaf %d: %v", attempts, err))
			s.since = since
		},
		Back: func(after time.Duration, err error) {
			s.note(fmt.Sprintf("back: %v", err))
			s.since = after
		},
	})
	t.Cleanup(func() { end(); s.Wait() })
	return s
}

func (s *stage) note(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, text)
}

// told is what was told since it was asked last.
func (s *stage) told() (all []string) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	all, s.all = s.all, nil
	return all
}

func (s *stage) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns) > 0
}

func (s *stage) last() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[len(s.conns)-1]
}

func (c *conn) Subscribe(ctx context.Context, channels ...string) error {
	return c.tells(ctx, "+", channels)
}

func (c *conn) Unsubscribe(ctx context.Context, channels ...string) error {
	return c.tells(ctx, "-", channels)
}

func (c *conn) tells(ctx context.Context, what string, channels []string) error {
	c.stage.mu.Lock()
	slow := c.stage.slow
	c.stage.mu.Unlock()
	time.Sleep(slow)
	for _, channel := range channels {
		if channel != probes {
			c.stage.note(what + channel)
		}
	}
	return ctx.Err()
}

func (c *conn) Certain() bool { return c.stage.sure }

func (c *conn) InUse() bool {
	if c.stage.asked != nil {
		c.stage.asked()
	}
	return time.Now().Before(c.stage.busy)
}

func (c *conn) Next(ctx context.Context) (string, string, error) {
	select {
	case n, open := <-c.said:
		if !open {
			return "", "", errors.New("broken")
		}
		return n[0], n[1], nil
	case <-ctx.Done():
		return "", "", ErrQuiet
	}
}

func (c *conn) Close(works bool) {
	if works {
		c.stage.note("given back")
	} else {
		c.stage.note("closed")
	}
}

func (s *stage) want(t *testing.T, want ...string) {
	t.Helper()
	if got := s.told(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestListenerHearsWhatIsWantedWhileItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.want(t) // nobody wants to hear anything
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true")
		s.Want("lock")
		s.Want("lock")
		s.want(t, "+lock", "changed lock")
		s.last().said <- [2]string{"lock", ""}
		s.last().said <- [2]string{"own", "a hint"}
		s.want(t, "changed lock", "hint a hint")
		s.Unwant("lock")
		s.want(t)
		s.Unwant("lock")
		s.want(t, "-lock")
		s.Unwant("own")
		time.Sleep(idle - time.Second)
		s.want(t)
		time.Sleep(2 * time.Second)
		s.want(t, "hears false", "given back")
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true")
	})
}

func TestConnectionThatBreaksOrHearsNothingIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true")
		close(s.last().said)
		time.Sleep(2 * firstRetry)
		s.want(t, "hears false", "closed", "deaf 1: broken", "+own", "changed own", "hears true", "back: broken")
		if s.since < firstRetry/2 || s.since > 2*firstRetry {
			t.Errorf("it says that it was deaf for %v", s.since)
		}
		s.mu.Lock()
		s.deaf = true
		s.mu.Unlock()
		time.Sleep(probeEvery + probeWait + time.Millisecond)
		got := s.told()
		if !slices.Equal(got[:3], []string{"hears false", "closed", "deaf 1: " + errUnheard.Error()}) ||
			slices.Contains(got, "hears true") {
			t.Errorf("told %q when nothing is heard any more", got)
		}
		time.Sleep(time.Minute)
		got = append(got, s.told()...)
		if attempts := count(got, "deaf "); attempts < 5 || !slices.Contains(got, "deaf 2: "+errUnheard.Error()) ||
			s.since < 30*time.Second {
			t.Errorf("%d failed attempts in a minute, deaf for %v: %q", attempts, s.since, got)
		}
	})
}

// A connection that goes to the server itself hears from its LISTEN on. If it turns out to be deaf, the next one has to
// prove that it hears.
func TestCertainConnectionHearsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.sure, s.deaf = true, true
		s.Want(s.Own)
		s.want(t, "+own", "changed own", "hears true")
		time.Sleep(probeEvery + 2*probeWait)
		if told := s.told(); !slices.Contains(told, "hears false") || slices.Contains(told, "hears true") {
			t.Errorf("told %q, want that it hears nothing, and does not believe the next connection", told)
		}
		s.mu.Lock()
		s.deaf = false
		s.mu.Unlock()
		time.Sleep(2 * probeWait)
		if told := s.told(); !slices.Contains(told, "hears true") {
			t.Errorf("told %q, want that it hears again", told)
		}
	})
}

// Ten thousand watches may end together.
func TestListenerEndsManySubscriptionsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.slow = 2 * time.Millisecond
		const many = 10_000
		for i := range many {
			s.Want(fmt.Sprint("lock ", i))
		}
		time.Sleep(time.Second)
		s.told()
		for i := range many - 1 {
			s.Unwant(fmt.Sprint("lock ", i))
		}
		time.Sleep(2 * protocol.Patience)
		if told := s.told(); count(told, "-lock ") != many-1 || len(told) != many-1 {
			t.Errorf("it was told %d things of %d ends, at last %q", len(told), many-1, told[len(told)-1])
		}
	})
}

// A probe that has arrived counts, also if the listener was busy meanwhile; and one may arrive with the end of a
// statement of others.
func TestListenerHearsItsProbeBeforeItCallsItLost(t *testing.T) {
	for name, tc := range map[string]struct {
		slow, busy, comes time.Duration
		lost              bool
	}{
		"while it subscribes":          {slow: probeWait + time.Second, comes: time.Second},
		"after a statement":            {busy: probeWait + 2*time.Second, comes: probeWait + 2*time.Second},
		"not after a statement":        {busy: probeWait + 2*time.Second, comes: time.Minute, lost: true},
		"not for as long as one takes": {busy: time.Hour, comes: time.Minute, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t)
				probe := make(chan [2]string, 10)
				s.Notify = func(_ context.Context, channel, payload string) error {
					probe <- [2]string{channel, payload}
					return nil
				}
				s.busy = time.Now().Add(tc.busy)
				s.Want("own")
				s.want(t, "+own", "changed own")
				s.mu.Lock()
				s.slow = tc.slow
				s.mu.Unlock()
				s.Want("lock")
				first, sent := s.last(), <-probe
				time.AfterFunc(tc.comes, func() { first.said <- sent })
				time.Sleep(protocol.Patience + probeWait)
				if told := s.told(); slices.Contains(told, "closed") != tc.lost ||
					count(told, "deaf ") > 0 != tc.lost || slices.Contains(told, "hears true") == tc.lost {
					t.Errorf("told %q, want that it is lost: %v", told, tc.lost)
				}
			})
		})
	}
}

// The statement of others may end after the listener has waited and before it asks whether there is one.
func TestListenerHearsAProbeThatCameWithTheEndOfAStatement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		probe := make(chan [2]string, 10)
		s.Notify = func(_ context.Context, channel, payload string) error {
			probe <- [2]string{channel, payload}
			return nil
		}
		s.asked = func() { s.last().said <- <-probe }
		s.Want("own")
		time.Sleep(probeWait + time.Second)
		s.want(t, "+own", "changed own", "hears true")
	})
}

func TestListenerThatNobodyWantsIsNotDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true")
		s.Unwant("own")
		close(s.last().said)
		s.want(t, "hears false", "closed")
		time.Sleep(time.Hour)
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true")
	})
}

// Who was told that nothing is heard is told of the end of that, though nobody wanted to hear anything meanwhile.
func TestListenerThatNobodyWantsWhileItIsDeafIsBackLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		fails := func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.down = err
		}
		fails(errors.New("no server"))
		s.Want("own")
		synctest.Wait()
		s.want(t, "deaf 1: no server")
		s.Unwant("own")
		time.Sleep(time.Hour)
		s.want(t)
		fails(nil)
		s.Want("own")
		s.want(t, "+own", "changed own", "hears true", "back: no server")
		if s.since != 0 {
			t.Errorf("it says that it was deaf for %v, want 0: nobody wanted to hear", s.since)
		}
		close(s.last().said)
		time.Sleep(2 * firstRetry)
		s.want(t, "hears false", "closed", "deaf 1: broken", "+own", "changed own", "hears true", "back: broken")
	})
}

func TestListenerThatCannotSendItsProbeSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.mu.Lock()
		s.mute = errors.New("no connection is free")
		s.mu.Unlock()
		s.Want("own")
		time.Sleep(10 * time.Second)
		if got := s.told(); count(got, "deaf ") < 2 || slices.Contains(got, "closed") {
			t.Errorf("told %q while no probe can be sent", got)
		}
		s.mu.Lock()
		s.mute = nil
		s.mu.Unlock()
		time.Sleep(10 * time.Second)
		if got := s.told(); !slices.Equal(got[max(0, len(got)-2):],
			[]string{"hears true", "back: send a notification to itself: no connection is free"}) {
			t.Errorf("told %q after a probe came through", got)
		}
	})
}

func count(all []string, prefix string) (n int) {
	for _, text := range all {
		if strings.HasPrefix(text, prefix) {
			n++
		}
	}
	return n
}

// A bus delivers each probe to all stages but those that are cut off, as the server does.
type bus struct {
	mu     sync.Mutex
	stages []*stage
	cut    map[*stage]bool // hears nothing
	split  map[*stage]bool // hears the others and not itself: its notifications go to another server
	sent   int
}

func (b *bus) notify(from *stage, channel, payload string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent++
	for _, s := range b.stages {
		if b.cut[s] || s == from && b.split[s] || !s.connected() {
			continue
		}
		select {
		case s.last().said <- [2]string{channel, payload}:
		default: // its connection is not read
		}
	}
}

// join starts a listener on the bus.
func (b *bus) join(t *testing.T) *stage {
	s := start(t)
	b.mu.Lock()
	b.stages = append(b.stages, s)
	s.Own = fmt.Sprint("own ", len(b.stages))
	b.mu.Unlock()
	s.Notify = func(_ context.Context, channel, payload string) error {
		b.notify(s, channel, payload)
		return nil
	}
	return s
}

// fails makes a line of a listener's fail so.
func (b *bus) fails(so map[*stage]bool, s *stage) {
	b.mu.Lock()
	defer b.mu.Unlock()
	so[s] = true
}

// Every notification wakes every listener of the database: of a thousand that wait, one proves for all that they hear.
func TestListenersCountOnTheProbesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{}
		const many = 100
		for range many {
			s := b.join(t)
			s.Want(s.Own)
			s.want(t, "+"+s.Own, "changed "+s.Own, "hears true")
			time.Sleep(time.Second)
		}
		b.mu.Lock()
		b.sent = 0
		b.mu.Unlock()
		time.Sleep(ownEvery)
		b.mu.Lock()
		n := b.sent
		b.mu.Unlock()
		if least, most := int(ownEvery/probeEvery), many+2*int(ownEvery/probeEvery); n < least || n > most {
			t.Errorf("%d probes of %d listeners in %v, want %d to %d", n, many, ownEvery, least, most)
		}
		for _, s := range b.stages {
			s.want(t)
		}
	})
}

// Listeners that connect at the same moment, as after a restart of the server, do not send at the same moment ever
// after.
func TestListenersThatStartTogetherGetOutOfStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{}
		const many = 100
		for range many {
			s := b.join(t)
			s.Want(s.Own)
		}
		sent := func() int {
			synctest.Wait()
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.sent
		}
		time.Sleep(probeWait)
		for began, before := time.Now(), sent(); time.Since(began) < 2*ownEvery; before = sent() {
			time.Sleep(time.Second)
			if n := sent() - before; n > many/5 {
				t.Errorf("%d of %d listeners send in one second", n, many)
			}
		}
	})
}

func TestListenerThatHearsOnlyOthersIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bus{cut: make(map[*stage]bool), split: make(map[*stage]bool)}
		for range 10 {
			s := b.join(t)
			s.Want(s.Own)
			time.Sleep(time.Second)
		}
		cut, split := b.stages[3], b.stages[7]
		cut.told()
		b.fails(b.cut, cut)
		time.Sleep(probeEvery + probeWait)
		if got := cut.told(); !slices.Contains(got, "hears false") {
			t.Errorf("on a dead line: told %q", got)
		}
		b.fails(b.split, split)
		b.notify(nil, probes, "a probe of somebody else")
		split.told()
		for range (ownEvery + probeWait) / (5 * time.Second) { // before its own turn comes
			b.notify(nil, probes, "a probe of somebody else")
			time.Sleep(5 * time.Second)
		}
		time.Sleep(5 * time.Second)
		if got := split.told(); !slices.Contains(got, "hears false") {
			t.Errorf("on a connection to another server: told %q", got)
		}
		late := b.join(t)
		b.fails(b.split, late)
		late.Want(late.Own)
		for range ownEvery / time.Second {
			time.Sleep(time.Second)
			b.notify(nil, probes, "a probe of somebody else")
		}
		if got := late.told(); slices.Contains(got, "hears true") {
			t.Errorf("a listener that has never heard its own probe: told %q", got)
		} else if attempts := count(got, "deaf "); attempts < 5 || attempts > 30 {
			t.Errorf("%d connections in %v, want fewer and fewer", attempts, ownEvery)
		}
	})
}
