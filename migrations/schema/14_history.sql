-- The history: who held what, from when until when, and how it ended.

-- note_tenure writes the history of what its own holder has ended, at level all. It also writes what must never happen:
-- a grant over a lease that was not over. A grant by which the holder hands its lease over has changed ended_at.
--
-- A lock must not hang because of its history. If the entry cannot be written, or the table of events is locked for
-- longer than a tenth of a second, note_tenure warns and the release goes on. Of all releases of a statement only one
-- waits: the mark for that spares the others the wait, but never the attempt, since everybody may set it. The numbers
-- of the row's tenures then show the gap.
CREATE FUNCTION note_tenure() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '100ms'
AS $$
DECLARE
  granted boolean := NEW.grants <> OLD.grants;
  handed  boolean := granted AND NEW.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at;
BEGIN
  IF current_setting('pglock.history_locked', true) = statement_timestamp()::text THEN
    LOCK TABLE events IN ROW EXCLUSIVE MODE NOWAIT;
  END IF;
  INSERT INTO events (kind, lock_name, token, new_token, holder, actor, session_id, slot, mode, capacity,
      granted_at, ended_at, number, subtree)
    VALUES (CASE WHEN handed THEN 'handover' WHEN granted THEN 'overlap' ELSE 'release' END, OLD.name, OLD.token,
      CASE WHEN granted THEN NEW.token END, OLD.holder, CASE WHEN granted THEN NEW.holder END,
      OLD.session_id, OLD.slot, OLD.mode, OLD.capacity, OLD.acquired_at,
      CASE WHEN handed THEN NEW.acquired_at WHEN granted THEN OLD.expires_at ELSE NEW.ended_at END, OLD.grants,
      OLD.subtree);
  RETURN NULL;
EXCEPTION WHEN OTHERS THEN
  RAISE WARNING 'the history lacks the tenure of token % of lock %: %', OLD.token, quote_literal(OLD.name), SQLERRM;
  PERFORM set_config('pglock.history_locked', statement_timestamp()::text, true) WHERE SQLSTATE = '55P03';
  RETURN NULL;
END $$;

-- The trigger is disabled at level losses. Its condition names the ends that no function has written: a break draws a
-- new token, and a takeover follows a lease whose end is settled.
CREATE TRIGGER note_tenure AFTER UPDATE ON locks FOR EACH ROW WHEN (
    OLD.expires_at > '-infinity' AND (
      NEW.grants = OLD.grants AND NEW.token = OLD.token AND NEW.expires_at = '-infinity'
      OR NEW.grants <> OLD.grants AND OLD.ended_at IS DISTINCT FROM OLD.expires_at))
  EXECUTE FUNCTION note_tenure();
ALTER TABLE locks DISABLE TRIGGER note_tenure;

-- history_open says that the history can be written, and then keeps it so until the transaction ends. It waits for
-- whoever has locked it as note_tenure does. It locks no row in its subtransaction: see await_row.
CREATE FUNCTION history_open() RETURNS boolean
LANGUAGE plpgsql VOLATILE SET lock_timeout = '100ms'
AS $$
BEGIN
  IF current_setting('pglock.history_locked', true) = statement_timestamp()::text THEN
    LOCK TABLE events IN ROW EXCLUSIVE MODE NOWAIT;
  END IF;
  LOCK TABLE events IN ROW EXCLUSIVE MODE;
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  PERFORM set_config('pglock.history_locked', statement_timestamp()::text, true);
  RETURN false;
END $$;

-- history_settings tells the level; for how long the history is kept, in microseconds; since when it has every tenure,
-- NULL if it has not; and when what pruning may have removed had ended, NULL if it has removed nothing.
CREATE FUNCTION history_settings(OUT level text, OUT keep_us bigint, OUT since timestamptz, OUT pruned timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT CASE WHEN t.tgenabled IN ('O', 'A') THEN 'all' ELSE 'losses' END,
    (extract(epoch FROM i.history_keep) * 1000000)::bigint,
    CASE WHEN t.tgenabled IN ('O', 'A') THEN i.history_since END, i.history_pruned
  FROM installation i, pg_trigger t WHERE t.tgrelid = 'locks'::regclass AND t.tgname = 'note_tenure'
$$;

-- set_history sets the level and how long the history is kept; NULL leaves it as it is. A change of the level locks the
-- table of locks for a moment, and waits for its writers for at most a tenth of a second: 55P03, and nothing was done.
-- Nobody else waits for longer than that.
CREATE FUNCTION set_history(
  p_actor text, p_level text DEFAULT NULL, p_keep interval DEFAULT NULL, OUT level text, OUT keep_us bigint,
  OUT since timestamptz, OUT pruned timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '100ms'
AS $$
DECLARE
  ok  boolean := require_read_committed() AND has_bytes('actor', p_actor, 256)
    AND (p_level IS NULL OR p_level IN ('losses', 'all') OR refuse('level', quote_literal(left(p_level, 40)),
      'be losses or all'))
    AND (p_keep IS NULL OR p_keep BETWEEN interval '1 day' AND interval '36525 days' AND is_age('keep', p_keep)
      OR refuse('keep', p_keep::text, 'be from 1 day to 36525 days'));
  was record;
BEGIN
  SELECT * INTO was FROM history_settings() h;
  IF p_level <> was.level THEN
    EXECUTE 'ALTER TABLE locks ' || CASE p_level WHEN 'all' THEN 'ENABLE ALWAYS' ELSE 'DISABLE' END
      || ' TRIGGER note_tenure';
    UPDATE installation i SET history_since = CASE p_level WHEN 'all' THEN clock_timestamp() END;
  END IF;
  UPDATE installation i SET history_keep = p_keep WHERE i.history_keep <> p_keep;
  SELECT * INTO level, keep_us, since, pruned FROM history_settings() h;
  IF (level, keep_us) <> (was.level, was.keep_us) THEN
    INSERT INTO events (kind, lock_name, token, actor, reason)
      VALUES ('level', '', 0, p_actor, 'level ' || level || ', kept for '
        || CASE WHEN keep_us % 86400000000 = 0 THEN keep_us / 86400000000 || ' days'
                ELSE keep_us / 1000000 || ' s' END);
    ok := bound_rest(false);
  END IF;
END $$;

-- list_history shows operators the history, newest first: p_limit entries before the one with the id p_before; ''
-- means every lock's. p_kinds chooses kinds; p_since and p_until limit the time at which an entry was written. Each
-- call has a plan of its own, so that the index is that of one lock, of its losses alone, or of all.
CREATE FUNCTION list_history(
  p_lock_name text DEFAULT '', p_limit int DEFAULT 100, p_before bigint DEFAULT NULL, p_kinds text[] DEFAULT NULL,
  p_since timestamptz DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (id bigint, at timestamptz, kind text, lock_name text, token bigint,
               new_token bigint, holder text, actor text, db_user text, reason text, resource text, session_id uuid,
               slot int, mode text, capacity int, granted_at timestamptz, ended_at timestamptz, number bigint,
               subtree boolean)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_length(p_limit);
BEGIN
  RETURN QUERY
    SELECT e.id, e.at, e.kind, e.lock_name, e.token, e.new_token, e.holder, e.actor, e.db_user, e.reason,
      array_to_string(e.resource, ' '), e.session_id, e.slot, e.mode, e.capacity, e.granted_at, e.ended_at, e.number,
      e.subtree
    FROM events e
    WHERE (coalesce(p_lock_name, '') = '' OR e.lock_name = p_lock_name)
      AND e.id < coalesce(p_before, 9223372036854775807)
      AND (p_kinds IS NULL OR e.kind = ANY (p_kinds))
      AND (p_since IS NULL OR e.at >= p_since) AND (p_until IS NULL OR e.at < p_until)
    ORDER BY e.id DESC LIMIT p_limit;
END $$;

-- What replay_history lists.
CREATE TYPE tenure AS (
  lock_name text, token bigint, id bigint, at timestamptz, kind text, new_token bigint,
  holder text, slot int, mode text, capacity int, granted_at timestamptz, ended_at timestamptz, number bigint,
  session_id uuid, subtree boolean);

-- present_tenure is what a row of locks says now.
CREATE FUNCTION present_tenure(l locks) RETURNS tenure
LANGUAGE sql STABLE
AS $$
  SELECT ROW(l.name, l.token, 9223372036854775807, now(),
    CASE WHEN l.expires_at = '-infinity' THEN 'free' WHEN l.expires_at <= now() THEN 'over' ELSE 'held' END,
    NULL, l.holder, l.slot, l.mode, l.capacity, l.acquired_at,
    CASE WHEN l.expires_at = '-infinity' THEN NULL WHEN l.expires_at <= now() THEN l.expires_at
         ELSE GREATEST(l.acquired_at, now()) END, l.grants, l.session_id, l.subtree)::tenure
$$;

-- replay_history lists tenures for a check: those of the history, and after them what the rows of locks say now, in the
-- order of lock_name, token and id; p_limit of them after the given ones. A row of locks has the greatest id and the
-- kind held, over (it has run out) or free. A lease that is held has lasted until now at least: ended_at. Every page is
-- of one moment.
CREATE FUNCTION replay_history(
  p_lock_name text DEFAULT '', p_limit int DEFAULT 1000, p_after text DEFAULT '', p_after_token bigint DEFAULT 0,
  p_after_id bigint DEFAULT 0)
RETURNS SETOF tenure
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_length(p_limit);
BEGIN
  p_lock_name := coalesce(p_lock_name, '');  p_after := coalesce(p_after, '');
  p_after_token := coalesce(p_after_token, 0);  p_after_id := coalesce(p_after_id, 0);
  RETURN QUERY SELECT * FROM (
      (SELECT e.lock_name, e.token, e.id, e.at, e.kind, e.new_token, e.holder, e.slot, e.mode,
         e.capacity, e.granted_at, e.ended_at, e.number, e.session_id, e.subtree
       FROM events e WHERE CASE p_lock_name
         WHEN '' THEN (e.lock_name, e.token, e.id) > (p_after, p_after_token, p_after_id) AND e.lock_name <> ''
         ELSE e.lock_name = p_lock_name AND (e.token, e.id) > (p_after_token, p_after_id) END
       ORDER BY e.lock_name, e.token, e.id LIMIT p_limit)
      UNION ALL
      (SELECT (present_tenure(l)).* FROM locks l WHERE CASE p_lock_name
         WHEN '' THEN l.name >= p_after
           AND (l.name, l.token, 9223372036854775807) > (p_after, p_after_token, p_after_id)
         ELSE l.name = p_lock_name AND (l.token, 9223372036854775807) > (p_after_token, p_after_id) END
       ORDER BY l.name FETCH FIRST p_limit ROWS WITH TIES)) u
    ORDER BY u.lock_name, u.token, u.id LIMIT p_limit;
END $$;

-- clock_steps finds where the server's clock was set back by more than a tenth of a second between two entries of the
-- history: id is of the second, before and after are their times. It looks at p_limit entries after p_after; last is
-- the id of the last of them, for the next call, and NULL if there are none. There is one row without a step.
CREATE FUNCTION clock_steps(p_after bigint DEFAULT 0, p_limit int DEFAULT 100000)
RETURNS TABLE (id bigint, before timestamptz, after timestamptz, last bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
AS $$
  SELECT is_length(p_limit);
  WITH page AS MATERIALIZED (
    SELECT e.id, e.at, lag(e.at) OVER (ORDER BY e.id) AS before
    FROM (SELECT o.id, o.at FROM events o WHERE o.id >= p_after ORDER BY o.id LIMIT p_limit) e)
  SELECT s.id, s.before, s.at, m.last
  FROM (SELECT nullif(max(p.id), p_after) AS last FROM page p) m
    LEFT JOIN page s ON s.at < s.before - interval '0.1 s'
  ORDER BY s.id
$$;

-- prune_history removes entries that are older than p_older; NULL: older than the history is kept. A call is one step:
-- it looks at no more than p_limit entries after the one with the id p_after, the oldest first, besides up to nine
-- times as many of a time to come, which the clock has left that was set back. It returns how many went, and next: pass
-- that to the following step, each in a transaction by itself, until it is NULL. It locks what it removes and, if there
-- is anything, the record of the installation: nothing goes without the mark history_pruned, or it would look as if
-- somebody had changed the record. It does not wait for that record: while somebody else has locked it, it removes
-- nothing, and next is p_after.
CREATE FUNCTION prune_history(
  p_older interval DEFAULT NULL, p_limit int DEFAULT 1000, p_after bigint DEFAULT 0, OUT removed bigint,
  OUT next bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
DECLARE
  ok    boolean := require_read_committed()
    AND (p_older IS NULL OR is_age('older', p_older)) AND is_count('limit', p_limit, 1, 100000);
  upto  timestamptz := clock_timestamp() - coalesce(p_older, (SELECT i.history_keep FROM installation i));
  aged  bigint[];
BEGIN
  SELECT array_agg(p.id) FILTER (WHERE p.old), CASE WHEN count(*) = p_limit AND bool_or(p.old) THEN max(p.id) END,
      count(*) INTO aged, next, removed FROM (
      SELECT e.id, e.at < upto AS old FROM (
        SELECT o.id, o.at FROM events o WHERE o.id > coalesce(p_after, 0) ORDER BY o.id LIMIT 10 * p_limit) e
      WHERE e.at <= clock_timestamp() ORDER BY e.id LIMIT p_limit) p;
  IF removed < p_limit THEN                              -- it has looked at all of these
    SELECT max(e.id) INTO next FROM (
      SELECT o.id FROM events o WHERE o.id > coalesce(p_after, 0) ORDER BY o.id LIMIT 10 * p_limit) e
      HAVING count(*) = 10 * p_limit;
  END IF;
  removed := 0;
  IF aged IS NULL THEN
    RETURN;
  END IF;
  LOCK TABLE events IN ROW EXCLUSIVE MODE;               -- first: whoever waits for it does not keep the record
  UPDATE installation i SET history_pruned = upto FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) mine
    WHERE i.one = mine.one AND (i.history_pruned IS NULL OR i.history_pruned < upto);
  IF (SELECT i.history_pruned >= upto FROM installation i) IS NOT TRUE THEN
    next := coalesce(p_after, 0);
    RETURN;
  END IF;
  DELETE FROM events e WHERE e.id = ANY (ARRAY(
    SELECT o.id FROM events o WHERE o.id = ANY (aged) FOR UPDATE SKIP LOCKED));
  GET DIAGNOSTICS removed = ROW_COUNT;
  ok := bound_rest(false);
END $$;
