package main

// ofEnds are the faults of releases, renewals, checks, breaks and of giving up.
var ofEnds = []mutant{
	{"I4 A5 a break locks in a subtransaction and changes outside it", []edit{
		{schema, "l.slot = p_slot FOR UPDATE;\n  RAISE SQLSTATE 'LK000';", "l.slot = p_slot FOR UPDATE; RETURN true;"},
	}, integration, "^TestI4_A5_TheCheckFollows"},
	{"I4 a lease ends together with another of its lock", []edit{
		{schema, "a.together = 1 AND l.name = a.name AND l.slot <= 0 AND l.grant_id",
			"l.name = a.name AND l.slot <= 0 AND l.grant_id"},
	}, integration, "^TestI4_A5_ReleasesOfOne"},
	{"I6 a ticket that was passed over hides a grant", []edit{
		{schema, "mine := EXISTS (SELECT", "mine := array_position(places, NULL) IS NOT NULL AND EXISTS (SELECT"},
	}, integration, "^TestI6_GivingUpEnds"},
	{"the end of a lease is another one after its release was answered", []edit{
		{"pglock/lease.go", "\tl.mu.Lock()\n\tl.lost = lost\n\tl.mu.Unlock()\n", "\tl.mu.Lock()\n\tl.lost, l.ended = " +
			"lost, lost\n\tl.mu.Unlock()\n"},
	}, library, "^TestReleaseOfALease"},
	{"I5 a release needs no grant ID", []edit{
		{schema, " AND l.grant_id = p_grant_id\n        AND l.token = p_token AND coalesce(p_slot, 0) = 0",
			"\n        AND l.token = p_token AND coalesce(p_slot, 0) = 0"},
	}, integration, "^TestI5_"},
	{"I5 a release needs no token", []edit{
		{schema, "        AND l.token = p_token AND coalesce(p_slot, 0) = 0", "        AND coalesce(p_slot, 0) = 0"},
	}, integration, "^TestI5_"},
	{"I5 a release of a slot needs no grant ID", []edit{
		{schema, "AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token AND is_running",
			"AND l.slot > 0 AND l.token = p_token AND is_running"},
		{schema, "AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE);",
			"AND l.slot > 0 AND l.token = p_token FOR UPDATE);"},
	}, integration, "^TestI5_"},
	{"I5 a renewal for many needs no grant ID", []edit{
		{schema, "        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = " +
			"a.token\n          AND is_running(l.expires_at, l.ended_at)\n        FOR NO",
			"        WHERE l.name = a.name AND l.slot = a.slot AND l.token = a.token\n          AND " +
				"is_running(l.expires_at, l.ended_at)\n        FOR NO"},
	}, integration, "^TestI5_"},
	{"I5 a check needs no grant ID", []edit{
		{schema, "AND l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id\n",
			"AND l.slot = coalesce(a.slot, l.slot)\n"},
	}, integration, "^TestI5_"},
	{"I5 a session's key is what everybody sees", []edit{
		{schema, "AS $$ SELECT encode(substr(sha256(uuid_send(p_key)), 1, 16), 'hex')::uuid $$;",
			"AS $$ SELECT p_key $$;"},
		{"pglock/client.go", "\tcopy(session[:], sum[:])\n", "\t_ = sum\n\tcopy(session[:], key[:])\n"},
	}, library, "^TestI5_Nobody|Digests"},
	{"I7 a release ends what has run out", []edit{
		{schema, "    IF NOT is_running(mine.expires_at, mine.ended_at) THEN\n      RETURN ROW(false, NULL::json);",
			"    IF mine.name IS NULL THEN\n      RETURN ROW(false, NULL::json);"},
	}, integration, "^TestI5_I7_Only"},
	{"I7 a check answers for what has run out", []edit{
		{schema, "AND l.token = a.token AND is_running(l.expires_at, l.ended_at);\n    IF NOT FOUND",
			"AND l.token = a.token;\n    IF NOT FOUND"},
	}, integration, "^TestI5_I7_Only"},
	{"I7 a renewal for many revives what has run out", []edit{
		{schema, "        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = " +
			"a.token\n          AND is_running(l.expires_at, l.ended_at)\n        FOR NO",
			"        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = a.token\n   " +
				"     FOR NO"},
		{schema, "      FROM held h WHERE l.ctid = h.at AND is_running(l.expires_at, l.ended_at)\n",
			"      FROM held h WHERE l.ctid = h.at\n"},
	}, integration, "^TestI5_I7_Only"},
	{"I15 trap 3: a renewal computes before it waits", []edit{
		{schema, "        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = " +
			"a.token\n          AND is_running(l.expires_at, l.ended_at)\n        FOR NO",
			"        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = a.token\n   " +
				"       AND l.expires_at > statement_timestamp()\n        FOR NO"},
		{schema, "        expires_at = GREATEST(clock_timestamp() + GREATEST(l.ttl, h.lasting),",
			"        expires_at = GREATEST(statement_timestamp() + GREATEST(l.ttl, h.lasting),"},
		{schema, "      FROM held h WHERE l.ctid = h.at AND is_running(l.expires_at, l.ended_at)",
			"      FROM held h WHERE l.ctid = h.at AND l.expires_at > statement_timestamp()"},
	}, integration, "^TestI15_|^TestTrap3_Renewal"},
	{"I13 one locked row holds up the renewals of all", []edit{
		{schema, "        FOR NO KEY UPDATE SKIP LOCKED) h),", "        FOR NO KEY UPDATE) h),"},
	}, integration, "^TestI13_Renewals"},
	{"I13 many are released in one statement, which waits for long", []edit{
		{schema, "set_config('lock_timeout', '50ms', true) IS NOT NULL);       -- until the function ends\nBEGIN\n  " +
			"IF p_at IS NULL", "set_config('lock_timeout', '2s', true) IS NOT NULL);       -- until the function " +
			"ends\nBEGIN\n  IF p_at IS NULL"},
	}, integration, "^TestI13_Calls"},
	{"I13 many are given up in one statement, which waits for long", []edit{
		{schema, "ok := p_names[1] = ALL (p_names) OR set_config('lock_timeout', '50ms', true)",
			"ok := p_names[1] = ALL (p_names) OR set_config('lock_timeout', '2s', true)"},
	}, integration, "^TestI13_Calls"},
	{"I4 I18 a release changes no key", []edit{
		{schema, "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER BY h.slot DESC LIMIT 1 " +
			"FOR UPDATE SKIP LOCKED)", "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER " +
			"BY h.slot DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)"},
	}, integration, "^TestI4_I18_"},
	{"I4 I18 a release of a slot changes no key", []edit{
		{schema, "AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE);", "AND l.grant_id = p_grant_id AND " +
			"l.token = p_token FOR NO KEY UPDATE);"},
	}, integration, "^TestI4_"},
	{"I12 a hand-over does not wait for the disk", []edit{
		{schema, "  IF p_alone AND (r.more IS NULL OR (r.more OPERATOR(pg_catalog.->) 'handed') IS NULL) THEN",
			"  IF p_alone THEN"},
	}, integration, "^TestI12_HandOver"},
	{"I12 a break does not wait for the disk", []edit{
		{schema, "AND require_durable_commit() AND has_bytes('name', p_name, 512) AND is_operator(p_reason, p_actor);",
			"AND has_bytes('name', p_name, 512) AND is_operator(p_reason, p_actor);"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I12 a break of a session does not wait for the disk", []edit{
		{schema, "AND require_durable_commit() AND is_operator(p_reason, p_actor) AND (p_session_id",
			"AND is_operator(p_reason, p_actor) AND (p_session_id"},
	}, integration, "^TestI12_I24_AllWays"},
	{"I24 a release turns synchronous_commit off by itself", []edit{
		{schema, "  IF p_alone AND (r.more IS NULL OR (r.more OPERATOR(pg_catalog.->) 'handed') IS NULL) THEN",
			"  IF (r.more IS NULL OR (r.more OPERATOR(pg_catalog.->) 'handed') IS NULL) THEN"},
	}, integration, "^TestI24_ReleaseLeaves"},
	{"I24 a release waits for the disk", []edit{
		{schema, "  IF p_alone AND (r.more IS NULL OR (r.more OPERATOR(pg_catalog.->) 'handed') IS NULL) THEN",
			"  IF false THEN"},
	}, integration, "^TestI24_ReleaseIs"},
	{"I20 trap 11: a release changes its session", []edit{
		{"internal/protocol/queries.go", "`pg_catalog.set_config('synchronous_commit', 'off', true)`",
			"`pg_catalog.set_config('synchronous_commit', 'off', false)`"},
	}, integration, "^TestI24_ReleaseLeaves"},
	{"I10 I18 a break draws no token", []edit{
		{schema, "  UPDATE locks l SET token = break_row.new_token, expires_at", "  UPDATE locks l SET expires_at"},
	}, integration, "^TestI10_"},
	{"I10 a break ends a lease that was not named", []edit{
		{
			schema,
			"AND coalesce(l.token = p_token, true); IF r.slot > 0",
			"; IF r.slot > 0",
		},
	}, integration, "^TestI10_"},
	{"a break of a session ends with a lease that has run out meanwhile", []edit{
		{schema, "lease := take_to_break(n, r.slot);", "lease := (SELECT l FROM locks l WHERE l.name = n AND " +
			"l.slot = r.slot);"},
		{schema, "FROM break_row(lease, p_reason, p_actor) b; left_queue", "FROM break_lock(n, p_reason, p_actor, " +
			"r.token) b; left_queue"},
	}, administration, "^TestBreakSessionPasses"},
	{"a break of a session breaks what has run out meanwhile", []edit{
		{schema, "WHEN lease.token <> r.token OR NOT is_running(lease.expires_at, lease.ended_at);",
			"WHEN lease.token <> r.token;"},
	}, administration, "^TestBreakSessionPasses"},
	{"a break waits for ever", []edit{
		{
			schema,
			"SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '5s' SET plan_cache_mode = " +
				"force_generic_plan AS $$ #variable_conflict use_column DECLARE ok boolean := " +
				"require_read_committed() AND require_unrenewed() AND require_durable_commit() AND has_bytes(",
			"SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$ " +
				"#variable_conflict use_column DECLARE ok boolean := require_read_committed() AND " +
				"require_unrenewed() AND require_durable_commit() AND has_bytes(",
		},
	}, integration, "^TestABreakWaits"},
	{"a break of a session waits for ever", []edit{
		{
			schema,
			"SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '5s' SET plan_cache_mode = " +
				"force_generic_plan AS $$ #variable_conflict use_column DECLARE ok boolean := " +
				"require_read_committed() AND require_unrenewed() AND require_durable_commit() AND is_operator(",
			"SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$ " +
				"#variable_conflict use_column DECLARE ok boolean := require_read_committed() AND " +
				"require_unrenewed() AND require_durable_commit() AND is_operator(",
		},
	}, integration, "^TestABreakWaits"},
	{"a break does not say who is in its way", []edit{
		{
			schema,
			"  WHEN lock_not_available THEN RETURN false;",
			"  WHEN division_by_zero THEN RETURN false;",
		},
	}, integration, "^TestABreakWaits"},
	{"trap 9: who gives up keeps a grant that came at that moment", []edit{
		{schema, "    ended[i] := end_grant(head, p_grant_ids[i]);\n", "    ended[i] := false;\n"},
	}, integration, "^TestTrap9_WhoeverLeaves"},
	{"trap 9: a late request for a grant ID that was given up gets its ticket", []edit{
		{schema, "    IF p_head.spent_until > clock_timestamp() AND EXISTS", "    IF false AND EXISTS"},
	}, integration, "^TestTrap9_Late"},
	{"trap 9: giving up leaves the head as it was", []edit{
		{schema, "    UPDATE locks l SET spent_until = clock_timestamp() + interval '1 hour' WHERE l.name = p_name " +
			"AND l.slot = 0;\n", ""},
	}, integration, "^TestTrap9_Late|^TestI6_NoWay"},
	{"I25 requests are given up in the order of the database's language", []edit{
		{schema, "    SELECT g.name COLLATE \"C\" AS name, pg_catalog.array_agg(", "    SELECT g.name AS name, " +
			"pg_catalog.array_agg("},
	}, integration, "^TestI25_Calls"},
	{"modes: who gives up keeps those behind waiting", []edit{
		{schema, "    g := serve(head, NULL, NULL, p_session_id, NULL);\n", "    NULL;\n"},
	}, integration, "^TestI8_WhoeverLeaves"},
	{"a lost lease does not know that it was taken over", []edit{
		{schema, "  IF p_ran_out THEN", "  IF false THEN"},
	}, integration, "^TestALostLease"},
}

// ofReleases are the faults of the statement with which release_lease ends a lease, and of what it leaves to others.
var ofReleases = []mutant{
	{"I5 a release in one statement needs no grant ID", []edit{
		{schema, "    WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) 0\n      AND " +
			"h.grant_id OPERATOR(pg_catalog.=) p_grant_id AND h.token OPERATOR(pg_catalog.=) p_token\n",
			"    WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) 0\n      AND h.token " +
				"OPERATOR(pg_catalog.=) p_token\n"},
	}, integration, "^TestI5_"},
	{"I5 a release in one statement needs no token", []edit{
		{schema, "    WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) 0\n      AND " +
			"h.grant_id OPERATOR(pg_catalog.=) p_grant_id AND h.token OPERATOR(pg_catalog.=) p_token\n",
			"    WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) 0\n      AND " +
				"h.grant_id OPERATOR(pg_catalog.=) p_grant_id\n"},
	}, integration, "^TestI5_"},
	{"I5 a release in one statement takes any slot for the head", []edit{
		{schema, "      AND (p_slot IS NULL OR p_slot OPERATOR(pg_catalog.=) 0) AND h.expires_at",
			"      AND h.expires_at"},
	}, library, "^TestI11_RefusedSQL"},
	{"I5 a release of a slot needs no token", []edit{
		{schema, "l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token AND is_running",
			"l.slot > 0 AND l.grant_id = p_grant_id AND is_running"},
		{schema, "l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE);",
			"l.slot > 0 AND l.grant_id = p_grant_id FOR UPDATE);"},
	}, integration, "^TestI5_"},
	{"I7 a release in one statement ends what has run out", []edit{
		{schema, " AND h.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()\n", "\n"},
	}, integration, "^TestI5_I7_Only"},
	{"I8 a release in one statement hands nothing on", []edit{
		{schema, "IF at IS NULL OR FOUND THEN", "IF at IS NULL THEN"},
	}, integration, "^TestI8_(Trap7_)?Release|^TestI9_Tickets"},
	{"I8 a release that has waited hands nothing on", []edit{
		{schema, "  g := serve(head, CASE WHEN NOT p_many THEN p_at END, NULL, coalesce(mine.session_id, " +
			"head.session_id), NULL);\n", "  IF p_at IS NOT NULL THEN\n    g := serve(head, NULL, NULL, " +
			"coalesce(mine.session_id, head.session_id), NULL);\n  END IF;\n"},
	}, integration, "^TestI8_(Trap7_)?Release|^TestSharedLock|^TestLimitIs"},
	{"I1 a release of many grants where the row was", []edit{
		{schema, "serve(head, CASE WHEN NOT p_many THEN p_at END, ", "serve(head, p_at, "},
	}, integration, "^TestI1_AReleaseOfMany"},
	{"I13 a release waits for its row as long as it takes", []edit{
		{schema, "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER BY h.slot DESC LIMIT 1 " +
			"FOR UPDATE SKIP LOCKED)", "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER " +
			"BY h.slot DESC LIMIT 1 FOR UPDATE)"},
	}, integration, "^TestI13_CallsForOne"},
	{"I4 a lease is taken over where one was renewed", []edit{
		{schema, "AND (current_setting('pglock.renewed', true) IS DISTINCT FROM 'true' OR o.expires_at < " +
			"transaction_timestamp()) ORDER BY", "ORDER BY"},
	}, integration, "^TestI4_ALeaseIsNotTaken"},
	{"a grant that is repeated keeps its statement from taking over", []edit{
		{schema, "(current_setting('pglock.renewed', true) IS DISTINCT FROM 'true' OR o.expires_at < " +
			"transaction_timestamp())", "current_setting('pglock.renewed', true) IS DISTINCT FROM 'true'"},
	}, integration, "^TestAStatementForManyThatRepeats"},
	{"I4 what has run out since a renewal is taken over in its transaction", []edit{
		{schema, "OR o.expires_at < transaction_timestamp())", "OR o.expires_at < clock_timestamp())"},
	}, integration, "^TestI4_ALeaseIsNotTaken"},
	{"I4 a lease ends where one was renewed", []edit{
		{
			schema,
			"OR bound_rest(true) AND set_config('pglock.renewed', 'true', true) IS NOT NULL;",
			"OR bound_rest(true);",
		},
	}, integration, "^TestI4_ALeaseDoesNotEnd"},
	{"I4 a hand-over locks before it looks", []edit{
		{schema, "ARRAY[false, true] LOOP IF locked", "ARRAY[true, true] LOOP IF locked"},
	}, integration, "^TestI4_AHandOver"},
	{"I4 a lease ends after a hand-over that has locked it in vain", []edit{
		{schema, "AND (NOT locked OR set_config('pglock.renewed', 'true', true) IS NOT NULL);", ";"},
	}, integration, "^TestI4_NothingEndsAfterAHandOver"},
	{"I4 a release that is too late keeps its lock", []edit{
		{schema, "AND coalesce(p_slot, 0) = 0 AND is_running(l.expires_at, l.ended_at) ORDER BY",
			"AND coalesce(p_slot, 0) = 0 ORDER BY"},
	}, integration, "^TestI4_AnEndThatIsTooLate"},
	{"I4 a release ends a lease that its transaction had locked before", []edit{
		{schema, "ok := seen OR {{schema}}.refuse_unseen_end('55000'); PERFORM", "PERFORM"},
	}, integration, "^TestI4_ALeaseDoesNotEndWhereItWas"},
	{"I4 a release that has waited ends a lease that its transaction had locked before", []edit{
		{schema, "RETURNING l.xmin = l.xmax INTO seen; ok := seen OR refuse_unseen_end('55000');", ";"},
	}, integration, "^TestI4_ALeaseDoesNotEndWhereItWas"},
	{"I4 leases end together in a transaction that had locked one before", []edit{
		{schema, "plain boolean := p_first AND current_setting", "plain boolean := current_setting"},
	}, integration, "^TestI4_AnEndAfterALock"},
	{"I4 a lease is handed over that its transaction had locked before", []edit{
		{schema, "ok := seen OR NOT p_handed OR refuse_unseen_end('55000');", ""},
	}, integration, "^TestI4_ALeaseDoesNotEndWhereItWas"},
	{"I4 a lease is given up that its transaction had locked before", []edit{
		{schema, "AND (seen OR refuse_unseen_end('55P03')); END $$; -- take_to_break", "; END $$; -- take_to_break"},
	}, integration, "^TestI4_ALeaseDoesNotEndWhereItWas"},
	{"I4 a lease is broken that its transaction had locked before", []edit{
		{schema, "PERFORM seen OR refuse_unseen_end('55000');", ""},
	}, integration, "^TestI4_ALeaseDoesNotEndWhereItWas"},
	{"I4 a lease is taken over that its transaction had locked before", []edit{
		{schema, "AND (seen OR refuse_unseen_end('55P03')); END $$; -- standing", "; END $$; -- standing"},
	}, integration, "^TestI4_ALeaseIsNotTakenOverWhereItWas"},
	{"I4 I18 a release does not lock its row first", []edit{
		{schema, "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER BY h.slot DESC LIMIT 1 " +
			"FOR UPDATE SKIP LOCKED)", "'transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'\n    ORDER " +
			"BY h.slot DESC LIMIT 1)"},
	}, integration, "^TestI4_I18_"},
	{"I4 I18 a release that has waited changes no key", []edit{
		{schema, "AND coalesce(p_slot, 0) = 0 AND is_running(l.expires_at, l.ended_at) ORDER BY l.slot DESC LIMIT 1 " +
			"FOR UPDATE);", "AND coalesce(p_slot, 0) = 0 AND is_running(l.expires_at, l.ended_at) ORDER BY l.slot " +
			"DESC LIMIT 1 FOR NO KEY UPDATE);"},
	}, integration, "^TestI4_"},
	{"I19 a release works on a frozen snapshot", []edit{
		{schema, "h.expires_at) IS NOT TRUE\n      AND pg_catalog.current_setting('transaction_isolation') " +
			"OPERATOR(pg_catalog.=) 'read committed'\n", "h.expires_at) IS NOT TRUE\n"},
	}, library, "^TestI11_FunctionsThatNeed"},
	{"watch: a release is not told", []edit{
		{
			schema,
			"RETURNING l.ctid, l.served, l.watched_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()",
			"RETURNING l.ctid, l.served, false",
		},
	}, integration, "^TestEveryAnswerSays|^TestALockIsWatched"},
	{"a release leaves no note of when it was", []edit{
		{schema, " SET expires_at = '-infinity', ended_at = pg_catalog.clock_timestamp()\n",
			" SET expires_at = '-infinity'\n"},
	}, library, "^TestGetShows"},
}
