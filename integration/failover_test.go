package integration

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// issue is granted the lock "x" and a lock that nobody knows yet, so often each, and ends those leases; era sets the
// names apart. It gives the tokens.
func issue(t *testing.T, p *peer, era string, times int) (tokens []int64) {
	t.Helper()
	for n := range times {
		for _, name := range []string{"x", fmt.Sprintf("%s-%d", era, n)} {
			g := p.mustAcquire(t, name, time.Minute)
			tokens = append(tokens, g.token)
			if released, err := p.release(t.Context(), g); err != nil || !released {
				t.Fatal(released, err)
			}
		}
	}
	return tokens
}

// issueTogether is issue by several clients at once, who begin at one moment: half of them queue for "x" with the
// library, half take new locks with SQL.
func issueTogether(t *testing.T, at, era string) (tokens []int64) {
	t.Helper()
	const workers, rounds = 8, 10
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	wg := pgtest.Group(t)
	begin := make(chan struct{})
	for n := range workers {
		p, c := newPeer(t, at), newClient(t, newPool(t, at))
		take := func(i int) (int64, error) {
			g, err := p.acquire(ctx, fmt.Sprintf("%s-%d-%d", era, n, i), uuid.New(), time.Minute, false)
			return g.token, err
		}
		if n%2 == 0 {
			take = func(int) (int64, error) {
				l, err := c.Acquire(ctx, "x")
				if err != nil {
					return 0, err
				}
				return int64(l.Token()), l.Release(ctx)
			}
		}
		wg.Go(func() {
			<-begin
			for i := range rounds {
				token, err := take(i)
				if err != nil || token == 0 {
					t.Errorf("worker %d of %s: token %d, %v", n, era, token, err)
					return
				}
				mu.Lock()
				tokens = append(tokens, token)
				mu.Unlock()
			}
		})
	}
	close(begin)
	wg.Wait()
	return tokens
}

// checkAscent checks that each of the eras, in their order, issued tokens that are greater than all before, and none
// twice.
func checkAscent(t *testing.T, eras ...[]int64) {
	t.Helper()
	seen := make(map[int64]bool)
	last := int64(0)
	for n, tokens := range eras {
		if len(tokens) == 0 {
			t.Fatalf("no token was issued in era %d", n)
		}
		t.Logf("era %d: %d tokens from %d to %d", n, len(tokens), slices.Min(tokens), slices.Max(tokens))
		if first := slices.Min(tokens); first <= last {
			t.Errorf("I22: the first token of era %d is %d, after token %d", n, first, last)
		}
		again := 0
		for _, token := range tokens {
			if seen[token] {
				again++
			}
			seen[token] = true
		}
		if again > 0 {
			t.Errorf("I22: %d tokens of era %d were issued before", again, n)
		}
		last = max(last, slices.Max(tokens))
	}
}

// A failover that lost commits has lost tokens with them. What is granted after it has greater tokens than every grant
// before, also those that are lost, also of locks that nobody has ever heard of; and the fences refuse the lost ones.
func TestI22_TokensAscendAfterAFailoverThatLostCommits(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	logGrants(t, look)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	standby := newStandby(t, primary)
	before := issue(t, look, "kept", 10)
	kept := look.mustAcquire(t, "held", time.Hour)
	standby.catchUp(t, look)

	standby.cutOff(t)
	both := newPool(t, either(t, primary, standby))
	zombie := must.Get(newClient(t, both).TryAcquire(t.Context(), "zombie", pglock.WithTTL(time.Minute)))(t)
	before = append(before, kept.token, int64(zombie.Token()))
	before = append(before, issue(t, look, "lost", 100)...)
	must.Do(t, primary.Kill())

	look = standby.promote(t)
	if n := one[int](t, look, `SELECT count(*) FROM pglock.locks WHERE name LIKE 'lost-%' OR name = 'zombie'`); n != 0 {
		t.Fatalf("%d locks that were granted when the standby was cut off are on it: nothing was lost", n)
	}
	checkAscent(t, before, issueTogether(t, standby.url, "new"))
	checkGrants(t, look)
	if g, err := look.acquire(t.Context(), "held", uuid.New(), time.Minute, false); err != nil || g.granted {
		t.Errorf("the lease that the standby knew was granted again: %+v, %v", g, err)
	}

	// The zombie believes in its lease. Its write is refused before the lock is granted to another holder, and after.
	both.Reset() // of connections to the dead
	if err := <-write(both, zombie); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("I3: a write with a lost token answered %v", err)
	}
	next, err := newClient(t, both).TryAcquire(t.Context(), "zombie", pglock.WithTTL(time.Minute))
	if err != nil || next.Token() <= zombie.Token() {
		t.Fatalf("%v after token %d: %v", next, zombie.Token(), err)
	}
	must.Do(t, <-write(both, next))
	old := grant{name: "zombie", token: int64(zombie.Token()), id: exported(zombie)}
	if err := newPeer(t, standby.url).fence(t.Context(), old, "zombie"); state(err) != "LK002" {
		t.Errorf("I3: the fence answered a lost token with %v", err)
	}
	if rows := one[[]int64](t, look, `SELECT array_agg(token) FROM ledger`); !slices.Equal(rows,
		[]int64{int64(next.Token())}) {
		t.Errorf("I3: tokens %d wrote, want %d", rows, next.Token())
	}
}

// Failovers in a row, of which the second loses, and the third keeps, what the primary before had put on record about
// its own promotion: tokens of four timelines in one order.
func TestI22_TokensAscendAfterASecondFailover(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	t.Parallel() // it has servers of its own
	records := []string{"lost", "kept"}
	if testing.Short() {
		records = records[:1]
	}
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	eras := [][]int64{failOver(t, primary, standby, "first")}
	for _, record := range records {
		primary, standby = standby, newStandby(t, standby) // before anything is granted
		var tokens []int64
		if record == "kept" {
			look := newPeer(t, primary.url)
			tokens = issue(t, look, "on record", 5)
			standby.catchUp(t, look)
		}
		eras = append(eras, append(tokens, failOver(t, primary, standby, record)...))
	}
	checkAscent(t, append(eras, issueTogether(t, standby.url, "last"))...)
}

// failOver cuts the standby off, issues tokens that are lost, kills the primary and promotes the standby. It gives the
// tokens.
func failOver(t *testing.T, primary, standby *node, era string) []int64 {
	t.Helper()
	standby.cutOff(t)
	tokens := issue(t, newPeer(t, primary.url), era, 50)
	must.Do(t, primary.Kill())
	standby.promote(t)
	return tokens
}

// A failover loses every way in which the primary has raised its tokens besides: by hand, because a lock's token was
// above the sequence, and because a pruned lock's was. What the new primary grants is above all that.
func TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	before := issue(t, look, "before", 2)
	standby := newStandby(t, primary)
	standby.cutOff(t)
	var lost []int64
	step := func(what, sql string) {
		t.Helper()
		look.exec(t, sql)
		if tokens := issue(t, look, what, 2); len(lost) > 0 && tokens[0] <= slices.Max(lost) {
			t.Errorf("%s: token %d after %d", what, tokens[0], slices.Max(lost))
		} else {
			lost = append(lost, tokens...)
		}
	}
	const behind = `UPDATE pglock.locks SET token = (SELECT (epoch << 36) + (1 << 20) FROM pglock.installation) WHERE name = 'x'`
	step("by hand", `SELECT pglock.advance_epoch('test', 'test')`)
	step("by hand again", `SELECT pglock.advance_epoch('test', 'test')`)
	step("behind a lock", behind)
	step("behind a pruned lock", behind+`; SELECT pglock.prune_locks('0 s')`)
	must.Do(t, primary.Kill())
	standby.promote(t)
	checkAscent(t, before, lost, issueTogether(t, standby.url, "new"))
}

// The old primary is not dead, and goes on granting: nothing in a library prevents that. Its tokens stay below those of
// the new one, so that whoever compares tokens knows whose are old.
func TestI22_OldPrimaryThatGoesOnStaysBelow(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	if testing.Short() {
		t.Skip("two more servers")
	}
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	old := newPeer(t, primary.url)
	before := issue(t, old, "before", 5)
	standby.catchUp(t, old)
	standby.cutOff(t)
	look := standby.promote(t)
	var after []int64
	for n := range 20 {
		after = append(after, issue(t, look, fmt.Sprint("new", n), 2)...)
		before = append(before, issue(t, old, fmt.Sprint("old", n), 5)...)
	}
	checkAscent(t, before, after)
}

// Whatever draws the first token after a failover notices the failover: a free lock's grant, a hand-over by a
// release, a break, a newcomer that serves the queue, a reader's slot, and a call that only makes a row. Each has its
// own lock, and is rolled back, so that the next one is again the first. Before that, another client is granted a
// lock: it waits for nobody, and computes the same epoch by itself.
func TestI22_EveryKindOfGrantNoticesTheFailover(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	t.Parallel() // it has servers of its own
	const (
		hold = `SELECT pglock.acquire_lease('x', '10000000-0000-0000-0000-000000000000', gen_random_uuid(), 'holder', '1 h'); `
		wait = `SELECT pglock.acquire_lease('x', '20000000-0000-0000-0000-000000000000', gen_random_uuid(), 'waiter', '1 h',
			p_wait => true, p_session_ttl => '1 h'); `
		try   = `SELECT pglock.acquire_lease('x', gen_random_uuid(), gen_random_uuid(), 'other', '1 h'); `
		place = `SELECT pglock.acquire_lease('x', '30000000-0000-0000-0000-000000000000', gen_random_uuid(), 'other', '1 h',
			p_mode => 'limit', p_capacity => 2); `
		mine = `'x', (SELECT token FROM pglock.locks
			WHERE grant_id = '10000000-0000-0000-0000-000000000000'), '10000000-0000-0000-0000-000000000000'`
		release = `SELECT pglock.release_lease(` + mine + `); `
		leave   = `SELECT pglock.release_lease('x', token, grant_id, slot) FROM pglock.locks
			WHERE grant_id = '30000000-0000-0000-0000-000000000000'; `
		runOut   = `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = 'x'; `
		breaking = `SELECT pglock.break_lock('x', 'stuck', 'operator')`
	)
	kinds := []struct{ what, before, after string }{
		{"a lock that nobody knows", "", try},
		{"a lock that was released", hold + release, try},
		{"a lock that ran out", hold + runOut, try},
		{"a release to the next in the queue", hold + wait, release},
		{"a newcomer that serves the queue", hold + wait + runOut,
			strings.NewReplacer("'20000000-0000-0000-0000-000000000000'", "gen_random_uuid()").Replace(wait)},
		{"a break", hold, breaking},
		{"a break to the next in the queue", hold + wait, breaking},
		{"a reader", hold + release,
			`SELECT pglock.acquire_lease('x', gen_random_uuid(), gen_random_uuid(), 'reader', '1 h', p_mode => 'shared')`},
		{"the first place of a semaphore", hold + release, place},
		{"a place that was left", place + leave, strings.Replace(place, "30000000", "40000000", 1)},
		{"a watch", "", `SELECT pglock.watch('x', '1 min')`},
		{"a request that is given up", "",
			`SELECT pglock.give_up(gen_random_uuid(), ARRAY['x'], ARRAY[gen_random_uuid()], true)`},
	}
	own := func(n int, sql string) string {
		return strings.NewReplacer(`'x'`, fmt.Sprintf(`'kind %d'`, n), `-000000000000'`,
			fmt.Sprintf(`-%012d'`, n)).Replace(sql)
	}
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	patientWaits(t, look)
	for n, kind := range kinds {
		look.exec(t, own(n, kind.before))
	}
	standby := newStandby(t, primary)
	standby.cutOff(t)
	last := slices.Max(issue(t, look, "lost", 100))
	must.Do(t, primary.Kill())
	look = standby.promote(t)
	other := newPeer(t, standby.url)
	other.exec(t, `SET lock_timeout = '10 s'`)
	const noticed = `SELECT timeline_since IS NOT NULL FROM pglock.installation`
	for n, kind := range kinds {
		look.exec(t, `BEGIN`)
		if one[bool](t, look, noticed) {
			t.Fatalf("the failover was noticed before %s", kind.what)
		}
		look.exec(t, own(n, kind.after))
		if token := one[int64](t, look, own(n, `SELECT max(token) FROM pglock.locks WHERE name = 'x'`)); token <= last {
			t.Errorf("I22: %s has token %d, after token %d", kind.what, token, last)
		}
		if !one[bool](t, look, noticed) {
			t.Errorf("I22: %s has not noticed the failover", kind.what)
		}
		if g := other.mustAcquire(t, fmt.Sprint("meanwhile ", n), time.Minute); g.token <= last {
			t.Errorf("I22: while %s is under way, another grant has token %d, after token %d", kind.what, g.token, last)
		}
		look.exec(t, `ROLLBACK`)
	}
}

// A dump, taken after a failover from a server that goes on, is restored where the timeline begins with 1 again, and
// there are failovers too that lose what the server had put on record: the tokens of all of these go on ascending, for
// locks that came along and for new ones, and the fences that came along let the new holders through.
func TestI22_TokensAscendAfterARestore(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	if testing.Short() {
		t.Skip("five servers, one after the other")
	}
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	_ = clientProgram(t, primary, "pg_dump") // or skip before there is work
	promoted := newStandby(t, primary)
	first := failOver(t, primary, promoted, "first")
	look := newPeer(t, promoted.url)
	second := issue(t, look, "second", 10)
	g := look.mustAcquire(t, "fenced", time.Minute)
	second = append(second, g.token)
	must.Do(t, errors.Join(look.fence(t.Context(), g, "known"), look.fence(t.Context(), g, "shared")))
	if released, err := look.release(t.Context(), g); err != nil || !released {
		t.Fatal(released, err)
	}

	server := pgtest.Dedicated(t, map[string]string{"wal_keep_size": "256MB"})
	restored := &node{server, server.URL()}
	newPeer(t, restored.url).exec(t, `CREATE ROLE pglock_user; CREATE ROLE pglock_admin IN ROLE pglock_user`)
	restore(t, promoted, restored)
	second = append(second, issue(t, look, "after the dump", 20)...)
	third := issueTogether(t, restored.url, "third")
	p := newPeer(t, restored.url)
	for name, resource := range map[string]string{"fenced": "known", "unheard of": "shared"} {
		g := p.mustAcquire(t, name, time.Minute)
		third = append(third, g.token)
		if err := p.fence(t.Context(), g, resource); err != nil {
			t.Errorf("the fence of %q refused token %d of lock %q: %v", resource, g.token, name, err)
		}
	}

	fourth := newStandby(t, restored)
	third = append(third, failOver(t, restored, fourth, "lost of the third")...)
	fifth := newStandby(t, fourth) // before anything is granted
	lost := failOver(t, fourth, fifth, "fourth")
	checkAscent(t, first, second, third, lost, issueTogether(t, fifth.url, "fifth"))
}

// The timeline was set back, as by a dump that is restored, or an upgrade: the record is of another cluster. Then a
// failover loses the first record of the new one, and the promoted standby's timeline is the recorded number. It is
// another timeline all the same: tokens ascend, and a grace counts.
func TestI22_TokensAscendAfterARestoreAndAFailoverThatLostItsRecord(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	look := newPeer(t, primary.url)
	before := issue(t, look, "before", 2)
	look.exec(t, `UPDATE pglock.installation SET system = system - 1, timeline = 2, epoch = 1 << 8, started = NULL`)
	const since = `SELECT coalesce(since_us, -1) FROM pglock.timeline()`
	if n := one[int](t, look, since); n != 0 {
		t.Errorf("after the restore the timeline changed %d µs ago, want 0: nobody has noticed it", n)
	}
	standby := newStandby(t, primary)
	standby.cutOff(t)
	lost := issue(t, look, "lost", 2)
	if n := one[int](t, look, since); n <= 0 {
		t.Errorf("after the first grant the timeline changed %d µs ago", n)
	}
	must.Do(t, primary.Kill())
	look = standby.promote(t)
	if n := one[int](t, look, since); n != 0 {
		t.Errorf("after the failover the timeline changed %d µs ago, want 0: nobody has noticed it", n)
	}
	checkAscent(t, before, lost, issueTogether(t, standby.url, "new"))
	if n := one[int](t, look, since); n <= 0 {
		t.Errorf("after the first grants the timeline changed %d µs ago", n)
	}
}

// Where the schema's owner may not see the timeline, locks work as on a server that never fails over: the tokens are
// plain.
func TestAcquireWorksWhereTheTimelineIsNotVisible(t *testing.T) {
	t.Parallel()
	for _, revoked := range []string{"before the migration", "after it"} {
		t.Run(revoked, func(t *testing.T) {
			db := pgtest.EmptyDatabase(t)
			admin := newPeer(t, db.URL())
			owner := "owner_" + strings.ReplaceAll(uuid.NewString(), "-", "")
			admin.exec(t,
				fmt.Sprintf(`CREATE ROLE %[1]s LOGIN CREATEROLE PASSWORD 'x'; GRANT CREATE ON DATABASE %[2]s TO %[1]s`,
					owner, db.Name()))
			t.Cleanup(func() {
				drop := fmt.Sprintf(`DROP OWNED BY %[1]s CASCADE; DROP ROLE %[1]s`, owner)
				if _, err := admin.Exec(context.WithoutCancel(t.Context()), drop); err != nil {
					t.Errorf("drop the test's user: %v", err)
				}
			})
			as := must.Get(url.Parse(db.URL()))(t)
			as.User = url.UserPassword(owner, "x")
			revoke := func() {
				admin.exec(t, `REVOKE EXECUTE ON FUNCTION pg_walfile_name(pg_lsn), pg_control_system() FROM PUBLIC`)
			}
			if revoked == "before the migration" {
				revoke()
			}
			must.Do(t, migrations.Up(t.Context(), as.String()))
			revoke()
			p := newPeer(t, as.String())
			if _, err := p.Exec(t.Context(), `SELECT pg_walfile_name(pg_current_wal_lsn())`); state(err) != "42501" {
				t.Fatalf("the owner sees the timeline: %v", err)
			}
			tokens := issue(t, p, "plain", 5)
			held := p.mustAcquire(t, "held", time.Minute)
			c := newClient(t, newPool(t, as.String()))
			got := make(chan fetched, 1)
			acquireInBackground(t.Context(), c, 0, "held", got)
			awaitQueue(t, p, "held", 1)
			if released, err := p.release(t.Context(), held); err != nil || !released {
				t.Fatal(released, err)
			}
			next := served(t, got)
			checkAscent(t, append(tokens, held.token), []int64{int64(next.Token())})
			if next.Token() != 12 {
				t.Errorf("the twelfth token is %d", next.Token())
			}
		})
	}
}
