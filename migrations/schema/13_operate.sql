-- For operators.

-- diagnose_tokens is diagnose for tokens.
CREATE FUNCTION diagnose_tokens() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE AS $$
  WITH f AS MATERIALIZED (
    SELECT i.epoch, i.timeline_since AT TIME ZONE 'UTC' AS since, current_timeline() AS line,
      pg_is_in_recovery() AS standby, s.seqcache, s.seqincrement, s.seqmax,
      CASE WHEN s.seqcycle THEN 'cycles' ELSE 'no cycle' END AS cycles,
      q.last_value AS number, (i.epoch << 36) + q.last_value AS drawn,
      coalesce(GREATEST((SELECT max(l.token) FROM locks l), (SELECT max(f.last_token) FROM fences f)), 0) AS granted
    FROM installation i JOIN pg_sequence s ON s.seqrelid = 'fencing_token_seq'::regclass, fencing_token_seq q)
  SELECT v.* FROM f CROSS JOIN LATERAL (VALUES
    ('timeline', CASE WHEN NOT f.standby THEN f.line IS NOT NULL END,
     CASE WHEN f.standby THEN 'standby' ELSE coalesce(f.line::text, 'not visible') END, CASE
       WHEN f.standby THEN 'Ask the primary.' WHEN f.line > 0 THEN 'Tokens ascend over a failover that loses commits.'
       ELSE 'Lost: a failover that loses commits is not noticed, its tokens may be handed out again, and a grace does '
         'nothing. Let the owner of the schema execute pg_current_wal_lsn() and pg_walfile_name(pg_lsn).' END),
    ('epoch', CASE WHEN (f.epoch & 255) > 100 OR f.epoch >> 8 > 500000 THEN false END, format('%s.%s', f.epoch >> 8,
       f.epoch & 255) || coalesce(to_char(f.since, '", since "YYYY-MM-DD HH24:MI:SS" UTC"'), ''),
     'How often the timeline has changed, and how often tokens had to rise since then: 127 times at most.'),
    ('token sequence', f.seqcache = 1 AND f.seqincrement = 1 AND f.seqmax <= 8796093022207 AND f.cycles <> 'cycles'
       AND f.number < f.seqmax / 10 * 9,
     format('cache %s, increment %s, %s, %s %% used', f.seqcache, f.seqincrement, f.cycles, f.number * 100 / f.seqmax),
     'Anything but cache 1, increment 1, no cycle and a maximum of 8796093022207 hands tokens out of order. At the '
       'maximum nothing is granted any more.'),
    ('tokens', f.granted <= f.drawn, format('%s drawn, %s granted', f.drawn, f.granted), CASE
       WHEN f.granted <= f.drawn THEN 'The sequence is ahead of every token that was granted.'
       ELSE 'The sequence is behind tokens that were granted, as after a restore: names that are new would begin below '
         'them, and fences refuse that. Advance the epoch.' END)) AS v
$$;

-- diagnose_rights is diagnose for rights.
CREATE FUNCTION diagnose_rights() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE AS $$
  WITH w AS MATERIALIZED (SELECT o.*, row_number() OVER () AS n, count(*) OVER () AS all FROM wrong_rights() o)
  SELECT 'rights', true, 'as they must be', 'Only the functions touch the tables, and only the two roles call them.'
  WHERE NOT EXISTS (SELECT FROM w)
  UNION ALL
  SELECT 'rights on ' || w.object, false,
    w.grantee || CASE WHEN w.lacks THEN ' lacks ' ELSE ' has ' END || w.privileges,
    CASE WHEN w.lacks THEN 'What needs this right fails: ' ELSE 'Nobody may have this right: ' END || w.mend || '.'
  FROM w WHERE w.n <= 10
  UNION ALL
  SELECT 'rights', false, w.all - 10 || ' more are wrong', 'See object, grantee, privileges and mend of wrong_rights().'
  FROM w WHERE w.n = 11
$$;

-- diagnose says what this server can and cannot do for the locks. ok is NULL if that depends on the user's needs. It
-- locks nothing, and also answers on a standby.
CREATE FUNCTION diagnose() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$
  WITH f AS MATERIALIZED (
    SELECT r.rolname, r.rolsuper,
      (SELECT mxid_age(d.datminmxid) FROM pg_database d WHERE d.datname = current_database()) AS multis,
      (SELECT count(*) FROM pg_prepared_xacts p
       WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute') AS prepared,
      (SELECT clock_timestamp() - min(a.xact_start) FROM pg_stat_activity a
       WHERE a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database()) AS oldest,
      pg_has_role('pg_read_all_stats', 'USAGE') AS sees, pg_notification_queue_usage()::numeric AS heard,
      can_check_connection() AS checks, current_setting('transaction_timeout', true) IS NOT NULL AS bounds
    FROM pg_roles r WHERE r.rolname = current_user)   -- who is the owner here
  SELECT * FROM diagnose_tokens()
  UNION ALL
  SELECT v.* FROM f CROSS JOIN LATERAL (VALUES
    ('owner', NOT f.rolsuper, quote_ident(f.rolname) || CASE WHEN f.rolsuper THEN ', a superuser' ELSE '' END,
     'The functions run with the rights of their owner' || CASE WHEN f.rolsuper
       THEN '. One that is no superuser limits what a hole in them could do.' ELSE ', and it is no superuser.' END),
    ('multixacts', f.multis < 1000000000, f.multis || ' of 2147483648',
     'They are used where several transactions hold a row at once. Vacuum brings the number down.'),
    ('fsync', current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean,
     format('fsync %s, full_page_writes %s', current_setting('fsync'), current_setting('full_page_writes')),
     'With either off, a crash of the machine can lose grants that were answered.'),
    ('synchronous standby', NULL, coalesce(nullif(current_setting('synchronous_standby_names'), ''), 'none'),
     'Without one, a failover may lose the last grants and writes; tokens ascend all the same.'),
    ('client_connection_check_interval', f.checks, CASE WHEN f.checks THEN 'available' ELSE 'not available' END,
     'Without it, a holder that was killed while its statement runs blocks the next at the fence until that ends.'),
    ('transaction_timeout', f.bounds, CASE WHEN f.bounds THEN 'available' ELSE 'not available before PostgreSQL 17' END,
     'Without it, a fenced transaction that sends one short statement after the other may outlast its lease. '
     'It cannot commit.'),
    ('prepared transactions', f.prepared = 0, f.prepared || ' older than a minute',
     'One that was fenced keeps its lock and its fence for ever, until it is committed or rolled back.'),
    ('oldest transaction', CASE WHEN f.sees THEN (f.oldest > interval '10 minutes') IS NOT TRUE END, CASE
       WHEN NOT f.sees THEN 'not visible without pg_read_all_stats'
       ELSE coalesce(date_trunc('second', f.oldest)::text, 'none') END,
     'One that is open for long, and has read here or written anywhere, slows each renewal a little more.'),
    ('notification queue', f.heard < 0.5, round(f.heard * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.')) AS v
  UNION ALL
  SELECT * FROM diagnose_rights()
  UNION ALL
  SELECT 'guard of ' || g.table_name, g.problem IS NULL, g.resource || coalesce('/<' || g.key_column || '>', ''),
    coalesce(g.problem || '. Guard the table again.', 'Every write needs the fence of this resource.')
  FROM list_guards() g
$$;

-- prune_locks removes locks, with all their slots, that have been free for longer than p_idle, that nobody queues for
-- and that nobody watches. A call is one step: it looks at no more than p_limit names after p_after, in order. It
-- returns how many locks went, and next: pass that to the following step, each in a transaction by itself, until it is
-- NULL. It finds the locks without locking. To remove them it locks the table, before it locks or writes any row, and
-- waits for that at most a tenth of a second: so two that prune come one after the other. Then it locks the rows,
-- waiting for nobody: what has run out and has a renewal or a COMMIT under way stays. That keeps tokens in order
-- (I21): an INSERT locks the table before it draws a token, so no token is drawn before the row went and used after.
-- If the sequence does not know the greatest token of the rows, the epoch takes it over. The history gets the leases
-- that have run out.
CREATE FUNCTION prune_locks(
  p_idle interval DEFAULT '1 day', p_limit int DEFAULT 1000, p_after text DEFAULT '', OUT removed bigint, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '100ms' SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
  ok    boolean := require_read_committed()
    AND is_age('idle', p_idle) AND is_count('limit', p_limit, 1, 100000);
  since timestamptz := clock_timestamp() - p_idle;
  names text[];  mine text[];
  top   bigint;
  drawn bigint;
BEGIN
  SELECT array_agg(c.name ORDER BY c.name) INTO names FROM (
    SELECT i.name FROM locks i WHERE i.name > coalesce(p_after, '') AND i.slot = 0
      AND i.expires_at <= since AND GREATEST(i.ended_at, i.expires_at) <= since
    ORDER BY i.name LIMIT p_limit) c;
  removed := 0;
  IF names IS NULL THEN
    RETURN;
  END IF;
  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;
  mine := ARRAY(                         -- whoever has locked a row waits for our table lock: never wait for them
    SELECT r.name FROM unnest(names) AS c (name) CROSS JOIN LATERAL (   -- one by one: no plan reads the whole table
      SELECT i.name FROM locks i WHERE i.name = c.name FOR UPDATE OF i SKIP LOCKED) r);
  WITH idle AS MATERIALIZED (            -- a statement of its own: it sees the tickets of those who had locked a row
      SELECT m.name FROM (SELECT u.name, count(*) AS n FROM unnest(mine) AS u (name) GROUP BY u.name) m
        CROSS JOIN LATERAL (
          SELECT count(*) AS n, max(GREATEST(o.ended_at, o.expires_at)) AS ended,
                 max(GREATEST(o.spent_until, o.watched_until)) AS needed
          FROM locks o WHERE o.name = m.name) l
      WHERE (SELECT q.name FROM waiters q WHERE q.name = m.name LIMIT 1) IS NULL
        AND l.n = m.n AND l.ended <= since AND (l.needed <= clock_timestamp()) IS NOT FALSE),
    gone AS (DELETE FROM locks l WHERE l.name = ANY (ARRAY(SELECT i.name FROM idle i)) RETURNING l.*),
    noted AS (
      INSERT INTO events (kind, lock_name, token, holder, session_id, slot, mode, capacity, granted_at,
          ended_at, number)
        SELECT 'expired', g.name, g.token, g.holder, g.session_id, g.slot, g.mode, g.capacity,
          g.acquired_at, g.expires_at, g.grants
        FROM gone g WHERE g.expires_at > '-infinity')
    SELECT count(*) FILTER (WHERE slot = 0), max(token) INTO removed, top FROM gone;
  SELECT s.last_value INTO drawn FROM fencing_token_seq s;
  UPDATE installation i SET epoch = next_epoch(i.epoch, top, drawn) WHERE top > (i.epoch << 36) + drawn;
  IF cardinality(names) = p_limit THEN
    next := names[p_limit];
  END IF;
END $$;
