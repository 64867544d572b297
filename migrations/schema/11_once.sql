-- Work that is done once.

-- once passes the fence and notes the key, in the transaction that does the work. is_first false: it was done before,
-- and the caller rolls back. It locks what fence locks, and then the key: a second caller waits for the end of the
-- first one's transaction. A known key is answered without a lock; but at SERIALIZABLE, where a look for a key that is
-- not there would be in the way of everybody who notes another, only after the fence. What this very transaction has
-- noted is not done: it may still be rolled back. The keys of another database say nothing of the work of this lease.
CREATE FUNCTION once(
  p_key text, p_name text, p_token bigint, p_grant_id uuid, p_resource text DEFAULT NULL,
  p_of timestamptz DEFAULT NULL, p_keep interval DEFAULT NULL, p_database_id uuid DEFAULT NULL, p_slot int DEFAULT NULL,
  p_receipt_id uuid DEFAULT NULL, p_write_id uuid DEFAULT NULL, p_time_limit interval DEFAULT NULL,
  OUT is_first boolean, OUT xact xid8, OUT lock_name text, OUT token bigint, OUT done_at timestamptz,
  OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok   pg_catalog.bool := {{schema}}.is_key(p_key, p_of, p_keep);
  -- in UTC, whatever the session's time zone is and calls so: in others a month may be shorter
  till pg_catalog.timestamptz := pg_catalog.timezone('0'::pg_catalog.interval,
    pg_catalog.timezone('0'::pg_catalog.interval, p_of) OPERATOR(pg_catalog.+) p_keep);
  old  pg_catalog.bool := till OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp();
  mine pg_catalog.bool;  -- as require_fence proves it
  own  pg_catalog.text := 'be new to the transaction, which has noted it already and is not committed';
BEGIN
  once.is_first := false;
  IF old OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'serializable' THEN
    SELECT d.lock_name, d.token, d.done_at, d.xact OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()
        AND d.done_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp()
      INTO once.lock_name, once.token, once.done_at, mine
      FROM {{schema}}.done_keys d WHERE d.key OPERATOR(pg_catalog.=) p_key;
    IF FOUND OR old THEN
      ok := {{schema}}.require_database(p_database_id, pg_catalog.concat('the lease of lock ',
        pg_catalog.quote_literal(p_name)), 'Write through the database that granted the lock.');
    END IF;
    IF mine THEN
      ok := {{schema}}.refuse('key', pg_catalog.quote_literal(p_key), own);
    ELSIF FOUND THEN
      RETURN;
    ELSIF old THEN
      PERFORM {{schema}}.refuse_old_key(p_key, p_of, p_keep);
    END IF;
  END IF;
  SELECT f.xact, f.remaining_us INTO once.xact, once.remaining_us
    FROM {{schema}}.fence(p_name, p_token, p_grant_id, p_resource, true, p_database_id, p_slot, p_receipt_id,
                          p_write_id, p_time_limit) f;
  INSERT INTO {{schema}}.done_keys AS d (key, lock_name, token, done_at, keep_until)
    VALUES (p_key, p_name, p_token,
            GREATEST(pg_catalog.clock_timestamp(), pg_catalog.transaction_timestamp()), till)
    ON CONFLICT ON CONSTRAINT done_keys_pkey DO NOTHING
    RETURNING d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at;
  once.is_first := FOUND;
  IF NOT FOUND THEN
    SELECT d.lock_name, d.token, d.done_at, d.xact OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()
        AND d.done_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp()
      INTO once.lock_name, once.token, once.done_at, mine
      FROM {{schema}}.done_keys d WHERE d.key OPERATOR(pg_catalog.=) p_key;
    IF mine THEN
      ok := {{schema}}.refuse('key', pg_catalog.quote_literal(p_key), own);
    END IF;
  END IF;
END $$;

-- is_key refuses what cannot be a key, its time, or for how long it is kept after that.
CREATE FUNCTION is_key(p_key text, p_of timestamptz, p_keep interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := has_bytes('key', p_key, 512);
BEGIN
  IF (p_of IS NULL) <> (p_keep IS NULL) OR p_of NOT BETWEEN '0001-01-01 00:00+00' AND '9999-12-31 00:00+00'
     OR date_part('epoch', p_keep) NOT BETWEEN 1 AND 36525 * 86400.0 THEN             -- compared, a month has 30 days
    RAISE EXCEPTION 'of and keep are % and %: both or neither, a time of the years 1 to 9999 and 1 s to 100 years',
        coalesce(p_of::text, 'NULL'), coalesce(p_keep::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN ok;
END $$;

-- refuse_old_key raises LK012.
CREATE FUNCTION refuse_old_key(p_key text, p_of timestamptz, p_keep interval) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_primary();
BEGIN
  RAISE EXCEPTION 'key % is of %, and is kept for %: whether it was done is not known any more',
      quote_literal(p_key), p_of, p_keep
    USING ERRCODE = 'LK012', HINT = 'Keep keys for longer than they can be asked for.';
END $$;
