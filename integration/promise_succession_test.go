package integration

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// succession is one lease after another of the same lock: how the first ended, and how the second was granted.
type succession struct {
	end  string // one of waysToEnd, "by the clock" or "hand_over"
	then string // "asked for", or "waited for"
	mode string
}

func successions() (all []succession) {
	for _, mode := range []string{"exclusive", "limit 1", "shared"} {
		for _, end := range append(slices.Sorted(maps.Keys(waysToEnd)), "by the clock") {
			all = append(all, succession{end, "asked for", mode})
			if mode != "shared" { // nobody waits for a lock that is shared
				all = append(all, succession{end, "waited for", mode})
			}
		}
	}
	return append(all, succession{"hand_over", "waited for", "exclusive"})
}

// follow ends the first's lease, and gives the lock to the second.
func (s succession) follow(t *testing.T, look *peer, first, second *party, name string) {
	t.Helper()
	first.mustGet(t, name)
	if s.then == "waited for" {
		second.mustQueue(t, name)
	}
	switch s.end {
	case "by the clock":
		endNow(t, look, name)
	case "hand_over":
		first.mustEnd(t, `SELECT outcome = 'handed over' FROM pglock.hand_over($1, $2, $3,
			$4)`, first.name, first.token, first.id, second.label)
	default:
		waysToEnd[s.end](t, first)
	}
	if s.then == "asked for" || s.end == "by the clock" {
		if err := second.ask(t, name, false, second.ticket > 0); err != nil || !second.granted {
			t.Fatalf("%+v: the second asks: granted %v, %v", s, second.granted, err)
		}
	}
	second.find(t)
}

// Whoever is granted a lock after somebody else has a lease of its own: for the TTL that it named, also after a
// renewal, with its own label, metadata, session and owner, and a greater token. It does not matter how the lease
// before it ended.
func TestASuccessorHasNothingOfTheLeaseBeforeIt(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for _, s := range successions() {
		for what, ttls := range map[string][2]time.Duration{
			"longer": {time.Minute, 10 * time.Minute}, "shorter": {10 * time.Minute, time.Minute},
		} {
			first, second := p.party("first", s.mode, ttls[0]), p.party("second", s.mode, ttls[1])
			s.follow(t, p, first, second, fmt.Sprint(s, what))
			wantLeft := func(when string, left time.Duration) {
				t.Helper()
				if left > second.ttl || left < second.ttl-30*time.Second {
					t.Errorf("%+v, %s: %s the lease runs for %v, want %v", s, what, when, left, second.ttl)
				}
			}
			var ttl, left int64
			var session uuid.UUID
			var of *string
			var fresh bool
			if err := p.QueryRow(t.Context(), `SELECT ttl_us, remaining_us, session_id, metadata ->> 'of',
					slowest_us IS NULL AND renewed_at >= acquired_at AND acquired_at > clock_timestamp() - interval '30 s'
				FROM pglock.get_lock($1) WHERE held`, second.name).Scan(&ttl, &left, &session, &of,
				&fresh); err != nil {
				t.Fatal(err)
			}
			wantLeft("after the grant", time.Duration(left)*time.Microsecond)
			if got := time.Duration(ttl) * time.Microsecond; got != second.ttl {
				t.Errorf("%+v, %s: the TTL is %v, want %v", s, what, got, second.ttl)
			}
			if session != second.session() || orZero(of) != second.label || !fresh || second.token <= first.token {
				t.Errorf("%+v: session %v, metadata of %q, token %d after %d, times of its own: %v",
					s, session, orZero(of), second.token, first.token, fresh)
			}
			outcome, renewed := second.renew(t)
			if outcome != "renewed" {
				t.Errorf("%+v: the renewal is %s", s, outcome)
			}
			wantLeft("after a renewal", renewed)
			if why := first.lost(t); why == "" {
				t.Errorf("%+v: the lease before it is still held", s)
			}
			for a, want := range map[*party]string{first: "", second: "LK004"} { // whose lock it is
				again := p.party(a.label, s.mode, time.Minute)
				again.owner, again.nested = a.owner, true
				if err := again.ask(t, second.name, false, false); state(err) != want {
					t.Errorf("%+v: the owner of the %s lease asks: %v, want %q", s, a.label, err, want)
				}
			}
		}
	}
}

// A lock that was used in one mode, or with one limit, is used in another when it is free, and nothing of the old use
// counts.
func TestALockIsUsedInAnotherModeWhenItIsFree(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	modes := []string{"exclusive", "shared", "limit 2", "limit 3"}
	for _, before := range modes {
		for _, mode := range modes {
			name := before + ", then " + mode
			for n := range 2 {
				a := p.party(fmt.Sprint("before ", n), before, time.Minute)
				if err := a.ask(t, name, false, false); err != nil || a.granted != (n == 0 || before != "exclusive") {
					t.Fatalf("%s: %s: granted %v, %v", name, a.label, a.granted, err)
				}
			}
			endNow(t, p, name)
			p.party("now", mode, time.Minute).mustGet(t, name)
			var shown, capacity string
			if err := p.QueryRow(t.Context(), `SELECT mode, coalesce(capacity::text, '')
				FROM pglock.get_lock($1) WHERE held`, name).Scan(&shown, &capacity); err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(shown + " " + capacity); got != mode {
				t.Errorf("%s: it is held in mode %s", name, got)
			}
			for _, other := range modes {
				a := p.party("beside it", other, time.Minute)
				err := a.ask(t, name, false, false)
				want := ""
				if strings.HasPrefix(mode, "limit") && strings.HasPrefix(other, "limit") && other != mode {
					want = "LK010"
				}
				if state(err) != want || a.granted != (other == mode && mode != "exclusive") {
					t.Errorf("%s: %s beside it: granted %v, %v; want %q", name, other, a.granted, err, want)
				}
			}
		}
	}
}

// An owner that asks for a lock that it holds is told so at once, in whatever mode it holds it and in whatever mode it
// asks, waiting or not. Other owners are not, nor is it when its lease has run out.
func TestAnOwnerIsToldThatItHoldsTheLockInAnyMode(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	modes := []string{"exclusive", "shared", "limit 1", "limit 2"}
	for _, held := range modes {
		for _, mode := range modes {
			if strings.HasPrefix(held, "limit") && strings.HasPrefix(mode, "limit") && held != mode {
				continue // which is refused in any case
			}
			for _, wait := range []bool{false, true} {
				name := fmt.Sprint(held, ", then ", mode, ", waits ", wait)
				first := p.party("first", held, time.Minute).mustGet(t, name)
				same, other := p.party("same", mode, time.Minute), p.party("other", mode, time.Minute)
				same.owner, same.nested, other.nested = first.owner, true, true
				if err := same.ask(t, name, wait, false); state(err) != "LK004" {
					t.Errorf("%s: the owner asks again: granted %v, ticket %d, %v; want LK004", name, same.granted,
						same.ticket, err)
				}
				if err := other.ask(t, name, wait, false); err != nil {
					t.Errorf("%s: another owner asks: %v", name, err)
				}
				endNow(t, p, name)
				if err := same.ask(t, name, wait, false); err != nil {
					t.Errorf("%s: the owner of a lease that has run out asks: %v", name, err)
				}
			}
		}
	}
}

// A request that is repeated after its lease has ended revives nothing, whether anybody has noticed the end or not, and
// whether somebody waits for the lock. Neither does a renewal, and the fence refuses it.
func TestI6_Trap8_NothingRevivesALeaseThatHasEnded(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	const ranOut, settled = "by the clock", "by the clock, as the server has noted"
	const waitedFor = "by the clock, and somebody waits"
	for _, mode := range []string{"exclusive", "limit 1", "shared"} {
		for _, end := range append(slices.Sorted(maps.Keys(waysToEnd)), ranOut, settled, waitedFor) {
			for _, again := range []bool{false, true} {
				name := fmt.Sprint(mode, ", ended ", end, ", again ", again)
				a := p.party("first", mode, time.Minute).mustGet(t, name)
				switch end {
				case ranOut:
					endNow(t, p, name)
				case settled:
					p.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp(), ended_at = clock_timestamp()
						WHERE name = $1`, name)
				case waitedFor:
					p.party("writer", "exclusive", time.Minute).mustQueue(t, name)
					endNow(t, p, name)
				default:
					waysToEnd[end](t, a)
				}
				for _, waits := range []bool{false, true} {
					if err := a.ask(t, name, waits, again); a.granted || state(err) != "LK008" {
						t.Errorf("I6: %s, waits %v: the same request is granted: %v; %v, want LK008", name, waits,
							a.granted, err)
					}
				}
				if outcome, _ := a.renew(t); outcome == "renewed" || outcome == "busy" {
					t.Errorf("trap 8: %s: the renewal is %s", name, outcome)
				}
				if _, err := p.Exec(t.Context(), `SELECT pglock.fence($1, $2,
					$3)`, name, a.token, a.id); state(err) != "LK001" && state(err) != "LK003" {
					t.Errorf("I3: %s: the fence says %v", name, err)
				}
				if why, held := a.lost(t), heldBy(t, p, name); why == "" || held != "" {
					t.Errorf("trap 8: %s: the check says %q, and the lock is held by %q", name, why, held)
				}
			}
		}
	}
}

// A grant ID that was given up while its request may be under way is refused for an hour, whoever tidies up meanwhile,
// on a lock that is known or not; and then it is forgotten.
func TestTrap9_AGrantIDThatWasGivenUpIsRefusedForAnHour(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	const known, unknown = "known", "unknown"
	freed(t, p, known)
	late := make(map[string]map[string]uuid.UUID) // by the way of the late request, and the lock's name
	for way := range grantWays {
		late[way] = map[string]uuid.UUID{known: uuid.New(), unknown: uuid.New()}
		for name, id := range late[way] {
			p.exec(t, `SELECT pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid], true)`, p.key, name, id)
		}
	}
	tidy := func() int64 {
		return one[int64](t, p, `SELECT pglock.sweep() + (SELECT removed FROM pglock.prune_locks('1 s'))`)
	}
	for passed := range 2 {
		if passed > 0 {
			letPass(t, p, 59*time.Minute)
			tidy()
		}
		for way, names := range late {
			for name, id := range names {
				if g, err := p.grantBy(t.Context(), way, name, id); state(err) != "LK008" {
					t.Errorf("trap 9: %s of a lock that is %s, after %d minutes: %+v, %v; want LK008", way, name,
						passed*59, g, err)
				}
			}
		}
	}
	letPass(t, p, 2*time.Minute)
	if n := tidy(); n < int64(2*len(grantWays)) {
		t.Errorf("%d notes were removed after an hour, want %d", n, 2*len(grantWays))
	}
	for way, names := range late {
		for name, id := range names {
			g, err := p.grantBy(t.Context(), way, name, id)
			if err != nil || !g.granted {
				t.Fatalf("after an hour: %s: %+v, %v", way, g, err)
			}
			p.mustReleaseBy(t, "release_lease", g)
		}
	}
	letPass(t, p, time.Minute)
	wantCount(t, p, 2, "%d idle locks were removed, want 2: they need no notes any more",
		`SELECT removed FROM pglock.prune_locks('1 s')`)
}

// After advance_epoch with a token that is known from elsewhere, as from a standby that was promoted beside another,
// every grant has a greater one: whether that installation is further by its numbers alone, by steps that somebody took
// there, or by far. A later call goes further, though it names no token.
func TestI22_TokensAreAboveTheOneThatAdvanceEpochNames(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	elsewhere := newHastyPeer(t, pgtest.Database(t).URL())
	last := freed(t, p, "known").token
	drawn := 0
	of := func(steps ...int64) int64 { // a token of the other installation, with a greater number than any here
		for _, above := range steps {
			elsewhere.exec(t, `SELECT pglock.advance_epoch('test', 'test', $1)`, above)
		}
		drawn += 1_000_000
		elsewhere.exec(t, `SELECT setval('pglock.fencing_token_seq', $1)`, drawn)
		return freed(t, elsewhere, fmt.Sprint("there ", drawn)).token
	}
	for n, above := range []func() int64{
		func() int64 { return of() },
		func() int64 { return 0 },
		func() int64 { return of(last, last, last) },
		func() int64 { return of(last + 1<<50) },
		func() int64 { return of(0) },
		func() int64 { return last + 1 },
		func() int64 { return 0 },
	} {
		above := above()
		held := p.mustAcquire(t, fmt.Sprint("held over ", n), time.Minute) // granted before, handed over after
		q := waiter.mustEnqueue(t, held.name, "exclusive", nil)
		floor := max(above, last, held.token)
		p.exec(t, `SELECT pglock.advance_epoch('test', 'test', $1)`, above)
		check := func(what string, token int64) {
			t.Helper()
			if token <= floor {
				t.Errorf("I22: call %d, above %d: %s with token %d, want above %d", n, above, what, token, floor)
			}
			last = max(last, token)
		}
		for _, name := range []string{fmt.Sprint("new ", n, " "), "known"} { // a known one would show where tokens are
			for way := range grantWays {
				if name != "known" {
					name += way
				}
				g := p.mustGrantBy(t, way, name)
				p.mustReleaseBy(t, "release_lease", g)
				check(way+" of "+name, g.token)
			}
		}
		p.mustReleaseBy(t, "release_lease", held)
		check("handed over", grantOf(t, p, held.name, q.id))
	}
}
