package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// ask asks for a lock in a mode, and queues for it if it wants.
func (p *peer) ask(t *testing.T, name, mode string, wait bool) (grant, error) {
	t.Helper()
	g := grant{name: name, id: uuid.New()}
	var token *int64
	err := p.QueryRow(t.Context(),
		`SELECT granted, CASE WHEN granted THEN token END FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min',
		p_mode => split_part($4, ' ', 1), p_capacity => nullif(split_part($4, ' ', 2), '')::int, p_wait => $5)`, name,
		g.id.String(), p.key.String(), mode, wait).Scan(&g.granted, &token)
	g.token = orZero(token)
	return g, err
}

func (p *peer) mustAsk(t *testing.T, name, mode string) grant {
	t.Helper()
	g, err := p.ask(t, name, mode, false)
	if err != nil || !g.granted {
		t.Fatalf("%s of %q: %+v, %v", mode, name, g, err)
	}
	return g
}

// What a lock that is held in one mode keeps waiting: everybody but readers beside readers, and a place beside others.
var keepsWaiting = map[string][]string{
	"exclusive": {"exclusive", "shared", "limit 1", "limit 2"},
	"shared":    {"exclusive", "limit 1", "limit 2"},
	"limit 1":   {"exclusive", "shared", "limit 1"},
}

// A lease of any mode whose renewal is under way, in a transaction that commits after the expiry that others see, is
// not granted to anybody: not to a try, not to a waiter, and not by whoever gives up or releases beside it. None of
// them waits for it, though the renewal of an exclusive lease has the head locked; but whoever is the first to name a
// limit does.
func TestI1_NoGrantBesideARenewalUnderWay(t *testing.T) {
	db := pgtest.Parallel(t)
	patientTransactions(t, newPeer(t, db.URL()))
	holder, look, waiter := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	for held, modes := range keepsWaiting {
		for _, mode := range modes {
			if !pgtest.EveryTest && held == "shared" && mode != "exclusive" {
				continue
			}
			t.Run(held+" and "+mode, func(t *testing.T) {
				holder.exec(t, `ROLLBACK`) // of a case before that failed
				g := holder.mustAsk(t, t.Name(), held)
				for renewed := false; !renewed; { // the time was too short, on a busy machine
					look.exec(t,
						`UPDATE pglock.locks SET expires_at = clock_timestamp() + interval '200 ms' WHERE name = $1 AND grant_id = $2`, g.name, g.id.String())
					holder.exec(t, `BEGIN`)
					outcome := must.Get(holder.renew(t.Context(), g, patience))(t)
					if renewed = outcome == "renewed"; !renewed {
						holder.exec(t, `ROLLBACK`)
					}
				}
				pgtest.Eventually(t, "the expiry that others see to pass", func() bool {
					return one[bool](t, look,
						`SELECT expires_at <= clock_timestamp() FROM pglock.locks WHERE name = $1 AND grant_id = $2`,
						g.name, g.id.String())
				})
				for _, wait := range []bool{false, true, false} {
					names := wait && held == "exclusive" && strings.HasPrefix(mode, "limit")
					if other, err := waiter.ask(t, g.name, mode, wait); (state(err) == "55P03") != names ||
						err != nil && !names || other.granted {
						t.Errorf("I1: %s, waiting %v, beside %s that is being renewed: %+v, %v", mode, wait, held,
							other, err)
					}
				}
				if _, err := look.Exec(t.Context(),
					`SELECT pglock.give_up(gen_random_uuid(), ARRAY[$1], ARRAY[gen_random_uuid()])`,
					g.name); err != nil {
					t.Errorf("giving up: %v", err)
				}
				holder.exec(t, `COMMIT`)
				if !one[bool](t, look,
					`SELECT EXISTS (SELECT FROM pglock.check_leases(ARRAY[$1], ARRAY[$2::bigint], ARRAY[$3::uuid], ARRAY[NULL::int]) WHERE reason IS NULL)`, g.name, g.token, g.id.String()) {
					t.Error("I1: the renewed lease is lost")
				}
				wantCount(t, look, 1, "I1: %d leases at once",
					`SELECT count(*) FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()`,
					g.name)
			})
		}
	}
}

// A fenced transaction of a lease that was prepared holds the lock in any mode until it is committed: nobody is granted
// it who would not see the write.
func TestI4_NoGrantOverAPreparedTransactionInAnyMode(t *testing.T) {
	t.Parallel() // it has a server of its own
	server := migrated(t, map[string]string{"max_prepared_transactions": "10"})
	holder, look := newHastyPeer(t, server.URL()), newHastyPeer(t, server.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	for held, modes := range keepsWaiting {
		for _, mode := range modes {
			for n, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
				if !pgtest.EveryTest && (len(held)+len(mode)+n)%2 == 1 {
					continue // in the short tier each at one level
				}
				t.Run(fmt.Sprintf("%s and %s/%s", held, mode, level), func(t *testing.T) {
					g := holder.mustAsk(t, t.Name(), held)
					holder.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
					must.Do(t, holder.fence(t.Context(), g, g.name))
					holder.exec(t, `INSERT INTO ledger VALUES ($1)`, g.token)
					holder.exec(t, `PREPARE TRANSACTION 'p'`)
					look.exec(t,
						`UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1 AND grant_id = $2`,
						g.name, g.id.String())
					for _, wait := range []bool{false, true} {
						if other, err := look.ask(t, g.name, mode, wait); err != nil || other.granted {
							t.Errorf("I4: %s, waiting %v, over a prepared transaction of %s: %+v, %v", mode, wait, held,
								other, err)
						}
					}
					look.exec(t, `COMMIT PREPARED 'p'`)
					look.exec(t, `SELECT pglock.end_session($1)`, look.key.String()) // the ticket above
					next := look.mustAsk(t, g.name, mode)
					if n := one[int](t, look, `SELECT count(*) FROM ledger WHERE token = $1`, g.token); n != 1 ||
						next.token <= g.token {
						t.Errorf("I4: token %d after %d, and %d writes", next.token, g.token, n)
					}
				})
			}
		}
	}
}

// A semaphore is never held by more than its limit, whichever slots there are already and however they came to be free.
func TestI1_ASemaphoreIsNeverHeldByMoreThanItsLimit(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for before := range 4 { // readers have used so many slots
		for limit := 1; limit <= 3; limit++ {
			for _, ended := range []string{"released", "run out"} {
				name := fmt.Sprint(before, " readers, limit ", limit, ", ", ended)
				for range before {
					p.mustAsk(t, name, "shared")
				}
				end := map[string]string{
					"released": `SELECT count((pglock.release_lease(name, token, grant_id, slot)).released) FROM pglock.locks WHERE name = $1 AND slot > 0`,
					"run out":  `WITH u AS (UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1 AND slot > 0 RETURNING 1) SELECT count(*) FROM u`,
				}[ended]
				one[int](t, p, end, name)
				for round := range 2 {
					for n := range limit + 2 {
						g, err := p.ask(t, name, fmt.Sprint("limit ", limit), n%2 == 1)
						if err != nil || g.granted != (n < limit) {
							t.Errorf("I1: %s: round %d, %d hold it: %+v, %v", name, round, n, g, err)
						}
					}
					if n := one[int](t, p,
						`SELECT count(*) FROM pglock.locks WHERE name = $1 AND expires_at > clock_timestamp()`,
						name); n != limit {
						t.Errorf("I1: %s: %d hold it", name, n)
					}
					p.exec(t, `SELECT pglock.end_session($1)`, p.key.String()) // the tickets
					one[int](t, p, end, name)
				}
			}
		}
	}
}

// Two limits are never in use at once: whoever names another while the first is being granted or queued for waits for
// that, and is refused.
func TestI1_TwoLimitsAreNeverInUseAtOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	a, b, look := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, look)
	for _, before := range []string{"new", "known", "held", "held by a writer"} {
		for _, limits := range [][2]string{{"limit 1", "limit 10"}, {"limit 10", "limit 1"}} {
			t.Run(before+"/"+limits[0], func(t *testing.T) {
				a.exec(t, `ROLLBACK`) // of a case before that failed
				switch before {
				case "known":
					freed(t, look, t.Name())
				case "held":
					look.mustAsk(t, t.Name(), limits[0])
				case "held by a writer":
					look.mustAsk(t, t.Name(), "exclusive")
				}
				a.exec(t, `BEGIN`)
				must.Get(a.ask(t, t.Name(), limits[0], true))(t)
				answered := make(chan error, 1)
				pgtest.Group(t).Go(func() {
					_, err := b.ask(t, t.Name(), limits[1], true)
					answered <- err
				})
				if before != "held" { // a lease that stands tells of its limit at once
					b.awaitBlocked(t, look)
				}
				a.exec(t, `COMMIT`)
				if err := <-answered; state(err) != "LK010" {
					t.Errorf("I1: %s beside %s: %v, want LK010", limits[1], limits[0], err)
				}
				if n := one[int](t, look,
					`SELECT count(DISTINCT capacity) FROM (SELECT name, capacity FROM pglock.locks WHERE expires_at > clock_timestamp()
					UNION ALL SELECT name, capacity FROM pglock.waiters) u WHERE name = $1`, t.Name()); n > 1 {
					t.Errorf("I1: %d limits are in use", n)
				}
			})
		}
	}
}

// Two that join the queue of a writer at once see nothing of each other, so neither is refused, if one of them names
// the limit that the head has noted. The later of their tickets is not granted beside the other's lease, and whoever
// asks again for it is told of the limit.
func TestI1_TwoLimitsThatWereQueuedForAtOnceAreNotGrantedTogether(t *testing.T) {
	db := pgtest.Parallel(t)
	look, a, b := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	patientWaits(t, look)
	for _, limits := range [][2]string{{"limit 1", "limit 10"}, {"limit 10", "limit 1"}} {
		for n := range 4 {
			noted, between := limits[n%2], n >= 2
			name := fmt.Sprintf("%s before %s, %s noted, a writer between them %v", limits[0], limits[1], noted,
				between)
			waysToEnd["release_lease"](t, look.party("before", noted, time.Minute).mustGet(t, name))
			writer := look.party("writer", "exclusive", time.Minute).mustGet(t, name)
			first, second := a.party("first", limits[0], time.Minute), b.party("second", limits[1], time.Minute)
			a.exec(t, `BEGIN`)
			first.mustQueue(t, name)
			leaves := b.party("leaves", "exclusive", time.Minute)
			if between {
				leaves.mustQueue(t, name)
			}
			second.mustQueue(t, name)
			a.exec(t, `COMMIT`)
			waysToEnd["release_lease"](t, writer)
			if between {
				b.exec(t, `SELECT FROM pglock.give_up($1, ARRAY[$2], ARRAY[$3::uuid])`, leaves.key, name, leaves.id)
			}
			if held := heldBy(t, look, name); held != "first" {
				t.Errorf("I1: %s: %q hold the lock", name, held)
			}
			if err := second.ask(t, name, true, true); state(err) != "LK010" {
				t.Errorf("I1: %s: the second asks again: %v, want LK010", name, err)
			}
			first.find(t)
			waysToEnd["release_lease"](t, first)
			if err := second.ask(t, name, true, true); err != nil || !second.granted {
				t.Errorf("%s: the first has released, and the second asks again: granted %v, %v", name, second.granted,
					err)
			}
		}
	}
}

// A lock that a writer has left is shared by those who ask to share it.
func TestWhatAWriterHasLeftIsShared(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newHastyPeer(t, db.URL())
	for _, mode := range []string{"shared", "limit 2"} {
		freed(t, p, mode)
		first, second := p.mustAsk(t, mode, mode), p.mustAsk(t, mode, mode)
		if other, err := p.ask(t, mode, "exclusive", false); err != nil || other.granted || !isHeld(t, p, first) ||
			!isHeld(t, p, second) {
			t.Errorf("I1: a writer beside two of %q: %+v, %v", mode, other, err)
		}
	}
}

// A try that is refused for those who queue keeps nobody waiting.
func TestI13_TryThatTheQueueRefusesLocksNothing(t *testing.T) {
	db := pgtest.Parallel(t)
	patientWaits(t, newPeer(t, db.URL()))
	p, look := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	for _, mode := range []string{"shared", "limit 2"} {
		look.mustAsk(t, mode, mode)
		look.mustEnqueue(t, mode, "exclusive", nil)
		p.exec(t, `BEGIN`)
		if g, err := p.ask(t, mode, mode, false); err != nil || g.granted {
			t.Errorf("I9: %s beside a writer that queues: %+v, %v", mode, g, err)
		}
		look.exec(t, `SELECT FROM pglock.locks WHERE name = $1 FOR UPDATE NOWAIT`, mode)
		p.exec(t, `ROLLBACK`)
	}
}

// A slot that is over, but locked by somebody who looks at it, is not made up for by one above the limit.
func TestNoSlotIsAboveItsLimit(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newHastyPeer(t, db.URL()), newHastyPeer(t, db.URL())
	for _, before := range []string{"shared", "limit 3"} {
		for range 3 {
			p.mustAsk(t, before, before)
		}
		p.exec(t,
			`SELECT pglock.release_lease(name, token, grant_id, slot) FROM pglock.locks WHERE name = $1 AND slot > 0`,
			before)
		look.exec(t, `BEGIN`)
		look.exec(t, `SELECT FROM pglock.locks WHERE name = $1 AND slot = 1 FOR KEY SHARE`, before)
		limit := map[string]string{"shared": "limit 1", "limit 3": "limit 3"}[before]
		for range map[string]int{"shared": 0, "limit 3": 2}[before] {
			p.mustAsk(t, before, limit)
		}
		if g, err := p.ask(t, before, limit, false); err != nil || g.granted {
			t.Errorf("%s after %s, with slot 1 locked: %+v, %v", limit, before, g, err)
		}
		look.exec(t, `COMMIT`)
		p.mustAsk(t, before, limit)
	}
}

// A slot whose row somebody has locked, such as a COMMIT that comes too late, holds nobody up: the next slot is
// granted.
func TestI13_ASlotWhoseRowIsLockedIsPassedOver(t *testing.T) {
	db := pgtest.Parallel(t)
	look, p := newPeer(t, db.URL()), newPeer(t, db.URL())
	first := p.place(t, "x")
	if released, err := p.release(t.Context(), first); err != nil || !released {
		t.Fatal(released, err)
	}
	look.exec(t, `BEGIN`)
	look.exec(t, `SELECT FROM pglock.locks WHERE name = 'x' AND slot = 1 FOR SHARE`)
	if g := p.place(t, "x"); one[int](t, look, `SELECT slot FROM pglock.locks WHERE grant_id = $1`,
		g.id.String()) != 2 {
		t.Error("the slot that is locked was granted")
	}
	look.exec(t, `ROLLBACK`)
}

// A lock that once had many readers keeps their slots. Whoever is granted one locks no other.
func TestAReaderLocksOneSlot(t *testing.T) {
	db := pgtest.Parallel(t)
	p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
	for range 5 {
		p.mustAsk(t, "x", "shared")
	}
	p.exec(t, `UPDATE pglock.locks SET expires_at = now(), ended_at = now()`)
	p.exec(t, `BEGIN`)
	p.mustAsk(t, "x", "shared")
	p.liftLimits(t)
	wantCount(t, look, 4, "%d of 5 slots are not locked, want 4", `SELECT count(*) FROM (
			SELECT FROM pglock.locks WHERE slot > 0 FOR UPDATE SKIP LOCKED) free`)
	p.exec(t, `ROLLBACK`)
}
