package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ownComment marks a schema that Up has created, and that Down may drop.
const ownComment = "pglock: made by migrations.Up"

// refuseGuarded reports the guarded tables all at once; the migration down would refuse them one by one.
func (s session) refuseGuarded(ctx context.Context) error {
	var tables *string
	err := s.conn.QueryRow(ctx, "SELECT string_agg(table_name, ', ') FROM "+s.quoted("list_guards")+"()").Scan(&tables)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && slices.Contains([]string{"42883", "3F000"}, pgErr.Code):
		return nil // there is no schema
	case err != nil:
		return fmt.Errorf("read the guards: %w", err)
	case tables != nil:
		return &GuardedError{Tables: *tables}
	}
	return nil
}

// dropRest removes golang-migrate's table, and also the schema if Up has created it and nothing else is in it.
func (s session) dropRest(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+s.quoted(versionTable)); err != nil {
		return err
	}
	var ours bool
	err := tx.QueryRow(ctx, `SELECT coalesce(obj_description(n.oid, 'pg_namespace') = $2, false)
		AND NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = n.oid)
		AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = n.oid)
		AND NOT EXISTS (SELECT FROM pg_type WHERE typnamespace = n.oid)
		FROM pg_namespace n WHERE nspname = $1`, s.schema, ownComment).Scan(&ours)
	if err == nil && ours {
		_, err = tx.Exec(ctx, "DROP SCHEMA "+pgx.Identifier{s.schema}.Sanitize())
	}
	return err
}
