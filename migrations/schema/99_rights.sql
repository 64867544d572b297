-- Rights. Users call functions and own nothing. Operators are users who may also break, bypass, prune and read the
-- history. Only other functions call a function that is not named here. Roles belong to the whole cluster, so another
-- database may create or drop them at this very moment; then try again.
DO $do$
DECLARE
  ours   oid := (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema());
  theirs oid[] := current_setting('pglock.before');
  users  text[] := '{schema_version, database_id, start_client, timeline, diagnose, sweep,
    acquire_lease, acquire_leases, renew_leases, check_leases, release_lease, release_leases, hand_over, give_up,
    own_lease, look, own_tickets, announce, watch, mark_connection, end_session, fence, fence_all, once, seal, outcome,
    guard_write, key_column, guard_triggers, guard_table, unguard_table, list_guards,
    list_locks, rank_locks, get_lock, list_waiters, rank_waiters, list_fences, rank_fences, session_rows, list_sessions,
    list_waits, backend_pids, list_backends, statistics, recent_events}';
  admins text[] := '{break_lock, break_session, bypass_guards, advance_epoch, prune_locks, list_history, prune_history,
    set_history, history_settings, replay_history, clock_steps}';
  f      record;
BEGIN
  FOR f IN SELECT c.oid::regclass AS name FROM pg_class c WHERE c.relnamespace = ours AND c.relname = ANY (ARRAY[
      'installation', 'locks', 'sessions', 'waiters', 'spent_grants', 'fences', 'receipts', 'done_keys', 'events']) LOOP
    EXECUTE format('REVOKE ALL ON %s FROM PUBLIC', f.name);
  END LOOP;
  FOR f IN SELECT p.oid::regprocedure AS name FROM pg_proc p
           WHERE p.pronamespace = ours AND NOT p.oid = ANY (theirs) LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', f.name);
  END LOOP;
  FOR attempt IN 1..100 LOOP
    BEGIN
      IF to_regrole('pglock_user') IS NULL THEN CREATE ROLE pglock_user NOLOGIN; END IF;
      IF to_regrole('pglock_admin') IS NULL THEN CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user; END IF;
      EXECUTE format('GRANT USAGE ON SCHEMA %I TO pglock_user, pglock_admin', current_schema());
      FOR f IN SELECT p.oid::regprocedure AS name,
                 CASE WHEN p.proname = ANY (users) THEN 'pglock_user, ' ELSE '' END AS also FROM pg_proc p
               WHERE p.pronamespace = ours AND NOT p.oid = ANY (theirs) AND p.proname = ANY (users || admins) LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %spglock_admin', f.name, f.also);
      END LOOP;
      EXIT;
    EXCEPTION
      WHEN duplicate_object OR unique_violation OR undefined_object OR deadlock_detected OR internal_error THEN
        IF attempt = 100 THEN RAISE; END IF;
        PERFORM pg_sleep(0.02 * random());
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'user % cannot create the roles pglock_user and pglock_admin', current_user
          USING ERRCODE = 'insufficient_privilege', DETAIL = SQLERRM,
                HINT = 'Let an administrator run: CREATE ROLE pglock_user NOLOGIN; '
                       'CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user;';
    END;
  END LOOP;
END $do$;
