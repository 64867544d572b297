package main

// ofTurns are the faults of grants that carry several tokens, and of the lines of calls that use them.
var ofTurns = []mutant{
	{"turns: whoever leaves a line is told of the first call's own place", []edit{
		{"internal/handoff/lines.go", "\t\ta.Place++\n", ""},
	}, "./internal/handoff", "."},
	{"I2 a block reaches over tokens of others", []edit{
		{schema, "    EXIT WHEN (base << 36) + nextval('fencing_token_seq') <> last + 1;\n", "    PERFORM nextval('fencing_token_seq');\n"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I2 a block is as long as it was asked for", []edit{
		{schema, "    EXIT WHEN (base << 36) + nextval('fencing_token_seq') <> last + 1;\n", ""},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I2 a block begins with the token before it", []edit{
		{schema, "    token = t.last, first_token = nullif(t.first, t.last), grant_id", "    token = t.last, first_token = nullif(t.first - 1, t.last), grant_id"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks|^TestI3_Each"},
	{"I2 the block of a new name has one token", []edit{
		{schema, "      SELECT w.name, t.last, nullif(t.first, t.last), w.grant_id", "      SELECT w.name, t.last, NULL, w.grant_id"},
	}, integration, "^TestI2_Blocks|^TestI6_TheSame|^TestI3_Each|^TestI2_ABlock"},
	{"I6 the same request again is told of one token", []edit{
		{schema, "    g := ROW(mine.token, mine.first_token,", "    g := ROW(mine.token, NULL,"},
	}, integration, "^TestI6_TheSame"},
	{"turns: a waiter's are forgotten", []edit{
		{schema, "  t  record := draw_tokens(p_above, w.turns);", "  t  record := draw_tokens(p_above, CASE WHEN w.ticket = 0 THEN w.turns ELSE 1 END);"},
	}, integration, "^TestI1_I9_TakeOver"},
	{"turns: a hint tells of one token", []edit{
		{schema, "microseconds_until(r.expires_at), r.first_token, r.grant_id));", "microseconds_until(r.expires_at), r.token, r.grant_id));"},
	}, integration, "^TestAnnounceTells"},

	// What a token of a block may do.
	{"I3 no token but the last passes the fence", []edit{
		{schema, "      AND p_token BETWEEN coalesce(l.first_token, l.token) AND l.token;\n  res := coalesce(", "      AND p_token = l.token;\n  res := coalesce("},
	}, integration, "^TestI3_Each"},
	{"I3 any token passes the fence with the right grant ID", []edit{
		{schema, "      AND p_token BETWEEN coalesce(l.first_token, l.token) AND l.token;\n  res := coalesce(", "      ;\n  res := coalesce("},
		{schema, "WHERE l.ctid = r.at AND l.name = p_name AND l.slot = r.slot AND l.grant_id = p_grant_id AND p_token BETWEEN coalesce(l.first_token, l.token) AND l.token", "WHERE l.ctid = r.at AND l.name = p_name AND l.slot = r.slot AND l.grant_id = p_grant_id"},
	}, integration, "^TestI3_Each"},
	{"I4 COMMIT knows no turns", []edit{
		{schema, "AND NEW.last_token OPERATOR(pg_catalog.>=) COALESCE(l.first_token, l.token)", "AND NEW.last_token OPERATOR(pg_catalog.>=) l.token"},
	}, integration, "^TestI3_EachToken|^TestI4_NobodyEndsABlock"},
	{"I4 I10 COMMIT of a turn takes whatever lease there is", []edit{
		{schema, "    SELECT l.grant_id OPERATOR(pg_catalog.=) NEW.grant_id AND NEW.last_token OPERATOR(pg_catalog.<=) l.token\n           AND NEW.last_token OPERATOR(pg_catalog.>=) COALESCE(l.first_token, l.token)\n           AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at", "    SELECT true, l.expires_at"},
	}, integration, "^TestI4_I10_I18_"},
	{"I5 a renewal for many knows no turns", []edit{
		{schema, "      WHERE l.grant_id = a.grant_id AND a.token BETWEEN coalesce(l.first_token, l.token) AND l.token\n        AND is_running(l.expires_at, l.ended_at)\n      ORDER BY", "      WHERE l.grant_id = a.grant_id AND a.token = l.token\n        AND is_running(l.expires_at, l.ended_at)\n      ORDER BY"},
	}, integration, "^TestI5_Any"},
	{"I5 a check knows no turns", []edit{
		{schema, "l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id AND a.token BETWEEN coalesce(l.first_token, l.token) AND l.token", "l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id AND a.token = l.token"},
	}, integration, "^TestI5_Any"},
	{"I5 a release knows no turns", []edit{
		{schema, "        AND p_token BETWEEN coalesce(l.first_token, l.token) AND l.token AND coalesce(p_slot, 0) = 0", "        AND p_token = l.token AND coalesce(p_slot, 0) = 0"},
	}, integration, "^TestI5_Any"},
	{"I10 a break knows no turns", []edit{
		{
			schema,
			"AND coalesce(p_token BETWEEN coalesce(l.first_token, l.token) AND l.token, true); IF r.slot > 0",
			"AND coalesce(p_token = l.token, true); IF r.slot > 0",
		},
	}, integration, "^TestI10_Break"},
	{"a lost turn does not know why", []edit{
		{schema, "coalesce(o.first_token, o.token) AS first_token FROM events o", "o.token AS first_token FROM events o"},
	}, integration, "^TestALostBlock"},
	{"a turn of a released block does not know why it is lost", []edit{
		{schema, "AND l.grant_id = p_grant_id AND p_token BETWEEN coalesce(l.first_token, l.token) AND l.token;\n  IF FOUND THEN\n    RETURN CASE", "AND l.grant_id = p_grant_id AND p_token = l.token;\n  IF FOUND THEN\n    RETURN CASE"},
	}, integration, "^TestALostBlock"},

	// Lines of calls.
	{"I9 a block of turns has no end in time", []edit{
		{"internal/handoff/lines.go", "b.next > b.last || now.Reached(b.until) || t.known {", "b.next > b.last || t.known {"},
	}, library, "^TestI9_AWaiter"},
	{"I9 a block of turns lasts for seconds", []edit{
		{"pglock/validate.go", "DefaultTurnsWithin = 20 * time.Millisecond", "DefaultTurnsWithin = 2 * time.Second"},
	}, library, "^TestI9_AWaiterOfAnother"},
	{"a line whose only other call has given up keeps its agent", []edit{
		{"internal/handoff/lines.go", "\tcase line.agent:\n\t\tline.signal() // even without", "\tcase line.agent && len(line.calls) == 0:\n\tcase line.agent:\n\t\tline.signal() // also when"},
	}, library, "^TestLineWhose"},
	{"I4 a lease whose grant ID is known is passed on in memory", []edit{
		{"internal/handoff/lines.go", "now.Reached(b.until) || t.known {", "now.Reached(b.until) {"},
	}, library, "^TestI4_ALease"},
	{"I7 a turn is trusted longer than its grant", []edit{
		{"pglock/leases.go", "\tnext.deadline, next.due, next.asked, next.fresh, next.expiresAt = l.deadline, l.due, l.asked, l.fresh, l.expiresAt\n", "\tnext.deadline, next.due, next.expiresAt = l.deadline.Add(l.ttl), l.due, l.expiresAt\n"},
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
