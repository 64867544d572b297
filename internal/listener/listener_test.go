package listener

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stage is a listener with connections that the test speaks through.
type stage struct {
	*Listener
	mu    sync.Mutex
	all   []string // what was told, in order
	conns []*conn  // that were made
	deaf  bool     // probes do not come through
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
			s.conns = append(s.conns, &conn{s, make(chan [2]string, 10), false})
			return s.conns[len(s.conns)-1], nil
		},
		Notify: func(_ context.Context, channel, payload string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if !s.deaf {
				s.conns[len(s.conns)-1].said <- [2]string{channel, payload}
			}
			return nil
		},
		Hint:    func(text string) { s.note("hint " + text) },
		Changed: func(channel string) { s.note("changed " + channel) },
		Hears:   func(hears bool) { s.note(fmt.Sprint("hears ", hears)) },
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

func (s *stage) last() *conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[len(s.conns)-1]
}

func (c *conn) Subscribe(_ context.Context, channel string) error {
	c.stage.note("+" + channel)
	return nil
}

func (c *conn) Unsubscribe(_ context.Context, channel string) error {
	c.stage.note("-" + channel)
	return nil
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

func (c *conn) Close() { c.stage.note("closed") }

func (s *stage) want(t *testing.T, want ...string) {
	t.Helper()
	if got := s.told(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestListenerHearsWhatIsWantedWhileItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		if s.want(t); s.Started() {
			t.Error("it has started although nobody wants to hear anything")
		}
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
		s.want(t, "closed", "hears false")
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
		s.want(t, "closed", "hears false", "+own", "changed own", "hears true")
		s.mu.Lock()
		s.deaf = true
		s.mu.Unlock()
		time.Sleep(probeEvery + probeWait + time.Millisecond)
		if got := s.told(); len(got) < 2 || got[0] != "closed" || got[1] != "hears false" || slices.Contains(got, "hears true") {
			t.Errorf("told %q when nothing is heard any more", got)
		}
	})
}
