-- Back to version 2. Guards must be dropped first: without the functions nobody could write to the tables, and dropping
-- them in passing would leave the tables open with nobody told.

DO $do$
BEGIN
  IF current_schema() IS NULL OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
     <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp', current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
END $do$;

-- Also waits for a guard that is being made: it writes to events.
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

DROP FUNCTION diagnose();
DROP FUNCTION advance_epoch(text, text, bigint);
DROP FUNCTION once(text, text, bigint, uuid, text, timestamptz, interval, uuid);
DROP FUNCTION fence_all(text[], bigint[], uuid[], text[], boolean, uuid);
DROP FUNCTION bypass_guards(text, text);
DROP FUNCTION require_operator(text, text);
DROP FUNCTION unguard_table(regclass);
DROP FUNCTION guard_table(regclass, text, text);
DROP FUNCTION list_guards();
DROP FUNCTION guard_triggers(oid);
DROP FUNCTION trigger_arguments(bytea, int);
DROP FUNCTION can_be_key(oid);
DROP FUNCTION record_incident(text, text, text, bigint, text, text);
DROP FUNCTION guard_row();
DROP FUNCTION guard_statement();
DROP FUNCTION require_fence(text, text, text);
DROP FUNCTION bypassed(text, text);
DROP TABLE done_keys;

DELETE FROM events WHERE kind NOT IN ('break', 'takeover', 'stale write');
DROP INDEX events_xact;
ALTER TABLE events DROP COLUMN xact, DROP CONSTRAINT events_kind,
  ADD CONSTRAINT events_kind CHECK (kind IN ('break', 'takeover', 'stale write'));

CREATE OR REPLACE FUNCTION check_lease(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
  SELECT l.expires_at, microseconds_until(l.expires_at) INTO check_lease.expires_at, check_lease.remaining_us
    FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF check_lease.remaining_us IS NULL OR check_lease.remaining_us = 0 THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

CREATE OR REPLACE FUNCTION raise_lost(p_name text, p_token bigint, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'the lease of lock % with token % is lost: %', quote_literal(p_name), p_token,
      CASE p_reason WHEN 'unknown' THEN format('schema %I of database %I has no such grant', current_schema(), current_database())
                    ELSE p_reason END
    USING ERRCODE = CASE p_reason WHEN 'expired' THEN 'LK001' ELSE 'LK003' END,
          DETAIL = 'reason=' || p_reason,
          HINT = 'Stop the work that this lock protects; acquire it again to go on.';
END $$;

CREATE OR REPLACE FUNCTION raise_stale(p_resource text, p_token bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'token % is stale: token % has passed the fence of %', p_token, p_last, quote_literal(p_resource)
    USING ERRCODE = 'LK002', DETAIL = 'last_token=' || p_last,
          HINT = CASE WHEN p_last = p_token THEN 'This grant has already written to the resource; let it write again only with allow_same_token.'
                      ELSE 'A later holder has written: stop this work.' END;
END $$;

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 2';
