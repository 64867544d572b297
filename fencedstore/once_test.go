package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

func TestI11_OnceRefusesBadInputBeforeItCallsAnything(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	now := time.Now()
	called := func(context.Context, pgx.Tx) error {
		t.Error("the work was done")
		return nil
	}
	plain := fencedstore.WithTimeLimit(time.Minute)
	const century = 100 * 365 * 24 * time.Hour
	for what, c := range map[string]struct {
		store  *fencedstore.Store
		fenced fencedstore.Fenced
		key    string
		fn     func(context.Context, pgx.Tx) error
		opt    fencedstore.Option
		says   string
	}{
		"nil store":           {nil, l, "k", called, plain, "store"},
		"nil pool":            {fencedstore.New(nil), l, "k", called, plain, "pool"},
		"nil lease":           {b.store, fencedstore.Fence{}, "k", called, plain, "lease"},
		"no work":             {b.store, l, "k", nil, plain, "fn"},
		"empty key":           {b.store, l, "", called, plain, "key"},
		"long key":            {b.store, l, strings.Repeat("x", 513), called, plain, "513"},
		"key not UTF-8":       {b.store, l, "a\xff", called, plain, "key is \"a\\xff\": it must be valid UTF-8"},
		"key with NUL":        {b.store, l, "a\x00", called, plain, "key is \"a\\x00\": it must have no NUL byte"},
		"nil option":          {b.store, l, "k", called, nil, "option"},
		"moment that is none": {b.store, l, "k", called, fencedstore.WithRetention(time.Time{}, time.Hour), "of"},
		"kept for nothing":    {b.store, l, "k", called, fencedstore.WithRetention(now, 0), "retention"},
		"kept for no time":    {b.store, l, "k", called, fencedstore.WithRetention(now, -time.Hour), "retention"},
		"kept for too short":  {b.store, l, "k", called, fencedstore.WithRetention(now, time.Second-1), "retention"},
		"kept for too long":   {b.store, l, "k", called, fencedstore.WithRetention(now, century+1), "retention"},
		"moment before Christ": {b.store, l, "k", called,
			fencedstore.WithRetention(time.Date(-44, 3, 15, 0, 0, 0, 0, time.UTC), century), "of"},
		"moment out of range": {b.store, l, "k", called,
			fencedstore.WithRetention(time.Date(294276, 12, 31, 0, 0, 0, 0, time.UTC), century), "of"},
		"long resource": {b.store, fencedstore.Fence{Lease: l, Resource: strings.Repeat("x", 513)}, "k", called, plain,
			"resource"},
	} {
		t.Run(what, func(t *testing.T) {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("panics: %v", r)
				}
			}()
			err := c.store.With(c.opt).Once(t.Context(), c.fenced, c.key, c.fn)
			if !errors.Is(err, pglock.ErrInvalid) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want ErrInvalid that says %q", err, c.says)
			}
		})
	}
	if n := b.number(t,
		`SELECT (SELECT count(*) FROM pglock.done_keys) + (SELECT count(*) FROM pglock.fences)`); n != 0 {
		t.Errorf("I11: refused calls have left %d keys and fences", n)
	}
}

// The ends of what is allowed work.
func TestOnceTakesTheLongestKeyAndTheLongestTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	plain := fencedstore.WithTimeLimit(time.Minute)
	for what, c := range map[string]struct {
		key string
		opt fencedstore.Option
	}{
		"one byte":     {"k", plain},
		"512 bytes":    {strings.Repeat("é", 256), plain},
		"odd key":      {`it's "quoted" \ %s 雪` + "\n", plain},
		"one second":   {"second", fencedstore.WithRetention(time.Now().Add(time.Minute), time.Second)},
		"100 years":    {"century", fencedstore.WithRetention(time.Now(), 100*365*24*time.Hour)},
		"long ago":     {"1926", fencedstore.WithRetention(time.Now().AddDate(-99, 0, 0), 100*365*24*time.Hour)},
		"in the year":  {"9999", fencedstore.WithRetention(time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Second)},
		"another zone": {"zone", fencedstore.WithRetention(time.Now().In(time.FixedZone("x", 5*3600+1800)), time.Hour)},
	} {
		if err := b.store.With(c.opt).Once(t.Context(), l, c.key, nothing); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := b.store.With(c.opt).Once(t.Context(), l, c.key, nothing); !errors.Is(err, fencedstore.ErrDone) {
			t.Errorf("%s, again: %v", what, err)
		}
	}
	if n := b.number(t,
		`SELECT count(*) FROM pglock.done_keys WHERE key = 'zone' AND abs(extract(epoch FROM keep_until - now()) - 3600) < 60`); n != 1 {
		t.Error("a moment of another time zone is kept for another time")
	}
}

func TestDoneErrorSaysWhenAndUnderWhichGrant(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, second := b.acquire(t, "first"), b.acquire(t, "second")
	before := b.number(t, `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`)
	var after int // it says when the write began, not when it was committed
	work := func(context.Context, pgx.Tx) error {
		after = b.number(t, `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint FROM pg_sleep(0.001)`)
		return nil
	}
	must.Do(t, b.store.Once(t.Context(), first, "invoice 7", work))
	err := b.store.Once(t.Context(), second, "invoice 7", nothing)
	var done *fencedstore.DoneError
	if !errors.Is(err, fencedstore.ErrDone) || !errors.As(err, &done) {
		t.Fatal(err)
	}
	if done.Key != "invoice 7" || done.Lock != "first" || done.Token != first.Token() ||
		done.At.Location() != time.UTC ||
		done.At.UnixMilli() < int64(before) || done.At.UnixMilli() > int64(after) {
		t.Errorf("%+v, want the grant of lock first with token %d between %d and %d", done, first.Token(), before,
			after)
	}
	for _, says := range []string{`"invoice 7"`, `"first"`, fmt.Sprint("token ", first.Token()), "began at " +
		done.At.Format(time.RFC3339)} {
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%v: no %s", err, says)
		}
	}
	for _, other := range []error{fencedstore.ErrStaleToken, fencedstore.ErrKeyTooOld, fencedstore.ErrLeftFence,
		pglock.ErrLost, pglock.ErrInvalid} {
		if errors.Is(err, other) {
			t.Errorf("%v is %v too", err, other)
		}
	}
}

// Whoever lost the lease hears so, and so does who comes too late for a fence; nothing is noted.
func TestI3_I4_OnceIsAFencedWrite(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	low, high := b.acquire(t, "low"), b.acquire(t, "high")
	must.Do(t, b.store.Once(t.Context(), fencedstore.Fence{Lease: high, Resource: "r"}, "a", nothing))
	var stale *fencedstore.StaleTokenError
	err := b.store.Once(t.Context(), fencedstore.Fence{Lease: low, Resource: "r"}, "b", nothing)
	if !errors.As(err, &stale) ||
		*stale != (fencedstore.StaleTokenError{Resource: "r", Token: low.Token(), LastToken: high.Token()}) {
		t.Errorf("I3: a stale token: %v", err)
	}
	broken := b.acquire(t, "broken")
	err = b.store.Once(t.Context(), broken, "b", func(context.Context, pgx.Tx) error {
		b.exec(t, `SELECT pglock.break_lock('broken', 'test', 'test')`)
		return nil
	})
	var lost *pglock.LostError
	if !errors.As(err, &lost) || lost.Lock != "broken" || lost.Token != broken.Token() ||
		lost.Reason != pglock.ReasonBroken {
		t.Errorf("I4: broken before COMMIT: %v", err)
	}
	boom := errors.New("boom")
	err = b.store.Once(t.Context(), high, "b", func(context.Context, pgx.Tx) error { return boom })
	if err != boom { //nolint:errorlint // as it is
		t.Errorf("the work's own error: %v", err)
	}
	err = b.store.Once(t.Context(), high, "b", inTx(does("COMMIT; BEGIN")))
	if !errors.Is(err, fencedstore.ErrLeftFence) {
		t.Errorf("a callback that commits: %v", err)
	}
	b.wantRows(t, 1, `pglock.done_keys WHERE key = 'b'`) // by its own COMMIT
	release(t, high)
	if err := b.store.Once(t.Context(), high, "c", nothing); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a released lease: %v", err)
	}
	b.wantRows(t, 2, `pglock.done_keys`)
}

// A key that this very transaction has noted is not done: it may still be rolled back, and whoever took the key for
// done would never do its work. Once it is committed, others hear that it is done.
func TestAKeyOfThisVeryTransactionIsNotDone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	const again = "it must be new to the transaction"
	want := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, pglock.ErrInvalid) || errors.Is(err, fencedstore.ErrDone) || code(err) != "22023" ||
			!strings.Contains(err.Error(), again) {
			t.Errorf("%s: %v, want an ErrInvalid that says %q", what, err, again)
		}
	}
	want("Guard inside Once", b.store.Once(t.Context(), l, "inside", func(ctx context.Context, tx pgx.Tx) error {
		return refused(fencedstore.Guard(ctx, tx, l, fencedstore.WithKey("inside")))
	}))
	b.wantRows(t, 0, `pglock.done_keys`)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		begin := func() pgx.Tx {
			tx := must.Get(b.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level}))(t)
			t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
			return tx
		}
		guard := func(tx pgx.Tx) error {
			return refused(fencedstore.Guard(t.Context(), tx, l, fencedstore.WithKey(string(level))))
		}
		twice := begin()
		must.Do(t, guard(twice))
		want(fmt.Sprint(level, ", twice"), guard(twice))
		must.Do(t, twice.Rollback(t.Context()))
		kept := begin()
		inner := must.Get(kept.Begin(t.Context()))(t)
		must.Do(t, guard(inner))
		must.Do(t, inner.Commit(t.Context()))
		want(fmt.Sprint(level, ", once in a savepoint"), guard(kept))
		must.Do(t, kept.Rollback(t.Context()))
		undone := begin()
		inner = must.Get(undone.Begin(t.Context()))(t)
		must.Do(t, guard(inner))
		must.Do(t, inner.Rollback(t.Context()))
		must.Do(t, guard(undone)) // the savepoint has taken the note back
		must.Do(t, undone.Commit(t.Context()))
		later := begin()
		if err := guard(later); !errors.Is(err, fencedstore.ErrDone) {
			t.Errorf("%s, committed: %v, want ErrDone", level, err)
		}
		must.Do(t, later.Rollback(t.Context()))
	}
	tx := b.begin(t)
	for n, state := range []string{"", "22023"} {
		_, err := tx.Exec(t.Context(), `SELECT pglock.once('sql', $1, $2, $3)`, l.Name(), int64(l.Token()),
			l.Export().ID.String())
		if code(err) != state {
			t.Errorf("in SQL, call %d: %v, want SQLSTATE %q", n, err, state)
		}
	}
	b.wantRows(t, 3, `pglock.done_keys`)
}

func ExampleStore_Once() {
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
	if _, err := pool.Exec(ctx, "CREATE TABLE payments (invoice int, amount int)"); err != nil {
		fmt.Println(err)
		return
	}
	lease, err := client.Acquire(ctx, "invoices")
	if err != nil {
		fmt.Println(err)
		return
	}
	// The message is delivered twice.
	for range 2 {
		err := fencedstore.New(pool).Once(ctx, lease, "pay invoice 7", func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO payments VALUES (7, 100)")
			return err
		})
		fmt.Println("done before:", errors.Is(err, fencedstore.ErrDone))
	}
	var paid int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM payments").Scan(&paid); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("payments:", paid)
	// Output:
	// done before: false
	// done before: true
	// payments: 1
}

// A write that was refused before it began leaves its receipt's row to the next one.
func TestRefusedWritesUseTheRowOfTheirReceiptAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	l := b.acquire(t, "job")
	for n := range 20 {
		for again := range 2 {
			err := b.store.Once(t.Context(), l, fmt.Sprint(n), nothing)
			if again == 0 && err != nil || again == 1 && !errors.Is(err, fencedstore.ErrDone) {
				t.Fatal(err)
			}
		}
	}
	b.wantRows(t, 1, `pglock.receipts`)
}
