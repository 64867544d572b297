package fencedstore_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// A receipt that somebody has kept may come to another shard, a restored dump or a wrong pool. There nobody knows the
// write, and whoever took it for one that was rolled back would make it twice.
func TestI17_AReceiptIsRefusedInAnotherDatabase(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	must.Do(t, migrations.Up(t.Context(), b.db.URL(), migrations.WithSchema("beside")))
	lease, tx := b.acquire(t, "job"), b.begin(t)
	guarded := must.Get(fencedstore.Guard(t.Context(), tx, lease, fencedstore.WithReceipt()))(t)
	must.Do(t, tx.Commit(t.Context()))
	var kept fencedstore.Receipt
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(guarded.Receipt()))(t), &kept))
	if home := lease.Export().DatabaseID.String(); !strings.Contains(kept.String(), home) {
		t.Errorf("%v does not name the database %s", kept, home)
	}
	beside := kept
	beside.Schema = "beside"
	for where, c := range map[string]struct {
		in *bench
		r  fencedstore.Receipt
	}{"another database": {other, kept}, "another schema": {b, beside}} {
		byPgx, err := c.in.store.Outcome(t.Context(), c.r)
		bySQL, err2 := fencedstore.NewSQL(c.in.sqlDB).Outcome(t.Context(), c.r)
		for outcome, err := range map[fencedstore.Outcome]error{byPgx: err, bySQL: err2} {
			if outcome != "" || !errors.Is(err, pglock.ErrWrongDatabase) || !strings.Contains(err.Error(), "receipt") {
				t.Errorf("I17: in %s: %q, %v; want an ErrWrongDatabase", where, outcome, err)
			}
		}
		if n := pgtest.One[int](t, c.in.pool, "SELECT count(*) FROM "+c.r.Schema+".receipts"); n != 0 {
			t.Errorf("the questions in %s have left %d receipts there", where, n)
		}
	}
	if outcome, err := b.store.Outcome(t.Context(), kept); outcome != fencedstore.OutcomeCommitted || err != nil {
		t.Errorf("I17: at home: %q, %v", outcome, err)
	}
}

// The keys of another database say nothing of the work here: that one of the same text was done there, or would be
// forgotten there.
func TestAKeyThatIsDoneInAnotherDatabaseIsNoAnswer(t *testing.T) {
	t.Parallel()
	b, other := newBench(t), newBench(t)
	nothing := func(context.Context, pgx.Tx) error { return nil }
	must.Do(t, other.store.Once(t.Context(), other.acquire(t, "job"), "k", nothing))
	lease := b.acquire(t, "job")
	old := other.store.With(fencedstore.WithRetention(time.Now().Add(-time.Hour), time.Second))
	for what, err := range map[string]error{
		"a key that was done there":         other.store.Once(t.Context(), lease, "k", nothing),
		"a key that would be too old there": old.Once(t.Context(), lease, "old", nothing),
	} {
		if !errors.Is(err, pglock.ErrWrongDatabase) || errors.Is(err, pglock.ErrOutcomeUnknown) {
			t.Errorf("%s, under a lease of another database: %v, want an ErrWrongDatabase", what, err)
		}
	}
}
