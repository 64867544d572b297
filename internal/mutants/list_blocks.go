package main

func init() { all = append(all, ofBlocks...) }

// ofBlocks are the faults of grants that carry several tokens.
var ofBlocks = []mutant{
	{"I2 a block reaches over tokens of others", []edit{
		{speed, "coalesce(max(d.token) FILTER (WHERE d.token = p_first + d.n), p_first)", "coalesce(max(d.token), p_first)"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I2 a block is as long as it was asked for", []edit{
		{speed, "    SELECT coalesce(max(d.token) FILTER (WHERE d.token = p_first + d.n), p_first)\n", "    SELECT coalesce(p_first + max(d.n), p_first)\n"},
	}, integration, "^TestI2_ABlockEnds|^TestI2_Blocks"},
	{"I22 a block's tokens have no epoch", []edit{
		{speed, "SELECT (i.epoch << 44) + nextval('fencing_token_seq') AS token, n", "SELECT nextval('fencing_token_seq') AS token, n"},
	}, integration, "^TestI22_Blocks"},
	{"I2 a block begins with the token before it", []edit{
		{speed, "ELSE int8range(acquire_lease.first_token, r.above, '[]') END,", "ELSE int8range(acquire_lease.first_token - 1, r.above, '[]') END,"},
	}, integration, "^TestI3_Each"},
	{"I2 a block of the queue begins with the token before it", []edit{
		{speed, "token = last, block = CASE WHEN w.turns > 1 THEN int8range(first, last, '[]') ELSE l.block END,", "token = last, block = CASE WHEN w.turns > 1 THEN int8range(first - 1, last, '[]') ELSE l.block END,"},
	}, integration, "^TestAWaiter"},
	{"I2 a block of a careful hand-over begins with the token before it", []edit{
		{speed, "token = got, block = CASE WHEN w.turns > 1 THEN int8range(first, got, '[]') ELSE l.block END,", "token = got, block = CASE WHEN w.turns > 1 THEN int8range(first - 1, got, '[]') ELSE l.block END,"},
	}, integration, "^TestAWaiter"},
	{"I2 a block ends with the token before its last", []edit{
		{speed, "SET block = int8range(p_token, last, '[]'), token = last", "SET block = int8range(p_token, last, '[)'), token = last"},
	}, integration, "^TestI6_TheSame|^TestI3_Each"},
	{"I6 the same request again draws another block", []edit{
		{speed, "    IF NOT FOUND THEN\n      acquire_lease.first_token := acquire_lease.token;", "    IF true THEN\n      acquire_lease.first_token := acquire_lease.token;"},
	}, integration, "^TestI6_TheSame"},
	{"I2 a new grant is answered with the first token of an old block", []edit{
		{speed, "AND l.token = acquire_lease.token AND upper(l.block) = l.token + 1;\n    IF NOT FOUND", "AND l.token = acquire_lease.token AND l.block IS NOT NULL;\n    IF NOT FOUND"},
	}, integration, "^TestI2_ABlockAfter"},
	{"turns: a waiter's are forgotten", []edit{
		{speed, "    UPDATE waiters q SET turns = p_turns WHERE q.grant_id = p_grant_id;", "    NULL;"},
	}, integration, "^TestAWaiter"},
	{"turns: a short ticket's are forgotten", []edit{
		{speed, "p_holder, p_ttl, p_metadata, clock_timestamp(), p_turns\n", "p_holder, p_ttl, p_metadata, clock_timestamp(), 1\n"},
	}, integration, "^TestI8_ShortTicket"},
	{"turns: a hint tells of a block that was", []edit{
		{speed, "CASE WHEN upper(p_block) = p_token + 1 THEN ' ' || lower(p_block) ELSE '' END $$;", "coalesce(' ' || lower(p_block), '') $$;"},
	}, integration, "^TestAWaiter"},
	{"turns: announce tells of no block", []edit{
		{speed, "hint(l.grant_id, l.token, l.slot, l.expires_at - clock_timestamp(), l.block) AS payload", "hint(l.grant_id, l.token, l.slot, l.expires_at - clock_timestamp()) AS payload"},
	}, integration, "^TestAWaiter"},
	{"turns: announce_next tells of no block", []edit{
		{speed, "hint(l.grant_id, l.token, 0, l.expires_at - clock_timestamp(), l.block));", "hint(l.grant_id, l.token, 0, l.expires_at - clock_timestamp()));"},
	}, integration, "^TestAWaiter"},
	{"turns: an answer tells of no block", []edit{
		{speed, "hint(w.grant_id, last, 0, w.ttl, CASE WHEN w.turns > 1 THEN int8range(first, last, '[]') END)", "hint(w.grant_id, last, 0, w.ttl)"},
	}, integration, "^TestAWaiter"},

	// What a token of a block may do.
	{"I3 any token passes the fence with the right grant ID", []edit{
		{speed, "l.grant_id = p_grant_id\n                     AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);", "l.grant_id = p_grant_id), p_token);"},
	}, integration, "^TestI3_Each"},
	{"I5 I10 a block is known by its tokens alone", []edit{
		{speed, "l.slot = 0 AND l.grant_id = p_grant_id\n                     AND l.block @> p_token", "l.slot = 0\n                     AND l.block @> p_token"},
		{speed, "FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id;\n  END IF;\n  IF slot > 0", "FROM locks l WHERE l.name = p_name AND l.token = t;\n  END IF;\n  IF slot > 0"},
	}, integration, "^TestI3_Each"},
	{"I3 a block's end is the token after it", []edit{
		{speed, "                     AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);", "AND (l.block @> p_token OR upper(l.block) = p_token) AND upper(l.block) = l.token + 1), p_token);"},
	}, integration, "^TestI3_Each"},
	{"I3 no token but the last passes the fence", []edit{
		{speed, "                     AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);", "                     AND l.block @> p_token AND upper(l.block) = l.token), p_token);"},
	}, integration, "^TestI3_Each"},
	{"I4 COMMIT knows no turns", []edit{
		{speed, "AND l.grant_id = NEW.grant_id AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1\n      FOR KEY SHARE;", "AND false\n      FOR KEY SHARE;"},
	}, integration, "^TestI4_I10_I18_CommitOfATurn"},
	{"I4 COMMIT of a turn reads plainly", []edit{
		{speed, "AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1\n      FOR KEY SHARE;", "AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1;"},
	}, integration, "^TestI4_I10_I18_CommitOfATurn"},
	{"I4 COMMIT of a turn reads plainly: a release slips in", []edit{
		{speed, "AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1\n      FOR KEY SHARE;", "AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1;"},
	}, integration, "^TestI4_NobodyEnds"},
	{"I10 COMMIT of a turn takes any block of the grant ID, of any time", []edit{
		{speed, "AND l.grant_id = NEW.grant_id AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1\n      FOR KEY SHARE;", "AND l.block @> NEW.last_token\n      FOR KEY SHARE;"},
		{speed, "  IF r.token IS DISTINCT FROM NEW.last_token OR r.grant_id IS DISTINCT FROM NEW.grant_id OR r.expires_at <= clock_timestamp() THEN", "  IF r.token IS DISTINCT FROM NEW.last_token OR r.expires_at <= clock_timestamp() THEN"},
	}, integration, "^TestI4_I10_I18_CommitOfATurn"},
	{"I4 COMMIT under fences of many leases does not lock turns in order", []edit{
		{speed, "        AND (l.token = f.last_token OR l.slot = 0 AND l.block @> f.last_token AND upper(l.block) = l.token + 1) ORDER BY l.name, l.slot FOR KEY SHARE OF l;", "        AND l.token = f.last_token ORDER BY l.name, l.slot FOR KEY SHARE OF l;"},
	}, integration, "^TestI25_TurnsOfManyLeases"},
	{"I5 renew without the grant ID", []edit{
		{speed, "    WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp()\n    RETURNING", "    WHERE l.name = p_name AND l.token = t AND l.expires_at > clock_timestamp()\n    RETURNING"},
		{speed, "l.slot = 0 AND l.grant_id = p_grant_id\n                     AND l.block @> p_token", "l.slot = 0\n                     AND l.block @> p_token"},
	}, integration, "^TestI5_Any"},
	{"I5 check_lease without the grant ID", []edit{
		{speed, "WHERE l.name = p_name AND l.token = row_token(p_name, p_token, p_grant_id) AND l.grant_id = p_grant_id;", "WHERE l.name = p_name AND l.token = row_token(p_name, p_token, p_grant_id);"},
		{speed, "l.slot = 0 AND l.grant_id = p_grant_id\n                     AND l.block @> p_token", "l.slot = 0\n                     AND l.block @> p_token"},
	}, integration, "^TestI5_Any"},
	{"turns: renew knows none", []edit{
		{speed, "  t  bigint := row_token(p_name, p_token, p_grant_id);", "  t  bigint := p_token;"},
	}, integration, "^TestI5_Any"},
	{"turns: check_lease knows none", []edit{
		{speed, "l.token = row_token(p_name, p_token, p_grant_id) AND l.grant_id = p_grant_id;", "l.token = p_token AND l.grant_id = p_grant_id;"},
	}, integration, "^TestI5_Any"},
	{"turns: release knows none", []edit{
		{speed, "FROM release_carefully(p_name, row_token(p_name, p_token, p_grant_id), p_grant_id, p_slot) e;", "FROM release_carefully(p_name, p_token, p_grant_id, p_slot) e;"},
	}, integration, "^TestI5_Any"},
	{"I10 break_lock takes a token of a block that was", []edit{
		{speed, "l.slot = 0 AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);\n  SELECT array_agg", "l.slot = 0 AND l.block @> p_token), p_token);\n  SELECT array_agg"},
	}, integration, "^TestI10_Break"},
	{"I10 break_lock knows no turns", []edit{
		{speed, "  t := coalesce((SELECT l.token FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);", "  t := p_token;"},
	}, integration, "^TestI10_Break"},
	{"a lost turn does not know why", []edit{
		{speed, "    IF FOUND THEN\n      r.token := p_token;\n    END IF;", "    IF false THEN\n      r.token := p_token;\n    END IF;"},
	}, integration, "^TestALostBlock"},
}
