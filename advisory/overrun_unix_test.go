//go:build unix

package advisory_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The session that holds the advisory lock may end the next innocent write after one that overran its limits, so it
// ends at once, and says so. Both locks can then be taken anew.
func TestAWriteThatOverranItsLimitsEndsItsSession(t *testing.T) {
	t.Parallel()
	if kind := pgtest.Server(t).Kind(); kind != pgserver.KindPrograms && kind != pgserver.KindDownload {
		t.Skipf("the server is a %s: its processes cannot be stopped from here", kind)
	}
	s := newScene(t)
	b := s.bridge()
	h := s.hold(b, "x", advisory.Bigint(1))
	const limit = 3 * time.Second // the statement has to be seen before it is cut off
	limited := h.Under(fencedstore.Fence{}, fencedstore.WithTimeLimit(limit))
	err := limited.Write(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
		pid := int(tx.Conn().PgConn().PID())
		asked := must.Go(func() error { _, err := tx.Exec(ctx, "SELECT pg_sleep(60)"); return err })
		const asleep = "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'"
		s.eventually("the statement", asleep, pid)
		must.Note(t, syscall.Kill(pid, syscall.SIGSTOP))
		time.Sleep(limit + 200*time.Millisecond)
		must.Note(t, syscall.Kill(pid, syscall.SIGCONT))
		return await(t, "the end of the statement", asked)
	})
	if !errors.Is(err, fencedstore.ErrTimeLimit) {
		t.Fatalf("%v, want the end by a time limit", err)
	}
	work := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_sleep(1.1)") // longer than client_connection_check_interval
		return err
	}
	if s.ask("SELECT current_setting('server_version_num')::int < 170000") { // it has no transaction_timeout
		if err := h.Write(t.Context(), work); err != nil {
			t.Errorf("the next write: %v", err)
		}
		return
	}
	wantLost(t, h)
	if err := s.hold(b, "x", advisory.Bigint(1)).Write(t.Context(), work); err != nil {
		t.Errorf("the next write: %v", err)
	}
}
