package integration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// theirLease is a table: each statement that names leases, by their names, tokens, grant IDs and slots. It answers true
// for each lease that it takes for one, and may fail for the others.
var theirLease = map[string]string{
	"renew_leases":              `SELECT outcome = 'renewed' FROM pglock.renew_leases($1, $2, $3, $4)`,
	"renew_leases, which waits": `SELECT outcome = 'renewed' FROM pglock.renew_leases($1, $2, $3, $4, '1 s')`,
	"check_leases":              `SELECT reason IS NULL FROM pglock.check_leases($1, $2, $3, $4)`,
	"release_leases":            `SELECT released FROM pglock.release_leases($1, $2, $3, $4)`,
	"release_lease":             `SELECT r.released FROM ` + one4 + `pglock.release_lease(a.name, a.token, a.id, a.slot) r`,
	"release_lease, any slot":   `SELECT r.released FROM ` + one4 + `pglock.release_lease(a.name, a.token, a.id) r`,
	"hand_over":                 `SELECT r.outcome = 'nobody' FROM ` + one4 + `pglock.hand_over(a.name, a.token, a.id, 'somebody') r`,
	"fence":                     `SELECT true FROM ` + one4 + `pglock.fence(a.name, a.token, a.id, p_allow_same_token => true) r`,
	"fence_all":                 `SELECT true FROM pglock.fence_all($1, $2, $3, p_allow_same_token => true), unnest($4::int[])`,
	"once":                      `SELECT r.is_first FROM ` + one4 + `pglock.once(gen_random_uuid()::text, a.name, a.token, a.id) r`,
}

const one4 = `unnest($1::text[], $2::bigint[], $3::uuid[], $4::int[]) a(name, token, id, slot), LATERAL `

// Whoever knows the name, the token, or another lease, but not just this lease's name, token and grant ID, can do
// nothing with it: by no statement, whether it names one lease or several, in any mode. Nor can its owner, when it was
// released or has run out.
func TestI5_I7_OnlyItsOwnerSpeaksForALeaseWhileItLasts(t *testing.T) {
	db := pgtest.Parallel(t)
	for call, sql := range theirLease {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			p := newHastyPeer(t, db.URL())
			says := func(leases ...grant) (yes int) {
				t.Helper()
				var names []string
				var tokens []int64
				var ids []uuid.UUID
				var slots []int
				for _, g := range leases {
					names, tokens, ids = append(names, g.name), append(tokens, g.token), append(ids, g.id)
					slots = append(slots, one[int](t, p, `SELECT coalesce((SELECT slot FROM pglock.locks
						WHERE name = $1 AND token = $2), 0)`, g.name, g.token))
				}
				p.exec(t, `BEGIN`) // what a fence lets pass, COMMIT may refuse: here the call itself is to refuse
				rows, _ := p.Query(t.Context(), sql, names, tokens, ids, slots)
				answers, err := pgx.CollectRows(rows, pgx.RowTo[bool])
				if err != nil {
					if code := state(err); !slices.Contains([]string{"LK001", "LK002", "LK003"}, code) {
						t.Fatal(err)
					}
					p.exec(t, `ROLLBACK`)
					return 0
				}
				p.exec(t, `COMMIT`)
				for _, answer := range answers {
					if answer {
						yes++
					}
				}
				return yes
			}
			for _, mode := range []string{"exclusive", "shared", "limit 2"} {
				if mode != "exclusive" && call == "hand_over" {
					continue
				}
				name := func(s string) string { return call + mode + s }
				before := p.mustAsk(t, name("a"), mode)
				if n := says(before); n != 1 {
					t.Errorf("%s: its owner is told %d times that it is its lease", mode, n)
				}
				must.Get(p.releaseBy(t.Context(), "release_lease", before))(t)
				a, b := p.mustAsk(t, name("a"), mode), p.mustAsk(t, name("b"), mode)
				row := func() string {
					return one[string](t, p, `SELECT string_agg(l::text, ' ' ORDER BY l) FROM pglock.locks l
						WHERE starts_with(name, $1)`, call+mode)
				}
				was := row()
				for what, forged := range map[string][]grant{
					"a random grant ID":    {{name: a.name, token: a.token, id: uuid.New()}},
					"the nil grant ID":     {{name: a.name, token: a.token}},
					"the token before":     {{name: a.name, token: a.token - 1, id: a.id}},
					"the token after":      {{name: a.name, token: a.token + 1, id: a.id}},
					"another lock's name":  {{name: b.name, token: a.token, id: a.id}},
					"another lock's lease": {{name: a.name, token: b.token, id: b.id}},
					"the lease before":     {before},
					"grant IDs exchanged": {{name: a.name, token: a.token, id: b.id},
						{name: b.name, token: b.token, id: a.id}},
					"tokens exchanged": {{name: a.name, token: b.token, id: a.id},
						{name: b.name, token: a.token, id: b.id}},
					"names exchanged": {{name: b.name, token: a.token, id: a.id},
						{name: a.name, token: b.token, id: b.id}},
				} {
					if n := says(forged...); n != 0 || row() != was {
						t.Fatalf("I5: %s with %s answers for %d leases:\n%s\n%s", mode, what, n, was, row())
					}
				}
				if n := says(a, b); n != 2 {
					t.Errorf("%s: the owner of both is told that %d are its leases", mode, n)
				}
				for _, g := range []grant{a, b} {
					must.Get(p.releaseBy(t.Context(), "release_lease", g))(t)
				}
				over := p.mustAsk(t, name("over"), mode)
				endNow(t, p, over.name)
				if was = row(); says(a, b) != 0 || says(over) != 0 || row() != was {
					t.Errorf("I7: %s: leases that are over are taken for such:\n%s\n%s", mode, was, row())
				}
			}
		})
	}
}

// After a break, everything that the old holder does fails: its fenced write at every isolation level (the break falls
// between the fence and COMMIT), its renewal, its release; and the lock is free.
func TestI10_BreakStays(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	pool, look := db.Pool(t), newPeer(t, db.URL())
	c, another, operator := newClient(t, pool), newClient(t, pool), newAdmin(t, pool)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			lease, err := c.TryAcquire(t.Context(), "x", pglock.WithTTL(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			err = fencedstore.New(pool).With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: level})).Write(
				t.Context(), lease,
				func(ctx context.Context, tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token()); err != nil {
						return err
					}
					broken, err := operator.Break(ctx, "x", "test", lockadmin.BreakOptions{Token: new(lease.Token())})
					if err == nil && broken.NewToken <= lease.Token() {
						t.Errorf("the break drew token %d after %d", broken.NewToken, lease.Token())
					}
					return err
				})
			if err == nil {
				t.Error("I10: a fenced transaction committed after the break")
			} else if level == pgx.ReadCommitted && !errors.Is(err, pglock.ErrLost) || level != pgx.ReadCommitted &&
				state(err) != "40001" {
				t.Errorf("I10: the refusal is %v", err)
			}
			wantCount(t, look, 0, "I10: %d rows were written after the break", `SELECT count(*) FROM ledger`)
			var lost *pglock.LostError
			if err := hooks.Of(lease).Renew(t.Context()); !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken {
				t.Errorf("I10: Renew answered %v", err)
			}
			if err := lease.Release(t.Context()); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("I10: Release answered %v", err)
			}
			if _, err := fencedstore.Guard(t.Context(), begin(t, pool, level), lease); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("I10: Guard answered %v", err)
			}
			next := must.Get(another.TryAcquire(t.Context(), "x"))(t)
			must.Do(t, next.Release(t.Context()))
		})
	}
}
