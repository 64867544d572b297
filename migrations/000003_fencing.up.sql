-- pglock, schema version 3: guarded tables, many fences in one transaction, work that is done once, and what an operator
-- should know of the server.
--
-- More SQLSTATEs of class LK:
--   LK011  a guarded table was written without its fence   DETAIL resource=...
--   LK012  the key is older than done keys are kept

DO $do$
BEGIN
  IF current_schema() IS NULL OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
     <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp', current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
  -- The rights of functions that are there already, ours or an application's, are left alone.
  PERFORM set_config('pglock.before', coalesce((SELECT array_agg(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                                                WHERE n.nspname = current_schema()), '{}')::text, true);
END $do$;

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 3';

ALTER TABLE events DROP CONSTRAINT events_kind,
  ADD CONSTRAINT events_kind CHECK (kind IN ('break', 'takeover', 'stale write', 'bypass', 'guard', 'unguard', 'not restored', 'epoch')),
  ADD COLUMN xact xid8;                                    -- of a bypass: the transaction that is allowed to
CREATE INDEX events_xact ON events (xact) WHERE xact IS NOT NULL;

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
-- row triggers alone. It runs AFTER the write, on the row as the other triggers have left it.
CREATE FUNCTION guard_row() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET datestyle = 'ISO, YMD'
AS $$
DECLARE
  ok     boolean;
  before text;
  after  text;
  key    text;
BEGIN
  IF TG_NARGS < 2 THEN
    ok := require_fence(TG_ARGV[0], TG_TABLE_SCHEMA, TG_TABLE_NAME);
    RETURN NULL;
  END IF;
  -- to_jsonb looks for casts to json, which may be code of the table's owner and would run with our rights, and refuses some
  -- values of json. So a row that has more than the server's own types gives its key alone, by the type's output function.
  IF NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = TG_RELID AND a.attnum > 0 AND NOT a.attisdropped
                 AND (a.atttypid >= 16384 OR a.atttypid IN ('json'::regtype, 'json[]'::regtype))) THEN
    before := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) ->> TG_ARGV[1] END;
    after := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) ->> TG_ARGV[1] END;
  ELSE
    key := format('SELECT CASE WHEN k IS NOT NULL THEN CASE pg_typeof(k)::oid WHEN 16 THEN CASE format(''%%s'', k) WHEN ''t'' THEN ''true'' ELSE ''false'' END '
                  'ELSE format(''%%s'', k) END END FROM (SELECT ($1).%I) AS x (k)', TG_ARGV[1]);
    BEGIN
      IF TG_OP <> 'INSERT' THEN EXECUTE key INTO before USING OLD; END IF;
      IF TG_OP <> 'DELETE' THEN EXECUTE key INTO after USING NEW; END IF;
    EXCEPTION WHEN undefined_column THEN
      NULL;   -- dropped or renamed: no key, no fence
    END;
  END IF;
  IF (TG_OP <> 'INSERT' AND before IS NULL OR TG_OP <> 'DELETE' AND after IS NULL) AND NOT bypassed(TG_TABLE_SCHEMA, TG_TABLE_NAME) THEN
    RAISE EXCEPTION 'key column % of guarded table %.% is NULL or missing: a row without a key has no fence', quote_ident(TG_ARGV[1]),
        quote_ident(TG_TABLE_SCHEMA), quote_ident(TG_TABLE_NAME)
      USING ERRCODE = 'LK011', DETAIL = 'resource=' || TG_ARGV[0], SCHEMA = TG_TABLE_SCHEMA, TABLE = TG_TABLE_NAME, COLUMN = TG_ARGV[1];
  END IF;
  ok := (before IS NULL OR before = after OR require_fence(TG_ARGV[0] || '/' || before, TG_TABLE_SCHEMA, TG_TABLE_NAME))
    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after, TG_TABLE_SCHEMA, TG_TABLE_NAME));
  RETURN NULL;
END $$;

-- record_incident notes for the audit what the server cannot see by itself.
CREATE FUNCTION record_incident(p_kind text, p_resource text, p_name text, p_token bigint, p_holder text, p_reason text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  IF p_kind IS NULL OR p_kind NOT IN ('not restored', 'guard', 'unguard') THEN
    RAISE EXCEPTION 'kind is %: it must be not restored, guard or unguard', coalesce(quote_literal(left(p_kind, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF octet_length(p_resource) > 528 OR octet_length(p_reason) > 1024 OR octet_length(p_holder) > 256 THEN
    RAISE EXCEPTION 'resource, reason and holder are % bytes long: they must have at most 528, 1024 and 256',
        concat_ws(', ', octet_length(p_resource), octet_length(p_reason), octet_length(p_holder))
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO events (kind, lock_name, token, holder, reason, resource)
    VALUES (p_kind, coalesce(left(p_name, 512), ''), coalesce(p_token, 0), p_holder, p_reason, p_resource);
  RETURN true;
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
     AND c.relname IN ('locks', 'fences', 'events', 'spent_grants', 'installation', 'waiters', 'sessions', 'done_keys', 'pglock_schema_migrations') THEN
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
  IF n > 0 THEN
    PERFORM record_incident('guard', p_resource, NULL, NULL, NULL, c.name || coalesce(', by ' || quote_ident(p_key), ''));
  END IF;
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
  PERFORM record_incident('unguard', NULL, NULL, NULL, NULL, (SELECT format('%I.%I', s.nspname, k.relname) FROM pg_class k
    JOIN pg_namespace s ON s.oid = k.relnamespace WHERE k.oid = p_table));
  RETURN n;
END $$;

CREATE FUNCTION require_operator(p_reason text, p_actor text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_reason IS NULL OR p_reason !~ '[^[:space:]]' OR octet_length(p_reason) > 1024 THEN
    RAISE EXCEPTION 'reason is %: it must have 1 to 1024 bytes, not all of them blank', coalesce(quote_literal(left(p_reason, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_actor IS NULL OR octet_length(p_actor) NOT BETWEEN 1 AND 256 THEN
    RAISE EXCEPTION 'actor is %: it must have 1 to 256 bytes', coalesce(quote_literal(left(p_actor, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN true;
END $$;

-- bypass_guards lets this transaction write to guarded tables without a fence. The audit says who did it and why, and to
-- which tables; a rollback, also to a savepoint, takes it back.
CREATE FUNCTION bypass_guards(p_reason text, p_actor text) RETURNS xid8
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_operator(p_reason, p_actor);
BEGIN
  INSERT INTO events (kind, lock_name, token, actor, reason, xact) VALUES ('bypass', '', 0, p_actor, p_reason, pg_current_xact_id());
  RETURN pg_current_xact_id();
END $$;

-- Refusals name what was refused in two of the error's fields, for programs: the constraint is the lock's name, or the
-- resource, and the column is the token.
CREATE OR REPLACE FUNCTION raise_lost(p_name text, p_token bigint, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'the lease of lock % with token % is lost: %', quote_literal(p_name), p_token,
      CASE p_reason WHEN 'unknown' THEN format('schema %I of database %I has no such grant', current_schema(), current_database())
                    ELSE p_reason END
    USING ERRCODE = CASE p_reason WHEN 'expired' THEN 'LK001' ELSE 'LK003' END,
          DETAIL = 'reason=' || p_reason, CONSTRAINT = coalesce(p_name, ''), COLUMN = coalesce(p_token::text, ''),
          HINT = 'Stop the work that this lock protects; acquire it again to go on.';
END $$;

CREATE OR REPLACE FUNCTION raise_stale(p_resource text, p_token bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'token % is stale: token % has passed the fence of %', p_token, p_last, quote_literal(p_resource)
    USING ERRCODE = 'LK002', DETAIL = 'last_token=' || p_last, CONSTRAINT = p_resource, COLUMN = coalesce(p_token::text, ''),
          HINT = CASE WHEN p_last = p_token THEN 'This grant has already written to the resource; let it write again only with allow_same_token.'
                      ELSE 'A later holder has written: stop this work.' END;
END $$;

-- fence_all is fence for several leases and resources at once. Fences are taken in the byte order of their resources, and
-- fence_commit locks the leases in the order of their names, so that transactions do not wait for each other in a circle.
CREATE FUNCTION fence_all(
  p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_resources text[] DEFAULT NULL,
  p_allow_same_token boolean DEFAULT false, p_database_id uuid DEFAULT NULL,
  OUT xact xid8, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  a    record;
  f    record;
  last text;
  noted text;
  passed text[] := '{}';
BEGIN
  IF cardinality(p_names) IS NULL OR cardinality(p_names) NOT BETWEEN 1 AND 1000 OR cardinality(p_tokens) IS DISTINCT FROM cardinality(p_names)
     OR cardinality(p_grant_ids) IS DISTINCT FROM cardinality(p_names)
     OR p_resources IS NOT NULL AND cardinality(p_resources) <> cardinality(p_names) THEN
    RAISE EXCEPTION 'names, tokens, grant_ids and resources have % elements: they must have the same number, from 1 to 1000',
        concat_ws(', ', coalesce(cardinality(p_names), 0), coalesce(cardinality(p_tokens), 0), coalesce(cardinality(p_grant_ids), 0), cardinality(p_resources))
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  FOR a IN
    SELECT g.name, g.token, g.grant_id,
           coalesce(g.resource, (SELECT l.name || '#' || l.slot FROM locks l WHERE l.name = g.name AND l.token = g.token AND l.slot > 0), g.name)
             COLLATE "C" AS resource, g.resource AS asked
    FROM unnest(p_names, p_tokens, p_grant_ids, coalesce(p_resources, array_fill(NULL::text, ARRAY[cardinality(p_names)])))
      AS g (name, token, grant_id, resource)
    ORDER BY 4
  LOOP
    IF a.resource = last THEN
      RAISE EXCEPTION 'resource % is named twice: one lease passes the fence of a resource', quote_literal(last) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    last := a.resource;
    passed := passed || a.resource;
    SELECT * INTO f FROM fence(a.name, a.token, a.grant_id, a.asked, p_allow_same_token, p_database_id);
    fence_all.xact := f.xact;
    fence_all.remaining_us := LEAST(fence_all.remaining_us, f.remaining_us);
  END LOOP;
  noted := set_config('pglock.together', (to_jsonb(passed) || coalesce(nullif(current_setting('pglock.together', true), ''), '[]')::jsonb)::text, true);
END $$;

-- What was done once. A key that belongs to a moment, a slot of a schedule or the time of a message, need not be kept for
-- ever: when it is older than it would be kept, it is refused, so that forgetting it does not let it be done again.
CREATE TABLE done_keys (
  key        text COLLATE "C" PRIMARY KEY CONSTRAINT done_keys_key_length CHECK (octet_length(key) BETWEEN 1 AND 512),
  lock_name  text COLLATE "C" NOT NULL,
  token      bigint      NOT NULL,
  done_at    timestamptz NOT NULL,
  keep_until timestamptz              -- NULL: for ever
);
CREATE INDEX done_keys_keep_until ON done_keys (keep_until) WHERE keep_until IS NOT NULL;

-- once passes the fence and notes the key, in the transaction that does the work. is_first false: it was done before, and
-- nothing was changed. Whoever asks while another does it waits for the end of that transaction.
CREATE FUNCTION once(
  p_key text, p_name text, p_token bigint, p_grant_id uuid, p_resource text DEFAULT NULL,
  p_of timestamptz DEFAULT NULL, p_keep interval DEFAULT NULL, p_database_id uuid DEFAULT NULL,
  OUT is_first boolean, OUT xact xid8, OUT lock_name text, OUT token bigint, OUT done_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
  IF p_key IS NULL OR octet_length(p_key) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'key is % bytes long: it must have 1 to 512', coalesce(octet_length(p_key)::text, 'NULL, not some number of')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF (p_of IS NULL) <> (p_keep IS NULL) OR NOT isfinite(p_of) OR p_keep < interval '1 s' OR p_keep > interval '36525 days' THEN
    RAISE EXCEPTION 'of and keep are % and %: both or neither, a finite time and 1 s to 100 years', coalesce(p_of::text, 'NULL'), coalesce(p_keep::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  once.is_first := false;
  SELECT d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at FROM done_keys d WHERE d.key = p_key;
  IF FOUND THEN
    RETURN;
  END IF;
  IF p_of + p_keep <= clock_timestamp() THEN
    RAISE EXCEPTION 'key % is of %, and is kept for %: whether it was done is not known any more', quote_literal(p_key), p_of, p_keep
      USING ERRCODE = 'LK012', HINT = 'Keep keys for longer than they can be asked for.';
  END IF;
  SELECT f.xact INTO once.xact FROM fence(p_name, p_token, p_grant_id, p_resource, true, p_database_id) f;
  -- Kept a day longer than they are accepted, in case the clock is set back.
  WITH old AS (SELECT d.key FROM done_keys d WHERE d.keep_until < clock_timestamp() - interval '1 day' ORDER BY d.keep_until LIMIT 10 FOR UPDATE SKIP LOCKED)
  DELETE FROM done_keys d USING old WHERE d.key = old.key;
  INSERT INTO done_keys AS d (key, lock_name, token, done_at, keep_until) VALUES (p_key, p_name, p_token, clock_timestamp(), p_of + p_keep)
    ON CONFLICT (key) DO NOTHING RETURNING d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at;
  once.is_first := FOUND;
  IF NOT FOUND THEN
    SELECT d.lock_name, d.token, d.done_at INTO once.lock_name, once.token, once.done_at FROM done_keys d WHERE d.key = p_key;
  END IF;
END $$;

-- advance_epoch makes every token from now on greater than any that this database knows of, and than p_above: after a
-- restore, or when a standby was promoted beside another.
CREATE FUNCTION advance_epoch(p_reason text, p_actor text, p_above bigint DEFAULT 0) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_operator(p_reason, p_actor) AND require_durable_commit();
  e  bigint;
BEGIN
  IF p_above IS NULL OR p_above NOT BETWEEN 0 AND (524286::bigint << 44) THEN
    RAISE EXCEPTION 'above is %: it must be a token, or 0', coalesce(p_above::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  UPDATE installation i SET epoch = LEAST(GREATEST(i.epoch, p_above >> 44) + 1, 524287) RETURNING i.epoch INTO e;
  INSERT INTO events (kind, lock_name, token, actor, reason) VALUES ('epoch', '', e << 44, p_actor, p_reason);
  RETURN e;
END $$;

-- check_lease as before, and never from a standby, which may not know yet what has become of the lease.
CREATE OR REPLACE FUNCTION check_lease(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'a standby cannot tell whether lock % is held', quote_literal(p_name) USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  SELECT l.expires_at, microseconds_until(l.expires_at) INTO check_lease.expires_at, check_lease.remaining_us
    FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF check_lease.remaining_us IS NULL OR check_lease.remaining_us = 0 THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

-- diagnose tells what this server can and cannot do for the locks: ok is NULL where it depends on what is wanted.
CREATE FUNCTION diagnose() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  i    record;
  line int := current_timeline();
BEGIN
  SELECT * INTO i FROM installation;
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
        coalesce((SELECT min(a.xact_start) > clock_timestamp() - interval '10 minutes' FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL), true) END,
     CASE WHEN NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN 'not visible without pg_read_all_stats' ELSE coalesce((SELECT date_trunc('second', clock_timestamp() - min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL), 'none') END,
     'One that is open for long makes each renewal a little slower than the one before.'),
    ('notification queue', pg_notification_queue_usage() < 0.5, round(pg_notification_queue_usage()::numeric * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.');
  RETURN QUERY
    SELECT 'guard of ' || g.table_name, g.problem IS NULL, g.resource || coalesce('/<' || g.key_column || '>', ''),
           coalesce(g.problem || '. Guard the table again.', 'Every write needs the fence of this resource.') FROM list_guards() g;
END $$;

DO $do$
DECLARE
  f text;
BEGIN
  REVOKE ALL ON done_keys FROM PUBLIC;
  FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
           WHERE n.nspname = current_schema() AND NOT p.oid = ANY (current_setting('pglock.before')::oid[]) LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
  GRANT EXECUTE ON FUNCTION
    fence_all(text[], bigint[], uuid[], text[], boolean, uuid), once(text, text, bigint, uuid, text, timestamptz, interval, uuid),
    guard_statement(), guard_row(), guard_triggers(oid), trigger_arguments(bytea, int), can_be_key(oid), guard_table(regclass, text, text), unguard_table(regclass), list_guards(),
    record_incident(text, text, text, bigint, text, text), diagnose()
    TO pglock_user, pglock_admin;
  GRANT EXECUTE ON FUNCTION bypass_guards(text, text), advance_epoch(text, text, bigint) TO pglock_admin;
END $do$;
