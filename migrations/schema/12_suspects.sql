-- Which locks may not be well, for people. Nothing here locks a row, or reads all locks.

-- Slots that are held (runs), and whether the holder may not be well: a renewal is due, or it has given no sign of life
-- for longer than life_of allows (ails), or it waits for something itself (waits). OFFSET 0 keeps the planner from
-- reading all waiters once for many locks.
CREATE VIEW ailing AS
  SELECT l.name, l.slot, is_running(l.expires_at, l.ended_at) AS runs,
         l.renewed_at < clock_timestamp() - l.ttl / 3
           OR l.acquired_at < clock_timestamp() - interval '15 s' AND (
             GREATEST(CASE WHEN l.slowest IS NOT NULL THEN l.renewed_at END, s.seen_at)
               > clock_timestamp() - interval '15 s') IS NOT TRUE AS ails,
         EXISTS (SELECT FROM waiters q WHERE q.session_id = l.session_id OFFSET 0) AS waits,
         l.served, l.ticket, coalesce(l.ended_at, l.expires_at) AS over
  FROM locks l
    LEFT JOIN LATERAL (SELECT o.seen_at FROM sessions o WHERE o.session_id = l.session_id OFFSET 0) s ON true;

-- Locks, with the condition of their holders, and of the first ticket that counts: nobody may hear of its session any
-- more (dead), or a later one was granted (passed). over is when a lease ended last. clear says of a free lock since
-- when nothing above or below is in the way of that ticket, if its session is alive.
CREATE VIEW conditions AS
  SELECT l.name, l.held, l.ails, l.waits, l.over, w.since,
         w.ticket IS NOT NULL AND w.alive IS NOT TRUE AS dead, l.held AND l.last > w.ticket AS passed,
         CASE WHEN NOT l.held AND w.alive THEN clear_since(w.w) END AS clear
  FROM (
      SELECT s.name, bool_or(s.runs) AS held, bool_or(s.runs AND s.ails) AS ails, bool_or(s.runs AND s.waits) AS waits,
             max(s.served) AS served, max(s.ticket) FILTER (WHERE s.runs AND s.slot = 0) AS last, max(s.over) AS over
      FROM ailing s GROUP BY s.name) l
    LEFT JOIN LATERAL (
      SELECT q AS w, q.ticket, q.enqueued_at AS since, (
          SELECT o.alive_until > clock_timestamp() FROM sessions o WHERE o.session_id = q.session_id) AS alive
      FROM waiters q WHERE q.name = l.name AND q.ticket > l.served ORDER BY q.ticket LIMIT 1) w ON true;

-- recent_news names the locks that were broken within ten minutes, and those of which one slot was lost three times
-- within an hour, the last time within ten minutes, as far as the last 1,000 entries of the history have them; none
-- that was pruned since. It tells operators alone, and nothing while somebody has locked the history.
CREATE FUNCTION recent_news() RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '100ms'
SET enable_seqscan = off SET enable_sort = off
AS $$
BEGIN
  IF pg_has_role(session_user, to_regrole('pglock_admin'), 'USAGE') THEN
    RETURN QUERY SELECT e.lock_name
      FROM (SELECT * FROM events o ORDER BY o.id DESC LIMIT 1000) e
      WHERE e.kind IN ('break', 'takeover') AND e.at > clock_timestamp() - interval '1 h'
      GROUP BY e.lock_name, e.slot, e.kind
      HAVING max(e.at) > clock_timestamp() - interval '10 min' AND (e.kind = 'break' OR count(*) >= 3)
        AND (SELECT true FROM locks l WHERE l.name = e.lock_name LIMIT 1);
  END IF;
EXCEPTION WHEN lock_not_available THEN
  RETURN;
END $$;

-- touched_by says whether one of these transactions has locked a row of the lock, or of one of its first hundred
-- fences, or whether one of these marks says that it passes one for the first time (pass_first).
CREATE FUNCTION touched_by(p_name text, p_xids xid[], p_marks oid[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN hashtext(p_name)::oid = ANY (p_marks) OR EXISTS (
    SELECT FROM (
      SELECT l.xmax AS by, l.xmin AS wrote, (
        SELECT q.xmin FROM waiters q WHERE q.name = l.name ORDER BY q.ticket DESC LIMIT 1) AS queued
      FROM locks l WHERE l.name = p_name
      UNION ALL (SELECT f.xmax, f.xmin, NULL FROM fences f WHERE f.lock_name = p_name LIMIT 100)
      UNION ALL SELECT f.xmax, f.xmin, NULL FROM fences f WHERE f.resource = p_name) r
      CROSS JOIN LATERAL lockers(r.by, ARRAY[r.wrote, r.queued]) x (xid)
    WHERE r.by <> '0'::xid AND x.xid = ANY (p_xids));
END $$;

-- suspects finds the locks that may not be well among p_names; with NULL, among all if they have no more than 1,000
-- rows, and otherwise among those that somebody waits for, whose holders have given signs of life and give none now,
-- whose rows or fences an old transaction has locked, or that have a broken guard or are in recent_news. It errs on
-- the side of suspicion: whoever looks at one lock sees more (list_backends, list_waits). p_old are the processes
-- whose open transactions have lasted, and 0 for the prepared ones. However much there is, it looks at 20,000 tickets,
-- 1,000 queues and 1,000 locks that clients have named with their signs of life (partly says that there was more of
-- these), and at 20,000 rows that an old transaction may have locked, 100 fences of each lock, and the last 1,000
-- entries of the history. names are p_limit of those found, the likeliest first, then the longest wait. queues counts
-- those in which somebody lives, of the first twenty in each. locks and held count names and held locks, where p_names
-- is NULL; locks is 1001 if there are more than 1,000 rows.
CREATE FUNCTION suspects(p_names text[], p_old int[], p_limit int)
RETURNS TABLE (names text[], found int, queues int, partly boolean, locks int, held int, standby boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok    boolean := is_count('limit', p_limit, 1, 1000)
    AND (p_names IS NULL OR is_batch(ARRAY[cardinality(p_names)]));
  xids  xid[] := ARRAY(SELECT t.transactionid FROM pg_locks t WHERE p_old <> '{}' AND t.locktype = 'transactionid'
    AND t.granted AND t.mode = 'ExclusiveLock' AND coalesce(t.pid, 0) = ANY (p_old));
  marks oid[] := ARRAY(SELECT unnest(ARRAY[m.classid, m.objid]) FROM pg_locks m WHERE p_old <> '{}'
    AND m.locktype = 'advisory' AND m.granted AND m.objsubid = 2 AND m.mode = 'ShareLock'
    AND coalesce(m.pid, 0) = ANY (p_old));
BEGIN RETURN QUERY
  WITH tickets AS MATERIALIZED (SELECT q.name, q.enqueued_at FROM waiters q WHERE p_names IS NULL LIMIT 20000),
    queues AS MATERIALIZED (
      SELECT t.name, min(t.enqueued_at) AS since FROM tickets t GROUP BY t.name ORDER BY 2 LIMIT 1000),
    noted AS MATERIALIZED (
      SELECT n.name COLLATE "C" AS name FROM sessions s CROSS JOIN LATERAL unnest(s.names) n (name)
      WHERE p_names IS NULL AND s.holds_until > clock_timestamp()
        AND (p_old <> '{}' OR s.seen_at < clock_timestamp() - interval '15 s')
      ORDER BY s.seen_at LIMIT 1000),
    news AS MATERIALIZED (SELECT DISTINCT n.name FROM recent_news() n (name)),
    guards AS MATERIALIZED (SELECT g.resource AS name, coalesce(g.key_column, '') AS key FROM broken_guards(NULL) g),
    known AS MATERIALIZED (
      SELECT l.name, is_running(l.expires_at, l.ended_at) AS runs FROM locks l WHERE p_names IS NULL LIMIT 1001),
    locked AS MATERIALIZED (   -- by one transaction alone
      SELECT r.name FROM (
          (SELECT l.name, l.xmax AS by FROM locks l WHERE p_names IS NULL AND p_old <> '{}' LIMIT 20000)
          UNION ALL
          (SELECT f.lock_name, f.xmax FROM fences f WHERE p_names IS NULL AND p_old <> '{}' LIMIT 20000)) r
      WHERE r.by = ANY (xids)),
    chosen AS MATERIALIZED (
      SELECT u.name COLLATE "C" AS name FROM unnest(p_names) u (name) UNION SELECT q.name FROM queues q
      UNION SELECT n.name FROM noted n UNION SELECT o.name FROM locked o UNION SELECT b.name FROM (
        SELECT * FROM news UNION SELECT g.name FROM guards g) b WHERE p_names IS NULL
      UNION SELECT k.name FROM known k WHERE (SELECT count(*) FROM known) <= 1000),
    bad AS MATERIALIZED (
      SELECT c.name, s.since, CASE WHEN s.ails OR s.clear IS NOT NULL OR t.touched THEN 1
                                   WHEN s.waits OR s.dead OR s.passed THEN 2 ELSE 3 END AS rank
      FROM chosen c LEFT JOIN LATERAL (SELECT * FROM conditions o WHERE o.name = c.name OFFSET 0) s ON true
        CROSS JOIN LATERAL (
          SELECT (xids <> '{}' OR marks <> '{}') AND touched_by(c.name, xids, marks) AS touched OFFSET 0) t
      WHERE s.ails OR s.waits OR s.dead OR s.passed OR t.touched OR c.name IN (SELECT n.name FROM news n)
        OR s.clear IS NOT NULL AND (
          p_names IS NOT NULL OR GREATEST(s.over, s.clear) < clock_timestamp() - interval '3 s')
        OR EXISTS (SELECT FROM guards g WHERE c.name = g.name OR g.key <> '' AND starts_with(c.name, g.name || '/')
          OR EXISTS (SELECT FROM fences f WHERE f.lock_name = c.name AND f.resource = g.name OFFSET 0)))
  SELECT (coalesce(array_agg(b.name ORDER BY b.rank, b.since, b.name), '{}'))[1:p_limit], count(*)::int,
         (SELECT count(*) FROM queues q WHERE EXISTS (SELECT FROM (
           SELECT w.session_id FROM few_tickets w WHERE w.name = q.name ORDER BY w.ticket LIMIT 20) w WHERE (
           SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = w.session_id)))::int,
         (SELECT count(*) FROM tickets) = 20000
           OR (SELECT count(*) FROM queues) = 1000 OR (SELECT count(*) FROM noted) = 1000,
         (SELECT CASE WHEN count(*) > 1000 THEN 1001 ELSE count(DISTINCT name) END FROM known)::int,
         (SELECT count(DISTINCT name) FROM known WHERE runs)::int, pg_is_in_recovery()
  FROM bad b;
END $$;

-- list_suspects is suspects, for the transactions that the caller sees: those older than a second, and those whose age
-- the server hides. It runs with the caller's rights, as list_backends does.
CREATE FUNCTION list_suspects(p_names text[] DEFAULT NULL, p_limit int DEFAULT 20)
RETURNS TABLE (names text[], found int, queues int, partly boolean, locks int, held int, standby boolean)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$
  SELECT s.* FROM (
      SELECT coalesce(array_agg(DISTINCT coalesce(k.pid, 0)), '{}') AS pids
      FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
      WHERE k.locktype = 'relation' AND k.granted AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
        AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND k.relation IN ('locks'::regclass, 'fences'::regclass)
        AND (k.pid IS NULL OR a.backend_start IS NULL OR a.state = 'disabled'       -- as in list_backends
             OR a.xact_start < clock_timestamp() - interval '1 s')) old
    CROSS JOIN LATERAL suspects(p_names, old.pids, p_limit) s
$$;
