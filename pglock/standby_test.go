package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/takeback"
	"github.com/pglock-dev/pglock/internal/trust"
)

// A standby refuses whatever it is asked, and each refusal costs a connection. So nobody asks it for each lease alone;
// Close and the heartbeat ask again until a primary answers.
func TestWhatEndsWithTheClientWaitsForAPrimary(t *testing.T) {
	const away, most = time.Second, 12
	code := "25006"
	refuses := func(s *fakeStore) error {
		if time.Since(s.began) < away {
			return sqlError(code)
		}
		return nil
	}
	t.Run("Close releases", fakeClock(func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(context.Context, []protocol.Claim) error { return refuses(s) }
		c := startClient(t, s, trust.SystemClock())
		for i := range 8 {
			mustAcquire(t, c, fmt.Sprint("report ", i))
		}
		err, asked := c.Close(t.Context()), s.of("releaseAll")
		if err != nil || len(asked) > most || len(asked[len(asked)-1].names) != 8 {
			t.Errorf("Close: %v after %d statements: %v", err, len(asked), asked)
		}
	}))
	for _, way := range []struct {
		name, code string
		within     time.Duration
	}{
		{"Close takes back", "25006", 0},
		{"the heartbeat takes back", "25006", 2 * away},
		{"a right was revoked for a moment", "42501", 2 * away},
	} {
		t.Run(way.name, fakeClock(func(t *testing.T, s *fakeStore) {
			code = way.code
			s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
				return protocol.TakenBack{}, refuses(s)
			}
			c := startClient(t, s, trust.SystemClock())
			var ups []*takeback.Request
			for i := range 8 {
				ups = append(ups, leaves(c, fmt.Sprint("report ", i), false))
			}
			if time.Sleep(way.within); way.within == 0 {
				if err := c.Close(t.Context()); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			if asked := s.of("giveUp"); len(asked) > most {
				t.Errorf("%d statements: %v", len(asked), asked)
			}
			for _, u := range ups {
				if len(u.Done) == 0 {
					t.Errorf("%s was not taken back", u.Name)
				}
			}
		}))
	}
}

// What the server does not release, for whatever reason, is taken back in the background: the heartbeat renews it no
// more, but after an extension it may last for hours.
func TestReleaseThatTheServerRefusesGoesOnInTheBackground(t *testing.T) {
	for _, code := range []string{"25006", "53200", "57014", "42501"} {
		for _, name := range []string{"a lease", "an extended lease", "before Close"} {
			t.Run(code+", "+name, fakeClock(func(t *testing.T, s *fakeStore) {
				s.onRelease = func(context.Context, protocol.Claim) (bool, error) { return false, sqlError(code) }
				c := startClient(t, s, trust.SystemClock())
				l := mustAcquire(t, c, "report")
				if name == "an extended lease" {
					if _, err := l.Extend(t.Context(), 12*time.Hour); err != nil {
						t.Fatal(err)
					}
				}
				if err := l.Release(t.Context()); protocol.State(err) != code {
					t.Errorf("Release: %v, want %s", err, code)
				}
				if name == "before Close" {
					must.Note(t, c.Close(t.Context()))
				}
				time.Sleep(time.Second)
				if got := s.takenBack(); !slices.Equal(got, []string{"report"}) {
					t.Errorf("taken back: %q", got)
				}
			}))
		}
	}
}

// A call that stops waiting because its looks fail says so as any other call does.
func TestACallWhoseLooksFailSaysWhyAsOthersDo(t *testing.T) {
	for code, want := range map[string]error{"25006": ErrReadOnly, "42501": ErrPermission, "42883": ErrSchema} {
		t.Run(code, fakeClock(func(t *testing.T, s *fakeStore) {
			queued(s, time.Hour)
			s.onLook = func(context.Context, []int64) (map[int64]protocol.Sighting, error) {
				return nil, sqlError(code)
			}
			_, err := startClient(t, s, trust.SystemClock()).Acquire(t.Context(), "report")
			if took := time.Since(s.began); !errors.Is(err, want) || !errors.Is(err, ErrHeld) || took > 2*outage {
				t.Errorf("%v after %v, want %v and ErrHeld", err, took, want)
			}
		}))
	}
}

// So does Close.
func TestCloseSaysWhyAsOthersDo(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onReleaseAll = func(context.Context, []protocol.Claim) error { return sqlError("25006") }
		s.onGiveUp = func(context.Context, protocol.RequestID) (protocol.TakenBack, error) {
			return protocol.TakenBack{}, sqlError("42501")
		}
		c := startClient(t, s, trust.SystemClock())
		mustAcquire(t, c, "report")
		leaves(c, "other", false)
		if err := c.Close(t.Context()); !errors.Is(err, ErrPermission) || !errors.Is(err, ErrReadOnly) {
			t.Errorf("%v, want ErrPermission and ErrReadOnly", err)
		}
	})
}

// After a pause of the program in which its patience has passed, a call asks once more.
func TestACallAsksOnceMoreWhenItsPatienceIsOver(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		s.onAcquire = func(_ context.Context, asked call) (protocol.Answer, error) {
			if time.Since(s.began) < outage {
				return protocol.Answer{}, errReset
			}
			return s.grants(asked.request), nil
		}
		l, err := startClient(t, s, trust.SystemClock()).Acquire(t.Context(), "report")
		if took := time.Since(s.began); err != nil || took != outage {
			t.Errorf("%v, %v after %v", l, err, took)
		}
	})
}
