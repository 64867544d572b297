-- Sessions. A client proves that a session is its own by a key; what others see is a digest of it.

CREATE FUNCTION session_of(p_key uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT encode(substr(sha256(uuid_send(p_key)), 1, 16), 'hex')::uuid $$;

-- session_channel is where a session hears of its grants: pglock_ and the digest without hyphens.
CREATE FUNCTION session_channel(p_session_key uuid) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path FROM CURRENT
AS $$ SELECT 'pglock_' || left(encode(sha256(uuid_send(p_session_key)), 'hex'), 32) $$;   -- whoever calls it may not call session_of

CREATE FUNCTION session_alive(p_session_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp());
END $$;

-- touch_session says that the session is alive. It comes before any other lock, and waits for nobody who has locked the
-- row: they say the same.
CREATE FUNCTION touch_session(p_session_id uuid, p_holder text, p_session_ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  until timestamptz;
BEGIN
  SELECT s.alive_until INTO until FROM sessions s WHERE s.session_id = p_session_id;
  IF until IS NULL THEN
    INSERT INTO sessions (session_id, holder, alive_until) VALUES (p_session_id, p_holder, clock_timestamp() + p_session_ttl)
      ON CONFLICT (session_id) DO NOTHING;
  ELSIF until < clock_timestamp() + p_session_ttl * 0.7 THEN
    UPDATE sessions s SET alive_until = clock_timestamp() + p_session_ttl FROM (
        SELECT o.session_id FROM sessions o WHERE o.session_id = p_session_id FOR NO KEY UPDATE SKIP LOCKED) mine
      WHERE s.session_id = mine.session_id;
  END IF;
  RETURN true;
END $$;

-- end_session ends the session and its tickets at once, instead of letting them run out. Give its waits up first: whoever
-- they keep waiting is served then.
CREATE FUNCTION end_session(p_session_key uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  known boolean;
BEGIN
  DELETE FROM sessions s WHERE s.session_id = session_of(p_session_key);   -- a session before its tickets, as everywhere
  known := FOUND;
  DELETE FROM waiters q WHERE q.session_id = session_of(p_session_key);
  RETURN known;
END $$;

-- sweep removes what nobody needs any more, p_limit rows of each kind at most: tickets and sessions that have been dead for
-- a minute, notes of grant IDs that were given up an hour ago, receipts of a week ago, and keys of work done once that
-- are kept no longer (a day longer than they are accepted, in case the clock is set back). Whatever somebody has locked
-- stays for the next time. Answers how many rows went.
CREATE FUNCTION sweep(p_limit int DEFAULT 1000) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok  boolean := require_read_committed();
  n   bigint;
  all_of bigint := 0;
BEGIN
  IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 100000 THEN
    ok := refuse('limit', p_limit::text, 'be from 1 to 100000');
  END IF;
  DELETE FROM waiters q USING (
      SELECT o.name, o.ticket FROM waiters o
      WHERE o.enqueued_at < clock_timestamp() - interval '1 minute' AND NOT EXISTS (
        SELECT FROM sessions s WHERE s.session_id = o.session_id AND s.alive_until > clock_timestamp() - interval '1 minute')
      LIMIT p_limit FOR UPDATE SKIP LOCKED) dead
    WHERE q.name = dead.name AND q.ticket = dead.ticket;
  GET DIAGNOSTICS n = ROW_COUNT;
  all_of := all_of + n;
  DELETE FROM sessions s USING (
      SELECT o.session_id FROM sessions o WHERE o.alive_until < clock_timestamp() - interval '1 minute'
      LIMIT p_limit FOR UPDATE SKIP LOCKED) dead
    WHERE s.session_id = dead.session_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  all_of := all_of + n;
  DELETE FROM spent_grants s USING (
      SELECT o.grant_id FROM spent_grants o WHERE o.at < clock_timestamp() - interval '1 hour'
      ORDER BY o.at LIMIT p_limit FOR UPDATE SKIP LOCKED) old
    WHERE s.grant_id = old.grant_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  all_of := all_of + n;
  DELETE FROM receipts r USING (
      SELECT o.receipt_id FROM receipts o WHERE o.at < clock_timestamp() - interval '7 days'
      LIMIT p_limit FOR UPDATE SKIP LOCKED) old
    WHERE r.receipt_id = old.receipt_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  all_of := all_of + n;
  DELETE FROM done_keys d USING (
      SELECT o.key FROM done_keys o WHERE o.keep_until < clock_timestamp() - interval '1 day'
      ORDER BY o.keep_until LIMIT p_limit FOR UPDATE SKIP LOCKED) old
    WHERE d.key = old.key;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN all_of + n;
END $$;
