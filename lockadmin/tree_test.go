package lockadmin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// A tree is a database with a client that has subtrees, and requests that stay as they are: nobody takes their turns.
type tree struct {
	t      *testing.T
	db     *pgtest.DB
	conn   *pgx.Conn
	client *pglock.Client
	admin  *lockadmin.Admin
}

func newTree(t *testing.T) tree {
	db := pgtest.Database(t)
	client := must.Get(pglock.New(t.Context(), db.Pool(t), pglock.WithDefaultHolder("mover"),
		pglock.WithDefaultTTL(time.Minute)))(t)
	t.Cleanup(func() { _ = client.Close(t.Context()) })
	return tree{t, db, db.Conn(t), client, newAdmin(t, db.Pool(t))}
}

// hold takes a lock.
func (e tree) hold(name string, opts ...pglock.AcquireOption) *pglock.Lease {
	e.t.Helper()
	lease := must.Get(e.client.TryAcquire(e.t.Context(), name, opts...))(e.t)
	return lease
}

// wait queues for a lock, as somebody who has waited for ten minutes; a subtree twice, so that it has looked.
func (e tree) wait(name, holder string, subtree bool) {
	e.t.Helper()
	function := map[bool]string{true: "acquire_subtree", false: "acquire_lease"}[subtree]
	id, key := uuid.New(), uuid.New()
	for range 1 + map[bool]int{true: 1}[subtree] {
		execute(e.t, e.conn, `SELECT pglock.`+function+`($1, $2::text::uuid, $3::text::uuid, $4, '1 h',
			p_retry => true, p_wait => true, p_session_ttl => '1 h')`, name, id.String(), key.String(), holder)
	}
	execute(e.t, e.conn, `UPDATE pglock.waiters SET enqueued_at = clock_timestamp() - interval '10 min'
		WHERE grant_id = $1::text::uuid`, id.String())
}

func (e tree) explain(name string) lockadmin.Explanation {
	e.t.Helper()
	x := must.Get(e.admin.Explain(e.t.Context(), name))(e.t)
	return x
}

// listed are the names that list shows by itself.
func (e tree) listed() (names []string) {
	e.t.Helper()
	for l, err := range e.admin.Locks(e.t.Context(), lockadmin.LocksQuery{Waited: true}) {
		if err != nil {
			e.t.Fatal(err)
		}
		names = append(names, l.Name)
	}
	return names
}

// suspects are the names that the server finds by itself, or of these.
func (e tree) suspects(names ...string) (found []string) {
	e.t.Helper()
	must.Do(e.t, e.conn.QueryRow(e.t.Context(), "SELECT names FROM pglock.list_suspects($1)", names).Scan(&found))
	return found
}

// summary is what a list says of a lock in a word.
func (e tree) summary(name string) lockadmin.Summary {
	e.t.Helper()
	infos := must.Get(e.admin.Holders(e.t.Context(), name))(e.t)
	all := must.Get(e.admin.Summaries(e.t.Context(), infos))(e.t)
	return all[0]
}

// waiters are the places of a queue.
func (e tree) waiters(name string) (all []lockadmin.Waiter) {
	e.t.Helper()
	for w, err := range e.admin.Waiters(e.t.Context(), lockadmin.WaitersQuery{Lock: name}) {
		if err != nil {
			e.t.Fatal(err)
		}
		all = append(all, w)
	}
	return all
}

// checkObstacle checks what an explanation says of the first obstacle, and that nothing calls the lock stuck.
func (e tree) checkObstacle(name string, want lockadmin.Obstacle) {
	e.t.Helper()
	x := e.explain(name)
	v := x.Verdicts[0]
	if v.Kind != "subtree" || v.Severity != lockadmin.SeverityBusy || v.Who != want.Holder ||
		!strings.Contains(v.Text, want.Holder) || !strings.Contains(v.Text, want.Lock) ||
		v.Steps[0].Command != "why "+want.Lock {
		e.t.Errorf("why %s: %+v", name, v)
	}
	if len(x.Obstacles) == 0 {
		e.t.Fatalf("why %s: nothing is in the way", name)
	}
	got := x.Obstacles[0]
	if since := x.At.Sub(got.Since); since < -time.Second || since > 11*time.Minute || got.Session == "" {
		e.t.Errorf("why %s: %+v", name, got)
	}
	got.For = 0
	if got.Since, got.Session = want.Since, ""; got != want {
		e.t.Errorf("why %s: %+v is in the way, want %+v", name, got, want)
	}
	if names, all := illOf(e.t, e.admin, 20); names != "" || all.Busy == 0 {
		e.t.Errorf("the overview has %q, %d busy", names, all.Busy)
	}
	if all, one := e.suspects(), e.suspects(name); len(all)+len(one) > 0 {
		e.t.Errorf("suspects are %v, of one %v", all, one)
	}
	if listed := e.listed(); slices.Contains(listed, name) {
		e.t.Errorf("list shows %v", listed)
	}
	if s := e.summary(name); s.Kind != "subtree" || s.Severity != lockadmin.SeverityBusy {
		e.t.Errorf("the list says %+v", s)
	}
	if w := e.waiters(name)[0]; w.Behind != want.Holder || w.BehindLock != want.Lock {
		e.t.Errorf("waiters has %+v", w)
	}
}

func TestWhyNamesTheSubtreeAboveThatAWaiterWaitsFor(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	lease := e.hold("tenants/7", pglock.WithSubtree())
	e.wait("tenants/7/import", "importer", false)
	e.checkObstacle("tenants/7/import", lockadmin.Obstacle{Lock: "tenants/7", Subtree: true,
		Mode: pglock.ModeExclusive, Holder: "mover", Token: lease.Token()})

	above := e.explain("tenants/7") // it says who waits for it
	if v := above.Verdicts[0]; v.Kind != "held" || !strings.Contains(v.Text, "importer has waited for lock "+
		"tenants/7/import") || strings.Contains(v.Because, "Nobody waits for it") {
		t.Errorf("why tenants/7: %+v", v)
	}
	execute(t, e.conn, `UPDATE pglock.locks SET renewed_at = renewed_at - interval '1 h', acquired_at = acquired_at -
		interval '1 h', ttl = '2 h' WHERE name = 'tenants/7'`)
	execute(t, e.conn, `UPDATE pglock.sessions SET seen_at = seen_at - interval '1 h' WHERE holder = 'mover'`)
	if v := e.explain("tenants/7").Verdicts[0]; v.Severity != lockadmin.SeverityStuck {
		t.Errorf("a dead holder keeps a waiter below: %+v", v)
	}
}

func TestWhyNamesTheLeaseBelowThatASubtreeWaitsFor(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	lease := e.hold("tenants/7/import")
	e.wait("tenants/7", "deleter", true)
	e.checkObstacle("tenants/7", lockadmin.Obstacle{Lock: "tenants/7/import", Mode: pglock.ModeExclusive,
		Holder: "mover", Token: lease.Token()})
	if w := e.waiters("tenants/7")[0]; !w.Subtree {
		t.Errorf("waiters has %+v", w)
	}
	x := e.explain("tenants/7/import")
	if len(x.Obstructed) != 1 || x.Obstructed[0].Holder != "deleter" {
		t.Errorf("why tenants/7/import: %+v", x)
	}
	if said := fmt.Sprint(x.Verdicts[0].Steps); !strings.Contains(said, "Find the program. Its label is mover.") {
		t.Errorf("why tenants/7/import says not what to do: %s", said)
	}
}

func TestWhyNamesTheRequestForASubtreeThatCameBefore(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	e.hold("tenants/7/report")
	e.wait("tenants/7", "deleter", true)
	e.wait("tenants/7/import", "importer", false)
	e.checkObstacle("tenants/7/import", lockadmin.Obstacle{Lock: "tenants/7", Subtree: true,
		Mode: pglock.ModeExclusive, Holder: "deleter", Ticket: e.waiters("tenants/7")[0].Ticket})
}

// When nothing is in the way any more, and the waiter does not take its turn, the lock is stuck: not at once, and not
// since it was free.
func TestALockIsStuckWhenNoSubtreeIsInTheWayAnyMore(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	lease := e.hold("tenants/7", pglock.WithSubtree())
	e.wait("tenants/7/import", "importer", false)
	must.Do(t, lease.Release(t.Context()))
	if v := e.explain("tenants/7/import").Verdicts[0]; v.Kind != "between" {
		t.Errorf("just after the release: %+v", v)
	}
	if all, one := e.suspects(), e.suspects("tenants/7/import"); len(all) > 0 || len(one) != 1 {
		t.Errorf("just after the release: %v, of one %v", all, one)
	}
	if listed := e.listed(); len(listed) > 0 {
		t.Errorf("just after the release: %v", listed)
	}
	execute(t, e.conn, `UPDATE pglock.locks SET ended_at = ended_at - interval '1 min' WHERE name = 'tenants/7'`)
	v := e.explain("tenants/7/import").Verdicts[0]
	if v.Kind != "turn" || v.Severity != lockadmin.SeverityStuck || time.Since(v.Since) > 2*time.Minute {
		t.Errorf("a minute later: %+v", v)
	}
	if ill, _ := illOf(t, e.admin, 20); ill != "tenants/7/import turn" {
		t.Errorf("a minute later: %q", ill)
	}
	if listed := e.listed(); !slices.Equal(listed, []string{"tenants/7/import"}) {
		t.Errorf("a minute later: %v", listed)
	}
}

// A lock that has its own holder says what else its first waiter waits for.
func TestWhyNamesASubtreeBesidesTheHolder(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	lease := e.hold("tenants/7", pglock.WithSubtree())
	must.Get(e.client.TryAcquire(lease.Context(), "tenants/7/import"))(t)
	e.wait("tenants/7/import", "importer", false)
	v := e.explain("tenants/7/import").Verdicts[0]
	if v.Kind != "slow" || !strings.Contains(v.Text, "mover holds subtree tenants/7") {
		t.Errorf("%+v", v)
	}
	if !slices.ContainsFunc(v.Steps, func(s lockadmin.Step) bool { return s.Command == "why tenants/7" }) {
		t.Errorf("%+v", v.Steps)
	}
}

// A holder that waits for something below a subtree waits for the holder of the subtree, who may wait for the first.
func TestWhyFindsACircleThroughASubtree(t *testing.T) {
	t.Parallel()
	e := newTree(t)
	e.hold("tenants/7", pglock.WithSubtree())
	key := uuid.New()
	for lock, wait := range map[string]bool{"reports": false, "tenants/7/import": true} {
		execute(t, e.conn, `SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, 'importer', '1 h',
			p_wait => $3, p_session_ttl => '1 h')`, lock, key.String(), wait)
	}
	x := e.explain("reports")
	if len(x.Waits) != 1 || x.Waits[0].For != "tenants/7/import" || x.Waits[0].By != "tenants/7" ||
		x.Waits[0].Holder != "mover" || x.Waits[0].Token == 0 || len(x.Circle) != 0 {
		t.Fatalf("why reports: %+v", x.Waits)
	}
	ctx, cancel := context.WithCancel(t.Context())
	pgtest.Group(t).Go(func() { _, _ = e.client.Acquire(ctx, "reports") })
	t.Cleanup(cancel) // before the group's wait
	pgtest.Eventually(t, "a ticket", func() bool { return len(e.waiters("reports")) == 1 })
	e.aged()
	for _, name := range []string{"reports", "tenants/7"} {
		x := e.explain(name)
		if v := x.Verdicts[0]; v.Kind != "circle" || len(x.Circle) != 2 || !strings.Contains(v.Text,
			"tenants/7/import, which lies above or below tenants/7, and that mover has") {
			t.Errorf("why %s: %+v, %+v", name, v, x.Circle)
		}
	}
}
