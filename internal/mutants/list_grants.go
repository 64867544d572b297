package main

// Where the short way of acquire_one locks a head that is free.
const (
	freeHead   = "AND l.slot = 0 AND l.expires_at = '-infinity' AND NOT l.queued\n"
	lockedFree = "        FOR UPDATE SKIP LOCKED) f ON true;"
)

// ofGrants are the faults of asking for one lock.
var ofGrants = []mutant{
	{"I1 a free lock is looked for among those that are held", []edit{
		{schema, freeHead, "AND l.slot = 0 AND NOT l.queued\n"},
	}, integration, "^TestI1_AllWays|^TestI1_I13_|^TestI1_I2_AllWays"},
	{"I1 a free lock is granted beside readers", []edit{
		{schema, "          AND l.top_slot = 0 AND w.mode = 'exclusive'", "          AND w.mode = 'exclusive'"},
	}, integration, "^TestI1_AllWays|^TestI9_NoTicket|^TestShared"},
	{"I1 a free lock is granted to a reader as to a writer", []edit{
		{schema, "          AND l.top_slot = 0 AND w.mode = 'exclusive' AND", "          AND l.top_slot = 0 AND"},
	}, integration, "^TestWhatAWriter"},
	{"I1 a free lock is granted without its row's lock", []edit{
		{schema, lockedFree, "        ) f ON true;"},
	}, integration, "^TestI1_I13_|^TestI1_AllWays|^TestI1_I2_AllWays"},
	{"I1 what has run out is granted beside a renewal", []edit{
		{schema, "AS $$ SELECT p_expires_at = '-infinity' OR p_ended_at IS NOT DISTINCT FROM p_expires_at $$;", "AS $$ SELECT p_expires_at <= clock_timestamp() $$;"},
	}, integration, "^TestI1_NoGrantBeside"},
	{"I1 what has run out is settled without the row's lock", []edit{
		{schema, "          ORDER BY o.slot FOR UPDATE SKIP LOCKED) e", "          ORDER BY o.slot) e"},
	}, integration, "^TestI1_NoGrantBeside|^TestI4_NoGrantOver"},
	{"I4 what has run out is settled over a prepared transaction", []edit{
		{schema, "          ORDER BY o.slot FOR UPDATE SKIP LOCKED) e", "          ORDER BY o.slot FOR NO KEY UPDATE SKIP LOCKED) e"},
	}, integration, "^TestI4_NoGrantOver"},
	{"I4 what is over is granted while a COMMIT that checks it is under way", []edit{
		{schema, "    ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED;\n  RETURN place;", "    ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;\n  RETURN place;"},
	}, integration, "^TestI4_"},
	{"I1 trap 4: a name that somebody else inserts is granted twice", []edit{
		{schema, "    ON CONFLICT (name, slot) DO NOTHING\n    RETURNING true, l.token, l.token, 0", `    ON CONFLICT (name, slot) DO UPDATE SET token = EXCLUDED.token, first_token = EXCLUDED.token, grant_id = EXCLUDED.grant_id,
      session_id = EXCLUDED.session_id, holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at
    RETURNING true, l.token, l.token, 0`},
	}, integration, "^TestTrap4_|^TestI1_Simultaneous"},
	{"I6 the same grant ID is granted again after its lease", []edit{
		{schema, "AND w.mode = 'exclusive' AND l.grant_id <> w.grant_id\n", "AND w.mode = 'exclusive'\n"},
	}, integration, "^TestI6_NoWay"},
	{"I6 a free lock is granted to a grant ID that was given up", []edit{
		{schema, "          AND (l.spent_until IS NULL OR l.spent_until <= clock_timestamp())\n        FOR UPDATE SKIP LOCKED) f", "        FOR UPDATE SKIP LOCKED) f"},
	}, integration, "^TestI6_NoWay|^TestTrap9_LateRequest"},
	{"I6 a retry does not wait for the attempt before", []edit{
		{schema, "  head := lock_head(w.name, p_wait OR p_retry);", "  head := lock_head(w.name, p_wait);"},
	}, integration, "^TestI6_RetryWaits"},
	{"I12 a grant that is answered again leaves synchronous_commit off", []edit{
		{schema, "  ok boolean := require_durable_commit();\n  r  locks;\nBEGIN\n  PERFORM FROM locks l WHERE l.name = p_row.name", "  r  locks;\nBEGIN\n  PERFORM FROM locks l WHERE l.name = p_row.name"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I13 a try for a free lock waits for its row", []edit{
		{schema, lockedFree, "        FOR UPDATE) f ON true;"},
	}, integration, "^TestI13_RefusedTryWaits|^TestI1_I13_"},
	{"I13 a try that may be refused waits for who decides", []edit{
		{schema, "LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;\n    END IF;", "LIMIT 1 FOR NO KEY UPDATE;\n    END IF;"},
	}, integration, "^TestI13_|^TestI1_I13_"},
	{"I13 a try that is refused writes", []edit{
		{schema, "  ELSIF NOT p_wait AND NOT p_retry THEN", "  ELSIF false THEN"},
	}, integration, "^TestI13_RefusedTry"},
	{"I13 a try that is refused looks at more than the head", []edit{
		{schema, "    IF r.expires_at > clock_timestamp() AND r.grant_id <> w.grant_id THEN\n      RETURN ROW(false", "    IF false THEN\n      RETURN ROW(false"},
	}, integration, "^TestI13_RefusedTryIsOne"},
	{"I13 a try that the queue refuses locks the head", []edit{
		{schema, "  RETURN ((next_waiter(w.name)).ticket IS NOT NULL OR free_at(", "  RETURN (free_at("},
	}, integration, "^TestI13_TryThatTheQueue"},
	{"I13 many are asked for in one statement, which waits for long", []edit{
		{schema, "RETURNS TABLE (n bigint, answer lease_answer)\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '50ms'",
			"RETURNS TABLE (n bigint, answer lease_answer)\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s'"},
	}, integration, "^TestI13_Calls"},
	{"I25 many are asked for as they are named", []edit{
		{schema, "    ORDER BY g.name COLLATE \"C\", g.n\n", "    ORDER BY g.n\n"},
	}, integration, "^TestI25_Calls"},
	{"I15 a grant is as long as its transaction has left", []edit{
		{schema, "expires_at = clock_timestamp() + w.ttl,\n    ended_at = p_ended_at", "expires_at = now() + w.ttl,\n    ended_at = p_ended_at"},
	}, integration, "^TestI15_|^TestTrap3_Transaction"},
	{"I12 grants leave the session's synchronous_commit", []edit{
		{schema, "    ignored := set_config('synchronous_commit', 'on', true);\n", "    NULL;\n"},
	}, integration, "^TestI12_"},
	{"I12 grants of a batch with tickets do not wait for the disk", []edit{
		{"internal/protocol/queries.go", "CASE WHEN NOT pg_catalog.bool_or((m.answer).granted OR (m.answer).hints IS NOT NULL OR (m.answer).handed IS NOT NULL) OVER ()\n\t\t\t\t\tTHEN ` + async + ` END", "` + async + `"},
	}, integration, "^TestI12_I24_What"},
	{"I14 a ticket waits for the disk", []edit{
		{"internal/protocol/queries.go", "CASE WHEN NOT a.granted AND a.hints IS NULL AND a.handed IS NULL THEN ` + async + ` END", "NULL::pg_catalog.text"},
	}, integration, "^TestI12_HandOver"},
	{"I19 functions work on a frozen snapshot", []edit{
		{schema, "  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN", "  IF false THEN"},
	}, library, "^TestI11_FunctionsThatNeed"},
	{"I19 no statement says READ COMMITTED", []edit{
		{"internal/protocol/execute.go", "\t\tif explicit {\n\t\t\tp.SendQueryParams(\"begin isolation level read committed\"", "\t\tif explicit {\n\t\t\tp.SendQueryParams(\"begin\""},
	}, integration, "^TestI19_"},
	{"I22 the first grant of a server process goes by the epoch before", []edit{
		{schema, "  SELECT i.epoch INTO base FROM installation i WHERE i.started = pg_postmaster_start_time();", "  SELECT i.epoch INTO base FROM installation i;"},
	}, integration, "^TestI22_FirstGrant"},
	{"I25 a grant passes the fence", []edit{
		{schema, "    INTO a.granted, a.token, a.first_token, a.slot, a.remaining_us, a.holder, a.expires_at, a.watched;\n  RETURN a;", "    INTO a.granted, a.token, a.first_token, a.slot, a.remaining_us, a.holder, a.expires_at, a.watched;\n  UPDATE fences SET last_token = a.token WHERE resource = w.name;\n  RETURN a;"},
	}, integration, "^TestI25_NoGrant"},
	{"crowds use multixacts", []edit{
		{schema, "LIMIT 1 FOR NO KEY UPDATE;\n    ELSE", "LIMIT 1 FOR SHARE;\n    ELSE"},
	}, integration, "^TestCrowdsUse"},
}

// ofTokens are the faults of tokens and epochs.
var ofTokens = []mutant{
	{"I2 trap 1: the token is drawn before the wait", []edit{
		{schema, "  ok boolean := require_read_committed() AND check_request(w, p_session_ttl);\nBEGIN\n  RETURN acquire_one(", "  ok boolean := require_read_committed() AND check_request(w, p_session_ttl)\n    AND set_config('pglock.drawn', nextval('fencing_token_seq')::text, true) <> '';\nBEGIN\n  RETURN acquire_one("},
		{schema, "  token := (base << 44) + nextval('fencing_token_seq');\n  IF token <= p_above THEN ", "  token := (base << 44) + coalesce(nullif(current_setting('pglock.drawn', true), '')::bigint, nextval('fencing_token_seq'));\n  IF false THEN "},
	}, integration, "^TestTrap1_"},
	{"I2 tokens go by the sequence alone", []edit{
		{schema, "  IF token <= p_above THEN ", "  IF false THEN "},
	}, integration, "^TestI2_TokensAscend"},
	{"I2 a release deletes the row", []edit{
		{schema, "    UPDATE locks l SET expires_at = '-infinity', ended_at = now WHERE l.ctid = p_at;", "    DELETE FROM locks l WHERE l.ctid = p_at;"},
	}, integration, "^TestTrap2_"},
	{"I2 the sequence keeps numbers in store for each session", []edit{
		{schema, "NO CYCLE CACHE 1;", "NO CYCLE CACHE 32;"},
	}, integration, "^TestI6_LostAnswerYields"},
	{"I21 the token of a new name is drawn before the table's lock", []edit{
		{schema, "  ok boolean := require_durable_commit();\nBEGIN\n  INSERT INTO locks AS l (name, token, first_token, grant_id, session_id, owner_id, holder, ttl", "  ok boolean := require_durable_commit();\n  drawn bigint := next_token(0);\nBEGIN\n  INSERT INTO locks AS l (name, token, first_token, grant_id, session_id, owner_id, holder, ttl"},
		{schema, "clock_timestamp() + w.ttl, w.metadata\n    FROM (SELECT next_token(0) AS token OFFSET 0) t", "clock_timestamp() + w.ttl, w.metadata\n    FROM (SELECT drawn AS token OFFSET 0) t"},
	}, integration, "^TestI21_RequestThat"},
	{"I22 tokens have no epoch", []edit{
		{schema, "  token := (base << 44) + nextval('fencing_token_seq');\n  IF", "  token := nextval('fencing_token_seq');\n  IF"},
	}, integration, "^TestI22_Grants|^TestI22_Blocks"},
	{"I22 the epoch is the timeline alone", []edit{
		{schema, "    was.epoch := LEAST(was.epoch + line - CASE WHEN line > was.timeline THEN was.timeline ELSE 0 END, 524287);", "    was.epoch := line - 1;"},
	}, integration, "^TestI22_TokensAscendAfterARestore"},
	{"I23 a standby checks leases", []edit{
		{schema, "  IF pg_is_in_recovery() THEN\n    RAISE EXCEPTION 'a standby", "  IF false THEN\n    RAISE EXCEPTION 'a standby"},
	}, integration, "^TestI23_StandbyAnswers"},
}
