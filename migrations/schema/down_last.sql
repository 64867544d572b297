
DROP TABLE events, done_keys, receipts, fences, spent_grants, subtrees, waiters, sessions, locks, installation;
DROP SEQUENCE swept_seq, ticket_seq, fencing_token_seq;

-- Another database may migrate at this very moment, and both share the roles: if the two collide, try again.
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
        EXIT;                         -- another database still needs them, or they are not ours to drop
      WHEN deadlock_detected OR internal_error THEN
        PERFORM pg_sleep(0.02 * random());
    END;
  END LOOP;
END $do$;
