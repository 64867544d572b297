package pglock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/puddle/v2"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/trust"
)

var someTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// held and the others are what the server tells of one slot.
func held(slot int, token Token, holder string) LockInfo {
	return LockInfo{Slot: slot, Token: token, Holder: holder, Held: true, TTL: time.Hour,
		AcquiredAt: someTime.Add(time.Duration(token)),
		ExpiresAt:  someTime.Add(time.Hour), Remaining: time.Hour}
}

func released(i LockInfo) LockInfo {
	i.Held, i.Remaining, i.ExpiresAt, i.EndedAt = false, 0, time.Time{}, someTime.Add(time.Minute)
	return i
}

func expired(i LockInfo) LockInfo {
	i.Held, i.Remaining = false, 0
	return i
}

func brokenWith(token Token, i LockInfo) LockInfo {
	i = released(i)
	i.Token = token
	return i
}

func renewed(i LockInfo) LockInfo {
	i.RenewedAt, i.ExpiresAt = someTime.Add(time.Minute), i.ExpiresAt.Add(time.Minute)
	return i
}

func TestWatchTellsWhatHasChangedFromOneLookToTheNext(t *testing.T) {
	a5, b6 := held(0, 5, "a"), held(0, 6, "b")
	r7, s8 := held(1, 7, "r"), held(2, 8, "s")
	for name, tc := range map[string]struct {
		before, after []LockInfo
		kind          ChangeKind // "" for none
		token         Token
		holders       []Token
	}{
		"nothing, held":             {[]LockInfo{a5}, []LockInfo{a5}, "", 0, nil},
		"nothing, free":             {[]LockInfo{released(a5)}, []LockInfo{released(a5)}, "", 0, nil},
		"renewed":                   {[]LockInfo{a5}, []LockInfo{renewed(a5)}, "", 0, nil},
		"granted to the first ever": {nil, []LockInfo{a5}, ChangeGranted, 5, []Token{5}},
		"granted":                   {[]LockInfo{released(a5)}, []LockInfo{b6}, ChangeGranted, 6, []Token{6}},
		"granted after an expiry":   {[]LockInfo{expired(a5)}, []LockInfo{b6}, ChangeGranted, 6, []Token{6}},
		"granted again to the same": {[]LockInfo{a5}, []LockInfo{held(0, 6, "a")}, ChangeGranted, 6, []Token{6}},
		"handed over":               {[]LockInfo{a5}, []LockInfo{b6}, ChangeGranted, 6, []Token{6}},
		"released":                  {[]LockInfo{a5}, []LockInfo{released(a5)}, ChangeReleased, 5, nil},
		"expired":                   {[]LockInfo{a5}, []LockInfo{expired(a5)}, ChangeExpired, 5, nil},
		"broken":                    {[]LockInfo{a5}, []LockInfo{brokenWith(9, a5)}, ChangeBroken, 9, nil},
		"handed over and released":  {[]LockInfo{a5}, []LockInfo{released(b6)}, ChangeReleased, 6, nil},
		"handed over and expired":   {[]LockInfo{a5}, []LockInfo{expired(b6)}, ChangeExpired, 6, nil},
		"granted and released": {[]LockInfo{released(a5)}, []LockInfo{released(b6)}, ChangeReleased, 6,
			nil},
		"granted again, released": {[]LockInfo{a5}, []LockInfo{released(held(0, 6, "a"))}, ChangeReleased, 6,
			nil},
		"a slot granted": {[]LockInfo{released(a5), r7}, []LockInfo{released(a5), r7, s8},
			ChangeGranted, 8, []Token{7, 8}},
		"two slots granted": {[]LockInfo{released(a5)}, []LockInfo{released(a5), s8, r7}, ChangeGranted,
			8, []Token{7, 8}},
		"a slot released": {[]LockInfo{released(a5), r7, s8}, []LockInfo{released(a5), released(r7),
			s8}, ChangeReleased, 7, []Token{8}},
		"a slot broken": {[]LockInfo{released(a5), r7, s8},
			[]LockInfo{released(a5), r7, brokenWith(9, s8)}, ChangeBroken, 9, []Token{7}},
		"one released, one granted": {[]LockInfo{released(a5), r7}, []LockInfo{released(a5), released(r7), s8},
			ChangeGranted, 8, []Token{8}},
		"one granted, one released": {[]LockInfo{released(a5), s8}, []LockInfo{released(a5), held(1, 10, "t"),
			released(s8)}, ChangeGranted, 10, []Token{10}},
		"gone":                                 {[]LockInfo{a5}, nil, ChangeExpired, 5, nil}, // as after a failover
		"gone, and the one before is back":     {[]LockInfo{b6}, []LockInfo{released(a5)}, ChangeExpired, 6, nil},
		"gone, and the one before had expired": {[]LockInfo{b6}, []LockInfo{expired(a5)}, ChangeExpired, 6, nil},
		"gone, and the one before holds":       {[]LockInfo{b6}, []LockInfo{a5}, ChangeGranted, 5, []Token{5}},
		"a free one gone, and the one before is back": {[]LockInfo{released(b6)}, []LockInfo{released(a5)}, "", 0,
			nil},
		"a slot gone": {[]LockInfo{released(a5), r7, s8}, []LockInfo{released(a5), r7}, ChangeExpired, 8,
			[]Token{7}},
		"one gone, one granted": {[]LockInfo{released(a5), r7}, []LockInfo{released(a5), s8}, ChangeGranted, 8,
			[]Token{8}},
		"a free slot gone":                 {[]LockInfo{a5, released(r7)}, []LockInfo{a5}, "", 0, nil},
		"a free slot that was used before": {[]LockInfo{a5}, []LockInfo{a5, released(r7)}, "", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, changed := compare(tc.before, tc.after)
			if changed != (tc.kind != "") {
				t.Fatalf("%+v, changed: %v", got, changed)
			}
			if !changed {
				return
			}
			var holders []Token
			for _, h := range got.Holders {
				holders = append(holders, h.Token)
			}
			if ended := tc.kind != ChangeGranted; got.Lease.Held == ended {
				t.Errorf("%s: the lease is said to be held: %v", got.Kind, got.Lease.Held)
			}
			if got.Kind != tc.kind || got.Lease.Token != tc.token || !slices.Equal(holders, tc.holders) {
				t.Errorf("%s of token %d, held by %v; want %s of %d, held by %v", got.Kind, got.Lease.Token, holders,
					tc.kind, tc.token, tc.holders)
			}
		})
	}
}

// watched is a lock whose state a test sets.
type watched struct {
	s     *fakeStore
	mu    sync.Mutex
	infos []LockInfo
	err   error
}

func newWatched(s *fakeStore, infos ...LockInfo) *watched {
	w := &watched{s: s, infos: infos}
	s.onWatch = func(context.Context, string) ([]LockInfo, string, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(w.infos), "watched", w.err
	}
	return w
}

func (w *watched) becomes(infos ...LockInfo) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.infos = infos
}

// told is what a loop over a watch is given.
type told struct {
	Change
	err error
}

// watching reads a watch in a goroutine of its own; the channel is closed when the loop has ended.
func watching(ctx context.Context, c *Client) <-chan told {
	out := make(chan told)
	go func() {
		defer close(out)
		for change, err := range c.Watch(ctx, "report") {
			select {
			case out <- told{change, err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

func expect(t *testing.T, changes <-chan told, kind ChangeKind, token Token) {
	t.Helper()
	if got, open := <-changes; !open || got.err != nil || got.Kind != kind || got.Lease.Token != token {
		t.Errorf("%+v, open: %v; want %s of token %d", got, open, kind, token)
	}
}

func TestWatchTellsTheStateFirstAndThenWhatItHears(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		e := hearing(s)
		w := newWatched(s, released(held(0, 5, "a")))
		c := startClient(t, s, trust.SystemClock())
		changes := watching(t.Context(), c)
		expect(t, changes, ChangeState, 5)
		for token := Token(6); token < 20; token += 2 {
			lease := held(0, token, "b")
			for _, step := range []struct {
				is   LockInfo
				kind ChangeKind
			}{{lease, ChangeGranted}, {released(lease), ChangeReleased}} {
				time.Sleep(time.Second / 2)
				w.becomes(step.is)
				told := time.Now()
				e.said <- [2]string{"watched", ""}
				expect(t, changes, step.kind, token)
				if late := time.Since(told); late != 0 {
					t.Errorf("told %v after it was heard", late)
				}
			}
		}
		if !slices.Contains(e.listens(), "watched") {
			t.Errorf("it listens to %v", e.listens())
		}
	})
}

func TestWatchSeesEachChangeByItselfWhereItHearsNothing(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		w := newWatched(s, held(0, 5, "a"))
		changes := watching(t.Context(), startClient(t, s, trust.SystemClock()))
		expect(t, changes, ChangeState, 5)
		time.Sleep(time.Minute)
		before := len(s.of("watch"))
		time.Sleep(time.Minute)
		// A listener that tries to listen again makes it look too, a few times a minute.
		if n, want := len(s.of("watch"))-before, 60; n < want-1 || n > want+5 {
			t.Errorf("%d looks in a minute, want %d", n, want)
		}
		w.becomes(held(0, 6, "b"))
		began := time.Now()
		expect(t, changes, ChangeGranted, 6)
		if late := time.Since(began); late > time.Second { // as the contract says
			t.Errorf("told after %v, want within a second", late)
		}
	})
}

// While notifications arrive, a watch looks for what nobody has announced: often while the lock changes, and seldom
// when it stands still.
func TestWatchThatHearsLooksSeldomAtALockThatStandsStill(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		w := newWatched(s, held(0, 5, "a"))
		c := startClient(t, s, trust.SystemClock())
		changes := watching(t.Context(), c)
		expect(t, changes, ChangeState, 5)
		const more = 99
		for range more {
			go func() {
				for range watching(t.Context(), c) {
				}
			}()
		}
		for token, still := range []time.Duration{0, time.Second, time.Minute, 5 * time.Minute} {
			time.Sleep(still)
			w.becomes(held(0, Token(6+token), "b"))
			began := time.Now()
			expect(t, changes, ChangeGranted, Token(6+token))
			limit := max(time.Second, min(still/10, 20*time.Second)) // as the contract says
			if late := time.Since(began); late > limit {
				t.Errorf("told %v after an unannounced change of a lock that had stood for %v, want %v at most", late,
					still, limit)
			}
		}
		time.Sleep(5 * time.Minute)
		before := len(s.of("watch"))
		time.Sleep(time.Minute)
		if n := len(s.of("watch")) - before; n < 2*more || n > 5*more {
			t.Errorf("%d looks of %d watches in a minute, want 3 to 4 each", n, more+1)
		}
	})
}

func TestWatchLooksWhenALeaseEndsBecauseNobodyTellsOfIt(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		lease := held(0, 5, "a")
		end := time.Now().Add(3210 * time.Millisecond)
		s.onWatch = func(context.Context, string) ([]LockInfo, string, error) {
			now := lease
			if now.Remaining = time.Until(end); now.Remaining <= 0 {
				now = expired(lease)
			}
			return []LockInfo{now}, "watched", nil
		}
		changes := watching(t.Context(), startClient(t, s, trust.SystemClock()))
		expect(t, changes, ChangeState, 5)
		expect(t, changes, ChangeExpired, 5)
		if late := time.Since(end); late < 0 || late > 5*time.Millisecond {
			t.Errorf("told %v after the end", late)
		}
	})
}

// A holder that ends an extension tells nobody: from then on its lease may last for no longer than its TTL.
func TestWatchLooksWithinTheTTLOfAnExtendedLease(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		lease := held(0, 5, "a")
		lease.TTL = 10 * time.Second
		shortened := time.Now().Add(5 * time.Minute)
		end := shortened.Add(lease.TTL)
		s.onWatch = func(context.Context, string) ([]LockInfo, string, error) {
			now := lease
			if time.Now().After(shortened) {
				now.Remaining = time.Until(end)
			}
			if now.Remaining <= 0 {
				now = expired(lease)
			}
			return []LockInfo{now}, "watched", nil
		}
		c := startClient(t, s, trust.SystemClock())
		var all []<-chan told
		for range 20 { // they look at different times
			all = append(all, watching(t.Context(), c))
		}
		for _, changes := range all {
			expect(t, changes, ChangeState, lease.Token)
		}
		time.Sleep(time.Until(end) + time.Second)
		synctest.Wait()
		for i, changes := range all {
			select {
			case <-changes:
			default:
				t.Errorf("watch %d has not told of the expiry within a second", i)
			}
		}
	})
}

func TestSlowReaderOfAWatchGetsTheNewestChange(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		e := hearing(s)
		w := newWatched(s, released(held(0, 5, "a")))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kind, last, round := ChangeState, Token(5), 0
		for got, err := range startClient(t, s, trust.SystemClock()).Watch(ctx, "report") {
			if err != nil || got.Kind != kind || got.Lease.Token != last {
				t.Errorf("%+v, %v; want %s of token %d", got, err, kind, last)
			}
			if round++; round == 10 {
				time.AfterFunc(time.Minute, cancel) // another change would come before
				continue
			}
			first := Token(100 * round)
			kind, last = ChangeGranted, first+49
			for token := first; token <= last; token++ {
				w.becomes(held(0, token, "b"))
				e.said <- [2]string{"watched", ""}
				synctest.Wait()
			}
			if round%2 == 0 {
				kind = ChangeReleased
				w.becomes(released(held(0, last, "b")))
				e.said <- [2]string{"watched", ""}
				synctest.Wait()
			}
		}
		if round != 10 {
			t.Errorf("%d changes, want the newest of 10", round)
		}
	})
}

func TestWatchEndsWithItsContextAndWithTheClient(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		e := hearing(s)
		newWatched(s, held(0, 5, "a"))
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		a, b := watching(ctx, c), watching(t.Context(), c)
		expect(t, a, ChangeState, 5)
		expect(t, b, ChangeState, 5)
		time.Sleep(time.Second)
		cancel()
		if got, open := <-a; open {
			t.Errorf("%+v after the end of its context", got)
		}
		synctest.Wait()
		if !slices.Contains(e.listens(), "watched") {
			t.Errorf("the other watch: listening to %v", e.listens())
		}
		must.Note(t, c.Close(t.Context()))
		if got := <-b; !errors.Is(got.err, ErrClosed) {
			t.Errorf("%+v after the close, want ErrClosed", got)
		}
		if got, open := <-b; open {
			t.Errorf("%+v after the end", got)
		}
		before := len(s.of("watch"))
		time.Sleep(time.Hour)
		if n := len(s.of("watch")) - before; n != 0 {
			t.Errorf("%d looks after the end", n)
		}
		if got := <-watching(t.Context(), c); !errors.Is(got.err, ErrClosed) {
			t.Errorf("Watch on a closed client: %v, want ErrClosed", got)
		}
	})
}

func TestChannelIsNoLongerListenedToAfterItsLastWatch(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		e := hearing(s)
		newWatched(s, held(0, 5, "a"))
		c := startClient(t, s, trust.SystemClock())
		ctx, cancel := context.WithCancel(t.Context())
		<-watching(ctx, c) // the state; only then does the loop want to hear of changes
		<-watching(ctx, c)
		time.Sleep(time.Second)
		if !slices.Equal(e.listens(), []string{c.channel(), probes, "watched"}) {
			t.Errorf("listens to %v", e.listens())
		}
		cancel()
		time.Sleep(time.Second)
		if !slices.Equal(e.listens(), []string{c.channel(), probes}) {
			t.Errorf("still listens to %v", e.listens())
		}
		again, end := context.WithCancel(t.Context())
		<-watching(again, c)
		time.Sleep(time.Second)
		if len(e.listens()) != 3 {
			t.Errorf("listens to %v after another watch began", e.listens())
		}
		end()
		time.Sleep(time.Second)
		time.Sleep(idle)
		if !e.isClosed() {
			t.Error("the connection is left")
		}
	})
}

func TestWatchThatCannotLookTriesAgainAndMissesNoLastState(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		hearing(s)
		w := newWatched(s, held(0, 5, "a"))
		c := startClient(t, s, trust.SystemClock())
		changes := watching(t.Context(), c)
		expect(t, changes, ChangeState, 5)
		time.Sleep(time.Second)
		w.mu.Lock()
		w.err = errReset
		w.mu.Unlock()
		before := len(s.of("watch"))
		time.Sleep(10 * time.Minute)
		if n := len(s.of("watch")) - before; n < 1000 || n > 6200 {
			t.Errorf("%d looks in ten minutes without a server", n)
		}
		w.mu.Lock()
		w.err, w.infos = nil, []LockInfo{held(0, 9, "b")}
		w.mu.Unlock()
		expect(t, changes, ChangeGranted, 9)

		w.mu.Lock()
		w.err = sqlError("42501")
		w.mu.Unlock()
		if got := <-watching(t.Context(), c); !errors.Is(got.err, ErrPermission) {
			t.Errorf("a watch that is not permitted: %v", got)
		}
	})
}

// A watch that the server will refuse again and again says so and ends; one that fails for a moment goes on.
func TestWatchThatIsRefusedForGoodSaysSoAndEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		ends error // nil: it goes on
	}{
		"no right":         {sqlError("42501"), ErrPermission},
		"no schema":        {sqlError("3F000"), ErrSchema},
		"an inner failure": {sqlError("XX000"), sqlError("XX000")},
		"a closed pool":    {&coalesce.NotSentError{Err: puddle.ErrClosedPool}, puddle.ErrClosedPool},
		"a standby":        {sqlError("25006"), nil},
		"a restart":        {sqlError("57P01"), nil},
		"a locked row":     {sqlError("55P03"), nil},
		"too many":         {sqlError("53300"), nil},
		"no route":         {&coalesce.NotSentError{Err: errReset}, nil},
	} {
		t.Run(name, fakeClock(func(t *testing.T, s *fakeStore) {
			w := newWatched(s, held(0, 5, "a"))
			c := startClient(t, s, trust.SystemClock())
			changes := watching(t.Context(), c)
			expect(t, changes, ChangeState, 5)
			w.mu.Lock()
			w.err = tc.err
			w.mu.Unlock()
			time.Sleep(time.Minute)
			if tc.ends == nil {
				w.mu.Lock()
				w.err, w.infos = nil, []LockInfo{held(0, 9, "b")}
				w.mu.Unlock()
				expect(t, changes, ChangeGranted, 9)
				return
			}
			if got := <-changes; !errors.Is(got.err, tc.ends) {
				t.Errorf("%+v, want that it was refused: %v", got, tc.ends)
			}
			if got, open := <-changes; open {
				t.Errorf("%+v after the end", got)
			}
			before := len(s.of("watch"))
			time.Sleep(time.Minute)
			if n := len(s.of("watch")); n != before {
				t.Errorf("%d looks after the end", n-before)
			}
		}))
	}
}

// Whoever wants only the present state, as a probe does, needs no connection that listens.
func TestOneLookOfAWatchOpensNoConnectionThatListens(t *testing.T) {
	onFakeClock(t, func(t *testing.T, s *fakeStore) {
		newWatched(s, held(0, 5, "a"))
		c := startClient(t, s, trust.SystemClock())
		for change, err := range c.Watch(t.Context(), "report") {
			if err != nil || change.Lease.Token != 5 {
				t.Errorf("%+v, %v", change, err)
			}
			synctest.Wait() // what has begun meanwhile has been noted
			break
		}
		if n := len(s.of("listen")); n != 0 {
			t.Errorf("%d connections were opened to listen", n)
		}
	})
}
