package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// passedOn gives a lease that one call of the client has passed on in memory to another, both of them, and the channel on
// which so many calls more will come. Meanwhile the server sees one lease.
func passedOn(t *testing.T, look *peer, c *pglock.Client, name string, behind int, opts ...pglock.AcquireOption) (gone, now *pglock.Lease, got chan fetched) {
	t.Helper()
	got = make(chan fetched, behind+3)
	row := func() string { // but for what a heartbeat changes, which may come at any moment
		return one[string](t, look, `SELECT concat_ws(' ', token, first_token, grant_id, acquired_at) FROM pglock.locks WHERE name = $1`, name)
	}
	for attempt := 0; ; attempt++ {
		held := look.mustAcquire(t, name, time.Minute)
		acquireInBackground(t.Context(), c, 0, name, got, opts...)
		awaitQueue(t, look, name, 1)
		for n := range behind + 2 {
			acquireInBackground(t.Context(), c, n+1, name, got, opts...)
		}
		awaitQueue(t, look, name, 2)
		time.Sleep(20 * time.Millisecond) // for calls to join the line: a late one waits behind it
		if released, err := look.release(t.Context(), held); err != nil || !released {
			t.Fatal(released, err)
		}
		look.exec(t, `SELECT pglock.announce(ARRAY[$1], '{0}')`, name)
		serve(t, got, 1) // the one that asked for itself
		f := await(t, got)
		if f.err != nil {
			t.Fatal(f.err)
		}
		gone = f.lease
		if one[int](t, look, `SELECT (token - coalesce(first_token, token) + 1)::int FROM pglock.locks WHERE name = $1`, name) > 1 {
			break
		} else if attempt == 20 {
			t.Fatalf("no block of tokens in %d grants: %s", attempt, row())
		}
		mustRelease(t, gone) // a block ends where somebody else drew a token
		serve(t, got, behind+1)
		pgtest.Eventually(t, "the line to be gone", func() bool {
			return one[bool](t, look, `SELECT NOT EXISTS (SELECT FROM pglock.waiters WHERE name = $1) AND NOT EXISTS (SELECT FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp())`, name)
		})
	}
	before := row()
	mustRelease(t, gone)
	f := await(t, got)
	if f.err != nil {
		t.Fatal(f.err)
	}
	if now = f.lease; now.Token() != gone.Token()+1 || row() != before {
		t.Fatalf("token %d after %d was not passed on in memory:\n%s\n%s", now.Token(), gone.Token(), before, row())
	}
	return gone, now, got
}

// serve gives so many waiting calls their turns.
func serve(t *testing.T, got <-chan fetched, calls int) {
	t.Helper()
	for range calls {
		f := await(t, got)
		if f.err != nil {
			t.Fatal(f.err)
		}
		mustRelease(t, f.lease)
	}
}

// wantFree waits until nobody holds or waits for a lock.
func wantFree(t *testing.T, look *peer) {
	t.Helper()
	pgtest.Eventually(t, "every lock to be free and every queue empty", func() bool {
		return one[int](t, look, `SELECT (SELECT count(*) FROM pglock.waiters) + (SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp())`) == 0
	})
}

// turnstile sees every turn of one lock, from all clients of the process.
type turnstile struct {
	t       *testing.T
	holders atomic.Int32
	mu      sync.Mutex
	last    pglock.Token
	turns   []int // by client, in order
}

func (ts *turnstile) count() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return len(ts.turns)
}

// pass takes a turn: nobody else has the lock meanwhile, and the token is greater than every one before.
func (ts *turnstile) pass(client int, l *pglock.Lease, work time.Duration) {
	if n := ts.holders.Add(1); n != 1 {
		ts.t.Errorf("I1: %d hold the lock", n)
	}
	ts.mu.Lock()
	if l.Token() <= ts.last {
		ts.t.Errorf("I2: token %d after %d", l.Token(), ts.last)
	}
	ts.last = l.Token()
	ts.turns = append(ts.turns, client)
	pause := work > 0 && len(ts.turns)%8 == 0 // a sleep takes long, however short it is
	ts.mu.Unlock()
	if pause {
		time.Sleep(work)
	}
	ts.holders.Add(-1)
}

// Sixty-four callers in each of three clients: nobody holds the lock beside another, tokens ascend over all of them, tickets
// are served in order, and all clients and callers get the same share. Only the number of turns ends a block here: on a busy
// machine its time would end some blocks early, and equal numbers of blocks would be unequal numbers of turns.
func TestI1_I2_I9_ManyCallersOfSeveralClientsTakeTurns(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	logTickets(t, look)
	const clients, callers = 3, 64
	ts := &turnstile{t: t}
	served := make([]int, clients*callers)
	var wg sync.WaitGroup
	var stop atomic.Bool
	for client := range clients {
		c := newClient(t, db.Pool(t, maxConnections(4)), pglock.WithTurns(pglock.DefaultTurns, patience))
		for caller := range callers {
			wg.Go(func() {
				for !stop.Load() {
					l, err := c.Acquire(t.Context(), "x")
					if err != nil {
						t.Error(err)
						return
					}
					ts.pass(client, l, 100*time.Microsecond)
					served[client*callers+caller]++
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	for began := time.Now(); time.Since(began) < lasting(1500*time.Millisecond) || ts.count() < 1500 && time.Since(began) < patience; {
		time.Sleep(10 * time.Millisecond) // of load
	}
	stop.Store(true)
	wg.Wait()
	// The clients begin one after another, and end so: what is between is the load of all.
	turns := ts.turns[len(ts.turns)/5 : len(ts.turns)*8/10]
	share := make([]int, clients)
	for _, client := range turns {
		share[client]++
	}
	t.Logf("%d turns, by client %v; the callers of the first had %d to %d", len(ts.turns), share, slices.Min(served[:callers]), slices.Max(served[:callers]))
	if len(ts.turns) < 1000 {
		t.Error("too little happened to show anything")
	}
	const block = float64(pglock.DefaultTurns)
	// What is between may begin and end in the middle of a block.
	if least, most := float64(slices.Min(share)), float64(slices.Max(share)); most > 1.2*least+2*block {
		t.Errorf("I9: a client had %v turns while another had %v", most, least)
	}
	for client := range clients {
		mine := served[client*callers : (client+1)*callers]
		if least, most := float64(slices.Min(mine)), float64(slices.Max(mine)); most > 1.2*least+2 {
			t.Errorf("I9: a caller had %v turns while another of its client had %v", most, least)
		}
	}
	wantFree(t, look)
	if n := checkGrants(t, look); n < len(ts.turns)/pglock.DefaultTurns || n > len(ts.turns)/4 {
		t.Errorf("%d grants for %d turns", n, len(ts.turns))
	}
	checkQueue(t, look)
}

// Dozens of callers of one client that want the same lock cost the server a statement for dozens of acquisitions.
func TestCallersOfOneClientShareStatements(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	for name, tc := range map[string]struct {
		turns int
		most  float64 // statements for an acquisition
	}{"64 turns": {pglock.DefaultTurns, 0.1}, "8 turns": {8, 0.6}} {
		t.Run(name, func(t *testing.T) {
			var count counter
			c := newClient(t, newPool(t, db.URL(), count.on), pglock.WithTurns(tc.turns, time.Hour))
			ts := &turnstile{t: t}
			var wg sync.WaitGroup
			const callers, each = 64, 40
			for range callers {
				wg.Go(func() {
					for range each {
						l, err := c.Acquire(t.Context(), "x")
						if err != nil {
							t.Error(err)
							return
						}
						ts.pass(0, l, 0)
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			per := float64(count.statements.Load()) / (callers * each)
			t.Logf("%.3f statements an acquisition", per)
			if per > tc.most {
				t.Errorf("%.3f statements an acquisition, want at most %v", per, tc.most)
			}
			wantFree(t, look)
		})
	}
}

// A waiter of another client comes after as many turns as the bound says at most, and after its time and one turn.
func TestI9_AWaiterBehindALineWaitsForTheBound(t *testing.T) {
	const hold = 5 * time.Millisecond
	for name, tc := range map[string]struct {
		turns  int
		within time.Duration
		most   int // turns before the other
	}{
		"three turns":        {3, 0, 3},
		"64 turns":           {pglock.DefaultTurns, 0, 64},
		"50 ms of 1,000":     {1000, 50 * time.Millisecond, 10}, // none of which ends in less time than hold
		"nanosecond of 1000": {1000, time.Nanosecond, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			c, other := newClient(t, db.Pool(t), pglock.WithTurns(tc.turns, tc.within)), newClient(t, db.Pool(t))
			held := look.mustAcquire(t, "x", time.Minute)
			got := make(chan fetched, 1)
			acquireInBackground(t.Context(), other, -1, "x", got) // before the line
			awaitQueue(t, look, "x", 1)
			var wg sync.WaitGroup
			var mu sync.Mutex
			var began []time.Time
			for range 100 {
				wg.Go(func() {
					l, err := c.Acquire(t.Context(), "x")
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					began = append(began, time.Now())
					mu.Unlock()
					time.Sleep(hold) // the work of this test
					if err := l.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			awaitQueue(t, look, "x", 3) // of the other, of the first call, and of the line
			behind := make(chan fetched, 1)
			acquireInBackground(t.Context(), other, 0, "x", behind)
			awaitQueue(t, look, "x", 4)
			if released, err := look.release(t.Context(), held); err != nil || !released {
				t.Fatal(released, err)
			}
			serve(t, got, 1)
			f := await(t, behind)
			if f.err != nil {
				t.Fatal(f.err)
			}
			mu.Lock()
			turns, took := len(began)-1, time.Since(began[1]) // the first call has a ticket of its own
			mu.Unlock()
			t.Logf("%d turns in %v", turns, took)
			if turns > tc.most {
				t.Errorf("I9: the other waited for %d turns and %v, want %d turns at most", turns, took, tc.most)
			}
			mustRelease(t, f.lease)
			wg.Wait()
			wantFree(t, look)
		})
	}
}

// The history of calls that wait in lines, of calls with a ticket each, and of tries is that of a mutex whose tokens strictly
// increase.
func TestI2_HistoryOfTurnsIsLinearizable(t *testing.T) {
	db := pgtest.Database(t)
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	var enough atomic.Bool
	record := func(client int, in operation, call func() (outcome, error)) (outcome, bool) {
		start := time.Since(began)
		out, err := call()
		end := time.Since(began)
		if err != nil {
			t.Error(err)
			return out, false
		}
		mu.Lock()
		defer mu.Unlock()
		history = append(history, porcupine.Operation{ClientId: client, Input: in, Call: int64(start), Output: out, Return: int64(end)})
		if len(history) == 3000 || end > lasting(4*time.Second) && len(history) >= 200 || end > patience {
			enough.Store(true) // the checker's work grows faster than the history
		}
		return out, true
	}
	works := func(id int, acquire func(context.Context, string, ...pglock.AcquireOption) (*pglock.Lease, error)) {
		for ok := true; ok && !enough.Load(); {
			var l *pglock.Lease
			var out outcome
			out, ok = record(id, operation{}, func() (outcome, error) {
				var err error
				if l, err = acquire(t.Context(), "x"); errors.Is(err, pglock.ErrHeld) {
					return outcome{}, nil
				} else if err != nil {
					return outcome{}, err
				}
				return outcome{true, int64(l.Token())}, nil
			})
			if !ok || !out.done {
				continue
			}
			_, ok = record(id, operation{release: true, token: int64(l.Token())}, func() (outcome, error) {
				return outcome{done: true}, l.Release(t.Context())
			})
			if id%2 == 0 {
				again, err := l.Release(t.Context()), l.Err() // a second release is one that finds nothing
				if again != pglock.ErrReleased || err != pglock.ErrReleased {
					t.Errorf("I5: a second release: %v, %v", again, err)
				}
			}
		}
	}
	for n, opts := range [][]pglock.Option{nil, {pglock.WithTurns(3, 0)}, {pglock.WithTurns(1, 0)}} {
		c := newClient(t, db.Pool(t, maxConnections(4)), opts...)
		for id := range 4 {
			wg.Go(func() { works(5*n+id, c.Acquire) })
		}
		wg.Go(func() { works(5*n+4, c.TryAcquire) })
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(fencedMutex, history, time.Minute); result != porcupine.Ok {
		t.Fatalf("I2: a history of %d operations is %s", len(history), result)
	}
	if len(history) < 200 {
		t.Errorf("%d operations are too few to show anything", len(history))
	}
}

// Calls of every other kind beside a line: with another TTL or label, with metadata, a grace, Shared and Limit, tries, and
// whole lists of locks. Nobody who is alone is beside anybody, and all are served.
func TestI1_ALineBesideCallsOfEveryOtherKind(t *testing.T) {
	inLongTier(t)
	t.Parallel()
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	logGrants(t, look)
	var alone, beside atomic.Int32
	var wg sync.WaitGroup
	kinds := map[string][]pglock.AcquireOption{
		"line": nil, "another TTL": {pglock.WithTTL(20 * time.Second)}, "another label": {pglock.WithHolder("another")},
		"metadata": {pglock.WithMetadata([]byte(`{"a": 1}`))}, "grace": {pglock.WithGrace(time.Second)}, "shared": {pglock.WithShared()},
	}
	for range 2 {
		c := newClient(t, db.Pool(t, maxConnections(6)))
		for kind, opts := range kinds {
			for range 4 {
				wg.Go(func() {
					for round := range 10 {
						acquire := c.Acquire
						if round%5 == 4 {
							acquire = c.TryAcquire
						} else if round%5 == 3 && kind != "shared" {
							acquire = func(ctx context.Context, name string, opts ...pglock.AcquireOption) (*pglock.Lease, error) {
								leases, err := c.AcquireAll(ctx, []string{name}, opts...)
								if err != nil {
									return nil, err
								}
								return leases.All()[0], nil
							}
						}
						l, err := acquire(t.Context(), "x", opts...)
						if errors.Is(err, pglock.ErrHeld) && round%5 == 4 {
							continue
						} else if err != nil {
							t.Errorf("%s: %v", kind, err)
							return
						}
						own := &alone
						if kind == "shared" {
							own = &beside
						}
						if shared := l.Mode() == pglock.ModeShared; shared != (kind == "shared") || shared != (l.Slot() > 0) {
							t.Errorf("%s: a lease in mode %s with slot %d", kind, l.Mode(), l.Slot())
						}
						n := own.Add(1)
						if kind == "shared" && alone.Load() != 0 || kind != "shared" && (n != 1 || beside.Load() != 0) {
							t.Errorf("I1: %s: %d alone and %d together hold the lock", kind, alone.Load(), beside.Load())
						}
						own.Add(-1)
						if err := l.Release(t.Context()); err != nil {
							t.Errorf("%s: %v", kind, err)
						}
					}
				})
			}
		}
	}
	wg.Wait()
	wantFree(t, look)
	checkModes(t, look)
}

// Ten thousand callers of one client wait for a hundred locks with a ticket or two for each lock, and are served.
func TestThousandsWaitInLines(t *testing.T) {
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	var count counter
	pool := newPool(t, db.URL(), maxConnections(4), func(config *pgxpool.Config) { count.on(config) })
	c := newClient(t, pool, pglock.WithTurns(pglock.DefaultTurns, patience)) // the time of a block would end it early
	names, each := 100, inThousands(100)
	var holders []*pglock.Lease
	for n := range names {
		holders = append(holders, mustTry(t, c, fmt.Sprint("n", n)))
	}
	var wg sync.WaitGroup
	var waiting, served atomic.Int32
	for n := range names {
		for range each {
			wg.Go(func() {
				waiting.Add(1)
				l, err := c.Acquire(t.Context(), fmt.Sprint("n", n))
				if err == nil {
					served.Add(1)
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	pgtest.Eventually(t, "two tickets for each lock", func() bool {
		return int(waiting.Load()) == names*each && one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == 2*names
	})
	before, began := count.statements.Load(), time.Now()
	mustRelease(t, holders...)
	wg.Wait()
	statements := count.statements.Load() - before
	t.Logf("%d turns in %v with %d statements", served.Load(), time.Since(began), statements)
	if int(statements) > names*each/4 {
		t.Errorf("%d statements for %d turns", statements, names*each)
	}
	wantFree(t, look)
}
