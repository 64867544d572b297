package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// holdsAsGranted checks that the lease is the one that the row shows, and the only one that was ever granted.
func holdsAsGranted(t *testing.T, look *peer, lease *pglock.Lease) {
	t.Helper()
	row := one[string](t, look,
		`SELECT grant_id || ' ' || token || ' ' || (expires_at > clock_timestamp()) FROM pglock.locks WHERE name = $1`,
		lease.Name())
	if want := fmt.Sprintf("%s %d true", exported(lease), lease.Token()); row != want {
		t.Errorf("I6: the row shows %q, the lease is %q", row, want)
	}
	if grants := one[int](t, look, `SELECT count(DISTINCT new_token) FROM public.grant_log WHERE name = $1`,
		lease.Name()); grants != 1 {
		t.Errorf("I6: %d grants were made for one lease", grants)
	}
}

// warm takes and releases another lock, so that the connection has its statements prepared: the next acquire is one
// request and one answer.
func warm(t *testing.T, c *pglock.Client) {
	t.Helper()
	lease, err := c.TryAcquire(t.Context(), "warm")
	if err == nil {
		err = lease.Release(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Wherever a request is when its caller gives up, its grant ID can no longer be granted: even if somebody else held
// the lock at that moment, or other grants were given up after it.
func TestTrap9_LateRequestOfAnAbandonedGrantIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, p)
	abandon := func(id uuid.UUID) {
		t.Helper()
		if one[bool](t, p, `SELECT ended FROM pglock.give_up(gen_random_uuid(), '{x}', ARRAY[$1::uuid], true)`,
			id.String()) {
			t.Error("abandon ended a lease that was never granted")
		}
	}
	late, later := uuid.New(), uuid.New()
	held := other.mustAcquire(t, "x", time.Minute)
	abandon(late)
	if released, err := other.release(t.Context(), held); err != nil || !released {
		t.Fatal(released, err)
	}
	abandon(later)
	for _, id := range []uuid.UUID{late, later} {
		for _, retry := range []bool{false, true} {
			if g, err := p.acquire(t.Context(), "x", id, time.Minute, retry); state(err) != "LK008" {
				t.Errorf("a late request of an abandoned grant answered %+v, %v", g, err)
			}
		}
	}
	// A first use that had looked before abandon did, and commits after: the second telling finds it.
	first := uuid.New()
	other.exec(t, "BEGIN")
	if g, err := other.acquire(t.Context(), "y", first, time.Minute, false); err != nil || !g.granted {
		t.Fatal(g, err)
	}
	told := make(chan error, 1)
	go func() {
		_, err := p.Exec(context.Background(),
			`SELECT ended FROM pglock.give_up(gen_random_uuid(), '{y}', ARRAY[$1::uuid], true)`, first.String())
		told <- err
	}()
	p.awaitBlocked(t, newPeer(t, db.URL()))
	other.exec(t, "COMMIT")
	if err := <-told; err != nil {
		t.Fatal(err)
	}
	p.exec(t, `SELECT ended FROM pglock.give_up(gen_random_uuid(), '{y}', ARRAY[$1::uuid], true)`, first.String())
	if one[bool](t, p, `SELECT expires_at > clock_timestamp() FROM pglock.locks WHERE name = 'y'`) {
		t.Error("the lease of an abandoned grant is still held")
	}
}

// Nobody who may use locks holds up a holder's renewals: a try locks nothing, and whoever queues, asks again or leaves
// the queue locks nothing that a renewal needs. Whoever spends a grant ID or watches does; the server ends a
// transaction that forgets itself after that in a second.
func TestI13_NobodyHoldsUpARenewal(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	holder, other := newPeer(t, db.URL()), newPeer(t, db.URL())
	for what, c := range map[string]struct {
		sql  string
		ends bool
	}{
		"a try":        {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min')`, false},
		"a second try": {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min', p_retry => true)`, false},
		"a ticket":     {`SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'p', '1 min', p_wait => true)`, false},
		"giving up": {`SELECT pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[gen_random_uuid()])`,
			false},
		"a release without a lease": {`SELECT pglock.release_lease($1, 1, gen_random_uuid())`, false},
		"spending":                  {`SELECT pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[gen_random_uuid()], true)`, true},
		"watching":                  {`SELECT pglock.watch($1, '1 min')`, true},
	} {
		t.Run(what, func(t *testing.T) {
			holder, other := holder, other
			if c.ends { // which takes a second, and other's connection
				t.Parallel()
				holder, other = newPeer(t, db.URL()), newPeer(t, db.URL())
			}
			g := holder.mustAcquire(t, what, time.Minute)
			other.exec(t, "BEGIN")
			other.exec(t, c.sql, what)
			wait := patience
			if !c.ends {
				wait = time.Millisecond
			}
			if outcome, err := holder.renew(t.Context(), g, wait); err != nil || outcome != "renewed" {
				t.Errorf("renewed beside %s: %s, %v", what, outcome, err)
			}
			if _, err := other.Exec(t.Context(), `COMMIT`); (err != nil) != c.ends {
				t.Errorf("the transaction that was forgotten: %v", err)
			}
		})
	}
}

// The connection ends after the server has granted and before the client has read it: the client asks again with the
// same grant ID and gets the same grant.
func TestI6_LostAnswerYieldsTheOneTrueGrant(t *testing.T) {
	t.Parallel()
	for what, direction := range map[string]string{"commit done": "downstream", "commit not done": "upstream"} {
		t.Run(what, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			logGrants(t, look)
			line := newLine(t, db.URL())
			c := newClient(t, newPool(t, line.url, func(c *pgxpool.Config) { c.MaxConns = 1 }))
			warm(t, c)
			line.cut(t, direction)
			type result struct {
				lease *pglock.Lease
				err   error
			}
			done := make(chan result, 1)
			go func() {
				lease, err := c.TryAcquire(context.Background(), "x")
				done <- result{lease, err}
			}()
			if direction == "downstream" {
				pgtest.Eventually(t, "the grant to be committed", func() bool {
					return one[bool](t, look, `SELECT EXISTS (SELECT FROM pglock.locks WHERE name = 'x')`)
				})
			} else {
				pgtest.Eventually(t, "the connection to be cut", func() bool {
					return one[int](t, look,
						`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`) == 0
				})
			}
			line.mend()
			r := <-done
			if r.err != nil {
				t.Fatal(r.err)
			}
			holdsAsGranted(t, look, r.lease)
		})
	}
}

// The first attempt has not committed yet when the retry comes: the retry must wait for it, not answer "held".
func TestI6_RetryWaitsForAnAttemptUnderWay(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	for _, mode := range []string{"exclusive", "shared"} {
		for _, use := range []string{"first use of the name", "later use"} {
			ask := func(p *peer, id uuid.UUID, retry bool) (g grant, err error) {
				var token *int64
				err = p.QueryRow(context.Background(),
					`SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min', p_mode => $1, p_retry => $4)`,
					mode, id.String(), p.key.String(), retry).Scan(&g.granted, &token)
				g.name, g.id, g.token = mode, id, orZero(token)
				return g, err
			}
			a.exec(t, "BEGIN")
			first, err := ask(a, uuid.New(), false)
			if err != nil || !first.granted {
				t.Fatal(first, err)
			}
			again := make(chan grant, 1)
			pgtest.Group(t).Go(func() {
				g, err := ask(b, first.id, true)
				if err != nil {
					t.Error(err)
				}
				again <- g
			})
			b.awaitBlocked(t, look)
			a.exec(t, "COMMIT")
			if g := <-again; !g.granted || g.token != first.token {
				t.Errorf("I6: %s, %s: the attempt was granted %+v, the retry %+v", mode, use, first, g)
			}
			if released, err := a.release(t.Context(), first); err != nil || !released {
				t.Fatal(released, err)
			}
		}
	}
}

// The connection ends while the grant waits for its standby. The grant is visible then, as the wait is cancelled with
// the connection; but it is answered only when a commit of the retry's own has been confirmed.
func TestI6_RetryIsConfirmedByTheStandby(t *testing.T) {
	t.Parallel()
	server := migrated(t, nil)
	look := newPeer(t, server.URL())
	look.exec(t, `SET synchronous_commit = local`)
	logGrants(t, look)
	sockets := make(chan net.Conn, 100)
	c := newClient(t, newPool(t, server.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			socket, err := new(net.Dialer).DialContext(ctx, network, address)
			if err == nil {
				sockets <- socket
			}
			return socket, err
		}
	}))
	syncStandby(t, look, "nobody")
	type result struct {
		lease *pglock.Lease
		err   error
	}
	done := make(chan result, 1)
	go func() {
		lease, err := c.TryAcquire(context.Background(), "x")
		done <- result{lease, err}
	}()
	waiter := func(other uint32) (pid uint32) {
		pgtest.Eventually(t, "a grant to wait for the standby", func() bool {
			return look.QueryRow(t.Context(),
				`SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid <> $1`, other).Scan(&pid) == nil
		})
		return pid
	}
	first := waiter(0)
	if err := (<-sockets).Close(); err != nil {
		t.Fatal(err)
	}
	waiter(first)
	if len(done) != 0 {
		t.Fatalf("I6: a grant that no standby has was answered: %+v", <-done)
	}
	syncStandby(t, look, "")
	r := <-done
	if r.err != nil {
		t.Fatalf("I6: the retry answered %v", r.err)
	}
	holdsAsGranted(t, look, r.lease)
}

// A caller that gives up while its request is under way leaves no lock behind that nobody knows they hold.
func TestTrap9_CancelledAcquireGivesTheGrantBack(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	line := newLine(t, db.URL())
	c := newClient(t, newPool(t, line.url, func(c *pgxpool.Config) {
		// A ping would hang, and nothing would be asked.
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	}))
	warm(t, c)
	// A call that meets a connection of which nobody has made use yet asks nothing: then another one is tried.
	committed := func(name string) bool {
		for begin := time.Now(); time.Since(begin) < patience/6; time.Sleep(5 * time.Millisecond) {
			if one[bool](t, look,
				`SELECT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp())`, name) {
				return true
			}
		}
		return false
	}
	for try := 1; ; try++ {
		name := fmt.Sprint("x", try)
		line.silence(t, "downstream")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := c.TryAcquire(ctx, name, pglock.WithTTL(time.Hour))
			done <- err
		}()
		granted := committed(name)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Fatalf("the cancelled call answered %v", err)
		}
		line.mend()
		if granted {
			pgtest.Eventually(t, "the grant to be given back", func() bool {
				return one[bool](t, look, `SELECT expires_at <= clock_timestamp() FROM pglock.locks WHERE name = $1`,
					name)
			})
			return
		}
		if try == 6 {
			t.Fatal("no grant was committed")
		}
		warm(t, c)
	}
}

// A storm of calls that give up at random moments leaves no lock behind that nobody knows they hold.
func TestTrap9_StormOfCancelledCallsLeavesNoLockHeld(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	c, admin := newClient(t, db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 20 })), newAdmin(t, db.Pool(t))
	until := time.Now().Add(lasting(3 * time.Second))
	var grants atomic.Int64
	wg := pgtest.Group(t)
	for range 40 {
		wg.Go(func() {
			for time.Now().Before(until) || grants.Load() < 50 && time.Now().Before(until.Add(patience)) {
				ctx, cancel := context.WithTimeout(context.Background(),
					time.Duration(rand.Float64()*rand.Float64()*rand.Float64()*float64(800*time.Millisecond)))
				acquire := c.TryAcquire
				if rand.N(2) == 0 {
					acquire = c.Acquire
				}
				lease, err := acquire(ctx, fmt.Sprint("lock", rand.N(20)), pglock.WithTTL(time.Hour))
				if err == nil {
					grants.Add(1)
					err = lease.Release(context.Background())
				}
				if err != nil && ctx.Err() == nil && !errors.Is(err, pglock.ErrHeld) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	pgtest.Eventually(t, "every lock to be free", func() bool {
		held, err := lists.All(admin.Locks(t.Context(), lockadmin.LocksQuery{}))
		return err == nil && len(held) == 0
	})
	if grants.Load() < 50 {
		t.Errorf("%d grants are too few to show anything", grants.Load())
	}
}
