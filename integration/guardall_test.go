package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/pglock"
)

func noticesDeadlocksSoon(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["deadlock_timeout"] = "20ms" }

// deadlocks is how many the server has broken, as far as it has reported.
func deadlocks(t *testing.T, look *peer) int {
	t.Helper()
	look.exec(t, `SELECT pg_stat_clear_snapshot()`)
	return one[int](t, look, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}

// mustPassAll puts the peer's transaction under the fences of several leases.
func (p *peer) mustPassAll(t *testing.T, gs ...grant) {
	t.Helper()
	var names, ids []string
	var tokens []int64
	for _, g := range gs {
		names, tokens, ids = append(names, g.name), append(tokens, g.token), append(ids, g.id.String())
	}
	p.exec(t, `SELECT FROM pglock.fence_all($1, $2, $3::text[]::uuid[])`, names, tokens, ids)
}

// releaseAll ends several leases in one transaction, as Client.Close does.
func (p *peer) releaseAll(ctx context.Context, gs ...grant) error {
	var names, ids []string
	var tokens []int64
	for _, g := range gs {
		names, tokens, ids = append(names, g.name), append(tokens, g.token), append(ids, g.id.String())
	}
	_, err := p.Exec(ctx, `SELECT FROM pglock.release_leases($1, $2, $3::text[]::uuid[], ARRAY(
		SELECT l.slot FROM unnest($1::text[], $3::text[]::uuid[]) WITH ORDINALITY AS a (name, id, n) JOIN pglock.locks l ON l.name = a.name AND l.grant_id = a.id ORDER BY n))`, names, tokens, ids)
	return err
}

// place acquires a place of a lock that two may hold.
func (p *peer) place(t *testing.T, name string) grant {
	t.Helper()
	g := grant{name: name, id: uuid.New()}
	if err := p.QueryRow(t.Context(),
		`SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 hour', p_mode => 'limit', p_capacity => 2)`,
		name, g.id.String(), p.key.String()).Scan(&g.granted, &g.token); err != nil || !g.granted {
		t.Fatal(g, err)
	}
	return g
}

// Writers name their fences in any order while the leases are renewed, and are all released in the middle of it. Nobody
// waits in a circle.
func TestI25_ManyFencesInAnyOrderNeverDeadlock(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	pool, look := db.Pool(t, noticesDeadlocksSoon, func(c *pgxpool.Config) { c.MaxConns = 12 }), newPeer(t, db.URL())
	store := fencedstore.New(pool)
	var mu sync.Mutex
	committed := 0
	const enough = 20
	end, atLast := time.Now().Add(lasting(3*time.Second)), time.Now().Add(2*patience)
	for round := 0; time.Now().Before(end) || committed < enough && time.Now().Before(atLast); round++ {
		c := newClient(t, pool)
		var leases []*pglock.Lease
		for i := range 3 {
			leases = append(leases, mustTry(t, c, fmt.Sprint("lock ", round, " ", i)))
		}
		limited := fmt.Sprint("limited ", round)
		for range 3 { // tokens in another order than slots
			leases = append(leases, mustTry(t, c, limited, pglock.WithLimit(3)))
		}
		must.Do(t, leases[3].Release(t.Context()))
		leases[3] = mustTry(t, c, limited, pglock.WithLimit(3))
		wg := pgtest.Group(t)
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		wg.Go(func() { // the heartbeat of very short leases, which a busy machine would lose
			for ctx.Err() == nil {
				_ = hooks.Of(leases[rand.N(len(leases))]).Renew(ctx)
				time.Sleep(rand.N(10 * time.Millisecond)) // the pace of the renewals
			}
		})
		for range 8 {
			wg.Go(func() {
				for ctx.Err() == nil {
					var fences fencedstore.Fences
					for _, i := range rand.Perm(6)[:1+rand.N(6)] {
						f := fencedstore.Fence{Lease: leases[i], SameToken: true}
						if rand.N(2) == 0 {
							f.Resource = fmt.Sprint("r", round, " ", 5-i) // another order than that of the leases
						}
						fences = append(fences, f)
					}
					err := store.Write(context.Background(), fences,
						func(ctx context.Context, tx pgx.Tx) error {
							_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, len(fences))
							return err
						})
					mu.Lock()
					if err == nil {
						committed++
					}
					mu.Unlock()
					switch {
					case err == nil:
					case errors.Is(err, pglock.ErrReleased), errors.Is(err, pglock.ErrLost), errors.Is(err,
						context.Canceled):
						return // the client has been closed
					default:
						t.Errorf("I25: %v", err)
						return
					}
				}
			})
		}
		if round%2 == 0 {
			<-ctx.Done()
		}
		for _, i := range rand.Perm(6)[:rand.N(3)] {
			_ = leases[i].Release(context.Background())
		}
		if err := c.Close(context.Background()); err != nil {
			t.Errorf("I25: Close: %v", err)
		}
		wg.Wait()
		cancel()
	}
	if n := deadlocks(t, look); n != 0 {
		t.Errorf("I25: the server broke %d deadlocks", n)
	}
	if rows := one[int](t, look, `SELECT count(*) FROM ledger`); rows != committed || committed < enough {
		t.Errorf("%d writes were acknowledged, %d are there", committed, rows)
	}
}

// seal holds the leases in the order in which release_leases ends them: by name and slot, not by token, and not in the
// order of the fences; so that a COMMIT and a release of the same leases do not wait for each other in a circle.
func TestI25_CommitOfManyFencesMeetsReleaseAll(t *testing.T) {
	db := pgtest.Parallel(t)
	look, blocker := newPeer(t, db.URL()), newPeer(t, db.URL())
	holder, closing := newPeer(t, db.URL()), newPeer(t, db.URL())
	patientCalls(t, look)
	for _, p := range []*peer{holder, closing} {
		p.exec(t, `SET deadlock_timeout = '20ms'`)
	}
	const two = `SELECT FROM pglock.fence_all(ARRAY[$1, $2], ARRAY[$3, $4]::bigint[], ARRAY[$5, $6]::text[]::uuid[], '{r2,r1}')`
	for what, acquire := range map[string]func(p *peer) (first, second grant){
		"two locks": func(p *peer) (grant, grant) {
			second := p.mustAcquire(t, "b", time.Hour)
			return p.mustAcquire(t, "a", time.Hour), second
		},
		"two places of one lock": func(p *peer) (grant, grant) {
			gone, second := p.place(t, "limited"), p.place(t, "limited")
			if released, err := p.release(t.Context(), gone); err != nil || !released {
				t.Fatal(released, err)
			}
			return p.place(t, "limited"), second // the first slot has the greater token
		},
	} {
		for _, turned := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, turned %v", what, turned), func(t *testing.T) {
				holder.exec(t, `ROLLBACK`) // of a case before that failed
				first, second := acquire(holder)
				gs := []grant{first, second}
				if turned {
					gs = []grant{second, first}
				}
				holder.exec(t, `BEGIN`)
				holder.exec(t, two, gs[0].name, gs[1].name, gs[0].token, gs[1].token, gs[0].id.String(),
					gs[1].id.String())
				liftLimits(t, holder)
				blocker.exec(t, `BEGIN`)
				blocker.exec(t, `SELECT FROM pglock.locks WHERE name = $1 AND grant_id = $2 FOR UPDATE`, first.name,
					first.id.String())
				answers := make(chan error, 2)
				go func() { answers <- closing.releaseAll(context.Background(), gs...) }()
				closing.awaitBlocked(t, look)
				go func() {
					_, err := holder.Exec(context.Background(), `SELECT pglock.seal('{r1,r2}')`)
					if err == nil {
						_, err = holder.Exec(context.Background(), `COMMIT`)
					}
					answers <- err
				}()
				holder.awaitBlocked(t, look)
				blocker.exec(t, `ROLLBACK`)
				for range 2 {
					if err := <-answers; err != nil && state(err) != "LK003" {
						t.Errorf("I25: %v", err)
					}
				}
				wantCount(t, look, 0, "%d leases are not released",
					`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`)
			})
		}
	}
}

// Fences are taken in the byte order of their resources: a transaction that waits for the first holds none of the
// others.
func TestI25_FencesAreTakenInByteOrder(t *testing.T) {
	db := pgtest.Parallel(t)
	look, holder, waiter, third := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t,
		db.URL())
	g := holder.mustAcquire(t, "lock", time.Hour)
	resources := []string{"é", "a", "Z", "z", "B/1", "_"} // in byte order B/1 Z _ a z é
	fenceAll := `SELECT FROM pglock.fence_all(array_fill($1::text, ARRAY[$2::int]), array_fill($3::bigint, ARRAY[$2::int]), array_fill($4::text::uuid, ARRAY[$2::int]), $5, p_allow_same_token => true)`
	holder.exec(t, `BEGIN`)
	holder.exec(t, fenceAll, g.name, 1, g.token, g.id.String(), []string{"B/1"})
	waiter.exec(t, `BEGIN`)
	done := must.Go(func() error {
		_, err := waiter.Exec(context.Background(), fenceAll, g.name, len(resources), g.token, g.id.String(), resources)
		return err
	})
	waiter.awaitBlocked(t, look)
	third.exec(t, `SET lock_timeout = '2s'`)
	// waits for nobody
	third.exec(t, fenceAll, g.name, len(resources)-1, g.token, g.id.String(), []string{"é", "a", "Z", "z", "_"})
	holder.exec(t, `COMMIT`)
	must.Note(t, <-done)
	waiter.exec(t, `COMMIT`)
}

// All fences are passed, or none, and COMMIT needs every lease.
func TestI3_I4_ManyFencesAreAllOrNone(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, look := db.Pool(t), newPeer(t, db.URL())
	newLedger(t, db)
	c, store := newClient(t, pool, pglock.WithDefaultTTL(time.Hour)), fencedstore.New(pool)
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES (1)`)
		return err
	}
	for i, level := range levels {
		for _, when := range []string{"before", "meanwhile"} {
			for which := range 3 {
				t.Run(fmt.Sprintf("%s/%s/%d", level, when, which), func(t *testing.T) {
					var fences fencedstore.Fences
					for n := range 3 {
						fences = append(fences, fencedstore.Fence{Lease: mustTry(t, c, fmt.Sprint(i, when, which, n))})
					}
					breakIt := func() {
						look.exec(t, `SELECT FROM pglock.break_lock($1, 'test', 'test')`, fences[which].Lease.Name())
					}
					if when == "before" {
						breakIt()
					}
					err := store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Write(
						t.Context(), fences,
						func(ctx context.Context, tx pgx.Tx) error {
							if when == "before" {
								t.Error("the callback was called")
							} else {
								breakIt()
							}
							return insert(ctx, tx)
						})
					var lost *pglock.LostError
					if level != pgx.ReadCommitted && when == "meanwhile" {
						if state(err) != "40001" {
							t.Errorf("I4: %v", err)
						}
					} else if !errors.As(err, &lost) || lost.Lock != fences[which].Lease.Name() ||
						lost.Token != fences[which].Lease.Token() || lost.Reason != pglock.ReasonBroken {
						t.Errorf("I4: %v, want the loss of %s", err, fences[which].Lease)
					}
					wantCount(t, look, 0, "I3: %d fences and rows",
						`SELECT (SELECT count(*) FROM pglock.fences) + (SELECT count(*) FROM ledger)`)
				})
			}
		}
	}
}

// The server says which fence was refused, whatever the others are called.
func TestRefusalOfOneOfManyFencesNamesIt(t *testing.T) {
	db := pgtest.Parallel(t)
	pool, look := db.Pool(t), newPeer(t, db.URL())
	c, store := newClient(t, pool, pglock.WithDefaultTTL(time.Hour)), fencedstore.New(pool)
	for which := range 4 {
		for _, what := range []string{"stale", "lost", "lost inside COMMIT"} {
			t.Run(fmt.Sprintf("%s/%d", what, which), func(t *testing.T) {
				var fences fencedstore.Fences
				id := fmt.Sprint(which, what)
				plain := mustTry(t, c, id+" plain")
				next := plain.Token() + 3 // of the last of them
				for i, name := range []string{fmt.Sprintf("%s token %d ", id, plain.Token()),
					fmt.Sprintf("%s with token %d is lost: released", id, next),
					fmt.Sprintf("%s 'token %d ' \\", id, plain.Token()+1)} {
					fences = append(fences, fencedstore.Fence{Lease: mustTry(t, c, name),
						Resource: fmt.Sprintf("%s\\ token %d it's %d", id, plain.Token(), i)})
				}
				fences = append(fences, fencedstore.Fence{Lease: plain, Resource: fmt.Sprintf("%s 'r\\' token %d ", id,
					next)})
				refused := fences[which]
				rand.Shuffle(len(fences), func(i, j int) { fences[i], fences[j] = fences[j], fences[i] })
				greater := mustTry(t, c, id+" greater")
				switch what {
				case "stale":
					if err := store.Write(t.Context(), fencedstore.Fence{Lease: greater, Resource: refused.Resource},
						func(context.Context, pgx.Tx) error {
							return nil
						}); err != nil {
						t.Fatal(err)
					}
				case "lost":
					look.exec(t, `SELECT FROM pglock.break_lock($1, 'test', 'test')`, refused.Lease.Name())
				}
				err := store.Write(t.Context(), fences, func(context.Context, pgx.Tx) error {
					look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1`,
						refused.Lease.Name())
					return nil
				})
				var stale *fencedstore.StaleTokenError
				var lost *pglock.LostError
				if what != "stale" {
					if !errors.As(err, &lost) || lost.Lock != refused.Lease.Name() ||
						lost.Token != refused.Lease.Token() {
						t.Errorf("%v, want the loss of %s", err, refused.Lease)
					}
					return
				}
				if !errors.As(err, &stale) ||
					*stale != (fencedstore.StaleTokenError{Resource: refused.Resource, Token: refused.Lease.Token(),
						LastToken: greater.Token()}) {
					t.Errorf("%v, want %s to be stale at %q", err, refused.Lease, refused.Resource)
				}
			})
		}
	}
}

// The transaction is bounded by the lease that ends first.
func TestI16_ManyFencesAreBoundedByTheLeaseThatEndsFirst(t *testing.T) {
	t.Parallel()
	pool := pgtest.Database(t).Pool(t)
	c := newClient(t, pool)
	fences := fencedstore.Fences{{Lease: mustTry(t, c, "c", pglock.WithTTL(time.Hour))},
		{Lease: mustTry(t, c, "b", pglock.WithTTL(10*time.Second))},
		{Lease: mustTry(t, c, "a", pglock.WithTTL(time.Hour))}}
	if err := fencedstore.New(pool).Write(t.Context(), fences, func(ctx context.Context, tx pgx.Tx) error {
		var ms int
		if err := tx.QueryRow(ctx,
			`SELECT max(setting::int) FROM pg_settings WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')`).Scan(&ms); err != nil {
			return err
		}
		if ms < 1 || ms > 10_001 {
			t.Errorf("I16: the transaction may last %d ms", ms)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// The order in which COMMIT locks leases is kept in a setting of the session: whatever a program writes there, it can
// lock nobody else's lease.
func TestI5_AForgedOrderLocksNobodyElsesLease(t *testing.T) {
	db := pgtest.Parallel(t)
	other := newPeer(t, db.URL())
	for _, forged := range []string{`[{"name": "victim", "token": %d}]`, `["victim"]`, `["own", "victim"]`,
		`[{"resource": "victim", "x": %d}]`} {
		p := newPeer(t, db.URL())
		victim, own := other.mustAcquire(t, "victim", time.Hour), p.mustAcquire(t, "own", time.Hour)
		must.Do(t, other.fence(t.Context(), victim, "victim"))
		p.exec(t, `BEGIN`)
		p.mustPassAll(t, own)
		p.exec(t, `SELECT set_config('pglock.together', $1, true)`,
			strings.ReplaceAll(forged, "%d", fmt.Sprint(victim.token)))
		_, _ = p.Exec(t.Context(), `SET CONSTRAINTS ALL IMMEDIATE`) // may fail
		other.exec(t, `SET lock_timeout = '200ms'`)
		if released, err := other.release(t.Context(), victim); err != nil || !released {
			t.Errorf("%s: the victim's release: %v, %v", forged, released, err)
		}
		p.exec(t, `ROLLBACK`)
		other.exec(t, `UPDATE pglock.locks SET expires_at = '-infinity'`)
	}
}

func TestI11_FenceAllRefusesWrongArrays(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	a, b := p.mustAcquire(t, "a", time.Hour), p.mustAcquire(t, "b", time.Hour)
	names, tokens, ids := []string{"a", "b"}, []int64{a.token, b.token}, []string{a.id.String(), b.id.String()}
	many := make([]string, 1001)
	for i := range many {
		many[i] = "a"
	}
	for what, c := range map[string]struct {
		names, tokens, ids, resources any
		want, says                    string
	}{
		"all NULL":        {nil, nil, nil, nil, "22023", "0, 0, 0, 0, 0 elements"},
		"empty":           {[]string{}, []int64{}, []string{}, nil, "22023", "0, 0, 0, 0, 0 elements"},
		"fewer tokens":    {names, tokens[:1], ids, nil, "22023", "2, 1, 2, 2, 2 elements"},
		"fewer grant IDs": {names, tokens, ids[:1], nil, "22023", "2, 2, 1, 2, 2 elements"},
		"NULL tokens":     {names, nil, ids, nil, "22023", "2, 0, 2, 2, 2 elements"},
		"fewer resources": {names, tokens, ids, []string{"r"}, "22023", "2, 2, 2, 1, 2 elements"},
		"empty resources": {names, tokens, ids, []string{}, "22023", "2, 2, 2, 0, 2 elements"},
		"too many":        {many, make([]int64, 1001), many, nil, "22P02", ""},
		"one twice": {[]string{"a", "a"}, []int64{a.token, a.token}, []string{ids[0], ids[0]}, nil, "22023",
			"resource 'a' is named twice"},
		"one resource twice":   {names, tokens, ids, []string{"r", "r"}, "22023", "resource 'r' is named twice"},
		"by default and named": {names, tokens, ids, []*string{nil, &names[0]}, "22023", "resource 'a' is named twice"},
		"NULL name": {[]*string{nil, &names[1]}, tokens, ids, nil, "22023", "name, token and grant_id are " +
			"NULL"},
		"NULL token":     {names, []*int64{&tokens[0], nil}, ids, nil, "22023", "'b', NULL and given"},
		"NULL grant ID":  {names, tokens, []*string{&ids[0], nil}, nil, "22023", "and NULL: none of them"},
		"token 0":        {names, []int64{tokens[0], 0}, ids, nil, "22023", "must be positive"},
		"negative token": {names, []int64{tokens[0], -5}, ids, nil, "22023", "'b', -5 and given"},
		"empty resource": {names, tokens, ids, []string{"r", ""}, "22023", "resource is 0 bytes"},
		"long resource": {names, tokens, ids, []string{"r", strings.Repeat("x", 513)}, "22023",
			"resource is 513 bytes"},
		"foreign grant ID":    {names, tokens, []string{ids[0], uuid.NewString()}, nil, "LK003", "lock 'b'"},
		"grant IDs exchanged": {names, tokens, []string{ids[1], ids[0]}, nil, "LK003", "lock 'a'"},
	} {
		_, err := p.Exec(t.Context(), `SELECT FROM pglock.fence_all($1, $2, $3::text[]::uuid[], $4)`, c.names, c.tokens,
			c.ids, c.resources)
		if state(err) != c.want || !strings.Contains(fmt.Sprint(err), c.says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, c.want, c.says)
		}
	}
	wantCount(t, p, 0, "I11: %d fences", `SELECT count(*) FROM pglock.fences`)
}

// A write under several fences leaves one receipt, which tells what became of it.
func TestI17_ManyFencesLeaveAReceipt(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	a, b := p.mustAcquire(t, "a", time.Minute), p.mustAcquire(t, "b", time.Minute)
	for _, end := range []string{"ROLLBACK", "COMMIT"} {
		receipt, write := uuid.New(), uuid.New()
		p.exec(t, `BEGIN`)
		p.exec(t, `SELECT pglock.fence_all('{a,b}', $1, $2, p_receipt_id => $3, p_write_id => $4)`,
			[]int64{a.token, b.token}, []uuid.UUID{a.id, b.id}, receipt, write)
		p.exec(t, end)
		var committed bool
		if err := p.QueryRow(t.Context(), `SELECT coalesce(pglock.outcome($1, $2, pglock.database_id()), false)`,
			receipt, write).Scan(&committed); err != nil || committed != (end == "COMMIT") {
			t.Errorf("I17: after %s the outcome is %v, %v", end, committed, err)
		}
	}
}
