package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// A client may have two own connections for a moment. When the one that the server knows is closed, the other is marked
// again; before that no statement marks it.
func TestTheServerKnowsTheConnectionThatIsLeft(t *testing.T) {
	db := pgtest.Parallel(t)
	look := db.Conn(t)
	s := New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	who := protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}
	var own [2]*pgx.Conn
	for i := range own {
		var err error
		if own[i], err = s.dial(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer s.hang(own[i])
	}
	known := func() (pid uint32) {
		t.Helper()
		must.Do(t, look.QueryRow(t.Context(), "SELECT pid FROM pglock.sessions").Scan(&pid))
		return pid
	}
	mark := func(i int) { s.mark(t.Context(), who, own[i]) }
	pid := func(i int) uint32 { return own[i].PgConn().PID() }
	mark(0)
	mark(1)
	if got := known(); got != pid(1) {
		t.Errorf("process %d is known, want the one that was marked last, %d", got, pid(1))
	}
	if mark(0); known() != pid(1) {
		t.Error("a connection was marked with each statement")
	}
	s.hang(own[1])
	if mark(0); known() != pid(0) {
		t.Errorf("process %d is known, which is gone, want %d", known(), pid(0))
	}
	tx := must.Get(look.Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), "UPDATE pglock.sessions SET pid = 0"))(t)
	third := must.Get(s.dial(t.Context()))(t)
	defer s.hang(third)
	s.mark(t.Context(), who, third)
	must.Do(t, tx.Commit(t.Context()))
	if s.mark(t.Context(), who, third); known() != third.PgConn().PID() {
		t.Error("a connection whose session's row was locked is not marked later")
	}
}

// Whoever looks after the heartbeat hears at once that the own connection was lost, once for each loss, and then that
// another works.
func TestALostConnectionIsTold(t *testing.T) {
	db := pgtest.Parallel(t)
	look := db.Conn(t)
	s := New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	told := make(chan string, 10)
	s.OnTrouble(Trouble{Lost: func() { told <- "lost" },
		Reconnected: func(time.Duration, error) { told <- "reconnected" }})
	who := protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}
	sign := func() error { return s.Sign(t.Context(), 5*time.Second, who) }
	must.Do(t, sign())
	for range 2 {
		var ended bool
		if err := look.QueryRow(t.Context(),
			"SELECT pg_terminate_backend(pid, 10000) FROM pglock.sessions").Scan(&ended); err != nil || !ended {
			t.Fatal(ended, err)
		}
		select {
		case what := <-told:
			if what != "lost" {
				t.Fatalf("told that it was %s, want lost", what)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nobody was told of the loss")
		}
		pgtest.Eventually(t, "a sign of life", func() bool { return sign() == nil })
		if what := <-told; what != "reconnected" {
			t.Fatalf("told that it was %s, want reconnected", what)
		}
	}
}

// A hook of the pool may refuse a connection without an error.
func TestAHookThatRefusesAConnectionIsNamed(t *testing.T) {
	db := pgtest.Parallel(t)
	cause := errors.New("a bad day")
	for want, change := range map[string]func(*pgxpool.Config){
		"the pool's PrepareConn refused a connection of the client": func(c *pgxpool.Config) {
			c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return false, nil }
		},
		"the pool's PrepareConn refused a connection of the client: a bad day": func(c *pgxpool.Config) {
			c.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return false, cause }
		},
		"the pool's BeforeAcquire refused a connection of the client": func(c *pgxpool.Config) {
			//lint:ignore SA1019 the pool still runs it
			c.BeforeAcquire = func(context.Context, *pgx.Conn) bool { return false }
		},
	} {
		s := New(db.Pool(t, change), "pglock", nil, errors.New("closed"))
		t.Cleanup(s.Close)
		_, err := s.Connect(t.Context(), nil)
		if err == nil || err.Error() != want || errors.Is(err, cause) != strings.HasSuffix(want, cause.Error()) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A statement may hang on the connection that listens: a look returns what it has seen. A later one marks the
// connection.
func TestALookDoesNotWaitForTheConnectionThatListens(t *testing.T) {
	db := pgtest.Parallel(t)
	look := db.Conn(t)
	s := New(db.Pool(t), "pglock", nil, errors.New("closed"))
	defer s.Close()
	who := protocol.Session{Key: uuid.New(), Holder: "holder", TTL: time.Minute}
	contended(t, s, "report")
	waiting, err := s.Acquire(t.Context(), protocol.Request{
		RequestID: protocol.RequestID{Name: "report", GrantID: uuid.New()}, Owner: uuid.New(), Holder: "holder",
		TTL: time.Minute, Mode: "exclusive", Wait: true, Session: who})
	if err != nil || waiting.Ticket == 0 {
		t.Fatalf("%+v, %v", waiting, err)
	}
	listens := must.Get(s.Listen(t.Context()))(t)
	defer listens.Close(true)
	own := listens.(*hearing).conn
	hangs := must.Get(s.lender.Claim(t.Context(), own))(t)
	give := sync.OnceFunc(hangs.Give)
	defer give()
	sees := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), protocol.Patience)
		defer cancel()
		sightings, err := s.Look(ctx, protocol.Patience, who, nil)
		if _, seen := sightings[waiting.Ticket]; err != nil || !seen || ctx.Err() != nil {
			t.Errorf("%v, %v; the context %v", sightings, err, ctx.Err())
		}
	}
	sees()
	give()
	sees()
	var marked bool
	if err := look.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pglock.sessions WHERE pid = $1)",
		own.PgConn().PID()).Scan(&marked); err != nil || !marked {
		t.Errorf("the connection that listens is marked: %v, %v", marked, err)
	}
}
