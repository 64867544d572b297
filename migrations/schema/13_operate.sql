-- For operators.

-- diagnose tells what this server can and cannot do for the locks: ok is NULL where it depends on what is wanted.
CREATE FUNCTION diagnose() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  i         record;
  line      int := current_timeline();
  drawn     bigint := (SELECT s.last_value FROM fencing_token_seq s);
  greatest_ bigint := coalesce(GREATEST((SELECT max(l.token) FROM locks l), (SELECT max(f.last_token) FROM fences f)), 0);
  multis    bigint := (SELECT mxid_age(d.datminmxid) FROM pg_database d WHERE d.datname = current_database());
BEGIN
  SELECT * INTO i FROM installation;
  RETURN QUERY
    SELECT 'owner', NOT r.rolsuper, quote_ident(r.rolname) || CASE WHEN r.rolsuper THEN ', a superuser' ELSE '' END,
           CASE WHEN r.rolsuper THEN 'The functions run with the rights of their owner. One that is no superuser limits what a hole in them could do.'
                ELSE 'The functions run with its rights, and it is no superuser.' END
    FROM pg_roles r WHERE r.rolname = current_user;   -- this function runs with the rights of its owner too
  RETURN QUERY VALUES
    ('timeline', CASE WHEN NOT pg_is_in_recovery() THEN line IS NOT NULL END,
     CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE coalesce(line::text, 'not visible') END,
     CASE WHEN pg_is_in_recovery() THEN 'Ask the primary.' WHEN line IS NULL THEN 'Lost: a failover that loses commits is not noticed, its tokens may be handed out again, and a grace after it does nothing. '
       || 'Let the owner of the schema execute pg_current_wal_lsn() and pg_walfile_name(pg_lsn).'
     ELSE 'Tokens ascend over a failover that loses commits.' END),
    ('epoch', NULL, i.epoch::text || coalesce(', since ' || to_char(i.timeline_since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', ''),
     'The high bits of new tokens (2^44 and up); it grows with each change of the timeline.'),
    ('token sequence', (SELECT s.seqcache = 1 AND NOT s.seqcycle AND s.seqincrement = 1 FROM pg_sequence s WHERE s.seqrelid = 'fencing_token_seq'::regclass),
     (SELECT format('cache %s, increment %s, %s', s.seqcache, s.seqincrement, CASE WHEN s.seqcycle THEN 'cycles' ELSE 'no cycle' END)
      FROM pg_sequence s WHERE s.seqrelid = 'fencing_token_seq'::regclass),
     'Anything but cache 1, increment 1 and no cycle hands tokens out of order.'),
    ('tokens', greatest_ <= (i.epoch << 44) + drawn, format('%s drawn, %s granted', (i.epoch << 44) + drawn, greatest_),
     CASE WHEN greatest_ <= (i.epoch << 44) + drawn THEN 'The sequence is ahead of every token that was granted.'
          ELSE 'The sequence is behind tokens that were granted, as after a restore: names that are new would begin below them, and fences refuse that. Advance the epoch.' END),
    ('multixacts', multis < 1000000000, multis || ' of 2147483648',
     'They are used where several transactions hold a row at once. Vacuum brings the number down.'),
    ('fsync', current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean,
     'fsync ' || current_setting('fsync') || ', full_page_writes ' || current_setting('full_page_writes'),
     'With either off, a crash of the machine can lose grants that were answered.'),
    ('synchronous standby', NULL, coalesce(nullif(current_setting('synchronous_standby_names'), ''), 'none'),
     'Without one, a failover may lose the last grants and writes; tokens ascend all the same.'),
    ('client_connection_check_interval', can_check_connection(), CASE WHEN can_check_connection() THEN 'available' ELSE 'not available' END,
     'Without it, a holder that was killed while its statement runs blocks the next at the fence until the statement ends.'),
    ('transaction_timeout', current_setting('server_version_num')::int >= 170000,
     CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'available' ELSE 'not available before PostgreSQL 17' END,
     'Without it, a fenced transaction that sends one short statement after the other may outlast its lease. It cannot commit.'),
    ('prepared transactions', NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute'),
     (SELECT count(*)::text FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute') || ' older than a minute',
     'One that was fenced keeps its lock and its fence for ever, until it is committed or rolled back.'),
    ('oldest transaction', CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN
        coalesce((SELECT min(a.xact_start) > clock_timestamp() - interval '10 minutes' FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database()), true) END,
     CASE WHEN NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN 'not visible without pg_read_all_stats' ELSE coalesce((SELECT date_trunc('second', clock_timestamp() - min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database()), 'none') END,
     'One that is open for long makes each renewal a little slower than the one before: one that has read here, or has written in any database.'),
    ('notification queue', pg_notification_queue_usage() < 0.5, round(pg_notification_queue_usage()::numeric * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.');
  RETURN QUERY
    SELECT 'guard of ' || g.table_name, g.problem IS NULL, g.resource || coalesce('/<' || g.key_column || '>', ''),
           coalesce(g.problem || '. Guard the table again.', 'Every write needs the fence of this resource.') FROM list_guards() g;
END $$;

-- prune_locks removes locks with all their slots that have been free for longer than p_idle and that nobody queues for. A
-- call is one step: at most p_limit names after p_after, in the order of names. Give it next until that is NULL, each time
-- in a transaction of its own. It looks for them without a lock, and takes the table's only to remove them: it keeps tokens
-- in order, as an INSERT takes its own lock of the table before it draws a token, so that none was drawn before the row went
-- and used after. What the rows knew of the greatest token goes into the epoch, where the sequence does not know it.
CREATE FUNCTION prune_locks(
  p_idle interval DEFAULT '1 day', p_limit int DEFAULT 1000, p_after text DEFAULT '', OUT removed bigint, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '100ms' SET jit = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
  ok    boolean := require_read_committed();
  since timestamptz;
  names text[];
  top   bigint;
BEGIN
  IF p_idle IS NULL OR p_idle < interval '0' OR p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 100000 THEN
    ok := refuse(CASE WHEN p_idle >= interval '0' THEN 'limit' ELSE 'idle' END,
                 CASE WHEN p_idle >= interval '0' THEN p_limit::text ELSE p_idle::text END,
                 CASE WHEN p_idle >= interval '0' THEN 'be from 1 to 100000' ELSE 'not be negative' END);
  END IF;
  since := clock_timestamp() - p_idle;
  removed := 0;
  SELECT array_agg(c.name ORDER BY c.name) INTO names FROM (
    SELECT i.name FROM locks i
    WHERE i.name > coalesce(p_after, '') AND i.slot = 0 AND i.expires_at <= since AND GREATEST(i.ended_at, i.expires_at) <= since
    ORDER BY i.name LIMIT p_limit) c;
  IF names IS NULL THEN
    RETURN;
  END IF;
  PERFORM settle(n) FROM unnest(names) n;
  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;
  WITH idle AS MATERIALIZED (                            -- whoever has locked a head waits for our table lock: never wait for them
      SELECT f.name FROM unnest(names) AS c (name) CROSS JOIN LATERAL (   -- one by one, so that no plan reads the whole table
        SELECT i.name FROM locks i
        WHERE i.name = c.name AND i.slot = 0 AND is_over(i.expires_at, i.ended_at) AND GREATEST(i.ended_at, i.expires_at) <= since
          AND NOT EXISTS (SELECT FROM locks o WHERE o.name = i.name AND o.slot > 0
                          AND (NOT is_over(o.expires_at, o.ended_at) OR GREATEST(o.ended_at, o.expires_at) > since))
          AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = i.name)
          AND (i.spent_until IS NULL OR i.spent_until <= clock_timestamp())
        FOR UPDATE OF i SKIP LOCKED) f),
    gone AS (DELETE FROM locks l USING idle WHERE l.name = idle.name RETURNING l.slot, l.token)
    SELECT count(*) FILTER (WHERE slot = 0), max(token) INTO removed, top FROM gone;
  UPDATE installation i SET epoch = LEAST((top >> 44) + 1, 524287)
    WHERE top > (i.epoch << 44) + (SELECT s.last_value FROM fencing_token_seq s);
  IF cardinality(names) = p_limit THEN
    next := names[p_limit];
  END IF;
END $$;

CREATE FUNCTION prune_events(p_older interval DEFAULT '90 days') RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  n bigint;
BEGIN
  IF p_older IS NULL OR p_older < interval '0' THEN
    n := refuse('older', p_older::text, 'not be negative')::int;
  END IF;
  DELETE FROM events e WHERE e.at < clock_timestamp() - p_older;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;
