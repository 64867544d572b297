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
AS $$ SELECT LEAST(GREATEST(20, p_ms / 20), p_ms / 4, 1000) $$;

-- bound_transaction ends this transaction in p_ms, whatever holds it up, so that a hanging holder does not block the
-- next one at the fence for longer. A lower limit that the user has set stays. It uses few and large expressions,
-- because each is set up anew in every transaction.
CREATE FUNCTION bound_transaction(p_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE
    WHEN current_setting('lock_timeout') || current_setting('statement_timeout')
         || current_setting('idle_in_transaction_session_timeout') || current_setting('tcp_user_timeout')
         || current_setting('client_connection_check_interval')
         || coalesce(current_setting('transaction_timeout', true), '0') = '000000'       -- the commonest: none is set
    THEN set_config('lock_timeout', (p_ms - sooner(p_ms))::text, true)
         || set_config('statement_timeout', p_ms::text, true)
         || set_config('idle_in_transaction_session_timeout', p_ms::text, true) || set_config('tcp_user_timeout',
           p_ms::text, true)
         || CASE WHEN can_check_connection() THEN set_config('client_connection_check_interval', '1000', true)
           ELSE '' END
         || CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL
                 THEN set_config('transaction_timeout', (p_ms + 100)::text, true) ELSE '' END IS NOT NULL
    ELSE bound_timeout('lock_timeout', p_ms - sooner(p_ms)) AND bound_timeout('statement_timeout', p_ms)
         AND bound_timeout('idle_in_transaction_session_timeout', p_ms) AND bound_timeout('tcp_user_timeout', p_ms)
         AND (NOT can_check_connection() OR bound_timeout('client_connection_check_interval', 1000))
         AND (current_setting('transaction_timeout', true) IS NULL
           OR bound_timeout('transaction_timeout', p_ms + 100)) END
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
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  r   record;
  res text;  ms bigint;
  ok  boolean := has_bytes(CASE WHEN p_resource IS NULL THEN 'name' ELSE 'resource' END,
                           coalesce(p_resource, p_name, 'NULL'), 512);
BEGIN
  IF p_name IS NULL OR p_token IS NULL OR p_token <= 0 OR p_grant_id IS NULL THEN
    RAISE EXCEPTION 'name, token and grant_id are %, % and %: none of them may be NULL, and the token must be positive',
        coalesce(quote_literal(p_name), 'NULL'), coalesce(p_token::text, 'NULL'),
        CASE WHEN p_grant_id IS NULL THEN 'NULL' ELSE 'given' END USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT l.ctid AS at, l.expires_at, l.ended_at, l.slot INTO r FROM locks l
    WHERE l.name = p_name AND l.slot = coalesce(p_slot, l.slot) AND l.grant_id = p_grant_id
      AND l.token = p_token;
  res := coalesce(p_resource, p_name || CASE WHEN r.slot > 0 THEN '#' || r.slot ELSE '' END);
  IF NOT is_running(r.expires_at, r.ended_at) THEN
    -- Refused in any case: one that was overtaken gets the stale token's error first, without waiting for anybody.
    PERFORM refuse_fence(p_name, p_token, p_grant_id, res, p_database_id, p_slot);
  END IF;
  ms := microseconds_until(r.expires_at) / 1000 + 1;
  IF p_time_limit IS NOT NULL THEN
    ok := is_ttl('time_limit', p_time_limit);
    ms := LEAST(ms, (extract(epoch FROM p_time_limit) * 1000)::bigint);
  END IF;
  ok := bound_transaction(ms);
  SET CONSTRAINTS fence_commit DEFERRED;   -- where SET CONSTRAINTS ALL IMMEDIATE came before us
  INSERT INTO fences AS f (resource, last_token, lock_name, slot, grant_id, fenced_xact, advanced_at)
    VALUES (res, p_token, p_name, r.slot, p_grant_id, pg_current_xact_id(), clock_timestamp())
    ON CONFLICT (resource) DO UPDATE SET
      last_token = p_token, lock_name = p_name, slot = r.slot, grant_id = p_grant_id,
      fenced_xact = pg_current_xact_id(), advanced_at = clock_timestamp()
      WHERE f.last_token < p_token OR p_allow_same_token AND f.last_token = p_token AND f.grant_id = p_grant_id
    RETURNING f.fenced_xact INTO fence.xact;
  IF NOT FOUND THEN
    PERFORM raise_stale(res, p_token, (SELECT f.last_token FROM fences f WHERE f.resource = res));
  END IF;
  ok := p_receipt_id IS NULL OR write_receipt(p_receipt_id, p_write_id);

  -- After whatever wait, look again: at the version of the row that was seen before, or a newer one.
  SELECT l.expires_at INTO fence.expires_at FROM locks l WHERE l.ctid = r.at AND l.name = p_name AND l.slot = r.slot
    AND l.grant_id = p_grant_id AND l.token = p_token
      AND is_running(l.expires_at, l.ended_at);
  IF NOT FOUND THEN
    SELECT l.expires_at INTO fence.expires_at FROM locks l WHERE l.name = p_name AND l.slot = r.slot
      AND l.grant_id = p_grant_id AND l.token = p_token
        AND is_running(l.expires_at, l.ended_at);
    IF NOT FOUND THEN
      PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id, p_slot), 'expired'));
    END IF;
  END IF;
  fence.remaining_us := microseconds_until(fence.expires_at);
END $$;

-- refuse_fence raises the reason why a lease that is not held may not pass.
CREATE FUNCTION refuse_fence(p_name text, p_token bigint, p_grant_id uuid, p_resource text,
  p_database_id uuid, p_slot int) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  last bigint;
BEGIN
  IF p_database_id <> database_id() THEN
    RAISE EXCEPTION 'the lease of lock % belongs to another database: not to schema % of database %',
        quote_literal(p_name), current_schema(), current_database()
      USING ERRCODE = 'LK007', HINT = 'Write through the database that granted the lock.';
  END IF;
  SELECT f.last_token INTO last FROM fences f WHERE f.resource = p_resource AND f.last_token > p_token;
  IF FOUND THEN
    PERFORM raise_stale(p_resource, p_token, last);
  END IF;
  PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id, p_slot), 'expired'));
END $$;

-- refuse_lease raises the reason why the lease with which a fence was passed is no longer held.
CREATE FUNCTION refuse_lease(p_name text, p_token bigint, p_grant_id uuid) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id, NULL), 'expired'));
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
    IF (held AND ends OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()) IS NOT TRUE THEN
      PERFORM {{schema}}.refuse_lease(NEW.lock_name, NEW.last_token, NEW.grant_id);
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
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
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
    p_resources := ARRAY(SELECT r FROM unnest(p_resources) r LEFT JOIN fences o ON o.resource = r
                         ORDER BY o.lock_name NULLS FIRST, o.slot);
  END IF;
  FOREACH res IN ARRAY p_resources LOOP
    SELECT o.lock_name, o.slot, o.grant_id, o.last_token INTO f FROM fences o
      WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned()
        AND o.advanced_at >= transaction_timestamp();
    IF NOT FOUND THEN
      RAISE EXCEPTION 'the transaction is not under the fence of %: %', coalesce(quote_literal(res), 'NULL'),
          'it was left by COMMIT, ROLLBACK or ROLLBACK TO inside the write'
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
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  n    int := cardinality(p_names);
  none text[] := array_fill(NULL::text, ARRAY[coalesce(n, 0)]);
  ok   boolean := is_batch(ARRAY[n, cardinality(p_tokens), cardinality(p_grant_ids),
    cardinality(coalesce(p_resources, none)), cardinality(coalesce(p_slots, none::int[]))]);
  a    record;
  f    record;
  last text;
BEGIN
  FOR a IN
    SELECT g.name, g.token, g.grant_id, g.slot, g.resource AS asked,
           coalesce(g.resource, (SELECT l.name || '#' || l.slot FROM locks l
                                 WHERE l.name = g.name AND l.grant_id = g.grant_id AND l.slot > 0 LIMIT 1), g.name)
             COLLATE "C" AS resource
    FROM unnest(p_names, p_tokens, p_grant_ids, coalesce(p_resources, none), coalesce(p_slots, none::int[]))
      AS g (name, token, grant_id, resource, slot)
    ORDER BY 6
  LOOP
    IF a.resource = last THEN
      RAISE EXCEPTION 'resource % is named twice: one lease passes the fence of a resource', quote_literal(last)
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    last := a.resource;
    f := fence(a.name, a.token, a.grant_id, a.asked, p_allow_same_token, p_database_id, a.slot, NULL, NULL,
               p_time_limit);
    fence_all.xact := f.xact;
    fence_all.remaining_us := LEAST(fence_all.remaining_us, f.remaining_us);
  END LOOP;
  IF p_receipt_id IS NOT NULL THEN
    ok := write_receipt(p_receipt_id, p_write_id);
  END IF;
END $$;

-- write_receipt leaves the receipt of this transaction. Only the writer knows the receipt's ID, and does not use it
-- for another write before it knows what became of this one.
CREATE FUNCTION write_receipt(p_receipt_id uuid, p_write_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
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
-- longer than lock_timeout allows, it is 55P03: nobody knows yet.
CREATE FUNCTION outcome(p_receipt_id uuid, p_write_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  ok     boolean := require_read_committed() AND require_durable_commit();
  found_ uuid;
BEGIN
  IF p_receipt_id IS NULL OR p_write_id IS NULL THEN
    ok := refuse('receipt_id or write_id', NULL, 'be a UUID');
  END IF;
  INSERT INTO receipts AS r (receipt_id, write_id, at) VALUES (p_receipt_id, gen_random_uuid(), clock_timestamp())
    ON CONFLICT (receipt_id) DO UPDATE SET at = clock_timestamp() RETURNING r.write_id INTO found_;
  RETURN found_ = p_write_id;
END $$;
