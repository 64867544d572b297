package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// barrier holds up, while it is closed, every statement in which the row or the ticket of the lock "m" is written.
type barrier struct{ keeper *peer }

const barrierKey = 4711

func newBarrier(t *testing.T, db *pgtest.DB) *barrier {
	t.Helper()
	b := &barrier{newPeer(t, db.URL())}
	b.keeper.exec(t, fmt.Sprintf(`
		CREATE FUNCTION public.wait_at_barrier() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		BEGIN
			WHILE NOT pg_try_advisory_xact_lock_shared(%d) LOOP   -- not a wait for a lock, which lock_timeout would end
				PERFORM pg_sleep(0.002);
			END LOOP;
			RETURN NEW;
		END $$;
		CREATE TRIGGER barrier BEFORE INSERT OR UPDATE ON pglock.locks FOR EACH ROW WHEN (NEW.name = 'm') EXECUTE FUNCTION public.wait_at_barrier();
		CREATE TRIGGER barrier BEFORE INSERT ON pglock.waiters FOR EACH ROW WHEN (NEW.name = 'm') EXECUTE FUNCTION public.wait_at_barrier();`, barrierKey))
	return b
}

// atCommit moves the barrier to the commit, also of those that write to the ledger.
func (b *barrier) atCommit(t *testing.T) {
	t.Helper()
	b.keeper.exec(t, `DROP TRIGGER barrier ON pglock.locks; DROP TRIGGER barrier ON pglock.waiters;
		ALTER TABLE ledger ADD name text DEFAULT 'm'`)
	for _, on := range []string{`INSERT OR UPDATE ON pglock.locks`, `INSERT ON pglock.waiters`, `INSERT ON ledger`} {
		b.keeper.exec(t, `CREATE CONSTRAINT TRIGGER barrier AFTER `+on+` DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.name = 'm') EXECUTE FUNCTION public.wait_at_barrier()`)
	}
}

func (b *barrier) close(t *testing.T) {
	t.Helper()
	b.keeper.exec(t, `SELECT pg_advisory_lock($1)`, barrierKey)
}

func (b *barrier) open(t *testing.T) {
	t.Helper()
	b.keeper.exec(t, `SELECT pg_advisory_unlock($1)`, barrierKey)
}

// underWay are the backends that execute a call of the function $1.
const underWay = `FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%' || $1 || '%'`

// blocked is how many backends wait for a lock. It does not ask for their wait_event_type: a signal, as of any DROP
// DATABASE, wakes a waiter, which for that moment shows no event.
func blocked(t *testing.T, look *peer) int {
	t.Helper()
	return one[int](t, look,
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0`)
}

// await returns when a call of the function waits at the barrier, with its backend.
func (b *barrier) await(t *testing.T, function string) (pid uint32) {
	t.Helper()
	pgtest.Eventually(t, function+" to wait at the barrier", func() bool {
		return b.keeper.QueryRow(t.Context(), `SELECT pid `+underWay+` AND wait_event = 'PgSleep'`,
			function).Scan(&pid) == nil
	})
	return pid
}

// inFlight makes the calls and returns when the statement for those after the openers, of this function, is held up at
// the barrier. Some of the openers may be in it too.
func (c *crowd) inFlight(b *barrier, calls []*attempt, call func(*attempt), function string) (pid uint32) {
	c.t.Helper()
	b.close(c.t)
	free := c.hold()
	c.gather(calls, call)
	free()
	return b.await(c.t, function)
}

// around are names before, at and after the barrier, in the order in which rows are written.
func around(n int) []string { return append(append(some("a", n), "m"), some("z", n)...) }

// wantHeld waits until just these locks are held, besides those of the openers.
func wantHeld(t *testing.T, look *peer, calls []*attempt) {
	t.Helper()
	want := []string{}
	for _, a := range calls {
		want = append(want, a.name)
	}
	slices.Sort(want)
	pgtest.Eventually(t, fmt.Sprintf("just %q to be held", want), func() bool {
		return slices.Equal(want, slices.DeleteFunc(held(t, look), func(name string) bool {
			return strings.HasPrefix(name, "opener")
		}))
	})
}

// refuses makes the server refuse what is done to locks whose names begin with "bad", each with its own message.
func refuses(t *testing.T, look *peer, what, when string) {
	t.Helper()
	look.exec(t, `
		DROP TRIGGER IF EXISTS refuse ON pglock.locks;
		DROP TRIGGER IF EXISTS refuse ON pglock.waiters;
		CREATE OR REPLACE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE EXCEPTION 'no % for you', NEW.name USING ERRCODE = 'PT001';
		END $$;
		CREATE TRIGGER refuse BEFORE `+what+` FOR EACH ROW WHEN (NEW.name LIKE 'bad%' AND `+when+
		`) EXECUTE FUNCTION public.refuse();`)
}

// wantRefusedAlone checks that the calls for locks whose names begin with "bad" failed with their own error, and the
// others did not fail.
func wantRefusedAlone(t *testing.T, calls []*attempt) {
	t.Helper()
	for _, a := range calls {
		bad := strings.HasPrefix(a.name, "bad")
		if bad != (state(a.err) == "PT001") || bad && !strings.Contains(a.err.Error(), "no "+a.name+" for you") ||
			!bad && a.err != nil {
			t.Errorf("%q: %v", a.name, a.err)
		}
	}
}

// One call that the server refuses fails alone, with its own error; the others in the same statement get what they
// asked for.
func TestCallThatTheServerRefusesFailsAlone(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c := newCrowd(t, db.URL(), 4)
	names := append(append(some("a", 5), "bad1", "bad2"), some("z", 5)...)
	good := slices.DeleteFunc(attempts(names)[openers:], func(a *attempt) bool {
		return strings.HasPrefix(a.name, "bad")
	})
	for _, use := range []string{"new names", "used before"} {
		refuses(t, look, "INSERT OR UPDATE ON pglock.locks", "NEW.expires_at > '-infinity'")
		c.sent.since()
		calls := c.together(attempts(names), c.try())
		if n := len(c.sent.since()); n > openers+1+2*(2*5+1) { // a path of halves to each, and what it is told alone
			t.Errorf("%s: %d statements for %d calls, two of them refused", use, n, len(calls))
		}
		wantRefusedAlone(t, calls)
		wantHeld(t, look, good)
		look.exec(t, `DROP TRIGGER refuse ON pglock.locks`)
		for _, a := range calls {
			if a.lease == nil {
				a.lease = mustTry(t, c.Client, a.name)
			}
		}
		refuses(t, look, "UPDATE ON pglock.locks", "NEW.expires_at = '-infinity'")
		var leases []*pglock.Lease
		for _, a := range calls {
			leases = append(leases, a.lease)
		}
		released := c.together(ofLeases(leases), release)
		wantRefusedAlone(t, released)
		wantHeld(t, look, []*attempt{{name: "bad1"}, {name: "bad2"}})
		look.exec(t, `DROP TRIGGER refuse ON pglock.locks`)
		look.exec(t, `UPDATE pglock.locks SET expires_at = '-infinity', ended_at = clock_timestamp()`)
	}
}

// One ticket that the server refuses fails alone; the other calls of the same statement are queued.
func TestWaitThatTheServerRefusesFailsAlone(t *testing.T) {
	db := pgtest.Database(t)
	look, holder := newPeer(t, db.URL()), newClient(t, db.Pool(t))
	names := []string{"a", "b", "bad1", "c", "bad2", "z"}
	leases := make(map[string]*pglock.Lease)
	for _, name := range names {
		leases[name] = mustTry(t, holder, name)
	}
	refuses(t, look, "INSERT ON pglock.waiters", "true")
	c := newCrowd(t, db.URL(), 4)
	free := c.hold()
	calls := c.gather(attempts(names), c.wait(pglock.WithMetadata(json.RawMessage(`1`))))
	free()
	pgtest.Eventually(t, "the others to be queued", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == len(names)-2
	})
	for _, a := range calls {
		if l := leases[a.name]; l != nil && !strings.HasPrefix(a.name, "bad") {
			mustRelease(t, l)
		}
		a.wait(t)
	}
	wantRefusedAlone(t, calls)
}

// Calls that hang at locked rows, as many as a coalescer is wide, hold up calls for other locks for a moment only.
func TestCallsThatHangHoldUpOthersForAMomentOnly(t *testing.T) {
	pgtest.Long(t, "TestI13_NobodyHoldsUpARenewal")
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	c, holder := newCrowd(t, db.URL(), 20), newClient(t, db.Pool(t))
	const bound = 2 * time.Second
	metadata := pglock.WithMetadata(json.RawMessage(`1`))
	for _, name := range some("stuck", 6) {
		mustTry(t, holder, name, pglock.WithTTL(time.Hour))
	}
	mine := mustTry(t, c.Client, "mine")
	keeper := newPeer(t, db.URL())
	keeper.exec(t, `BEGIN`)
	keeper.exec(t, `SELECT FROM pglock.locks WHERE name LIKE 'stuck%' OR name = 'mine' FOR UPDATE`)
	ctx, cancel := context.WithCancel(t.Context())
	got, released := make(chan fetched, 6), make(chan error, 1)
	for i, name := range some("stuck", 6) {
		if opts := []pglock.AcquireOption{metadata}; i < 2 {
			acquireInBackground(ctx, c.Client, i, name, got)
		} else {
			acquireInBackground(ctx, c.Client, i, name, got, opts...)
		}
	}
	go func() {
		// longer than it takes until all of them hang
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		released <- mine.Release(ctx)
	}()
	const hang = 5 // as many as the widest coalescer, and the release
	pgtest.Eventually(t, "calls to hang", func() bool { return blocked(t, look) >= hang })
	for _, name := range some("free", 4) {
		for _, opts := range [][]pglock.AcquireOption{nil, {metadata}} {
			for round := 1; ; round++ { // a busy machine may be slow now and then
				began := time.Now()
				l := mustTry(t, c.Client, name, opts...)
				acquired := time.Since(began)
				mustRelease(t, l)
				if took := time.Since(began); took <= bound {
					break
				} else if round == 3 {
					t.Errorf("%q was acquired after %v and released after %v while others hang", name, acquired, took)
					break
				}
			}
		}
	}
	// One that has waited for as long as the server lets it asks again at once.
	pgtest.Eventually(t, "calls to hang yet", func() bool { return blocked(t, look) >= hang })
	keeper.exec(t, `ROLLBACK`)
	must.Note(t, <-released)
	cancel()
	for range 6 {
		if f := await(t, got); !errors.Is(f.err, context.Canceled) {
			t.Errorf("%d: %v", f.n, f.err)
		}
	}
}

// A call that hangs at a row that somebody has locked holds up those that travel with it for a moment only.
func TestCallThatHangsHoldsUpThoseInItsStatementForAMomentOnly(t *testing.T) {
	pgtest.Long(t, "TestI13_NobodyHoldsUpARenewal")
	const bound = patience / 2 // they would wait until the row is free
	for what, opts := range map[string][]pglock.AcquireOption{"plain": nil,
		"with metadata": {pglock.WithMetadata(json.RawMessage(`1`))}} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Database(t)
			keeper := newPeer(t, db.URL())
			patientTransactions(t, keeper)
			c := newCrowd(t, db.URL(), 5)
			keeper.exec(t, `BEGIN`)
			keeper.mustAcquire(t, "m", time.Hour) // the first use of its name, not committed: others wait to hear of it
			free := c.hold()
			calls := c.gather(attempts(around(3)), c.try(opts...))
			began := time.Now()
			free()
			for _, a := range calls {
				if a.name != "m" {
					a.wait(t)
				}
			}
			if took := time.Since(began); took > bound {
				t.Errorf("calls for other locks came back after %v", took)
			}
			keeper.exec(t, `COMMIT`)
			for _, a := range calls {
				if a.wait(t); a.name == "m" != errors.Is(a.err, pglock.ErrHeld) || a.name != "m" && a.err != nil {
					t.Errorf("%q: %v", a.name, a.err)
				}
			}
		})
	}
}

// Two clients ask at one time for the same names that nobody has used before, in opposite orders: their statements wait
// for each other in one direction only, and each lock is granted once.
func TestI25_StatementsForTheSameNewNamesNeverDeadlock(t *testing.T) {
	for what, opts := range map[string][]pglock.AcquireOption{"plain": nil,
		"with metadata": {pglock.WithMetadata(json.RawMessage(`1`))}} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Database(t)
			look, b := newPeer(t, db.URL()), newBarrier(t, db)
			logGrants(t, look)
			one1, two := newCrowd(t, db.URL(), 5, noticesDeadlocksSoon), newCrowd(t, db.URL(), 5, noticesDeadlocksSoon)
			first := attempts(around(3))
			one1.inFlight(b, first, one1.try(opts...), "acquire_leases")
			names := slices.DeleteFunc(around(3), func(name string) bool { return name == "m" })
			slices.Reverse(names)
			second := ofLeases(nil)
			for _, name := range append(some("other", openers), names...) {
				second = append(second, &attempt{name: name})
			}
			free := two.hold()
			two.gather(second, two.try(opts...))
			free()
			pgtest.Eventually(t, "the second to wait for the first", func() bool { return blocked(t, look) > 0 })
			b.open(t)
			granted := 0
			for _, a := range append(first[openers:], second[openers:]...) {
				if a.wait(t); a.err == nil {
					granted++
					ownsRow(t, look, a.lease)
				} else if !errors.Is(a.err, pglock.ErrHeld) {
					t.Errorf("%q: %v", a.name, a.err)
				}
			}
			if want := len(around(3)); granted != want {
				t.Errorf("%d grants of %d locks", granted, want)
			}
			checkGrants(t, look)
			for _, c := range []*crowd{one1, two} {
				c.sent.mu.Lock()
				if n := c.sent.states["40P01"]; n != 0 {
					t.Errorf("I19: the server broke %d deadlocks", n)
				}
				c.sent.mu.Unlock()
			}
		})
	}
}

// Clients whose many callers use the same locks in all orders and ways: no deadlock, no overlap, tokens that increase.
func TestI25_CrowdsThatShareTheirLocksNeverDeadlock(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	const clients, callers, locks = 3, 12, 10
	var crowds []*crowd
	all := pgtest.Group(t)
	for range clients {
		c := newCrowd(t, db.URL(), 6, noticesDeadlocksSoon)
		crowds = append(crowds, c)
		for range callers {
			all.Go(func() {
				for round := range 12 {
					name := fmt.Sprint("round", round/4, "-", rand.N(locks))
					var opts []pglock.AcquireOption
					if rand.N(2) == 0 {
						opts = append(opts, pglock.WithMetadata(json.RawMessage(`1`)))
					}
					acquire := c.TryAcquire
					if rand.N(3) == 0 {
						acquire = c.Acquire
					}
					l, err := acquire(t.Context(), name, opts...)
					if err == nil {
						err = l.Release(t.Context())
					}
					if err != nil && !errors.Is(err, pglock.ErrHeld) {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	grants := checkGrants(t, look)
	several := 0
	for _, c := range crowds {
		for _, s := range c.sent.since() {
			if len(s.names) > 1 {
				several++
			}
		}
		c.sent.mu.Lock()
		for _, code := range []string{"40P01", "40001"} {
			if n := c.sent.states[code]; n != 0 {
				t.Errorf("I19: %d statements failed with %s", n, code)
			}
		}
		c.sent.mu.Unlock()
	}
	t.Logf("%d grants, %d statements for several", grants, several)
	if several < 5 || grants < 30 {
		t.Error("too little happened to show anything")
	}
	if h := held(t, look); len(h) > 0 {
		t.Errorf("%q are still held", h)
	}
}
