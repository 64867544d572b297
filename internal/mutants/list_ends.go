package main

// ofEnds are the faults of releases, renewals, checks, breaks and of giving up.
var ofEnds = []mutant{
	{"the end of a lease is another one after its release was answered", []edit{
		{"pglock/lease.go", "\tl.mu.Lock()\n\tl.lost = lost\n\tl.mu.Unlock()\n", "\tl.mu.Lock()\n\tl.lost, l.ended = lost, lost\n\tl.mu.Unlock()\n"},
	}, library, "^TestReleaseOfALease"},
	{"I5 a release needs no grant ID", []edit{
		{schema, "        AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token\n      ORDER BY", "        AND p_token BETWEEN l.first_token AND l.token\n      ORDER BY"},
	}, integration, "^TestI5_"},
	{"I5 a release needs no token", []edit{
		{schema, "        AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token\n      ORDER BY", "        AND l.grant_id = p_grant_id\n      ORDER BY"},
	}, integration, "^TestI5_"},
	{"I5 a release of a slot needs no grant ID", []edit{
		{schema, "AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE;", "AND l.slot > 0 AND l.token = p_token FOR UPDATE;"},
	}, integration, "^TestI5_"},
	{"I5 a renewal for many needs no grant ID", []edit{
		{schema, "      WHERE l.grant_id = a.grant_id AND a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp()\n      ORDER BY", "      WHERE a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp()\n      ORDER BY"},
	}, integration, "^TestI5_"},
	{"I5 a renewal needs no grant ID", []edit{
		{schema, "AND l.slot = coalesce(p_slot, l.slot) AND l.grant_id = p_grant_id\n      AND p_token BETWEEN l.first_token AND l.token\n    FOR NO KEY UPDATE;", "AND l.slot = coalesce(p_slot, l.slot)\n      AND p_token BETWEEN l.first_token AND l.token\n    FOR NO KEY UPDATE;"},
		{schema, "    WHERE l.name = p_name AND l.slot = s AND l.grant_id = p_grant_id AND l.expires_at", "    WHERE l.name = p_name AND l.slot = s AND l.expires_at"},
	}, integration, "^TestI5_"},
	{"I5 a check needs no grant ID", []edit{
		{schema, "AND l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id\n", "AND l.slot = coalesce(a.slot, l.slot)\n"},
	}, integration, "^TestI5_"},
	{"I5 an owner is named without the grant ID", []edit{
		{schema, "AND l.slot = 0 AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token;\n  RETURN FOUND;", "AND l.slot = 0 AND p_token BETWEEN l.first_token AND l.token;\n  RETURN FOUND;"},
	}, integration, "^TestI5_"},
	{"I5 a session's key is what everybody sees", []edit{
		{schema, "AS $$ SELECT encode(substr(sha256(uuid_send(p_key)), 1, 16), 'hex')::uuid $$;", "AS $$ SELECT p_key $$;"},
		{"pglock/client.go", "\tcopy(session[:], sum[:])\n", "\t_ = sum\n\tcopy(session[:], key[:])\n"},
	}, library, "^TestI5_Nobody|Digests"},
	{"I7 a release ends what has run out", []edit{
		{schema, "      IF r.expires_at > clock_timestamp() THEN\n        a := end_lease", "      IF true THEN\n        a := end_lease"},
	}, integration, "^TestI7_AllWays"},
	{"I7 a release of a slot ends what has run out", []edit{
		{schema, "  IF r.expires_at > clock_timestamp() THEN\n    UPDATE locks l SET expires_at = '-infinity'", "  IF r.name IS NOT NULL THEN\n    UPDATE locks l SET expires_at = '-infinity'"},
	}, integration, "^TestI7_AllWays"},
	{"I7 a check answers for what has run out", []edit{
		{schema, "AND a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp();\n    IF NOT FOUND", "AND a.token BETWEEN l.first_token AND l.token;\n    IF NOT FOUND"},
	}, integration, "^TestI7_AllWays"},
	{"I7 a renewal for many revives what has run out", []edit{
		{schema, "      WHERE l.grant_id = a.grant_id AND a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp()\n      ORDER BY", "      WHERE l.grant_id = a.grant_id AND a.token BETWEEN l.first_token AND l.token\n      ORDER BY"},
		{schema, "      FROM held h WHERE l.ctid = h.at AND l.expires_at > clock_timestamp()\n", "      FROM held h WHERE l.ctid = h.at\n"},
	}, integration, "^TestI7_AllWays"},
	{"I15 trap 3: a renewal computes before it waits", []edit{
		{schema, "      AND p_token BETWEEN l.first_token AND l.token\n    FOR NO KEY UPDATE;", "      AND p_token BETWEEN l.first_token AND l.token;"},
	}, integration, "^TestI15_|^TestTrap3_Renewal"},
	{"I13 one locked row holds up the renewals of all", []edit{
		{schema, "      ORDER BY l.name, l.slot FOR NO KEY UPDATE OF l SKIP LOCKED),", "      ORDER BY l.name, l.slot FOR NO KEY UPDATE OF l),"},
	}, integration, "^TestI13_Renewals"},
	{"I13 many are released in one statement, which waits for long", []edit{
		{schema, "RETURNS TABLE (n bigint, answer release_answer)\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '50ms'",
			"RETURNS TABLE (n bigint, answer release_answer)\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '2s'"},
	}, integration, "^TestI13_Calls"},
	{"I13 many are given up in one statement, which waits for long", []edit{
		{schema, "set_config('lock_timeout', '50ms', true)", "set_config('lock_timeout', '2s', true)"},
	}, integration, "^TestI13_Calls"},
	{"I4 I18 a release changes no key", []edit{
		{schema, "      ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR UPDATE;\n    IF FOUND THEN\n      IF r.expires_at", "      ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR NO KEY UPDATE;\n    IF FOUND THEN\n      IF r.expires_at"},
	}, integration, "^TestI4_I18_"},
	{"I4 I18 a release of a slot changes no key", []edit{
		{schema, "AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE;", "AND l.grant_id = p_grant_id AND l.token = p_token FOR NO KEY UPDATE;"},
	}, integration, "^TestI4_"},
	{"I12 a hand-over does not wait for the disk", []edit{
		{"internal/protocol/queries.go", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN ` + async + ` END", "` + async + `"},
	}, integration, "^TestI12_HandOver"},
	{"I24 a release turns synchronous_commit off by itself", []edit{
		{schema, "  IF granted IS NULL THEN\n    UPDATE locks", "  IF granted IS NULL THEN\n    PERFORM set_config('synchronous_commit', 'off', true);\n    UPDATE locks"},
	}, integration, "^TestI24_ReleaseLeaves"},
	{"I24 a release waits for the disk", []edit{
		{"internal/protocol/queries.go", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN ` + async + ` END", "NULL::pg_catalog.text"},
	}, integration, "^TestI24_ReleaseIs"},
	{"I20 a release changes its session", []edit{
		{"internal/protocol/queries.go", "`pg_catalog.set_config('synchronous_commit', 'off', true)`", "`pg_catalog.set_config('synchronous_commit', 'off', false)`"},
	}, integration, "^TestI24_ReleaseLeaves"},
	{"I10 I18 a break draws no token", []edit{
		{schema, "  UPDATE locks l SET token = break_lock.new_token, first_token = break_lock.new_token, expires_at", "  UPDATE locks l SET expires_at"},
	}, integration, "^TestI10_"},
	{"I10 a break ends a lease that was not named", []edit{
		{schema, "AND l.expires_at > clock_timestamp() AND coalesce(p_token BETWEEN l.first_token AND l.token, true)\n    FOR UPDATE;", "AND l.expires_at > clock_timestamp()\n    FOR UPDATE;"},
	}, integration, "^TestI10_"},
	{"trap 9: who gives up keeps a grant that came at that moment", []edit{
		{schema, "    over[i] := end_grant(head, p_grant_ids[i]);\n", ""},
	}, integration, "^TestLeaveAgainst"},
	{"trap 9: a late request for a grant ID that was given up gets its ticket", []edit{
		{schema, "  IF head.spent_until > clock_timestamp() AND EXISTS", "  IF false AND EXISTS"},
	}, integration, "^TestTrap9_Late"},
	{"trap 9: giving up leaves the head as it was", []edit{
		{schema, "    UPDATE locks l SET spent_until = clock_timestamp() + interval '1 hour' WHERE l.name = p_name AND l.slot = 0;\n", ""},
	}, integration, "^TestTrap9_Late|^TestI6_NoWay"},
	{"I25 requests are given up in the order of the database's language", []edit{
		{schema, "    SELECT g.name COLLATE \"C\" AS name, array_agg(", "    SELECT g.name AS name, array_agg("},
	}, integration, "^TestI25_Calls"},
	{"modes: who gives up keeps those behind waiting", []edit{
		{schema, "told(p_name, CASE WHEN head.name IS NOT NULL THEN serve(head, NULL, NULL) END, p_session_id, NULL);\n  give_up_one", "told(p_name, NULL::int[], p_session_id, NULL);\n  give_up_one"},
	}, integration, "^TestReadersBehind|^TestTrap9_|^TestAWaiter"},
	{"a lost lease does not know that it was taken over", []edit{
		{schema, "    PERFORM note_takeover(l, last, w.holder) FROM", "    PERFORM FROM"},
	}, integration, "^TestALostBlock"},
}
