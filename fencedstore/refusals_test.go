package fencedstore_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func TestErrorsAnswerForTheirSentinels(t *testing.T) {
	t.Parallel()
	cause := errors.New("connection reset")
	receipt := fencedstore.Receipt{Write: uuid.MustParse("0000002a-0000-4000-8000-000000000000")}
	for _, tc := range []struct {
		err, is error
		says    []string
	}{
		{&fencedstore.StaleTokenError{Resource: "r", Token: 3, LastToken: 7}, fencedstore.ErrStaleToken,
			[]string{`"r"`, "3", "7"}},
		{&fencedstore.StaleTokenError{Resource: "r", Token: 3, LastToken: 3}, fencedstore.ErrStaleToken,
			[]string{`"r"`, "3", "SameToken"}},
		{&fencedstore.OutcomeUnknownError{Receipt: receipt, Err: cause}, pglock.ErrOutcomeUnknown,
			[]string{"0000002a", "reset"}},
		{&fencedstore.OutcomeUnknownError{Err: cause}, cause, nil},
	} {
		if !errors.Is(tc.err, tc.is) {
			t.Errorf("%v is not %v", tc.err, tc.is)
		}
		for _, s := range tc.says {
			if !strings.Contains(tc.err.Error(), s) {
				t.Errorf("%q does not say %q", tc.err, s)
			}
		}
	}
}

// exported is the grant ID as Export tells it.
func exported(l *pglock.Lease) uuid.UUID { return l.Export().ID }

func TestExplainTranslatesTheServersRefusalsAlone(t *testing.T) {
	t.Parallel()
	l := newBench(t).acquire(t, "report")
	other := errors.New("something else")
	unique, denied := &pgconn.PgError{Code: "23505"}, &pgconn.PgError{Code: "42501"}
	for _, tc := range []struct{ err, want error }{
		{nil, nil}, {other, other}, {unique, unique},
		{&pgconn.PgError{Code: "LK001"}, pglock.ErrLost},
		{&pgconn.PgError{Code: "LK003", Detail: "reason=broken"}, pglock.ErrLost},
		{&pgconn.PgError{Code: "LK002", Detail: "last_token=9"}, fencedstore.ErrStaleToken},
		{&pgconn.PgError{Code: "LK007"}, pglock.ErrWrongDatabase},
		{&pgconn.PgError{Code: "LK009"}, fencedstore.ErrLeftFence},
		{denied, denied},
	} {
		if got := fencedstore.Explained(tc.err, l); !errors.Is(got, tc.want) || tc.err == tc.want && got != tc.err {
			t.Errorf("Explain(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
	var lost *pglock.LostError
	err := fencedstore.Explained(&pgconn.PgError{Code: "LK003", Detail: "reason=broken"}, l)
	if !errors.As(err, &lost) || lost.Reason != pglock.ReasonBroken {
		t.Errorf("%v does not tell the reason", err)
	}
	var stale *fencedstore.StaleTokenError
	err = fencedstore.Explained(&pgconn.PgError{Code: "LK002", Detail: "last_token=9"}, l)
	if !errors.As(err, &stale) || stale.LastToken != 9 {
		t.Errorf("%v does not tell the token", err)
	}
	for _, none := range []*fencedstore.Guarded{nil, new(fencedstore.Guarded)} {
		if err := none.Explain(unique); !errors.Is(err, unique) || none.Receipt() != (fencedstore.Receipt{}) {
			t.Errorf("without Guard: %v, and a receipt %v", err, none.Receipt())
		}
	}
}

func TestOutcomeTellsWhatBecameOfATransactionUnderAnySearchPath(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(t, `CREATE SCHEMA hostile;
		CREATE FUNCTION hostile.op(text, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE OPERATOR hostile.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.op);
		CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.op)`)
	store := fencedstore.New(b.db.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["search_path"] = "hostile, pg_catalog"
	}))
	l := b.acquire(t, "report")
	transaction := func(r fencedstore.Receipt) pgx.Tx {
		tx := b.begin(t)
		if _, err := tx.Exec(t.Context(), "SELECT pglock.fence($1, $2, $3, p_allow_same_token => true, p_receipt_id "+
			"=> $4, p_write_id => $5)",
			l.Name(), int64(l.Token()), exported(l), r.ID, r.Write); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	want := func(r fencedstore.Receipt, want fencedstore.Outcome) {
		t.Helper()
		if got, err := store.Outcome(t.Context(), r); err != nil || got != want {
			t.Errorf("Outcome = %q, %v; want %q", got, err, want)
		}
	}
	receipt := func(id uuid.UUID) fencedstore.Receipt {
		return fencedstore.Receipt{DatabaseID: l.Export().DatabaseID, Schema: "pglock", ID: id, Write: uuid.New()}
	}
	first := receipt(uuid.New())
	must.Do(t, transaction(first).Commit(t.Context()))
	want(first, fencedstore.OutcomeCommitted)
	want(first, fencedstore.OutcomeCommitted)                // asking changes nothing
	want(receipt(uuid.New()), fencedstore.OutcomeRolledBack) // lost in a failover
	want(receipt(first.ID), fencedstore.OutcomeRolledBack)   // another write than the one that left it
	for _, row := range []uuid.UUID{first.ID, uuid.New()} {
		open := receipt(row)
		tx := transaction(open)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if got, err := store.Outcome(ctx, open); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Outcome of an open transaction = %q, %v; want the end of ctx", got, err)
		}
		cancel()
		must.Do(t, tx.Rollback(t.Context()))
		want(open, fencedstore.OutcomeRolledBack)
	}
}

// A helper and the application's own code may both explain one error.
func TestExplainingTwiceIsExplainingOnce(t *testing.T) {
	t.Parallel()
	l := newBench(t).acquire(t, "report")
	for _, code := range []string{"LK001", "LK002", "LK003", "LK007", "LK009", "LK011", "LK012", "42501", "25006",
		"3F000", "22023", "23505"} {
		once := fencedstore.Explained(&pgconn.PgError{Code: code, Message: "m"}, l)
		if twice := fencedstore.Explained(once, l); twice.Error() != once.Error() {
			t.Errorf("%s: %q, and explained again %q", code, once, twice)
		}
	}
}

// An option that a call has no use for is refused, not left out in silence.
func TestI11_OptionsThatDoNotApplyAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l, store, tx := b.acquire(t, "report"), b.store, b.begin(t)
	nothing := func(context.Context, pgx.Tx) error { t.Error("called"); return nil }
	serializable := fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})
	keep := fencedstore.WithRetention(time.Now(), time.Hour)
	for what, call := range map[string]struct {
		err   error
		field string
	}{
		"transaction of Guard": {refused(fencedstore.Guard(t.Context(), tx, l, serializable)), "WithTxOptions"},
		"none of Guard": {refused(fencedstore.Guard(t.Context(), tx, l, fencedstore.WithTxOptions(pgx.TxOptions{}))),
			"WithTxOptions"},
		"transaction of Guard with several": {refused(fencedstore.Guard(t.Context(), tx, fencedstore.Fences{{Lease: l}},
			serializable)), "WithTxOptions"},
		"WithReceipt of Write": {store.With(fencedstore.WithReceipt()).Write(t.Context(), l, nothing), "WithReceipt"},
		"WithKey of Write":     {store.With(fencedstore.WithKey("k")).Write(t.Context(), l, nothing), "WithKey"},
		"WithKey of Once":      {store.With(fencedstore.WithKey("k")).Once(t.Context(), l, "k", nothing), "WithKey"},
		"no option":            {store.With(nil).Write(t.Context(), l, nothing), "option"},
		"a bad one before good ones": {store.With(fencedstore.WithTimeLimit(0)).With(fencedstore.WithTimeLimit(
			time.Second)).Write(t.Context(), l, nothing), "time limit"},
		"no store": {new(fencedstore.Store).With().Write(t.Context(), l, nothing), "store"},
		"nil store": {(*fencedstore.SQLStore)(nil).With().Write(t.Context(), l,
			func(context.Context, *sql.Tx) error { t.Error("called"); return nil }), "store"},
		"two fences of Once": {store.Once(t.Context(), fencedstore.Fences{{Lease: l}, {Lease: l, Resource: "r"}}, "k",
			nothing), "fences"},
		"two fences of Guard with a key": {refused(fencedstore.Guard(t.Context(), tx,
			fencedstore.Fences{{Lease: l}, {Lease: l, Resource: "r"}}, fencedstore.WithKey("k"))), "fences"},
		"WithRetention of Write": {store.With(keep).Write(t.Context(), l, nothing), "WithRetention"},
		"WithRetention of several": {store.With(keep).Write(t.Context(), fencedstore.Fences{{Lease: l}}, nothing),
			"WithRetention"},
		"WithRetention of Guard": {refused(fencedstore.Guard(t.Context(), tx, l, keep)), "WithRetention"},
		"read only": {store.With(fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadOnly})).Write(t.Context(),
			l, nothing), "access mode"},
		"no level": {store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: "nonsense; commit"})).Write(
			t.Context(), l, nothing), "isolation level"},
		"no access mode": {store.With(fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: "nonsense"})).Write(
			t.Context(), l, nothing), "access mode"},
		"no deferrable mode": {store.With(fencedstore.WithTxOptions(pgx.TxOptions{DeferrableMode: "nonsense"})).Write(
			t.Context(), l, nothing), "deferrable mode"},
		"nil transaction":     {refused(fencedstore.Guard(t.Context(), (*pgxpool.Tx)(nil), l)), "tx"},
		"nil SQL transaction": {refused(fencedstore.GuardSQL(t.Context(), (*sql.Tx)(nil), l)), "tx"},
		"Seal without Guard":  {new(fencedstore.Guarded).Seal(t.Context()), "guarded"},
		"Seal of nil":         {(*fencedstore.Guarded)(nil).Seal(t.Context()), "guarded"},
	} {
		var bad *pglock.ArgumentError
		if !errors.As(call.err, &bad) || !errors.Is(call.err, pglock.ErrInvalid) || bad.Field != call.field {
			t.Errorf("%s: %v, want an ArgumentError for %s", what, call.err, call.field)
		}
	}
}

// A transaction that may only read is named as one possible reason: the server's refusal is the same as on a standby.
func TestGuardOfAReadOnlyTransactionNamesTheTransaction(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "report")
	tx, err := b.pool.BeginTx(t.Context(), pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // nothing to keep
	err = refused(fencedstore.Guard(t.Context(), tx, l))
	if !errors.Is(err, pglock.ErrReadOnly) || !strings.Contains(err.Error(), "the transaction itself is READ ONLY") {
		t.Errorf("%v, want an ErrReadOnly that names the transaction", err)
	}
}

// Outcome asks again where that can help. It does not where everybody would get the same answer for ever.
func TestOutcomeEndsWhenAskingAgainCannotHelp(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	receipt := fencedstore.Receipt{DatabaseID: uuid.New(), Schema: "pglock", ID: uuid.New(), Write: uuid.New()}
	without := func(change func(*fencedstore.Receipt)) fencedstore.Receipt {
		r := receipt
		change(&r)
		return r
	}
	pool := func(change func(*pgxpool.Config)) *pgxpool.Pool { return database.Pool(t, change) }
	closed := pool(func(*pgxpool.Config) {})
	closed.Close()
	plain := pool(func(*pgxpool.Config) {})
	for name, c := range map[string]struct {
		pool    *pgxpool.Pool
		receipt fencedstore.Receipt
		says    string
	}{
		"closed pool":    {closed, receipt, "closed"},
		"no database":    {pool(func(c *pgxpool.Config) { c.ConnConfig.Database = "nothing_here" }), receipt, "3D000"},
		"no such schema": {plain, without(func(r *fencedstore.Receipt) { r.Schema = "nothing_here" }), "3F000"},
		"empty receipt":  {plain, fencedstore.Receipt{}, "receipt"},
		"no schema":      {plain, without(func(r *fencedstore.Receipt) { r.Schema = "" }), "receipt"},
		"no row":         {plain, without(func(r *fencedstore.Receipt) { r.ID = uuid.Nil }), "receipt"},
		"no write":       {plain, without(func(r *fencedstore.Receipt) { r.Write = uuid.Nil }), "receipt"},
		"of no database": {plain, without(func(r *fencedstore.Receipt) { r.DatabaseID = uuid.Nil }),
			"receipt.DatabaseID"},
		"of another database": {plain, receipt, "belongs to another database"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			db := stdlib.OpenDBFromPool(c.pool)
			defer db.Close()
			if c.pool == closed {
				_ = db.Close()
			}
			_, byPgx := fencedstore.New(c.pool).Outcome(ctx, c.receipt)
			_, bySQL := fencedstore.NewSQL(db).Outcome(ctx, c.receipt)
			for _, err := range []error{byPgx, bySQL} {
				if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), c.says) ||
					strings.HasPrefix(c.says, "receipt") != errors.Is(err, pglock.ErrInvalid) {
					t.Errorf("%v, want an error that says %q", err, c.says)
				}
			}
		})
	}
}

// A store with options is another one: whoever shares a store gives it no options by mistake.
func TestWithLeavesTheStoreAsItIs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "report")
	level := func(store *fencedstore.Store) (level string) {
		t.Helper()
		fence := fencedstore.Fence{Lease: l, SameToken: true}
		if err := store.Write(t.Context(), fence, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, "SELECT current_setting('transaction_isolation')").Scan(&level)
		}); err != nil {
			t.Error(err)
		}
		return level
	}
	with := b.store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable}))
	both := with.With(fencedstore.WithTimeLimit(time.Minute))
	_ = with.With(fencedstore.WithTimeLimit(0)) // refused
	for store, want := range map[*fencedstore.Store]string{b.store: "read committed", with: "serializable",
		both: "serializable"} {
		if got := level(store); got != want {
			t.Errorf("a write at %s, want %s", got, want)
		}
	}
}
