-- Work that is done once.

-- once passes the fence and notes the key, in the transaction that does the work. is_first false: it was done before,
-- and nothing was changed. It locks what fence locks, and then the key: a second caller waits for the end of the
-- first one's transaction. A known key is answered without a lock.
CREATE FUNCTION once(
  p_key text, p_name text, p_token bigint, p_grant_id uuid, p_resource text DEFAULT NULL,
  p_of timestamptz DEFAULT NULL, p_keep interval DEFAULT NULL, p_database_id uuid DEFAULT NULL, p_slot int DEFAULT NULL,
  p_receipt_id uuid DEFAULT NULL, p_write_id uuid DEFAULT NULL, p_time_limit interval DEFAULT NULL,
  OUT is_first boolean, OUT xact xid8, OUT lock_name text, OUT token bigint, OUT done_at timestamptz,
  OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := has_bytes('key', p_key, 512);
BEGIN
  IF (p_of IS NULL) <> (p_keep IS NULL) OR p_of NOT BETWEEN '0001-01-01 UTC' AND '9999-12-31 UTC'
     OR p_keep NOT BETWEEN interval '1 s' AND interval '36525 days' THEN
    RAISE EXCEPTION 'of and keep are % and %: both or neither, a time of the years 1 to 9999 and 1 s to 100 years',
        coalesce(p_of::text, 'NULL'), coalesce(p_keep::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  once.is_first := false;
  SELECT d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at
    FROM done_keys d WHERE d.key = p_key;
  IF FOUND THEN
    RETURN;
  ELSIF p_of + p_keep <= clock_timestamp() THEN
    RAISE EXCEPTION 'key % is of %, and is kept for %: whether it was done is not known any more',
        quote_literal(p_key), p_of, p_keep
      USING ERRCODE = 'LK012', HINT = 'Keep keys for longer than they can be asked for.';
  END IF;
  SELECT f.xact, f.remaining_us INTO once.xact, once.remaining_us
    FROM fence(p_name, p_token, p_grant_id, p_resource, true, p_database_id, p_slot, p_receipt_id, p_write_id,
               p_time_limit) f;
  INSERT INTO done_keys AS d (key, lock_name, token, done_at, keep_until)
    VALUES (p_key, p_name, p_token, clock_timestamp(), p_of + p_keep)
    ON CONFLICT (key) DO NOTHING
    RETURNING d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at;
  once.is_first := FOUND;
  IF NOT FOUND THEN
    SELECT d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at
      FROM done_keys d WHERE d.key = p_key;
  END IF;
END $$;
