package integration

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// The short ways to ask for one lock, each with its name, a grant ID and a session: granted, and the token of the grant.
var shortGrants = map[string]string{
	"acquire_lease":           `SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min')`,
	"acquire_lease for turns": `SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min', p_turns => 3)`,
	"acquire_many": `SELECT coalesce(bool_or(granted), false), max(token) FILTER (WHERE granted)
		FROM pglock.acquire_many(ARRAY[$1], ARRAY[$2::uuid], ARRAY[NULL::uuid], $3, 'peer', '1 min')`,
	"acquire_each": `SELECT granted, token FROM pglock.acquire_each(ARRAY[$1], ARRAY[$2::uuid], $3, ARRAY['peer'], ARRAY['1 min'::interval],
		ARRAY[NULL::jsonb], ARRAY['exclusive'], ARRAY[NULL::int], ARRAY[false], '10 s', ARRAY[NULL::uuid], ARRAY[false], ARRAY[1])`,
}

// The short ways to release one lock, each with its name, a token and a grant ID: whether it was released.
var shortReleases = map[string]string{
	"release_lease": `SELECT coalesce(released, false) FROM pglock.release_lease($1, $2, $3)`,
	"release_many":  `SELECT count(*) = 1 FROM pglock.release_many(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid])`,
}

func (p *peer) shortGrant(ctx context.Context, way, name string, id uuid.UUID) (grant, error) {
	g := grant{name: name, id: id}
	var token *int64
	err := p.QueryRow(ctx, shortGrants[way], name, id.String(), p.session.String()).Scan(&g.granted, &token)
	g.token = orZero(token)
	return g, err
}

func (p *peer) mustShort(t *testing.T, way, name string) grant {
	t.Helper()
	g, err := p.shortGrant(t.Context(), way, name, uuid.New())
	if err != nil || !g.granted {
		t.Fatalf("%s of %q: %+v, %v", way, name, g, err)
	}
	return g
}

func (p *peer) shortRelease(ctx context.Context, way string, g grant) (released bool, err error) {
	err = p.QueryRow(ctx, shortReleases[way], g.name, g.token, g.id.String()).Scan(&released)
	return released, err
}

func (p *peer) mustShortRelease(t *testing.T, way string, g grant) {
	t.Helper()
	if released, err := p.shortRelease(t.Context(), way, g); err != nil || !released {
		t.Fatalf("%s of %q: %v, %v", way, g.name, released, err)
	}
}

// newShortPeer is a peer that waits for nothing for long, should a wait be wrong.
func newShortPeer(t *testing.T, url string) *peer {
	t.Helper()
	p := newPeer(t, url)
	p.exec(t, `SET lock_timeout = '3s'`)
	return p
}

// freed is a lock that was released: the short ways are for these.
func freed(t *testing.T, p *peer, name string) grant {
	t.Helper()
	g := p.mustAcquire(t, name, time.Minute)
	p.mustShortRelease(t, "release_lease", g)
	return g
}

func isHeld(t *testing.T, look *peer, g grant) bool {
	t.Helper()
	return one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND token = $2 AND grant_id = $3 AND expires_at > clock_timestamp())`,
		g.name, g.token, g.id.String())
}

// The history of all short ways beside each other, and beside the old ones, is that of one mutex.
func TestI1_I2_ShortWaysAndOldOnesAreOneMutex(t *testing.T) {
	db := pgtest.Database(t)
	acquire := []func(p *peer) (grant, error){func(p *peer) (grant, error) {
		return p.acquire(context.Background(), "x", uuid.New(), time.Minute, false)
	}}
	for way := range shortGrants {
		acquire = append(acquire, func(p *peer) (grant, error) { return p.shortGrant(context.Background(), way, "x", uuid.New()) })
	}
	release := []func(p *peer, g grant) (bool, error){
		func(p *peer, g grant) (bool, error) { return p.release(context.Background(), g) },
		func(p *peer, g grant) (bool, error) { return p.shortRelease(context.Background(), "release_lease", g) },
		func(p *peer, g grant) (bool, error) { // it passes over a row that somebody else has locked
			released, err := p.shortRelease(context.Background(), "release_many", g)
			if err == nil && !released {
				released, err = p.shortRelease(context.Background(), "release_lease", g)
			}
			return released, err
		},
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for i := range 8 {
		p := newShortPeer(t, db.URL())
		record := func(in operation, call func() (outcome, error)) bool {
			start := time.Since(began)
			out, err := call()
			end := time.Since(began)
			if err != nil {
				t.Error(err)
				cancel()
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			if len(history) == 3000 {
				cancel() // enough, and the checker's work grows faster than the history
			}
			history = append(history, porcupine.Operation{ClientId: i, Input: in, Call: int64(start), Output: out, Return: int64(end)})
			return true
		}
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				var g grant
				if !record(operation{}, func() (outcome, error) {
					var err error
					g, err = acquire[n%len(acquire)](p)
					return outcome{g.granted, g.token}, err
				}) {
					return
				}
				if g.granted && !record(operation{release: true, token: g.token}, func() (outcome, error) {
					released, err := release[n%len(release)](p, g)
					return outcome{done: released}, err
				}) {
					return
				}
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(fencedMutex, history, time.Minute); result != porcupine.Ok {
		t.Fatalf("I2: a history of %d operations is %s", len(history), result)
	}
	if len(history) < 200 {
		t.Errorf("%d operations are too few to show anything", len(history))
	}
}

// A lock that is being granted is granted to nobody else, and nobody waits to hear it; one whose grant is undone is free.
func TestI1_I13_GrantUnderWayIsGrantedToNobodyElse(t *testing.T) {
	db := pgtest.Database(t)
	for first := range shortGrants {
		for second := range shortGrants {
			for _, ends := range []string{"COMMIT", "ROLLBACK"} {
				t.Run(fmt.Sprintf("%s, then %s/%s", first, second, ends), func(t *testing.T) {
					a, b := newShortPeer(t, db.URL()), newShortPeer(t, db.URL())
					before := freed(t, a, t.Name())
					a.exec(t, `BEGIN`)
					g := a.mustShort(t, first, t.Name())
					b.exec(t, `SET lock_timeout = '1ms'`)
					if other, err := b.shortGrant(t.Context(), second, t.Name(), uuid.New()); err != nil || other.granted {
						t.Errorf("I1: while the lock is being granted: %+v, %v", other, err)
					}
					a.exec(t, ends)
					other, err := b.shortGrant(t.Context(), second, t.Name(), uuid.New())
					if err != nil || other.granted != (ends == "ROLLBACK") {
						t.Errorf("I1: after %s: %+v, %v", ends, other, err)
					}
					if other.granted && (other.token <= before.token || other.token == g.token) {
						t.Errorf("I2: token %d, after %d and one that was undone, %d", other.token, before.token, g.token)
					}
				})
			}
		}
	}
}

// What is held, by an exclusive lease, by a reader, or by a place in a semaphore, is not granted in a short way.
func TestI1_ShortWaysLeaveWhatIsHeldAlone(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	for way := range shortGrants {
		for holder, mode := range map[string]string{"exclusive": "", "shared": `, p_mode => 'shared'`, "limit": `, p_mode => 'limit', p_capacity => 2`} {
			name := way + " beside " + holder
			p.exec(t, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'h', '1 min'`+mode+`)`, name)
			if g, err := p.shortGrant(t.Context(), way, name, uuid.New()); err != nil || g.granted {
				t.Errorf("I1: %s: %+v, %v", name, g, err)
			}
		}
		// One that ran out is taken over with a note in the audit, or not at all.
		name := way + " of what ran out"
		old := p.mustAcquire(t, name, time.Minute)
		endNow(t, p, name)
		g, err := p.shortGrant(t.Context(), way, name, uuid.New())
		noted := one[int](t, p, `SELECT count(*) FROM pglock.events WHERE kind = 'takeover' AND lock_name = $1 AND token = $2`, name, old.token)
		if err != nil || g.granted != (way != "acquire_many") || noted != 1 && g.granted {
			t.Errorf("%s: %+v, %v; %d takeovers in the audit", name, g, err, noted)
		}
	}
	// Readers are granted beside readers, on a lock that was released too.
	freed(t, p, "readers")
	for range 2 {
		if !one[bool](t, p, `SELECT granted FROM pglock.acquire_lease('readers', gen_random_uuid(), gen_random_uuid(), 'h', '1 min', p_mode => 'shared')`) {
			t.Error("a reader was refused")
		}
	}
}

// A release in a short way, and a grant after it, is seen by the COMMIT of the transaction that was fenced before, at every
// isolation level.
func TestI4_I18_ShortReleaseIsSeenInsideCommit(t *testing.T) {
	db := pgtest.Database(t)
	newLedger(t, db)
	for release := range shortReleases {
		for _, then := range append([]string{"nobody"}, "acquire_lease", "acquire_lease for turns", "acquire_many", "acquire_each") {
			for _, level := range levels {
				t.Run(strings.Join([]string{release, then, string(level)}, "/"), func(t *testing.T) {
					f := beginFenced(t, db.URL(), level, time.Minute)
					f.look.mustShortRelease(t, release, f.g)
					if then != "nobody" {
						f.look.mustShort(t, then, f.g.name)
					}
					want := "LK003"
					if level != "read committed" {
						want = "40001"
					}
					f.wantCommit(t, want)
				})
			}
		}
	}
}

// From the check inside COMMIT to its end nobody ends the lease in a short way or is granted the lock.
func TestI4_ShortWaysWaitForACommitThatIsUnderWayOrPassItOver(t *testing.T) {
	db := pgtest.Database(t)
	newLedger(t, db)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			f := beginFenced(t, db.URL(), level, time.Minute)
			f.exec(t, `SET CONSTRAINTS pglock.fence_commit IMMEDIATE`) // the check, as inside COMMIT
			wantWaits(t, f.look, shortReleases["release_lease"], f.g.name, f.g.token, f.g.id.String())
			if released, err := f.look.shortRelease(t.Context(), "release_many", f.g); err != nil || released {
				t.Errorf("I4: release_many: %v, %v", released, err)
			}
			// Even if the lease ends at this moment, by the clock or by a hand that asks nobody.
			for _, ends := range []string{"clock_timestamp()", "'-infinity'"} {
				f.look.exec(t, `UPDATE pglock.locks SET expires_at = `+ends+` WHERE name = $1`, f.g.name)
				for way := range shortGrants {
					if g, err := f.look.shortGrant(t.Context(), way, f.g.name, uuid.New()); err != nil || g.granted {
						t.Errorf("I4: %s: %+v, %v", way, g, err)
					}
				}
			}
			f.wantCommit(t, "")
		})
	}
}

// A release takes the token and the grant ID of one and the same lease, and so do the others that speak of many.
func TestI5_ManyLeasesAreNeverMixedUp(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	a, b := p.mustShort(t, "acquire_many", "a"), p.mustShort(t, "acquire_lease", "b")
	stranger := uuid.New()
	for what, tc := range map[string]struct {
		tokens []int64
		ids    []uuid.UUID
	}{
		"grant IDs exchanged": {[]int64{a.token, b.token}, []uuid.UUID{b.id, a.id}},
		"tokens exchanged":    {[]int64{b.token, a.token}, []uuid.UUID{a.id, b.id}},
		"all exchanged":       {[]int64{b.token, a.token}, []uuid.UUID{b.id, a.id}},
		"a stranger's IDs":    {[]int64{a.token, b.token}, []uuid.UUID{stranger, stranger}},
		"later tokens":        {[]int64{a.token + 1, b.token + 1}, []uuid.UUID{a.id, b.id}},
		"no tokens":           {[]int64{0, 0}, []uuid.UUID{a.id, b.id}},
	} {
		for function, sql := range map[string]string{
			"release_many": `SELECT count(*) FROM pglock.release_many('{a,b}', $1, $2)`,
			"check_leases": `SELECT count(*) FROM pglock.check_leases('{a,b}', $1, $2)`,
			"renew_leases": `SELECT count(*) FILTER (WHERE outcome = 'renewed') FROM pglock.renew_leases('{a,b}', $1, $2, '{0,0}')`,
		} {
			if n := one[int](t, p, sql, tc.tokens, tc.ids); n != 0 {
				t.Errorf("I5: %s with %s answers for %d leases", function, what, n)
			}
		}
		for n, name := range []string{"a", "b"} {
			if one[bool](t, p, `SELECT coalesce(released, false) FROM pglock.release_lease($1, $2, $3)`, name, tc.tokens[n], tc.ids[n]) {
				t.Errorf("I5: release_lease with %s released %q", what, name)
			}
			if one[bool](t, p, `SELECT pglock.own_lease($1, $2, $3, gen_random_uuid())`, name, tc.tokens[n], tc.ids[n]) {
				t.Errorf("I5: own_lease with %s has changed %q", what, name)
			}
		}
		if !isHeld(t, p, a) || !isHeld(t, p, b) {
			t.Fatalf("I5: %s: a lease was ended", what)
		}
	}
	right := []any{[]int64{a.token, b.token}, []uuid.UUID{a.id, b.id}}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.check_leases('{a,b}', $1, $2) WHERE remaining_us > 0`, right...); n != 2 {
		t.Errorf("check_leases answers for %d of 2", n)
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.renew_leases('{a,b}', $1, $2, '{0,0}') WHERE outcome = 'renewed'`, right...); n != 2 {
		t.Errorf("renew_leases renews %d of 2", n)
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.release_many('{a,b}', $1, $2)`, right...); n != 2 {
		t.Errorf("release_many releases %d of 2", n)
	}
	if n := one[int](t, p, `SELECT count(*) FROM pglock.check_leases('{a,b}', $1, $2)`, right...); n != 0 {
		t.Errorf("check_leases answers for %d of 2 that were released", n)
	}
}

// A lease that has run out is neither released, renewed nor held any more.
func TestI7_ShortWaysKnowWhenALeaseHasRunOut(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	g := p.mustShort(t, "acquire_lease", "x")
	endNow(t, p, "x")
	if n := one[int](t, p, `SELECT (SELECT count(*) FROM pglock.check_leases('{x}', $1, $2)) + (SELECT count(*) FROM pglock.release_many('{x}', $1, $2))
			+ (SELECT count(*) FROM pglock.renew_leases('{x}', $1, $2, '{0}') WHERE outcome <> 'expired')`, []int64{g.token}, []uuid.UUID{g.id}); n != 0 {
		t.Errorf("%d functions take it for a lease", n)
	}
	if released, err := p.shortRelease(t.Context(), "release_lease", g); err != nil || released {
		t.Errorf("release_lease: %v, %v", released, err)
	}
}

// A grant ID that was given up, or whose lease has ended, is not granted in a short way, on a lock that is known or not.
func TestI6_ShortWaysGrantNoSpentID(t *testing.T) {
	db := pgtest.Database(t)
	p := newShortPeer(t, db.URL())
	for way := range shortGrants {
		spent := uuid.New()
		p.exec(t, `SELECT pglock.give_back('elsewhere', $1)`, spent.String())
		known, unknown := way+", known", way+", unknown"
		freed(t, p, known)
		for _, name := range []string{known, unknown} {
			g, err := p.shortGrant(t.Context(), way, name, spent)
			if way == "acquire_many" && (err != nil || g.granted) || way != "acquire_many" && state(err) != "LK008" {
				t.Errorf("I6: %s: %+v, %v", name, g, err)
			}
		}
		used := freed(t, p, known)
		g, err := p.shortGrant(t.Context(), way, known, used.id)
		if way == "acquire_many" && (err != nil || g.granted) || way != "acquire_many" && state(err) != "LK008" {
			t.Errorf("I6: %s, again: %+v, %v", known, g, err)
		}
	}
}
