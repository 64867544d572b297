package examples_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/fencedstore"

	"github.com/pglock-dev/pglock/internal/dev/must"
)

const theAccount = `SELECT FROM accounts WHERE id = 16`

func (s *scriptScene) fencedWrite(t *testing.T) *run {
	t.Helper()
	return s.start(t, "sql/fenced_write.sql", "name="+lock, "account=16", "amount=60")
}

// succeeds fails the test unless the script went through all its steps.
func (r *run) succeeds(t *testing.T) {
	t.Helper()
	r.ends(t)
	if r.code != 0 || r.stderr.Len() > 0 {
		t.Errorf("the script ended with code %d", r.code)
	}
	for _, step := range []string{"granted: token ", "fenced: SELECT pglock.outcome(", "committed: balance ",
		"released: t"} {
		if !strings.Contains(r.stdout.String(), step) {
			t.Errorf("the script did not say %q", step)
		}
	}
}

// refused fails the test unless the script ended with 3, said all of that, and did not commit.
func (r *run) refused(t *testing.T, says ...string) {
	t.Helper()
	r.ends(t)
	if r.code != 3 {
		t.Errorf("the script ended with code %d, want 3", r.code)
	}
	for _, s := range says {
		if !strings.Contains(r.stderr.String(), s) {
			t.Errorf("the script did not say %q", s)
		}
	}
	if strings.Contains(r.stdout.String(), "committed") {
		t.Error("the script said that it committed")
	}
}

func TestScriptWritesUnderItsFenceAndReleases(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	s.fencedWrite(t).succeeds(t)
	s.has(t, 60)
	s.fencedWrite(t).succeeds(t) // with a grant of its own, and so a greater token
	s.has(t, 120)
	n := one[int](t, s,
		`SELECT count(*) FROM pglock.list_fences($1) f JOIN pglock.get_lock($1) l ON f.last_token = l.token`, lock)
	if n != 1 {
		t.Errorf("%d fences have the token of the script's last grant, want 1", n)
	}
	s.acquire(t) // it is free
}

func TestSecondScriptSaysWhoHoldsTheLockAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	row := s.hold(t, theAccount)
	first := s.fencedWrite(t)
	s.blocks(t, row, first)
	s.fencedWrite(t).refused(t, "ERROR:  55006: lock 'accounts/16' is held by 'fenced_write.sql'")
	must.Do(t, row.Rollback(t.Context()))
	first.succeeds(t)
	s.has(t, 60)
}

func TestI10_ScriptWhoseLeaseIsBrokenBeforeItsCommitWritesNothing(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	row := s.hold(t, theAccount)
	r := s.fencedWrite(t)
	s.blocks(t, row, r)
	s.breakLock(t)
	must.Do(t, row.Rollback(t.Context()))
	r.refused(t, "LK003", "reason=broken")
	s.has(t, 0)
}

// The script waits at its fence for the other, who has the lock by then.
func TestI3_OvertakenScriptIsToldWhichTokenStandsAtTheFence(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	s.fencedWrite(t).succeeds(t) // so that there is a row to wait for
	fence := s.hold(t, `SELECT FROM pglock.fences WHERE resource = 'accounts/16'`)
	r := s.fencedWrite(t)
	s.blocks(t, fence, r)
	s.breakLock(t)
	lease := s.acquire(t)
	must.Get(fencedstore.Guard(t.Context(), fence, lease))(t)
	must.Get(fence.Exec(t.Context(), `UPDATE accounts SET balance = balance + 1000`))(t)
	must.Do(t, fence.Commit(t.Context()))
	r.refused(t, "LK002", fmt.Sprintf("last_token=%d", lease.Token()))
	s.has(t, 1060)
}

// The limits that the fence has set end the wait, not the test.
func TestI16_ScriptThatHangsPastItsLeaseIsRolledBack(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	s.hold(t, theAccount)
	s.start(t, "sql/fenced_write.sql", "name="+lock, "account=16", "amount=60", "ttl=6 s").refused(t,
		"canceling statement due to")
	s.has(t, 0)
}

func TestScriptThatLosesItsConnectionBeforeItsCommitEndsWith2AndWritesNothing(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	row := s.hold(t, theAccount)
	r := s.fencedWrite(t)
	s.blocks(t, row, r)
	s.exec(t,
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'psql'`)
	r.ends(t)
	if r.code != 2 {
		t.Errorf("the script ended with code %d, want 2", r.code)
	}
	s.has(t, 0)
}

func TestScriptWithoutANameOrAnAccountSaysSoAndWritesNothing(t *testing.T) {
	t.Parallel()
	s := newScriptScene(t)
	s.start(t, "sql/fenced_write.sql", "account=16", "amount=60").refused(t, "22023", "name is 0 bytes long")
	s.start(t, "sql/fenced_write.sql", "name="+lock, "account=17", "amount=60").refused(t,
		"no rows returned for \\gset")
	s.has(t, 0)
}

// Whoever waits or watches without looking hears of the release through the script's announcement alone.
func TestI8_ReleaseOfTheScriptIsAnnounced(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"to the next in the queue", "to who watches"} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			s := newScriptScene(t)
			row := s.hold(t, theAccount)
			r := s.fencedWrite(t)
			s.blocks(t, row, r)
			listener := must.Get(s.pool.Acquire(t.Context()))(t)
			defer listener.Release()
			key, channel := uuid.New(), ""
			if who == "to who watches" {
				channel = one[string](t, s, `SELECT channel FROM pglock.watch($1, '1 min')`, lock)
			} else {
				channel = one[string](t, s, `SELECT 'pglock_' || left(encode(sha256(uuid_send($1)), 'hex'), 32)`, key)
				s.exec(t,
					`SELECT pglock.acquire_lease($1, $2, $3, 'waits', '30 s', p_wait => true, p_session_ttl => '1 min')`,
					lock, uuid.New(), key)
			}
			must.Get(listener.Exec(t.Context(), `LISTEN "`+channel+`"`))(t)
			must.Do(t, row.Rollback(t.Context()))
			r.succeeds(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if _, err := listener.Conn().WaitForNotification(ctx); err != nil {
				t.Errorf("nothing was announced: %v", err)
			}
		})
	}
}
