package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

func TestEverythingWorksInADatabaseOfAnotherEncoding(t *testing.T) {
	t.Parallel()
	for encoding, prefix := range map[string]string{"LATIN1": "größe/", "SQL_ASCII": "größe/", "EUC_JP": "鍵/"} {
		if !pgtest.Among(encoding, "LATIN1", "SQL_ASCII") {
			continue
		}
		t.Run(encoding, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.EncodedDatabase(t, encoding).Pool(t)
			exercise(t, pool, "pglock")
			c := startClient(t, pool, pglock.WithDefaultTTL(time.Minute))
			changes := watching(t.Context(), startClient(t, pool), prefix+"b")
			hear(t, changes, pglock.ChangeState, 0, false)
			a, b := mustAcquire(t, c, prefix+"a"), mustAcquire(t, c, prefix+"b")
			hear(t, changes, pglock.ChangeGranted, b.Token(), true)
			mustAcquire(t, c, "zzz")
			if err := fencedstore.New(pool).Write(t.Context(), a, func(context.Context, pgx.Tx) error {
				return nil
			}); err != nil {
				t.Error(err)
			}
			checkPrefix(t, newAdmin(t, pool), c, prefix)
		})
	}
}

// checkPrefix finds two locks, one fence and one waiter with the prefix, which are a and b below it.
func checkPrefix(t *testing.T, admin *lockadmin.Admin, c *pglock.Client, prefix string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	waited := must.Go(func() error { _, err := c.Acquire(ctx, prefix+"b"); return err })
	defer func() {
		cancel()
		<-waited
	}()
	pgtest.Eventually(t, "the waiter", func() bool {
		waiters := must.Get(lists.All(admin.Waiters(ctx, lockadmin.WaitersQuery{Prefix: prefix})))(t)
		return len(waiters) == 1 && waiters[0].Lock == prefix+"b"
	})
	locks, err := lists.All(admin.Locks(ctx, lockadmin.LocksQuery{Prefix: prefix}))
	if err != nil || len(locks) != 2 || locks[0].Name != prefix+"a" || locks[1].Name != prefix+"b" {
		t.Errorf("Locks = %+v, %v", locks, err)
	}
	fences, err := lists.All(admin.Fences(ctx, lockadmin.FencesQuery{Prefix: prefix}))
	if err != nil || len(fences) != 1 || fences[0].Resource != prefix+"a" {
		t.Errorf("Fences = %+v, %v", fences, err)
	}
	if e, err := admin.Explain(ctx, prefix+"b"); err != nil || len(e.Holders) != 1 {
		t.Errorf("Explain = %+v, %v", e, err)
	}
}

// A program over a connection of the same encoding can give a name that is not UTF-8.
func TestNameThatIsNotUTF8BreaksNoListOfADatabaseWithoutEncoding(t *testing.T) {
	t.Parallel()
	raw := pgtest.EncodedDatabase(t, "SQL_ASCII").Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["client_encoding"] = "SQL_ASCII"
	})
	c, admin := startClient(t, raw), newAdmin(t, raw)
	const name = "caf\xe9"
	if _, err := raw.Exec(t.Context(),
		"SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'h', '1 h')", name); err != nil {
		t.Fatal(err)
	}
	mustAcquire(t, c, "größe")
	if locks, err := lists.All(admin.Locks(t.Context(), lockadmin.LocksQuery{})); err != nil || len(locks) != 2 {
		t.Errorf("Locks = %+v, %v", locks, err)
	}
	var held bool
	if err := raw.QueryRow(t.Context(), "SELECT held FROM pglock.get_lock($1)", name).Scan(&held); err != nil || !held {
		t.Errorf("get_lock: %v, %v", held, err)
	}
	const digests = `SELECT pglock.watch_channel('größe') = 'pglock_w' || left(encode(sha256(
		'\x6772c3b6c39f65'), 'hex'), 40)`
	var same bool
	for _, pool := range []*pgxpool.Pool{raw, pgtest.Database(t).Pool(t)} {
		if err := pool.QueryRow(t.Context(), digests).Scan(&same); err != nil || !same {
			t.Errorf("the channel is that of the name's bytes: %v, %v", same, err)
		}
	}
}
