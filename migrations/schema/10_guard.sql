-- Guards. The fence's row, which only fence() writes, proves that a transaction has passed a fence: it carries the
-- transaction's ID, and a rolled back subtransaction takes it away again. A row that a dump has brought from a server
-- with other IDs is older than the transaction.

-- require_fence returns true if this transaction has passed the fence of p_resource, or an operator lets it write
-- without one, in which case it notes the table. The fence of a name above will do, if a subtree's lease passed it. If
-- the row of that lease is another grant's now, nobody can tell whether it was a subtree's, but it is lost (LK003).
-- Otherwise require_fence raises LK011 (I3). p_column: the row has no key there, and so no fence. It locks nothing but
-- the operator's event, which is this transaction's own.
CREATE FUNCTION require_fence(p_resource text, p_schema text, p_table text, p_column text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off
AS $$
DECLARE
  mine xid8 := pg_current_xact_id_if_assigned();
  name text;
  e    record;
  lost record;
BEGIN
  IF p_column IS NULL AND EXISTS (
      SELECT FROM fences f
      WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp()
      UNION ALL
      SELECT FROM fences f CROSS JOIN LATERAL (
        SELECT l.subtree, l.grant_id FROM locks l WHERE l.name = f.lock_name AND l.slot = f.slot OFFSET 0) l
      WHERE f.resource = ANY (ancestors(p_resource)) AND f.fenced_xact = mine
        AND f.advanced_at >= transaction_timestamp() AND l.subtree AND l.grant_id = f.grant_id) THEN
    RETURN true;
  END IF;
  name := format('%I.%I', p_schema, p_table);
  SELECT b.id, coalesce(b.resource, '{}') AS tables INTO e FROM events b
    WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();
  IF FOUND THEN
    IF NOT ARRAY[name, '...'] && e.tables THEN
      UPDATE events b SET resource = e.tables || CASE WHEN octet_length(e.tables::text) < 4096 THEN name ELSE '...' END
        WHERE b.id = e.id;
    END IF;
    RETURN true;
  END IF;
  SELECT f.lock_name, f.last_token, f.grant_id, f.slot INTO lost FROM fences f
    WHERE p_column IS NULL AND f.resource = ANY (ancestors(p_resource)) AND f.fenced_xact = mine
      AND f.advanced_at >= transaction_timestamp() AND NOT EXISTS (
        SELECT FROM locks l WHERE l.name = f.lock_name AND l.slot = f.slot AND l.grant_id = f.grant_id OFFSET 0)
    LIMIT 1;
  IF FOUND THEN
    PERFORM refuse_lease(lost.lock_name, lost.last_token, lost.grant_id, lost.slot);
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'LK011', SCHEMA = p_schema, TABLE = p_table, COLUMN = coalesce(p_column, ''),
    CONSTRAINT = current_schema(), DETAIL = 'resource=' || left(p_resource, 512),
    MESSAGE = CASE
      WHEN p_column IS NOT NULL
      THEN format('key column %I of guarded table %I.%I is NULL or missing, or of a type that cannot be a key: '
                  'a row without a key has no fence', p_column, p_schema, p_table)
      WHEN octet_length(p_resource) > 512
      THEN format('table %I.%I is guarded, and the resource of this row has %s bytes: fences have at most 512, '
                  'so nobody can write it without a bypass', p_schema, p_table, octet_length(p_resource))
      ELSE format('table %I.%I is guarded: this transaction has not passed the fence of %L',
                  p_schema, p_table, p_resource) END,
    HINT = CASE WHEN p_column IS NULL AND octet_length(p_resource) <= 512
      THEN format('Acquire the lock that protects it and pass its fence first, in the same transaction: '
                  'SELECT %I.fence(..., p_resource => %L). ', current_schema(), p_resource) ELSE '' END
      || format('Operators: SELECT %I.bypass_guards(reason, actor).', current_schema());
END $$;

-- guard_write is the trigger of guarded tables: guard_write(resource), or guard_write(resource, key column), where each
-- row has its own fence. For rows it runs AFTER the write, on the row as the other triggers have left it. TRUNCATE
-- needs the fence of the resource. It locks nothing, and its result means nothing. It qualifies all names: to fix the
-- search_path for each row would cost a quarter of its time.
CREATE FUNCTION guard_write() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
  passed pg_catalog.xid8;
  since  pg_catalog.timestamptz;
  ok     pg_catalog.bool;
BEGIN
  IF TG_NARGS OPERATOR(pg_catalog.>) 1 AND TG_LEVEL OPERATOR(pg_catalog.=) 'ROW' THEN
    ok := {{schema}}.guard_row(TG_RELID, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP, TG_ARGV[0], TG_ARGV[1], OLD, NEW);
    RETURN NULL;
  END IF;
  SELECT f.fenced_xact, f.advanced_at INTO passed, since FROM {{schema}}.fences f       -- require_fence, written out
    WHERE f.resource OPERATOR(pg_catalog.=) TG_ARGV[0];
  IF (passed OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()
      AND since OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp()) IS NOT TRUE THEN
    PERFORM {{schema}}.require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME);
  END IF;
  RETURN NULL;
END $$;

-- guard_row asks for the fences of the key that a row had and of the key that it has (I3). It runs with the rights of
-- the schema's owner, so it must run no code of the table's owner (I5). A writer may be one who may not read the row:
-- a plan of EXECUTE has the values at hand, so none is printed, and no query calls it.
CREATE FUNCTION guard_row(
  p_table oid, p_schema text, p_name text, p_op text, p_resource text, p_key text, p_old record, p_new record)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET debug_print_plan = off
AS $$
DECLARE
  reading text := (key_column(p_table, p_key)).reading;
  before  text;
  after   text;
BEGIN
  IF reading IS NOT NULL THEN
    IF p_op <> 'INSERT' THEN EXECUTE reading INTO before USING p_old; END IF;
    IF p_op <> 'DELETE' THEN EXECUTE reading INTO after USING p_new; END IF;
  END IF;
  RETURN CASE WHEN p_op <> 'INSERT' AND before IS NULL OR p_op <> 'DELETE' AND after IS NULL
      THEN require_fence(p_resource, p_schema, p_name, p_key) ELSE true END
    AND (before IS NULL OR before = after OR require_fence(p_resource || '/' || before, p_schema, p_name))
    AND (after IS NULL OR require_fence(p_resource || '/' || after, p_schema, p_name));
END $$;

-- key_column says what a table's column is (NULL if there is no such column), and returns the statement that reads a
-- row's key as text (NULL if it cannot be a key). Triggers do not see a virtual column. A value must have one text,
-- whatever the session's settings, and no code of the table's owner may run (I5). So the column must be in the catalog
-- for this table, where no function can stand in for it; its type, or the domain's base type, must be the server's own
-- or an enum; and nothing goes through a cast. Two texts must be two keys, also to an index: so the collation must be
-- deterministic, as all that come with the server are.
CREATE FUNCTION key_column(p_table oid, p_column text, OUT kind text, OUT reading text)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT
AS $$
DECLARE
  sorted oid;
BEGIN
  SELECT CASE a.attgenerated WHEN 'v' THEN 'a virtual generated column'
           ELSE 'of type ' || format_type(t.oid, NULL) END,
    format(CASE
      WHEN a.attgenerated = 'v' THEN NULL
      WHEN b.oid IN ('bool'::regtype, 'date'::regtype) THEN 'SELECT to_jsonb(($1).%1$I) #>> ''{}'''
      WHEN b.typtype = 'e' OR b.oid = ANY ('{int2,int4,int8,numeric,text,varchar,uuid}'::regtype[])
      THEN 'SELECT CASE WHEN ($1).%1$I IS NOT NULL THEN format(''%%s'', ($1).%1$I) END' END, a.attname), a.attcollation
    INTO kind, reading, sorted FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
      JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
    WHERE a.attrelid = p_table AND a.attname = p_column AND a.attnum > 0 AND NOT a.attisdropped;
  IF sorted >= 16384::oid AND reading IS NOT NULL THEN   -- it came after the server's own: those are not read each time
    IF NOT (SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = sorted) THEN
      kind := 'of a nondeterministic collation';
      reading := NULL;
    END IF;
  END IF;
END $$;

-- made_triggers returns the triggers of guards, of some tables or of all, with their arguments from the catalog's
-- bytes, each of which ends with a zero. A sound one is as guard_table makes it. Where there is a trigger of a guard,
-- one that has a guard's name but calls something else has taken the place of another.
--
-- The guard of rows is a constraint trigger: nobody can replace one, while the right TRIGGER is enough to replace any
-- other. That of TRUNCATE cannot be one, so it is sound only with the arguments of that of rows.
CREATE FUNCTION made_triggers(p_tables oid[] DEFAULT NULL)
RETURNS TABLE (on_table oid, name name, inherited boolean, args text[], sound boolean, enabled "char")
LANGUAGE sql STABLE SET search_path FROM CURRENT SET jit = off
AS $$
  WITH guard AS MATERIALIZED (
    SELECT p.oid FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = current_schema() AND p.proname = 'guard_write' AND p.pronargs = 0),
  made AS MATERIALIZED (
    SELECT t.tgrelid, t.tgname, t.tgparentid <> 0 AS inherited, t.tgenabled, t.tgfoid = g.oid AS ours,
           t.tgfoid = g.oid AND t.tgqual IS NULL AND t.tgattr = '' AND NOT t.tgdeferrable
             AND t.tgnargs IN (1, 2) AND CASE t.tgname
             WHEN 'pglock_guard' THEN t.tgtype = 29 AND t.tgconstraint <> 0
             WHEN 'pglock_guard_truncate' THEN t.tgtype = 34 ELSE false END AS sound,
           ARRAY(SELECT convert_from(decode(replace(x.a, ' ', ''), 'hex'), getdatabaseencoding())
                 FROM unnest(string_to_array(regexp_replace(encode(t.tgargs, 'hex'), '..', E'\\& ', 'g'), '00 '))
                   WITH ORDINALITY AS x (a, n) WHERE x.n <= t.tgnargs ORDER BY x.n) AS args
    FROM guard g JOIN pg_trigger t ON t.tgfoid = g.oid OR t.tgname IN ('pglock_guard', 'pglock_guard_truncate')
    WHERE t.tgrelid = ANY (coalesce(p_tables, ARRAY(
      SELECT o.tgrelid FROM pg_trigger o JOIN guard w ON w.oid = o.tgfoid))))
  SELECT r.tgrelid, r.tgname, r.inherited, coalesce(r.of_rows, r.args),
         r.sound AND r.args = coalesce(r.of_rows, r.args), r.tgenabled
  FROM (SELECT m.*, bool_or(m.ours) OVER w AS guarded,
          max(m.args) FILTER (WHERE m.sound AND m.tgname = 'pglock_guard') OVER w AS of_rows
        FROM made m WINDOW w AS (PARTITION BY m.tgrelid)) r
  WHERE r.guarded
$$;

-- guard_triggers returns the triggers of the n-th table as made_triggers does, and those that the table lacks for a
-- guard with a resource and a key, which have no arguments yet. problem says what is wrong with each, and mend corrects
-- it, in this order. First comes, without a name, the right of others to make triggers: with it they could replace the
-- guard of TRUNCATE. session_replication_role bypasses triggers that are not ENABLE ALWAYS (I3).
CREATE FUNCTION guard_triggers(p_tables oid[], p_resources text[], p_keys text[])
RETURNS TABLE (n bigint, name name, args text[], problem text, mend text)
LANGUAGE sql STABLE SET search_path FROM CURRENT SET jit = off
AS $$
  WITH asked AS MATERIALIZED (
    SELECT * FROM unnest(p_tables, p_resources, p_keys) WITH ORDINALITY AS a (rel, resource, key, n)),
  there AS MATERIALIZED (SELECT a.n, t.* FROM asked a JOIN made_triggers(p_tables) t ON t.on_table = a.rel),
  has AS (
    SELECT a.n, a.rel::regclass, a.resource, a.key,
           coalesce(bool_or((t.sound OR t.inherited) AND t.name = 'pglock_guard'), false) AS rows,
           coalesce(bool_or(t.sound AND t.name = 'pglock_guard_truncate'), false) AS truncate
    FROM asked a LEFT JOIN there t ON t.n = a.n GROUP BY a.n, a.rel, a.resource, a.key)
  SELECT a.n, NULL::name, NULL::text[], format('%s may make triggers on %s, and switch off its guard against TRUNCATE',
           string_agg(DISTINCT g.who, ', '), a.rel::regclass), format('REVOKE TRIGGER ON %s FROM %s CASCADE',
           (pg_identify_object('pg_class'::regclass, a.rel, 0)).identity,
           string_agg(DISTINCT g.who, ', ') FILTER (WHERE x.grantor = c.relowner))
  FROM asked a JOIN pg_class c ON c.oid = a.rel CROSS JOIN LATERAL aclexplode(c.relacl) x
    CROSS JOIN LATERAL (SELECT CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE x.grantee::regrole::text END AS who) g
  WHERE x.privilege_type = 'TRIGGER' AND x.grantee <> c.relowner GROUP BY a.n, a.rel
  UNION ALL
  SELECT t.n, t.name, t.args, format('trigger %s of %s is ', t.name, t.on_table::regclass)
           || CASE WHEN NOT t.sound THEN 'not as guard_table makes it' WHEN t.enabled = 'D' THEN 'disabled'
                   WHEN t.enabled <> 'A' THEN 'not ENABLE ALWAYS' END,
         format(CASE WHEN NOT t.sound AND NOT t.inherited THEN 'DROP TRIGGER %I ON %s'
                     WHEN t.enabled <> 'A' THEN 'ALTER TABLE %2$s ENABLE ALWAYS TRIGGER %1$I' END,
                t.name, t.on_table::regclass)
  FROM there t
  UNION ALL
  SELECT h.n, l.name, NULL, format('%s has no guard for %s', h.rel, l.what),
         format('CREATE %2$s ON %3$s FOR EACH %4$s EXECUTE FUNCTION %5$I.guard_write(%6$s);
                 ALTER TABLE %3$s ENABLE ALWAYS TRIGGER %1$s', l.name, l.made, h.rel, l.each,
                current_schema(), concat_ws(', ', quote_literal(h.resource), quote_literal(h.key)))
  FROM has h CROSS JOIN LATERAL (VALUES
    (h.rows, 'pglock_guard', 'rows', 'CONSTRAINT TRIGGER pglock_guard AFTER INSERT OR UPDATE OR DELETE', 'ROW'),
    (h.truncate, 'pglock_guard_truncate', 'TRUNCATE', 'TRIGGER pglock_guard_truncate BEFORE TRUNCATE', 'STATEMENT'))
      AS l (there, name, what, made, each)
  WHERE NOT l.there
$$;

-- list_guards lists the guards of the database: one row for each table that was put under guard, including its
-- partitions and children. problem says what is wrong; guard_table, called again, mends it, but not a key column that
-- is gone or can be none. It locks nothing.
CREATE FUNCTION list_guards()
RETURNS TABLE (table_name text, resource text, key_column text, covered int, problem text)
LANGUAGE sql STABLE SET search_path FROM CURRENT SET jit = off
AS $$
  WITH RECURSIVE guarded AS MATERIALIZED (
    SELECT t.on_table AS oid, coalesce(max(t.args[1]), '') AS resource, max(t.args[2]) AS key
    FROM made_triggers() t GROUP BY 1),
  below AS (
    SELECT g.oid AS top, g.oid, g.resource, g.key FROM guarded g
    UNION SELECT b.top, i.inhrelid, b.resource, b.key FROM below b JOIN pg_inherits i ON i.inhparent = b.oid),
  asked AS MATERIALIZED (SELECT b.*, row_number() OVER () AS n FROM below b),
  wrong AS (
    SELECT t.n, t.problem || CASE WHEN t.name IS NULL THEN ': ' || t.mend ELSE '' END AS problem
    FROM (SELECT array_agg(a.oid ORDER BY a.n) AS tables, array_agg(a.resource ORDER BY a.n) AS resources,
            array_agg(a.key ORDER BY a.n) AS keys FROM asked a) o
      CROSS JOIN LATERAL guard_triggers(o.tables, o.resources, o.keys) t
    UNION ALL
    SELECT a.n, CASE WHEN k.kind IS NULL THEN format('%s has no column %I', a.oid::regclass, a.key)
                     WHEN k.reading IS NULL THEN format('key column %I of %s is %s: drop the guard', a.key,
                                                        a.oid::regclass, k.kind) END
    FROM asked a CROSS JOIN LATERAL key_column(a.oid, a.key) k WHERE a.key IS NOT NULL)
  SELECT format('%I.%I', s.nspname, c.relname), g.resource, g.key, count(DISTINCT a.n)::int,
         string_agg(w.problem, '; ' ORDER BY w.problem)
  FROM guarded g JOIN pg_class c ON c.oid = g.oid JOIN pg_namespace s ON s.oid = c.relnamespace
    JOIN asked a ON a.top = g.oid LEFT JOIN wrong w ON w.n = a.n
  WHERE NOT EXISTS (SELECT FROM asked b WHERE b.oid = g.oid AND b.top <> g.oid
                    AND b.resource = g.resource AND b.key IS NOT DISTINCT FROM g.key)
  GROUP BY g.oid, g.resource, g.key, s.nspname, c.relname
  ORDER BY 1
$$;

-- broken_guards lists those guards with a problem that a lock's writes may meet: of a resource, or a row of one, that
-- has the lock's name, or whose fence the lock has passed last; with NULL, all.
CREATE FUNCTION broken_guards(p_name text)
RETURNS TABLE (table_name text, resource text, key_column text, problem text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger t WHERE t.tgfoid = to_regprocedure('guard_write()')) THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT g.table_name, g.resource, g.key_column, g.problem FROM list_guards() g
  WHERE g.problem <> '' AND (p_name IS NULL OR p_name = g.resource
    OR g.key_column <> '' AND starts_with(p_name, g.resource || '/')
    OR EXISTS (SELECT FROM fences f WHERE f.lock_name = p_name AND f.resource = g.resource)
    OR g.key_column <> '' AND EXISTS (   -- '0' comes after '/'
      SELECT FROM fences f WHERE f.lock_name = p_name AND f.resource > g.resource || '/'
        AND f.resource < g.resource || '0'));
END $$;

-- key_columns tells which columns of a table can be a key, for people.
CREATE FUNCTION key_columns(p_table oid) RETURNS text
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  SELECT coalesce('but its key can be ' || string_agg(c.name, ', ' ORDER BY c.n), 'and none that can be a key') FROM (
    SELECT quote_ident(a.attname) AS name, a.attnum AS n FROM pg_attribute a
    WHERE a.attrelid = p_table AND (key_column(p_table, a.attname)).reading IS NOT NULL ORDER BY a.attnum LIMIT 30) c
$$;

-- guard_table puts a table, its partitions and its children under guard; called again, it adds what is missing. It
-- runs with the rights of its caller, who must own the table, and refuses one on which others may make triggers. It
-- locks the table of fences, so that the schema is not removed meanwhile, then the guarded tables, the uppermost first.
-- It may wait for them, so when it has made or mended something, or somebody else has, it looks again: of two calls at
-- once the second finds what the first has made, and a child that came meanwhile is guarded. It returns how many
-- triggers it made.
CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  c  record;  g  record;  rel  regclass;  n  int := 0;  mended  boolean := false;
BEGIN
  SELECT k.relkind, k.relname, pg_has_role(k.relowner, 'USAGE') AS owned,
      k.relnamespace = (SELECT s.oid FROM pg_namespace s WHERE s.nspname = current_schema())
      AND k.relname IN ('locks', 'fences', 'events', 'spent_grants', 'installation', 'waiters', 'subtrees',
                        'sessions', 'receipts', 'done_keys', 'pglock_schema_migrations') AS ours
    INTO c FROM pg_class k WHERE k.oid = p_table;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'table is %: it must be an existing table', coalesce(p_table::text, 'NULL') USING ERRCODE = '42P01';
  ELSIF c.ours OR c.relkind NOT IN ('r', 'p') THEN
    RAISE EXCEPTION 'table is %, which is %: a guard needs a table of the application', p_table, CASE c.relkind
        WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table'
        WHEN 'r' THEN 'a table of pglock' ELSE 'no table' END USING ERRCODE = 'wrong_object_type';
  END IF;
  p_resource := coalesce(p_resource, c.relname);
  IF octet_length(p_resource) NOT BETWEEN 1 AND 512 - 2 * (p_key IS NOT NULL)::int THEN
    RAISE EXCEPTION 'resource is % bytes long: it must have 1 to 512, and with a key to 510', octet_length(p_resource)
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  g := key_column(p_table, p_key);
  IF p_key IS NOT NULL AND g.kind IS NULL THEN
    RAISE EXCEPTION 'key is %: table % has no such column, %', quote_literal(left(p_key, 63)), p_table,
        key_columns(p_table) USING ERRCODE = 'undefined_column';
  ELSIF p_key IS NOT NULL AND g.reading IS NULL THEN
    RAISE EXCEPTION 'key column % of % is %: it must be %', quote_ident(p_key), p_table, g.kind,
        CASE WHEN g.kind ~ '^of type' THEN 'an integer, numeric, text, varchar, uuid, bool, date or an enum'
             WHEN g.kind ~ '^of a' THEN 'of one that tells all texts apart'
             ELSE 'stored, because triggers do not see it' END USING ERRCODE = 'datatype_mismatch';
  END IF;
  PERFORM list_fences(p_resource);   -- whoever has read the fences keeps the schema until the transaction ends
  FOR rel IN WITH RECURSIVE below AS (SELECT p_table::oid AS oid, 0 AS depth
      UNION SELECT i.inhrelid, b.depth + 1 FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT b.oid FROM below b GROUP BY b.oid ORDER BY min(b.depth), b.oid LOOP
    FOR g IN SELECT * FROM guard_triggers(ARRAY[rel], ARRAY[p_resource], ARRAY[p_key]) LOOP
      IF g.name IS NULL THEN
        CONTINUE WHEN NOT c.owned;                              -- and will be told so
        RAISE EXCEPTION '%', g.problem USING ERRCODE = 'object_not_in_prerequisite_state', TABLE = rel, HINT = g.mend;
      ELSIF g.args[1] <> p_resource OR g.args[1] = p_resource AND g.args[2] IS DISTINCT FROM p_key THEN
        RAISE EXCEPTION 'table % is guarded already, by resource %', rel,
            quote_literal(concat(g.args[1], '/<' || g.args[2] || '>'))
          USING ERRCODE = 'duplicate_object', HINT = 'Drop that guard first, or name the same resource and key.';
      ELSIF g.mend IS NOT NULL THEN
        BEGIN
          EXECUTE g.mend;
        EXCEPTION WHEN duplicate_object OR undefined_object THEN
          IF g.mend IN (SELECT t.mend FROM guard_triggers(ARRAY[rel], ARRAY[p_resource], ARRAY[p_key]) t) THEN
            RAISE;
          END IF;
          RETURN n + guard_table(p_table, p_resource, p_key);
        END;
        n := n + (g.args IS NULL)::int;  mended := true;
      END IF;
    END LOOP;
  END LOOP;
  RETURN n + CASE WHEN mended THEN guard_table(p_table, p_resource, p_key) ELSE 0 END;
END $$;

-- unguard_table removes the guard, also from partitions and children, but leaves theirs if it is another one. It runs
-- with the rights of its caller, who must own the table, and locks the tables concerned. It returns how many triggers
-- it dropped.
CREATE FUNCTION unguard_table(p_table regclass) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  whole regclass;
  t     record;
  n     int := 0;
BEGIN
  SELECT a.relid INTO whole
    FROM made_triggers(ARRAY[p_table]) o CROSS JOIN pg_partition_ancestors(p_table) WITH ORDINALITY AS a (relid, n)
      CROSS JOIN LATERAL made_triggers(ARRAY[a.relid]) g
    WHERE o.inherited AND g.name = o.name AND NOT g.inherited ORDER BY a.n LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'wrong_object_type', TABLE = whole,
      MESSAGE = format('table %s is guarded as a part of table %s, whose guard would be left with a hole; '
                       'nothing was changed', p_table, whole),
      HINT = format('Drop the guard of %s, or detach %s from it first.', whole, p_table);
  END IF;
  FOR t IN
    WITH RECURSIVE below AS (
      SELECT p_table::oid AS oid UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT g.name, g.on_table::regclass AS rel FROM below b CROSS JOIN LATERAL made_triggers(ARRAY[b.oid]) g
    WHERE NOT g.inherited
      AND (b.oid = p_table OR g.args IN (SELECT o.args FROM made_triggers(ARRAY[p_table]) o))
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', t.name, t.rel);
    n := n + 1;
  END LOOP;
  IF n = 0 THEN
    RAISE EXCEPTION 'table % is not guarded: there is nothing to drop', coalesce(p_table::text, 'NULL')
      USING ERRCODE = 'undefined_object';
  END IF;
  RETURN n;
END $$;

-- bypass_guards lets this transaction write to guarded tables without a fence, and returns its ID. The history says who
-- did it and why, and to which tables; a rollback, even to a savepoint, undoes it. It locks nothing.
CREATE FUNCTION bypass_guards(p_reason text, p_actor text) RETURNS xid8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := is_operator(p_reason, p_actor);
BEGIN
  INSERT INTO events (kind, at, lock_name, token, actor, reason, xact)
    VALUES ('bypass', GREATEST(clock_timestamp(), transaction_timestamp()), '', 0, p_actor, p_reason,
            pg_current_xact_id());
  RETURN pg_current_xact_id();
END $$;
