package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// block is a grant with several tokens, the last of which is the grant's.
type block struct {
	grant
	first  int64
	ticket int64
}

func (p *peer) askBlock(ctx context.Context, name string, id uuid.UUID, turns int, retry bool) (b block, err error) {
	b.name, b.id = name, id
	var first, token, ticket *int64
	err = p.QueryRow(ctx, `SELECT granted, CASE WHEN granted THEN coalesce((more ->> 'first_token')::bigint, token) END, CASE WHEN granted THEN token END, (more ->> 'ticket')::bigint FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min',
		p_wait => true, p_retry => $4, p_turns => $5)`, name, id.String(), p.key.String(), retry, turns).Scan(&b.granted, &first, &token, &ticket)
	b.first, b.token, b.ticket = orZero(first), orZero(token), orZero(ticket)
	return b, err
}

func (p *peer) mustBlock(t *testing.T, name string, turns int) block {
	t.Helper()
	b, err := p.askBlock(t.Context(), name, uuid.New(), turns, false)
	if err != nil || !b.granted || b.first == 0 || b.token < b.first {
		t.Fatalf("a block of %q: %+v, %v", name, b, err)
	}
	return b
}

// with returns the block's grant as a turn knows it: with the turn's own token.
func (b block) with(token int64) grant {
	g := b.grant
	g.token = token
	return g
}

func (b block) tokens() (all []int64) {
	for token := b.first; token <= b.token; token++ {
		all = append(all, token)
	}
	return all
}

// alone is a database in which nobody else draws tokens: blocks are as long as was asked for.
func alone(t *testing.T, p *peer, name string, turns int) block {
	t.Helper()
	b := p.mustBlock(t, name, turns)
	if len(b.tokens()) != turns {
		t.Fatalf("a block of %d tokens has %d to %d", turns, b.first, b.token)
	}
	return b
}

// The tokens of a block follow each other without a gap, are greater than those before, and belong to one grant alone, however
// many are granted at the same time; of new names, free ones, ones that ran out, and handed over.
func TestI2_BlocksAreAscendingAndShareNoToken(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	var mu sync.Mutex
	var all []block
	var wg sync.WaitGroup
	for i := range 6 {
		p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
		wg.Go(func() {
			var last int64
			keep := func(b block, err error) bool {
				if err != nil || !b.granted || b.first <= last {
					t.Errorf("after token %d: %+v, %v", last, b, err)
					return false
				}
				last = b.token
				mu.Lock()
				defer mu.Unlock()
				all = append(all, b)
				return true
			}
			name := fmt.Sprint("x", i)
			for n := range 60 {
				if i == 0 { // tokens of others come between
					g, err := p.grantBy(context.Background(), "acquire_leases", fmt.Sprint(name, n), uuid.New())
					if !keep(block{grant: g, first: g.token}, err) {
						return
					}
					continue
				}
				b, err := p.askBlock(context.Background(), name, uuid.New(), 1+n%9, false)
				if b.first == 0 { // asked for one
					b.first = b.token
				}
				if !keep(b, err) {
					return
				}
				next, err := waiter.askBlock(context.Background(), name, uuid.New(), 7, false)
				if err != nil || next.ticket == 0 {
					t.Errorf("%+v, %v", next, err)
					return
				}
				if n%3 == 0 {
					_, err = p.Exec(context.Background(), `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1`, name)
				} else {
					_, err = p.releaseBy(context.Background(), "release_lease", b.grant)
				}
				if err != nil {
					t.Error(err)
					return
				}
				if next, err = waiter.askBlock(context.Background(), name, next.id, 7, true); !keep(next, err) {
					return
				}
				if _, err := waiter.releaseBy(context.Background(), "release_lease", next.grant); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b block) int { return int(a.first - b.first) })
	long := 0
	for n, b := range all {
		if n > 0 && b.first <= all[n-1].token {
			t.Errorf("I2: lock %q has tokens %d to %d, and lock %q %d to %d", all[n-1].name, all[n-1].first, all[n-1].token, b.name, b.first, b.token)
		}
		if len(b.tokens()) > 1 {
			long++
		}
	}
	if long < 50 {
		t.Errorf("%d of %d grants have more than one token: too few to show anything", long, len(all))
	}
}

// A block that is granted when the one before has run out, and the lock was not released, has nothing of that one.
func TestI2_ABlockAfterOneThatRanOutIsItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	old := alone(t, p, "x", 8)
	for range 3 {
		endNow(t, p, "x")
		next := alone(t, p, "x", 8)
		if next.first <= old.token {
			t.Errorf("I2: the block %d to %d comes after %d to %d", next.first, next.token, old.first, old.token)
		}
		old = next
	}
}

// A number that somebody else draws ends the block, wherever it comes between.
func TestI2_ABlockEndsBeforeATokenOfAnother(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	p.exec(t, `CREATE TABLE public.drawn (token bigint); 
		CREATE FUNCTION public.draw() RETURNS bigint LANGUAGE sql AS $$ INSERT INTO public.drawn VALUES (nextval('pglock.fencing_token_seq')) RETURNING token $$`)
	// draw_tokens with another drawer before its draw number k of those that follow the first.
	for k := 1; k <= 7; k++ {
		p.exec(t, `BEGIN`)
		p.change(t, "draw_tokens", "EXIT WHEN (base", fmt.Sprintf("EXIT WHEN CASE WHEN n = %d THEN public.draw() * 0 ELSE 0 END + (base", k))
		b := p.mustBlock(t, fmt.Sprint("x", k), 8)
		drawn := one[int64](t, p, `SELECT max(token) FROM public.drawn`)
		if b.token != drawn-1 || b.token != b.first+int64(k)-1 {
			t.Errorf("I2: another has drawn %d, and the block is %d to %d", drawn, b.first, b.token)
		}
		p.exec(t, `ROLLBACK`)
	}
}

// wantFence passes the fence of the lock, in a transaction that is rolled back: nothing but the fence itself refuses.
func (p *peer) wantFence(t *testing.T, g grant, want string) {
	t.Helper()
	p.exec(t, `BEGIN`)
	defer p.exec(t, `ROLLBACK`)
	if err := p.fence(t.Context(), g, g.name); state(err) != want {
		t.Errorf("I3: the fence answers token %d: %v, want %s", g.token, err, want)
	}
}

// Each token of a block passes the fence once, in their order; those before and after it do not, nor does any with a grant ID
// that is not the block's.
func TestI3_EachTokenOfABlockPassesTheFenceInItsTurn(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	earlier := freed(t, p, "x")
	b := alone(t, p, "x", 8)
	for _, token := range []int64{earlier.token, b.first - 1, b.token + 1, b.token + 1000} {
		p.wantFence(t, b.with(token), "LK003")
	}
	for n, token := range b.tokens() {
		wrong := b.with(token)
		wrong.id = uuid.New()
		p.wantFence(t, wrong, "LK003")
		if err := p.fence(t.Context(), b.with(token), "x"); err != nil {
			t.Errorf("token %d of the block: %v", token, err)
		}
		for _, again := range b.tokens()[:n+1] {
			if err := p.fence(t.Context(), b.with(again), "x"); state(err) != "LK002" {
				t.Errorf("I3: token %d after %d: %v, want LK002", again, token, err)
			}
		}
		// Several fences of one turn, and many at once.
		p.exec(t, `SELECT pglock.fence_all('{x,x}', $1, $2, '{one,two}')`, []int64{token, token}, []uuid.UUID{b.id, b.id})
		if at := one[int64](t, p, `SELECT min(last_token) FROM pglock.fences WHERE resource IN ('x', 'one', 'two')`); at != token {
			t.Errorf("the fences stand at %d, want %d", at, token)
		}
	}
}

// What may happen to a block in use, and what COMMIT answers to each of its tokens: that of any lease. A renewal, or a turn of
// another, does it no harm.
var blockChecks = []struct {
	what      string
	meanwhile func(t *testing.T, look *peer, b block)
	committed string // at READ COMMITTED
	snapshot  string // at REPEATABLE READ and SERIALIZABLE
}{
	{"nothing", func(*testing.T, *peer, block) {}, "", ""},
	{"renewed", func(t *testing.T, look *peer, b block) {
		look.mustRenew(t, b.grant)
	}, "", ""},
	{"a turn of another", func(t *testing.T, look *peer, b block) {
		if err := look.fence(t.Context(), b.with(b.token), "elsewhere/"+b.name); err != nil {
			t.Fatal(err)
		}
	}, "", ""},
	{"released", func(t *testing.T, look *peer, b block) { look.mustReleaseBy(t, "release_lease", b.grant) }, "LK003", "40001"},
	{"released by its first token", func(t *testing.T, look *peer, b block) {
		look.mustReleaseBy(t, "release_lease", b.with(b.first))
	}, "LK003", "40001"},
	{"released among many", func(t *testing.T, look *peer, b block) { look.mustReleaseBy(t, "release_leases", b.grant) }, "LK003", "40001"},
	{"released and granted again", func(t *testing.T, look *peer, b block) {
		look.mustReleaseBy(t, "release_lease", b.grant)
		look.mustGrantBy(t, "acquire_lease", b.name)
	}, "LK003", "40001"},
	{"released and granted as a block", func(t *testing.T, look *peer, b block) {
		look.mustReleaseBy(t, "release_leases", b.grant)
		if next := look.mustBlock(t, b.name, 8); next.first <= b.token {
			t.Errorf("I2: the next block begins with %d, this one ends with %d", next.first, b.token)
		}
	}, "LK003", "40001"},
	{"handed over", func(t *testing.T, look *peer, b block) {
		if next, err := look.askBlock(t.Context(), b.name, uuid.New(), 8, false); err != nil || next.ticket == 0 {
			t.Fatal(next, err)
		}
		look.mustReleaseBy(t, "release_lease", b.grant)
	}, "LK003", "40001"},
	{"broken", func(t *testing.T, look *peer, b block) { look.exec(t, breakSQL, b.name) }, "LK003", "40001"},
	{"broken by its first token and granted again", func(t *testing.T, look *peer, b block) {
		look.exec(t, `SELECT FROM pglock.break_lock($1, 'test', 'test', $2)`, b.name, b.first)
		look.mustBlock(t, b.name, 8)
	}, "LK003", "40001"},
	{"expired", func(t *testing.T, look *peer, b block) { awaitExpiry(t, look, b.name) }, "LK001", "LK001"},
	{"expired and taken over", func(t *testing.T, look *peer, b block) {
		awaitExpiry(t, look, b.name)
		if next := look.mustBlock(t, b.name, 8); next.first <= b.token {
			t.Errorf("I2: the next block begins with %d, this one ends with %d", next.first, b.token)
		}
	}, "LK003", "40001"},
}

func TestI4_I10_I18_CommitOfATurnAnswersForItsBlock(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	newLedger(t, db)
	for _, c := range blockChecks {
		for _, level := range levels {
			for which := range 3 {
				t.Run(fmt.Sprintf("%s/%s/token %d", c.what, level, which), func(t *testing.T) {
					t.Parallel() // some of it is waiting for leases to end
					f := &fencedTx{peer: newHastyPeer(t, db.URL()), look: newHastyPeer(t, db.URL())}
					b := shortBlock(t, f.peer, strings.HasPrefix(c.what, "expired"))
					f.g = b.with([]int64{b.first, b.first + 1, b.token}[which])
					f.beginTurn(t, level)
					c.meanwhile(t, f.look, b)
					want := c.committed
					if level != "read committed" {
						want = c.snapshot
					}
					if which == 2 && c.what == "a turn of another" {
						want = "" // it is the same turn
					}
					f.wantCommit(t, want)
					if want == "" {
						return
					}
					for _, token := range b.tokens() { // no turn begins any more
						if err := f.look.fence(t.Context(), b.with(token), uuid.NewString()); state(err) != "LK001" && state(err) != "LK003" {
							t.Errorf("I4: token %d passes the fence afterwards: %v", token, err)
						}
					}
				})
			}
		}
	}
}

// shortBlock is a block of three tokens or more, of a lease that ends soon or not. Others may draw tokens at the same time.
func shortBlock(t *testing.T, p *peer, ends bool) (b block) {
	t.Helper()
	ttl := "1 min"
	if ends {
		ttl = "3 s"
	}
	for b.token < b.first+2 || b.first == 0 {
		if b.first > 0 {
			p.mustReleaseBy(t, "release_lease", b.grant)
		}
		b.name, b.id = t.Name(), uuid.New()
		if err := p.QueryRow(t.Context(), `SELECT granted, coalesce((more ->> 'first_token')::bigint, token), token FROM pglock.acquire_lease($1, $2, $3, 'peer', $4::text::interval, p_turns => 8)`,
			b.name, b.id.String(), p.key.String(), ttl).Scan(&b.granted, &b.first, &b.token); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// beginTurn is begin with any token of a block.
func (f *fencedTx) beginTurn(t *testing.T, level pgx.TxIsoLevel) {
	t.Helper()
	f.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
	if err := f.fence(t.Context(), f.g, f.g.name); err != nil {
		t.Fatal(err)
	}
	liftLimits(t, f.peer)
	f.exec(t, `INSERT INTO public.ledger (token) VALUES ($1)`, f.g.token)
}

// From the check inside COMMIT to its end nobody ends a block under any of its turns.
func TestI4_NobodyEndsABlockWhileATurnCommits(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel() // most of it is waiting
			db := pgtest.Database(t)
			newLedger(t, db)
			f := &fencedTx{peer: newHastyPeer(t, db.URL()), look: newHastyPeer(t, db.URL())}
			b := alone(t, f.peer, t.Name(), 8)
			f.g = b.with(b.first + 3)
			f.beginTurn(t, level)
			f.exec(t, `SET CONSTRAINTS pglock.fence_commit IMMEDIATE`) // the check, as inside COMMIT
			wantWaits(t, f.look, releaseWays["release_lease"], b.name, b.token, b.id.String())
			wantWaits(t, f.look, releaseWays["release_lease"], b.name, b.first, b.id.String())
			wantWaits(t, f.look, breakSQL, b.name)
			if released, err := f.look.releaseBy(t.Context(), "release_leases", b.grant); state(err) != "55P03" || released {
				t.Errorf("I4: release_leases: %v, %v", released, err)
			}
			endNow(t, f.look, b.name)
			if next, err := f.look.grantBy(t.Context(), "acquire_lease for turns", b.name, uuid.New()); err != nil || next.granted {
				t.Errorf("I4: %+v, %v", next, err)
			}
			f.wantCommit(t, "")
		})
	}
}

// The same grant ID again yields the same block, and draws nothing; a grant of one token yields that token again.
func TestI6_TheSameGrantIDYieldsTheSameBlock(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newHastyPeer(t, db.URL())
	drawn := func() int64 { return one[int64](t, p, `SELECT last_value FROM pglock.fencing_token_seq`) }
	freed(t, p, "known")
	for _, name := range []string{"new", "known"} {
		b := alone(t, p, name, 8)
		before := drawn()
		for _, retry := range []bool{true, false} {
			if again, err := p.askBlock(t.Context(), name, b.id, 8, retry); err != nil || !again.granted || again.first != b.first || again.token != b.token {
				t.Errorf("I6: %+v again: %+v, %v", b, again, err)
			}
		}
		if after := drawn(); after != before {
			t.Errorf("I6: %d tokens were drawn for answers that were given before", after-before)
		}
	}
}

// Blocks carry the epoch with each of their tokens, in a short way and by a careful hand-over.
func TestI22_BlocksCarryTheEpoch(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	freed(t, p, "known")
	for _, name := range []string{"known", "new", "handed over", "handed over with care"} {
		floor := one[int64](t, p, `SELECT pglock.advance_epoch('test', 'test')`)
		b := block{}
		if strings.HasPrefix(name, "handed") {
			g := p.mustAcquire(t, name, time.Minute)
			var err error
			if b, err = waiter.askBlock(t.Context(), name, uuid.New(), 8, false); err != nil || b.ticket == 0 {
				t.Fatal(b, err)
			}
			if strings.HasSuffix(name, "care") {
				p.exec(t, breakSQL, name)
			} else {
				p.mustReleaseBy(t, "release_lease", g)
			}
			if b, err = waiter.askBlock(t.Context(), name, b.id, 8, true); err != nil || !b.granted {
				t.Fatal(b, err)
			}
		} else {
			b = p.mustBlock(t, name, 8)
		}
		if b.first <= floor || len(b.tokens()) != 8 {
			t.Errorf("I22: %s: tokens %d to %d, want 8 above %d", name, b.first, b.token, floor)
		}
	}
}
