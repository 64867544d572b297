package server

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// contended is a lease of this lock, for which a call of another client waits.
func contended(t *testing.T, s *Server, name string) protocol.Claim {
	t.Helper()
	ask := func(waits bool) (protocol.Request, protocol.Answer) {
		q := protocol.Request{RequestID: protocol.RequestID{Name: name, GrantID: uuid.New()}, Owner: uuid.New(),
			Holder: "holder", TTL: time.Minute, Mode: "exclusive", Wait: waits,
			Session: protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}}
		a, err := s.Acquire(t.Context(), q)
		if err != nil || a.Granted == waits {
			t.Fatalf("%+v, %v", a, err)
		}
		return q, a
	}
	q, a := ask(false)
	ask(true)
	return protocol.Claim{Name: name, Token: a.Token, GrantID: q.GrantID}
}

// Releases of one statement are announced with it, where that is wanted and statements have names.
func TestReleasesThatTravelTogetherAreAnnouncedWithThem(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Database(t).Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = mode
			})
			s := New(pool, "pglock", nil, errors.New("closed"))
			defer s.Close()
			calls := []release{{contended(t, s, "a"), true}, {contended(t, s, "b"), false},
				{contended(t, s, "c"), true}}
			endings := make([]protocol.Ending, len(calls))
			conn, give, err := s.borrow(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer give()
			if err := s.releaseTogether(t.Context(), conn, calls, endings); err != nil {
				t.Fatal(err)
			}
			for i, c := range calls {
				h, announced := endings[i].Handed, c.announce && mode == pgx.QueryExecModeCacheStatement
				if !endings[i].Released || h.Announced != announced || slices.Contains(h.Slots, 0) == announced {
					t.Errorf("%s: %+v, want it announced: %v", c.Name, endings[i], announced)
				}
			}
		})
	}
}

// A release takes back what may have been granted to a lost attempt, and asks again until there is an answer: Close
// ends that.
func TestWhoTakesBackEndsWithClose(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look, errClosed := db.Conn(t), errors.New("closed")
	s := New(db.Pool(t), "pglock", nil, errClosed)
	defer s.Close()
	claim := contended(t, s, "report")
	letGo := stays(t, look)
	defer letGo()
	ended := make(chan error, 1)
	go func() {
		_, err := s.TakeBack(t.Context(), protocol.Session{Key: uuid.New(), Holder: "holder"}, true,
			[]protocol.RequestID{{Name: claim.Name, GrantID: claim.GrantID}})
		ended <- err
	}()
	atWork(t, look)
	s.Close()
	select {
	case err := <-ended:
		if !errors.Is(err, errClosed) {
			t.Errorf("%v, want that the client is closed", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on")
	}
}

// stays keeps whatever changes a lock at work until it is let go.
func stays(t *testing.T, look *pgx.Conn) (letGo func()) {
	t.Helper()
	if _, err := look.Exec(t.Context(), `CREATE TABLE arrived ();
		CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM public.arrived) LOOP PERFORM pg_sleep(0.01); END LOOP;
			RETURN NEW;
		END $$;
		CREATE TRIGGER stay BEFORE UPDATE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION stay()`); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if _, err := look.Exec(t.Context(), "INSERT INTO arrived DEFAULT VALUES"); err != nil {
			t.Fatal(err)
		}
	}
}

func atWork(t *testing.T, look *pgx.Conn) {
	t.Helper()
	pgtest.Eventually(t, "a statement at work", func() (sleeps bool) {
		err := look.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event = 'PgSleep')`).Scan(&sleeps)
		return err == nil && sleeps
	})
}

// A call leaves a release that is announced with it: the release goes on, and its answer is heard.
func TestAnAnnouncedReleaseGoesOnWhenItsCallLeaves(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := db.Conn(t)
	s := New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	heard := make(chan protocol.Ending, 1)
	s.OnAbandoned(nil, func(_ protocol.Claim, e protocol.Ending, err error) {
		if err != nil {
			t.Error(err)
		}
		heard <- e
	}, nil)
	claim := contended(t, s, "report")
	letGo := stays(t, look)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := s.Release(ctx, claim, true)
		left <- err
	}()
	atWork(t, look)
	leave()
	if err := <-left; !errors.As(err, new(*coalesce.LeftError)) {
		t.Errorf("%v, want that the call has left", err)
	}
	letGo()
	select {
	case e := <-heard:
		if !e.Released || !e.Handed.Announced || len(e.Handed.Slots) > 0 {
			t.Errorf("%+v, want it released and announced", e)
		}
	case <-time.After(20 * time.Second):
		t.Error("nobody heard of the release")
	}
}
