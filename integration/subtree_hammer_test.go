package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// Several clients take locks and subtrees of all kinds at once. Whoever holds something writes it down, then looks for
// what excludes it, and then crosses it out: of two at least one would see the other.
func TestI1_NobodyOverlapsInATree(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	look.exec(t, `CREATE TABLE inside (who int PRIMARY KEY, name text COLLATE "C", subtree bool, mode text)`)
	ctx := underLoad(t, 10*time.Second, look, `SELECT coalesce(sum(grants), 0) > 20 FROM pglock.locks`)
	const workers = 8
	over := make(chan error, workers)
	for w := range workers {
		pool := db.Pool(t)
		c := newClient(t, pool, pglock.WithDefaultTTL(2*time.Second))
		r := rand.New(rand.NewPCG(uint64(w), 7))
		go func() {
			for ctx.Err() == nil {
				if err := hammerTree(ctx, c, pool, w, r); err != nil {
					over <- err
					return
				}
			}
			over <- nil
		}()
	}
	for range workers {
		must.Note(t, <-over)
	}
	t.Log(one[string](t, look, `SELECT string_agg(concat_ws(' ', name, slot, grants), ', ') FROM pglock.locks`))
	pgtest.Eventually(t, "every ticket to be taken back", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pglock.waiters`) == 0
	})
}

// hammerTree takes one lock of a tree, and now and then another one below it.
func hammerTree(ctx context.Context, c *pglock.Client, pool *pgxpool.Pool, w int, r *rand.Rand) error {
	name := []string{"t", "t/a", "t/a/1", "t/a/2", "t/b", "t/b/1"}[r.IntN(6)]
	kinds := []string{"exclusive", "exclusive", "shared", "limit", "exclusive subtree", "shared subtree"}
	kind := kinds[r.IntN(6)]
	if r.IntN(2) == 0 && len(name) < 5 {
		kind = kinds[4+r.IntN(2)]
	}
	opts := kindsOfLeases[kind]
	wait, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(300))*time.Millisecond)
	defer cancel()
	var l *pglock.Lease
	var err error
	if r.IntN(3) == 0 {
		l, err = c.TryAcquire(ctx, name, opts...)
	} else {
		l, err = c.Acquire(wait, name, opts...)
	}
	switch {
	case errors.Is(err, pglock.ErrHeld), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return nil
	case err != nil:
		return err
	}
	beside := context.WithoutCancel(ctx)
	if l.Subtree() && r.IntN(3) == 0 {
		inner, err := c.Acquire(l.Context(), l.Name()+"/1", pglock.WithShared())
		if err == nil {
			err = inner.Release(beside)
		}
		if err != nil && !errors.Is(err, pglock.ErrLost) && !errors.Is(err, context.Canceled) {
			return fmt.Errorf("below its own subtree: %w", err)
		}
	}
	return holdTree(beside, pool, l, w)
}

// holdTree writes down that somebody is inside, looks who else is, and releases the lock.
func holdTree(ctx context.Context, pool *pgxpool.Pool, l *pglock.Lease, w int) error {
	if _, err := pool.Exec(ctx, `INSERT INTO inside VALUES ($1, $2, $3, $4)`, w, l.Name(), l.Subtree(),
		string(l.Mode())); err != nil {
		return err
	}
	rows := ""
	if err := pool.QueryRow(ctx, `SELECT coalesce(string_agg(concat_ws(' ', o.name, o.subtree, o.mode), ', '), '')
		FROM inside o, inside i WHERE i.who = $1 AND o.who <> $1 AND NOT (i.mode = 'shared' AND o.mode = 'shared')
			AND (i.subtree AND starts_with(o.name, i.name || '/') OR o.subtree AND starts_with(i.name, o.name || '/')
				OR i.name = o.name AND NOT (i.mode = 'limit' AND o.mode = 'limit'))`, w).Scan(&rows); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, `DELETE FROM inside WHERE who = $1`, w); err != nil {
		return err
	}
	if rows != "" && l.Valid() {
		return fmt.Errorf("I1: %s (subtree %v, %s) is held beside %s", l.Name(), l.Subtree(), l.Mode(), rows)
	}
	return l.Release(ctx)
}
