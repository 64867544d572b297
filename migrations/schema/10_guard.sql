-- Guards. The fence's row, which only fence() writes, proves that a transaction has passed a fence: it carries the
-- transaction's ID, and a rolled back subtransaction takes it away again. A row that a dump has brought from a server
-- with other IDs is older than the transaction.

-- require_fence returns true if this transaction has passed the fence of p_resource, or an operator lets it write
-- without one, in which case it notes the table. Otherwise it raises (I3). p_column: the row has no key there, and so
-- no fence. It locks nothing but the operator's event, which is this transaction's own.
CREATE FUNCTION require_fence(p_resource text, p_schema text, p_table text, p_column text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  mine xid8 := pg_current_xact_id_if_assigned();
  name text;
  e    record;
BEGIN
  IF p_column IS NULL AND EXISTS (
      SELECT FROM fences f
      WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp()) THEN
    RETURN true;
  END IF;
  name := p_schema || '.' || p_table;
  SELECT b.id, coalesce(b.resource, '') AS tables INTO e FROM events b
    WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();
  IF FOUND THEN
    IF position(' ' || name || ' ' IN ' ' || e.tables || ' ') = 0 AND octet_length(e.tables) < 4096 THEN
      UPDATE events b SET resource = concat_ws(' ', b.resource, name) WHERE b.id = e.id;
    END IF;
    RETURN true;
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'LK011', SCHEMA = p_schema, TABLE = p_table, COLUMN = coalesce(p_column, ''),
    DETAIL = 'resource=' || left(p_resource, 512),
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

-- guard_write(resource) is the trigger of a table with one resource. It fires per statement, which costs the same for
-- any number of rows. guard_write(resource, key column) fires per row, and so does either on partitioned tables,
-- whose partitions inherit only row triggers. For rows it runs AFTER the write, on the row as the other triggers have
-- left it. It runs with the rights of the schema's owner, so it must run no code of the table's owner (I5). It asks
-- for the fences of the key that a row had and of the key that it has (I3). It locks nothing, and its result means
-- nothing.
CREATE FUNCTION guard_write() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok      boolean;
  reading text;
  before  text;
  after   text;
BEGIN
  IF TG_NARGS < 2 OR TG_LEVEL = 'STATEMENT' THEN
    ok := require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME);
    RETURN NULL;
  END IF;
  reading := (key_column(TG_RELID, TG_ARGV[1])).reading;
  IF reading IS NOT NULL THEN
    IF TG_OP <> 'INSERT' THEN EXECUTE reading INTO before USING OLD; END IF;
    IF TG_OP <> 'DELETE' THEN EXECUTE reading INTO after USING NEW; END IF;
  END IF;
  IF TG_OP <> 'INSERT' AND before IS NULL OR TG_OP <> 'DELETE' AND after IS NULL THEN
    ok := require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[1]);
  END IF;
  ok := (before IS NULL OR before = after OR require_fence(TG_ARGV[0] || '/' || before, TG_TABLE_SCHEMA, TG_TABLE_NAME))
    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after, TG_TABLE_SCHEMA, TG_TABLE_NAME));
  RETURN NULL;
END $$;

-- key_column returns the type of a table's column (NULL if there is no such column), and the statement that reads a
-- row's key as text (NULL if the type cannot be a key). A value must have one text, whatever the session's settings,
-- and no code of the table's owner may run (I5). So the column must be in the catalog for this table, where no
-- function can stand in for it; its type, or the domain's base type, must be the server's own or an enum; and nothing
-- goes through a cast.
CREATE FUNCTION key_column(p_table oid, p_column text, OUT of_type oid, OUT reading text)
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT
AS $$
BEGIN
  SELECT t.oid, format(CASE
      WHEN b.oid IN ('bool'::regtype, 'date'::regtype) THEN 'SELECT to_jsonb(($1).%1$I) #>> ''{}'''
      WHEN b.typtype = 'e' OR b.oid = ANY ('{int2,int4,int8,numeric,text,varchar,uuid}'::regtype[])
      THEN 'SELECT CASE WHEN ($1).%1$I IS NOT NULL THEN format(''%%s'', ($1).%1$I) END' END, a.attname)
    INTO of_type, reading FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
      JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
    WHERE a.attrelid = p_table AND a.attname = p_column AND a.attnum > 0 AND NOT a.attisdropped;
END $$;

-- guard_triggers returns the triggers of guards, of one table or of all, with their arguments from the catalog's
-- bytes, each of which ends with a zero. Given a resource and a key it also returns the triggers that the table lacks
-- for it, which have no arguments yet. problem says what is wrong with each, and mend corrects it, in this order. A
-- sound one is as guard_table makes it. A write through a parent fires only row triggers; session_replication_role
-- bypasses triggers that are not ENABLE ALWAYS (I3).
CREATE FUNCTION guard_triggers(p_table oid DEFAULT NULL, p_resource text DEFAULT NULL, p_key text DEFAULT NULL)
RETURNS TABLE (on_table oid, name name, inherited boolean, args text[], problem text, mend text)
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  WITH there AS MATERIALIZED (
    SELECT t.tgrelid, t.tgname, t.tgparentid <> 0 AS inherited, t.tgenabled = 'A' AS always,
           t.tgqual IS NULL AND t.tgattr = '' AND t.tgtype = CASE t.tgname WHEN 'pglock_guard' THEN 62
             WHEN 'pglock_guard_row' THEN 29 WHEN 'pglock_guard_truncate' THEN 34 ELSE 0 END AS sound,
           ARRAY(SELECT convert_from(decode(replace(x.a, ' ', ''), 'hex'), getdatabaseencoding())
                 FROM unnest(string_to_array(regexp_replace(encode(t.tgargs, 'hex'), '..', E'\\& ', 'g'), '00 '))
                   WITH ORDINALITY AS x (a, n) WHERE x.n <= t.tgnargs ORDER BY x.n) AS args
    FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE (p_table IS NULL OR t.tgrelid = p_table) AND n.nspname = current_schema() AND p.proname = 'guard_write'),
  has AS (
    SELECT f.by_row, EXISTS (SELECT FROM there t WHERE t.sound AND t.tgname <> 'pglock_guard_row') AS truncate,
           EXISTS (SELECT FROM there t WHERE (t.sound OR t.inherited) AND t.tgname = 'pglock_guard_row'
                                          OR t.sound AND t.tgname = 'pglock_guard' AND NOT f.by_row) AS rows
    FROM pg_class c CROSS JOIN LATERAL (SELECT p_key IS NOT NULL OR c.relkind <> 'r'
      OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) AS by_row) f
    WHERE c.oid = p_table AND p_resource IS NOT NULL)
  SELECT t.tgrelid, t.tgname, t.inherited, t.args,
         format('trigger %s of %s is not ', t.tgname, t.tgrelid::regclass)
           || CASE WHEN NOT t.sound THEN 'as guard_table makes it' WHEN NOT t.always THEN 'ENABLE ALWAYS' END,
         format(CASE WHEN NOT t.sound AND NOT t.inherited THEN 'DROP TRIGGER %I ON %s'
                     WHEN NOT t.always THEN 'ALTER TABLE %2$s ENABLE ALWAYS TRIGGER %1$I' END,
                t.tgname, t.tgrelid::regclass)
  FROM there t
  UNION ALL
  SELECT p_table, l.name, false, NULL, format('%s has no guard for %s', p_table::regclass, l.what),
         format('CREATE TRIGGER %1$s %2$s ON %3$s FOR EACH %4$s EXECUTE FUNCTION %5$I.guard_write(%6$s);
                 ALTER TABLE %3$s ENABLE ALWAYS TRIGGER %1$s', l.name, l.events, p_table::regclass, l.each,
                current_schema(), concat_ws(', ', quote_literal(p_resource), quote_literal(p_key)))
  FROM has h CROSS JOIN LATERAL (VALUES
    (NOT h.rows AND h.by_row, 'pglock_guard_row', 'rows', 'AFTER INSERT OR UPDATE OR DELETE', 'ROW'),
    (NOT h.rows AND NOT h.by_row, 'pglock_guard', 'rows', 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE', 'STATEMENT'),
    (NOT h.truncate AND (h.by_row OR h.rows), 'pglock_guard_truncate', 'TRUNCATE', 'BEFORE TRUNCATE', 'STATEMENT'))
      AS l (lacks, name, what, events, each)
  WHERE l.lacks
$$;

-- list_guards lists the guards of the database: one row for each table that was put under guard, including its
-- partitions and children. problem says what is missing; guard_table, called again, adds it. It locks nothing.
CREATE FUNCTION list_guards()
RETURNS TABLE (table_name text, resource text, key_column text, covered int, problem text)
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  WITH RECURSIVE guarded AS MATERIALIZED (
    SELECT t.on_table AS oid, coalesce(max(t.args[1]), '') AS resource, max(t.args[2]) AS key
    FROM guard_triggers() t GROUP BY 1),
  below AS (
    SELECT g.oid AS top, g.oid, g.resource, g.key FROM guarded g
    UNION SELECT b.top, i.inhrelid, b.resource, b.key FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
  SELECT format('%I.%I', s.nspname, c.relname), g.resource, g.key,
         (SELECT count(*)::int FROM below b WHERE b.top = g.oid),
         (SELECT string_agg(w.problem, '; ' ORDER BY w.problem) FROM below b CROSS JOIN LATERAL (
            SELECT t.problem FROM guard_triggers(b.oid, b.resource, b.key) t
            UNION ALL
            SELECT CASE WHEN k.of_type IS NULL THEN format('%s has no column %I', b.oid::regclass, b.key)
                        WHEN k.reading IS NULL THEN format('key column %I of %s is of type %s: drop the guard', b.key,
                                                           b.oid::regclass, format_type(k.of_type, NULL)) END
            FROM key_column(b.oid, b.key) k WHERE b.key IS NOT NULL) w
          WHERE b.top = g.oid)
  FROM guarded g JOIN pg_class c ON c.oid = g.oid JOIN pg_namespace s ON s.oid = c.relnamespace
  WHERE NOT EXISTS (SELECT FROM below b WHERE b.oid = g.oid AND b.top <> g.oid
                    AND b.resource = g.resource AND b.key IS NOT DISTINCT FROM g.key)
  ORDER BY 1
$$;

-- guard_table puts a table, its partitions and its children under guard; called again, it adds what is missing. It
-- runs with the rights of its caller, who must own the table. It locks the table of fences, so that the schema is not
-- removed meanwhile, then the guarded tables, the uppermost first. It returns how many triggers it made.
CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  c   record;
  g   record;
  rel regclass;
  n   int := 0;
BEGIN
  SELECT k.relkind, k.relname, k.relnamespace = (SELECT s.oid FROM pg_namespace s WHERE s.nspname = current_schema())
      AND k.relname IN ('locks', 'fences', 'events', 'spent_grants', 'installation', 'waiters', 'sessions', 'receipts',
                        'done_keys', 'pglock_schema_migrations') AS ours
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
  IF p_key IS NOT NULL AND g.of_type IS NULL THEN
    RAISE EXCEPTION 'key is %: table % has no such column', quote_literal(left(p_key, 63)), p_table
      USING ERRCODE = 'undefined_column';
  ELSIF p_key IS NOT NULL AND g.reading IS NULL THEN
    RAISE EXCEPTION 'key column % of % is of type %: it must be %', quote_ident(p_key), p_table,
        format_type(g.of_type, NULL), 'an integer, numeric, text, varchar, uuid, bool, date or an enum'
      USING ERRCODE = 'datatype_mismatch';
  END IF;
  PERFORM list_fences(p_resource);   -- whoever has read the fences keeps the schema until the transaction ends
  FOR rel IN
    WITH RECURSIVE below AS (
      SELECT p_table::oid AS oid, 0 AS depth
      UNION SELECT i.inhrelid, b.depth + 1 FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT b.oid FROM below b GROUP BY b.oid ORDER BY min(b.depth), b.oid
  LOOP
    FOR g IN SELECT * FROM guard_triggers(rel, p_resource, p_key) LOOP
      IF g.args[1] <> p_resource OR g.args[1] = p_resource AND g.args[2] IS DISTINCT FROM p_key THEN
        RAISE EXCEPTION 'table % is guarded already, by resource %', rel,
            quote_literal(concat(g.args[1], '/<' || g.args[2] || '>'))
          USING ERRCODE = 'duplicate_object', HINT = 'Drop that guard first, or name the same resource and key.';
      ELSIF g.mend IS NOT NULL THEN
        EXECUTE g.mend;
        n := n + (g.args IS NULL)::int;
      END IF;
    END LOOP;
  END LOOP;
  RETURN n;
END $$;

-- unguard_table removes the guard, also from partitions and children. It runs with the rights of its caller, who must
-- own the table, and locks the tables concerned. It returns how many triggers it dropped.
CREATE FUNCTION unguard_table(p_table regclass) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  whole regclass;
  t     record;
  n     int := 0;
BEGIN
  SELECT a.relid INTO whole
    FROM guard_triggers(p_table) o CROSS JOIN pg_partition_ancestors(p_table) WITH ORDINALITY AS a (relid, n)
      CROSS JOIN LATERAL guard_triggers(a.relid) g
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
    SELECT g.name, g.on_table::regclass AS rel FROM below b CROSS JOIN LATERAL guard_triggers(b.oid) g
    WHERE g.on_table = b.oid AND NOT g.inherited
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
  INSERT INTO events (kind, lock_name, token, actor, reason, xact)
    VALUES ('bypass', '', 0, p_actor, p_reason, pg_current_xact_id());
  RETURN pg_current_xact_id();
END $$;
