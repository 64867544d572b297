-- A fenced write with psql and SQL functions alone: takes a lock, pays an amount into an account, and releases.
--
--   psql -X -d "$DATABASE_URL" -v name=accounts/16 -v account=16 -v amount=60 -f fenced_write.sql
--
-- -v ttl='30 s' is how long the lock outlives its holder, and the longest that the transaction may last.
--
-- Exit code 0: committed and released. 3: refused or failed, and the message has the SQLSTATE; LK001, LK002 and LK003 say
-- that somebody else may have the lock by now. 2: the connection was lost. Unless "committed" was printed, nothing was
-- written, but for one case: when the connection is lost at COMMIT, the statement after "fenced:" tells whether it was. Ask
-- before another run: that has a grant of its own, and would pay once more.
--
-- A run that fails while it holds the lock leaves it taken for the rest of the TTL.

\set ON_ERROR_STOP on
\set AUTOCOMMIT on
\set VERBOSITY verbose
\set SHOW_CONTEXT never
\set QUIET on

\if :{?name}
\else
  \set name ''
\endif
\if :{?ttl}
\else
  \set ttl '30 s'
\endif

-- The grant ID proves that the lease is ours, and the session key that the session is. Receipt and write are for one
-- question, after a COMMIT that was not answered; the database's ID keeps it from being asked elsewhere. All are chosen
-- before they are needed.
SELECT gen_random_uuid() AS grant_id, gen_random_uuid() AS session_key, gen_random_uuid() AS receipt_id,
       gen_random_uuid() AS write_id, pglock.database_id() \gset

-- Ask once, without waiting. \gset would unset what is NULL.
SELECT granted, coalesce(token, 0) AS token, coalesce(more ->> 'holder', 'somebody whose turn it is') AS holder,
       coalesce(more -> 'handed' ->> 'slots', '[]') AS handed, coalesce(more ->> 'watched', 'false') AS watched
  FROM pglock.acquire_lease(:'name', :'grant_id', :'session_key', 'fenced_write.sql', :'ttl') \gset

-- An acquire that finds a lock run out serves its queue before itself. Who was served, and who watches, is told in a
-- transaction after that one.
SELECT count(pglock.announce(array_fill(:'name'::text, ARRAY[cardinality(slots)]), slots)) AS announced
  FROM (SELECT CASE WHEN :'handed' = '[]' AND :'watched' THEN '{NULL}'
                    ELSE translate(:'handed', '[]', '{}')::int[] END AS slots) AS told
  WHERE slots <> '{}' \gset

\if :granted
  \echo granted: token :token
\else
  -- An error, because \quit would end with 0. A body in dollars sees no variables of psql.
  SELECT set_config('example.refusal', format('lock %L is held by %L', :'name', :'holder'), false) AS refusal \gset
  DO $$ BEGIN RAISE EXCEPTION '%', current_setting('example.refusal') USING ERRCODE = 'object_in_use'; END $$;
\endif

-- Work that takes long belongs here, with a renewal at every third of the TTL. The last one comes right before the
-- transaction, which may last no longer than the lease has left when it begins. Where it is lost the fence says why.
SELECT outcome FROM pglock.renew_leases(ARRAY[:'name'], ARRAY[:token], ARRAY[:'grant_id'::uuid], '{0}', '1 s') \gset

BEGIN;
-- The fence comes before the first read that the write depends on.
SELECT remaining_us
  FROM pglock.fence(:'name', :token, :'grant_id', p_receipt_id => :'receipt_id', p_write_id => :'write_id') \gset
\echo fenced: SELECT pglock.outcome(:'receipt_id', :'write_id', :'database_id')
-- \gset fails when there is no such account.
UPDATE accounts SET balance = balance + :'amount'::bigint WHERE id = :'account'::bigint RETURNING balance \gset
-- seal refuses a transaction that has left the fence. COMMIT checks the lease once more.
SELECT pglock.seal(ARRAY[:'name']) AS sealed \gset
COMMIT;
\echo committed: balance :balance

-- The release hands the lock to the next in the queue, who is told as above.
SELECT released, coalesce(more -> 'handed' ->> 'slots', '[]') AS handed, coalesce(more ->> 'watched', 'false') AS watched
  FROM pglock.release_lease(:'name', :token, :'grant_id') \gset
SELECT count(pglock.announce(array_fill(:'name'::text, ARRAY[cardinality(slots)]), slots)) AS announced
  FROM (SELECT CASE WHEN :'handed' = '[]' AND :'watched' THEN '{NULL}'
                    ELSE translate(:'handed', '[]', '{}')::int[] END AS slots) AS told
  WHERE slots <> '{}' \gset
\echo released: :released
