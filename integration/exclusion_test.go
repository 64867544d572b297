package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// Contenders that release, that let their lease run out, and that hold it to the last moment: the log shows no overlap
// and no token out of order.
func TestI1_GrantIntervalsNeverOverlap(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	patientWaits(t, look) // the first use of a name is waited for
	ctx := underLoad(t, 2*time.Second, newPeer(t, db.URL()), `SELECT count(*) >= 40 FROM grant_log`)
	const ttl = 100 * time.Millisecond
	wg := pgtest.Group(t)
	for i := range 4 {
		p := newPeer(t, db.URL())
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				asked := time.Now()
				g, err := p.acquire(context.Background(), "contended", uuid.New(), ttl, false)
				if err != nil {
					t.Error(err)
					return
				}
				if !g.granted {
					time.Sleep(rand.N(4 * time.Millisecond)) // leaves the machine to the holder
				} else if n%3 != 0 { // every third lease is left to expire
					released, err := p.release(context.Background(), g)
					if err != nil || !released && time.Since(asked) < ttl {
						t.Errorf("a lease that runs: released %v, %v", released, err)
					}
				}
			}
		})
	}
	wg.Wait()
	checkGrants(t, look)
}

// complaints counts what a check says of a wrong history.
type complaints struct {
	testing.TB
	n int
}

func (c *complaints) Error(...any)          { c.n++ }
func (c *complaints) Errorf(string, ...any) { c.n++ }

// A lease is granted over one that runs, of a name that was released before; and also where the row says that it was
// handed over. The checks of the log see both, and take no hand-over for one.
func TestI1_TheChecksOfTheLogSeeATheft(t *testing.T) {
	db := pgtest.Parallel(t)
	p, waiter := newPeer(t, db.URL()), newPeer(t, db.URL())
	logGrants(t, p)
	for _, ended := range []string{"ended_at", "clock_timestamp()"} {
		must.Get(p.release(t.Context(), p.mustAcquire(t, "x", time.Minute)))(t)
		g := p.mustAcquire(t, "x", time.Minute)
		waiter.mustEnqueue(t, "x", "exclusive", nil)
		if outcome := one[string](t, p, `SELECT outcome FROM pglock.hand_over('x', $1, $2, 'peer')`, g.token,
			g.id.String()); outcome != "handed over" {
			t.Fatal(outcome)
		}
		checkGrants(t, p)
		checkModes(t, p)
		p.exec(t, `UPDATE pglock.locks SET token = nextval('pglock.fencing_token_seq') + token,
			grant_id = gen_random_uuid(), acquired_at = clock_timestamp(), ended_at = `+ended)
		for check, run := range map[string]func(tb testing.TB, p *peer){
			"checkGrants": func(tb testing.TB, p *peer) { checkGrants(tb, p) },
			"checkModes":  func(tb testing.TB, p *peer) { checkModes(tb, p) },
		} {
			seen := &complaints{TB: t}
			if run(seen, p); seen.n != 1 {
				t.Errorf("with %s in ended_at, %s has %d complaints, want 1", ended, check, seen.n)
			}
		}
		p.exec(t, `DELETE FROM pglock.locks; DELETE FROM grant_log`)
	}
}

// The first use of a name has no row to lock: simultaneous tries must still have one winner. (Trap 4: the guard is
// compared with the row as it is after the wait, not with the statement's snapshot.)
func TestTrap4_FirstUseHasOneWinner(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	patientWaits(t, look)
	a.exec(t, "BEGIN")
	first := a.mustAcquire(t, "new", time.Minute)
	result := make(chan grant, 1)
	pgtest.Group(t).Go(func() {
		g, err := b.acquire(context.Background(), "new", uuid.New(), time.Minute, false)
		if err != nil {
			t.Error(err)
		}
		result <- g
	})
	b.awaitBlocked(t, look)
	a.exec(t, "COMMIT")
	if second := <-result; second.granted || second.token != first.token {
		t.Fatalf("I1: after %+v the waiting try got %+v", first, second)
	}
}

func TestI1_SimultaneousFirstTriesHaveOneWinner(t *testing.T) {
	db := pgtest.Parallel(t)
	peers := make([]*peer, 8)
	for i := range peers {
		peers[i] = newPeer(t, db.URL())
	}
	patientWaits(t, peers[0])
	for round := range 50 {
		name := fmt.Sprintf("round %d", round)
		start, won := make(chan struct{}), make(chan bool, len(peers))
		for _, p := range peers {
			pgtest.Group(t).Go(func() {
				<-start
				g, err := p.acquire(context.Background(), name, uuid.New(), time.Minute, false)
				if err != nil {
					t.Error(err)
				}
				won <- g.granted
			})
		}
		close(start)
		winners := 0
		for range peers {
			if <-won {
				winners++
			}
		}
		if winners != 1 {
			t.Fatalf("I1: round %d has %d winners", round, winners)
		}
	}
}

func TestI2_TokensStrictlyIncrease(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	patientWaits(t, look)
	const least = 50
	var granted atomic.Int64
	began := time.Now()
	enough := func() bool {
		ran := time.Since(began)
		return ran > lasting(1500*time.Millisecond) && granted.Load() >= least || ran > patience
	}
	wg := pgtest.Group(t)
	for range 8 {
		p := newPeer(t, db.URL())
		wg.Go(func() {
			for !enough() {
				g, err := p.acquire(context.Background(), "contended", uuid.New(), time.Minute, false)
				if err == nil && g.granted {
					granted.Add(1)
					_, err = p.release(context.Background(), g)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := checkGrants(t, look); n < least {
		t.Errorf("%d grants are too few to show anything", n)
	}
}

// grantedTwiceBeforeTheFirstInsert brings b to where it has drawn the token of its INSERT and waits for a's row, which
// a takes and gives back twice in one transaction, still open. It returns a's last grant and what b will be answered.
func grantedTwiceBeforeTheFirstInsert(t *testing.T, a, b, look *peer) (later grant, result chan grant) {
	t.Helper()
	patientWaits(t, look)
	a.exec(t, "BEGIN")
	g := a.mustAcquire(t, "x", time.Minute)
	result = make(chan grant, 1)
	pgtest.Group(t).Go(func() {
		g, err := b.acquire(context.Background(), "x", uuid.New(), time.Minute, false)
		if err != nil {
			t.Error(err)
		}
		result <- g
	})
	b.awaitBlocked(t, look)
	must.Get(a.release(t.Context(), g))(t)
	later = a.mustAcquire(t, "x", time.Minute)
	must.Get(a.release(t.Context(), later))(t)
	if later.token <= g.token {
		t.Errorf("I2: token %d after %d", later.token, g.token)
	}
	return later, result
}

// B has drawn the value for its INSERT and waits for A's row; A is granted twice meanwhile. B's own grant must still
// carry a greater token than both.
func TestTrap1_TokenIsDrawnAfterTheWait(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b, look := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	later, result := grantedTwiceBeforeTheFirstInsert(t, a, b, look)
	a.exec(t, "COMMIT")
	last := <-result
	if !last.granted || last.token <= later.token {
		t.Fatalf("I2: after token %d the waiting try got %+v", later.token, last)
	}
}

// A released lock keeps its row and its token: a row that went away would let an INSERT use a token drawn long before.
func TestTrap2_ReleaseKeepsTheRow(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	if released, err := p.release(t.Context(), g); err != nil || !released {
		t.Fatal(released, err)
	}
	if token := one[int64](t, p,
		`SELECT coalesce(max(token), 0) FROM pglock.locks WHERE name = 'x'`); token != g.token {
		t.Fatalf("the row has token %d after the release, not %d", token, g.token)
	}
}
