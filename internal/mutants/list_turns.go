package main

// ofTurns are the faults of grants that carry several tokens, and of the lines of calls that use them.
var ofTurns = []mutant{
	{"I2 a block reaches over tokens of others", []edit{
		{schema, "    EXIT WHEN nextval('fencing_token_seq') <> low + n;\n", "    PERFORM nextval('fencing_token_seq');\n"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I2 a block is as long as it was asked for", []edit{
		{schema, "    EXIT WHEN nextval('fencing_token_seq') <> low + n;\n", ""},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I2 a block begins with the token before it", []edit{
		{schema, "    token = last, first_token = first, grant_id = w.grant_id,", "    token = last, first_token = first - 1, grant_id = w.grant_id,"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks|^TestI3_Each"},
	{"I2 the block of a new name has one token", []edit{
		{schema, "    UPDATE locks l SET token = a.token WHERE l.name = w.name AND l.slot = 0;\n", ""},
	}, integration, "^TestI2_Blocks|^TestI6_TheSame|^TestI3_Each|^TestI2_ABlock"},
	{"I6 the same request again is told of one token", []edit{
		{schema, "  RETURN ROW(true, r.token, r.first_token, r.slot,", "  RETURN ROW(true, r.token, r.token, r.slot,"},
	}, integration, "^TestI6_TheSame"},
	{"turns: a waiter's are forgotten", []edit{
		{schema, "  last  bigint := CASE WHEN w.turns > 1 THEN last_of_block(first, w.turns) ELSE first END;", "  last  bigint := CASE WHEN w.turns > 1 AND w.ticket = 0 THEN last_of_block(first, w.turns) ELSE first END;"},
	}, integration, "^TestAWaiter"},
	{"turns: a hint tells of one token", []edit{
		{schema, "microseconds_until(r.expires_at), r.first_token);", "microseconds_until(r.expires_at), r.token);"},
	}, integration, "^TestAWaiter"},

	// What a token of a block may do.
	{"I3 no token but the last passes the fence", []edit{
		{schema, "      AND p_token BETWEEN l.first_token AND l.token;\n  res := coalesce(", "      AND p_token = l.token;\n  res := coalesce("},
	}, integration, "^TestI3_Each"},
	{"I3 any token passes the fence with the right grant ID", []edit{
		{schema, "      AND p_token BETWEEN l.first_token AND l.token;\n  res := coalesce(", "      ;\n  res := coalesce("},
		{schema, "    AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp();\n  IF NOT FOUND", "    AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();\n  IF NOT FOUND"},
	}, integration, "^TestI3_Each"},
	{"I4 COMMIT knows no turns", []edit{
		{schema, "f.last_token NOT BETWEEN r.first_token AND r.token", "f.last_token <> r.token"},
	}, integration, "^TestI4_I10_I18_CommitOfATurn"},
	{"I4 I10 COMMIT of a turn takes whatever lease there is", []edit{
		{schema, "r.grant_id <> f.grant_id OR f.last_token NOT BETWEEN r.first_token AND r.token\n     OR r.expires_at", "r.expires_at"},
	}, integration, "^TestI4_I10_I18_"},
	{"I5 a renewal knows no turns", []edit{
		{schema, "      AND p_token BETWEEN l.first_token AND l.token\n    FOR NO KEY UPDATE;", "      AND p_token = l.token\n    FOR NO KEY UPDATE;"},
	}, integration, "^TestI5_Any"},
	{"I5 a renewal for many knows no turns", []edit{
		{schema, "      WHERE l.grant_id = a.grant_id AND a.token BETWEEN l.first_token AND l.token AND", "      WHERE l.grant_id = a.grant_id AND a.token = l.token AND"},
	}, integration, "^TestI5_Any"},
	{"I5 a check knows no turns", []edit{
		{schema, "        AND a.token BETWEEN l.first_token AND l.token AND l.expires_at", "        AND a.token = l.token AND l.expires_at"},
	}, integration, "^TestI5_Any"},
	{"I5 a release knows no turns", []edit{
		{schema, "        AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token\n      ORDER BY", "        AND l.grant_id = p_grant_id AND p_token = l.token\n      ORDER BY"},
	}, integration, "^TestI5_Any"},
	{"I10 a break knows no turns", []edit{
		{schema, "coalesce(p_token BETWEEN l.first_token AND l.token, true)\n    FOR UPDATE;", "coalesce(p_token = l.token, true)\n    FOR UPDATE;"},
	}, integration, "^TestI10_Break"},
	{"a lost turn does not know why", []edit{
		{schema, "coalesce(o.first_token, o.token) AS first_token FROM events o", "o.token AS first_token FROM events o"},
	}, integration, "^TestALostBlock"},
	{"a turn of a released block does not know why it is lost", []edit{
		{schema, "AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token;\n  IF FOUND THEN\n    RETURN CASE", "AND l.grant_id = p_grant_id AND p_token = l.token;\n  IF FOUND THEN\n    RETURN CASE"},
	}, integration, "^TestALostBlock"},

	// Lines of calls.
	{"I9 a block of turns has no end in time", []edit{
		{"internal/handoff/lines.go", "b.next > b.last || now.Reached(b.until) || t.known {", "b.next > b.last || t.known {"},
	}, library, "^TestI9_AWaiter"},
	{"I9 a block of turns lasts for seconds", []edit{
		{"pglock/validate.go", "DefaultTurnsWithin = 20 * time.Millisecond", "DefaultTurnsWithin = 2 * time.Second"},
	}, library, "^TestI9_AWaiterOfAnother"},
	{"a line whose only other call has given up keeps its agent", []edit{
		{"internal/handoff/lines.go", "\tcase line.agent:\n\t\tline.signal() // also when", "\tcase line.agent && len(line.calls) == 0:\n\tcase line.agent:\n\t\tline.signal() // also when"},
	}, library, "^TestLineWhose"},
	{"I4 a lease whose grant ID is known is passed on in memory", []edit{
		{"internal/handoff/lines.go", "now.Reached(b.until) || t.known {", "now.Reached(b.until) {"},
	}, library, "^TestI4_ALease"},
	{"I7 a turn is trusted longer than its grant", []edit{
		{"pglock/leases.go", "\tnext.deadline, next.due, next.expiresAt = l.deadline, l.due, l.expiresAt\n", "\tnext.deadline, next.due, next.expiresAt = l.deadline.Add(l.ttl), l.due, l.expiresAt\n"},
	}, library, "^TestI7_TrustInATurn"},
	{"I5 a turn that has ended is ended again for its successor", []edit{
		{"pglock/leases.go", "\tl.ended = ErrReleased\n\tl.owner.held.Add(-1)\n", "\tl.owner.held.Add(-1)\n"},
	}, library, "^TestI5_"},
	{"circles: an owner that comes to hold a lock stays in the line", []edit{
		{"pglock/turns.go", "bool { return call.owner.Nested() }", "bool { return false && call.owner.Nested() }"},
	}, library, "^TestOwnerThatComes"},
	{"trap 9: a grant that comes for a line that nobody is in is kept", []edit{
		{"pglock/turns.go", "\tif err == nil && len(calls) == 0 {\n", "\tif err == nil && len(calls) == 0 && false {\n"},
	}, library, "^TestTrap9_AGrant"},
}
