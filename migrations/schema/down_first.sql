-- As in the way up, nothing is looked up in the schema before it is known which one it is.
DO $do$
DECLARE
  path   text := pg_catalog.current_setting('search_path');
  schema name := pg_catalog.current_schema();
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF schema IS NULL
     OR regexp_replace(path, '[" ]', '', 'g') <> regexp_replace(schema, '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp', path
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
  PERFORM set_config('search_path', path, true);
END $do$;

-- Guards must be dropped first: without the functions nobody could write to the tables, and dropping guards in
-- passing would leave the tables open without anybody knowing. Whoever makes a guard locks the fences (hold_schema).
LOCK TABLE locks, fences, waiters, subtrees, sessions, events IN ACCESS EXCLUSIVE MODE;

DO $do$
DECLARE
  guarded text := (SELECT string_agg(g.table_name, ', ') FROM list_guards() g);
BEGIN
  IF guarded IS NOT NULL THEN
    RAISE EXCEPTION 'tables are under guard: %', guarded
      USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Drop the guards first: pglock-admin guard drop TABLE.';
  END IF;
END $do$;

