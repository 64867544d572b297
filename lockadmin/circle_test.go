package lockadmin_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// aged makes it look as if all leases and tickets were ten minutes older, and their holders had renewed.
func (e tree) aged() {
	e.t.Helper()
	execute(e.t, e.conn, `UPDATE pglock.locks SET acquired_at = acquired_at - interval '5 min'`)
	execute(e.t, e.conn, `UPDATE pglock.waiters SET enqueued_at = enqueued_at - interval '5 min'`)
}

// busy has a program hold one lock in one goroutine and wait for others in others, each of which knows of nothing else.
func (e tree) busy(client *pglock.Client, holds string, waitsFor ...string) *pglock.Lease {
	e.t.Helper()
	lease := must.Get(client.TryAcquire(e.t.Context(), holds))(e.t)
	for _, name := range waitsFor {
		e.queue(client, name)
	}
	return lease
}

func (e tree) queue(client *pglock.Client, name string) {
	e.t.Helper()
	before := len(e.waiters(name))
	ctx, cancel := context.WithCancel(e.t.Context())
	pgtest.Group(e.t).Go(func() { _, _ = client.Acquire(ctx, name) })
	e.t.Cleanup(cancel) // before the group's wait
	pgtest.Eventually(e.t, "a ticket", func() bool { return len(e.waiters(name)) > before })
}

// saysNoDeadlock checks that why, and list, say no more of a lock than that others wait.
func (e tree) saysNoDeadlock(when string, names ...string) {
	e.t.Helper()
	for _, name := range names {
		x := e.explain(name)
		v := x.Verdicts[0]
		if v.Kind != "slow" || v.Severity != lockadmin.SeverityBusy || len(x.Circle) > 0 ||
			strings.Contains(strings.ToLower(v.Text+v.Because), "deadlock") {
			e.t.Errorf("%s, why %s: %+v, %+v", when, name, v, x.Circle)
		}
		if s := e.summary(name); s.Kind != "slow" || s.Severity != lockadmin.SeverityBusy {
			e.t.Errorf("%s, the list says of %s: %+v", when, name, s)
		}
	}
	if ill, _ := illOf(e.t, e.admin, 20); ill != "" {
		e.t.Errorf("%s: the overview has %s", when, ill)
	}
}

// The goroutines of one program take turns with two locks, each with one at a time: nobody waits in a circle, however
// long that lasts.
func TestOneProgramWithTwoLocksIsNoDeadlock(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	e.busy(e.client, "job-0")
	e.busy(e.client, "job-1", "job-0", "job-1")
	e.saysNoDeadlock("at once", "job-0", "job-1")
	e.aged()
	e.saysNoDeadlock("after ten minutes", "job-0", "job-1")
}

// saysPerhaps compares what is said of job-0 and job-1.
func (e tree) saysPerhaps(want lockadmin.Severity) {
	e.t.Helper()
	for _, name := range []string{"job-0", "job-1"} {
		x := e.explain(name)
		v := x.Verdicts[0]
		if v.Kind != "circle" || v.Severity != want || len(x.Circle) != 2 ||
			!strings.HasPrefix(v.Text, "Perhaps a deadlock: ") || !strings.HasPrefix(v.Because, "Not sure.") ||
			v.Steps[0].Command != "why "+name {
			e.t.Errorf("why %s: %+v, %+v", name, v, x.Circle)
		}
		if len(x.Verdicts) != 2 || x.Verdicts[1].Kind != "slow" {
			e.t.Errorf("why %s says of the lock itself: %+v", name, x.Verdicts[1:])
		}
		if s := e.summary(name); s.Kind != "circle" || s.Severity != want ||
			s.Text != "perhaps a deadlock" {
			e.t.Errorf("the list says of %s: %+v", name, s)
		}
	}
}

// Of two programs nobody knows whether the work that holds is the work that waits. As long as their locks change hands
// that is not worth a word. If nothing has moved for long it is perhaps a deadlock.
func TestTwoProgramsArePerhapsADeadlockOnceNothingMovesForLong(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	other := must.Get(pglock.New(t.Context(), e.db.Pool(t), pglock.WithDefaultHolder("other"),
		pglock.WithDefaultTTL(time.Minute)))(t)
	t.Cleanup(func() { _ = other.Close(t.Context()) })
	lease := e.busy(e.client, "job-0")
	e.busy(other, "job-1", "job-0")
	e.queue(e.client, "job-1")
	e.saysNoDeadlock("at once", "job-0", "job-1")
	e.aged()
	e.saysPerhaps(lockadmin.SeverityBusy)
	e.aged()
	e.saysPerhaps(lockadmin.SeverityNote) // so that the overview has it
	must.Do(t, lease.Release(t.Context()))
	pgtest.Eventually(t, "the lock's next holder", func() bool { return e.explain("job-0").State == "held" })
	if x := e.explain("job-1"); x.Verdicts[0].Kind != "slow" || len(x.Circle) > 0 {
		t.Errorf("after job-0 has changed hands: %+v", x.Verdicts[0])
	}
}

// Owners that the server knows are in a deadlock at once; not if one of them waits for a place of which another holder
// has one too, unless that one waits as well.
func TestOwnersThatWaitForEachOtherAreADeadlockAtOnce(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	mode := "exclusive"
	ask := func(name, who string, wait bool) {
		t.Helper()
		key := uuid.NewSHA1(uuid.Nil, []byte(who)).String()
		execute(t, e.conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '1 h',
			p_wait => $4, p_session_ttl => '1 h', p_owner_id => $2::text::uuid, p_mode => $5,
			p_capacity => CASE $5 WHEN 'limit' THEN 2 END)`, name, key, who, wait, mode)
	}
	ask("left", "L", false)
	ask("right", "R", false)
	ask("right", "L", true)
	ask("left", "R", true)
	for _, name := range []string{"left", "right"} {
		x := e.explain(name)
		if v := x.Verdicts[0]; v.Kind != "circle" || v.Severity != lockadmin.SeverityStuck ||
			!strings.HasPrefix(v.Text, "A deadlock: ") || !strings.HasPrefix(v.Because, "Sure: ") ||
			!slices.ContainsFunc(v.Steps, func(s lockadmin.Step) bool {
				return strings.HasPrefix(s.Command, "break ")
			}) {
			t.Errorf("why %s: %+v", name, v)
		}
	}
	ask("mine", "M", false)
	mode = "limit"
	ask("gpu", "N", false)
	ask("gpu", "O", false)
	ask("gpu", "M", true)
	mode = "exclusive"
	ask("mine", "N", true)
	for _, name := range []string{"mine", "gpu"} {
		if x := e.explain(name); len(x.Circle) > 0 {
			t.Errorf("why %s, though another holder may let go of its place: %+v", name, x.Verdicts[0])
		}
	}
	ask("mine", "O", true)
	for _, name := range []string{"mine", "gpu"} {
		x := e.explain(name)
		if v := x.Verdicts[0]; v.Kind != "circle" || v.Severity != lockadmin.SeverityStuck || len(x.Circle) != 2 ||
			!strings.Contains(v.Text, "waits for gpu, of which ") || !strings.Contains(v.Because, "other places") {
			t.Errorf("why %s, of which nobody can let go: %+v", name, v)
		}
	}
}
