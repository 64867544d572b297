package peer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// BareSchema has the tables of the bare statements: the columns of a lock as in this library, and no functions. Each
// peer has its own table, so that none meets the row versions of another.
func BareSchema() string {
	sql := `
	CREATE SCHEMA bare;
	CREATE SEQUENCE bare.seq AS bigint CACHE 1;
	CREATE TABLE bare.fences (resource text COLLATE "C" PRIMARY KEY, last_token bigint NOT NULL,
		advanced_at timestamptz NOT NULL) WITH (fillfactor = 50);
	CREATE TABLE bare.waiters (name text COLLATE "C" NOT NULL, ticket bigint GENERATED ALWAYS AS IDENTITY,
		grant_id uuid NOT NULL UNIQUE, session_id uuid NOT NULL, holder text NOT NULL, ttl interval NOT NULL,
		enqueued_at timestamptz NOT NULL, PRIMARY KEY (name, ticket));
	CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
	INSERT INTO accounts SELECT n, 0 FROM generate_series(0, 63) n;`
	for _, table := range []string{"sync", "async", "pgbench", "batched", "queue", "renew", "fenced"} {
		sql += fmt.Sprintf(`
	CREATE TABLE bare.locks_%s (name text COLLATE "C" PRIMARY KEY, holder text NOT NULL, session_id uuid NOT NULL,
		grant_id uuid NOT NULL, token bigint NOT NULL, ttl interval NOT NULL, acquired_at timestamptz NOT NULL,
		renewed_at timestamptz NOT NULL, expires_at timestamptz NOT NULL, metadata jsonb) WITH (fillfactor = 50);`,
			table)
	}
	return sql + `
	CREATE FUNCTION bare.check() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE t bigint; e timestamptz;
	BEGIN
		SELECT token, expires_at INTO t, e FROM bare.locks_fenced WHERE name = NEW.resource FOR KEY SHARE;
		IF t IS DISTINCT FROM NEW.last_token OR e IS NULL OR e <= clock_timestamp() THEN RAISE EXCEPTION 'lost'; END IF;
		RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER fence_commit AFTER INSERT OR UPDATE ON bare.fences
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION bare.check();
	ALTER TABLE bare.fences ENABLE ALWAYS TRIGGER fence_commit;`
}

// addOne is the write of W5.
func addOne(ctx context.Context, tx pgx.Tx, n int) error {
	_, err := tx.Exec(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = $1`, n)
	return err
}
