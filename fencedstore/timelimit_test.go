package fencedstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A statement that takes longer than the TTL is what WithTimeLimit is for. The lease lasts for the time limit from the
// beginning on, renewals do not shorten it, and after the write it has its TTL again.
func TestWorkLongerThanATTLCommitsWithinItsTimeLimit(t *testing.T) {
	t.Parallel()
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE done (way text)`)
	for name, way := range ways {
		if !pgtest.Among(name, "Write", "OnceSQL", "Guard of several", "GuardSQL") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ttl, limit = 4 * time.Second, time.Minute // a TTL in which a busy machine comes to the write
			l := b.acquire(t, name, pglock.WithTTL(ttl))
			err := way(t, b, l, func(ctx context.Context, tx transaction) error {
				if err := tx.exec(ctx, `INSERT INTO done VALUES ($1)`, name); err != nil {
					return err
				}
				for range 2 {
					if left := b.left(t, name); left < limit-6*ttl {
						t.Errorf("the lease has %v left during the transaction, want nearly %v", left, limit)
					}
					if left := time.Until(l.Deadline()); left < limit-6*ttl {
						t.Errorf("the lease is trusted for %v, want nearly %v", left, limit)
					}
					if err := tx.exec(ctx, `SELECT pg_sleep($1)`, ttl.Seconds()/4); err != nil {
						return err
					}
				}
				return tx.exec(ctx, `SELECT pg_sleep($1)`, 1.25*ttl.Seconds())
			}, fencedstore.WithTimeLimit(limit))
			if n := b.number(t, `SELECT count(*) FROM done WHERE way = $1`, name); err != nil || n != 1 {
				t.Fatalf("%v, and %d rows", err, n)
			}
			if !l.Valid() {
				t.Fatalf("the lease is lost: %v", l.Err())
			}
			if isGuard(name) { // nobody tells the end of the transaction
				return
			}
			pgtest.Eventually(t, "the lock is taken and trusted for its TTL again", func() bool {
				return b.left(t, name) <= ttl && time.Until(l.Deadline()) <= ttl
			})
			time.Sleep(ttl + ttl/4) // it is renewed by its TTL again
			if left := b.left(t, name); left <= 0 || left > ttl || !l.Valid() {
				t.Errorf("a TTL and a quarter later the lock is taken for %v, and the holder says %v", left, l.Err())
			}
		})
	}
}

// What a hung holder can cost the next one is the time limit, whichever the way, and the error says which limit that
// was, how long, and how to change it.
func TestI16_TimeLimitEndsWhatTakesLongerAndTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second
	b := newWideBench(t)
	b.exec(t, `CREATE TABLE held AS SELECT 0 AS n`)
	must.Get(b.begin(t).Exec(t.Context(), `UPDATE held SET n = 2`))(t)
	for name, way := range ways {
		for what, c := range map[string]struct {
			do       work
			settings []string
		}{
			"a statement": {sleeps(30), []string{"statement_timeout", "transaction_timeout"}},
			"a pause": {func(ctx context.Context, tx transaction) error {
				time.Sleep(limit + 500*time.Millisecond)
				return tx.exec(context.WithoutCancel(ctx), `SELECT 1`)
			}, []string{"idle_in_transaction_session_timeout", "transaction_timeout", ""}},
			"a lock": {func(ctx context.Context, tx transaction) error {
				ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
				defer cancel()
				return tx.exec(ctx, `UPDATE held SET n = 1`)
			}, []string{"lock_timeout", "statement_timeout", "transaction_timeout"}},
		} {
			for how, ttl := range map[string]time.Duration{"longer than the TTL": 3 * time.Second,
				"shorter than the TTL": time.Hour} {
				switch { // all ways share the rest
				case !tried(name), !pgtest.EveryTest && what != "a statement" && name == "Guard of several":
					continue
				case ttl == time.Hour && (what != "a statement" ||
					name != "Write of several" && name != "WriteSQL of several" && name != "OnceSQL" &&
						name != "GuardSQL"):
					continue
				case what != "a statement" && name != "Write" && name != "WriteSQL" && name != "Guard of several" &&
					name != "GuardSQL":
					continue
				}
				t.Run(name+"/"+what+"/"+how, func(t *testing.T) {
					t.Parallel()
					var err error
					var took time.Duration
					for try := range 3 { // a busy machine may lose a short lease
						l := b.acquire(t, fmt.Sprint(t.Name(), try), pglock.WithTTL(ttl))
						begin := time.Now()
						err, took = way(t, b, l, c.do, fencedstore.WithTimeLimit(limit)), time.Since(begin)
						if ttl > limit || !errors.Is(err, pglock.ErrLost) {
							break
						}
					}
					var late *fencedstore.TimeLimitError
					if !errors.As(err, &late) || !errors.Is(err, fencedstore.ErrTimeLimit) {
						t.Fatalf("%v, want a TimeLimitError", err)
					}
					found := false
					for _, s := range c.settings {
						found = found || late.Setting == s
					}
					if !found || late.Limit != limit || !late.Given {
						t.Errorf("%+v, want one of %q after %v", late, c.settings, limit)
					}
					wants := []string{late.Setting, limit.String(), "WithTimeLimit"}
					if late.Wait != nil || late.Setting == "lock_timeout" { // more time would not have helped
						wants[2] = "nothing was written"
					}
					if late.Setting == "idle_in_transaction_session_timeout" {
						wants = append(wants, "the program stood still")
					}
					for _, want := range wants {
						if !strings.Contains(err.Error(), want) {
							t.Errorf("%q does not say %q", err, want)
						}
					}
					if took > 20*time.Second {
						t.Errorf("it took %v", took)
					}
				})
			}
		}
	}
}
