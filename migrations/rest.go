package migrations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ownComment marks a schema that Up has created, and that Down may drop.
const ownComment = "pglock: made by migrations.Up"

// refuseGuarded reports the guarded tables all at once; the migration down would refuse them one by one.
func (s session) refuseGuarded(ctx context.Context) error {
	var tables *string
	err := s.conn.QueryRow(ctx, "SELECT string_agg(table_name, ', ') FROM "+s.quoted("list_guards")+"()").Scan(&tables)
	switch {
	case vanished(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the guards: %w", err)
	case tables != nil:
		return &GuardedError{Tables: *tables}
	}
	return nil
}

// dropRest removes golang-migrate's table, and also the schema if Up has created it and nothing else is in it.
func (s session) dropRest(ctx context.Context, tx pgx.Tx, there found) error {
	if err := s.prepare(ctx, tx, there); err != nil {
		return err
	}
	return execute(ctx, tx, "DROP TABLE IF EXISTS "+s.quoted(versionTable)+`; DO $$
		BEGIN
			IF (SELECT obj_description(n.oid, 'pg_namespace') FROM pg_namespace n
				WHERE n.nspname = current_schema()) = '`+ownComment+`' THEN
				EXECUTE format('DROP SCHEMA %I', current_schema());
			END IF;
		EXCEPTION WHEN dependent_objects_still_exist THEN NULL;
		END $$`)
}
