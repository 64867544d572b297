package main

// ofWaiting are the faults of who is told, granted and forgotten among those who wait.
var ofWaiting = []mutant{
	{"I9 a reader is granted before a writer that stood before it", []edit{
		{schema, "bool_and((n.q).mode = w.mode AND (n.q).capacity IS NOT DISTINCT FROM w.capacity AND (n.ticket = " +
			"w.ticket OR NOT in_tree(n.q))) OVER (ORDER BY n.ticket) AS fits", "((n.q).mode = w.mode AND " +
			"(n.q).capacity " +
			"IS NOT DISTINCT FROM w.capacity) AS fits"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 a dead reader is granted with those beside it", []edit{
		{schema, "WHERE b.fits AND ((b.q).ticket = w.ticket OR session_alive((b.q).session_id)));", "WHERE b.fits);"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 a writer is granted beside those of a limit", []edit{
		{schema, "EXIT WHEN shared > 0 OR limited > 0 OR", "EXIT WHEN shared > 0 OR"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 a writer is granted beside readers", []edit{
		{schema, "EXIT WHEN shared > 0 OR limited > 0 OR", "EXIT WHEN limited > 0 OR"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 a reader is granted beside those of a limit", []edit{
		{schema, "EXIT WHEN CASE nxt.mode WHEN 'shared' THEN limited ELSE shared END > 0", "EXIT WHEN CASE nxt.mode " +
			"WHEN 'shared' THEN 0 ELSE shared END > 0"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 one of a limit is granted beside readers", []edit{
		{schema, "EXIT WHEN CASE nxt.mode WHEN 'shared' THEN limited ELSE shared END > 0", "EXIT WHEN CASE nxt.mode " +
			"WHEN 'shared' THEN limited ELSE 0 END > 0"},
	}, integration, "^TestI9_EveryQueue"},
	{"I9 a hand-over forgets how far the queue was served", []edit{
		{schema, "served = GREATEST(l.served, p_served), ttl = w.ttl", "served = p_served, ttl = w.ttl"},
	}, integration, "^TestI9_ATicketAfterAHandOver"},
	{"I8 a dead waiter is told to ask in the place of the first live one", []edit{
		{schema, "q.ticket < o.ticket AND EXISTS (\n            SELECT FROM sessions s WHERE s.session_id = " +
			"q.session_id AND s.alive_until > clock_timestamp())\n          ORDER", "q.ticket < o.ticket\n          " +
			"ORDER"},
	}, integration, "^TestI8_TheFirstLive|^TestI8_TheHolder"},
	{"I8 a waiter for one of a limit asks when the last lease ends", []edit{
		{
			schema,
			"CASE WHEN pg_catalog.count(*) >= w.capacity THEN pg_catalog.min(l.expires_at) END)",
			"CASE WHEN pg_catalog.count(*) >= w.capacity THEN pg_catalog.max(l.expires_at) END)",
		},
	}, integration, "^TestI8_TheFirstLive"},
	{"I8 a writer asks when the first of several leases ends", []edit{
		{
			schema,
			"WHEN 'exclusive' THEN pg_catalog.max(l.expires_at)",
			"WHEN 'exclusive' THEN pg_catalog.min(l.expires_at)",
		},
	}, integration, "^TestI8_TheFirstLive"},
	{"I8 who leaves the queue of a lock that nobody holds alone serves nobody", []edit{
		{
			schema,
			"head := CASE WHEN mine OR NOT is_running(head.expires_at, head.ended_at) THEN take_head",
			"head := CASE WHEN mine THEN take_head",
		},
	}, integration, "^TestI8_WhoeverLeaves"},
	{"sweep removes the tickets of those who live", []edit{
		{
			schema,
			"WHERE s.session_id = o.session_id AND s.alive_until > $1) OR",
			"WHERE s.session_id = o.session_id AND s.alive_until > $1 + interval '2 minutes') OR",
		},
	}, integration, "^TestSweepRemoves"},
	{"sweep removes tickets that count", []edit{
		{schema, "OR o.ticket <= (SELECT l.served FROM locks l", "OR o.ticket > (SELECT l.served FROM locks l"},
	}, integration, "^TestSweepRemoves"},
	{"sweep keeps tickets that count no more", []edit{
		{schema, "OR o.ticket <= (SELECT l.served FROM locks l WHERE l.name = o.name AND l.slot = 0)) $of$", ") $of$"},
	}, integration, "^TestThoseWhoDied"},
	{"sweep removes a session as soon as it is dead", []edit{
		{schema, "('sessions', '1 minute',", "('sessions', '0',"},
	}, integration, "^TestSweepRemoves"},
	{"I17 sweep removes a receipt within the week", []edit{
		{schema, "('receipts', '7 days',", "('receipts', '1 day',"},
	}, integration, "^TestSweepRemoves"},
	{"I5 whoever knows a ticket learns its grant ID", []edit{
		{schema, "WHERE q.session_id = session_of(p_session_key) AND q.ticket = ANY (p_tickets)",
			"WHERE q.ticket = ANY (p_tickets)"},
	}, integration, "^TestI5_TicketsAre"},
	{"a session that ends leaves its tickets", []edit{
		{schema, "DELETE FROM waiters q WHERE q.session_id = session_of(p_session_key);", ""},
	}, integration, "^TestI5_TicketsAre"},
	{"a limit that somebody waits with does not count", []edit{
		{
			schema,
			"WHERE q.name = p_name AND q.mode = 'limit' AND session_alive(q.session_id) AND q.ticket > ( SELECT " +
				"h.served FROM locks h WHERE h.name = p_name AND h.slot = 0)) u",
			"WHERE false) u",
		},
	}, integration, "^TestALimitOfTheDead"},
	{"a limit that a dead waiter named counts", []edit{
		{
			schema,
			"WHERE q.name = p_name AND q.mode = 'limit' AND session_alive(q.session_id) AND q.ticket > ( SELECT " +
				"h.served FROM locks h WHERE h.name = p_name AND h.slot = 0)) u",
			"WHERE q.name = p_name AND q.mode = 'limit' AND q.ticket > ( SELECT h.served FROM locks h WHERE " +
				"h.name = p_name AND h.slot = 0)) u",
		},
	}, integration, "^TestALimitOfTheDead"},
	{"a limit that somebody named who was passed over counts", []edit{
		{
			schema,
			"AND session_alive(q.session_id) AND q.ticket > ( SELECT h.served FROM locks h WHERE h.name = p_name " +
				"AND h.slot = 0)) u",
			"AND session_alive(q.session_id)) u",
		},
	}, integration, "^TestALimitOfTheDead"},
	{"a lease that has ended is announced", []edit{
		{
			schema,
			"IF a.slot >= 0 AND r.ticket > 0 AND r.runs THEN",
			"IF a.slot >= 0 AND r.ticket > 0 THEN",
		},
	}, integration, "^TestAnnounceTells"},
	{"watch: a request before the end of another does not count", []edit{
		{schema, "l.watched_until >= clock_timestamp() + p_for / 2;", "l.watched_until >= clock_timestamp();"},
	}, integration, "^TestALockIsWatched"},
	{"watch: every request writes", []edit{
		{schema, "l.watched_until >= clock_timestamp() + p_for / 2;", "l.watched_until >= clock_timestamp() + p_for " +
			"* 2;"},
	}, integration, "^TestALockIsWatched"},
}

// ofSuccession are the faults of what a lease has that belongs to the one before it, and of what outlives its end.
var ofSuccession = []mutant{
	{"the lease after a hand-over is renewed by the TTL before it", []edit{
		{schema, "served = GREATEST(l.served, p_served), ttl = w.ttl,", "served = GREATEST(l.served, p_served),"},
	}, integration, "^TestASuccessor"},
	{"the lease after a release is renewed by the TTL before it", []edit{
		{schema, "holder = p_holder, ttl = p_ttl,", "holder = p_holder,"},
	}, integration, "^TestASuccessor"},
	{"the lease in a slot is renewed by the TTL before it", []edit{
		{schema, "ttl = EXCLUDED.ttl, acquired_at", "acquired_at"},
	}, integration, "^TestASuccessor"},
	{"a waiter is granted the lock with the metadata before it", []edit{
		{
			schema,
			"metadata = w.metadata, grants = l.grants + 1, slowest = NULL, queued",
			"grants = l.grants + 1, slowest = NULL, queued",
		},
	}, integration, "^TestASuccessor"},
	{"a free lock is granted with the metadata before it", []edit{
		{schema, "metadata = p_metadata, grants", "grants"},
	}, integration, "^TestASuccessor"},
	{"a slot is granted with the metadata before it", []edit{
		{schema, "ended_at = NULL, metadata = EXCLUDED.metadata,", "ended_at = NULL,"},
	}, integration, "^TestASuccessor"},
	{"circles: a waiter is granted the lock with the owner before it", []edit{
		{schema, "owner_id = w.owner_id, holder = w.holder, ticket", "holder = w.holder, ticket"},
	}, integration, "^TestASuccessor"},
	{"circles: a slot is granted with the owner before it", []edit{
		{schema, "owner_id = EXCLUDED.owner_id, holder =", "holder ="},
	}, integration, "^TestASuccessor"},
	{"a slot is granted with the session before it", []edit{
		{schema, "session_id = EXCLUDED.session_id,", ""},
	}, integration, "^TestASuccessor"},
	{"a slot is granted with the limit before it", []edit{
		{schema, "mode = EXCLUDED.mode, capacity = EXCLUDED.capacity, ticket", "mode = EXCLUDED.mode, ticket"},
	}, integration, "^TestALockIsUsed"},
	{"circles: an owner is told of a lease that has run out", []edit{
		{schema, "AND l.grant_id <> w.grant_id AND is_running(l.expires_at, l.ended_at) LIMIT 1;",
			"AND l.grant_id <> w.grant_id LIMIT 1;"},
	}, integration, "^TestAnOwnerIsTold"},
	{"I6 a request that is repeated after the expiry revives its lease", []edit{
		{
			schema,
			"BEGIN PERFORM FROM renew_leases(ARRAY[p_row.name]",
			"BEGIN UPDATE locks l SET expires_at = clock_timestamp() + l.ttl WHERE l.name = p_row.name AND " +
				"l.grant_id = p_row.grant_id AND l.expires_at > '-infinity'; PERFORM FROM " +
				"renew_leases(ARRAY[p_row.name]",
		},
	}, integration, "^TestI6_Trap8_|^TestI6_AGrant"},
	{"trap 9: a grant ID that was given up is refused for a minute", []edit{
		{schema, "spent_until = clock_timestamp() + interval '1 hour'", "spent_until = clock_timestamp() + interval " +
			"'1 minute'"},
	}, integration, "^TestTrap9_AGrantID"},
	{"trap 9: sweep forgets grant IDs that were given up a minute ago", []edit{
		{schema, "('spent_grants', '1 hour',", "('spent_grants', '1 minute',"},
	}, integration, "^TestTrap9_AGrantID"},
	{"sweep keeps grant IDs that were given up for ten hours", []edit{
		{schema, "('spent_grants', '1 hour',", "('spent_grants', '10 hours',"},
	}, integration, "^TestTrap9_AGrantID"},
	{"I21 a lock of which a grant ID was given up is never pruned", []edit{
		{schema, "spent_until = clock_timestamp() + interval '1 hour'", "spent_until = 'infinity'"},
	}, integration, "^TestTrap9_AGrantID"},
	{"I22 an epoch is advanced by one, whatever token is named", []edit{
		{
			schema,
			"SET epoch = next_epoch(i.epoch, p_above, (SELECT s.last_value",
			"SET epoch = next_epoch(i.epoch, 0, (SELECT s.last_value",
		},
	}, integration, "^TestI22_TokensAreAbove"},
	{"I22 an epoch is advanced to that of the named token alone", []edit{
		{
			schema,
			"last bigint := GREATEST(p_epoch, (p_above - p_drawn) >> 36);",
			"last bigint := (p_above - p_drawn) >> 36;",
		},
	}, integration, "^TestI22_TokensAreAbove"},
	{"I22 an epoch is advanced to that of the named token, not above it", []edit{
		{
			schema,
			"IF (last & 255) < 127 THEN RETURN last + 1;",
			"IF (last & 255) < 127 THEN RETURN CASE WHEN last > p_epoch THEN last ELSE last + 1 END;",
		},
	}, integration, "^TestI22_TokensAreAbove"},
}

// ofSeals are the faults of what a transaction must show at its end, and of how long it may take.
var ofSeals = []mutant{
	{"I4 seal takes a restored row for its fence", []edit{
		{schema, "WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned() AND o.advanced_at >= " +
			"transaction_timestamp();", "WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned();"},
		{schema, ofThisTransaction, "AND o.fenced_xact OPERATOR(pg_catalog.=) " +
			"pg_catalog.pg_current_xact_id_if_assigned();"},
	}, integration, "^TestI4_SealIsOf"},
	{"I4 a seal of one fence takes a restored row for it", []edit{
		{schema, ofThisTransaction, "AND o.fenced_xact OPERATOR(pg_catalog.=) " +
			"pg_catalog.pg_current_xact_id_if_assigned();"},
	}, integration, "^TestI4_SealIsOf"},
	{"I4 seal takes the fence of another transaction", []edit{
		{schema, "WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned() AND o.advanced_at >= " +
			"transaction_timestamp();", "WHERE o.resource = res AND o.advanced_at >= transaction_timestamp();"},
		{schema, ofThisTransaction, "AND o.advanced_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp();"},
	}, integration, "^TestI4_SealIsOf"},
	{"I3 the same token of another grant passes again", []edit{
		{schema, "OR p_allow_same_token AND f.last_token = p_token AND f.grant_id = p_grant_id",
			"OR p_allow_same_token AND f.last_token = p_token"},
	}, integration, "^TestI3_TheSameToken"},
	{"I16 a time limit makes a transaction longer than its lease", []edit{
		{schema, "RETURN LEAST(p_ms, (extract(epoch FROM p_time_limit) * 1000)::bigint);",
			"RETURN (extract(epoch FROM p_time_limit) * 1000)::bigint;"},
	}, integration, "^TestI16_ATimeLimit"},
	{"I16 a transaction has until the last of its leases ends", []edit{
		{schema, "fence_all.remaining_us := LEAST(fence_all.remaining_us, f.remaining_us);",
			"fence_all.remaining_us := f.remaining_us;"},
	}, integration, "^TestI16_ATransaction"},
	{"I3 a key of a time to come is kept from now on", []edit{
		{schema, "pg_catalog.transaction_timestamp()), till)",
			"pg_catalog.transaction_timestamp()), pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) p_keep)"},
	}, integration, "^TestI3_AKeyOf"},
	{"once does not say that the lease is of another database", []edit{
		{schema, "p_resource, true, p_database_id, p_slot,", "p_resource, true, NULL, p_slot,"},
	}, integration, "^TestI3_AKeyOf"},
}

// ofDeadlines are the faults of the end of work whose lease ends, and of what clients wait for.
var ofDeadlines = []mutant{
	{"I7 a lease that is lost in the grace after a failover is returned", []edit{
		{"pglock/grace.go", "\tcase <-l.Context().Done():\n\t\treturn c.endOf(l)\n", ""},
	}, library, "^TestALeaseThatIsLostInTheGrace"},
	{"I14 a renewal waits for the rows of others", []edit{
		{schema, "AND l.slot = a.slot AND l.grant_id = a.grant_id FOR NO KEY UPDATE) h;", "AND l.slot = a.slot FOR " +
			"NO KEY UPDATE) h;"},
	}, integration, "^TestI14_ARenewal"},
	{"I14 the plan of a renewal reads the table", []edit{
		{schema, renewPlan, "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET " +
			"lock_timeout = 0 SET plan_cache_mode = force_generic_plan SET enable_nestloop = on SET enable_indexscan " +
			"= on SET enable_tidscan = on"},
	}, integration, "^TestThePlanOfTheFirst"},
	{"I14 a session's planner settings are kept in its renewals", []edit{
		{schema, renewPlan, "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET " +
			"lock_timeout = 0 SET plan_cache_mode = force_generic_plan SET enable_seqscan = off"},
	}, integration, "^TestThePlanOfTheFirst"},
	{"I14 a renewal is planned for what it is asked", []edit{
		{schema, renewPlan, "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET " +
			"lock_timeout = 0 SET plan_cache_mode = force_custom_plan SET enable_nestloop = on SET enable_indexscan " +
			"= on SET enable_tidscan = on"},
	}, integration, "^TestThePlanOfTheFirst"},
	{"a rule that is no expression is planned by each call", []edit{
		{schema, "LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT AS $$ BEGIN RETURN " +
			"bound_timeout('idle_in_transaction_session_timeout', 1000)", "LANGUAGE sql VOLATILE SET search_path " +
			"FROM CURRENT AS $$ SELECT bound_timeout('idle_in_transaction_session_timeout', 1000)"},
		{schema, "AND bound_transaction_timeout(1000)); END $$;", "AND bound_transaction_timeout(1000)); $$;"},
	}, integration, "^TestNothingIsPlanned"},
	{"a connection that takes no deadlines is waited for without end", []edit{
		{"internal/server/listen.go", "_ = conn.PgConn().Conn().Close()", ""},
	}, integration, "^TestAConnectionThatTakesNoDeadlines"},
	{"I21 a request looks before it waits for whoever prunes", []edit{
		{schema, "LOOP UPDATE {{schema}}.locks l SET token = (SELECT i.epoch",
			"LOOP IF plain THEN UPDATE {{schema}}.locks l SET token = (SELECT i.epoch"},
		{schema, "THEN '{\"watched\": true}'::pg_catalog.json END INTO a;",
			"THEN '{\"watched\": true}'::pg_catalog.json END INTO a; END IF;"},
	}, integration, "^TestI21_PruneBesideARequest"},
	{"acquires of a connection that began with slots are planned anew", []edit{
		{schema, "OPERATOR(pg_catalog.<=) CASE WHEN plain THEN 0 ELSE '-1' END", "OPERATOR(pg_catalog.<=) 0 AND plain"},
	}, integration, "^TestNothingIsPlanned"},
	{"a refusal plans when the lock is free", []edit{
		{schema, "left_ := microseconds_until(free);", "left_ := microseconds_until(free_at(w));"},
	}, integration, "^TestNothingIsPlanned"},
	{"a look plans when the lock is free", []edit{
		{schema, "THEN microseconds_until(l.free_at) END", "THEN microseconds_until(free_at(m.w)) END"},
	}, integration, "^TestNothingIsPlanned"},
	{"many releases are planned for the values at hand", []edit{
		{
			schema,
			"released boolean, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM " +
				"CURRENT SET plan_cache_mode = force_generic_plan",
			"released boolean, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"many fences are planned for the values at hand", []edit{
		{
			schema,
			"OUT xact xid8, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET plan_cache_mode " +
				"= force_generic_plan AS $$",
			"OUT xact xid8, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a fence is planned for the values at hand", []edit{
		{
			schema,
			"OUT xact xid8, OUT expires_at timestamptz, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY " +
				"DEFINER SET plan_cache_mode = force_generic_plan AS $$",
			"OUT xact xid8, OUT expires_at timestamptz, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY " +
				"DEFINER AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a seal is planned for the values at hand", []edit{
		{
			schema,
			"CREATE FUNCTION seal(p_resources text[]) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET " +
				"plan_cache_mode = force_generic_plan AS $$",
			"CREATE FUNCTION seal(p_resources text[]) RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"an acquire that waits is planned for the values at hand", []edit{
		{
			schema,
			"p_alone boolean, p_locked boolean) RETURNS acquired LANGUAGE plpgsql VOLATILE SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan AS $$",
			"p_alone boolean, p_locked boolean) RETURNS acquired LANGUAGE plpgsql VOLATILE SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a release with a queue is planned for the values at hand", []edit{
		{
			schema,
			"p_at tid, p_many boolean) RETURNS released LANGUAGE plpgsql VOLATILE SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan AS $$",
			"p_at tid, p_many boolean) RETURNS released LANGUAGE plpgsql VOLATILE SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a look is planned for the values at hand", []edit{
		{
			schema,
			"SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$",
			"SET jit = off SET enable_seqscan = off AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a key is planned for the values at hand", []edit{
		{
			schema,
			"OUT done_at timestamptz, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET " +
				"plan_cache_mode = force_generic_plan AS $$",
			"OUT done_at timestamptz, OUT remaining_us bigint) LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a check is planned for the values at hand", []edit{
		{
			schema,
			"CREATE FUNCTION check_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[]) " +
				"RETURNS TABLE (n bigint, reason text, expires_at timestamptz, remaining_us bigint) LANGUAGE plpgsql " +
				"VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$",
			"CREATE FUNCTION check_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[]) " +
				"RETURNS TABLE (n bigint, reason text, expires_at timestamptz, remaining_us bigint) LANGUAGE plpgsql " +
				"VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"many acquires are planned for the values at hand", []edit{
		{
			schema,
			"granted boolean, token bigint, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path " +
				"FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$",
			"granted boolean, token bigint, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path " +
				"FROM CURRENT AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"an announcement is planned for the values at hand", []edit{
		{
			schema,
			"CREATE FUNCTION announce(p_names text[], p_slots int[]) RETURNS bigint LANGUAGE plpgsql VOLATILE " +
				"SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan AS $$",
			"CREATE FUNCTION announce(p_names text[], p_slots int[]) RETURNS bigint LANGUAGE plpgsql VOLATILE " +
				"SECURITY DEFINER SET search_path FROM CURRENT AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a request that is taken back is planned for the values at hand", []edit{
		{
			schema,
			"ended boolean, place int, token bigint, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan AS $$",
			"ended boolean, place int, token bigint, more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET " +
				"search_path FROM CURRENT SET lock_timeout = '1s' AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"an outcome is planned for the values at hand", []edit{
		{
			schema,
			"CREATE FUNCTION outcome(p_receipt_id uuid, p_write_id uuid, p_database_id uuid) RETURNS boolean " +
				"LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = " +
				"force_generic_plan AS $$",
			"CREATE FUNCTION outcome(p_receipt_id uuid, p_write_id uuid, p_database_id uuid) RETURNS boolean " +
				"LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"a hand-over is planned for the values at hand", []edit{
		{
			schema,
			"OUT outcome text, OUT more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM " +
				"CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan AS $$",
			"OUT outcome text, OUT more json) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM " +
				"CURRENT SET lock_timeout = '1s' AS $$",
		},
	}, integration, "^TestNothingIsPlanned"},
	{"I14 why a lease was lost is read by an old plan", []edit{
		{schema, "p_slot int) RETURNS text LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_custom_plan",
			"p_slot int) RETURNS text LANGUAGE plpgsql VOLATILE"},
	}, integration, "^TestThePlanOfTheFirst"},
	{"watch: who hears nothing looks once a minute", []edit{
		{"pglock/watch.go", "watchLook = time.Second", "watchLook = time.Minute"},
	}, library, "^TestWatchSeesEach"},
	{"watch: who hears counts on an extension", []edit{
		{"pglock/watch.go", "if i.Remaining > i.TTL {", "if false {"},
	}, library, "^TestWatchLooksWithin"},
	{"I4 the callback of a write ends with the first of its leases alone", []edit{
		{"fencedstore/write.go", "for _, f := range w.fences {\n\t\tlife", "for _, f := range w.fences[:1] " +
			"{\n\t\tlife"},
	}, store, "^TestCallbackOfAWriteUnder"},
	{"I7 run: KILL comes so long after TERM, whatever the deadline", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "later.Until(m.deadline) > 0 {", "true {"},
	}, minding, "^TestALateMinder"},
	{"I7 run: a renewal keeps a command that got TERM", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "case o.Trust != nil && !m.warned:", "case o.Trust != nil:"},
	}, minding, "^TestAGroupThatGotTerm"},
	{"I7 run: the minder does not look at a clock that jumps", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "clockTick = time.Second", "clockTick = time.Hour"},
	}, minding, "^TestTheMinderSees"},
	{"I7 run: a message takes no time", []edit{
		{"cmd/pglock-admin/internal/minder/messages.go", "return s.Left - max(0, time.Duration(now.UnixNano()-s.Wall))",
			"return s.Left"},
	}, minding, "^TestADeadlineThatComesLate"},
}

// ofWhatIsSaid are the faults of what people are told, and of what is behind it.
var ofWhatIsSaid = []mutant{
	{"doctor: nothing is said of what it found", []edit{
		{"cmd/pglock-admin/internal/explain/doctor.go", "\t\tmark := cli.Mark(f.Severity)",
			"\t\tif true {\n\t\t\tcontinue\n\t\t}\n\t\tmark := cli.Mark(f.Severity)"},
	}, explaining, "^TestDoctorFits"},
	{"doctor: what it means runs over the edge", []edit{
		{"cmd/pglock-admin/internal/explain/doctor.go", "markWidth, \"\", indented(shown.Text(f.Meaning), most))",
			"markWidth, \"\", shown.Text(f.Meaning))"},
	}, explaining, "^TestDoctorFits"},
	{"help shows the address of the database", []edit{
		{"cmd/pglock-admin/root.go", "\"database-url\", \"\", \"connection",
			"\"database-url\", o.getenv(\"DATABASE_URL\"), \"connection"},
	}, command, "^TestHelpDoesNotShow"},
	{"show tells of no process", []edit{
		{"cmd/pglock-admin/internal/look/backends.go", "\tif len(v.Backends) > 0 {\n\t\tfmt.Fprintln(w)\n",
			"\tif false {\n\t\tfmt.Fprintln(w)\n"},
	}, looking, "^TestNameOfAnApplication"},
	{"a break is noted and ends nothing", []edit{
		{schema, "  UPDATE locks l SET token = break_row.new_token, expires_at = '-infinity',\n    ended_at = " +
			"clock_timestamp()", "  UPDATE locks l SET ended_at = l.ended_at"},
	}, library, "^TestOperatorBreaks"},
	{"I6 a request that is repeated does not renew its lease", []edit{
		{
			schema,
			"r WHERE r.outcome = 'renewed'; IF NOT FOUND THEN RAISE EXCEPTION 'grant ID of lock % was used",
			"r WHERE r.outcome = 'renewed'; UPDATE locks l SET expires_at = p_row.expires_at WHERE FOUND AND " +
				"l.name = p_row.name AND l.slot = p_row.slot AND is_running(l.expires_at, l.ended_at); IF NOT FOUND " +
				"THEN RAISE EXCEPTION 'grant ID of lock % was used",
		},
	}, integration, "^TestI6_AGrantOfAny"},
	{"I16 a write that hangs has twice its lease", []edit{
		{schema, "  ok := {{schema}}.bound_transaction(ms) AND", "  ok := {{schema}}.bound_transaction(ms " +
			"OPERATOR(pg_catalog.*) 2) AND"},
	}, bridging, "^TestAWriteThatHangs"},
	{"I16 a wait at the fence has twice its lease", []edit{
		{schema, "  ok := {{schema}}.bound_transaction(ms) AND", "  ok := {{schema}}.bound_transaction(ms " +
			"OPERATOR(pg_catalog.*) 2) AND"},
	}, integration, "^TestI16_WaitAtTheFence|^TestI16_ATimeLimit"},
	{"advisory: a guard through database/sql asks nobody", []edit{
		{"advisory/write.go", "\t\tif rows.Next() {\n\t\t\terr = rows.Scan(holds)\n\t\t}\n", "\t\t*holds = true\n"},
		{"advisory/write.go", "\trows, err := tx.QueryContext(ctx, query, args...)",
			"\trows, err := tx.QueryContext(ctx, \"SELECT\")"},
	}, bridging, "^TestGuardSQL"},
	{"I17 a key is said to be done that no standby has", []edit{
		{"fencedstore/write.go", "\t\terr = confirmDone(ctx, db, receipt, err)\n", ""},
	}, integration, "^TestI17_AKey"},
	{"I1 whoever has settled a subtree does not look again", []edit{
		{schema, "  IF gone AND EXISTS (SELECT FROM above(w)) THEN", "  IF false THEN"},
	}, integration, "^TestI1_WhoeverSettles"},
	{"I9 a ticket is written while its session is swept", []edit{
		{schema, "    OR outlive_session(w.session_id, w.holder, p_session_ttl, p_locked);", "    OR true;"},
	}, integration, "^TestI9_ATicketCountsThough"},
	{"I9 tickets are written while their session is swept", []edit{
		{schema, "      OR outlive_session(session_of(p_session_key), label, p_session_ttl);", "      OR true;"},
	}, integration, "^TestI9_ATicketCountsThough"},
	{"I9 a ticket is written while its session is marked", []edit{
		{schema, " AND s.alive_until > clock_timestamp() + p_session_ttl / 2 FOR KEY SHARE;", " FOR KEY SHARE;"},
	}, integration, "^TestI9_ATicketCountsThough"},
	{"I9 whoever finds its session written anew gives up", []edit{
		{schema, "       AND NOT touch_session(p_session_id, p_holder, p_session_ttl) THEN", "       THEN"},
	}, integration, "^TestI9_TwoQueue"},
	{"I9 a request for a stuck lock keeps its session's row", []edit{
		{schema, "  ok := p_locked OR p_name IS NULL OR give_way(p_name, false) AND await_head(p_name);",
			"  ok := true;"},
	}, integration, "^TestI9_AStuckLock"},
	{"I9 a look lets its session die", []edit{
		{schema, "      alive := outlive_session(me, p_holder, p_session_ttl) AND touch_session(me, p_holder, " +
			"p_session_ttl);", "      alive := false;"},
	}, integration, "^TestI9_ALookWaits"},
	{"I9 a request for many reads by subscript", []edit{
		{schema, "  label text := (SELECT h FROM pg_catalog.unnest(p_holders) h LIMIT 1);",
			"  label text := p_holders[1];"},
	}, integration, "^TestI9_ATicketCountsThough"},
	{"I13 a reader locks every slot that is free", []edit{
		{schema, "CASE WHEN nxt.ticket = 0 OR in_tree(nxt) THEN 1 ELSE room END", "1000"},
	}, integration, "^TestAReaderLocks"},
	{"I9 a release of many reads by subscript", []edit{
		{schema, "LATERAL release_otherwise(g.name, g.token, g.grant_id, g.slot, a.at, true) o",
			"LATERAL release_otherwise(p_names[a.n], g.token, g.grant_id, g.slot, a.at, true) o"},
	}, integration, "^TestI9_AReleaseOfManyServes"},
	{"a key is kept for a month of the session's time zone", []edit{
		{schema, "pg_catalog.timezone('0'::pg_catalog.interval, pg_catalog.timezone('0'::pg_catalog.interval, p_of) " +
			"OPERATOR(pg_catalog.+) p_keep);", "p_of OPERATOR(pg_catalog.+) p_keep;"},
	}, integration, "^TestAKeyIsKept"},
	{"I17 the row of an unanswered question is used again", []edit{
		{"fencedstore/write.go", "\t\tw.doubt = w.doubt || !errors.Is(err, ErrDone) ", "\t\t"},
	}, store, "^TestAnUnanswered"},
	{"I17 a key is confirmed in one attempt only", []edit{
		{"fencedstore/once.go", "outcome(asking, receipt, db.look)", "db.look(asking, receipt)"},
	}, store, "^TestI17_ADoneKey"},
	{"I12 the answer about a write does not wait for the disk", []edit{
		{schema, "require_read_committed() AND require_durable_commit() AND bound_rest(true);",
			"require_read_committed() AND bound_rest(true);"},
	}, integration, "^TestI12_I24_AllWays"},
	{"a cut question for an outcome keeps its row", []edit{
		{schema, "require_durable_commit() AND bound_rest(true);\n  found_ uuid;",
			"require_durable_commit();\n  found_ uuid;"},
	}, store, "^TestAQuestion"},
}

// renewPlan is how renew_leases is planned.
const renewPlan = "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = 0 SET " +
	"plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_nestloop = on SET enable_indexscan = " +
	"on SET enable_tidscan = on"
