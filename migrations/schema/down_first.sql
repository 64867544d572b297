DO $do$
BEGIN
  IF current_schema() IS NULL OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
     <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp',
        current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
END $do$;

-- Guards must be dropped first: without the functions nobody could write to the tables, and dropping guards in
-- passing would leave the tables open without anybody knowing. Whoever makes a guard locks the fences (hold_schema).
LOCK TABLE locks, fences, waiters, sessions, events IN ACCESS EXCLUSIVE MODE;

DO $do$
DECLARE
  guarded text := (SELECT string_agg(g.table_name, ', ') FROM list_guards() g);
BEGIN
  IF guarded IS NOT NULL THEN
    RAISE EXCEPTION 'tables are under guard: %', guarded
      USING ERRCODE = 'dependent_objects_still_exist', HINT = 'Drop the guards first: pglock-admin guard drop TABLE.';
  END IF;
END $do$;

