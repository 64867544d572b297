package pglock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/trust"
)

// logs are the lines that a SlogObserver writes, without the time.
func logs(level slog.Level, events ...Event) []string {
	var out bytes.Buffer
	o := SlogObserver(slog.New(slog.NewTextHandler(&out,
		&slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})))
	for _, e := range events {
		o.Observe(context.Background(), e)
	}
	return strings.FieldsFunc(out.String(), func(r rune) bool { return r == '\n' })
}

func TestSlogObserverSpeaksOfWhatAPersonMustActOnAndOfNothingElse(t *testing.T) {
	lost := &LostError{Lock: "report", Token: 7, Reason: ReasonExpired, Err: errReset}
	lease := Event{Lock: "report", Mode: ModeExclusive, Token: 7, Holder: "me", TTL: 30 * time.Second}
	with := func(kind EventKind, change func(*Event)) Event {
		e := lease
		e.Kind = kind
		change(&e)
		return e
	}
	for _, tc := range []struct {
		event Event
		want  string // the beginning of the line; "" for none
	}{
		{with(EventWait, func(*Event) {}), ""},
		{with(EventGrant, func(*Event) {}), ""},
		{with(EventFailed, func(e *Event) { e.Err = ErrHeld }), ""},
		{with(EventRenew, func(e *Event) { e.Gap = 10 * time.Second }), ""},
		{with(EventRenewLate, func(e *Event) {
			e.Gap = 25 * time.Second
		}), `level=WARN msg="pglock: leases were renewed late"`},
		{with(EventRenewFailed, func(e *Event) { e.Gap, e.Err = 14*time.Second, errReset }), ""},
		{with(EventRenewFailed, func(e *Event) {
			e.Gap, e.Err = 15*time.Second, errReset
		}), `level=WARN msg="pglock: renewals fail, and leases will be lost if that lasts"`},
		{with(EventLost, func(e *Event) {
			e.Reason, e.Err = ReasonExpired, lost
		}), `level=WARN msg="pglock: a lease was lost"`},
		{with(EventHeldLong, func(e *Event) {
			e.Held = time.Hour
		}), `level=INFO msg="pglock: a lease has been renewed for longer than an hour`},
		{with(EventRelease, func(*Event) {}), ""},
		{with(EventOutlived, func(e *Event) { e.Late = time.Second }), ""},
		{with(EventOutlived, func(e *Event) {
			e.Late = time.Second + 1
		}), `level=ERROR msg="pglock: work went on after its lease was lost"`},
		{with(EventOutlived, func(e *Event) {
			e.TTL, e.Late = time.Second, 51*time.Millisecond
		}), `level=ERROR msg="pglock: work went on after its lease was lost"`},
		{with(EventHandOver, func(*Event) {}), ""},
		{with(EventWrite, func(*Event) {}), ""},
		{with(EventStale, func(e *Event) {
			e.LastToken, e.Err = 8, errors.New("stale")
		}), `level=WARN msg="pglock: a write with a stale token was refused"`},
		{with(EventRefused, func(e *Event) { e.Err = lost }), ""},
		{with(EventRefused, func(e *Event) { e.Err = ErrReleased }), ""},
		{with(EventRefused, func(e *Event) {
			e.Err = ErrPermission
		}), `level=WARN msg="pglock: a fenced write was refused"`},
		{Event{Kind: EventRefused, Err: errors.New("no token")}, ""}, // anybody may send such requests to a service
		{with(EventOutcomeUnknown, func(e *Event) {
			e.Err = ErrOutcomeUnknown
		}), `level=ERROR msg="pglock: nobody could say whether a fenced write was committed"`},
		{Event{Kind: EventReconnect, Connection: connectionHeartbeat, Err: errReset}, ""},
		{Event{Kind: EventReconnect, Connection: connectionListener, Err: errReset}, ""},
		{Event{Kind: EventPolling, Took: 9 * time.Second, Err: errReset}, ""},
		{Event{Kind: EventPolling, Took: 10 * time.Second, Err: errReset},
			`level=WARN msg="pglock: no notifications arrive, so waiting calls poll"`},
		{Event{Kind: EventPolling, Err: fmt.Errorf("so: %w", listener.ErrDeaf)},
			`level=WARN msg="pglock: no notifications arrive, so waiting calls poll"`},
		{Event{Kind: EventUnnamed, Count: 1, Err: errReset}, ""},
		{Event{Kind: EventUnnamed, Count: 2, Err: errReset},
			`level=WARN msg="pglock: prepared statements get lost, so statements go without names, which is slower"`},
		{Event{Kind: EventObserver, Count: 5, Panics: 1, Err: errReset},
			`level=WARN msg="pglock: an observer was too slow, or panicked"`},
	} {
		got := logs(slog.LevelInfo, tc.event)
		switch {
		case tc.want == "" && len(got) > 0, tc.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], tc.want)):
			t.Errorf("%+v: logged %q, want %q", tc.event, got, tc.want)
		}
		want := tc.want
		if want == "" {
			want = fmt.Sprintf(`level=DEBUG msg="pglock: %s"`, tc.event.Kind)
		}
		if got := logs(slog.LevelDebug, tc.event); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%+v: logged %q for debugging, want %q", tc.event, got, want)
		}
	}
	line := logs(slog.LevelInfo, with(EventLost, func(e *Event) {
		e.Reason, e.Held, e.Gap, e.Err = ReasonExpired, time.Minute, 29*time.Second, lost
	}))[0]
	want := `level=WARN msg="pglock: a lease was lost" lock=report mode=exclusive token=7 holder=me ttl=30s held=1m0s reason=expired gap=29s ` +
		`err="pglock: lease of lock \"report\" with token 7 is lost: expired: connection reset by peer"`
	if line != want {
		t.Errorf("logged\n%s\nwant\n%s", line, want)
	}
}

func TestSlogObserverTellsOnceOfWhatLastsAndOnceOfItsEnd(t *testing.T) {
	failed := Event{Kind: EventRenewFailed, TTL: time.Second, Gap: 600 * time.Millisecond, Err: errReset}
	polling := Event{Kind: EventPolling, Err: listener.ErrDeaf, Connection: connectionListener}
	got := logs(slog.LevelInfo, failed, failed, Event{Kind: EventRenew}, Event{Kind: EventRenew}, failed,
		polling, polling, Event{Kind: EventReconnect, Connection: connectionHeartbeat},
		Event{Kind: EventReconnect, Connection: connectionListener},
		Event{Kind: EventReconnect, Connection: connectionListener}, polling)
	want := []string{"renewals fail", "renewals work again", "renewals fail", "no notifications arrive",
		"notifications arrive again", "no notifications arrive"}
	if len(got) != len(want) {
		t.Fatalf("logged %q", got)
	}
	for i, line := range got {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d is %q, want %q", i, line, want[i])
		}
	}
}

// An extended lease goes on for longer than its TTL.
func TestSlogObserverTellsOnceOfAnExtendedLeaseThatIsNotRenewed(t *testing.T) {
	var events []Event
	for i := range 4 {
		at := time.Now().Add(time.Duration(i) * 2 * time.Second)
		events = append(events, Event{Kind: EventRenewFailed, Lock: "a", Token: 7, TTL: 10 * time.Second, At: at,
			Gap: 9*time.Second + time.Duration(i)*2*time.Second, Err: errReset},
			Event{Kind: EventRenew, Lock: "b", Token: 8, TTL: 10 * time.Second, At: at.Add(time.Second)})
	}
	if got := logs(slog.LevelInfo, events...); len(got) != 1 {
		t.Errorf("logged %q, want one line", got)
	}
}

// That other leases are renewed says nothing of the one that is not, until that is over.
func TestSlogObserverSaysThatRenewalsWorkAgainWhenTheFailedOneDoes(t *testing.T) {
	began := time.Now()
	at := func(kind EventKind, lock string, after, gap time.Duration) Event {
		return Event{Kind: kind, Lock: lock, Token: 7, TTL: 10 * time.Second, At: began.Add(after), Gap: gap,
			Err: errReset}
	}
	fails, renewed := at(EventRenewFailed, "a", 0, 6*time.Second), at(EventRenew, "b", time.Second, 0)
	for what, tc := range map[string]struct {
		then []Event
		want string
	}{
		"itself":                {[]Event{renewed, at(EventRenew, "a", 2*time.Second, 0)}, "renewals work again"},
		"others, when it ended": {[]Event{at(EventRelease, "a", time.Second, 0), renewed}, "renewals work again"},
		"a failure after it ended": {[]Event{at(EventRelease, "a", time.Second, 0),
			at(EventRenewFailed, "b", 2*time.Second, 6*time.Second)}, "renewals fail"},
		"others, when its end was missed": {[]Event{renewed, at(EventRenew, "b", 10*time.Second, 0)},
			"renewals work again"},
	} {
		got := logs(slog.LevelInfo, append([]Event{fails}, tc.then...)...)
		if len(got) != 2 || !strings.Contains(got[1], tc.want) || !strings.Contains(got[1], "lock="+tc.then[1].Lock) {
			t.Errorf("%s: logged %q, want at last %q", what, got, tc.want)
		}
	}
}

func TestSlogObserverCountsWhatItDoesNotLog(t *testing.T) {
	began := time.Now()
	var events []Event
	for i := range 500 {
		events = append(events, Event{Kind: EventLost, At: began.Add(time.Duration(i) * time.Millisecond),
			Err: &LostError{}})
	}
	events = append(events, Event{Kind: EventStale, At: began.Add(time.Second), Err: errReset},
		Event{Kind: EventRenew, At: began.Add(time.Minute)},
		Event{Kind: EventLost, At: began.Add(2 * time.Minute), Err: &LostError{}})
	got := logs(slog.LevelInfo, events...)
	if len(got) != loggedMost+3 {
		t.Fatalf("%d lines", len(got))
	}
	for i, want := range []string{"stale", `more events of this kind were not logged" kind=lost count=480`,
		"a lease was lost"} {
		if line := got[loggedMost+i]; !strings.Contains(line, want) {
			t.Errorf("line %q, want %q", line, want)
		}
	}
}

func TestSlogObserverOfAClientIsQuietWhileAllIsWell(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(),
			WithObserver(SlogObserver(slog.New(slog.NewTextHandler(&out, nil)))))
		for range 10 {
			must.Do(t, mustAcquire(t, c, "report").Release(t.Context()))
		}
		l := mustAcquire(t, c, "kept")
		time.Sleep(time.Hour)
		if synctest.Wait(); out.Len() > 0 {
			t.Errorf("logged %s", out.String())
		}
		s.set(func() { s.onRenewAll = hangs })
		<-l.Context().Done()
		if synctest.Wait(); strings.Count(out.String(), "\n") != 2 ||
			!strings.Contains(out.String(), "renewals fail") || !strings.Contains(out.String(), "a lease was lost") {
			t.Errorf("logged %s", out.String())
		}
	})
}

func TestSlogObserverOfNilLogsToTheDefault(t *testing.T) {
	if o := SlogObserver(nil).(*slogObserver); o.logger != slog.Default() {
		t.Error("it has another logger")
	}
}
