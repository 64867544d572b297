package migrations

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// cutter is a connection that is lost at a COMMIT: after it was done, or before the server has received it.
type cutter struct {
	net.Conn
	cut  func() (now, afterwards bool)
	says []byte      // what somebody between answers in the server's place
	done atomic.Bool // the COMMIT is sent, and its answer gets lost
}

var errCut = errors.New("the network is cut")

func (c *cutter) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("commit\x00")) {
		now, afterwards := c.cut()
		if now && !afterwards {
			return 0, errors.Join(errCut, c.Conn.Close())
		}
		c.done.Store(now)
	}
	return c.Conn.Write(b)
}

// Read may already wait when the COMMIT is sent: a client whose write is slow reads beside it.
func (c *cutter) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.done.Load() { // the answer comes when it is done
		if c.says != nil {
			return copy(b, c.says), c.Conn.Close()
		}
		return 0, errors.Join(errCut, c.Conn.Close())
	}
	return n, err
}

// cutAt gives a configuration whose connection is lost at the nth COMMIT; from then on nobody reaches the server if
// alone.
func cutAt(t *testing.T, db *pgtest.DB, nth int, afterwards, unreachable bool) *pgx.ConnConfig {
	t.Helper()
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	var commits atomic.Int32
	config.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		if unreachable && int(commits.Load()) >= nth {
			return conn, errCut
		}
		return &cutter{Conn: conn, cut: func() (bool, bool) { return int(commits.Add(1)) == nth, afterwards }}, nil
	}
	return config
}

func TestALostAnswerToACommitIsFoundOut(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 3, nil)
	for nth := 1; nth <= 3; nth++ {
		mustUp(t, cutAt(t, db, nth, true, false), files) // it was done, and Up goes on
		wantVersion(t, db.URL(), 3, false)
		mustDown(t, cutAt(t, db, nth, true, false), files)
		wantVersion(t, db.URL(), 0, false)

		wantStep(t, Up(t.Context(), cutAt(t, db, nth, false, false), files), nth-1, nth, errCut.Error())
		wantVersion(t, db.URL(), nth-1, false)
		mustUp(t, db.URL(), files)
		wantStep(t, Down(t.Context(), cutAt(t, db, nth, false, false), files), 4-nth, 3-nth, errCut.Error())
		wantVersion(t, db.URL(), 4-nth, false)
		mustDown(t, db.URL(), files)
	}
}

// A pooler that has lost its server answers for it, and knows nothing of what the server has done.
func TestAnAnswerOfAPoolerToACommitIsNotTheServers(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 3, nil)
	config := must.Get(pgx.ParseConfig(db.URL()))(t)
	says := must.Get((&pgproto3.ErrorResponse{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "08P01",
		Message: "server conn crashed?"}).Encode(nil))(t)
	var commits atomic.Int32
	config.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		return &cutter{Conn: conn, says: says, cut: func() (bool, bool) { return commits.Add(1) == 2, true }}, nil
	}
	mustUp(t, config, files)
	wantVersion(t, db.URL(), 3, false)
}

func TestAnAnswerThatCannotBeFoundOutIsCalledUnknown(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 3, nil)
	for _, done := range []bool{true, false} {
		err := Up(t.Context(), cutAt(t, db, 2, done, true), files)
		if step, is := errors.AsType[*StepError](err); !is || !step.Unknown || step.From != 1 || step.To != 2 {
			t.Errorf("%v, want a StepError whose outcome is unknown", err)
		}
		mustUp(t, db.URL(), files)
		wantVersion(t, db.URL(), 3, false)
		mustDown(t, db.URL(), files)
	}
}

// A backend that an administrator ends in the middle of a step.
func TestAStepWhoseSessionIsEndedIsRolledBack(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 3, map[int]string{2: "SELECT CASE WHEN to_regclass('public.spared') IS NULL THEN " +
		"pg_terminate_backend(pg_backend_pid()) END;"})
	wantStep(t, Up(t.Context(), db.URL(), files), 1, 2, "57P01")
	wantVersion(t, db.URL(), 1, false)
	mustDo(t, db.Conn(t), "CREATE TABLE public.spared ()")
	mustUp(t, db.URL(), files)
}

func TestAStepIsRolledBackWhenTheContextEndsInItsMiddle(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 3, map[int]string{2: "LOCK TABLE public.busy"})
	conn := db.Conn(t)
	keepBusy(t, conn)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := must.Go(func() error { return Up(ctx, db.URL(), files) })
	blocked(t, db, 1)
	cancel()
	select {
	case err := <-done:
		wantStep(t, err, 1, 2, "context canceled")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v is not the end of the context", err)
		}
	case <-time.After(30 * time.Second):
		t.Error("Up goes on after the end of its context")
	}
	mustDo(t, conn, "COMMIT")
	wantVersion(t, db.URL(), 1, false)
	mustUp(t, db.URL(), files)
}

// keepBusy makes the table public.busy, and locks it until the connection commits.
func keepBusy(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, sql := range []string{"CREATE TABLE public.busy ()", "BEGIN", "LOCK TABLE public.busy"} {
		mustDo(t, conn, sql)
	}
}

// blocked returns when so many sessions of the database wait for a lock.
func blocked(t *testing.T, db *pgtest.DB, want int) {
	t.Helper()
	conn := db.Conn(t)
	pgtest.Eventually(t, "they wait for a lock", func() bool {
		var waiting int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		return waiting >= want
	})
}
