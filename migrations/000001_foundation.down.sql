-- Takes back schema version 1: every table, sequence and function, and the roles unless another database uses them.
-- Run it in one transaction, with the search_path of the up migration.

DROP TABLE events, installation, spent_grants;
DROP TABLE fences;
DROP FUNCTION acquire(text, uuid, uuid, text, interval, jsonb, boolean), renew_all(text[], bigint[], uuid[]),
  renew(text, bigint, uuid), check_lease(text, bigint, uuid), release(text, bigint, uuid),
  release_all(text[], bigint[], uuid[]), abandon(text, uuid),
  break_lock(text, text, text, bigint), fence(text, bigint, uuid, text, boolean, uuid), fence_commit(), seal(),
  record_refusal(text, text, bigint, text), list_locks(text, boolean, text, int), get_lock(text), list_fences(text),
  list_events(text, int), prune_locks(interval), prune_events(interval), lost_reason(text, bigint, uuid),
  raise_lost(text, bigint, text), raise_stale(text, bigint, bigint), microseconds_until(timestamptz), can_check_connection(), bound_timeout(text, bigint),
  check_arguments(text, text, interval, jsonb), require_read_committed(), require_durable_commit(),
  start_client(), database_id(), schema_version();
DROP TABLE locks;
DROP SEQUENCE fencing_token_seq;

-- Another database may migrate at this very moment, and roles belong to both: try again where the two got into each
-- other's way.
DO $do$
BEGIN
  FOR attempt IN 1..100 LOOP
    BEGIN
      EXECUTE format('REVOKE ALL ON SCHEMA %I FROM pglock_user, pglock_admin', current_schema());
      EXIT;
    EXCEPTION
      WHEN undefined_object THEN EXIT;
      WHEN deadlock_detected OR internal_error THEN
        IF attempt = 100 THEN RAISE; END IF;
        PERFORM pg_sleep(0.02 * random());
    END;
  END LOOP;
  FOR attempt IN 1..100 LOOP
    BEGIN
      DROP ROLE pglock_admin;
      DROP ROLE pglock_user;
      EXIT;
    EXCEPTION
      WHEN dependent_objects_still_exist OR insufficient_privilege OR undefined_object THEN
        EXIT;                                          -- another database still needs them, or they are not ours to drop
      WHEN deadlock_detected OR internal_error THEN
        PERFORM pg_sleep(0.02 * random());
    END;
  END LOOP;
END $do$;
