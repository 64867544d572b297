package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

// The table: each kind of call (fault_kinds_test.go) meets each fault (fault_list_test.go), and one judge says what
// must hold afterwards. With -v the table is printed.
func TestI5_I6_I17_Trap9_ACallThatMeetsAFaultLeavesWhatItSays(t *testing.T) {
	t.Parallel()
	meet(t, pgtest.Some(t, kinds, func(k *kind) bool { return k.short }))
}

// The same for calls that travel in one statement. It is not parallel: see crowd.under.
func TestI5_I6_Trap9_CallsInOneStatementThatMeetAFaultLeaveWhatTheySay(t *testing.T) {
	meet(t, kindsOfMany)
}

// meet runs a part of the table: a database for each kind, and a client for each cell.
func meet(t *testing.T, kinds []*kind) {
	var mu sync.Mutex
	came := make(map[string]string) // what came of each cell
	t.Cleanup(func() { printTable(t, kinds, came) })
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if k.names == nil { // and so of one call
				t.Parallel()
			}
			db := pgtest.Database(t)
			newLedger(t, db)
			s := &scene{db: db, look: newPeer(t, db.URL()), b: newBarrier(t, db)}
			s.other = newClient(t, db.Pool(t), pglock.WithDefaultHolder("the holder"))
			logGrants(t, s.look)
			s.b.atCommit(t)
			for _, f := range faults {
				if !f.fits(k) || f.long && !pgtest.LargeLoads {
					continue
				}
				t.Run(f.name, func(t *testing.T) {
					began := time.Now()
					x := s.cell(t, k)
					f.inject(x)
					x.judge(f)
					mu.Lock()
					defer mu.Unlock()
					came[k.name+f.name] = fmt.Sprintf("%s, %.1f s", x.came(), time.Since(began).Seconds())
				})
			}
		})
	}
}

func printTable(t *testing.T, kinds []*kind, came map[string]string) {
	for _, f := range faults {
		cells := ""
		for _, k := range kinds {
			if said := came[k.name+f.name]; said != "" {
				cells += fmt.Sprintf("\n    %-28s %s", k.name, said)
			}
		}
		t.Logf("%s:%s", f.name, cells)
	}
}

// judge says what must hold after every fault.
func (x *cell) judge(f *fault) {
	x.Helper()
	x.n.mend()
	x.letGo()
	for _, a := range x.calls {
		a.wait(x.T)
		want := f.want(x.k)
		if x.cancelled != nil && !slices.Contains(x.cancelled, a) || isOpener(a) && a.err == nil {
			want = succeeds
		}
		if !want.is(a.err) {
			x.Errorf("%q answered: %v; want %s", a.name, a.err, want.what)
		}
		if a.err != nil && !x.k.leased && (a.lease != nil || a.leases != nil) {
			x.Errorf("%q answered an error and a lease", a.name)
		}
	}
	if x.k.checks != nil {
		for _, a := range x.calls {
			x.k.checks(x, a)
		}
	}
	if x.k.leased && !x.closed {
		for _, a := range x.calls { // whoever was not told learns by its next heartbeat what became of its lease
			if a.err != nil {
				_ = hooks.Of(a.lease).Renew(x.Context())
			}
		}
	}
	x.wantAsBelieved()
	for _, a := range x.calls {
		if a.err == nil && !x.closed {
			x.wantOnce(a)
		}
	}
	checkGrants(x.T, x.look)
	if !x.closed {
		x.wantAtWork()
		for _, a := range x.calls {
			a.cancel() // ends what leads
		}
		if err := x.c.Close(x.Context()); err != nil {
			x.Errorf("Close: %v", err)
		}
		x.told = true
	}
	if x.told {
		x.wantNothingLeft()
	}
}

// wantAsBelieved waits until just those leases are held on the server that somebody believes to hold, and nobody is
// queued but those who wait.
func (x *cell) wantAsBelieved() {
	x.Helper()
	if x.closed && !x.told {
		return // what Close could not tell runs out by itself
	}
	pgtest.Eventually(x.T, "locks to be held by those who know it, and tickets to be of calls", func() bool {
		held := one[[]string](x.T, x.look, `SELECT coalesce(array_agg(name || ' ' || token ORDER BY name, token), '{}')
			FROM pglock.locks WHERE expires_at > clock_timestamp()`)
		waiting := 0
		for _, a := range x.others {
			if !a.isDone() {
				waiting++
			}
		}
		return slices.Equal(held, x.believed()) && one[int](x.T, x.look, `SELECT count(*) FROM pglock.waiters`) == waiting
	})
}

func (x *cell) believed() []string {
	leases := slices.Concat(x.ours, x.theirs)
	for _, a := range slices.Concat(x.calls, x.others) {
		if a.isDone() {
			leases = append(append(leases, a.lease), a.leases...)
		}
	}
	names := []string{}
	for _, l := range leases {
		if l != nil && l.Valid() {
			names = append(names, fmt.Sprint(l.Name(), " ", l.Token()))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// wantOnce checks that what a call was answered was done once.
func (x *cell) wantOnce(a *attempt) {
	x.Helper()
	for _, l := range append([]*pglock.Lease{a.lease}, a.leases...) {
		if l == nil {
			continue
		}
		grants, ends := one[int](x.T, x.look, `SELECT count(DISTINCT grant_id) FROM public.grant_log
			WHERE name = $1 AND new_token IS DISTINCT FROM old_token AND new_expires > '-infinity'`, l.Name()),
			one[int](x.T, x.look, `SELECT count(*) FROM public.grant_log
				WHERE name = $1 AND new_expires = '-infinity' AND old_expires > '-infinity'`, l.Name())
		if want := 1; !x.k.leased && (grants != want || !l.Valid()) {
			x.Errorf("I6: %d grants for one lease of %q: %v", grants, l.Name(), l.Err())
		}
		if x.k.ends && (grants > 1 || ends > 1 || grants+ends == 0) {
			x.Errorf("I5: %q was ended %d times, and granted %d times", l.Name(), ends, grants)
		}
	}
}

// wantAtWork checks that the client goes on.
func (x *cell) wantAtWork() {
	x.Helper()
	for _, l := range append(x.ours, mustTry(x.T, x.c.Client, "after")) {
		if !l.Valid() {
			continue
		}
		err := hooks.Of(l).Renew(x.Context())
		for range 5 { // it may take a connection that the fault has ended, and that nobody has used since
			if err == nil || errors.Is(err, pglock.ErrLost) {
				break
			}
			err = hooks.Of(l).Renew(x.Context())
		}
		if err == nil && l.Name() == "after" {
			err = l.Release(x.Context())
		}
		if err != nil {
			x.Errorf("afterwards: %q: %v", l.Name(), err)
		}
	}
}

// wantNothingLeft checks that a client which has closed leaves nothing, and that its locks are free for others.
func (x *cell) wantNothingLeft() {
	x.Helper()
	x.wantAsBelieved()
	for _, l := range x.theirs {
		if l.Valid() {
			mustRelease(x.T, l)
		}
	}
	for _, a := range x.others {
		a.wait(x.T)
		if a.err != nil {
			x.Errorf("the other call: %v", a.err)
		} else {
			mustRelease(x.T, a.lease)
		}
	}
	wantFree(x.T, x.look)
	x.c.pool.Close()
	pgtest.Eventually(x.T, "the client's connections to be closed", func() bool {
		return one[int](x.T, x.look, `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, x.app) == 0
	})
}

// came is what the calls came back with, for people.
func (x *cell) came() string {
	var all []string
	for _, a := range x.calls {
		said := x.k.does
		for err, says := range map[error]string{context.Canceled: "cancelled", pglock.ErrClosed: "closed",
			pglock.ErrLost: "lost", pglock.ErrReleased: "released before"} {
			if errors.Is(a.err, err) {
				said = says
			}
		}
		if a.err != nil && said == x.k.does {
			said = "not " + said
		}
		if !slices.Contains(all, said) {
			all = append(all, said)
		}
	}
	return strings.Join(all, " and ")
}
