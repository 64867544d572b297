package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// Whoever knows the name, the token, or another grant's ID, but not this grant's, can neither renew nor release.
func TestI5_OnlyTheOwnerRenewsAndReleases(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newPeer(t, db.URL())
	g, other := p.mustAcquire(t, "x", time.Minute), p.mustAcquire(t, "y", time.Minute)
	row := func() string {
		return one[string](t, p, `SELECT l::text FROM pglock.locks l WHERE name = 'x'`)
	}
	before := row()
	for what, forged := range map[string]grant{
		"a random grant ID":           {name: "x", token: g.token, id: uuid.New()},
		"the nil grant ID":            {name: "x", token: g.token},
		"another lock's grant ID":     {name: "x", token: g.token, id: other.id},
		"the right ID, another token": {name: "x", token: g.token + 1, id: g.id},
		"another lock's lease":        {name: "x", token: other.token, id: other.id},
	} {
		args := []any{forged.name, forged.token, forged.id.String()}
		for _, wait := range []string{"NULL", "'1 s'"} {
			if outcome := one[string](t, p,
				`SELECT outcome FROM pglock.renew_leases(ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}', `+
					wait+`)`, args...); outcome == "renewed" || outcome == "busy" {
				t.Errorf("renew with %s: %s", what, outcome)
			}
		}
		if released, err := p.release(t.Context(), forged); err != nil || released {
			t.Errorf("release with %s: %v, %v", what, released, err)
		}
		if n := one[int](t, p,
			`SELECT count(*) FILTER (WHERE released) FROM pglock.release_leases(ARRAY[$1::text], ARRAY[$2::bigint], ARRAY[$3::uuid], '{0}')`, args...); n != 0 {
			t.Errorf("release_leases with %s released", what)
		}
		if row() != before {
			t.Fatalf("%s changed the row:\n%s\n%s", what, before, row())
		}
	}
}

func TestI5_SecondReleaseChangesNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	p := newPeer(t, db.URL())
	g := p.mustAcquire(t, "x", time.Minute)
	if released, err := p.release(t.Context(), g); err != nil || !released {
		t.Fatal(released, err)
	}
	next := p.mustAcquire(t, "x", time.Minute)
	before := one[string](t, p, `SELECT l::text FROM pglock.locks l`)
	if released, err := p.release(t.Context(), g); err != nil || released {
		t.Fatalf("the second release answered %v, %v", released, err)
	}
	if after := one[string](t, p, `SELECT l::text FROM pglock.locks l`); after != before {
		t.Fatalf("the second release changed the lease with token %d", next.token)
	}

	c := newClient(t, db.Pool(t))
	lease, err := c.TryAcquire(t.Context(), "y")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); !errors.Is(err, pglock.ErrReleased) {
		t.Fatalf("the second Release answered %v, want ErrReleased", err)
	}
}

// After a break, everything that the old holder does fails: its fenced write at every isolation level (the break falls
// between the fence and COMMIT), its renewal, its release; and the lock is free.
func TestI10_BreakStays(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
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
					broken, err := operator.Break(ctx, "x", "test", lockadmin.WithToken(lease.Token()))
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
			if n := one[int](t, look, `SELECT count(*) FROM ledger`); n != 0 {
				t.Errorf("I10: %d rows were written after the break", n)
			}
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
			next, err := another.TryAcquire(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if err := next.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
