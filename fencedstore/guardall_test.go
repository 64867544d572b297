package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

func TestI11_ManyFencesAreRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	must.Do(t, migrations.Up(t.Context(), b.db.URL(), migrations.WithSchema("second")))
	one, two := b.acquire(t, "one"), b.acquire(t, "two")
	slot := b.acquire(t, "limited", pglock.WithLimit(3))
	likeSlot := b.acquire(t, slot.Resource())
	elsewhere := newBenchOn(t, b.db, pglock.WithSchema("second")).acquire(t, "one")
	released := b.acquire(t, "released")
	release(t, released)
	many := make(fencedstore.Fences, 1001)
	for i := range many {
		many[i] = fencedstore.Fence{Lease: one, Resource: fmt.Sprint(i)}
	}
	of := func(lease *pglock.Lease, resource string) fencedstore.Fence {
		return fencedstore.Fence{Lease: lease, Resource: resource, SameToken: true}
	}
	for what, c := range map[string]struct {
		fences fencedstore.Fences
		is     error
		says   string
	}{
		"none":               {nil, pglock.ErrInvalid, "1 to 1000"},
		"too many":           {many, pglock.ErrInvalid, "1001 long"},
		"no lease":           {fencedstore.Fences{{Lease: one}, {}}, pglock.ErrInvalid, "fences[1]"},
		"one resource twice": {fencedstore.Fences{of(one, "r"), of(two, "r")}, pglock.ErrInvalid, "fences[1].Resource"},
		"one lease twice":    {fencedstore.Fences{of(one, ""), of(one, "")}, pglock.ErrInvalid, "fences[1].Resource"},
		"one resource by its default": {fencedstore.Fences{of(one, ""), of(two, "one")}, pglock.ErrInvalid,
			"fences[1].Resource"},
		"a slot and a lock of its name": {fencedstore.Fences{of(slot, ""), of(likeSlot, "")}, pglock.ErrInvalid,
			"fences[1].Resource"},
		"long resource": {fencedstore.Fences{of(one, ""), of(two, strings.Repeat("x", 513))}, pglock.ErrInvalid,
			"fences[1]"},
		"resource not UTF-8": {fencedstore.Fences{of(one, "\xff")}, pglock.ErrInvalid, "fences[0]"},
		"the same token for one alone": {fencedstore.Fences{of(one, ""), {Lease: two}}, pglock.ErrInvalid,
			"fences[1].SameToken"},
		"released":       {fencedstore.Fences{of(one, ""), of(released, "")}, pglock.ErrReleased, "fences[1]"},
		"another schema": {fencedstore.Fences{of(one, ""), of(elsewhere, "r")}, pglock.ErrWrongDatabase, "fences[1]"},
	} {
		t.Run(what, func(t *testing.T) {
			tx, sqlTx := b.begin(t), b.beginSQL(t)
			for call, err := range map[string]error{
				"Write": b.store.Write(t.Context(), c.fences, func(context.Context, pgx.Tx) error {
					t.Error("the callback was called")
					return nil
				}),
				"Guard":    refused(fencedstore.Guard(t.Context(), tx, c.fences)),
				"GuardSQL": refused(fencedstore.GuardSQL(t.Context(), sqlTx, c.fences)),
			} {
				if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v, want %v that says %q", call, err, c.is, c.says)
				}
			}
			var still int // neither transaction is aborted
			if err := errors.Join(tx.QueryRow(t.Context(), `SELECT 1`).Scan(&still),
				sqlTx.QueryRowContext(t.Context(), `SELECT 1`).Scan(&still)); err != nil {
				t.Error(err)
			}
		})
	}
	fences := fencedstore.Fences{{Lease: one}}
	for call, err := range map[string]error{
		"Guard":                refused(fencedstore.Guard(t.Context(), nil, fences)),
		"GuardSQL":             refused(fencedstore.GuardSQL(t.Context(), nil, fences)),
		"Write without fn":     b.store.Write(t.Context(), fences, nil),
		"Write without a pool": fencedstore.New(nil).Write(t.Context(), fences, nothing),
	} {
		if !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %v", call, err)
		}
	}
	b.wantRows(t, 0, `pglock.fences`)
}

// All three ways pass all fences at once, up to a thousand, whatever the names are.
func TestManyFencesArePassedAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	leases := []*pglock.Lease{b.acquire(t, "one"), b.acquire(t, `it's "odd" \ [,] {} %s 雪 <&>`),
		b.acquire(t, "limited", pglock.WithLimit(3)), b.acquire(t, "limited", pglock.WithLimit(3)),
		b.acquire(t, strings.Repeat("x", 512), pglock.WithShared())}
	var fences fencedstore.Fences
	for i, l := range leases {
		fences = append(fences, fencedstore.Fence{Lease: l},
			fencedstore.Fence{Lease: l, Resource: fmt.Sprint("other of ", i)})
	}
	for i := range 990 {
		fences = append(fences, fencedstore.Fence{Lease: leases[i%len(leases)], Resource: fmt.Sprint("r\\", i)})
	}
	passed := func(way string) {
		t.Helper()
		if n := b.number(t,
			`SELECT count(DISTINCT resource) FROM pglock.fences WHERE fenced_xact = (SELECT max(fenced_xact::text::bigint)::text::xid8 FROM pglock.fences)`); n != 1000 {
			t.Errorf("%s: %d fences were passed by one transaction", way, n)
		}
	}
	must.Do(t, b.store.Write(t.Context(), fences, nothing))
	passed("Write")
	if err := b.store.Write(t.Context(), fences[999:], nothing); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("a token writes once: %v", err)
	}
	for i := range fences {
		fences[i].SameToken = true
	}
	tx := b.begin(t)
	if _, err := fencedstore.Guard(t.Context(), tx, fences); err != nil {
		t.Error(err)
	}
	must.Note(t, tx.Commit(t.Context()))
	passed("Guard")
	sqlTx := b.beginSQL(t)
	if _, err := fencedstore.GuardSQL(t.Context(), sqlTx, fences); err != nil {
		t.Error(err)
	}
	must.Note(t, sqlTx.Commit())
	passed("GuardSQL")
}

// The error is of the fence that the server refused, whatever locks and resources are called.
func TestExplainBlamesTheFenceThatWasRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.acquire(t, "plain")
	// Names that look like what the server says of others.
	other := b.acquire(t, fmt.Sprintf("token %d is stale: token %d ", a.Token(), a.Token()))
	decoy := b.acquire(t, fmt.Sprintf("with token %d is lost: released", a.Token()))
	confusing := b.acquire(t, fmt.Sprintf("token %d token %d token %d ", a.Token(), other.Token(), decoy.Token()))
	fences := fencedstore.Fences{{Lease: a, Resource: `resource\a`}, {Lease: other, Resource: "'plain'"},
		{Lease: confusing, Resource: "c"}, {Lease: decoy, Resource: fmt.Sprintf("token %d ", a.Token())},
		{Lease: a, Resource: "again"}, {Lease: confusing, Resource: "'c'"}}
	quote := func(s string) (quoted string) {
		t.Helper()
		must.Do(t, b.pool.QueryRow(t.Context(), `SELECT quote_literal($1)`, s).Scan(&quoted))
		return quoted
	}
	for i, f := range fences {
		for j := range fences { // in every order
			turned := append(append(fencedstore.Fences{}, fences[j:]...), fences[:j]...)
			for _, last := range []pglock.Token{f.Lease.Token(), decoy.Token(), 1 << 50} {
				var stale *fencedstore.StaleTokenError
				err := fencedstore.Explained(fmt.Errorf("token %d : %w", decoy.Token(),
					&pgconn.PgError{Severity: "ERROR", Code: "LK002", Detail: fmt.Sprint("last_token=", last),
						ConstraintName: f.Resource, ColumnName: fmt.Sprint(f.Lease.Token()),
						Message: fmt.Sprintf("token %d is stale: token %d has passed the fence of %s", f.Lease.Token(),
							last, quote(f.Resource))}), turned)
				if !errors.As(err, &stale) ||
					*stale != (fencedstore.StaleTokenError{Resource: f.Resource, Token: f.Lease.Token(),
						LastToken: last}) {
					t.Errorf("fence %d, turned by %d, is stale by %d: %+v", i, j, last, stale)
				}
			}
			for state, reason := range map[string]string{"LK001": "expired", "LK003": "unknown"} {
				said := reason
				if reason == "unknown" {
					said = fmt.Sprintf("schema pglock of database token %d knows no such grant", decoy.Token())
				}
				var lost *pglock.LostError
				err := fencedstore.Explained(&pgconn.PgError{Severity: "ERROR", Code: state, Detail: "reason=" +
					reason,
					ConstraintName: f.Lease.Name(), ColumnName: fmt.Sprint(f.Lease.Token()),
					Message: fmt.Sprintf("the lease of lock %s with token %d is lost: %s", quote(f.Lease.Name()),
						f.Lease.Token(), said)}, turned)
				if !errors.As(err, &lost) || lost.Lock != f.Lease.Name() || lost.Token != f.Lease.Token() ||
					string(lost.Reason) != reason {
					t.Errorf("fence %d, turned by %d, is lost: %+v", i, j, lost)
				}
			}
		}
	}
	unique := &pgconn.PgError{Code: "23505"}
	for what, err := range map[string]error{"nil": nil, "of the application": unique} {
		if got := fencedstore.Explained(err, fences); got != err { //nolint:errorlint // as it is
			t.Errorf("%s: %v", what, got)
		}
	}
}

func ExampleFences() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close(ctx)
	if _, err := pool.Exec(ctx, "CREATE TABLE accounts (id int PRIMARY KEY, balance int); INSERT INTO accounts "+
		"VALUES (1, 100), (2, 0)"); err != nil {
		fmt.Println(err)
		return
	}
	if err := fencedstore.GuardTable(ctx, pool, "accounts", fencedstore.WithTableKey("id")); err != nil {
		fmt.Println(err)
		return
	}
	from, err := client.Acquire(ctx, "accounts/1")
	if err != nil {
		fmt.Println(err)
		return
	}
	to, err := client.Acquire(ctx, "accounts/2")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = fencedstore.New(pool).Write(ctx, fencedstore.Fences{{Lease: from}, {Lease: to}},
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + CASE id WHEN 1 THEN -60 ELSE 60 END")
			return err
		})
	fmt.Println("transfer:", err)

	if err := to.Release(ctx); err != nil {
		fmt.Println(err)
		return
	}
	err = fencedstore.New(pool).Write(ctx, fencedstore.Fences{{Lease: from}, {Lease: to}},
		func(context.Context, pgx.Tx) error {
			return nil
		})
	fmt.Println("without one of the leases:", errors.Is(err, pglock.ErrReleased))
	// Output:
	// transfer: <nil>
	// without one of the leases: true
}

func TestSealAfterTheEndOfItsTransactionSaysSo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	savepoint := must.Get(b.begin(t).Begin(t.Context()))(t)
	nested, err := fencedstore.Guard(t.Context(), savepoint, b.acquire(t, "nested"))
	if err == nil {
		err = savepoint.Rollback(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	sqlTx := b.beginSQL(t)
	committed, err := fencedstore.GuardSQL(t.Context(), sqlTx, b.acquire(t, "committed"))
	if err == nil {
		err = sqlTx.Commit()
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range map[string]*fencedstore.Guarded{"nested": nested, "committed": committed} {
		if err := g.Seal(t.Context()); err == nil || !strings.Contains(err.Error(), "call Seal as its last statement") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
