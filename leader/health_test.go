package leader_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// probe asks the health handler.
func probe(t *testing.T, m *member, method string) (code int, body map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	m.Health().ServeHTTP(w, httptest.NewRequest(method, "/healthz", nil))
	if w.Body.Len() > 0 {
		if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
		if got := w.Header().Get("Content-Type"); got != "application/json" {
			t.Errorf("Content-Type %q", got)
		}
	}
	return w.Code, body
}

// Only work that goes on after leadership was lost, for longer than it is borne, makes the process unhealthy.
func TestHealthFailsWhenWorkGoesOnAfterTheLossOfLeadership(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tolerance time.Duration
		code      int
	}{"not borne": {0, http.StatusServiceUnavailable}, "borne": {time.Hour, http.StatusOK}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			m := e.join("a", true, leader.WithTTL(6*time.Second), leader.WithTolerance(tc.tolerance))
			now := m.leads()
			expect := func(code int, state leader.State, token bool) map[string]any {
				t.Helper()
				got, body := probe(t, m, http.MethodGet)
				_, has := body["token"]
				if got != code || body["state"] != string(state) || body["lock"] != "x" || has != token {
					t.Errorf("%d %v, want %d and state %s", got, body, code, state)
				}
				return body
			}
			expect(http.StatusOK, leader.StateLeading, true)
			e.breaks()
			e.join("b", false).leads()
			now.told(t)
			time.Sleep(2 * time.Millisecond) // the clock moves on
			body := expect(tc.code, leader.StateDeposed, true)
			since, err := time.Parse(time.RFC3339Nano, body["since"].(string))
			if err != nil || time.Since(since) > time.Minute || since.Location() != time.UTC {
				t.Errorf("since %v, %v", body["since"], err)
			}
			now.whenTold <- errors.New("half done")
			close(now.free)
			e.eventually("the work to stop, and its end to be known", func() bool {
				s := m.Status()
				return s.State == leader.StateCampaigning && s.Err != nil
			})
			if body := expect(http.StatusOK, leader.StateCampaigning, false); body["error"] == nil {
				t.Error("the failure is not told")
			}
		})
	}
}

// A leader that is asked to stop, and takes its time, is healthy: it has the lock.
func TestHealthBearsALeaderThatStops(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", true, leader.WithTolerance(0))
	now := m.leads()
	m.leave()
	now.told(t)
	e.eventually("the leader to stop", func() bool { return m.Status().State == leader.StateStopping })
	time.Sleep(2 * time.Millisecond) // the clock moves on
	if code, body := probe(t, m, http.MethodGet); code != http.StatusOK ||
		body["state"] != string(leader.StateStopping) {
		t.Errorf("%d %v", code, body)
	}
	close(now.free)
	_ = m.ends()
	if code, body := probe(t, m, http.MethodHead); code != http.StatusOK || body["state"] != string(leader.StateIdle) {
		t.Errorf("%d %v", code, body)
	}
	if code, body := probe(t, m, http.MethodPost); code != http.StatusMethodNotAllowed || body != nil {
		t.Errorf("POST: %d %v", code, body)
	}
}

// A leader that was asked to stop still has the lock, and may lose it later. The tolerance counts from the loss.
func TestDeposedCountsFromTheLossOfLeadership(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", true, leader.WithTTL(6*time.Second), leader.WithTolerance(time.Hour))
	now := m.leads()
	m.leave()
	now.told(t)
	e.eventually("the leader to stop", func() bool { return m.Status().State == leader.StateStopping })
	before := time.Now()
	e.breaks()
	e.eventually("the loss to be known", func() bool { return m.Status().State == leader.StateDeposed })
	if since := m.Status().Since; since.Before(before) {
		t.Errorf("deposed since %v before it was", before.Sub(since))
	}
	close(now.free)
	_ = m.ends()
}

// Leadership may also end because this process gives the lock up while fn runs. Then another leads, too.
func TestAWorkThatHasLostItsLockToItsOwnProcessIsDeposed(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(context.Context, *pglock.Client, *pglock.Lease) error{
		"Close":   func(ctx context.Context, client *pglock.Client, _ *pglock.Lease) error { return client.Close(ctx) },
		"Release": func(ctx context.Context, _ *pglock.Client, lease *pglock.Lease) error { return lease.Release(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newElection(t)
			client := e.client()
			c := e.candidate(client, leader.WithHolder("a"), leader.WithTolerance(0))
			leads, free, over := make(chan *pglock.Lease, 1), make(chan struct{}), make(chan error, 1)
			go func() {
				over <- c.Run(t.Context(), func(_ context.Context, lease *pglock.Lease) error {
					leads <- lease
					<-free
					return nil
				})
			}()
			lease := receive(t, leads, "a leads")
			must.Note(t, giveUp(t.Context(), client, lease))
			next := e.join("b", false)
			next.leads()
			time.Sleep(2 * time.Millisecond) // the clock moves on
			code, body := probe(t, &member{Candidate: c}, http.MethodGet)
			if code != http.StatusServiceUnavailable || body["state"] != string(leader.StateDeposed) {
				t.Errorf("%d %v", code, body)
			}
			next.leave()
			_ = next.ends()
			close(free)
			_ = receive(t, over, "Run of a ends") // it has campaigned again
		})
	}
}

// A term that ends in order is at no moment one that goes on without its lock. More goroutines than processors ask, so
// that the scheduler stops some of them in the middle of a question.
func TestALeaderThatEndsInOrderIsNeverDeposed(t *testing.T) {
	t.Parallel()
	e := newElection(t)
	m := e.join("a", false, leader.WithTolerance(0))
	m.leads()
	over := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(over)
	for range 4 * runtime.GOMAXPROCS(0) {
		asking.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if s := m.Status(); s.State == leader.StateDeposed {
					t.Errorf("%+v", s)
					return
				}
			}
		})
	}
	for range 20 {
		must.Note(t, m.Resign(t.Context()))
		m.leads()
	}
}
