package integration

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// The ways to ask for one lock, each with its name, a grant ID and a session: granted, and the token of the grant.
var grantWays = map[string]string{
	"acquire_lease": `SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min')`,
	"acquire_leases": `SELECT granted, token FROM pglock.acquire_leases(ARRAY[$1], ARRAY[$2::uuid], $3, ARRAY['peer'], ARRAY['1 min'::interval],
		ARRAY[NULL::jsonb], ARRAY[false], ARRAY['exclusive'], ARRAY[NULL::int], ARRAY[false], '10 s', ARRAY[NULL::uuid], ARRAY[false])`,
}

// The ways to release one lock, each with its name, a token and a grant ID: whether it was released.
var releaseWays = map[string]string{
	"release_lease":  `SELECT released FROM pglock.release_lease($1, $2, $3)`,
	"release_leases": `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[0])`,
}

func (p *peer) grantBy(ctx context.Context, way, name string, id uuid.UUID) (grant, error) {
	g := grant{name: name, id: id}
	var token *int64
	err := p.QueryRow(ctx, grantWays[way], name, id.String(), p.key.String()).Scan(&g.granted, &token)
	g.token = orZero(token)
	return g, err
}

func (p *peer) mustGrantBy(t *testing.T, way, name string) grant {
	t.Helper()
	g, err := p.grantBy(t.Context(), way, name, uuid.New())
	if err != nil || !g.granted {
		t.Fatalf("%s of %q: %+v, %v", way, name, g, err)
	}
	return g
}

func (p *peer) releaseBy(ctx context.Context, way string, g grant) (released bool, err error) {
	err = p.QueryRow(ctx, releaseWays[way], g.name, g.token, g.id.String()).Scan(&released)
	return released, err
}

func (p *peer) mustReleaseBy(t *testing.T, way string, g grant) {
	t.Helper()
	if released, err := p.releaseBy(t.Context(), way, g); err != nil || !released {
		t.Fatalf("%s of %q: %v, %v", way, g.name, released, err)
	}
}

// newHastyPeer is a peer that waits for nothing for long, should a wait be wrong.
func newHastyPeer(t *testing.T, url string) *peer {
	t.Helper()
	p := newPeer(t, url)
	p.exec(t, `SET lock_timeout = '3s'`)
	return p
}

// freed is a lock that was released.
func freed(t *testing.T, p *peer, name string) grant {
	t.Helper()
	g := p.mustAcquire(t, name, time.Minute)
	p.mustReleaseBy(t, "release_lease", g)
	return g
}

func isHeld(t *testing.T, look *peer, g grant) bool {
	t.Helper()
	return one[bool](t, look,
		`SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND token = $2 AND grant_id = $3 AND expires_at > clock_timestamp())`,
		g.name, g.token, g.id.String())
}

// The history of all ways beside each other is that of one mutex.
func TestI1_I2_AllWaysAreOneMutex(t *testing.T) {
	db := pgtest.Database(t)
	var acquire []func(p *peer) (grant, error)
	for way := range grantWays {
		acquire = append(acquire, func(p *peer) (grant, error) {
			return p.grantBy(context.Background(), way, "x", uuid.New())
		})
	}
	var release []func(p *peer, g grant) (bool, error)
	for way := range releaseWays {
		release = append(release, func(p *peer, g grant) (bool, error) {
			for { // one for many does not wait for long
				released, err := p.releaseBy(context.Background(), way, g)
				if state(err) != "55P03" {
					return released, err
				}
			}
		})
	}
	const enough = 200 // to show anything: a busy machine needs longer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for i := range 8 {
		p := newHastyPeer(t, db.URL())
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
			if len(history) == 3000 || end > lasting(2*time.Second) && len(history) >= enough {
				cancel() // enough, and the checker's work grows faster than the history
			}
			history = append(history, porcupine.Operation{ClientId: i, Input: in, Call: int64(start), Output: out,
				Return: int64(end)})
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
	if len(history) < enough {
		t.Errorf("%d operations are too few to show anything", len(history))
	}
}

// A lock that is being granted is granted to nobody else, and nobody waits to hear it; one whose grant is undone is
// free.
func TestI1_I13_GrantUnderWayIsGrantedToNobodyElse(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, a)
	b.exec(t, `SET lock_timeout = '1ms'`)
	for first := range grantWays {
		for second := range grantWays {
			for _, ends := range []string{"COMMIT", "ROLLBACK"} {
				if !pgtest.EveryTest && first != second && ends == "ROLLBACK" {
					continue
				}
				t.Run(fmt.Sprintf("%s, then %s/%s", first, second, ends), func(t *testing.T) {
					a.exec(t, `ROLLBACK`) // of a case before that failed
					before := freed(t, a, t.Name())
					a.exec(t, `BEGIN`)
					g := a.mustGrantBy(t, first, t.Name())
					if other, err := b.grantBy(t.Context(), second, t.Name(), uuid.New()); err != nil || other.granted {
						t.Errorf("I1: while the lock is being granted: %+v, %v", other, err)
					}
					a.exec(t, ends)
					other, err := b.grantBy(t.Context(), second, t.Name(), uuid.New())
					if err != nil || other.granted != (ends == "ROLLBACK") {
						t.Errorf("I1: after %s: %+v, %v", ends, other, err)
					}
					if other.granted && (other.token <= before.token || other.token == g.token) {
						t.Errorf("I2: token %d, after %d and one that was undone, %d", other.token, before.token,
							g.token)
					}
				})
			}
		}
	}
}

// What is held, by an exclusive lease, by a reader, or by a place in a semaphore, is not granted in any way.
func TestI1_AllWaysLeaveWhatIsHeldAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for way := range grantWays {
		for holder, mode := range map[string]string{"exclusive": "", "shared": `, p_mode => 'shared'`,
			"limit": `, p_mode => 'limit', p_capacity => 2`} {
			name := way + " beside " + holder
			p.exec(t, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'h', '1 min'`+mode+`)`,
				name)
			if g, err := p.grantBy(t.Context(), way, name, uuid.New()); err != nil || g.granted {
				t.Errorf("I1: %s: %+v, %v", name, g, err)
			}
		}
		// One that ran out is taken over with a note in the history.
		name := way + " of what ran out"
		old := p.mustAcquire(t, name, time.Minute)
		endNow(t, p, name)
		g, err := p.grantBy(t.Context(), way, name, uuid.New())
		noted := one[int](t, p,
			`SELECT count(*) FROM pglock.events WHERE kind = 'takeover' AND lock_name = $1 AND token = $2`, name,
			old.token)
		if err != nil || !g.granted || noted != 1 {
			t.Errorf("%s: %+v, %v; %d takeovers in the history", name, g, err, noted)
		}
	}
	// Readers are granted beside readers, on a lock that was released too.
	freed(t, p, "readers")
	for range 2 {
		if !one[bool](t, p,
			`SELECT granted FROM pglock.acquire_lease('readers', gen_random_uuid(), gen_random_uuid(), 'h', '1 min', p_mode => 'shared')`) {
			t.Error("a reader was refused")
		}
	}
}

// A release, and a grant after it, is seen by the COMMIT of the transaction that was fenced before, at every
// isolation level.
func TestI4_I18_ReleaseInAnyWayIsSeenInsideCommit(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for release := range releaseWays {
		for _, then := range append([]string{"nobody"}, slices.Collect(maps.Keys(grantWays))...) {
			for _, level := range fewLevels() {
				if !pgtest.EveryTest && level != pgx.ReadCommitted && then != "nobody" {
					continue
				}
				t.Run(strings.Join([]string{release, then, string(level)}, "/"), func(t *testing.T) {
					f := newFencedTxOn(t, p, look, time.Minute)
					f.begin(t, level)
					f.look.mustReleaseBy(t, release, f.g)
					if then != "nobody" {
						f.look.mustGrantBy(t, then, f.g.name)
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

// The same for a slot: its row is another one than the head, and other statements end it.
func TestI4_I18_TheEndOfASlotIsSeenInsideCommit(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	holder, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for how, sql := range map[string]string{
		"release_lease":  `SELECT released FROM pglock.release_lease($1, $2, $3, 1)`,
		"release_leases": `SELECT released FROM pglock.release_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], '{1}')`,
		"give_up":        `SELECT ended FROM pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[$3::uuid]) WHERE $2::bigint > 0`,
		"break_lock":     `SELECT token = $2 FROM pglock.break_lock($1, 'test', 'test', $2) WHERE $3::text > ''`,
	} {
		for _, level := range levels {
			t.Run(how+"/"+string(level), func(t *testing.T) {
				holder.exec(t, `ROLLBACK`) // of a case before that failed
				f := &fencedTx{peer: holder, look: look, g: holder.place(t, t.Name())}
				f.begin(t, level)
				if !one[bool](t, look, sql, f.g.name, f.g.token, f.g.id.String()) {
					t.Fatal("it has not ended the lease")
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

// From the check inside COMMIT to its end nobody ends the lease or is granted the lock, in whatever way.
func TestI4_AllWaysWaitForACommitThatIsUnderWayOrPassItOver(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			f := beginFenced(t, db.URL(), level, time.Minute)
			f.exec(t, `SET CONSTRAINTS pglock.fence_commit IMMEDIATE`) // the check, as inside COMMIT
			for way := range releaseWays {
				if released, err := f.look.releaseBy(t.Context(), way, f.g); state(err) != "55P03" || released {
					t.Errorf("I4: %s: %v, %v", way, released, err)
				}
			}
			// Even if the lease ends at this moment, by the clock or by a hand that asks nobody.
			for _, ends := range []string{"clock_timestamp()", "'-infinity'"} {
				f.look.exec(t, `UPDATE pglock.locks SET expires_at = `+ends+` WHERE name = $1`, f.g.name)
				for way := range grantWays {
					if g, err := f.look.grantBy(t.Context(), way, f.g.name, uuid.New()); err != nil || g.granted {
						t.Errorf("I4: %s: %+v, %v", way, g, err)
					}
				}
			}
			f.wantCommit(t, "")
		})
	}
}

// A grant ID that was given up, or whose lease has ended, is not granted in any way, on a lock that is known or not.
func TestI6_NoWayGrantsASpentID(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for way := range grantWays {
		known, unknown := way+", known", way+", unknown"
		freed(t, p, known)
		for _, name := range []string{known, unknown} {
			spent := uuid.New()
			p.exec(t, `SELECT pglock.give_up(gen_random_uuid(), ARRAY[$2::text], ARRAY[$1::uuid], true)`,
				spent.String(), name)
			for range 2 {
				if g, err := p.grantBy(t.Context(), way, name, spent); state(err) != "LK008" {
					t.Errorf("I6: %s: %+v, %v", name, g, err)
				}
				p.mustReleaseBy(t, "release_lease", p.mustGrantBy(t, way, name)) // others are not refused
			}
		}
		for _, name := range []string{known, way + ", of which none was given up"} {
			used := freed(t, p, name)
			if g, err := p.grantBy(t.Context(), way, name, used.id); state(err) != "LK008" {
				t.Errorf("I6: %s, again: %+v, %v", name, g, err)
			}
		}
	}
}
