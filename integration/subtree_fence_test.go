package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A subtree's lease passes the fence of any resource at or below its name, and of no other.
func TestASubtreePassesTheFencesBelowItAlone(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	look := newPeer(t, db.URL())
	c, store := newClient(t, pool), fencedstore.New(pool)
	for name, opts := range map[string][]pglock.AcquireOption{
		"t/7": {pglock.WithSubtree()}, "s/7": {pglock.WithSubtree(), pglock.WithShared()}} {
		lease := mustTry(t, c, name, opts...)
		g := lease.Export()
		write := func(f fencedstore.Fenced) error {
			return store.Write(t.Context(), f, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token())
				return err
			})
		}
		for _, inside := range []string{lease.Resource(), name + "/x", name + "/x/y", name + "/"} {
			if err := write(fencedstore.Fence{Lease: lease, Resource: inside}); err != nil {
				t.Errorf("resource %q: %v", inside, err)
			}
		}
		two := fencedstore.Fences{{Lease: lease, Resource: name + "/m"}, {Lease: lease, Resource: name + "/n"}}
		must.Note(t, write(two))
		for _, outside := range []string{name[:1], name + "x", name[:2], "other", strings.ToUpper(name) + "/x",
			name + "#2"} {
			if outside == lease.Resource() {
				continue
			}
			if err := write(fencedstore.Fence{Lease: lease, Resource: outside}); !errors.Is(err, pglock.ErrInvalid) ||
				!strings.Contains(err.Error(), "resource") || !strings.Contains(err.Error(), name) {
				t.Errorf("resource %q: %v, want an error that names the field and the rule", outside, err)
			}
			err := look.fence(t.Context(), grant{name: name, id: g.ID, token: int64(g.Token)}, outside)
			if state(err) != "22023" {
				t.Errorf("resource %q in SQL: %v, want 22023", outside, err)
			}
		}
	}
}

// Fences keep old holders out in both directions: one of a lock below once somebody has had the subtree, and one of the
// subtree once somebody has had a lock below. Whoever is late holds a transaction open that has passed the fence.
func TestI3_I4_AFenceKeepsOldHoldersOutAboveAndBelow(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	newLedger(t, db)
	look := newPeer(t, db.URL())
	c, store := newClient(t, pool), fencedstore.New(pool)
	for _, level := range levels {
		for _, old := range []string{"below", "above"} {
			name := uuid.NewString()
			resource := name + "/x"
			late := newPeer(t, db.URL())
			var g grant
			if old == "below" {
				g = late.mustAcquire(t, resource, time.Minute)
			} else {
				g = late.mustSubtree(t, name).grant
			}
			late.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
			must.Do(t, late.fence(t.Context(), g, resource))
			late.exec(t, `INSERT INTO ledger (token, writer) VALUES ($1, 1)`, g.token)
			look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() - interval '1 ms' WHERE grant_id = $1`,
				g.id.String())
			var opts []pglock.AcquireOption
			taken := resource
			if old == "below" {
				taken, opts = name, append(opts, pglock.WithSubtree())
			}
			lease, err := c.Acquire(t.Context(), taken, opts...)
			if err != nil || int64(lease.Token()) <= g.token {
				t.Fatalf("%s, %s: %v after token %d, %v", level, old, lease, g.token, err)
			}
			if _, err := late.Exec(t.Context(), `COMMIT`); err == nil {
				t.Errorf("%s: whoever had the lock %s has committed after token %d was granted", level, old,
					lease.Token())
			} else if s := state(err); s != "LK001" && s != "LK003" && s != "40001" {
				t.Errorf("%s, %s: %v", level, old, err)
			}
			if err := store.Write(t.Context(), fencedstore.Fence{Lease: lease, Resource: resource},
				func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, lease.Token())
					return err
				}); err != nil {
				t.Error(err)
			}
			if s := state(late.fence(t.Context(), g, resource)); s != "LK002" && s != "LK003" && s != "LK001" {
				t.Errorf("%s, %s: the fence answers %q to the old token", level, old, s)
			}
			mustRelease(t, lease)
		}
	}
	wantCount(t, look, 0, "%d rows of old holders", `SELECT count(*) FROM ledger WHERE writer = 1`)
}

// A guarded table with a key accepts a transaction under the fence of a name above, if a subtree's lease has passed it.
func TestGuardsAcceptTheSubtreeAboveARow(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE accounts (id int PRIMARY KEY, balance int)`)
	look.exec(t, `INSERT INTO accounts SELECT n, 0 FROM generate_series(1, 9) n`)
	must.Do(t, fencedstore.GuardTable(t.Context(), pool, "accounts", fencedstore.WithTableKey("id")))
	c, store := newClient(t, pool), fencedstore.New(pool)
	write := func(f fencedstore.Fenced, id int) error {
		return store.Write(t.Context(), f, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = $1`, id)
			return err
		})
	}
	all := mustTry(t, c, "accounts", pglock.WithSubtree())
	for id := range 9 {
		if err := write(fencedstore.Fence{Lease: all, SameToken: true}, id+1); err != nil {
			t.Errorf("row %d under the subtree: %v", id+1, err)
		}
	}
	look.exec(t, `BEGIN`) // its fence comes from a dump, with the ID that this transaction has
	look.exec(t, `UPDATE pglock.fences SET fenced_xact = pg_current_xact_id(),
		advanced_at = transaction_timestamp() - interval '1 us' WHERE resource = 'accounts'`)
	if _, err := look.Exec(t.Context(), `UPDATE accounts SET balance = 1 WHERE id = 1`); state(err) != "LK011" {
		t.Errorf("I3: under the fence of an older transaction: %v, want LK011", err)
	}
	look.exec(t, `ROLLBACK`)
	if err := write(fencedstore.Fence{Lease: all, Resource: "accounts/1", SameToken: true}, 2); !errors.Is(err,
		fencedstore.ErrUnfenced) {
		t.Errorf("%v: the fence of one row has let another be written", err)
	}
	mustRelease(t, all)
	for name, opts := range map[string][]pglock.AcquireOption{
		"accounts": nil, "account": {pglock.WithSubtree()}, "accounts/1": {pglock.WithSubtree()},
		"other": {pglock.WithSubtree()}} {
		l := mustTry(t, c, name, opts...)
		if err := write(l, 5); !errors.Is(err, fencedstore.ErrUnfenced) {
			t.Errorf("row 5 under %q: %v, want it refused", name, err)
		}
		mustRelease(t, l)
	}
	wantCount(t, look, 9, "%d writes, want 9", `SELECT sum(balance) FROM accounts`)
}
