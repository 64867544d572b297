-- Rights. Users call functions and own nothing. Operators are users who may also break, bypass, prune and read the
-- history. Only other functions call a function that is not named here.

-- callable lists the functions that a role may call: of pglock_user those of users, of pglock_admin all.
CREATE FUNCTION callable() RETURNS TABLE (role text, name text)
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT
AS $$
  WITH users AS (
    SELECT unnest('{schema_version, database_id, start_client, timeline, diagnose, wrong_rights, sweep,
      acquire_lease, acquire_leases, acquire_subtree,
      renew_leases, check_leases, release_lease, release_leases, hand_over, give_up,
      look, own_tickets, announce, watch, mark_connection, end_session, fence, fence_all, once, seal,
      outcome, guard_write, key_column, key_columns, made_triggers, guard_triggers, guard_table, unguard_table,
      list_guards, broken_guards, get_lock, list_locks, list_waiters, list_fences, session_rows, list_sessions,
      holder_lives, list_waits, list_obstacles, list_obstructed, backend_pids, list_backends, list_blockers, suspects,
      list_suspects, statistics, blocked_statistics, recent_events}'::text[]) AS name)
  SELECT 'pglock_user', u.name FROM users u
  UNION ALL SELECT 'pglock_admin', u.name FROM users u
  UNION ALL SELECT 'pglock_admin', unnest('{break_lock, break_session, bypass_guards, advance_epoch, prune_locks,
    list_history, prune_history, set_history, history_settings, replay_history, clock_steps}'::text[])
$$;

-- own_objects, made here, lists what is ours in the schema: what was not there before. The rights are set as they must
-- be. Roles belong to the whole cluster, so another database may create or drop them at
-- this very moment; then try again.
DO $do$
DECLARE
  f record;
BEGIN
  EXECUTE (   -- what is here and was not before, and what golang-migrate and this statement make
    SELECT format('CREATE FUNCTION own_objects() RETURNS TABLE (kind text, name text) LANGUAGE sql IMMUTABLE '
                  'SET search_path FROM CURRENT AS %L',
                  'VALUES ' || string_agg(format('(%L, %L)', o.kind, o.name), ', '))
    FROM (
      SELECT 'class' AS kind, c.relname::text AS name FROM pg_class c
      WHERE c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema())
        AND c.relkind IN ('r', 'v', 'S', 'c')
        AND NOT 'c' || c.oid = ANY (current_setting('pglock.before')::text[])
      UNION SELECT 'class', 'pglock_schema_migrations'
      UNION SELECT 'function', p.oid::regprocedure::text FROM pg_proc p
      WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema())
        AND NOT 'f' || p.oid = ANY (current_setting('pglock.before')::text[])
      UNION SELECT 'function', 'own_objects()' ORDER BY 1, 2) o);
  FOR attempt IN 1..100 LOOP
    BEGIN
      IF to_regrole('pglock_user') IS NULL THEN CREATE ROLE pglock_user NOLOGIN; END IF;
      IF to_regrole('pglock_admin') IS NULL THEN CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user; END IF;
      FOR f IN SELECT w.mend FROM wrong_rights(true) w LOOP
        EXECUTE f.mend;
      END LOOP;
      EXIT;
    EXCEPTION
      WHEN duplicate_object OR unique_violation OR undefined_object OR deadlock_detected OR internal_error THEN
        IF attempt = 100 THEN RAISE; END IF;
        PERFORM pg_sleep(0.02 * random());
      WHEN insufficient_privilege THEN
        IF to_regrole('pglock_user') IS NOT NULL AND to_regrole('pglock_admin') IS NOT NULL THEN RAISE; END IF;
        RAISE EXCEPTION 'user % cannot create the roles pglock_user and pglock_admin', current_user
          USING ERRCODE = 'insufficient_privilege', DETAIL = SQLERRM,
                HINT = concat_ws(' ', 'Let an administrator run:',
                  CASE WHEN to_regrole('pglock_user') IS NULL THEN 'CREATE ROLE pglock_user NOLOGIN;' END,
                  CASE WHEN to_regrole('pglock_admin') IS NULL
                       THEN 'CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user;' END);
    END;
  END LOOP;
END $do$;
