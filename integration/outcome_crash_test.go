package integration

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// After a crash the server gives out transaction IDs once more whose log was never flushed. Another transaction that
// takes the ID of a write, and commits, is no evidence for the write: it was rolled back, and Write says so.
func TestI17_ACrashThatReusesTheTransactionIDIsNoCommit(t *testing.T) {
	// it has a server of its own
	t.Parallel()
	// nothing is flushed but by a commit
	server := migrated(t, map[string]string{"wal_writer_delay": "10s", "autovacuum": "off",
		"bgwriter_lru_maxpages": "0", "fsync": "on"})
	look := newPeer(t, server.URL())
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	look.exec(t, `CREATE TABLE numbers AS SELECT 0 AS n`)
	c := newClient(t, newPool(t, server.URL()), pglock.WithDefaultTTL(10*time.Minute))
	held, other := mustTry(t, c, "x"), look.mustAcquire(t, "other", 10*time.Minute)
	store := fencedstore.New(newPool(t, server.URL()))
	reused := 0
	for round := range 3 {
		var mine int64
		err := store.Write(t.Context(), fencedstore.Fence{Lease: held, SameToken: true},
			func(ctx context.Context, tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO ledger (token) VALUES ($1)`, held.Token()); err != nil {
					return err
				}
				if err := tx.QueryRow(ctx, `SELECT pg_current_xact_id()::text::bigint`).Scan(&mine); err != nil {
					return err
				}
				if err := server.Kill(); err != nil {
					return err
				}
				if err := server.Restart(ctx); err != nil {
					return err
				}
				look = newPeer(t, server.URL())
				for xact := int64(0); xact < mine; { // one of them renews, as another client would
					if err := look.QueryRow(ctx,
						`SELECT pg_current_xact_id()::text::bigint FROM pglock.renew_leases('{other}', ARRAY[$1::bigint], ARRAY[$2::uuid], '{0}') WHERE outcome = 'renewed'`, other.token, other.id.String()).Scan(&xact); err != nil {
						return err
					}
					if xact == mine {
						reused++
					}
				}
				return nil
			})
		rows := one[int](t, look, `SELECT count(*) FROM ledger`)
		if err == nil || rows != 0 || errors.Is(err, pglock.ErrOutcomeUnknown) {
			t.Fatalf("I17: round %d: Write answered %v, and the ledger has %d rows", round, err, rows)
		}
	}
	if reused == 0 {
		t.Error("no transaction ID was given out twice: this shows nothing")
	}
}
