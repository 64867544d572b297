package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// sent is one statement of the library.
type sent struct {
	function string
	names    []string // of the locks it is for; nil where it is for one
}

// statements notes the statements that go to the server.
type statements struct {
	mu     sync.Mutex
	all    []sent
	states map[string]int // how many failed, by SQLSTATE
}

var called = regexp.MustCompile(`"pglock"\.(\w+)\(`)

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if m := called.FindStringSubmatch(data.SQL); m != nil {
		var names []string
		for _, a := range data.Args {
			if texts, found := a.([]string); found && names == nil {
				names = slices.Clone(texts)
			}
		}
		s.mu.Lock()
		s.all = append(s.all, sent{m[1], names})
		s.mu.Unlock()
	}
	return ctx
}

func (s *statements) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if failed := state(data.Err); failed != "" {
		s.mu.Lock()
		s.states[failed]++
		s.mu.Unlock()
	}
}

// since gives the statements that were sent since it was asked last, but for those of the heartbeat.
func (s *statements) since() (all []sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = slices.DeleteFunc(s.all, func(o sent) bool { return o.function == "look" || o.function == "renew_leases" })
	s.all = nil
	return all
}

// crowd is a client whose calls a test makes at one time.
type crowd struct {
	*pglock.Client
	t      *testing.T
	pool   *pgxpool.Pool
	door   doorway
	sent   *statements
	waits  waits
	stacks []byte // see under
}

func newCrowd(t *testing.T, url string, connections int32, change ...func(*pgxpool.Config)) *crowd {
	t.Helper()
	c := &crowd{t: t, stacks: make([]byte, 1<<20), sent: &statements{states: make(map[string]int)}}
	c.pool = newPool(t, url, append(change, maxConnections(connections), func(p *pgxpool.Config) {
		p.ConnConfig.Tracer = c.sent
		p.PrepareConn = c.door.pass
	})...)
	c.Client = newClient(t, c.pool, pglock.WithDefaultHolder("crowd"), pglock.WithObserver(&c.waits))
	c.sent.since()
	return c
}

// doorway keeps back whoever takes a connection while it is closed.
type doorway struct {
	mu     sync.Mutex
	closed chan struct{} // nil: it is open
	keeps  atomic.Int32  // how many it keeps back
}

// pass is a pool's PrepareConn. It waits for longer than the head start that the client gives the pool, however slow
// the machine is: what waits here goes in one statement.
func (d *doorway) pass(ctx context.Context, _ *pgx.Conn) (bool, error) {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed == nil {
		return true, nil
	}
	d.keeps.Add(1)
	defer d.keeps.Add(-1)
	left := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) {
			close(left)
		}
	})()
	select {
	case <-closed:
		return true, nil
	case <-left:
		return true, ctx.Err()
	}
}

// hold closes the door, so that no statement can be sent until it is opened.
func (c *crowd) hold() (open func()) {
	closed := make(chan struct{})
	c.door.mu.Lock()
	c.door.closed = closed
	c.door.mu.Unlock()
	open = sync.OnceFunc(func() {
		c.door.mu.Lock()
		c.door.closed = nil
		c.door.mu.Unlock()
		close(closed)
	})
	c.t.Cleanup(open)
	return open
}

// under counts the goroutines of this process that are blocked in this method of a coalescer.
func (c *crowd) under(method string) (n int) {
	stacks := c.stacks[:runtime.Stack(c.stacks, true)]
	for _, g := range strings.Split(string(stacks), "\n\n") {
		head, _, _ := strings.Cut(g, "\n")
		if strings.Contains(g, "coalesce.(*Coalescer[...])."+method+"(") && strings.Contains(head, "[select") {
			n++
		}
	}
	return n
}

// attempt is one call and what it came back with, once it is done.
type attempt struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	lease  *pglock.Lease
	leases []*pglock.Lease // of a call for several locks
	left   time.Duration
	err    error
}

func (a *attempt) wait(t *testing.T) {
	t.Helper()
	select {
	case <-a.done:
	case <-time.After(patience):
		t.Fatalf("waited %v in vain for the call for %q to return", patience, a.name)
	}
}

func (a *attempt) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// openers is how many calls gather makes first, so that a statement for several waits for a connection: more than the
// widest coalescer, because a call that waits alone for long is sent alone.
const openers = 10

// gather makes the calls while the door is closed, and returns when all of them wait. Those after the openers are in
// one statement then, in this order, which goes when there is a connection.
func (c *crowd) gather(calls []*attempt, call func(*attempt)) []*attempt {
	c.t.Helper()
	for _, a := range calls {
		a.ctx, a.cancel = context.WithCancel(context.Background())
		a.done = make(chan struct{})
		c.t.Cleanup(a.cancel)
	}
	before := c.under("Do")
	for i, a := range calls {
		go func() {
			defer close(a.done)
			call(a)
		}()
		if i == openers-1 {
			pgtest.Eventually(c.t, "a statement for several to wait for a connection", func() bool {
				return c.under("Do") == before+openers && c.under("send") > 0
			})
		} else if i >= openers {
			pgtest.Eventually(c.t, "the call to wait in its coalescer", func() bool {
				return c.under("Do") == before+i+1
			})
		}
	}
	return calls
}

// together makes the calls while the door is closed, opens it, and waits for all of them.
func (c *crowd) together(calls []*attempt, call func(*attempt)) []*attempt {
	c.t.Helper()
	free := c.hold()
	c.gather(calls, call)
	free()
	for _, a := range calls {
		a.wait(c.t)
	}
	return calls
}

// attempts are calls for openers and for these locks.
func attempts(names []string) (calls []*attempt) {
	for _, name := range append(some("opener", openers), names...) {
		calls = append(calls, &attempt{name: name})
	}
	return calls
}

func ofLeases(leases []*pglock.Lease) (calls []*attempt) {
	for _, l := range leases {
		calls = append(calls, &attempt{name: l.Name(), lease: l})
	}
	return calls
}

func (c *crowd) try(opts ...pglock.AcquireOption) func(*attempt) {
	return func(a *attempt) { a.lease, a.err = c.TryAcquire(a.ctx, a.name, opts...) }
}

func (c *crowd) wait(opts ...pglock.AcquireOption) func(*attempt) {
	return func(a *attempt) { a.lease, a.err = c.Acquire(a.ctx, a.name, opts...) }
}

func release(a *attempt) { a.err = a.lease.Release(a.ctx) }

func check(a *attempt) { a.left, a.err = a.lease.Check(a.ctx) }

// mustAll is the leases of calls that all have one.
func mustAll(t *testing.T, calls []*attempt) (leases []*pglock.Lease) {
	t.Helper()
	for _, a := range calls {
		if a.err != nil {
			t.Fatalf("%q: %v", a.name, a.err)
		}
		leases = append(leases, a.lease)
	}
	return leases
}

// some are names of locks.
func some(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%s%03d", prefix, i))
	}
	return names
}

// wantTogether checks that those after the openers were in one statement of this function, the only one for several,
// and that the others that were sent for one are those of the openers and rest more. It returns how many were sent.
func wantTogether(t *testing.T, all []sent, function string, calls []*attempt, rest int) int {
	t.Helper()
	i := slices.IndexFunc(all, func(s sent) bool { return s.names != nil })
	if i < 0 || all[i].function != function {
		t.Fatalf("sent %v, want %s", all, function)
	}
	for _, a := range calls[openers:] {
		if !slices.Contains(all[i].names, a.name) {
			t.Errorf("%q is not in the statement for %q", a.name, all[i].names)
		}
	}
	if n := len(all) - 1 + len(all[i].names); n != len(calls)+rest {
		t.Errorf("sent %v: for %d, want %d", all, n, len(calls)+rest)
	}
	return len(all)
}

// logTransactions notes which transaction changed which lock.
func logTransactions(t *testing.T, look *peer) {
	t.Helper()
	look.exec(t, `
		CREATE TABLE public.changes (xact xid8 DEFAULT pg_current_xact_id(), name text, freed boolean);
		CREATE FUNCTION public.log_change() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			INSERT INTO public.changes (name, freed) VALUES (NEW.name, NEW.expires_at = '-infinity');
			RETURN NULL;
		END $$;
		CREATE TRIGGER log_change AFTER INSERT OR UPDATE ON pglock.locks FOR EACH ROW EXECUTE FUNCTION public.log_change();`)
}

// commitsOf is how many transactions have changed locks since it was asked last, and how many changes they made.
func commitsOf(t *testing.T, look *peer) (transactions, changes int) {
	t.Helper()
	if err := look.QueryRow(t.Context(), `WITH gone AS (DELETE FROM public.changes RETURNING xact)
		SELECT count(DISTINCT xact), count(*) FROM gone`).Scan(&transactions, &changes); err != nil {
		t.Fatal(err)
	}
	return transactions, changes
}

// ownsRow checks that the lease is the one that the row shows, and is held.
func ownsRow(t *testing.T, look *peer, l *pglock.Lease) {
	t.Helper()
	row := one[string](t, look,
		`SELECT grant_id || ' ' || token || ' ' || (expires_at > clock_timestamp()) FROM pglock.locks WHERE name = $1 AND slot = 0`, l.Name())
	if want := fmt.Sprintf("%s %d true", exported(l), l.Token()); row != want || !l.Valid() {
		t.Errorf("the row shows %q, the lease is %q, %v", row, want, l.Err())
	}
}

// held are the names of the locks that are held.
func held(t *testing.T, look *peer) []string {
	t.Helper()
	return one[[]string](t, look,
		`SELECT coalesce(array_agg(name::text ORDER BY name), '{}') FROM pglock.locks WHERE expires_at > clock_timestamp()`)
}

// Calls that are made at the same time travel in one statement and share one commit, and each has a grant of its own.
// So it is in each of pgx's ways to send a statement.
func TestCallsAtTheSameTimeShareOneStatementAndOneCommit(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logTransactions(t, look)
	for _, mode := range execModes {
		t.Run(mode, func(t *testing.T) {
			c := newCrowd(t, withParameter(t, db.URL(), "default_query_exec_mode", mode), 4)
			names := some(mode, 12)
			for use := range 2 {
				if use == 1 && mode != execModes[0] {
					break // the same statements
				}
				calls := c.together(attempts(names), c.try())
				leases := mustAll(t, calls)
				statements := wantTogether(t, c.sent.since(), "acquire_leases", calls, 0)
				if transactions, changes := commitsOf(t, look); transactions != statements || changes != len(calls) {
					t.Errorf("use %d: %d commits for %d grants, want %d for %d", use, transactions, changes, statements,
						len(calls))
				}
				for _, l := range leases {
					ownsRow(t, look, l)
				}
				for _, column := range []string{"grant_id", "token", "owner_id"} {
					if n := one[int](t, look, `SELECT count(DISTINCT `+column+
						`) FROM pglock.locks WHERE expires_at > clock_timestamp()`); n != len(calls) {
						t.Errorf("use %d: %d different values of %s in %d leases", use, n, column, len(calls))
					}
				}
				calls = c.together(ofLeases(leases), check)
				for _, a := range calls {
					if a.err != nil || a.left <= 0 || a.left > pglock.DefaultTTL {
						t.Errorf("check of %q: %v, %v", a.name, a.left, a.err)
					}
				}
				wantTogether(t, c.sent.since(), "check_leases", calls, 0)
				calls = c.together(ofLeases(leases), release)
				mustAll(t, calls)
				statements = wantTogether(t, c.sent.since(), "release_leases", calls, 0)
				if transactions, changes := commitsOf(t, look); transactions != statements || changes != len(calls) {
					t.Errorf("use %d: %d commits for %d releases, want %d for %d", use, transactions, changes,
						statements, len(calls))
				}
				if h := held(t, look); len(h) > 0 {
					t.Errorf("%q are still held", h)
				}
			}
			calls := c.together(attempts(names), c.try(pglock.WithMetadata(json.RawMessage(`{"by": "ours"}`))))
			for _, l := range mustAll(t, calls) {
				ownsRow(t, look, l)
			}
			wantTogether(t, c.sent.since(), "acquire_leases", calls, 0)
			if n := one[int](t, look,
				`SELECT count(*) FROM pglock.locks WHERE metadata = '{"by": "ours"}' AND expires_at > clock_timestamp()`); n != len(calls) {
				t.Errorf("%d of %d locks have their metadata", n, len(calls))
			}
			mustAll(t, c.together(calls, release))
			commitsOf(t, look)
		})
	}
}

// withParameter adds a parameter to a connection string.
func withParameter(t *testing.T, at, name, value string) string {
	t.Helper()
	u := must.Get(url.Parse(at))(t)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
}

// Goroutines that take and give back locks of their own as fast as they can make a few statements and commits for many
// calls.
func TestCallsOfManyGoroutinesTakeFewStatements(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	logTransactions(t, look)
	c := newCrowd(t, db.URL(), 4)
	const goroutines, rounds = 48, 15
	const calls = 2 * goroutines * rounds
	all := pgtest.Group(t)
	for _, name := range some("x", goroutines) {
		all.Go(func() {
			for range rounds {
				l, err := c.TryAcquire(context.Background(), name)
				if err == nil {
					err = l.Release(context.Background())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	sent := c.sent.since()
	transactions, changes := commitsOf(t, look)
	grants := checkGrants(t, look)
	t.Logf("%d calls: %d statements, %d commits", calls, len(sent), transactions)
	if changes != calls || grants != calls/2 {
		t.Errorf("%d changes and %d tokens, want %d and %d", changes, grants, calls, calls/2)
	}
	if len(sent) > calls/3 || transactions > calls/3 {
		t.Errorf("%d statements and %d commits for %d calls", len(sent), transactions, calls)
	}
	if h := held(t, look); len(h) > 0 {
		t.Errorf("%q are still held", h)
	}
}

// One call after another makes one statement each, in its own goroutine.
func TestCallsOneAfterAnotherMakeOneStatementEach(t *testing.T) {
	db := pgtest.Database(t)
	c := newCrowd(t, db.URL(), 4)
	for range 3 {
		before := c.pool.Stat().AcquireCount()
		l := mustTry(t, c.Client, "x")
		must.Get(l.Check(t.Context()))(t)
		mustRelease(t, l)
		m := mustTry(t, c.Client, "y", pglock.WithMetadata(json.RawMessage(`1`)))
		mustRelease(t, m)
		if s := c.sent.since(); fmt.Sprint(s) != "[{acquire_lease []} {check_leases [x]} {release_lease []} "+
			"{acquire_lease []} {release_lease []}]" {
			t.Errorf("sent %v", s)
		}
		if n := c.pool.Stat().AcquireCount() - before; n != 5 {
			t.Errorf("%d connections were taken for 5 calls", n)
		}
	}
	pgtest.Eventually(t, "the statements of coalescers to end", func() bool {
		return !strings.Contains(string(c.stacks[:runtime.Stack(c.stacks, true)]), "coalesce.(*Coalescer[...]).send(")
	})
}

// I1: many calls of one client that try for the same lock at the same time: one gets it, the others hear who.
func TestI1_OneOfManyTriesAtTheSameTimeGetsTheLock(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	c := newCrowd(t, db.URL(), 1) // one statement after another: all hear of a holder, and none of a grant under way
	names := slices.Repeat([]string{"x", "y"}, 12)
	names = append(names, some("last", 4)...)
	leases := make(map[string]*pglock.Lease)
	calls := c.together(attempts(names), c.try())
	for _, a := range calls {
		if a.err == nil {
			if leases[a.name] != nil {
				t.Errorf("%q was granted twice", a.name)
			}
			leases[a.name] = a.lease
			ownsRow(t, look, a.lease)
		}
	}
	for _, a := range calls {
		var h *pglock.HeldError
		if a.err != nil && (!errors.As(a.err, &h) || h.Holder != "crowd" || leases[a.name] == nil ||
			h.Token != leases[a.name].Token()) {
			t.Errorf("%q: %v, want to hear who holds it", a.name, a.err)
		}
	}
	if len(leases) != openers+2+4 {
		t.Errorf("%d locks were granted, want each of the %d once", len(leases), openers+2+4)
	}
	checkGrants(t, look)
}

// Every call that is refused because the lock is held gets the holder's name, even with many others in one statement.
func TestRefusedCallsInOneStatementHearWhoHoldsTheirLock(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	var want []grant
	for i, name := range some("x", 10) {
		if i%2 == 0 {
			want = append(want, look.mustAcquire(t, name, time.Minute))
		} else {
			want = append(want, grant{})
		}
	}
	logTransactions(t, look)
	c := newCrowd(t, db.URL(), 4)
	calls := c.together(attempts(some("x", 10)), c.try())
	wantTogether(t, c.sent.since(), "acquire_leases", calls, 0)
	for i, a := range calls[openers:] {
		var h *pglock.HeldError
		switch {
		case want[i].granted && (!errors.As(a.err, &h) || h.Lock != a.name || h.Holder != "peer" ||
			int64(h.Token) != want[i].token || h.ExpiresAt.Before(time.Now())):
			t.Errorf("%q: %v, want to hear who holds it with token %d", a.name, a.err, want[i].token)
		case !want[i].granted && a.err != nil:
			t.Errorf("%q: %v", a.name, a.err)
		}
	}
	if _, changes := commitsOf(t, look); changes != openers+5 {
		t.Errorf("I13: %d locks were changed, want those that were granted", changes)
	}
}

// An owner that tries for what it holds gets that error, even with many others in one statement.
func TestSelfDeadlockFailsAtOnceInOneStatementWithOthers(t *testing.T) {
	db := pgtest.Database(t)
	c := newCrowd(t, db.URL(), 4)
	l := mustTry(t, c.Client, "mine")
	calls := c.together(attempts([]string{"a", "mine", "z"}), func(a *attempt) {
		ctx := a.ctx
		if a.name == "mine" {
			ctx = l.Context()
		}
		a.lease, a.err = c.TryAcquire(ctx, a.name)
	})
	for _, a := range calls {
		if mine := a.name == "mine"; mine != errors.Is(a.err, pglock.ErrSelfDeadlock) || !mine && a.err != nil {
			t.Errorf("%q: %v", a.name, a.err)
		}
	}
}

// Leases that were lost in different ways are checked in one statement, with others that are held: each hears its own
// reason.
func TestLostLeasesCheckedTogetherHearTheirOwnReason(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	want := map[string]pglock.Reason{"expired": pglock.ReasonExpired, "broken": pglock.ReasonBroken,
		"taken":    pglock.ReasonTakenOver,
		"released": pglock.ReasonReleased, "unknown": pglock.ReasonUnknown}
	names := append(some("opener", openers), "a", "expired", "broken", "h", "taken", "released", "unknown", "z")
	var leases []*pglock.Lease
	for _, name := range names {
		leases = append(leases, mustTry(t, c.Client, name, pglock.WithTTL(time.Hour)))
	}
	endNow(t, look, "expired")
	look.exec(t, breakSQL, "broken")
	endNow(t, look, "taken")
	look.mustAcquire(t, "taken", time.Minute)
	released := leases[slices.Index(names, "released")]
	look.exec(t, `SELECT released FROM pglock.release_lease($1, $2, $3)`, released.Name(), int64(released.Token()),
		exported(released).String())
	look.exec(t, `DELETE FROM pglock.locks WHERE name = 'unknown'`)
	c.sent.since()
	calls := c.together(ofLeases(leases), check)
	for _, a := range calls {
		var lost *pglock.LostError
		switch reason := want[a.name]; {
		case reason == "" && (a.err != nil || a.left <= 0):
			t.Errorf("%q: %v, %v", a.name, a.left, a.err)
		case reason != "" && (!errors.As(a.err, &lost) || lost.Reason != reason || lost.Lock != a.name ||
			lost.Token != a.lease.Token() || a.lease.Valid()):
			t.Errorf("%q: %v, want lost because %s", a.name, a.err, reason)
		}
	}
	wantTogether(t, c.sent.since(), "check_leases", calls, 0)
}

// Lost leases are released together with held ones: each gets its own reason, and only what was held ends.
func TestI5_LostLeasesReleasedTogetherHearTheirOwnReason(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	want := map[string]pglock.Reason{"expired": pglock.ReasonExpired, "broken": pglock.ReasonBroken,
		"taken": pglock.ReasonTakenOver}
	names := append(some("opener", openers), "a", "expired", "broken", "taken", "z")
	var leases []*pglock.Lease
	for _, name := range names {
		leases = append(leases, mustTry(t, c.Client, name, pglock.WithTTL(time.Hour)))
	}
	endNow(t, look, "expired")
	look.exec(t, breakSQL, "broken")
	endNow(t, look, "taken")
	other := look.mustAcquire(t, "taken", time.Minute)
	for _, a := range c.together(ofLeases(leases), release) {
		var lost *pglock.LostError
		if reason := want[a.name]; reason == "" && a.err != nil || reason != "" &&
			(!errors.As(a.err, &lost) || lost.Reason != reason) {
			t.Errorf("%q: %v, want %q", a.name, a.err, reason)
		}
	}
	if h := held(t, look); !slices.Equal(h, []string{"taken"}) {
		t.Errorf("%q are held, want what another holds", h)
	}
	if id := one[string](t, look,
		`SELECT grant_id::text FROM pglock.locks WHERE name = 'taken'`); id != other.id.String() {
		t.Error("another's lease was changed")
	}
}

// Calls that wait for locks that are held are queued with few statements; every ticket is there, and each is granted
// its own lock by the release of its holder.
func TestI8_CallsThatWaitAreQueuedTogether(t *testing.T) {
	db := pgtest.Database(t)
	look, holder := newPeer(t, db.URL()), newClient(t, db.Pool(t))
	const locks = 40
	names := some("x", locks)
	var leases []*pglock.Lease
	for _, name := range names {
		leases = append(leases, mustTry(t, holder, name))
	}
	c := newCrowd(t, db.URL(), 4)
	free := c.hold()
	var got []chan fetched
	for i, name := range names {
		got = append(got, make(chan fetched, 1))
		acquireInBackground(t.Context(), c.Client, i, name, got[i])
	}
	pgtest.Eventually(t, "all calls to wait in the coalescer", func() bool { return c.under("Do") == locks })
	free()
	pgtest.Eventually(t, "all calls to be queued", func() bool {
		return one[int](t, look, `SELECT count(DISTINCT name) FROM pglock.waiters`) == locks
	})
	sent := c.sent.since()
	t.Logf("%d statements for %d calls that wait", len(sent), locks)
	if len(sent) > locks/2 {
		t.Errorf("%d statements for %d calls that wait: %v", len(sent), locks, sent)
	}
	if n := one[int](t, look, `SELECT count(DISTINCT grant_id) FROM pglock.waiters`); n != locks {
		t.Errorf("%d different grant IDs in %d tickets", n, locks)
	}
	for i, l := range leases {
		mustRelease(t, l)
		f := await(t, got[i])
		if f.err != nil {
			t.Fatalf("%q: %v", names[i], f.err)
		}
		ownsRow(t, look, f.lease)
	}
	wantCount(t, look, 0, "%d tickets are left", `SELECT count(*) FROM pglock.waiters`)
}

// I11: one caller's bad argument is reported to that caller alone, and does not touch the others in the same
// statement.
func TestI11_BadInputOfOneCallerTouchesNoOther(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	for what, metadata := range map[string]string{"NUL": `{"a": "\u0000"}`, "half a surrogate": `"\ud800"`,
		"number too big": `1e999999`} {
		for way, ask := range map[string]func(*crowd,
			...pglock.AcquireOption) func(*attempt){"TryAcquire": (*crowd).try, "Acquire": (*crowd).wait} {
			t.Run(what+" "+way, func(t *testing.T) {
				names := some(what+way, 6)
				wrong := names[3]
				calls := c.together(attempts(names), func(a *attempt) {
					raw := json.RawMessage(`{"n": 1}`)
					if a.name == wrong {
						raw = json.RawMessage(metadata)
					}
					ask(c, pglock.WithMetadata(raw))(a)
				})
				if s := c.sent.since(); !slices.ContainsFunc(s, func(s sent) bool {
					return slices.Contains(s.names, wrong) && len(s.names) >= len(names)
				}) {
					t.Fatalf("not all in one statement: %v", s)
				}
				for _, a := range calls {
					var wrongArgument *pglock.ArgumentError
					if a.name == wrong {
						if !errors.As(a.err, &wrongArgument) || wrongArgument.Field != "metadata" {
							t.Errorf("%q: %v, want to hear of its metadata", a.name, a.err)
						}
					} else if a.err != nil {
						t.Errorf("%q: %v", a.name, a.err)
					} else {
						mustRelease(t, a.lease)
					}
				}
				wantCount(t, look, 0, "the lock that was asked for in a wrong way is there",
					`SELECT count(*) FROM pglock.locks WHERE name = $1`, wrong)
			})
		}
	}
}

// Requests of different kinds travel in one statement: each is granted as it asked.
func TestRequestsOfDifferentKindsTravelTogether(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	kinds := map[string][]pglock.AcquireOption{
		"shared": {pglock.WithShared()}, "limit": {pglock.WithLimit(3)},
		"metadata": {pglock.WithMetadata(json.RawMessage(`{"k": [1, "two"]}`))},
		"both": {pglock.WithShared(), pglock.WithMetadata(json.RawMessage(`null`)), pglock.WithTTL(time.Hour),
			pglock.WithHolder("somebody")},
	}
	calls := c.together(attempts([]string{"both", "limit", "metadata", "shared"}), func(a *attempt) {
		opts, found := kinds[a.name]
		if !found {
			opts = kinds["metadata"]
		}
		a.lease, a.err = c.TryAcquire(a.ctx, a.name, opts...)
	})
	mustAll(t, calls)
	wantTogether(t, c.sent.since(), "acquire_leases", calls, 0)
	for name, want := range map[string]string{
		"shared": "shared - crowd 00:00:30 -", "limit": "limit 3 crowd 00:00:30 -",
		"metadata": `exclusive - crowd 00:00:30 {"k": [1, "two"]}`,
		"both":     "shared - somebody 01:00:00 null",
	} {
		got := one[string](t, look,
			`SELECT concat_ws(' ', mode, coalesce(capacity::text, '-'), holder, ttl, coalesce(metadata::text, '-'))
			FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()`, name)
		if got != want {
			t.Errorf("%q is held as %q, want %q", name, got, want)
		}
	}
}

// Calls for another TTL or label are granted what they asked for, even if they are made at one time.
func TestCallsForOtherTermsAreGrantedTheirOwn(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	terms := map[string][]pglock.AcquireOption{"long": {pglock.WithTTL(time.Hour)},
		"named": {pglock.WithHolder("somebody")},
		"grace": {pglock.WithTTL(time.Hour), pglock.WithGrace(time.Minute)}, "long too": {pglock.WithTTL(time.Hour)}}
	calls := c.together(attempts([]string{"plain", "long", "named", "grace", "long too"}), func(a *attempt) {
		a.lease, a.err = c.TryAcquire(a.ctx, a.name, terms[a.name]...)
	})
	mustAll(t, calls)
	for name, want := range map[string]string{"plain": "crowd 00:00:30", "long": "crowd 01:00:00",
		"named": "somebody 00:00:30", "grace": "crowd 01:01:00", "long too": "crowd 01:00:00"} {
		if got := one[string](t, look, `SELECT holder || ' ' || ttl FROM pglock.locks WHERE name = $1`,
			name); got != want {
			t.Errorf("%q is held as %q, want %q", name, got, want)
		}
	}
	for _, a := range calls {
		if _, own := terms[a.name]; !own && (a.lease.TTL() != pglock.DefaultTTL || a.lease.Holder() != "crowd") {
			t.Errorf("%v, for %v", a.lease, a.lease.TTL())
		}
	}
}
