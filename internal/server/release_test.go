package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/coalesce"
	"github.com/pglock-dev/pglock/internal/dev/must"
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
			must.Do(t, s.releaseTogether(t.Context(), conn, calls, endings))
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
	db := pgtest.Parallel(t)
	look, errClosed := db.Conn(t), errors.New("closed")
	s := New(db.Pool(t), "pglock", nil, errClosed)
	defer s.Close()
	claim := contended(t, s, "report")
	letGo := stays(t, look)
	defer letGo()
	ended := must.Go(func() error {
		_, err := s.TakeBack(t.Context(), protocol.Session{Key: uuid.New(), Holder: "holder"}, true,
			[]protocol.RequestID{{Name: claim.Name, GrantID: claim.GrantID}})
		return err
	})
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
		must.Get(look.Exec(t.Context(), "INSERT INTO arrived DEFAULT VALUES"))(t)
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
	db := pgtest.Parallel(t)
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
	left := must.Go(func() error { _, err := s.Release(ctx, claim, true); return err })
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

// used is a server whose pool the application has used up, with an own connection that is open.
func used(t *testing.T, db *pgtest.DB, claims int) (*Server, *pgxpool.Pool, []protocol.Claim) {
	t.Helper()
	pool := db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s := New(pool, "pglock", nil, errors.New("closed"))
	t.Cleanup(s.Close)
	held := make([]protocol.Claim, claims)
	for i := range held {
		held[i] = contended(t, s, fmt.Sprint("report ", i))
	}
	conn := must.Get(pool.Acquire(t.Context()))(t)
	t.Cleanup(conn.Release)
	who := protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}
	must.Do(t, s.Sign(t.Context(), protocol.Patience, who))
	return s, pool, held
}

// NOTIFY waits for others' transactions that notify. Releases that tell nobody return before that, although they have
// waited for a connection together with one that does.
func TestAReleaseWaitsForNoAnnouncement(t *testing.T) {
	db := pgtest.Parallel(t)
	look := db.Conn(t)
	s, _, claims := used(t, db, 9)
	if _, err := look.Exec(t.Context(), `CREATE TABLE arrived ();
		ALTER FUNCTION pglock.announce RENAME TO announce_then;
		CREATE FUNCTION pglock.announce(p_names text[], p_slots int[]) RETURNS bigint LANGUAGE plpgsql AS $$
		BEGIN
			WHILE NOT EXISTS (SELECT FROM public.arrived) LOOP PERFORM pg_sleep(0.01); END LOOP;
			RETURN pglock.announce_then(p_names, p_slots);
		END $$`); err != nil {
		t.Fatal(err)
	}
	plain, announced := make(chan error, len(claims)), make(chan error, 1)
	for i, c := range claims {
		go func() {
			if _, err := s.Release(t.Context(), c, i == 0); i == 0 {
				announced <- err
			} else {
				plain <- err
			}
		}()
	}
	for range claims[1:] {
		select {
		case err := <-plain:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(protocol.Patience / 2):
			t.Fatal("a release waits for the announcement of another")
		}
	}
	select {
	case err := <-announced:
		t.Errorf("it was announced meanwhile, %v", err)
	default:
	}
	must.Get(look.Exec(t.Context(), "INSERT INTO arrived DEFAULT VALUES"))(t)
	must.Note(t, <-announced)
}

// Hand-overs share no statement. While the application has used up the pool, none of them waits for it in vain.
func TestHandOversDoNotWaitForAPoolThatIsUsedUp(t *testing.T) {
	db := pgtest.Parallel(t)
	s, pool, claims := used(t, db, 20)
	before := pool.Stat().CanceledAcquireCount()
	ended := make(chan error, len(claims))
	for _, c := range claims {
		go func() {
			next, err := s.HandOver(t.Context(), c, "holder", false)
			if err == nil && next.Outcome != protocol.HandedOver {
				err = errors.New(next.Outcome)
			}
			ended <- err
		}()
	}
	for range claims {
		must.Note(t, <-ended)
	}
	if n := pool.Stat().CanceledAcquireCount() - before; n > int64(len(claims)/4) {
		t.Errorf("%d hand-overs have waited %d times for the pool", len(claims), n)
	}
}

// Whoever has asked for longer than its context allows hears of that, and not that the client was closed meanwhile.
func TestAContextThatEndsBeforeCloseIsTheReason(t *testing.T) {
	t.Parallel()
	errClosed := errors.New("closed")
	s := New(pgtest.Database(t).Pool(t), "pglock", nil, errClosed)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.end()
	_, err := s.TakeBack(ctx, protocol.Session{Key: uuid.New(), Holder: "holder"}, true,
		[]protocol.RequestID{{Name: "report", GrantID: uuid.New()}})
	if err == nil || errors.Is(err, errClosed) {
		t.Errorf("%v, want the end of the context", err)
	}
}

// The package comment of pglock tells how many goroutines stay for the next statement: so many as may be under way.
func TestTheGoroutinesThatStayAreToldRight(t *testing.T) {
	t.Parallel()
	s := New(pgtest.Database(t).Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	n := s.acquires.Width + s.waits.Width + s.again.Width + s.releases.Width + s.announced.Width + s.checks.Width +
		s.handOvers.Width
	doc := must.Get(os.ReadFile("../../pglock/doc.go"))(t)
	if words := map[int]string{20: "twenty"}; !bytes.Contains(doc, []byte("of which up to "+words[n]+" stay")) {
		t.Errorf("%d stay; doc.go of pglock says otherwise", n)
	}
}
