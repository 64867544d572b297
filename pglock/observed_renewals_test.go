package pglock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/trust"
)

func TestRenewalsAreObservedOncePerStatement(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
			time.Sleep(30 * time.Millisecond)
			return s.renewed(claims), nil
		}
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		for i := range 5 {
			mustAcquire(t, c, fmt.Sprint("report ", i), WithTTL(30*time.Second))
		}
		time.Sleep(time.Minute)
		all := n.of(EventRenew)
		if len(all) != len(s.of("renewAll")) || len(all) < 5 {
			t.Errorf("%d events of %d statements", len(all), len(s.of("renewAll")))
		}
		for _, e := range all {
			if e.Count != 5 || e.Took != 30*time.Millisecond || e.TTL != 30*time.Second || e.Gap < 9*time.Second ||
				e.Gap > 10100*time.Millisecond || e.Lock == "" || e.Token == 0 {
				t.Errorf("event %+v", e)
			}
		}
		if bad := n.of(EventRenewLate, EventRenewFailed); len(bad) > 0 {
			t.Errorf("events %+v", bad)
		}
	})
}

func TestFailedAndLateRenewalsAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		mustAcquire(t, c, "long", WithTTL(30*time.Second))
		mustAcquire(t, c, "longer", WithTTL(50*time.Second)) // renewed with the other, and never late
		s.set(func() {
			s.onRenewAll = func(context.Context, []protocol.Claim) (map[protocol.Claim]protocol.Verdict, error) {
				time.Sleep(time.Second)
				return nil, errReset
			}
		})
		time.Sleep(21 * time.Second)
		s.set(func() { s.onRenewAll = nil })
		time.Sleep(3 * time.Second)
		failed, late := n.of(EventRenewFailed), n.of(EventRenewLate)
		if len(failed) == 0 || failed[0].Count != 2 || failed[0].Lock != "long" ||
			!errors.Is(failed[0].Err, errReset) || failed[0].Took != time.Second ||
			failed[0].Gap < 10*time.Second || failed[0].Gap > 11*time.Second {
			t.Errorf("failed: %+v", failed)
		}
		if len(late) != 1 || late[0].Count != 1 || late[0].Lock != "long" || late[0].Gap <= 20*time.Second ||
			late[0].Gap > 24*time.Second {
			t.Errorf("late: %+v", late)
		}
		if lost := n.of(EventLost); len(lost) > 0 {
			t.Errorf("lost: %+v", lost)
		}
	})
}

func TestOwnRenewalsAndThoseOfBusyRowsAreObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
		time.Sleep(3 * time.Second)
		must.Do(t, l.renew(t.Context()))
		s.set(func() {
			s.onRenew = func(context.Context, protocol.Claim) (time.Duration, error) { return 0, errReset }
		})
		if err := l.renew(t.Context()); err == nil {
			t.Fatal("it has renewed over a broken connection")
		}
		wantKinds(t, &n, "report", "grant", "renew failed")
		if e := n.of(EventRenew); len(e) != 1 || e[0].Gap != 3*time.Second || e[0].Count != 1 ||
			e[0].Token != l.Token() {
			t.Errorf("renewals %+v", e)
		}
		busy := true
		s.set(func() {
			s.onRenewAll = func(_ context.Context, claims []protocol.Claim) (map[protocol.Claim]protocol.Verdict,
				error) {
				return map[protocol.Claim]protocol.Verdict{claims[0]: {Outcome: protocol.Busy}}, nil
			}
			s.onRenewBusy = func(_ context.Context, c protocol.Claim) (time.Duration, error) {
				if busy {
					busy = false
					return 0, sqlError("55P03")
				}
				return s.ttl(c.GrantID), nil
			}
		})
		time.Sleep(11 * time.Second) // the beat comes after 10 s at the latest, and is repeated soon
		if e := n.of(EventRenewFailed); len(e) != 2 || protocol.State(e[1].Err) != "55P03" {
			t.Errorf("failures %+v", e)
		}
		if e := n.of(EventRenew); len(e) != 2 || e[1].Gap < 9*time.Second {
			t.Errorf("renewals %+v", e)
		}
	})
}

func TestRenewalOfAnExtendedLeaseIsNeverLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notes
		s := newFakeStore()
		c := startClient(t, s, trust.SystemClock(), WithObserver(&n))
		l := mustAcquire(t, c, "report", WithTTL(30*time.Second))
		end := must.Get(l.Extend(t.Context(), time.Hour))(t)
		defer end()
		s.set(func() { s.onRenewAll = hangs })
		time.Sleep(time.Minute)
		s.set(func() { s.onRenewAll = nil })
		time.Sleep(time.Minute)
		if bad := n.of(EventRenewLate, EventLost); len(bad) > 0 {
			t.Errorf("events %+v", bad)
		}
		if len(n.of(EventRenewFailed)) == 0 || len(n.of(EventRenew)) < 3 {
			t.Errorf("events %+v", n.events)
		}
	})
}
