-- Guards. What proves that a transaction has passed a fence is the fence's row, which only fence() writes: it carries the
-- transaction's ID, and a rolled back subtransaction takes it away again. A row that a dump has brought from a server whose
-- IDs were others is older than the transaction.

-- bypassed says whether an operator lets this transaction write without a fence, and notes the table.
CREATE FUNCTION bypassed(p_schema text, p_table text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  mine xid8 := pg_current_xact_id_if_assigned();
  e    record;
BEGIN
  SELECT b.id, b.resource INTO e FROM events b WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  IF position(' ' || p_schema || '.' || p_table || ' ' IN ' ' || coalesce(e.resource, '') || ' ') = 0 AND octet_length(coalesce(e.resource, '')) < 4096 THEN
    UPDATE events b SET resource = concat_ws(' ', b.resource, p_schema || '.' || p_table) WHERE b.id = e.id;
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION require_fence(p_resource text, p_schema text, p_table text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  mine xid8 := pg_current_xact_id_if_assigned();
BEGIN
  IF EXISTS (SELECT FROM fences f WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp())
     OR bypassed(p_schema, p_table) THEN
    RETURN true;
  END IF;
  IF octet_length(p_resource) > 512 THEN
    RAISE EXCEPTION 'table %.% is guarded, and the resource of this row has % bytes: fences have at most 512, so nobody can write it without a bypass',
        quote_ident(p_schema), quote_ident(p_table), octet_length(p_resource)
      USING ERRCODE = 'LK011', DETAIL = 'resource=' || left(p_resource, 200), SCHEMA = p_schema, TABLE = p_table;
  END IF;
  RAISE EXCEPTION 'table %.% is guarded: this transaction has not passed the fence of %', quote_ident(p_schema), quote_ident(p_table),
      quote_literal(p_resource)
    USING ERRCODE = 'LK011', DETAIL = 'resource=' || p_resource, SCHEMA = p_schema, TABLE = p_table,
          HINT = format('Acquire the lock that protects it and pass its fence first, in the same transaction: SELECT %I.fence(..., p_resource => %L). '
                        'Operators: SELECT %1$I.bypass_guards(reason, actor).', current_schema(), p_resource);
END $$;

-- guard_statement(resource) is for a table with one resource; it costs the same however many rows a statement writes.
CREATE FUNCTION guard_statement() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME);
BEGIN
  RETURN NULL;
END $$;

-- guard_row(resource[, key column]) is for a resource for each row, and for partitioned tables, whose partitions inherit
-- row triggers alone. It runs AFTER the write, on the row as the other triggers have left it, with the rights of the owner
-- of this schema: so it must run no code of the table's owner. It reads a column that the catalog has for this table, so
-- that no function can stand in for it, of a type whose output function is the server's own, and goes through no cast.
CREATE FUNCTION guard_row() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET datestyle = 'ISO, YMD'
AS $$
DECLARE
  ok     boolean;
  key    text;
  before text;
  after  text;
BEGIN
  IF TG_NARGS < 2 THEN
    ok := require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME);
    RETURN NULL;
  END IF;
  key := key_text(TG_RELID, TG_ARGV[1]);
  IF key IS NOT NULL THEN
    IF TG_OP <> 'INSERT' THEN EXECUTE key INTO before USING OLD; END IF;
    IF TG_OP <> 'DELETE' THEN EXECUTE key INTO after USING NEW; END IF;
  END IF;
  IF (TG_OP <> 'INSERT' AND before IS NULL OR TG_OP <> 'DELETE' AND after IS NULL) AND NOT bypassed(TG_TABLE_SCHEMA, TG_TABLE_NAME) THEN
    RAISE EXCEPTION 'key column % of guarded table %.% is NULL or missing, or of a type that cannot be a key: a row without a key has no fence',
        quote_ident(TG_ARGV[1]), quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
      USING ERRCODE = 'LK011', DETAIL = 'resource=' || TG_ARGV[0], SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = TG_ARGV[1];
  END IF;
  ok := (before IS NULL OR before = after OR require_fence(TG_ARGV[0] || '/' || before, TG_TABLE_SCHEMA, TG_TABLE_NAME))
    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after, TG_TABLE_SCHEMA, TG_TABLE_NAME));
  RETURN NULL;
END $$;

-- key_text is the statement that tells the key of a row as text: format goes by the type's output function. NULL when the
-- table has no such column, or one of a type that cannot be a key.
CREATE FUNCTION key_text(p_table oid, p_column text) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  base oid;
BEGIN
  SELECT coalesce(nullif(t.typbasetype, 0), t.oid) INTO base FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = p_table AND a.attname = p_column AND a.attnum > 0 AND NOT a.attisdropped AND can_be_key(a.atttypid);
  IF FOUND THEN
    RETURN format(CASE base WHEN 'bool'::regtype
                    THEN 'SELECT CASE ($1).%1$I WHEN true THEN ''true'' WHEN false THEN ''false'' END'
                    ELSE 'SELECT CASE WHEN ($1).%1$I IS NOT NULL THEN format(''%%s'', ($1).%1$I) END' END, p_column);
  END IF;
  RETURN NULL;
END $$;

-- The arguments of a trigger, from the catalog's bytes, each of which ends with a zero.
CREATE FUNCTION trigger_arguments(p_bytes bytea, p_count int) RETURNS text[]
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  SELECT ARRAY(SELECT convert_from(decode(replace(a, ' ', ''), 'hex'), getdatabaseencoding())
               FROM unnest(string_to_array(regexp_replace(encode(p_bytes, 'hex'), '..', E'\\& ', 'g'), '00 ')) WITH ORDINALITY AS x (a, n)
               WHERE n <= p_count ORDER BY n)
$$;

-- guard_triggers are the triggers of this schema's guards, of one table or of all. A sound one is as guard_table makes it.
CREATE FUNCTION guard_triggers(p_table oid DEFAULT NULL)
RETURNS TABLE (on_table oid, name name, enabled "char", inherited boolean, by_row boolean, sound boolean, args text[])
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  SELECT t.tgrelid, t.tgname, t.tgenabled, t.tgparentid <> 0, p.proname = 'guard_row',
         t.tgqual IS NULL AND t.tgattr = '' AND t.tgtype = CASE t.tgname WHEN 'pglock_guard' THEN 62 WHEN 'pglock_guard_row' THEN 29 ELSE 34 END,
         trigger_arguments(t.tgargs, t.tgnargs)
  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_namespace n ON n.oid = p.pronamespace
  WHERE (p_table IS NULL OR t.tgrelid = p_table) AND n.nspname = current_schema() AND p.proname IN ('guard_statement', 'guard_row')
$$;

-- One value of a key must have one text, whatever the session's settings.
CREATE FUNCTION can_be_key(p_type oid) RETURNS boolean
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  SELECT EXISTS (SELECT FROM pg_type t JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
                 WHERE t.oid = p_type AND (b.typtype = 'e' OR b.oid = ANY ('{int2,int4,int8,numeric,text,varchar,uuid,bool,date}'::regtype[])))
$$;

-- The guards of the database: one row for each table that was put under guard, partitions and children with it. problem
-- says what is missing; guard_table again adds it.
CREATE FUNCTION list_guards()
RETURNS TABLE (table_name text, resource text, key_column text, covered int, problem text)
LANGUAGE sql STABLE SET search_path FROM CURRENT
AS $$
  WITH RECURSIVE ours AS MATERIALIZED (SELECT * FROM guard_triggers()),
  guarded AS (SELECT o.on_table AS oid, coalesce(max(o.args[1]), '') AS resource, max(o.args[2]) AS key_column FROM ours o GROUP BY 1),
  below AS (
    SELECT g.oid AS top, g.oid, g.resource, g.key_column FROM guarded g
    UNION SELECT b.top, i.inhrelid, b.resource, b.key_column FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
  SELECT format('%I.%I', s.nspname, c.relname), g.resource, g.key_column, (SELECT count(*)::int FROM below b WHERE b.top = g.oid),
         (SELECT string_agg(w.what, '; ' ORDER BY w.what) FROM (
            SELECT format('trigger %s of %s is not ENABLE ALWAYS', o.name, o.on_table::regclass) AS what
              FROM below b JOIN ours o ON o.on_table = b.oid WHERE b.top = g.oid AND o.enabled <> 'A'
            UNION ALL
            SELECT format('trigger %s of %s is not as guard_table makes it', o.name, o.on_table::regclass)
              FROM below b JOIN ours o ON o.on_table = b.oid WHERE b.top = g.oid AND NOT o.sound
            UNION ALL
            SELECT format('%s has no guard for TRUNCATE', b.oid::regclass) FROM below b
              WHERE b.top = g.oid AND NOT EXISTS (SELECT FROM ours o WHERE o.on_table = b.oid AND NOT o.by_row)
            UNION ALL
            SELECT format('%s has no guard for rows', b.oid::regclass) FROM below b
              WHERE b.top = g.oid AND NOT EXISTS (SELECT FROM ours o WHERE o.on_table = b.oid
                AND (o.by_row OR o.name = 'pglock_guard' AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = b.oid)))
            UNION ALL
            SELECT format('%s has no column %I', b.oid::regclass, g.key_column) FROM below b
              WHERE b.top = g.oid AND g.key_column IS NOT NULL AND NOT EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = b.oid AND a.attname = g.key_column AND a.attnum > 0 AND NOT a.attisdropped)
            UNION ALL
            SELECT format('key column %I of %s is of type %s: drop the guard', a.attname, b.oid::regclass, format_type(a.atttypid, NULL))
              FROM below b JOIN pg_attribute a ON a.attrelid = b.oid AND a.attname = g.key_column AND a.attnum > 0 AND NOT a.attisdropped
              WHERE b.top = g.oid AND NOT can_be_key(a.atttypid)) w)
  FROM guarded g JOIN pg_class c ON c.oid = g.oid JOIN pg_namespace s ON s.oid = c.relnamespace
  WHERE NOT EXISTS (SELECT FROM below b WHERE b.oid = g.oid AND b.top <> g.oid
                    AND b.resource = g.resource AND b.key_column IS NOT DISTINCT FROM g.key_column)
  ORDER BY 1
$$;

-- hold_schema keeps the schema from being taken away until the transaction ends.
CREATE FUNCTION hold_schema() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  LOCK TABLE fences IN ACCESS SHARE MODE;
END $$;

-- guard_table puts a table, its partitions and its children under guard; again, it adds what is missing. It runs with the
-- rights of its caller, who must own the table. Answers how many triggers it made.
CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  c    record;
  rel  record;
  g    record;
  args text;
  n    int := 0;
BEGIN
  SELECT k.oid, k.relkind, k.relnamespace, k.relname, format('%I.%I', s.nspname, k.relname) AS name, s.nspname INTO c
    FROM pg_class k JOIN pg_namespace s ON s.oid = k.relnamespace WHERE k.oid = p_table;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'table is %: it must be an existing table', coalesce(p_table::text, 'NULL') USING ERRCODE = 'undefined_table';
  END IF;
  IF c.relkind NOT IN ('r', 'p') OR c.nspname = current_schema()
     AND c.relname IN ('locks', 'fences', 'events', 'spent_grants', 'installation', 'waiters', 'sessions', 'receipts', 'done_keys', 'pglock_schema_migrations') THEN
    RAISE EXCEPTION 'table is %, which is %: a guard needs a table of the application', c.name,
        CASE c.relkind WHEN 'v' THEN 'a view' WHEN 'm' THEN 'a materialized view' WHEN 'f' THEN 'a foreign table' WHEN 'r' THEN 'a table of pglock'
                       ELSE 'no table' END
      USING ERRCODE = 'wrong_object_type';
  END IF;
  p_resource := coalesce(p_resource, c.relname);
  IF octet_length(p_resource) NOT BETWEEN 1 AND 512 - 2 * (p_key IS NOT NULL)::int THEN
    RAISE EXCEPTION 'resource is % bytes long: it must have 1 to 512, and with a key to 510', octet_length(p_resource)
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_key IS NOT NULL THEN
    SELECT a.atttypid INTO g FROM pg_attribute a
      WHERE a.attrelid = c.oid AND a.attname = p_key AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
      RAISE EXCEPTION 'key is %: table % has no such column', quote_literal(left(p_key, 63)), c.name USING ERRCODE = 'undefined_column';
    END IF;
    IF NOT can_be_key(g.atttypid) THEN
      RAISE EXCEPTION 'key column % of % is of type %: it must be an integer, numeric, text, varchar, uuid, bool, date or an enum', quote_ident(p_key), c.name,
          format_type(g.atttypid, NULL)
        USING ERRCODE = 'datatype_mismatch';
    END IF;
  END IF;
  PERFORM hold_schema();
  args := concat_ws(', ', quote_literal(p_resource), quote_literal(p_key));

  FOR rel IN
    WITH RECURSIVE below AS (
      SELECT c.oid AS oid, 0 AS depth UNION SELECT i.inhrelid, b.depth + 1 FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT k.oid, format('%I.%I', s.nspname, k.relname) AS name, k.relkind,
           EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = k.oid) AS inherits   -- a write through a parent fires row triggers alone
    FROM (SELECT oid, min(depth) AS depth FROM below GROUP BY oid) b JOIN pg_class k ON k.oid = b.oid JOIN pg_namespace s ON s.oid = k.relnamespace
    ORDER BY b.depth, k.oid
  LOOP
    SELECT l.resource, l.key_column INTO g FROM (
        SELECT max(o.args[1]) AS resource, max(o.args[2]) AS key_column, count(*) AS n FROM guard_triggers(rel.oid) o) l WHERE l.n > 0;
    IF FOUND AND (g.resource <> p_resource OR g.key_column IS DISTINCT FROM p_key) THEN
      RAISE EXCEPTION 'table % is guarded already, by resource %', rel.name, quote_literal(g.resource || coalesce('/<' || g.key_column || '>', ''))
        USING ERRCODE = 'duplicate_object', HINT = 'Drop that guard first, or name the same resource and key.';
    END IF;
    FOR g IN SELECT t.name FROM guard_triggers(rel.oid) t WHERE NOT t.sound AND NOT t.inherited LOOP
      EXECUTE format('DROP TRIGGER %I ON %s', g.name, rel.name);
    END LOOP;
    IF p_key IS NULL AND rel.relkind = 'r' AND NOT rel.inherits AND NOT EXISTS (SELECT FROM guard_triggers(rel.oid) t WHERE t.name = 'pglock_guard') THEN
      EXECUTE format('CREATE TRIGGER pglock_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %I.guard_statement(%s)',
                     rel.name, current_schema(), quote_literal(p_resource));
      n := n + 1;
    ELSIF p_key IS NOT NULL OR rel.relkind <> 'r' OR rel.inherits THEN
      IF NOT EXISTS (SELECT FROM guard_triggers(rel.oid) t WHERE t.name = 'pglock_guard_row') THEN
        EXECUTE format('CREATE TRIGGER pglock_guard_row AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION %I.guard_row(%s)',
                       rel.name, current_schema(), args);
        n := n + 1;
      END IF;
      IF NOT EXISTS (SELECT FROM guard_triggers(rel.oid) t WHERE t.name = 'pglock_guard_truncate') THEN
        EXECUTE format('CREATE TRIGGER pglock_guard_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION %I.guard_statement(%s)',
                       rel.name, current_schema(), args);
        n := n + 1;
      END IF;
    END IF;
    FOR g IN SELECT t.name FROM guard_triggers(rel.oid) t WHERE t.enabled <> 'A' LOOP
      EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', rel.name, g.name);   -- session_replication_role opens no hole
    END LOOP;
  END LOOP;
  RETURN n;
END $$;

-- unguard_table takes the guard away, from partitions and children too. Answers how many triggers it dropped.
CREATE FUNCTION unguard_table(p_table regclass) RETURNS int
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  t record;
  n int := 0;
BEGIN
  SELECT format('%I.%I', s.nspname, k.relname) AS part, w.whole INTO t
    FROM pg_class k JOIN pg_namespace s ON s.oid = k.relnamespace, LATERAL (
      WITH RECURSIVE up AS (
        SELECT g.tgrelid, g.tgparentid FROM pg_trigger g WHERE g.tgrelid = k.oid AND g.tgparentid <> 0
          AND g.tgname IN (SELECT o.name FROM guard_triggers(k.oid) o WHERE o.inherited)
        UNION SELECT g.tgrelid, g.tgparentid FROM up u JOIN pg_trigger g ON g.oid = u.tgparentid)
      SELECT format('%I.%I', n.nspname, c.relname) AS whole FROM up u JOIN pg_class c ON c.oid = u.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace
      WHERE u.tgparentid = 0 LIMIT 1) w
    WHERE k.oid = p_table;
  IF FOUND THEN
    RAISE EXCEPTION 'table % is guarded as a part of table %, whose guard would be left with a hole; nothing was changed', t.part, t.whole
      USING ERRCODE = 'wrong_object_type', HINT = format('Drop the guard of %s, or detach %s from it first.', t.whole, t.part), TABLE = t.whole;
  END IF;
  FOR t IN
    WITH RECURSIVE below AS (
      SELECT p_table::oid AS oid UNION SELECT i.inhrelid FROM below b JOIN pg_inherits i ON i.inhparent = b.oid)
    SELECT g.name, format('%I.%I', s.nspname, k.relname) AS on_table
    FROM below b JOIN pg_class k ON k.oid = b.oid JOIN pg_namespace s ON s.oid = k.relnamespace
      CROSS JOIN LATERAL guard_triggers(b.oid) g WHERE NOT g.inherited
  LOOP
    EXECUTE format('DROP TRIGGER %I ON %s', t.name, t.on_table);
    n := n + 1;
  END LOOP;
  IF n = 0 THEN
    RAISE EXCEPTION 'table % is not guarded: there is nothing to drop', coalesce(p_table::text, 'NULL') USING ERRCODE = 'undefined_object';
  END IF;
  RETURN n;
END $$;

-- bypass_guards lets this transaction write to guarded tables without a fence. The audit says who did it and why, and to
-- which tables; a rollback, also to a savepoint, takes it back.
CREATE FUNCTION bypass_guards(p_reason text, p_actor text) RETURNS xid8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := is_operator(p_reason, p_actor);
BEGIN
  INSERT INTO events (kind, lock_name, token, actor, reason, xact) VALUES ('bypass', '', 0, p_actor, p_reason, pg_current_xact_id());
  RETURN pg_current_xact_id();
END $$;
