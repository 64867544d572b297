-- Rules that every function keeps: what is refused, and how.
--
-- SQLSTATEs of our own, class LK:
--   LK001  the lease has expired                         DETAIL reason=expired
--   LK002  stale token: a greater token passed the fence DETAIL last_token=N
--   LK003  not the holder: released, broken, taken over, or unknown here
--                                                        DETAIL reason=released|broken|taken over|unknown
--   LK004  the owner of the request holds the lock itself DETAIL circle=self   (look reports longer circles)
--   LK005  the transaction is not READ COMMITTED
--   LK006  the lock is not held, or not with the named token
--   LK007  the lease or the receipt belongs to another database
--   LK008  the grant ID was used before and its lease has ended, or it was given up
--   LK009  the transaction is not under the fence
--   LK010  the lock is in use with another limit
--   LK011  a guarded table was written without its fence  DETAIL resource=...
--   LK012  the key is older than done keys are kept
-- Arguments out of range are 22023 (invalid_parameter_value): the message names the argument, the value and the rule.
--
-- A SECURITY DEFINER function is for callers. It either fixes the search_path, or qualifies every name and every
-- operator. acquire_lease, release_lease, fence, fence_commit and guard_write qualify, because fixing the path would
-- cost a tenth of their time and more, and so do fence_all, once and seal. They leave what is rare to functions that
-- fix the path. All others use the path that is set. Rules return true or raise, so that a caller evaluates them
-- without a query.

-- schema_version is what a client compares with the version that it needs. It reads nothing. Migrations take the
-- number from this text and run nothing, so each version keeps to the form.
CREATE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 1';

-- serves_from is the oldest schema version whose libraries this schema still serves. So old programs keep working, and
-- can restart, between a migration and the end of the roll-out that follows it.
CREATE FUNCTION serves_from() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 1';

-- Rules are SQL functions, so that the server inlines them into the calling expression: calling each of them would
-- cost more than everything they do. Separate functions raise their errors. A function that the server cannot inline,
-- as for its settings or because it uses an argument twice that is a call, must not be SQL: each call would plan it.

-- refuse says what is wrong with an argument.
CREATE FUNCTION refuse(p_argument text, p_value text, p_rule text) RETURNS boolean
LANGUAGE plpgsql VOLATILE   -- not evaluated by the planner
AS $$
BEGIN
  RAISE EXCEPTION '% is %: it must %', p_argument, coalesce(p_value, 'NULL'), p_rule USING
    ERRCODE = 'invalid_parameter_value';
END $$;

-- has_bytes refuses a text that is missing, or does not have 1 to p_most bytes.
CREATE FUNCTION has_bytes(p_argument text, p_value text, p_most int) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN octet_length(p_value) BETWEEN 1 AND p_most THEN true
    ELSE refuse(p_argument, coalesce(octet_length(p_value)::text, 'NULL, not some number of') || ' bytes long',
      'have 1 to ' || p_most) END
$$;

-- is_ttl refuses what cannot be a lease's length. A day has 23 or 25 hours in some sessions' time zones.
CREATE FUNCTION is_ttl(p_argument text, p_value interval) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN p_value BETWEEN interval '100 ms' AND interval '24 hours'
      AND substr(interval_send(p_value), 9) = decode('0000000000000000', 'hex') THEN true
    ELSE refuse(p_argument, p_value::text, 'be from 100 ms to 24 hours, in hours and less') END
$$;

-- is_count refuses a number out of range, such as the length of a list.
CREATE FUNCTION is_count(p_argument text, p_value bigint, p_least bigint, p_most bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN p_value BETWEEN p_least AND p_most THEN true
    ELSE refuse(p_argument, p_value::text, 'be from ' || p_least || ' to ' || p_most) END
$$;

-- is_length refuses what cannot be the length of a list; NULL is all of it.
CREATE FUNCTION is_length(p_value bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$ SELECT p_value IS NULL OR is_count('limit', p_value, 1, 1000000) $$;

-- is_age refuses what cannot be a time that has passed: the clock less an age must be a time, and none to come. When
-- compared, a month has 30 days. So none of the three parts may be negative: microseconds, days and months.
CREATE FUNCTION is_age(p_argument text, p_value interval) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN p_value BETWEEN interval '0' AND interval '1000 years' AND GREATEST(
      get_byte(interval_send(p_value), 0), get_byte(interval_send(p_value), 8), get_byte(interval_send(p_value), 12))
      < 128 THEN true
    ELSE refuse(p_argument, p_value::text, 'be from 0 to 1000 years, no part of it negative') END
$$;

-- is_operator refuses an act that the history could not explain.
CREATE FUNCTION is_operator(p_reason text, p_actor text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN p_reason ~ '[^[:space:]]' AND octet_length(p_reason) <= 1024 THEN has_bytes('actor', p_actor, 256)
    ELSE refuse('reason', quote_literal(left(p_reason, 40)), 'have 1 to 1024 bytes, not all of them blank') END
$$;

-- is_batch refuses arrays that are empty, too long for one statement, or of different lengths. It fixes
-- the search_path that fence_all does not.
CREATE FUNCTION is_batch(p_lengths int[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE SET search_path FROM CURRENT
AS $$
DECLARE
  n int;
BEGIN
  FOREACH n IN ARRAY p_lengths LOOP
    IF n IS DISTINCT FROM p_lengths[1] OR n IS NULL OR n NOT BETWEEN 1 AND 10000 THEN
      RAISE EXCEPTION 'the arrays have % elements: they must have the same number, from 1 to 10000',
          array_to_string(p_lengths, ', ', '0') USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END LOOP;
  RETURN true;
END $$;

-- refuse_isolation is what require_read_committed raises.
CREATE FUNCTION refuse_isolation() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RAISE EXCEPTION 'the transaction is %: this function needs READ COMMITTED',
    upper(current_setting('transaction_isolation') COLLATE "C")
    USING ERRCODE = 'LK005', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
END $$;

-- Every statement of a function must see what was committed before it began; a frozen snapshot never sees a takeover.
CREATE FUNCTION require_read_committed() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') THEN true
    ELSE refuse_isolation() END
$$;

-- require_primary refuses on a standby, which may not know yet what has become of a lease or a key (I23). It is for
-- what is answered before anything is written: a standby refuses each write by itself.
CREATE FUNCTION require_primary() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'a standby cannot tell whether locks are held, or what was done'
      USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  RETURN true;
END $$;

-- require_unrenewed refuses to end leases in a transaction that has renewed any, or has locked one for a hand-over that
-- then found nobody, or has locked or marked one for a request above or below it, or in a sweep (pglock.kept). A
-- renewal and a mark leave their lock on the new version of the row. So an end in a subtransaction, or after one of
-- these in one, would be no change of the key for a COMMIT that follows the row's versions from before (I4).
CREATE FUNCTION require_unrenewed() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF pg_catalog.current_setting('pglock.renewed', true) OPERATOR(pg_catalog.=) 'true' THEN
    RAISE EXCEPTION 'this transaction has renewed leases: it may not end any'
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Release, give up, hand over or break in a transaction by itself.';
  ELSIF pg_catalog.current_setting('pglock.kept', true) OPERATOR(pg_catalog.=) 'true' THEN
    RAISE EXCEPTION 'this transaction has locked leases for the sake of a subtree: it may not end any'
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Release, give up, hand over or break in a transaction by itself.';
  END IF;
  RETURN true;
END $$;

-- refuse_unseen_end refuses an end of a lease whose row this transaction had locked before, beside another one or in
-- another subtransaction. The row then has a list of lockers, in which the end is no change of the key for a COMMIT
-- that follows the row's versions (I4). An update leaves the lock on the new version. So xmin = xmax there says that
-- this very subtransaction alone had locked the row, FOR UPDATE. A lock of a transaction that has ended does not count.
CREATE FUNCTION refuse_unseen_end(p_state text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RAISE EXCEPTION 'this transaction has locked the lease before, as whoever queues does: it may not end it'
    USING ERRCODE = p_state, HINT = 'Release, give up, hand over or break in a transaction by itself.';
END $$;

-- A COMMIT that has not waited for the standby says so in a warning, which no setting of the session may silence (I17).
-- The server inlines this also into functions that fix no search_path.
CREATE FUNCTION require_warnings() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.=) 'error'
    THEN pg_catalog.set_config('client_min_messages', 'warning', true) IS NOT NULL ELSE true END
$$;

-- A grant and a renewal are answered only when they are on disk, and on a standby if one is waited for, whatever the
-- session's default. Otherwise a crash could give out the token or the expiry twice (I12).
CREATE FUNCTION require_durable_commit() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
    THEN set_config('synchronous_commit', 'on', true) IS NOT NULL ELSE true END AND require_warnings()
$$;

-- json_time is a time as JSON has it, in UTC. It names no time zone: the session's own TimeZone may give that name
-- another meaning, and may be too far from UTC for those who read JSON.
CREATE FUNCTION json_time(p_at timestamptz) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT to_char(p_at AT TIME ZONE interval '0', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') $$;

-- bound_timeout lowers a timeout of this transaction to p_ms; a lower one that the user has set stays. 0 means no
-- limit. All timeouts count in milliseconds: the server shows tcp_user_timeout as that number, the others with a unit.
CREATE FUNCTION bound_timeout(p_setting text, p_ms bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN current_setting(p_setting) = '0' OR extract(epoch FROM (current_setting(p_setting)
      || CASE WHEN current_setting(p_setting) ~ '^[0-9]+$' THEN ' ms' ELSE '' END)::interval) * 1000 > p_ms
    THEN set_config(p_setting, GREATEST(1, LEAST(p_ms, 2147483647))::text, true) IS NOT NULL ELSE true END
$$;

-- bound_transaction_timeout is bound_timeout for transaction_timeout, which PostgreSQL has from version 17 on. Its
-- clock starts with the first value above 0, and no later value moves that. So it becomes 0 before, and then counts
-- from now, but not beyond the end of an earlier limit: of ours, which pglock.ends has in milliseconds, or of the
-- user's, which ends this long after BEGIN, if that is still to come; else the user has set it later. ROLLBACK TO
-- takes back the setting, and not the clock.
CREATE FUNCTION bound_transaction_timeout(p_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  old  float8 := extract(epoch FROM current_setting('transaction_timeout', true)::interval) * 1000;
  at   float8 := extract(epoch FROM clock_timestamp()) * 1000;
  ends float8 := coalesce(nullif(current_setting('pglock.ends', true), '')::float8,
    extract(epoch FROM transaction_timestamp()) * 1000 + old);
BEGIN
  IF old IS NULL OR old > 0 AND old <= p_ms THEN
    RETURN true;
  ELSIF old > 0 AND ends > at THEN
    p_ms := LEAST(p_ms, ends - at);
  END IF;
  p_ms := GREATEST(1, LEAST(p_ms, 2147483647));
  RETURN set_config('transaction_timeout', '0', true) IS NOT NULL
    AND set_config('transaction_timeout', p_ms::text, true) IS NOT NULL
    AND set_config('pglock.ends', (at + p_ms)::bigint::text, true) IS NOT NULL;
END $$;

-- is_running says that a lease is held. An expiry that is settled stays over, even if the clock is set back to before
-- it: another lease may have been granted since, in another row of the lock.
CREATE FUNCTION is_running(p_expires_at timestamptz, p_ended_at timestamptz) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$ SELECT p_expires_at > clock_timestamp() AND p_ended_at IS DISTINCT FROM p_expires_at $$;

-- is_over says that nothing of a lease can be under way any more: it was released or broken, or its expiry is
-- settled. Grants depend on this alone, for rows that they have read when they had taken the head.
CREATE FUNCTION is_over(p_expires_at timestamptz, p_ended_at timestamptz) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT p_expires_at = '-infinity' OR p_ended_at IS NOT DISTINCT FROM p_expires_at $$;

-- microseconds_until is the time until then, by the clock of this moment; 0 when it has passed.
CREATE FUNCTION microseconds_until(p_at timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT CASE WHEN p_at OPERATOR(pg_catalog.>) '-infinity' THEN GREATEST(0, EXTRACT(epoch FROM p_at
  OPERATOR(pg_catalog.-) pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 ELSE 0 END $$;

-- is_plain says that a request is exclusive and keeps every rule of check_request, is_plain_session that its session
-- does, and has usual settings. The server inlines them and is_free, also into functions that fix no search_path.
CREATE FUNCTION is_plain(
  p_name text, p_grant_id uuid, p_holder text, p_ttl interval, p_metadata jsonb, p_mode text, p_capacity int,
  p_nested boolean) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT p_mode COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) 'exclusive'
    AND p_capacity IS NULL AND p_grant_id IS NOT NULL AND p_nested IS NOT NULL
    AND p_name OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(p_name) OPERATOR(pg_catalog.<=) 512
    AND p_holder OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(p_holder) OPERATOR(pg_catalog.<=) 256
    AND p_ttl OPERATOR(pg_catalog.>=) '100 ms' AND p_ttl OPERATOR(pg_catalog.<=) '24 hours'
    AND pg_catalog.substr(pg_catalog.interval_send(p_ttl), 9)                                   -- no days, no months
        OPERATOR(pg_catalog.=) pg_catalog.decode('0000000000000000', 'hex')
    AND (p_metadata IS NULL OR pg_catalog.octet_length(p_metadata::pg_catalog.text) OPERATOR(pg_catalog.<=) 16384)
$$;

CREATE FUNCTION is_plain_session(p_session_key uuid, p_session_ttl interval) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT p_session_key IS NOT NULL
    AND p_session_ttl OPERATOR(pg_catalog.>=) '100 ms' AND p_session_ttl OPERATOR(pg_catalog.<=) '24 hours'
    AND pg_catalog.substr(pg_catalog.interval_send(p_session_ttl), 9)
        OPERATOR(pg_catalog.=) pg_catalog.decode('0000000000000000', 'hex')
    AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
    AND pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) ALL ('{off,local}')
    AND pg_catalog.current_setting('client_min_messages') OPERATOR(pg_catalog.<>) 'error'
$$;

-- is_free says of the head of a lock, which the caller locks in the same statement, that a plain request may be granted
-- it: it was released, it has no slots, no grant ID of it was given up lately, and the next token is greater than that
-- of the row. For a released lock without slots nobody queues, unless it says so. p_drawn is the greatest token that
-- was drawn; NULL keeps whoever asks from a grant here.
CREATE FUNCTION is_free(
  p_expires_at timestamptz, p_top_slot int, p_queued boolean, p_grant_id uuid, p_spent_until timestamptz,
  p_token bigint, p_asked uuid, p_drawn bigint) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT p_expires_at OPERATOR(pg_catalog.=) '-infinity' AND p_top_slot OPERATOR(pg_catalog.=) 0 AND NOT p_queued
    AND p_grant_id OPERATOR(pg_catalog.<>) p_asked
    AND (p_spent_until IS NULL OR p_spent_until OPERATOR(pg_catalog.<=) pg_catalog.clock_timestamp())
    AND p_token OPERATOR(pg_catalog.<=) p_drawn
$$;
