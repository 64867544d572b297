-- For operators.

-- diagnose_tokens is diagnose for tokens.
CREATE FUNCTION diagnose_tokens() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE AS $$
  WITH f AS MATERIALIZED (
    SELECT i.epoch, i.timeline_since AT TIME ZONE interval '0' AS since, current_timeline() AS line,
      pg_is_in_recovery() AS standby, s.seqcache, s.seqincrement, s.seqmax,
      CASE WHEN s.seqcycle THEN 'cycles' ELSE 'no cycle' END AS cycles,
      q.number, (i.epoch << 36) + q.number AS drawn,
      coalesce(GREATEST((SELECT max(l.token) FROM locks l), (SELECT max(f.last_token) FROM fences f)), 0) AS granted
    FROM installation i JOIN pg_sequence s ON s.seqrelid = 'fencing_token_seq'::regclass,
      (SELECT o.last_value - (NOT o.is_called)::int AS number FROM fencing_token_seq o) q)   -- the last one drawn
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
  WITH w AS MATERIALIZED (SELECT o.*, row_number() OVER () AS n, count(*) OVER () AS all FROM wrong_rights() o),
    others AS (   -- who was given some of what every user may call: nothing is wrong with that
      SELECT role_name(r.grantee) AS who, count(DISTINCT r.object) AS functions FROM rights_on_objects() r
      WHERE r.kind = 'FUNCTION' AND r.grantor IS NOT NULL AND NOT r.must AND r.grantee <> r.owner GROUP BY r.grantee),
    named AS (SELECT o.*, row_number() OVER (ORDER BY o.who) AS n, count(*) OVER () AS all FROM others o)
  SELECT 'rights', true, 'as they must be', 'Only the functions touch the tables, and only the two roles call them'
    || coalesce('; some of those of pglock_user also others: ' || (
      SELECT string_agg(CASE WHEN n.n > 10 THEN 'and ' || n.all - 10 || ' more'
        ELSE format('%s (%s)', n.who, n.functions) END, ', ' ORDER BY n.n) FROM named n WHERE n.n <= 11), '') || '.'
  WHERE NOT EXISTS (SELECT FROM w)
  UNION ALL
  SELECT 'rights on ' || w.object, false,
    w.grantee || CASE WHEN w.lacks THEN ' lacks ' ELSE ' has ' END || w.privileges,
    CASE WHEN w.lacks THEN 'What needs this right fails: ' ELSE 'It must not have this right: ' END || w.mend || '.'
  FROM w WHERE w.n <= 10
  UNION ALL
  SELECT 'rights', false, w.all - 10 || ' more are wrong', 'See object, grantee, privileges and mend of wrong_rights().'
  FROM w WHERE w.n = 11
  UNION ALL   -- a new partition gets the trigger if whoever makes it may call its function
  SELECT format('partitions of %I.%I', s.nspname, c.relname), NULL, role_name(c.relowner) || ' can make none',
    format('Whoever makes a partition of a guarded table needs the role pglock_user, and its owner lacks it: '
           'GRANT pglock_user TO %s.', role_name(c.relowner))
  FROM pg_class c JOIN pg_namespace s ON s.oid = c.relnamespace
  WHERE c.relkind = 'p' AND c.oid IN (SELECT t.on_table FROM made_triggers() t)
    AND NOT has_function_privilege(c.relowner, 'guard_write()', 'EXECUTE')
$$;

-- locked_by names up to three locks whose rows, or rows of whose fences, the transaction of a process has locked, or a
-- prepared one with this number. It looks at the first thousand rows of each table, and at none that the transaction
-- does not use: so it costs little, however many locks there are. NULL if it finds none. A row that the transaction has
-- made is visible to nobody yet.
CREATE FUNCTION locked_by(p_pid int, p_xid xid) RETURNS text
LANGUAGE sql VOLATILE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
  WITH k AS MATERIALIZED (
      SELECT * FROM pg_locks o WHERE o.granted AND o.pid IS NOT DISTINCT FROM p_pid
        AND o.locktype IN ('transactionid', 'relation')),
    ours AS MATERIALIZED (   -- all prepared transactions have the same pid, NULL
      SELECT * FROM k WHERE p_pid IS NOT NULL
        OR k.virtualtransaction = (SELECT t.virtualtransaction FROM k t WHERE t.transactionid = p_xid)),
    used AS MATERIALIZED (
      SELECT o.relation FROM ours o WHERE o.mode IN ('RowShareLock', 'RowExclusiveLock')
        AND o.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
    seen AS MATERIALIZED (
      SELECT l.name, l.by, l.wrote, (
        SELECT q.xmin FROM waiters q WHERE q.name = l.name ORDER BY q.ticket DESC LIMIT 1) AS queued
      FROM (SELECT i.name, i.xmax AS by, i.xmin AS wrote FROM locks i ORDER BY i.name LIMIT 1000) l
      WHERE EXISTS (SELECT FROM used u WHERE u.relation = 'locks'::regclass)
      UNION ALL
      SELECT f.lock_name, f.by, f.wrote, NULL FROM (
        SELECT i.lock_name, i.xmax AS by, i.xmin AS wrote FROM fences i ORDER BY i.lock_name LIMIT 1000) f
      WHERE EXISTS (SELECT FROM used u WHERE u.relation = 'fences'::regclass)),
    found AS MATERIALIZED (
      SELECT s.name FROM seen s WHERE s.by <> '0'::xid AND EXISTS (
        SELECT FROM lockers(s.by, ARRAY[s.wrote, s.queued]) x (xid)
          JOIN ours o ON o.transactionid = x.xid AND o.mode = 'ExclusiveLock')
      GROUP BY s.name),
    named AS (SELECT f.name, row_number() OVER (ORDER BY f.name) AS n, count(*) OVER () AS all FROM found f)
  SELECT string_agg(CASE WHEN n.n > 3 THEN 'and ' || n.all - 3 || ' more' ELSE quote_literal(n.name) END, ', '
                    ORDER BY n.n)
  FROM named n WHERE n.n <= 4
$$;

-- diagnose_transactions is diagnose for transactions that have been open for long. It names them by what everybody may
-- see in pg_stat_activity and pg_prepared_xacts, with the command that ends them: three of each kind, the oldest first.
CREATE FUNCTION diagnose_transactions() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE AS $$
  WITH f AS MATERIALIZED (
      SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS sees, pg_is_in_recovery() AS standby),
    prepared AS MATERIALIZED (
      SELECT format('%s of user %s, %s old', quote_literal(p.gid), quote_ident(p.owner),
               date_trunc('second', clock_timestamp() - p.prepared)) AS who,
             locked_by(NULL, p.transaction) AS keeps, quote_literal(p.gid) AS id, p.n, p.all
      FROM (SELECT *, row_number() OVER (ORDER BY o.prepared, o.gid) AS n, count(*) OVER () AS all
            FROM pg_prepared_xacts o
            WHERE o.database = current_database() AND o.prepared < clock_timestamp() - interval '1 minute') p
      WHERE p.n <= 3),
    open AS MATERIALIZED (
      SELECT a.*, row_number() OVER (ORDER BY a.xact_start, a.pid) AS n, clock_timestamp() - a.xact_start AS age
      FROM pg_stat_activity a WHERE (a.xact_start IS NOT NULL OR a.state = 'disabled')
        AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database())),
    old AS MATERIALIZED (
      SELECT o.n, o.pid, count(*) OVER () AS all, format('process %s, %s%s%s, %s, open for %s', o.pid,
               CASE WHEN o.application_name > '' THEN quote_literal(o.application_name) ELSE o.backend_type END,
               ' of user ' || quote_ident(o.usename),
               CASE WHEN o.datname <> current_database() THEN ' in database ' || quote_ident(o.datname) END,
               coalesce(o.state, 'at work'), date_trunc('second', o.age)) AS who,
             CASE WHEN o.datname = current_database() AND o.n <= 3 THEN locked_by(o.pid, NULL) END AS keeps,
             CASE WHEN o.wait_event = 'SyncRep' THEN ', commits and waits for a standby: do not end it.'
               ELSE format(': SELECT pg_terminate_backend(%s) ends it.', o.pid) END AS ends
      FROM open o WHERE o.age > interval '10 minutes')
  SELECT 'prepared transactions', CASE WHEN NOT f.standby THEN t.n = 0 END,
    CASE WHEN f.standby THEN 'standby' ELSE t.n || ' older than a minute' END,
    CASE WHEN f.standby THEN 'Ask the primary.'
         ELSE 'One that was fenced keeps its lock and its fence for ever, until it is committed or rolled back.' END
      || coalesce(' ' || t.who, '')
  FROM f, (SELECT coalesce(max(p.all), 0) AS n, string_agg(p.who || coalesce(', keeps lock ' || p.keeps, '') || format(
      ': COMMIT PREPARED %s or ROLLBACK PREPARED %1$s ends it.', p.id), ' ' ORDER BY p.n) AS who FROM prepared p) t
  UNION ALL
  SELECT 'oldest transaction',
    CASE WHEN f.sees AND NOT f.standby AND (t.who IS NOT NULL OR h.n = 0) THEN t.who IS NULL END, CASE
      WHEN f.standby THEN 'standby' WHEN NOT f.sees THEN 'not visible without pg_read_all_stats'
      ELSE coalesce(date_trunc('second', (SELECT max(o.age) FROM open o))::text, 'none')
        || CASE WHEN h.n > 0 THEN format(', and %s of unknown age', h.n) ELSE '' END END,
    CASE WHEN f.standby THEN 'Ask the primary.' ELSE
      'One that is open for long, and has read here or written anywhere, slows each renewal a little more.' END
      || CASE WHEN f.sees AND NOT f.standby THEN coalesce(' ' || t.who, '') || CASE WHEN h.n > 0
           THEN ' Nobody sees the age of those whose track_activities is off.' ELSE '' END ELSE '' END
  FROM f, (SELECT count(*) AS n FROM open o WHERE o.age IS NULL AND o.pid <> pg_backend_pid()) h, (
    SELECT string_agg(o.who || coalesce(', keeps lock ' || o.keeps, '') || o.ends, ' ' ORDER BY o.n)
      FILTER (WHERE o.n <= 3)
      || CASE WHEN max(o.all) > 3 THEN ' Older than ten minutes, too: ' || max(o.all) - 3 || ' more.'
           ELSE '' END AS who FROM old o) t
$$;

-- diagnose_replication is diagnose for what a failover needs. Everybody may count the standbys that are connected;
-- which of them are synchronous takes pg_read_all_stats. p_hosts and p_chooses are about the caller's connection
-- string: how many servers it names, and whether it asks for one that takes writes. NULL: nobody knows.
CREATE FUNCTION diagnose_replication(p_hosts int, p_chooses boolean)
RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE AS $$
  WITH f AS MATERIALIZED (
    SELECT pg_is_in_recovery() AS standby, nullif(btrim(current_setting('synchronous_standby_names')), '') AS names,
      r.n, CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN r.safe ELSE r.n END < coalesce((regexp_match(
        current_setting('synchronous_standby_names') COLLATE "C",   -- no backslash: the session may read it otherwise
        '^[[:space:]]*(?:first[[:space:]]+|any[[:space:]]+)?([0-9]+)[[:space:]]*[(]', 'i'))[1]::int, 1) AS few,
      r.n || CASE WHEN r.n = 1 THEN ' standby is connected' ELSE ' standbys are connected' END AS connected,
      (SELECT g.reset_val FROM pg_settings g WHERE g.name = 'synchronous_commit') AS waits,
      (SELECT string_agg(format('; %s for %s', split_part(c.line, '=', 2), coalesce('role ' || quote_ident(o.rolname),
           'this database')), '' ORDER BY o.rolname)
       FROM pg_db_role_setting d CROSS JOIN unnest(d.setconfig) AS c (line) LEFT JOIN pg_roles o ON o.oid = d.setrole
       WHERE c.line COLLATE "C" ~* '^synchronous_commit=(off|local|false|no|0)$' AND (d.setdatabase = 0   -- as typed
         OR d.setdatabase = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database()))) AS others
    FROM (SELECT count(*) AS n, count(*) FILTER (WHERE w.sync_state IN ('sync', 'quorum')) AS safe
          FROM pg_stat_replication w
          WHERE w.state IS DISTINCT FROM 'backup' AND NOT EXISTS (   -- a subscriber is no standby
            SELECT FROM pg_replication_slots s WHERE s.active_pid = w.pid AND s.slot_type = 'logical')) r)
  SELECT 'synchronous standby', CASE WHEN NOT f.standby AND f.names IS NOT NULL THEN NOT f.few END,
    CASE WHEN f.standby THEN 'standby' ELSE coalesce(f.names, 'none') END, CASE
      WHEN f.standby THEN 'Ask the primary.'
      WHEN f.names IS NULL THEN 'Without one, a failover may lose the last grants and writes; tokens ascend all the '
        'same.' || CASE WHEN f.n > 0 THEN ' ' || f.connected || ': synchronous_standby_names may name one.' ELSE '' END
      WHEN f.few THEN 'Fewer of these are connected than a commit waits for: grants and commits hang until they are, '
        'or until synchronous_standby_names is changed.'
      ELSE 'What was answered is there, too, and outlives this server.' END
  FROM f
  UNION ALL
  SELECT 'synchronous_commit', CASE WHEN f.waits NOT IN ('off', 'local') AND f.others IS NULL THEN true END,
    f.waits || coalesce(f.others, ''), 'Grants and renewals wait for the disk in any case.' || CASE
      WHEN f.waits NOT IN ('off', 'local') AND f.others IS NULL THEN ' So do fenced writes.'
      ELSE ' A fenced write does not where this is off, nor for a standby where it is local: a crash or a failover may '
        'take back what was committed last.' END
  FROM f
  UNION ALL
  SELECT 'hosts', CASE WHEN NOT (p_hosts = 1 AND f.n > 0) AND NOT (p_hosts > 1 AND p_chooses IS NOT TRUE) THEN true END,
    p_hosts || CASE WHEN f.n > 0 THEN ', ' || f.connected ELSE '' END, CASE
      WHEN p_hosts = 1 AND f.n > 0 THEN 'This connection string knows no other server after a failover, unless its '
        'host then leads to the new primary. Name all hosts, with target_session_attrs=read-write.'
      WHEN p_hosts = 1 THEN 'No standby is connected that a connection string could name.'
      WHEN p_chooses THEN 'Of the hosts in the connection string, a client takes the one that takes writes.'
      ELSE 'Without target_session_attrs=read-write a client takes the first host that answers, be it a standby.' END
  FROM f WHERE p_hosts IS NOT NULL
$$;

-- diagnose says what this server can and cannot do for the locks. ok is NULL if that depends on the user's needs. It
-- locks nothing, and also answers on a standby.
CREATE FUNCTION diagnose(p_hosts int DEFAULT NULL, p_chooses boolean DEFAULT NULL)
RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET intervalstyle = 'postgres' AS $$
  WITH f AS MATERIALIZED (
    SELECT r.rolname, r.rolsuper,
      (SELECT mxid_age(d.datminmxid) FROM pg_database d WHERE d.datname = current_database()) AS multis,
      pg_notification_queue_usage()::numeric AS heard,
      can_check_connection() AS checks, current_setting('transaction_timeout', true) IS NOT NULL AS bounds,
      (SELECT t.tgenabled FROM pg_trigger t WHERE t.tgrelid = 'fences'::regclass AND t.tgname = 'fence_commit') AS armed
    FROM pg_roles r WHERE r.rolname = current_user   -- who is the owner here
      AND database_id() IS NOT NULL)                 -- which fails where findings would be missing
  SELECT * FROM diagnose_tokens()
  UNION ALL
  SELECT v.* FROM f CROSS JOIN LATERAL (VALUES
    ('owner', NOT f.rolsuper, quote_ident(f.rolname) || CASE WHEN f.rolsuper THEN ', a superuser' ELSE '' END,
     'The functions run with the rights of their owner' || CASE WHEN f.rolsuper
       THEN '. One that is no superuser limits what a hole in them could do.' ELSE ', and it is no superuser.' END),
    ('check inside COMMIT', f.armed IS NOT DISTINCT FROM 'A', CASE f.armed WHEN 'A' THEN 'always on'
       WHEN 'D' THEN 'switched off' WHEN 'O' THEN 'off under session_replication_role'
       WHEN 'R' THEN 'on under session_replication_role alone' ELSE 'missing' END,
     CASE WHEN f.armed = 'A' THEN 'A fenced transaction commits only while its lease stands.'
       ELSE 'A fenced transaction can commit when its lease has ended and others hold the lock: ' || CASE
         WHEN f.armed IS NULL THEN 'make its trigger fence_commit again, as the migration does.' ELSE format(
         'ALTER TABLE %I.fences ENABLE ALWAYS TRIGGER fence_commit.', current_schema()) END END),
    ('multixacts', f.multis < 1000000000, f.multis || ' of 2147483648',
     'They are used where several transactions hold a row at once. Vacuum brings the number down.'),
    ('fsync', current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean,
     format('fsync %s, full_page_writes %s', current_setting('fsync'), current_setting('full_page_writes')),
     'With either off, a crash of the machine can lose grants that were answered.'),
    ('client_connection_check_interval', f.checks, CASE WHEN f.checks THEN 'available' ELSE 'not available' END,
     'Without it, a holder that was killed while its statement runs blocks the next at the fence until that ends.'),
    ('transaction_timeout', f.bounds, CASE WHEN f.bounds THEN 'available' ELSE 'not available before PostgreSQL 17' END,
     'Without it, a fenced transaction that sends one short statement after the other may outlast its lease. '
     'It cannot commit.'),
    ('notification queue', f.heard < 0.5, round(f.heard * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.')) AS v
  UNION ALL
  SELECT * FROM diagnose_replication(p_hosts, p_chooses)
  UNION ALL
  SELECT * FROM diagnose_transactions()
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
-- that have run out. The mark of a subtree counts while there is a request for one: a sweep may have found the head
-- locked.
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
          ended_at, number, subtree)
        SELECT 'expired', g.name, g.token, g.holder, g.session_id, g.slot, g.mode, g.capacity,
          g.acquired_at, g.expires_at, g.grants, g.subtree
        FROM gone g WHERE g.expires_at > '-infinity')
    SELECT count(*) FILTER (WHERE slot = 0), max(token) INTO removed, top FROM gone;
  SELECT s.last_value INTO drawn FROM fencing_token_seq s;
  UPDATE installation i SET epoch = next_epoch(i.epoch, top, drawn) WHERE top > (i.epoch << 36) + drawn;
  IF cardinality(names) = p_limit THEN
    next := names[p_limit];
  END IF;
  ok := bound_rest(false);
END $$;
