-- Fences. A transaction first locks the fence's row; from then on no transaction with a lower token passes.

-- raise_stale raises LK002: a greater token has passed the fence, or this one has and may not pass twice.
CREATE FUNCTION raise_stale(p_resource text, p_token bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'token % is stale: token % has passed the fence of %', p_token, p_last, quote_literal(p_resource)
    USING ERRCODE = 'LK002', DETAIL = 'last_token=' || p_last, CONSTRAINT = p_resource,
      COLUMN = coalesce(p_token::text, ''),
          HINT = CASE WHEN p_last = p_token
                 THEN 'This grant has already written to the resource; let it write again only with allow_same_token.'
                      ELSE 'A greater token has written: stop this work.' END;
END $$;

-- On some systems a server cannot notice that its client is gone.
DO $do$
DECLARE
  can boolean := true;
BEGIN
  BEGIN
    PERFORM set_config('client_connection_check_interval', '1000', true);
  EXCEPTION WHEN invalid_parameter_value THEN
    can := false;
  END;
  EXECUTE format('CREATE FUNCTION can_check_connection() RETURNS boolean LANGUAGE sql IMMUTABLE AS %L',
    'SELECT ' || can);
END $do$;

-- sooner is by how many milliseconds a wait for a lock ends before the statement that waits would, so that the error
-- says that it was a lock.
CREATE FUNCTION sooner(p_ms bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE
AS $$
  SELECT LEAST(GREATEST(20, p_ms OPERATOR(pg_catalog./) 20), p_ms OPERATOR(pg_catalog./) 4, 1000)
$$;

-- lower_timeouts is bound_transaction where the user has set limits.
CREATE FUNCTION lower_timeouts(p_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  RETURN bound_timeout('lock_timeout', p_ms - sooner(p_ms)) AND bound_timeout('statement_timeout', p_ms)
    AND bound_timeout('idle_in_transaction_session_timeout', p_ms) AND bound_timeout('tcp_user_timeout', p_ms)
    AND (NOT can_check_connection() OR bound_timeout('client_connection_check_interval', 1000))
    AND bound_transaction_timeout(p_ms + 100);
END $$;

-- bound_transaction ends this transaction in p_ms, whatever holds it up, so that a hanging holder does not block the
-- next one at the fence for longer. A lower limit that the user has set stays; p_ms is less than the greatest, 2^31.
-- It is one expression, because each is set up anew in every transaction, and leaves the rare case to a function of
-- its own, so that it stays small.
CREATE FUNCTION bound_transaction(p_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE
    WHEN pg_catalog.concat(pg_catalog.current_setting('lock_timeout'), pg_catalog.current_setting('statement_timeout'),
           pg_catalog.current_setting('idle_in_transaction_session_timeout'),
           pg_catalog.current_setting('tcp_user_timeout'),
           pg_catalog.current_setting('client_connection_check_interval'),
           coalesce(pg_catalog.current_setting('transaction_timeout', true), '0'))
         OPERATOR(pg_catalog.=) '000000'       -- the commonest: none is set
    THEN pg_catalog.set_config('lock_timeout', (p_ms OPERATOR(pg_catalog.-) {{schema}}.sooner(p_ms))::pg_catalog.text,
           true) IS NOT NULL
         AND pg_catalog.set_config('statement_timeout', p_ms::pg_catalog.text, true) IS NOT NULL
         AND pg_catalog.set_config('idle_in_transaction_session_timeout', p_ms::pg_catalog.text, true) IS NOT NULL
         AND pg_catalog.set_config('tcp_user_timeout', p_ms::pg_catalog.text, true) IS NOT NULL
         AND (NOT {{schema}}.can_check_connection()
           OR pg_catalog.set_config('client_connection_check_interval', '1000', true) IS NOT NULL)
         AND (pg_catalog.current_setting('transaction_timeout', true) IS NULL
           OR {{schema}}.bound_transaction_timeout(p_ms OPERATOR(pg_catalog.+) 100))
    ELSE {{schema}}.lower_timeouts(p_ms) END
$$;

-- fence puts the caller's transaction under the fence of p_resource: by default the lock's own name, for a slot the
-- name, '#', and the slot. First it locks the fence's row, which may wait for a predecessor's open transaction. Then
-- it refuses a token that is not greater than every token that passed (with p_allow_same_token, this very grant's may
-- pass again). Then it checks the lease by the server's clock. At COMMIT the trigger fence_commit checks the lease
-- again. The transaction may last no longer than the lease, or than p_time_limit if that is less. p_slot NULL:
-- whichever it is. With p_receipt_id the transaction leaves a receipt, for outcome.
CREATE FUNCTION fence(
  p_name text, p_token bigint, p_grant_id uuid, p_resource text DEFAULT NULL, p_allow_same_token boolean DEFAULT false,
  p_database_id uuid DEFAULT NULL, p_slot int DEFAULT NULL, p_receipt_id uuid DEFAULT NULL,
  p_write_id uuid DEFAULT NULL, p_time_limit interval DEFAULT NULL,
  OUT xact xid8, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  r  pg_catalog.record;  ms pg_catalog.int8;  ok pg_catalog.bool;  -- reads: see pass_first
  reads pg_catalog.bool := pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) 'serializable';
BEGIN
  IF (p_name IS NOT NULL AND p_token OPERATOR(pg_catalog.>) 0 AND p_grant_id IS NOT NULL
      AND pg_catalog.octet_length(coalesce(p_resource, p_name)) OPERATOR(pg_catalog.>) 0
      AND pg_catalog.octet_length(coalesce(p_resource, p_name)) OPERATOR(pg_catalog.<=) 512) IS NOT TRUE THEN
    PERFORM {{schema}}.refuse_arguments(p_name, p_token, p_grant_id, p_resource);
  END IF;
  SELECT l.slot, l.subtree, coalesce(p_resource, CASE
      WHEN l.slot OPERATOR(pg_catalog.>) 0 THEN pg_catalog.concat(l.name, '#', l.slot) ELSE l.name END) AS resource,
      pg_catalog.date_part('epoch', l.expires_at OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) AS seconds
    INTO r FROM {{schema}}.locks l
    WHERE l.name OPERATOR(pg_catalog.=) p_name AND l.slot OPERATOR(pg_catalog.>=) coalesce(p_slot, 0)
      AND l.slot OPERATOR(pg_catalog.<=) coalesce(p_slot, 2147483647)
      AND l.grant_id OPERATOR(pg_catalog.=) p_grant_id AND l.token OPERATOR(pg_catalog.=) p_token
      AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()                    -- is_running, written out
      AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE;
  IF NOT FOUND THEN
    -- Refused in any case. One that was overtaken gets the stale token's error first, without waiting for anybody.
    PERFORM {{schema}}.refuse_fence(p_name, p_token, p_grant_id, p_resource, p_database_id, p_slot);
  END IF;
  ms := LEAST(GREATEST(0, r.seconds OPERATOR(pg_catalog.*) 1000), 2147483000)::pg_catalog.int8 OPERATOR(pg_catalog.+) 1;
  ms := CASE WHEN p_time_limit IS NULL THEN ms ELSE {{schema}}.limited(ms, p_time_limit) END;
  ok := {{schema}}.bound_transaction(ms) AND {{schema}}.require_warnings()
    AND (NOT r.subtree OR {{schema}}.is_covered(r.resource, p_name, r.slot));
  UPDATE {{schema}}.fences f SET last_token = p_token, lock_name = p_name, slot = r.slot, grant_id = p_grant_id,
      fenced_xact = pg_catalog.pg_current_xact_id(),
      advanced_at = GREATEST(pg_catalog.clock_timestamp(), pg_catalog.statement_timestamp(),  -- see fence_commit
        pg_catalog.transaction_timestamp())               -- and seal: the clock may have been set back since BEGIN
    WHERE reads AND f.resource OPERATOR(pg_catalog.=) r.resource AND (f.last_token OPERATOR(pg_catalog.<) p_token
      OR p_allow_same_token AND f.last_token OPERATOR(pg_catalog.=) p_token
         AND f.grant_id OPERATOR(pg_catalog.=) p_grant_id);
  ok := FOUND OR {{schema}}.pass_first(r.resource, p_token, p_name, r.slot, p_grant_id, p_allow_same_token);
  ok := (pg_catalog.current_setting('fence.checked', true) OPERATOR(pg_catalog.=) 'early') IS NOT TRUE
    OR {{schema}}.check_again(r.resource);
  IF p_receipt_id IS NOT NULL THEN
    UPDATE {{schema}}.receipts o SET write_id = p_write_id, at = pg_catalog.clock_timestamp()
      WHERE reads AND o.receipt_id OPERATOR(pg_catalog.=) p_receipt_id AND p_write_id IS NOT NULL;
    ok := FOUND OR {{schema}}.write_receipt(p_receipt_id, p_write_id);
  END IF;
  SELECT l.expires_at INTO fence.expires_at FROM {{schema}}.locks l               -- after whatever wait, look again
    WHERE l.name OPERATOR(pg_catalog.=) p_name AND l.slot OPERATOR(pg_catalog.=) r.slot
      AND l.grant_id OPERATOR(pg_catalog.=) p_grant_id AND l.token OPERATOR(pg_catalog.=) p_token
      AND l.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
      AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE;
  IF NOT FOUND THEN
    PERFORM {{schema}}.refuse_lease(p_name, p_token, p_grant_id, p_slot);
  END IF;
  fence.xact := pg_catalog.pg_current_xact_id();
  fence.remaining_us := {{schema}}.microseconds_until(fence.expires_at);
END $$;

-- refuse_arguments raises what is wrong with the arguments of fence.
CREATE FUNCTION refuse_arguments(p_name text, p_token bigint, p_grant_id uuid, p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := has_bytes(CASE WHEN p_resource IS NULL THEN 'name' ELSE 'resource' END,
                          coalesce(p_resource, p_name, 'NULL'), 512);
BEGIN
  RAISE EXCEPTION 'name, token and grant_id are %, % and %: none of them may be NULL, and the token must be positive',
      coalesce(quote_literal(p_name), 'NULL'), coalesce(p_token::text, 'NULL'),
      CASE WHEN p_grant_id IS NULL THEN 'NULL' ELSE 'given' END USING ERRCODE = 'invalid_parameter_value';
END $$;

-- is_covered refuses a resource that does not lie below a subtree, and is not that of the lease's own slot.
CREATE FUNCTION is_covered(p_resource text, p_name text, p_slot int) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  RETURN p_resource IN (p_name, p_name || '#' || nullif(p_slot, 0)) OR starts_with(p_resource, p_name || '/')
    OR refuse('resource', quote_literal(p_resource),
              'be ' || quote_literal(p_name) || ' or below it, which is what the lease covers');
END $$;

-- limited is the lesser of p_ms and a time limit.
CREATE FUNCTION limited(p_ms bigint, p_time_limit interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := is_ttl('time_limit', p_time_limit);
BEGIN
  RETURN LEAST(p_ms, (extract(epoch FROM p_time_limit) * 1000)::bigint);
END $$;

-- pass_first passes the fence of a resource that has no row yet, or of one whose row the statement before did not see.
-- SERIALIZABLE transactions pass here: to look for a row in vain is to read, and two that look for new rows and then
-- make them would be in each other's way (40001). Nobody sees a new row before the COMMIT, so until then a shared
-- advisory lock marks the transaction for backend_pids, with hashes of the lock's name and the resource. Nobody waits
-- for it. A transaction marks eight fences at most: the server has room for some thousands of such locks in all.
CREATE FUNCTION pass_first(p_resource text, p_token bigint, p_name text, p_slot int, p_grant_id uuid,
  p_allow_same_token boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  marks text := coalesce(current_setting('fence.marks', true), '');
  ok    boolean := length(marks) >= 8 OR pg_try_advisory_xact_lock_shared(hashtext(p_name), hashtext(p_resource))
    AND set_config('fence.marks', marks || '.', true) IS NOT NULL;
BEGIN
  INSERT INTO fences AS f (resource, last_token, lock_name, slot, grant_id, fenced_xact, advanced_at)
    VALUES (p_resource, p_token, p_name, p_slot, p_grant_id, pg_current_xact_id(),
            GREATEST(clock_timestamp(), statement_timestamp(), transaction_timestamp()))
    ON CONFLICT (resource) DO UPDATE SET
      last_token = p_token, lock_name = p_name, slot = p_slot, grant_id = p_grant_id,
      fenced_xact = pg_current_xact_id(),
      advanced_at = GREATEST(clock_timestamp(), statement_timestamp(), transaction_timestamp())
      WHERE f.last_token < p_token OR p_allow_same_token AND f.last_token = p_token AND f.grant_id = p_grant_id;
  IF NOT FOUND THEN
    PERFORM raise_stale(p_resource, p_token, (SELECT f.last_token FROM fences f WHERE f.resource = p_resource));
  END IF;
  RETURN true;
END $$;

-- check_again lets COMMIT check the lease, where SET CONSTRAINTS ALL IMMEDIATE came before the fence: the check has
-- already been made then, in the statement that passed the fence, and comes once for each version of the fence's row.
CREATE FUNCTION check_again(p_resource text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  PERFORM set_config('fence.checked', '', true);
  SET CONSTRAINTS fence_commit DEFERRED;
  UPDATE fences f SET advanced_at = f.advanced_at WHERE f.resource = p_resource;
  RETURN true;
END $$;

-- require_database refuses what belongs to another database. NULL: the caller does not know.
CREATE FUNCTION require_database(p_database_id uuid, p_what text, p_hint text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  IF p_database_id <> database_id() THEN
    RAISE EXCEPTION '% belongs to another database: not to schema % of database %',
        p_what, current_schema(), current_database() USING ERRCODE = 'LK007', HINT = p_hint;
  END IF;
  RETURN true;
END $$;

-- refuse_fence raises the reason why a lease that is not held may not pass.
CREATE FUNCTION refuse_fence(p_name text, p_token bigint, p_grant_id uuid, p_resource text,
  p_database_id uuid, p_slot int) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok   boolean := require_primary();
  res  text := coalesce(p_resource, p_name || coalesce((
    SELECT '#' || l.slot FROM locks l WHERE l.name = p_name AND l.slot > 0 AND l.slot = coalesce(p_slot, l.slot)
      AND l.grant_id = p_grant_id AND l.token = p_token), ''));
  last bigint;
BEGIN
  ok := require_database(p_database_id, 'the lease of lock ' || quote_literal(p_name),
                         'Write through the database that granted the lock.');
  SELECT f.last_token INTO last FROM fences f WHERE f.resource = res AND f.last_token > p_token;
  IF FOUND THEN
    PERFORM raise_stale(res, p_token, last);
  END IF;
  PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id, p_slot), 'expired'));
END $$;

-- refuse_lease raises the reason why the lease with which a fence was passed is no longer held.
CREATE FUNCTION refuse_lease(p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id, p_slot), 'expired'));
END $$;

-- The check inside COMMIT (I4). It holds the lease until the transaction's end: FOR KEY SHARE makes a grant, a
-- release and a break come after it, lets renewals pass, and fails with 40001 if an older snapshot hides one of the
-- three. It reads the clock in an expression of its own, after the row is locked: a query computes what it selects
-- before it waits for the row. A row from a restore or a replica carries another transaction's ID and is left alone.
CREATE FUNCTION fence_commit() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
  held boolean;
  ends pg_catalog.timestamptz;
BEGIN
  IF NEW.fenced_xact OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id() THEN
    SELECT l.grant_id OPERATOR(pg_catalog.=) NEW.grant_id AND l.token OPERATOR(pg_catalog.=) NEW.last_token
           AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at    -- is_running, written out
      INTO held, ends FROM {{schema}}.locks l
      WHERE l.name OPERATOR(pg_catalog.=) NEW.lock_name AND l.slot OPERATOR(pg_catalog.=) NEW.slot FOR KEY SHARE;
    IF (held AND ends OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
        AND NEW.advanced_at OPERATOR(pg_catalog.<) pg_catalog.statement_timestamp()) IS NOT TRUE THEN
      IF (held AND ends OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) IS NOT TRUE THEN
        PERFORM {{schema}}.refuse_lease(NEW.lock_name, NEW.last_token, NEW.grant_id);
      END IF;
      PERFORM pg_catalog.set_config('fence.checked', 'early', true);
    END IF;
  END IF;
  RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER fence_commit AFTER INSERT OR UPDATE ON fences
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fence_commit();
ALTER TABLE fences ENABLE ALWAYS TRIGGER fence_commit;   -- session_replication_role = replica opens no hole

-- seal is the last statement before COMMIT. It refuses a transaction that is not under each of these fences, because
-- it left one by COMMIT, ROLLBACK or ROLLBACK TO; the fence's row, which only fence writes, shows it. It also checks
-- the leases and locks their rows, in the order in which release_leases ends them. So nobody is granted one of the
-- locks before the COMMIT, even if SET CONSTRAINTS ALL IMMEDIATE has used up the check inside it.
CREATE FUNCTION seal(p_resources text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  f    pg_catalog.record;
  held pg_catalog.bool;
  ends pg_catalog.timestamptz;
BEGIN
  IF pg_catalog.cardinality(p_resources) OPERATOR(pg_catalog.=) 1 THEN
    SELECT o.lock_name, o.slot, o.grant_id, o.last_token INTO f FROM {{schema}}.fences o
      WHERE o.resource OPERATOR(pg_catalog.=) p_resources[1]
        AND o.fenced_xact OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()
        AND o.advanced_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp();
    SELECT l.grant_id OPERATOR(pg_catalog.=) f.grant_id AND l.token OPERATOR(pg_catalog.=) f.last_token
           AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at             -- as fence_commit
      INTO held, ends FROM {{schema}}.locks l
      WHERE l.name OPERATOR(pg_catalog.=) f.lock_name AND l.slot OPERATOR(pg_catalog.=) f.slot FOR KEY SHARE;
    IF held AND ends OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp() THEN
      RETURN;
    END IF;
  END IF;
  PERFORM {{schema}}.seal_each(p_resources);
END $$;

-- seal_each is seal for several fences, and for one that it refuses.
CREATE FUNCTION seal_each(p_resources text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  res  text;
  f    record;
  held boolean;
  ends timestamptz;
  ok   boolean := cardinality(p_resources) BETWEEN 1 AND 10000 IS TRUE
    OR refuse('resources', coalesce(cardinality(p_resources), 0) || ' of them',
              'be 1 to 10000 that the transaction has passed the fences of');
BEGIN
  IF cardinality(p_resources) > 1 THEN
    p_resources := ARRAY(SELECT r FROM unnest(p_resources) r LEFT JOIN LATERAL (      -- each by its key
      SELECT o.lock_name, o.slot FROM fences o WHERE o.resource = r OFFSET 0) k ON true
      ORDER BY k.lock_name NULLS FIRST, k.slot);
  END IF;
  FOREACH res IN ARRAY p_resources LOOP
    SELECT o.lock_name, o.slot, o.grant_id, o.last_token INTO f FROM fences o
      WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned()
        AND o.advanced_at >= transaction_timestamp();
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the transaction is not under the fence of %: %', coalesce(quote_literal(res), 'NULL'),
          'not passed, or left by COMMIT, ROLLBACK or ROLLBACK TO inside the write'
        USING ERRCODE = 'LK009', CONSTRAINT = coalesce(res, '');
    END IF;
    SELECT l.grant_id = f.grant_id AND l.token = f.last_token
           AND NOT is_over(l.expires_at, l.ended_at), l.expires_at
      INTO held, ends FROM locks l WHERE l.name = f.lock_name AND l.slot = f.slot FOR KEY SHARE;   -- as fence_commit
    IF (held AND ends > clock_timestamp()) IS NOT TRUE THEN
      PERFORM refuse_lease(f.lock_name, f.last_token, f.grant_id);
    END IF;
  END LOOP;
END $$;

-- fence_all is fence for several leases and resources at once. It takes fences in the byte order of their resources,
-- so that transactions do not wait for each other in a circle.
CREATE FUNCTION fence_all(
  p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_resources text[] DEFAULT NULL,
  p_allow_same_token boolean DEFAULT false, p_database_id uuid DEFAULT NULL, p_slots int[] DEFAULT NULL,
  p_receipt_id uuid DEFAULT NULL, p_write_id uuid DEFAULT NULL, p_time_limit interval DEFAULT NULL,
  OUT xact xid8, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  n    pg_catalog.int4 := pg_catalog.cardinality(p_names);
  none pg_catalog.text[] := pg_catalog.array_fill(NULL::pg_catalog.text, ARRAY[coalesce(n, 0)]);
  ok   pg_catalog.bool := {{schema}}.is_batch(ARRAY[n, pg_catalog.cardinality(p_tokens),
    pg_catalog.cardinality(p_grant_ids), pg_catalog.cardinality(coalesce(p_resources, none)),
    pg_catalog.cardinality(coalesce(p_slots, none::pg_catalog.int4[]))]);
  a    pg_catalog.record;
  f    pg_catalog.record;
  last pg_catalog.text;
BEGIN
  FOR a IN
    SELECT g.name, g.token, g.grant_id, g.slot, g.resource AS asked,
           coalesce(g.resource, (SELECT pg_catalog.concat(l.name, '#', l.slot) FROM {{schema}}.locks l
                                 WHERE l.name OPERATOR(pg_catalog.=) g.name AND l.slot OPERATOR(pg_catalog.>) 0
                                   AND l.grant_id OPERATOR(pg_catalog.=) g.grant_id LIMIT 1), g.name)
             COLLATE pg_catalog."C" AS resource
    FROM ROWS FROM (pg_catalog.unnest(p_names), pg_catalog.unnest(p_tokens), pg_catalog.unnest(p_grant_ids),
        pg_catalog.unnest(coalesce(p_resources, none)),
        pg_catalog.unnest(coalesce(p_slots, none::pg_catalog.int4[]))) AS g (name, token, grant_id, resource, slot)
    ORDER BY 6
  LOOP
    IF a.resource OPERATOR(pg_catalog.=) last THEN
      PERFORM {{schema}}.refuse_twice(last);
    END IF;
    last := a.resource;
    f := {{schema}}.fence(a.name, a.token, a.grant_id, a.asked, p_allow_same_token, p_database_id, a.slot, NULL, NULL,
                          p_time_limit);
    fence_all.xact := f.xact;
    fence_all.remaining_us := LEAST(fence_all.remaining_us, f.remaining_us);
  END LOOP;
  IF p_receipt_id IS NOT NULL THEN
    ok := {{schema}}.write_receipt(p_receipt_id, p_write_id);
  END IF;
END $$;

-- refuse_twice is what fence_all raises.
CREATE FUNCTION refuse_twice(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  RAISE EXCEPTION 'resource % is named twice: one lease passes the fence of a resource', quote_literal(p_resource)
    USING ERRCODE = 'invalid_parameter_value';
END $$;

-- write_receipt leaves the receipt of this transaction. Only the writer knows the receipt's ID, and does not use it
-- for another write before it knows what became of this one.
CREATE FUNCTION write_receipt(p_receipt_id uuid, p_write_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := p_write_id IS NOT NULL OR refuse('write_id', NULL, 'be a UUID, when there is a receipt_id');
BEGIN
  INSERT INTO receipts AS r (receipt_id, write_id, at) VALUES (p_receipt_id, p_write_id, clock_timestamp())
    ON CONFLICT (receipt_id) DO UPDATE SET write_id = p_write_id, at = clock_timestamp();
  RETURN true;
END $$;

-- outcome says what became of a write whose COMMIT was not answered: true if its transaction was committed, false if
-- it was not and never can be. It writes the receipt once more. That waits for a transaction that is still open, and
-- its own COMMIT waits as long as any, so the answer is as durable as a grant. If the transaction stays open for
-- longer than lock_timeout allows, it is 55P03: nobody knows yet. A question that is idle, because its line was cut,
-- keeps the row from others for a second at most. Another database would not have the row, whatever became of the write
-- (I17): so the caller has to name the write's, and any other one refuses before it writes.
CREATE FUNCTION outcome(p_receipt_id uuid, p_write_id uuid, p_database_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  ok     boolean := require_read_committed() AND require_durable_commit() AND bound_rest(true);
  found_ uuid;
BEGIN
  IF p_receipt_id IS NULL OR p_write_id IS NULL OR p_database_id IS NULL THEN
    ok := refuse('receipt_id, write_id or database_id', NULL, 'be a UUID');
  END IF;
  ok := require_database(p_database_id, 'the receipt', 'Ask in the database and the schema of the write.');
  INSERT INTO receipts AS r (receipt_id, write_id, at) VALUES (p_receipt_id, gen_random_uuid(), clock_timestamp())
    ON CONFLICT (receipt_id) DO UPDATE SET at = clock_timestamp() RETURNING r.write_id INTO found_;
  RETURN found_ = p_write_id;
END $$;
