package main

func init() { all = append(all, ofSpeed...) }

// Texts of the short ways that more than one mutant breaks.
const (
	shortLease   = "            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id\n          FOR UPDATE SKIP LOCKED) f ON true;"
	leaseFree    = "          WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = p_name AND l.slot = 0 AND l.top_slot = 0\n"
	shortMany    = "        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at = '-infinity'\n        FOR UPDATE SKIP LOCKED) f ON true;"
	shortEnds    = "l.grant_id = ANY (p_grant_ids)\n    FOR UPDATE SKIP LOCKED) l;"
	leaseQueue   = "          AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id)\n        RETURNING"
	manyQueue    = "        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)\n      RETURNING a.n, true"
	manyNewQueue = "        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)\n      ON CONFLICT"
	manyToken    = "        token = GREATEST(base + nextval('fencing_token_seq'::regclass), l.token + 1),\n        ttl"
	leaseToken   = "CASE WHEN p_turns = 1 THEN GREATEST(r.base + nextval('fencing_token_seq'::regclass), r.above + 1) ELSE r.above END"
	leaseFirst   = "acquire_lease.first_token := GREATEST(r.base + nextval('fencing_token_seq'::regclass), r.above + 1);"
	leaseGranted = "      IF FOUND THEN\n        RETURN;\n      END IF;\n      acquire_lease.first_token := NULL;"
	handToken    = "first := GREATEST((SELECT b.base FROM token_base b) + nextval('fencing_token_seq'::regclass), r.token + 1);"
	shares       = "      FOR SHARE OF l;"
)

// ofSpeed are the faults of the short ways, of calls for many, and of blocks of tokens.
var ofSpeed = []mutant{
	// One lock.
	{"I1 acquire_lease grants what is held", []edit{
		{speed, leaseFree, "          WHERE l.ctid = h.at AND l.name = p_name AND l.slot = 0 AND l.top_slot = 0\n"},
		{speed, shortLease, "            AND l.grant_id <> p_grant_id\n          FOR UPDATE SKIP LOCKED) f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_lease takes over without a note", []edit{
		{speed, leaseFree, "          WHERE l.ctid = h.at AND l.name = p_name AND l.slot = 0 AND l.top_slot = 0\n"},
		{speed, shortLease, "            AND l.expires_at <= clock_timestamp() AND l.grant_id <> p_grant_id\n          FOR UPDATE SKIP LOCKED) f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_lease grants beside readers", []edit{
		{speed, leaseFree, "          WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = p_name AND l.slot = 0\n"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_lease takes readers for writers", []edit{
		{speed, "  plain boolean := p_mode = 'exclusive' AND p_capacity IS NULL AND p_turns", "  plain boolean := p_turns"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_lease without the row's lock", []edit{
		{speed, shortLease, "            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id) f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I4 acquire_lease without the row's lock", []edit{
		{speed, shortLease, "            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id) f ON true;"},
	}, integration, "^TestI4_ShortWaysWait"},
	{"I13 acquire_lease waits for the row", []edit{
		{speed, shortLease, "            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id\n          FOR UPDATE) f ON true;"},
	}, integration, "^TestI13_Calls|^TestI1_I13_"},
	{"I13 a refused try looks into the index again", []edit{
		{speed, "    ELSIF NOT p_wait AND NOT p_nested AND r.top_slot = 0 AND r.expires_at > clock_timestamp() AND r.grant_id <> p_grant_id THEN\n", "    ELSIF false THEN\n"},
	}, integration, "^TestI13_RefusedShort"},
	{"circles: a refused try of an owner that holds the lock", []edit{
		{speed, "    ELSIF NOT p_wait AND NOT p_nested AND r.top_slot = 0", "    ELSIF NOT p_wait AND r.top_slot = 0"},
	}, integration, "^TestI1_ShortWays|^TestTrap8|Own|Circle"},
	{"I9 acquire_lease overtakes the queue", []edit{
		{speed, leaseQueue, "          AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id)\n        RETURNING"},
	}, integration, "^TestI9_Short"},
	{"I6 acquire_lease grants a spent ID", []edit{
		{speed, leaseQueue, "          AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name)\n        RETURNING"},
	}, integration, "^TestI6_Short"},
	{"I6 acquire_lease grants an ID again whose lease has ended", []edit{
		{speed, shortLease, "            AND l.expires_at = '-infinity'\n          FOR UPDATE SKIP LOCKED) f ON true;"},
	}, integration, "^TestI6_Short"},
	{"I12 acquire_lease keeps the session's synchronous_commit", []edit{
		{speed, "octet_length(p_metadata::text) <= 16384) AND p_grant_id IS NOT NULL\n                   AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') NOT IN ('off', 'local');", "octet_length(p_metadata::text) <= 16384) AND p_grant_id IS NOT NULL\n                   AND current_setting('transaction_isolation') = 'read committed';"},
	}, integration, "^TestI12_I24_Short"},
	{"I19 acquire_lease at any isolation level", []edit{
		{speed, "octet_length(p_metadata::text) <= 16384) AND p_grant_id IS NOT NULL\n                   AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit')", "octet_length(p_metadata::text) <= 16384) AND p_grant_id IS NOT NULL\n                   AND current_setting('synchronous_commit')"},
	}, library, "^TestI11_FunctionsThatNeed"},
	{"I22 acquire_lease forgets the epoch", []edit{
		{speed, leaseToken, "CASE WHEN p_turns = 1 THEN GREATEST(nextval('fencing_token_seq'::regclass), r.above + 1) ELSE r.above END"},
	}, integration, "^TestI22_Short"},
	{"I22 acquire_lease for turns forgets the epoch", []edit{
		{speed, leaseFirst, "acquire_lease.first_token := GREATEST(nextval('fencing_token_seq'::regclass), r.above + 1);"},
	}, integration, "^TestI22_Short"},
	{"I2 acquire_lease goes by the sequence alone", []edit{
		{speed, leaseToken, "CASE WHEN p_turns = 1 THEN r.base + nextval('fencing_token_seq'::regclass) ELSE r.above END"},
	}, integration, "^TestI2_Short"},
	{"I2 acquire_lease for turns goes by the sequence alone", []edit{
		{speed, leaseFirst, "acquire_lease.first_token := r.base + nextval('fencing_token_seq'::regclass);"},
	}, integration, "^TestI2_Short"},
	{"I2 trap 1: acquire_lease draws before it locks", []edit{
		{speed, "  plain boolean := p_mode", "  drawn bigint := (SELECT b.base FROM token_base b) + nextval('fencing_token_seq'::regclass);\n  plain boolean := p_mode"},
		{speed, leaseToken, "CASE WHEN p_turns = 1 THEN drawn ELSE r.above END"},
		{speed, shortLease, "            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id\n          FOR UPDATE) f ON true;"},
	}, integration, "^TestI2_Short|^TestI1_I2_Short"},
	{"I24 acquire_lease turns synchronous_commit off by itself", []edit{
		{speed, leaseGranted, "      IF FOUND THEN\n        PERFORM set_config('synchronous_commit', 'off', true);\n        RETURN;\n      END IF;\n      acquire_lease.first_token := NULL;"},
	}, integration, "^TestI12_I24_Short"},
	{"I25 acquire_lease advances the fence", []edit{
		{speed, leaseGranted, "      IF FOUND THEN\n        UPDATE fences SET last_token = acquire_lease.token WHERE resource = p_name;\n        RETURN;\n      END IF;\n      acquire_lease.first_token := NULL;"},
	}, integration, "^TestI25_Short"},

	// Tickets in the short way.
	{"I8 trap 7: a short ticket is written without the head's lock", []edit{
		{speed, shares, "      ;"},
	}, integration, "^TestI8_Short|^TestI8_NoShort"},
	{"I8 a short ticket is written for a lock that was released", []edit{
		{speed, "l.expires_at > clock_timestamp() AND l.grant_id <> p_grant_id\n        AND EXISTS (SELECT FROM sessions", "l.grant_id <> p_grant_id\n        AND EXISTS (SELECT FROM sessions"},
		{speed, "        WHERE r.expires_at > clock_timestamp()\n        ON CONFLICT", "        ON CONFLICT"},
	}, integration, "^TestI8_Short|^TestI8_NoShort"},
	{"I8 a short ticket of a session that nobody has heard of", []edit{
		{speed, "        AND EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp() + p_session_ttl * 0.7)\n", ""},
	}, integration, "^TestI9_ShortTickets"},
	{"I9 a short ticket below those that were served", []edit{
		{speed, "SELECT p_name, CASE WHEN n.t > r.ticket THEN n.t ELSE r.ticket + n.t END,", "SELECT p_name, n.t,"},
	}, integration, "^TestI9_Short"},
	{"trap 9: a short ticket of a spent ID", []edit{
		{speed, "        IF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN   -- by whom", "        IF false THEN   -- by whom"},
	}, integration, "^TestI9_Short|^TestTrap9_LateShort"},
	{"circles: a short ticket of an owner that holds the lock", []edit{
		{speed, "  IF plain AND p_wait AND NOT p_nested AND NOT p_retry THEN", "  IF plain AND p_wait AND NOT p_retry THEN"},
	}, integration, "^TestI9_NoShortTicket"},

	// The head of a queue takes over what has run out.
	{"I1 take_over takes what is held", []edit{
		{speed, "l.expires_at > '-infinity' AND l.expires_at <= clock_timestamp()\n      AND l.grant_id <> p_grant_id", "l.expires_at > '-infinity'\n      AND l.grant_id <> p_grant_id"},
	}, integration, "^TestI1_I9_TakeOver"},
	{"I1 take_over without the row's lock", []edit{
		{speed, "      AND l.grant_id <> p_grant_id\n    FOR UPDATE SKIP LOCKED;\n  IF NOT FOUND", "      AND l.grant_id <> p_grant_id;\n  IF NOT FOUND"},
	}, integration, "^TestI1_TakeOverWaits"},
	{"I9 take_over overtakes the queue", []edit{
		{speed, "AND q.mode = 'exclusive'\n      AND q.ticket = (SELECT min(o.ticket) FROM waiters o WHERE o.name = p_name)\n", "AND q.mode = 'exclusive'\n"},
	}, integration, "^TestI1_I9_TakeOver"},
	{"I7 take_over answers for the time that was asked for again", []edit{
		{speed, "SELECT true, t.token, t.holder, t.expires_at, microseconds_until(t.expires_at), 0, t.watched", "SELECT true, t.token, t.holder, t.expires_at, microseconds_until(clock_timestamp() + p_ttl), 0, t.watched"},
	}, integration, "^TestI1_I9_TakeOver"},
	{"every lease wakes the heartbeat", []edit{
		{"pglock/heartbeat.go", "c.queue.untilLook(now), now.stillTo(c.plannedBeat))", "c.queue.untilLook(now))"},
	}, library, "^TestLeasesThatComeAndGo"},
	{"every lease wakes the watch of the deadlines", []edit{
		{"pglock/heartbeat.go", "\tnext = min(next, now.stillTo(c.plannedDeadline))\n", ""},
	}, library, "^TestLeasesThatComeAndGo"},
	{"the doctor passes over a transaction that has written", []edit{
		{speed, "min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL OR a.backend_xmin", "min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xmin"},
	}, integration, "^TestDoctorSees"},

	// Many locks.
	{"I1 acquire_many grants what is held", []edit{
		{speed, shortMany, "        WHERE l.ctid = h.at AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0\n        FOR UPDATE SKIP LOCKED) f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_many grants beside readers", []edit{
		{speed, shortMany, "        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.expires_at = '-infinity'\n        FOR UPDATE SKIP LOCKED) f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I1 acquire_many without the rows' locks", []edit{
		{speed, shortMany, "        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at = '-infinity') f ON true;"},
	}, integration, "^TestI1_I2_Short|^TestI1_I13_|^TestI1_ShortWays"},
	{"I4 acquire_many without the rows' locks", []edit{
		{speed, shortMany, "        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at = '-infinity') f ON true;"},
	}, integration, "^TestI4_ShortWaysWait"},
	{"I13 acquire_many waits for rows", []edit{
		{speed, shortMany, "        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at = '-infinity'\n        FOR UPDATE) f ON true;"},
	}, integration, "^TestI13_Calls|^TestI1_I13_"},
	{"I9 acquire_many overtakes the queue", []edit{
		{speed, manyQueue, "        AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)\n      RETURNING a.n, true"},
	}, integration, "^TestI9_Short"},
	{"I9 acquire_many overtakes the queue of a lock that was pruned", []edit{
		{speed, manyNewQueue, "        AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)\n      ON CONFLICT"},
	}, integration, "^TestI9_Short"},
	{"I6 acquire_many grants a spent ID", []edit{
		{speed, manyQueue, "        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)\n      RETURNING a.n, true"},
	}, integration, "^TestI6_Short"},
	{"I6 acquire_many grants a spent ID for a new name", []edit{
		{speed, manyNewQueue, "        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)\n      ON CONFLICT"},
	}, integration, "^TestI6_Short"},
	{"I6 acquire_many grants an ID again whose lease has ended", []edit{
		{speed, "      WHERE l.ctid = ANY (mine) AND l.name = a.name AND l.grant_id <> a.grant_id\n", "      WHERE l.ctid = ANY (mine) AND l.name = a.name\n"},
	}, integration, "^TestI6_Short"},
	{"I12 acquire_many keeps the session's synchronous_commit", []edit{
		{speed, "require_read_committed() AND require_durable_commit() AND check_arguments('-', p_holder", "require_read_committed() AND check_arguments('-', p_holder"},
	}, integration, "^TestI12_I24_Short"},
	{"I22 acquire_many forgets the epoch", []edit{
		{speed, manyToken, "        token = GREATEST(nextval('fencing_token_seq'::regclass), l.token + 1),\n        ttl"},
	}, integration, "^TestI22_Short"},
	{"I22 acquire_many forgets the epoch of a new name", []edit{
		{speed, "p_base + nextval('fencing_token_seq'::regclass), p_ttl,", "nextval('fencing_token_seq'::regclass), p_ttl,"},
	}, integration, "^TestI22_Short"},
	{"I22 the short ways go on through a new timeline", []edit{
		{speed, "WHEN i.timeline = wal_timeline() THEN i.epoch << 44 END AS base", "ELSE i.epoch << 44 END AS base"},
	}, integration, "^TestI22_First"},
	{"I2 acquire_many goes by the sequence alone", []edit{
		{speed, manyToken, "        token = base + nextval('fencing_token_seq'::regclass),\n        ttl"},
	}, integration, "^TestI2_Short"},
	{"I25 acquire_many takes new names as they are named", []edit{
		{speed, "            WHERE p_known IS NULL OR NOT a.name = ANY (p_known) ORDER BY a.name COLLATE \"C\") a", "            WHERE p_known IS NULL OR NOT a.name = ANY (p_known)) a"},
	}, integration, "^TestI25_Calls"},
	{"I25 acquire_each takes locks as they are named", []edit{
		{speed, "    ORDER BY g.name COLLATE \"C\", g.n\n  LOOP", "    ORDER BY g.n\n  LOOP"},
	}, integration, "^TestI25_Calls"},
	{"I12 grants of a batch with tickets do not wait for the disk", []edit{
		{"pglock/queries.go", "CASE WHEN NOT pg_catalog.bool_or(a.granted OR a.hints IS NOT NULL OR a.handed IS NOT NULL) OVER ()\n\t\t\t\t\tTHEN pg_catalog.set_config('synchronous_commit', 'off', true) END", "pg_catalog.set_config('synchronous_commit', 'off', true)"},
	}, integration, "^TestI12_I24_What"},

	// Releases.
	{"I4 I18 release_many changes no key", []edit{
		{speed, shortEnds, "l.grant_id = ANY (p_grant_ids)) l;"},
	}, integration, "^TestI4_I18_ShortRelease"},
	{"I13 release_many waits for rows", []edit{
		{speed, shortEnds, "l.grant_id = ANY (p_grant_ids)\n    FOR UPDATE) l;"},
	}, integration, "^TestI13_Calls|^TestI1_I13_"},
	{"I5 release_many without the grant ID", []edit{
		{speed, "AND l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id\n        AND l.expires_at", "AND l.name = a.name AND l.token = a.token\n        AND l.expires_at"},
	}, integration, "^TestI5_Many"},
	{"I5 release_many without the token", []edit{
		{speed, "AND l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id\n        AND l.expires_at", "AND l.name = a.name AND l.grant_id = a.grant_id\n        AND l.expires_at"},
	}, integration, "^TestI5_Many"},
	{"I8 release_many leaves a waiter behind", []edit{
		{speed, "        AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)\n      RETURNING a.n, coalesce", "        AND l.expires_at > clock_timestamp()\n      RETURNING a.n, coalesce"},
	}, integration, "^TestI8_Short|^TestI8_NoShort"},
	{"I7 release_many releases what has run out", []edit{
		{speed, "        AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)\n      RETURNING a.n, coalesce", "        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)\n      RETURNING a.n, coalesce"},
	}, integration, "^TestI7_Short"},
	{"I8 release_lease leaves a waiter behind", []edit{
		{speed, "      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name)\n", "      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp()\n"},
	}, integration, "^TestI8_Short|^TestI8_NoShort"},
	{"I7 release_lease releases what has run out", []edit{
		{speed, "      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name)\n", "      WHERE l.ctid = r.at AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name)\n"},
	}, integration, "^TestI7_Short"},
	{"I9 release_lease takes readers for writers", []edit{
		{speed, "          AND q.mode = 'exclusive' AND EXISTS (SELECT FROM sessions", "          AND EXISTS (SELECT FROM sessions"},
	}, integration, "^TestI9_Short"},
	{"I12 a hand-over of release_lease keeps the session's synchronous_commit", []edit{
		{speed, "    IF current_setting('synchronous_commit') NOT IN ('off', 'local') THEN\n      DELETE", "    IF true THEN\n      DELETE"},
	}, integration, "^TestI12_I24_Short"},
	{"I22 a hand-over of release_lease forgets the epoch", []edit{
		{speed, handToken, "first := GREATEST(nextval('fencing_token_seq'::regclass), r.token + 1);"},
	}, integration, "^TestI22_Short"},
	{"I2 a hand-over of release_lease goes by the sequence alone", []edit{
		{speed, handToken, "first := (SELECT b.base FROM token_base b) + nextval('fencing_token_seq'::regclass);"},
	}, integration, "^TestI2_Short"},
	{"I24 release_many turns synchronous_commit off by itself", []edit{
		{speed, "  IF mine IS NOT NULL THEN\n    RETURN QUERY\n      UPDATE locks l SET expires_at", "  PERFORM set_config('synchronous_commit', 'off', true);\n  IF mine IS NOT NULL THEN\n    RETURN QUERY\n      UPDATE locks l SET expires_at"},
	}, integration, "^TestI12_I24_Short"},
	{"I23 a standby checks many leases", []edit{
		{speed, "  IF NOT pg_is_in_recovery() THEN\n    RETURN QUERY", "  IF true THEN\n    RETURN QUERY"},
	}, integration, "^TestI23_StandbyChecks"},
	{"I5 check_leases without the grant ID", []edit{
		{speed, "        JOIN locks l ON l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id\n      WHERE l.expires_at", "        JOIN locks l ON l.name = a.name AND l.token = a.token\n      WHERE l.expires_at"},
	}, integration, "^TestI5_Many"},
	{"I7 check_leases answers for what has run out", []edit{
		{speed, "AND l.grant_id = a.grant_id\n      WHERE l.expires_at > clock_timestamp();", "AND l.grant_id = a.grant_id;"},
	}, integration, "^TestI7_Short"},
	{"I15 renew_leases renews what ran out while it waited", []edit{
		{speed, "      WHERE l.token = a.token AND l.grant_id = a.grant_id AND l.expires_at > clock_timestamp()\n      ORDER BY", "      WHERE l.token = a.token AND l.grant_id = a.grant_id\n      ORDER BY"},
		{speed, "      FROM held h WHERE l.ctid = h.at AND l.expires_at > clock_timestamp()\n", "      FROM held h WHERE l.ctid = h.at\n"},
	}, integration, "^TestI7_Short"},
	{"I5 own_lease without the grant ID", []edit{
		{speed, "l.slot = 0 AND l.token = p_token AND l.grant_id = p_grant_id;\n  RETURN FOUND;", "l.slot = 0 AND l.token = p_token;\n  RETURN FOUND;"},
	}, integration, "^TestI5_Many"},
}
