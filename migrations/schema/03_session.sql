-- Sessions. A client proves with a key that a session is its own; others see only a digest of the key. A session's
-- grants are announced on the channel named pglock_ plus the digest without hyphens.

-- session_of is the ID of the session with this key. It reads nothing.
CREATE FUNCTION session_of(p_key uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE
AS $$ SELECT encode(substr(sha256(uuid_send(p_key)), 1, 16), 'hex')::uuid $$;

-- mark_connection notes that this connection is the heartbeat's, for list_backends: it takes an advisory lock with a
-- key that nobody can know before, and the session's row has the key and the process. The server drops the lock with
-- the connection. So a process counts only if the session's key has named it and the connection is still the same; who
-- takes the same lock besides misleads nobody. It answers false and marks nothing where the connection ends at a
-- pooler: p_backend_pid is the process that the client was told when it connected. With NULL it marks nothing, and
-- answers whether the session's row names this process. While somebody else has locked the row it does nothing: NULL.
-- The lock comes last, and the former one goes in the same expression, which nothing interrupts: otherwise the locks of
-- calls that fail would pile up until the connection ends.
--
-- It is also a sign of life, for life_of. A client that holds gives one every ten seconds, unless it has given another;
-- with p_version, that of its library, in p_holds how long it may go on holding: as long the row stays, and in p_names
-- up to twenty of the locks that it holds, for list_suspects. Nothing depends on any of it, and it keeps nobody from
-- anything. It makes no ticket count for longer: a look does that.
CREATE FUNCTION mark_connection(
  p_session_key uuid, p_backend_pid int, p_holder text DEFAULT NULL, p_version text DEFAULT NULL,
  p_holds interval DEFAULT NULL, p_names text[] DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  me   uuid := session_of(p_session_key);
  ok   boolean := (p_version IS NULL OR has_bytes('version', p_version, 256))
    AND (coalesce(p_version, p_holder) IS NULL OR has_bytes('holder', p_holder, 256))
    AND (p_version IS NULL OR me IS NOT NULL OR refuse('session_key', NULL, 'be a UUID'))
    AND (p_holds IS NULL OR is_ttl('holds', p_holds));
  few  boolean := (cardinality(p_names) > 20 OR octet_length(array_to_string(p_names, '')) > 10240) IS NOT TRUE
    OR refuse('names', cardinality(p_names)::text, 'be at most 20 names of 512 bytes');
  key  bigint := ('x' || left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;
  mine boolean := me IS NOT NULL AND p_backend_pid IS NOT DISTINCT FROM pg_backend_pid();
  own  boolean := false;
  was  record;
BEGIN
  IF mine OR me IS NOT NULL AND p_version IS NOT NULL THEN
    SELECT o.pid, o.mark INTO was FROM sessions o WHERE o.session_id = me FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
      UPDATE sessions s SET seen_at = clock_timestamp(), seen_by = pg_backend_pid(),
          version = coalesce(p_version, s.version), holds_until = coalesce(clock_timestamp() + p_holds, s.holds_until),
          names = coalesce(p_names, s.names),
          pid = CASE WHEN mine THEN p_backend_pid ELSE s.pid END, mark = CASE WHEN mine THEN key ELSE s.mark END
        WHERE s.session_id = me RETURNING s.pid IS NOT DISTINCT FROM pg_backend_pid() INTO own;
    ELSE                                                  -- beside an update of the row ON CONFLICT would wait
      INSERT INTO sessions (session_id, holder, alive_until, version, holds_until, names, pid, mark)
        SELECT me, coalesce(p_holder, '-'), clock_timestamp(), p_version, clock_timestamp() + p_holds, p_names,
          CASE WHEN mine THEN p_backend_pid END, CASE WHEN mine THEN key END
        WHERE NOT EXISTS (SELECT FROM sessions o WHERE o.session_id = me) ON CONFLICT (session_id) DO NOTHING;
      own := CASE WHEN FOUND THEN mine END;
    END IF;
    IF mine AND own THEN
      own := pg_try_advisory_lock_shared(key) AND (was.pid IS DISTINCT FROM p_backend_pid
        OR coalesce(pg_advisory_unlock_shared(was.mark), true) IS NOT NULL);
    END IF;
  END IF;
  RETURN own;
END $$;

-- marked_pids tells the server processes of this database that hold advisory locks, by which connections are marked.
CREATE FUNCTION marked_pids() RETURNS TABLE (mark bigint, pid int)
LANGUAGE sql VOLATILE
AS $$
  SELECT k.classid::bigint << 32 | k.objid::bigint, k.pid FROM pg_locks k
  WHERE k.locktype = 'advisory' AND k.objsubid = 1 AND k.granted AND k.pid IS NOT NULL
    AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
$$;

-- life_of says whether a client lives, as far as the server can know. It is the only rule for that; docs/operations.md
-- explains the words. p_signed_at is its last sign of life: a renewal, a look, or mark_connection. A grant is none,
-- because a dead waiter may get one; locks.slowest tells a renewal, since the two times of a grant may differ. p_since
-- is when what it holds or waits for began last; NULL: nothing. p_counts: its tickets count, or it has none.
-- p_connected says whether its marked connection is open, NULL that none was marked; p_over_it that the last sign came
-- over that one. A client gives a sign every ten seconds, and a statement has time. A standby cannot tell that a sign
-- is missing: it may not have arrived there yet.
CREATE FUNCTION life_of(
  p_signed_at timestamptz, p_since timestamptz, p_counts boolean, p_connected boolean, p_over_it boolean) RETURNS text
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE
    WHEN p_signed_at > clock_timestamp() - interval '15 s' AND p_counts
      THEN CASE WHEN p_connected IS FALSE AND p_over_it THEN 'unknown' ELSE 'alive' END
    WHEN p_since IS NULL THEN 'idle'
    WHEN p_since > clock_timestamp() - interval '15 s' AND p_counts OR pg_is_in_recovery() THEN 'unknown'
    WHEN p_connected IS FALSE THEN 'dead'
    ELSE 'silent' END
$$;

-- session_alive says whether a session has recently shown that it is alive. It locks nothing.
CREATE FUNCTION session_alive(p_session_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp());
END $$;

-- touch_session notes that the session is alive, for at least so long, and returns true. It locks the session's row,
-- before any other lock (I25), unless somebody has noted as much just now. It does not wait for others who have locked
-- the row, and who note something like it; but they may undo that, or have noted less: false. Whoever will join the
-- head of a lock names it, and first waits until that can be joined: meanwhile the client's looks note that it lives,
-- on which its tickets for other locks depend. With p_locked it has locked that head already, and waits for nobody: not
-- for others who write a session that is not there, either.
CREATE FUNCTION touch_session(
  p_session_id uuid, p_holder text, p_session_ttl interval, p_name text DEFAULT NULL, p_locked boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  until timestamptz;
  seen  timestamptz;
  ok    boolean;
BEGIN
  SELECT s.alive_until, s.seen_at INTO until, seen FROM sessions s WHERE s.session_id = p_session_id;
  IF until >= clock_timestamp() + p_session_ttl - LEAST(p_session_ttl * 0.3, interval '3 s')
      AND seen >= clock_timestamp() - interval '5 s' THEN
    RETURN true;
  END IF;
  ok := p_locked OR p_name IS NULL OR give_way(p_name, false) AND await_head(p_name);
  IF until IS NULL AND NOT p_locked THEN
    INSERT INTO sessions (session_id, holder, alive_until)
      VALUES (p_session_id, p_holder, clock_timestamp() + p_session_ttl) ON CONFLICT (session_id) DO NOTHING;
  ELSE
    UPDATE sessions s SET alive_until = GREATEST(s.alive_until, clock_timestamp() + p_session_ttl),
        seen_at = clock_timestamp(), seen_by = pg_backend_pid()
      WHERE s.session_id = (
        SELECT o.session_id FROM sessions o WHERE o.session_id = p_session_id FOR NO KEY UPDATE SKIP LOCKED);
  END IF;
  RETURN FOUND;
END $$;

-- outlive_session is for those whose tickets must count after touch_session was false: somebody may be removing the
-- session, or has locked it and notes less, or may undo what they note. If without that it would live for less than
-- half of its TTL, it waits until they are done, and notes the session itself; otherwise it waits only for those who
-- remove it. With p_locked it has locked a lock's head, and may wait for none of them: they may wait for that.
CREATE FUNCTION outlive_session(
  p_session_id uuid, p_holder text, p_session_ttl interval, p_locked boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '1s'
AS $$
BEGIN
  IF NOT p_locked THEN
    PERFORM FROM sessions s
      WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp() + p_session_ttl / 2 FOR KEY SHARE;
    IF FOUND THEN
      RETURN true;
    END IF;
    PERFORM FROM sessions s WHERE s.session_id = p_session_id FOR NO KEY UPDATE;
  END IF;
  IF p_locked OR NOT touch_session(p_session_id, p_holder, p_session_ttl)  -- removed, and somebody has written it anew
     AND NOT touch_session(p_session_id, p_holder, p_session_ttl) THEN
    RAISE EXCEPTION 'session % is new, or is being written', p_session_id USING ERRCODE = '55P03', HINT = 'Try again.';
  END IF;
  RETURN true;
END $$;

-- keep_session is touch_session for those who prove the session with its key. It refuses bad arguments.
CREATE FUNCTION keep_session(p_session_key uuid, p_holder text, p_session_ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
  RETURN (p_session_key IS NOT NULL OR refuse('session_key', NULL, 'be a UUID')) AND has_bytes('holder', p_holder, 256)
    AND is_ttl('session ttl', p_session_ttl) AND touch_session(session_of(p_session_key), p_holder, p_session_ttl);
END $$;

-- end_session ends the session and its tickets at once, instead of letting them run out, and returns whether there
-- was one. It locks the session, then its tickets (I25), and no lock's head: first give up its waits, so that the
-- waiters behind them are served. Whoever serves the queue passes over tickets that it has locked.
CREATE FUNCTION end_session(p_session_key uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  known boolean;
  ok    boolean := require_read_committed();
BEGIN
  DELETE FROM sessions s WHERE s.session_id = session_of(p_session_key);
  known := FOUND;
  DELETE FROM waiters q WHERE q.session_id = session_of(p_session_key);
  ok := bound_rest(false);
  RETURN known;
END $$;

-- sweep removes what nobody needs any more, at most p_limit rows of each kind, and returns how many: tickets and
-- sessions that have been dead for a minute (the latter hold nothing, as far as they said, and have no marked
-- connection), tickets that count no more, notes of grant IDs given up an hour ago, receipts a week old, keys of work
-- done once that are no longer kept (a day longer than they are accepted, in case the clock is set back), and with
-- p_history the old end of the history. It skips what somebody has locked, and waits for nobody (I25): the history,
-- whose table it locks last, it leaves to the next sweep.
-- With p_every it does nothing, and answers NULL, if somebody has begun such a sweep with the history within that time,
-- or removed all that there was: a thousand clients are not to read the tables a thousand times, nor to try if that
-- fails. A call whose limit is less than a client's, 1000, is no such sweep. Of the receipts it then looks at p_limit
-- pages somewhere: an index of their times would cost each write more, and a client has little time for it.
CREATE FUNCTION sweep(p_limit int DEFAULT 1000, p_history boolean DEFAULT true, p_every interval DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok    boolean := require_read_committed()
    AND is_count('limit', p_limit, 1, 100000) AND (p_every IS NULL OR is_age('every', p_every));
  page  bigint := CASE WHEN p_every IS NULL THEN 0 ELSE p_limit * floor(random() * ceil(pg_relation_size('receipts')
    / current_setting('block_size')::float8 / p_limit)) END;
  dead  record;
  n     bigint;
  total bigint := 0;
BEGIN
  IF (SELECT to_timestamp(s.last_value) BETWEEN clock_timestamp() - p_every AND clock_timestamp() FROM swept_seq s) THEN
    RETURN NULL;
  END IF;
  IF p_history AND p_every IS NOT NULL AND p_limit >= 1000 THEN
    PERFORM setval('swept_seq', floor(extract(epoch FROM clock_timestamp()))::bigint);
  END IF;
  FOR dead IN SELECT * FROM (VALUES
    ('waiters', '1 minute', $of$ o.enqueued_at < $1 AND (
                       NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = o.session_id AND s.alive_until > $1)
                       OR o.ticket <= (SELECT l.served FROM locks l WHERE l.name = o.name AND l.slot = 0)) $of$),
    ('sessions', '1 minute', $of$ GREATEST(o.alive_until, o.seen_at, o.holds_until) < $1
                       AND (coalesce(o.mark, 0), coalesce(o.pid, 0)) NOT IN (SELECT m.mark, m.pid FROM marked_pids() m)
                       $of$),
    ('spent_grants', '1 hour', $of$ o.at < $1 ORDER BY o.at $of$),
    ('done_keys', '1 day', $of$ o.keep_until < $1 ORDER BY o.keep_until $of$),
    ('receipts', '7 days', $of$ o.ctid >= $3 AND o.ctid < $4 AND o.at < $1 $of$)) AS d (kind, age, which)
  LOOP
    EXECUTE format('DELETE FROM %1$I WHERE ctid = ANY (ARRAY(
                      SELECT o.ctid FROM %1$I o WHERE %2$s LIMIT $2 FOR UPDATE SKIP LOCKED))', dead.kind, dead.which)
      USING clock_timestamp() - dead.age::interval, p_limit, format('(%s,0)', page)::tid,
        format('(%s,0)', CASE WHEN p_every IS NULL THEN 4294967295 ELSE page + p_limit END)::tid;
    GET DIAGNOSTICS n = ROW_COUNT;
    total := total + n;
  END LOOP;
  total := total + sweep_subtrees(p_limit);
  IF p_history THEN
    BEGIN
      LOCK TABLE events IN ROW EXCLUSIVE MODE NOWAIT;
      total := total + (prune_history(NULL, p_limit)).removed;
    EXCEPTION WHEN lock_not_available THEN p_history := NULL;
    END;
    IF p_history AND p_every IS NULL AND total < p_limit THEN
      PERFORM setval('swept_seq', floor(extract(epoch FROM clock_timestamp()))::bigint);
    END IF;
  END IF;
  ok := bound_rest(false);
  RETURN total;
END $$;
