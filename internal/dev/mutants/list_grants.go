package main

// ofGrants are the faults of asking for one lock.
var ofGrants = []mutant{
	{"I15 a first use that has waited for another is too short", []edit{
		{schema, "IF since < clock_timestamp() - w.ttl / 20 THEN", "IF false THEN"},
	}, integration, "^TestI15_LeaseIsFull"},
	{"I1 a free lock is looked for among those that are held", []edit{
		{schema, "SELECT p_expires_at OPERATOR(pg_catalog.=) '-infinity' AND p_top_slot", "SELECT p_top_slot"},
	}, integration, "^TestI1_AllWays|^TestI1_I13_|^TestI1_I2_AllWays"},
	{"I1 a lock is taken for free shortly before its lease has run out", []edit{
		{schema, "SELECT p_expires_at OPERATOR(pg_catalog.=) '-infinity' AND p_top_slot", "SELECT p_expires_at " +
			"OPERATOR(pg_catalog.-) interval '30 ms' OPERATOR(pg_catalog.<) pg_catalog.clock_timestamp() AND " +
			"p_top_slot"},
	}, integration, "^TestI1_GrantIntervals"},
	{"I1 a free lock is granted beside readers", []edit{
		{
			schema,
			"OPERATOR(pg_catalog.=) '-infinity' AND p_top_slot OPERATOR(pg_catalog.=) 0",
			"OPERATOR(pg_catalog.=) '-infinity'",
		},
	}, integration, "^TestI1_AllWays|^TestI9_NoTicket|^TestShared"},
	{"I1 a free lock is granted to a reader as to a writer", []edit{
		{schema, `SELECT p_mode COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) 'exclusive' AND p_capacity`,
			"SELECT p_capacity"},
	}, integration, "^TestWhatAWriter"},
	{"I1 what is granted together is not locked before", []edit{
		{schema, "OR NOT is_below(a.name)) ORDER BY l.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED) h),",
			"OR NOT is_below(a.name)) ORDER BY l.slot DESC LIMIT 1) h),"},
	}, integration, "^TestI1_I2_StatementsForMany|^TestAStatementForMany"},
	{"I1 a part of a set is granted together", []edit{
		{schema, "IF pg_catalog.cardinality(ns) < wanted THEN -- also if a row has changed since the statement began " +
			"RAISE SQLSTATE 'LK000'; END IF; EXCEPTION", "IF coalesce(pg_catalog.cardinality(locked), 0) < wanted " +
			"THEN RAISE SQLSTATE 'LK000'; END IF; EXCEPTION"},
	}, integration, "^TestAStatementForManyWhose"},
	{"a part of a set is ended together", []edit{
		{schema, "IF pg_catalog.cardinality(ns) < wanted THEN -- also if a row has changed since the statement began " +
			"RAISE SQLSTATE 'LK000'; END IF; -- Nobody", "IF coalesce(pg_catalog.cardinality(locked), 0) < wanted " +
			"THEN RAISE SQLSTATE 'LK000'; END IF; -- Nobody"},
	}, integration, "^TestAStatementForManyWhose"},
	{"two requests for a free lock keep all others from going together", []edit{
		{schema, "a.together = 1 AND l.name = a.name AND l.slot <= 0 AND is_plain(",
			"l.name = a.name AND l.slot <= 0 AND is_plain("},
	}, library, "^TestEveryLeaseOfACall"},
	{"I8 a set that ends together is served as it was when the statement began", []edit{
		{schema, "RETURNING f.n, l.name, l.ctid AS place, l.served,", "RETURNING f.n, l.name, l.ctid AS place, CASE " +
			"WHEN EXISTS (SELECT FROM waiters q WHERE q.name = l.name AND q.ticket > l.served) THEN l.served ELSE " +
			"9223372036854775807 END AS served,"},
	}, integration, "^TestI8_AStatementThatEnds"},
	{"what cannot be granted together stays locked", []edit{
		{schema, "RAISE SQLSTATE 'LK000'; END IF; EXCEPTION WHEN SQLSTATE 'LK000' THEN ns := NULL; tokens",
			"ns := NULL; free := chosen_of(locked, pg_catalog.cardinality(p_names)); END IF; EXCEPTION WHEN SQLSTATE " +
				"'LK000' THEN ns := NULL; tokens"},
	}, integration, "^TestAStatementForManyThatWaits"},
	{"I12 a set is granted whatever the session's settings", []edit{
		{schema, "WHERE plain AND a.together = 1 AND l.name = a.name AND l.slot <= 0 AND is_plain(",
			"WHERE a.together = 1 AND l.name = a.name AND l.slot <= 0 AND is_plain("},
	}, integration, "^TestI12_|^TestI24_|^TestI15_"},
	{"a set ends leases that have run out", []edit{
		{schema, "AND coalesce(a.slot, 0) = 0 AND is_running(l.expires_at, l.ended_at) ORDER BY",
			"AND coalesce(a.slot, 0) = 0 ORDER BY"},
	}, integration, "^TestI5_LostLeases|^TestI5_I7_Only"},
	{"I1 a free lock is granted without its row's lock", []edit{
		{schema, "    ORDER BY h.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED)\n  RETURNING true, l.token",
			"    ORDER BY h.slot DESC LIMIT 1)\n  RETURNING true, l.token"},
	}, integration, "^TestI1_I13_|^TestI1_AllWays|^TestI1_I2_AllWays|^TestI13_RefusedTryWaits"},
	{"I1 what has run out is granted beside a renewal", []edit{
		{schema, "AS $$ SELECT p_expires_at = '-infinity' OR p_ended_at IS NOT DISTINCT FROM p_expires_at $$;",
			"AS $$ SELECT p_expires_at <= clock_timestamp() $$;"},
	}, integration, "^TestI1_NoGrantBeside"},
	{"I1 I6 a clock that is set back revives a lease that was settled", []edit{
		{schema, "AS $$ SELECT p_expires_at > clock_timestamp() AND p_ended_at IS DISTINCT FROM p_expires_at $$;",
			"AS $$ SELECT p_expires_at > clock_timestamp() $$;"},
	}, integration, "^TestI1_I4_I6_AClock"},
	{"I1 a clock that is set back lets a lease be released that was settled", []edit{
		{schema, "        AND (h.ended_at OPERATOR(pg_catalog.=) h.expires_at) IS NOT TRUE\n", ""},
	}, integration, "^TestI1_I4_I6_AClock"},
	{"I4 a clock that is set back lets a COMMIT pass whose lease was settled", []edit{
		{schema, "NEW.last_token AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at ",
			"NEW.last_token, l.expires_at "},
	}, integration, "^TestI1_I4_I6_AClock"},
	{"I4 a clock that is set back lets a seal pass whose lease was settled", []edit{
		{schema, "           AND NOT is_over(l.expires_at, l.ended_at), l.expires_at\n      INTO held, ends",
			"           , l.expires_at\n      INTO held, ends"},
	}, integration, "^TestI1_I4_I6_AClock"},
	{"a break of a session stops at a lease that somebody else has got meanwhile", []edit{
		{schema, "CONTINUE WHEN lease.token <> r.token OR", "CONTINUE WHEN"},
	}, integration, "^TestABreakOfASession"},
	{"I1 what has run out is settled without the row's lock", []edit{
		{schema, "ORDER BY o.slot FOR UPDATE SKIP LOCKED)) RETURNING l.xmin", "ORDER BY o.slot)) RETURNING l.xmin"},
	}, integration, "^TestI1_NoGrantBeside|^TestI4_NoGrantOver"},
	{"I4 what has run out is settled over a prepared transaction", []edit{
		{schema, "ORDER BY o.slot FOR UPDATE SKIP LOCKED)) RETURNING l.xmin", "ORDER BY o.slot FOR NO KEY UPDATE " +
			"SKIP LOCKED)) RETURNING l.xmin"},
	}, integration, "^TestI4_NoGrantOver"},
	{"I4 what is over is granted while a COMMIT that checks it is under way", []edit{
		{
			schema,
			"LIMIT 1 FOR UPDATE SKIP LOCKED); END IF; EXIT WHEN",
			"LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED); END IF; EXIT WHEN",
		},
	}, integration, "^TestI4_"},
	{"I1 trap 4: a name that somebody else inserts is granted twice", []edit{
		{schema, "    ON CONFLICT (name, slot) DO NOTHING\n    RETURNING l.token",
			"    ON CONFLICT (name, slot) DO UPDATE SET token = EXCLUDED.token, grant_id = EXCLUDED.grant_id,\n    " +
				"  session_id = EXCLUDED.session_id, holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at\n  " +
				"  RETURNING l.token"},
	}, integration, "^TestTrap4_|^TestI1_Simultaneous"},
	{"I6 the same grant ID is granted again after its lease", []edit{
		{schema, "    AND p_grant_id OPERATOR(pg_catalog.<>) p_asked\n", ""},
	}, integration, "^TestI6_NoWay"},
	{"I6 a free lock is granted to a grant ID that was given up", []edit{
		{schema, "    AND (p_spent_until IS NULL OR p_spent_until OPERATOR(pg_catalog.<=) " +
			"pg_catalog.clock_timestamp())\n", ""},
	}, integration, "^TestI6_NoWay"},
	{"I6 a retry does not wait for the attempt before", []edit{
		{schema, "stays boolean := p_wait OR p_retry;", "stays boolean := p_wait;"},
	}, integration, "MeetsAFault/^TryAcquire/goes_on"},
	{"I12 a grant that is answered again is only read", []edit{
		{schema, "    current_setting('lock_timeout')::interval) r WHERE r.outcome = 'renewed';",
			"    NULL) r WHERE r.reason IS NULL;"},
		{schema, "  PERFORM FROM renew_leases(ARRAY[p_row.name], ARRAY[p_row.token], ARRAY[p_row.grant_id], " +
			"ARRAY[p_row.slot],\n    NULL) r", "  PERFORM FROM check_leases(ARRAY[p_row.name], ARRAY[p_row.token], " +
			"ARRAY[p_row.grant_id], ARRAY[p_row.slot]) r"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I1 I6 a repetition of an acquire shortens a lease that was extended", []edit{
		{schema, "BEGIN\n  PERFORM FROM renew_leases(ARRAY[p_row.name]", "BEGIN\n  UPDATE locks l SET extended = " +
			"false, expires_at = clock_timestamp() + l.ttl WHERE l.name = p_row.name AND l.grant_id = p_row.grant_id " +
			"AND is_running(l.expires_at, l.ended_at);\n  PERFORM FROM renew_leases(ARRAY[p_row.name]"},
	}, library, "^TestI1_I6_ALate"},
	{"I13 a try for a free lock waits for its row", []edit{
		{schema, "    ORDER BY h.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED)\n  RETURNING true, l.token",
			"    ORDER BY h.slot DESC LIMIT 1 FOR UPDATE)\n  RETURNING true, l.token"},
	}, integration, "^TestI13_RefusedTryWaits|^TestI1_I13_"},
	{"I13 a try that may be refused waits for who decides", []edit{
		{
			schema,
			"THEN take_head(w.name, own AND stays AND NOT p_joined, true) END, p_wait, true);",
			"THEN take_head(w.name, true, true) END, p_wait, true);",
		},
	}, integration, "^TestI13_|^TestI1_I13_"},
	{"I13 trap 6: a try that is refused writes", []edit{
		{schema, "IF NOT stays AND is_taken(w, head) THEN", "IF false THEN"},
	}, integration, "^TestI13_(Trap6_)?RefusedTry"},
	{"I13 a try that is refused looks at more than the head", []edit{
		{schema, "  IF held AND p_head.grant_id <> w.grant_id THEN\n    RETURN true;", "  IF false THEN\n    RETURN " +
			"true;"},
	}, integration, "^TestI13_RefusedTryIsTwo"},
	{"I13 a try that the queue refuses locks the head", []edit{
		{schema, "RETURN ((next_waiter(w.name, p_head.served)).ticket IS NOT NULL AND NOT is_own(w) OR free_at(",
			"RETURN (free_at("},
	}, integration, "^TestI13_TryThatTheQueue"},
	{"I13 many are asked for in one statement, which waits for long", []edit{
		{schema, "set_config('lock_timeout', '50ms', true) IS NOT NULL AND ok; FOR a IN SELECT g.name, " +
			"pg_catalog.array_agg(", "set_config('lock_timeout', '2s', true) IS NOT NULL AND ok; FOR a IN SELECT " +
			"g.name, pg_catalog.array_agg("},
	}, integration, "^TestI13_Calls"},
	{"many who join a lock are queued though its lease has ended meanwhile", []edit{
		{schema, "  IF NOT only_queue(p_requests, head) THEN\n    RETURN NULL;", "  IF false THEN\n    RETURN NULL;"},
	}, integration, "^TestI8_ManyThatFind"},
	{"many are queued beside one that was given up", []edit{
		{schema, "AND (p_head.spent_until > clock_timestamp()) IS NOT TRUE AND (SELECT bool_and",
			"AND (SELECT bool_and"},
	}, integration, "^TestRequestsForOneLock"},
	{"many are queued beside the holder's own request", []edit{
		{schema, "(NOT w.nested AND w.grant_id <> p_head.grant_id AND is_plain(", "(NOT w.nested AND is_plain("},
	}, integration, "^TestRequestsForOneLock"},
	{"many are queued without the one that had a ticket", []edit{
		{schema, "IF coalesce(pg_catalog.cardinality(tickets), 0) < pg_catalog.cardinality(p_requests) THEN",
			"IF false THEN"},
	}, integration, "^TestRequestsForOneLock"},
	{"many that all have tickets are refused", []edit{
		{schema, "IF coalesce(pg_catalog.cardinality(tickets), 0) < ", "IF pg_catalog.cardinality(tickets) < "},
	}, integration, "^TestRequestsForOneLock"},
	{"I11 many with a NULL queue beside a plain one", []edit{
		{schema, "w.capacity, w.nested)) IS TRUE)", "w.capacity, w.nested)))"},
	}, integration, "^TestRequestsForOneLock"},
	{"the owner of a subtree queues behind one of the same statement", []edit{
		{schema, "CASE WHEN own OR NOT p_joined AND NOT (", "CASE WHEN NOT p_joined AND NOT ("},
	}, integration, "^TestTheOwnerOfASubtree"},
	{"whoever is far is told a place near the front", []edit{
		{schema, "ELSE coalesce(pg_catalog.array_position(ahead, tickets[i]), 100) END",
			"ELSE coalesce(pg_catalog.array_position(ahead, tickets[i]), 1) END"},
	}, integration, "^TestAStatementForManyTells"},
	{"I8 a statement for many gives way for as long as a single one", []edit{
		{schema, "clock_timestamp() + CASE WHEN p_many THEN interval '50 ms' END)", "'infinity')"},
	}, integration, "^TestI8_AStatementForManyGivesWay"},
	{"I25 many are asked for as they are named", []edit{
		{schema, "GROUP BY g.name ORDER BY g.name COLLATE \"C\" LOOP ok := (NOT true = ANY (a.waits",
			"GROUP BY g.name ORDER BY min(g.n) LOOP ok := (NOT true = ANY (a.waits"},
	}, integration, "^TestI25_Calls"},
	{"I15 a grant is as long as its transaction has left", []edit{
		{schema, "expires_at = clock_timestamp() + w.ttl,\n    ended_at = CASE", "expires_at = now() + w.ttl,\n    " +
			"ended_at = CASE"},
	}, integration, "^TestI15_|^TestTrap3_Transaction"},
	{"I12 grants leave the session's synchronous_commit", []edit{
		{schema, "    THEN set_config('synchronous_commit', 'on', true) IS NOT NULL ELSE true END",
			"    THEN true ELSE true END"},
	}, integration, "^TestI12_"},
	{"I12 a slot is granted without waiting for the disk", []edit{
		{schema, "ok boolean := require_durable_commit(); BEGIN g.slots := p_slots;",
			"ok boolean := true; BEGIN g.slots := p_slots;"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I12 grants of a batch with tickets do not wait for the disk", []edit{
		{schema, "    ok := ok AND NOT granted AND (more -> 'handed') IS NULL;\n", ""},
	}, integration, "^TestI12_I24_What"},
	{"I14 a ticket waits for the disk", []edit{
		{schema, "IF p_alone AND NOT a.granted AND (a.more -> 'handed') IS NULL THEN", "IF false THEN"},
	}, integration, "^TestI12_HandOver"},
	{"I19 functions work on a frozen snapshot", []edit{
		{schema, "  SELECT CASE WHEN current_setting('transaction_isolation') IN ('read committed', 'read " +
			"uncommitted') THEN true", "  SELECT CASE WHEN true THEN true"},
	}, library, "^TestI11_FunctionsThatNeed"},
	{"I19 no statement says READ COMMITTED", []edit{
		{"internal/protocol/execute.go", "\"begin isolation level read committed\"", "\"begin\""},
	}, integration, "^TestI19_"},
	{"I22 the first grant of a server process goes by the epoch before", []edit{
		{schema, "  SELECT i.epoch INTO base FROM installation i WHERE i.started = pg_postmaster_start_time();",
			"  SELECT i.epoch INTO base FROM installation i;"},
	}, integration, "^TestI22_Trap12_FirstGrant"},
	{"I2 a step is not recorded while somebody has locked the record", []edit{
		{schema, "PERFORM await_record();", ""},
		{schema, "UPDATE installation i SET epoch = GREATEST(i.epoch, base);",
			"UPDATE installation i SET epoch = base FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) " +
				"mine WHERE i.one = mine.one;"},
		{schema, "base := (SELECT i.epoch FROM installation i);",
			"base := GREATEST(base, (SELECT i.epoch FROM installation i));"},
	}, integration, "^TestI2_AStepIs"},
	{"I2 whoever waited for a step keeps the record, too", []edit{
		{schema, "IF (SELECT i.epoch < base FROM installation i) THEN", "IF true THEN"},
	}, integration, "^TestI2_WhoeverIsBehind"},
	{"I25 whoever has taken a version that it does not see goes on to its session", []edit{
		{schema, "    EXIT WHEN FOUND OR late OR NOT clean OR", "    EXIT WHEN true OR"},
	}, integration, "^TestI25_WhoeverHasTaken"},
	{"I25 whoever is too late gives way to those who wait for it", []edit{
		{schema, "p_session_key, p_session_ttl, p_retry, p_wait, p_alone, late);",
			"p_session_key, p_session_ttl, p_retry, p_wait, p_alone, false);"},
	}, integration, "^TestI25_WhoeverIsTooLate"},
	{"I25 whoever is too late waits for its session", []edit{
		{schema, "OR outlive_session(w.session_id, w.holder, p_session_ttl, p_locked);",
			"OR outlive_session(w.session_id, w.holder, p_session_ttl);"},
	}, integration, "^TestI25_WhoeverIsTooLate"},
	{"I25 whoever is too late waits for others who write its session", []edit{
		{schema, "IF until IS NULL AND NOT p_locked THEN", "IF until IS NULL THEN"},
	}, integration, "^TestI25_WhoeverIsTooLate"},
	{"I25 a grant passes the fence", []edit{
		{schema, "THEN '{\"watched\": true}'::pg_catalog.json END INTO a;",
			"THEN '{\"watched\": true}'::pg_catalog.json END INTO a; ok := (SELECT f.last_token > 0 FROM " +
				"{{schema}}.fences f WHERE f.resource = p_name AND a.token > 0 FOR UPDATE);"},
	}, integration, "^TestI25_NoGrant"},
}

// ofTokens are the faults of tokens and epochs.
var ofTokens = []mutant{
	{"I2 trap 1: the token is drawn before the wait", []edit{
		{schema, "  w.session_id := session_of(p_session_key);\n", "  w.session_id := session_of(p_session_key);\n  " +
			"PERFORM set_config('pglock.drawn', nextval('fencing_token_seq')::text, true);\n"},
		{schema, "  token := (base << 36) + nextval('fencing_token_seq');\n  IF token <= p_above THEN",
			"  token := (base << 36) + coalesce(nullif(current_setting('pglock.drawn', true), '')::bigint, " +
				"nextval('fencing_token_seq'));\n  IF false THEN"},
	}, integration, "^TestTrap1_"},
	{"I2 tokens go by the sequence alone", []edit{
		{schema, "  IF token <= p_above THEN", "  IF false THEN"},
	}, integration, "^TestI2_TokensAscend"},
	{"I2 a token may be the last one again", []edit{
		{schema, "  IF token <= p_above THEN\n    base", "  IF token < p_above THEN\n    base"},
	}, integration, "^TestI2_TokensAscend"},
	{"I2 the token of a slot may be below those of slots that are free", []edit{
		{schema, "FILTER (WHERE held), pg_catalog.max(token) INTO",
			"FILTER (WHERE held), pg_catalog.max(token) FILTER (WHERE held) INTO"},
	}, integration, "^TestI2_TokensAscend"},
	{"I2 trap 2: a release deletes the row", []edit{
		{schema, "  UPDATE {{schema}}.locks l SET expires_at = '-infinity', ended_at = " +
			"pg_catalog.clock_timestamp()\n  WHERE", "  DELETE FROM {{schema}}.locks l\n  WHERE"},
	}, integration, "^TestTrap2_"},
	{"I2 the sequence keeps numbers in store for each session", []edit{
		{schema, "NO CYCLE CACHE 1;", "NO CYCLE CACHE 32;"},
	}, integration, "MeetsAFault/^TryAcquire/lost"},
	{"I22 trap 12: tokens have no epoch", []edit{
		{schema, "  token := (base << 36) + nextval('fencing_token_seq');\n  IF token <= p_above THEN",
			"  token := nextval('fencing_token_seq');\n  IF token <= p_above THEN"},
	}, integration, "^TestI22_Grants"},
	{"I22 the epoch is the timeline alone", []edit{
		{schema, "(was.epoch >> 8) + line - CASE WHEN line > was.timeline AND NOT was.elsewhere THEN was.timeline " +
			"ELSE 0 END, 0);",
			"line - 1, 0);"},
	}, integration, "^TestI22_TokensAscendWhenTheTimelineIsSetBack"},
	{"I22 a timeline of another cluster counts as an earlier one", []edit{
		{schema, "line > was.timeline AND NOT was.elsewhere THEN", "line > was.timeline THEN"},
	}, integration, "^TestI22_TokensAscendWhenTheTimelineIsSetBack"},
	{"I22 a record of another cluster counts as one of this", []edit{
		{schema, "OR was.elsewhere AND line IS NOT NULL THEN", "THEN"},
	}, integration, "^TestI22_TokensAscendWhenTheTimelineIsSetBack"},
	{"a grace does not count from the start of another cluster", []edit{
		{schema, "OR was.elsewhere AND timeline.timeline IS NOT NULL THEN", "THEN"},
	}, integration, "^TestI22_TokensAscendWhenTheTimelineIsSetBack"},
	{"I22 a step counts as much as a change of the timeline", []edit{
		{schema, "    RETURN last + 1;\n  ELSIF last >> 8", "    RETURN last + 256;\n  ELSIF last >> 8"},
	}, integration, "^TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps|^TestI22_Steps"},
	{"I22 steps that are used up begin a line", []edit{
		{schema, "  ELSIF last >> 8 = p_epoch >> 8 AND p_above >> 44 <= p_epoch >> 8 THEN", "  ELSIF false THEN"},
	}, integration, "^TestI22_Steps|^TestI22_Where"},
	{"I22 the sequence may reach the steps' last bit", []edit{
		{schema, "MAXVALUE 8796093022207 NO CYCLE", "NO CYCLE"},
	}, integration, "^TestI22_Where"},
	{"I22 lines that are used up begin again", []edit{
		{schema, "  IF p_line > 524287 THEN", "  IF false THEN"},
	}, integration, "^TestI22_Steps|^TestI22_Where"},
	{"I12 a new epoch does not wait for the disk", []edit{
		{schema, "boolean := is_operator(p_reason, p_actor) AND require_durable_commit() AND (p_above",
			"boolean := is_operator(p_reason, p_actor) AND (p_above"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I23 a standby checks leases", []edit{
		{schema, "cardinality(p_slots)]) AND require_primary();", "cardinality(p_slots)]);"},
	}, integration, "^TestI23_StandbyAnswers"},
	{"I23 a standby that lags says that a lease is lost", []edit{
		{schema, "ok boolean := require_primary(); res  text", "ok boolean := true; res text"},
	}, integration, "^TestI23_AStandbyThatLags"},
	{"I23 a standby that lags says that a key is too old", []edit{
		{schema, "ok boolean := require_primary(); BEGIN RAISE EXCEPTION 'key", "BEGIN RAISE EXCEPTION 'key"},
	}, integration, "^TestI23_AStandbyThatLags"},
	{"I23 a standby that lags says that a subtree is held", []edit{
		{schema, "ok boolean := require_primary(); head locks;", "head locks;"},
	}, integration, "^TestI23_AStandbyThatLags"},
}

// ofTheFirstStatement are the faults of the statement with which acquire_lease grants a free lock: what it requires
// of the row, the request and the session, and what it writes.
var ofTheFirstStatement = []mutant{
	{"I2 a free lock is granted a token that may be below its last", []edit{
		{schema, "    AND p_token OPERATOR(pg_catalog.<=) p_drawn\n", ""},
	}, integration, "^TestI2_TokensAscend|^TestI22_"},
	{"I22 a token of a free lock has no epoch", []edit{
		{schema, "    token = (SELECT i.epoch OPERATOR(pg_catalog.<<) 36 FROM",
			"    token = (SELECT 0::pg_catalog.int8 FROM"},
	}, integration, "^TestI22_Grants"},
	{"I22 a free lock is granted without a look at the timeline", []edit{
		{schema, "        FROM {{schema}}.installation i WHERE i.started OPERATOR(pg_catalog.=) " +
			"pg_catalog.pg_postmaster_start_time()\n          AND (NOT", "        FROM {{schema}}.installation i\n" +
			"          WHERE (NOT"},
		{schema, "FROM {{schema}}.installation i\n             WHERE i.started OPERATOR(pg_catalog.=) " +
			"pg_catalog.pg_postmaster_start_time())\n            OPERATOR(pg_catalog.+)",
			"FROM {{schema}}.installation i)\n            OPERATOR(pg_catalog.+)"},
	}, integration, "^TestI22_EveryKind|^TestI22_Trap12"},
	{"I11 a free lock is granted for a TTL that is too short", []edit{
		{schema, "      AND p_ttl OPERATOR(pg_catalog.>=) '100 ms' AND p_ttl", "      AND p_ttl"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted for a TTL that is too long", []edit{
		{schema, " AND p_ttl OPERATOR(pg_catalog.<=) '24 hours'\n", "\n"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to a session whose TTL is too short", []edit{
		{schema, "      AND p_session_ttl OPERATOR(pg_catalog.>=) '100 ms' AND p_session_ttl",
			"      AND p_session_ttl"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to a session whose TTL is too long", []edit{
		{schema, " AND p_session_ttl OPERATOR(pg_catalog.<=) '24 hours'\n", "\n"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to a holder without a name", []edit{
		{schema, "      AND p_holder OPERATOR(pg_catalog.<>) '' AND pg_catalog", "      AND pg_catalog"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to a holder of any length", []edit{
		{schema, " AND pg_catalog.octet_length(p_holder) OPERATOR(pg_catalog.<=) 256\n", "\n"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to nobody's session", []edit{
		{schema, "  SELECT p_session_key IS NOT NULL\n    AND p_session_ttl", "  SELECT p_session_ttl"},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted with metadata of any size", []edit{
		{schema, "      AND (p_metadata IS NULL OR pg_catalog.octet_length(p_metadata::pg_catalog.text) " +
			"OPERATOR(pg_catalog.<=) 16384)\n", ""},
	}, library, "^TestI11_"},
	{"I11 a free lock is granted to a writer with a limit", []edit{
		{schema, "    AND p_capacity IS NULL AND p_grant_id IS NOT NULL", "    AND p_grant_id IS NOT NULL"},
	}, library, "^TestI11_"},
	{"I19 a free lock is granted on a frozen snapshot", []edit{
		{schema, "      AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read " +
			"committed'\n      AND pg_catalog.current_setting('synchronous_commit')",
			"      AND pg_catalog.current_setting('synchronous_commit')"},
	}, library, "^TestI11_FunctionsThatNeed"},
	{"I12 a free lock is granted with synchronous_commit off", []edit{
		{schema, "OPERATOR(pg_catalog.<>) ALL ('{off,local}')", "OPERATOR(pg_catalog.<>) ALL ('{local}')"},
	}, integration, "^TestI12_"},
	{"I12 a free lock is granted with a commit that is local", []edit{
		{schema, "OPERATOR(pg_catalog.<>) ALL ('{off,local}')", "OPERATOR(pg_catalog.<>) ALL ('{off}')"},
	}, integration, "^TestI12_"},
	{"I15 a grant of a free lock is as long as its transaction has left", []edit{
		{schema, "    expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) p_ttl\n",
			"    expires_at = pg_catalog.now() OPERATOR(pg_catalog.+) p_ttl\n"},
	}, integration, "^TestTrap3_Transaction"},
	{"a request for a lock whose arguments are missing is not checked", []edit{
		{schema, "IF p_plain IS NOT TRUE THEN", "IF NOT p_plain THEN"},
	}, library, "^TestI11_"},
	{"a new name may have any length", []edit{
		{schema, "    AND p_name OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(p_name) " +
			"OPERATOR(pg_catalog.<=) 512\n", ""},
	}, library, "^TestI11_"},
	{"I15 a grant of a new name is as long as its transaction has left", []edit{
		{schema, "clock_timestamp(), clock_timestamp() + w.ttl, w.metadata, 1\n    WHERE NOT",
			"clock_timestamp(), now() + w.ttl, w.metadata, 1\n    WHERE NOT"},
	}, integration, "^TestTrap3_Transaction"},
	{"I5 the session of a free lock's holder is its key", []edit{
		{schema,
			"    session_id = " +
				"pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(pg_catalog.uuid_send(p_session_key)), 1, " +
				"16),\n                                   'hex')::pg_catalog.uuid,", "    session_id = p_session_key,"},
	}, library, "Digests"},
	{"circles: a free lock has no owner", []edit{
		{schema, " owner_id = p_owner_id, holder = p_holder,", " holder = p_holder,"},
	}, integration, "^TestI9_NoTicket"},
	{"watch: a grant of a free lock is not told", []edit{
		{schema, "RETURNING true, l.token, CASE WHEN l.watched_until OPERATOR(pg_catalog.>) " +
			"pg_catalog.clock_timestamp()", "RETURNING true, l.token, CASE WHEN false"},
	}, integration, "^TestAWatchIsTold"},
	{"I12 who grants the lock to others on the way does not wait for the disk", []edit{
		{schema, "IF p_alone AND NOT a.granted AND (a.more -> 'handed') IS NULL THEN",
			"IF p_alone AND NOT a.granted THEN"},
	}, integration, "^TestI12_"},
}
