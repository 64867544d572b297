-- Which locks may not be well, for people. Nothing here locks a row, or reads all locks.

-- Slots that are held (runs), and whether the holder may not be well: a renewal is due, or it has given no sign of life
-- for longer than life_of allows (ails), or it waits for something itself (waits).
CREATE VIEW ailing AS
  SELECT l.name, l.slot, is_running(l.expires_at, l.ended_at) AS runs,
         l.renewed_at < clock_timestamp() - l.ttl / 3
           OR l.acquired_at < clock_timestamp() - interval '15 s' AND (
             GREATEST(CASE WHEN l.slowest IS NOT NULL THEN l.renewed_at END, s.seen_at)
               > clock_timestamp() - interval '15 s') IS NOT TRUE AS ails,
         EXISTS (SELECT FROM waiters q WHERE q.session_id = l.session_id) AS waits,
         l.served, l.ticket, coalesce(l.ended_at, l.expires_at) AS over
  FROM locks l
    LEFT JOIN LATERAL (SELECT o.seen_at FROM sessions o WHERE o.session_id = l.session_id OFFSET 0) s ON true;

-- touched_by says whether the open transactions of these processes have locked a row of the lock, or of one of its
-- first hundred fences, or have marked that they pass one for the first time (pass_first). 0 stands for the prepared
-- transactions.
CREATE FUNCTION touched_by(p_name text, p_pids int[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN EXISTS (
      SELECT FROM (
        SELECT l.xmax AS by FROM locks l WHERE l.name = p_name
        UNION ALL (SELECT f.xmax FROM fences f WHERE f.lock_name = p_name LIMIT 100)
        UNION ALL SELECT f.xmax FROM fences f WHERE f.resource = p_name) r
        CROSS JOIN LATERAL lockers(r.by) x (xid)
      WHERE r.by <> '0'::xid AND x.xid IN (
        SELECT t.transactionid FROM pg_locks t WHERE t.locktype = 'transactionid' AND t.granted
          AND t.mode = 'ExclusiveLock' AND coalesce(t.pid, 0) = ANY (p_pids)))
    OR EXISTS (
      SELECT FROM pg_locks m WHERE m.locktype = 'advisory' AND m.granted AND m.objsubid = 2 AND m.mode = 'ShareLock'
        AND hashtext(p_name)::oid IN (m.classid, m.objid) AND coalesce(m.pid, 0) = ANY (p_pids));
END $$;

-- suspects finds the locks that may not be well among p_names; with NULL, among all if there are no more than 1,000,
-- and otherwise among those that somebody waits for, whose holders have given signs of life and give none now, or that
-- have a broken guard or were broken within ten minutes. It errs on the side of suspicion: whoever looks at one lock
-- sees more (list_backends, list_waits). p_old are the processes whose open transactions have lasted, and 0 for the
-- prepared ones. However much there is, it looks at 20,000 tickets, 1,000 queues, 1,000 locks that clients have named
-- with their signs of life, 20,000 rows that an old transaction may have locked, 100 fences of each lock, and the last
-- 1,000 entries of the history; partly says that there was more. names are p_limit of those found, the likeliest
-- first, then the longest wait. locks and held count names and held locks in the first 1,001 rows, where p_names is
-- NULL.
CREATE FUNCTION suspects(p_names text[], p_old int[], p_limit int)
RETURNS TABLE (names text[], found int, queues int, partly boolean, locks int, held int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_count('limit', p_limit, 1, 1000)
    AND (p_names IS NULL OR is_batch(ARRAY[cardinality(p_names)]));
BEGIN RETURN QUERY
  WITH tickets AS MATERIALIZED (SELECT q.name, q.enqueued_at FROM waiters q WHERE p_names IS NULL LIMIT 20000),
    queues AS MATERIALIZED (
      SELECT t.name, min(t.enqueued_at) AS since FROM tickets t GROUP BY t.name ORDER BY 2 LIMIT 1000),
    noted AS MATERIALIZED (
      SELECT n.name COLLATE "C" AS name FROM sessions s CROSS JOIN LATERAL unnest(s.names) n (name)
      WHERE p_names IS NULL AND s.holds_until > clock_timestamp()
        AND (p_old <> '{}' OR s.seen_at < clock_timestamp() - interval '15 s')
      ORDER BY s.seen_at LIMIT 1000),
    broken AS MATERIALIZED (
      SELECT e.lock_name AS name FROM (SELECT * FROM events o ORDER BY o.id DESC LIMIT 1000) e
      WHERE e.kind = 'break' AND e.at > clock_timestamp() - interval '10 min'
      UNION SELECT g.resource FROM broken_guards(NULL) g),
    known AS MATERIALIZED (
      SELECT l.name, is_running(l.expires_at, l.ended_at) AS runs FROM locks l WHERE p_names IS NULL LIMIT 1001),
    locked AS MATERIALIZED (   -- by one transaction alone
      SELECT r.name FROM (
          (SELECT l.name, l.xmax AS by FROM locks l WHERE p_names IS NULL AND p_old <> '{}' LIMIT 20000)
          UNION ALL
          (SELECT f.lock_name, f.xmax FROM fences f WHERE p_names IS NULL AND p_old <> '{}' LIMIT 20000)) r
      WHERE r.by IN (SELECT t.transactionid FROM pg_locks t WHERE t.locktype = 'transactionid' AND t.granted
        AND t.mode = 'ExclusiveLock' AND coalesce(t.pid, 0) = ANY (p_old))),
    chosen AS MATERIALIZED (
      SELECT u.name COLLATE "C" AS name FROM unnest(p_names) u (name) UNION SELECT q.name FROM queues q
      UNION SELECT n.name FROM noted n UNION SELECT b.name FROM broken b WHERE p_names IS NULL
      UNION SELECT o.name FROM locked o
      UNION SELECT k.name FROM known k WHERE (SELECT count(*) FROM known) <= 1000),
    bad AS MATERIALIZED (
      SELECT c.name, w.since, CASE WHEN l.ails OR w.alive AND NOT l.held OR t.touched THEN 1
                                   WHEN l.waits THEN 2 ELSE 3 END AS rank
      FROM chosen c
        CROSS JOIN LATERAL (SELECT p_old <> '{}' AND touched_by(c.name, p_old) AS touched OFFSET 0) t
        CROSS JOIN LATERAL (
          SELECT bool_or(s.runs) AS held, bool_or(s.runs AND s.ails) AS ails,
                 bool_or(s.runs AND s.waits) AS waits, max(s.served) AS served,
                 max(s.ticket) FILTER (WHERE s.runs AND s.slot = 0) AS ticket, max(s.over) AS over
          FROM ailing s WHERE s.name = c.name OFFSET 0) l
        LEFT JOIN LATERAL (
          SELECT q.ticket, q.enqueued_at AS since, (
              SELECT o.alive_until > clock_timestamp() FROM sessions o WHERE o.session_id = q.session_id) AS alive
          FROM waiters q WHERE q.name = c.name AND q.ticket > l.served ORDER BY q.ticket LIMIT 1) w ON true
      WHERE l.ails OR l.waits OR w.ticket IS NOT NULL AND w.alive IS NOT TRUE OR l.held AND l.ticket > w.ticket
        OR NOT l.held AND w.alive AND (p_names IS NOT NULL OR l.over < clock_timestamp() - interval '3 s')
        OR t.touched OR EXISTS (SELECT FROM broken b WHERE b.name = c.name))
  SELECT (coalesce(array_agg(b.name ORDER BY b.rank, b.since, b.name), '{}'))[1:p_limit], count(*)::int,
         (SELECT count(*) FROM queues)::int,
         (SELECT count(*) FROM tickets) = 20000 OR (SELECT count(*) FROM queues) = 1000
           OR (SELECT count(*) FROM noted) = 1000,
         (SELECT count(DISTINCT name) FROM known)::int, (SELECT count(DISTINCT name) FROM known WHERE runs)::int
  FROM bad b;
END $$;

-- list_suspects is suspects, for the transactions that the caller sees: those older than a second, and those whose age
-- the server hides. It runs with the caller's rights, as list_backends does.
CREATE FUNCTION list_suspects(p_names text[] DEFAULT NULL, p_limit int DEFAULT 20)
RETURNS TABLE (names text[], found int, queues int, partly boolean, locks int, held int)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$
  SELECT s.* FROM (
      SELECT coalesce(array_agg(DISTINCT coalesce(k.pid, 0)), '{}') AS pids
      FROM pg_locks k LEFT JOIN pg_stat_activity a ON a.pid = k.pid
      WHERE k.locktype = 'relation' AND k.granted AND k.mode IN ('RowShareLock', 'RowExclusiveLock')
        AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND k.relation IN ('locks'::regclass, 'fences'::regclass)
        AND (k.pid IS NULL OR a.backend_start IS NULL OR a.xact_start < clock_timestamp() - interval '1 s')) old
    CROSS JOIN LATERAL suspects(p_names, old.pids, p_limit) s
$$;
