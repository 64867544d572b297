package dashboard_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/dashboard"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// hung keeps every statement that reads sessions until it is closed.
type hung struct {
	reads atomic.Int64
	end   chan struct{}
}

func (h *hung) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, "list_sessions") {
		h.reads.Add(1)
		select {
		case <-h.end:
		case <-ctx.Done():
		}
	}
	return ctx
}

func (*hung) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestRequestsForTheSessionsShareTheirReadsAndLeaveRoomForTheList(t *testing.T) {
	t.Parallel()
	const viewers = 50
	var came atomic.Int64
	h := &hung{end: make(chan struct{})}
	db := pgtest.Database(t)
	s := startOver(t, db, db.Pool(t, func(config *pgxpool.Config) { config.ConnConfig.Tracer = h }),
		func(c *dashboard.Config) {
			c.Auth = func(r *http.Request) (dashboard.Identity, error) {
				if strings.HasSuffix(r.URL.Path, "/api/sessions") {
					came.Add(1)
				}
				return dashboard.Identity{Name: "alice"}, nil
			}
		})
	all := pgtest.Group(t)
	for range viewers {
		all.Go(func() { s.get("/api/sessions").want(200, `"sessions":[]`) })
	}
	pgtest.Eventually(t, "all have come", func() bool { return came.Load() == viewers && h.reads.Load() > 0 })
	s.stream("/api/stream").next("locks")
	close(h.end)
	all.Wait()
	if n := h.reads.Load(); n > 4 {
		t.Errorf("%d reads for %d requests", n, viewers)
	}
}

func TestAReadHasAllItsTimeAfterTheWaitForItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		underWay := make(chan struct{}, 1)
		go func() {
			_ = dashboard.InTurn(t.Context(), underWay, func(context.Context) error {
				time.Sleep(dashboard.ReadWithin - time.Second)
				return nil
			})
		}()
		synctest.Wait()
		err := dashboard.InTurn(t.Context(), underWay, func(ctx context.Context) error {
			if end, _ := ctx.Deadline(); time.Until(end) != dashboard.ReadWithin {
				t.Errorf("%s are left", time.Until(end))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// Each read takes two seconds.
func TestASharedReadIsNoOlderThanItsRequestsAndPausesAsLongAsTheLastOneTook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		read, began := dashboard.NewShared(), time.Now()
		ask := func(ctx context.Context) <-chan any {
			answer := make(chan any, 1)
			go func() {
				v, err := read(ctx, "the same", func(ctx context.Context) (any, error) {
					now := time.Since(began)
					select {
					case <-time.After(2 * time.Second):
						return now, nil
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				})
				if err != nil {
					v = err
				}
				answer <- v
			}()
			synctest.Wait()
			return answer
		}
		want := func(answer <-chan any, want any) {
			t.Helper()
			if got := <-answer; got != want {
				t.Errorf("the answer is of %v, want %v", got, want)
			}
		}
		first, second, third := ask(t.Context()), ask(t.Context()), ask(t.Context())
		want(first, 0*time.Second)
		want(second, 4*time.Second)
		want(third, 4*time.Second)
		left, leave := context.WithCancel(t.Context())
		one, other := ask(left), ask(t.Context())
		leave() // the other one still waits
		want(one, context.Canceled)
		want(other, 8*time.Second)
		left, leave = context.WithCancel(t.Context())
		alone := ask(left)
		leave()
		want(alone, context.Canceled)
		want(ask(t.Context()), 12*time.Second)
	})
}

// One asks at 0 s, which begins a read, another one at 1 s.
func TestWhoeverAsksDuringALongReadGetsAReadOrTheTruth(t *testing.T) {
	t.Parallel()
	lost := errors.New("lost")
	for name, c := range map[string]struct {
		takes  time.Duration // the first read
		err    error
		begins time.Duration // the second one; 0: it never does
		want   error         // for the second one
	}{
		"it fails":                  {9 * time.Second, lost, 9 * time.Second, nil},
		"it succeeds":               {9 * time.Second, nil, 11 * time.Second, nil},
		"it does not end by itself": {time.Hour, nil, 0, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				read, began := dashboard.NewShared(), time.Now()
				all := pgtest.Group(t)
				all.Go(func() {
					_, err := read(t.Context(), "the same", func(context.Context) (any, error) {
						time.Sleep(c.takes)
						return nil, c.err
					})
					if !errors.Is(err, c.err) {
						t.Errorf("the first read: %v, want %v", err, c.err)
					}
				})
				time.Sleep(time.Second)
				var begins time.Duration
				_, err := read(t.Context(), "the same", func(context.Context) (any, error) {
					begins = time.Since(began)
					return nil, nil
				})
				if begins != c.begins || !errors.Is(err, c.want) {
					t.Errorf("the second read begins after %s, and says %v; want %s, %v", begins, err, c.begins, c.want)
				}
				all.Wait()
			})
		})
	}
}

// A hook of the application's that panics ends its request alone, as it does without a shared read.
func TestAPanicInASharedReadIsTheRequests(t *testing.T) {
	shared := dashboard.NewShared()
	read := func(fails bool) (fell any) {
		defer func() { fell = recover() }()
		_, err := shared(t.Context(), "locks", func(context.Context) (any, error) {
			if fails {
				panic("on purpose")
			}
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
		return nil
	}
	if fell := read(true); fell != "on purpose" {
		t.Errorf("the request fell with %v", fell)
	}
	if fell := read(false); fell != nil {
		t.Errorf("the next one fell with %v", fell)
	}
}
