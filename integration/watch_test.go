package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// told is what a loop over a watch is given.
type told struct {
	pglock.Change
	err error
}

// watching reads a watch in a goroutine of its own; the channel is closed when the loop has ended.
func watching(ctx context.Context, c *pglock.Client, name string) <-chan told {
	out := make(chan told)
	go func() {
		defer close(out)
		for change, err := range c.Watch(ctx, name) {
			select {
			case out <- told{change, err}:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// nextChange reads one change.
func nextChange(t *testing.T, changes <-chan told) told {
	t.Helper()
	select {
	case ch, open := <-changes:
		if !open {
			t.Fatal("the watch has ended")
		}
		return ch
	case <-time.After(patience):
		t.Fatal("waited in vain for a change")
		return told{}
	}
}

// A watch that hears need not wait for its next look, which comes a second later.
func TestAWatchIsToldOfGrantsAndReleasesAtOnce(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	changes := watching(t.Context(), newClient(t, db.Pool(t)), "x")
	a := newClient(t, db.Pool(t))
	nextChange(t, changes)
	expect := func(kind pglock.ChangeKind) {
		t.Helper()
		if ch := nextChange(t, changes); ch.Kind != kind {
			t.Fatalf("%+v, want %s", ch, kind)
		}
	}
	mustRelease(t, mustTry(t, a, "x")) // it hears by the end of these
	for nextChange(t, changes).Kind != pglock.ChangeReleased {
	}
	var grants, releases []time.Duration
	for range 8 {
		began := time.Now()
		l := mustTry(t, a, "x")
		expect(pglock.ChangeGranted)
		granted := time.Now()
		mustRelease(t, l)
		expect(pglock.ChangeReleased)
		grants, releases = append(grants, granted.Sub(began)), append(releases, time.Since(granted))
	}
	for what, times := range map[string][]time.Duration{"grants": grants, "releases": releases} {
		slices.Sort(times)
		if times[len(times)/2] > 400*time.Millisecond { // a busy machine delays some of them
			t.Errorf("%s after %v: looks found them", what, times)
		}
	}
}

// A reader that keeps up sees the present state and then every change, with token, holder and times.
func TestWatchTellsEveryChange(t *testing.T) {
	pgtest.Long(t, "TestAWatchIsToldOfGrantsAndReleasesAtOnce")
	t.Parallel() // most of it is waiting
	for name, opts := range map[string]func(t *testing.T) []pglock.Option{
		"hearing": func(*testing.T) []pglock.Option { return nil },
		"deaf":    func(t *testing.T) []pglock.Option { return []pglock.Option{pglock.WithListenConfig(nowhere(t))} },
	} {
		t.Run(name, func(t *testing.T) {
			db := pgtest.Database(t)
			watcher := newClient(t, db.Pool(t), opts(t)...)
			a := newClient(t, db.Pool(t), pglock.WithDefaultHolder("a"))
			changes := watching(t.Context(), watcher, "x")
			expect := func(kind pglock.ChangeKind, token pglock.Token, holders int) {
				t.Helper()
				ch := nextChange(t, changes)
				if ch.Kind != kind || token != 0 && ch.Lease.Token != token || len(ch.Holders) != holders {
					t.Fatalf("%+v, want %s of token %d and %d holders", ch, kind, token, holders)
				}
				if kind != pglock.ChangeState && (ch.Lease.Holder != "a" || ch.Lease.AcquiredAt.IsZero() ||
					ch.Lease.Name != "x") {
					t.Errorf("%+v", ch.Lease)
				}
			}
			expect(pglock.ChangeState, 0, 0)
			l := mustTry(t, a, "x")
			expect(pglock.ChangeGranted, l.Token(), 1)
			mustRelease(t, l)
			expect(pglock.ChangeReleased, l.Token(), 0)
			l = mustTry(t, a, "x")
			expect(pglock.ChangeGranted, l.Token(), 1)
			broken := must.Get(newAdmin(t, db.Pool(t)).Break(t.Context(), "x", "a test", lockadmin.BreakOptions{}))(t)
			expect(pglock.ChangeBroken, broken.NewToken, 0)
			crashed := newPeer(t, db.URL())
			crashed.exec(t, `SELECT pglock.acquire_lease('x', gen_random_uuid(), gen_random_uuid(), 'a', '8 s')`)
			crashed.exec(t, `SELECT pglock.announce('{x}', '{NULL}')`)
			expect(pglock.ChangeGranted, 0, 1)
			expect(pglock.ChangeExpired, 0, 0)
			one1, two := mustTry(t, a, "x", pglock.WithLimit(2)), (*pglock.Lease)(nil)
			expect(pglock.ChangeGranted, one1.Token(), 1)
			two = mustTry(t, a, "x", pglock.WithLimit(2))
			expect(pglock.ChangeGranted, two.Token(), 2)
			mustRelease(t, one1)
			expect(pglock.ChangeReleased, one1.Token(), 1)
			mustRelease(t, two)
			expect(pglock.ChangeReleased, two.Token(), 0)
		})
	}
}

// A reader that was slow reads how things are, not how they were.
func TestWatchIsNeverWrongInItsLastValue(t *testing.T) {
	db := pgtest.Parallel(t)
	watcher, a := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	ctx, cancel := context.WithCancel(t.Context())
	changes := watching(ctx, watcher, "x")
	nextChange(t, changes)
	var last *pglock.Lease
	for range 20 {
		last = mustTry(t, a, "x")
		mustRelease(t, last)
	}
	last = mustTry(t, a, "x")
	for {
		if ch := nextChange(t, changes); ch.Lease.Token == last.Token() {
			if ch.Kind != pglock.ChangeGranted || len(ch.Holders) != 1 {
				t.Errorf("%+v", ch)
			}
			break
		}
	}
	cancel()
	for range changes { // closed when its context has ended
	}
}

// Whoever changes a lock learns that somebody watches it, in every form of the answer.
func TestEveryAnswerSaysThatTheLockIsWatched(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	const watched = `SELECT coalesce((a.more ->> 'watched')::boolean, false) FROM `
	for name, want := range map[string]bool{"watched": true, "not watched": false} {
		if want {
			p.exec(t, `SELECT pglock.watch($1, '1 min')`, name)
		}
		for what, mode := range map[string]string{"a writer": "exclusive", "a reader": "shared"} {
			said := func(how, sql string, args ...any) {
				t.Helper()
				if got := one[bool](t, p, watched+sql+` a`, args...); got != want {
					t.Errorf("%s of %s of a lock that is %s says watched: %v", how, what, name, got)
				}
			}
			id := uuid.NewString()
			const ask = `pglock.acquire_lease($1, $2, $3, 'p', '1 min', p_mode => $4)`
			said("the grant", ask, name, id, p.key.String(), mode)
			said("the refusal", `pglock.acquire_lease($1, $2, $3, 'p', '1 min', p_mode => 'limit', p_capacity => 3)`,
				name, uuid.NewString(), p.key.String())
			token := one[int64](t, p, `SELECT token FROM pglock.locks WHERE name = $1 AND grant_id = $2`, name, id)
			said("the release", `pglock.release_lease($1, $2, $3)`, name, token, id)
			id = uuid.NewString()
			said("another grant", ask, name, id, p.key.String(), mode)
			token = one[int64](t, p, `SELECT token FROM pglock.locks WHERE name = $1 AND grant_id = $2`, name, id)
			q := waiter.mustEnqueue(t, name, "exclusive", nil)
			said("the hand-over", `pglock.release_lease($1, $2, $3)`, name, token, id)
			said("giving up", `pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, waiter.key.String(), name,
				q.id.String())
		}
	}
}

// Nobody pays for watching when nobody watches: a release and a grant send no statement more, and a watch that has
// ended stops costing.
func TestWatchCostsNothingWhenNobodyWatches(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	watcher, a := newClient(t, db.Pool(t)), newClient(t, db.Pool(t))
	wantCount(t, look, 0, "%d locks are watched", `SELECT count(*) FROM pglock.locks WHERE watched_until IS NOT NULL`)
	ctx, cancel := context.WithCancel(t.Context())
	changes := watching(ctx, watcher, "x")
	nextChange(t, changes)
	mustRelease(t, mustTry(t, a, "y"))
	cancel()
	for range changes {
	}
	wantCount(t, look, 0, "a lock that nobody watches is marked as watched",
		`SELECT count(*) FROM pglock.locks WHERE name <> 'x' AND watched_until IS NOT NULL`)
	if until := one[bool](t, look,
		`SELECT watched_until < clock_timestamp() + interval '61 s' FROM pglock.locks WHERE name = 'x'`); !until {
		t.Error("the watch would cost for longer than a minute after its end")
	}
}

// A watch that the server or the pool will refuse for ever says so, and ends; what passes does not end it.
func TestWatchTellsAnErrorThatWillNotPass(t *testing.T) {
	t.Parallel() // most of it is waiting
	for what, c := range map[string]struct {
		happens func(t *testing.T, look *peer, pool *pgxpool.Pool)
		want    error // nil: the watch goes on
	}{
		"permission revoked": {func(t *testing.T, look *peer, _ *pgxpool.Pool) {
			look.exec(t, `REVOKE EXECUTE ON FUNCTION pglock.watch(text, interval) FROM pglock_user, PUBLIC`)
		}, pglock.ErrPermission},
		"schema gone": {func(t *testing.T, look *peer, _ *pgxpool.Pool) {
			look.exec(t, `DROP FUNCTION pglock.watch(text, interval)`)
		}, pglock.ErrSchema},
		"pool closed": {func(_ *testing.T, _ *peer, pool *pgxpool.Pool) { pool.Close() }, puddle.ErrClosedPool},
		"connections ended": {func(t *testing.T, look *peer, _ *pgxpool.Pool) {
			look.exec(t,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Parallel(t)
			look := newPeer(t, db.URL())
			pool := newPool(t, db.URL(), func(c *pgxpool.Config) {
				c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
					_, err := conn.Exec(ctx, `SET ROLE pglock_user`)
					return err
				}
			})
			changes := watching(t.Context(), newClient(t, pool), "x")
			if ch := nextChange(t, changes); ch.Kind != pglock.ChangeState || ch.err != nil {
				t.Fatalf("%+v", ch)
			}
			c.happens(t, look, pool)
			if c.want == nil {
				g := look.mustAcquire(t, "x", time.Minute)
				if ch := nextChange(t, changes); ch.Kind != pglock.ChangeGranted || int64(ch.Lease.Token) != g.token {
					t.Errorf("%+v", ch)
				}
				return
			}
			if ch := nextChange(t, changes); !errors.Is(ch.err, c.want) {
				t.Errorf("%+v, want %v", ch, c.want)
			}
			if ch, open := <-changes; open {
				t.Errorf("after the last change: %+v", ch)
			}
		})
	}
}
