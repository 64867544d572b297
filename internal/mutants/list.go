package main

const (
	protocol    = "migrations/000001_foundation.up.sql"
	queue       = "migrations/000002_queue.up.sql" // has most functions anew
	speed       = "migrations/000004_speed.up.sql" // has some of them once more, and short ways round others
	integration = "./integration"
	library     = "./pglock"
)

// all are the known faults. The first word names the invariant or the trap.
var all = []mutant{
	{"I1 expiry guards dropped", []edit{
		{queue, "AND l.top_slot = 0 AND l.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED", "AND l.top_slot = 0 FOR UPDATE SKIP LOCKED"},
		{queue, "OR r.expires_at > clock_timestamp() OR ended IS NULL", "OR ended IS NULL"},
		{queue, "    IF r.expires_at <= clock_timestamp() THEN\n      IF r.grant_id = p_grant_id THEN", "    IF FOUND THEN\n      IF r.grant_id = p_grant_id THEN"},
		{queue, "        WHERE l.expires_at <= clock_timestamp() AND l.top_slot = 0 AND r.name IS NOT NULL   -- else look who queues for it\n", ""},
	}, integration, "^TestI1_"},
	{"I1 trap 4: guard of ON CONFLICT dropped", []edit{
		{queue, "        WHERE l.expires_at <= clock_timestamp() AND l.top_slot = 0 AND r.name IS NOT NULL   -- else look who queues for it\n", ""},
	}, integration, "^TestTrap4_|^TestI1_Simultaneous"},
	{"trap 4: guard decides on the statement's snapshot", []edit{
		{queue, "        WHERE l.expires_at <= clock_timestamp() AND l.top_slot = 0 AND r.name IS NOT NULL   -- else look who queues for it\n",
			"        WHERE NOT EXISTS (SELECT FROM locks o WHERE o.name = p_name AND o.expires_at > clock_timestamp())\n"},
	}, integration, "^TestTrap4_"},
	{"I2 trap 1: token = EXCLUDED.token", []edit{
		{queue, "token = next_token(l.token),\n        ttl", "token = EXCLUDED.token,\n        ttl"},
	}, integration, "^TestTrap1_"},
	{"I2 token = EXCLUDED.token, history", []edit{
		{queue, "token = next_token(l.token),\n        ttl", "token = EXCLUDED.token,\n        ttl"},
	}, integration, "^TestI2_HistoryIsLinearizable"},
	{"I2 trap 2: release deletes the row", []edit{
		{speed, "    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()\n      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp()",
			"    DELETE FROM locks l\n      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp()"},
	}, integration, "^TestTrap2_"},
	{"I2 sequence with CACHE 32", []edit{
		{protocol, "NO CYCLE CACHE 1;", "NO CYCLE CACHE 32;"},
	}, integration, "^TestTenProcesses|^TestI6_Lost"},
	{"I3 fence compares <= instead of <", []edit{
		{speed, "WHERE f.last_token < p_token\n", "WHERE f.last_token <= p_token\n"},
	}, integration, "^TestI3_NoWrite"},
	{"I3 fence without a WHERE", []edit{
		{speed, "      WHERE f.last_token < p_token\n         OR p_allow_same_token AND f.last_token = p_token AND f.grant_id = p_grant_id\n", ""},
	}, integration, "^TestI3_NoWrite"},
	{"I4 I18 trap 5: COMMIT reads the lock row plainly", []edit{
		{speed, "AND l.token = NEW.last_token FOR KEY SHARE;", "AND l.token = NEW.last_token;"},
	}, integration, "^TestI4_I18_"},
	{"I4 COMMIT reads plainly: a takeover slips in", []edit{
		{speed, "AND l.token = NEW.last_token FOR KEY SHARE;", "AND l.token = NEW.last_token;"},
	}, integration, "^TestI4_NoTakeover"},
	{"I4 trigger not ENABLE ALWAYS", []edit{
		{protocol, "ALTER TABLE fences ENABLE ALWAYS TRIGGER fence_commit;", ""},
	}, integration, "^TestI4_I18_"},
	{"I4 trap 3: COMMIT compares with now()", []edit{
		{speed, "IS DISTINCT FROM NEW.grant_id OR r.expires_at <= clock_timestamp()", "IS DISTINCT FROM NEW.grant_id OR r.expires_at <= now()"},
	}, integration, "^TestI4_I18_"},
	{"I4 seal does not queue the check again", []edit{
		{protocol, "  IF current_setting('pglock.checked', true) = xact THEN", "  IF false THEN"},
	}, integration, "^TestI4_Constraints"},
	{"I4 I18 release changes no key", []edit{
		{speed, "          AND current_setting('transaction_isolation') = 'read committed'\n        FOR UPDATE) f;", "          AND current_setting('transaction_isolation') = 'read committed') f;"},
	}, integration, "^TestI4_I18_"},
	{"I4 I18 release of a slot changes no key", []edit{
		{queue, "AND l.grant_id = p_grant_id AND l.slot = p_slot FOR UPDATE;", "AND l.grant_id = p_grant_id AND l.slot = p_slot;"},
	}, integration, "^TestI4_"},
	{"I5 release without the grant ID", []edit{
		{speed, "WHERE l.ctid = h.at AND l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id AND p_slot = 0", "WHERE l.ctid = h.at AND l.name = p_name AND l.token = p_token AND p_slot = 0"},
	}, integration, "^TestI5_"},
	{"I5 release of a slot without the grant ID", []edit{
		{queue, "l.token = p_token AND l.grant_id = p_grant_id AND l.slot = p_slot FOR UPDATE;", "l.token = p_token AND l.slot = p_slot FOR UPDATE;"},
	}, integration, "^TestI5_"},
	{"I5 heartbeat without the grant ID", []edit{
		{speed, "      WHERE l.token = a.token AND l.grant_id = a.grant_id AND l.expires_at > clock_timestamp()\n      ORDER BY", "      WHERE l.token = a.token AND l.expires_at > clock_timestamp()\n      ORDER BY"},
	}, integration, "^TestI5_"},
	{"I5 heartbeat of version 3 without the grant ID", []edit{
		{queue, "AND l.grant_id = a.grant_id\n      WHERE l.expires_at > clock_timestamp()\n      ORDER BY l.name, l.token FOR NO KEY UPDATE", "\n      WHERE l.expires_at > clock_timestamp()\n      ORDER BY l.name, l.token FOR NO KEY UPDATE"},
	}, integration, "^TestI5_"},
	{"I6 new grant ID for each retry", []edit{
		{"pglock/acquire.go", "\t\tif giveUp == nil {\n", "\t\tq.grantID, _ = newGrantID()\n\t\tif giveUp == nil {\n"},
	}, integration, "^TestI6_LostAnswer"},
	{"I6 a refused retry forgets the attempt before", []edit{
		{"pglock/acquire.go", "\tif q.inDoubt {\n\t\tc.giveBack", "\tif err != nil && q.inDoubt {\n\t\tc.giveBack"},
	}, library, "^TestI6_"},
	{"I6 retry does not wait for the attempt before", []edit{
		{queue, "    IF p_retry THEN\n", "    IF false THEN\n"},
	}, integration, "^TestI6_RetryWaits"},
	{"I6 I17 replayed grant writes nothing", []edit{
		{queue, "        UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl\n          WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.token = r.token AND l.expires_at > clock_timestamp()\n          RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), 0, l.watched_until > clock_timestamp()\n          INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us, acquire.slot, acquire.watched;",
			"        SELECT true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), 0, false\n          INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us, acquire.slot, acquire.watched\n          FROM locks l WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();"},
		{queue, "        SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR NO KEY UPDATE;\n", ""},
		{queue, "    IF p_retry THEN\n", "    IF false THEN\n"},
	}, integration, "^TestI6_RetryIsConfirmed|^TestI17_Grant"},
	{"I7 deadline counted from the answer", []edit{
		{"pglock/acquire.go", "l.extend(g.seen, g.left, sooner())", "l.extend(c.now(), g.left, sooner())"},
	}, library, "^TestI7_"},
	{"I7 wall clock ignored", []edit{
		{"pglock/clock.go", "return i.mono >= t.mono || !i.wall.Before(t.wall)", "return i.mono >= t.mono"},
		{"pglock/clock.go", "return min(t.mono-i.mono, t.wall.Sub(i.wall))", "return t.mono - i.mono"},
	}, library, "^TestI7_"},
	{"I7 Valid waits for a callback", []edit{
		{"pglock/lease.go", "if ended == nil && expired {", "if ended == nil && expired && false {"},
	}, library, "^TestI7_"},
	{"I10 I18 break without a new token", []edit{
		{speed, "  UPDATE locks l SET token = next_token((SELECT max(o.token) FROM locks o WHERE o.name = p_name)),\n                     expires_at", "  UPDATE locks l SET expires_at"},
		{speed, "  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;\n  break_lock.watched", "  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0;\n  break_lock.watched"},
		{speed, "AND l.token = coalesce(t, tokens[1]) FOR UPDATE;", "AND l.token = coalesce(t, tokens[1]);"},
	}, integration, "^TestI10_"},
	{"I11 server does not check the TTL", []edit{
		{protocol, "IF p_ttl IS NULL OR p_ttl < interval '100 ms' OR p_ttl > interval '24 hours' THEN", "IF false THEN"},
	}, library, "^TestI11_"},
	{"I11 client does not check the name", []edit{
		{"pglock/options.go", "\tif err := checkText(\"name\", name, MaxNameBytes); err != nil {\n\t\treturn request{}, err\n\t}\n", ""},
	}, library, "^TestI11_"},
	{"I12 grants keep the session's synchronous_commit", []edit{
		{protocol, "    ignored := set_config('synchronous_commit', 'on', true);\n", "    NULL;\n"},
	}, integration, "^TestI12_"},
	{"I13 losers go on to ON CONFLICT", []edit{
		{queue, "        acquire.granted := false;\n        acquire.remaining_us := 0;\n", "        acquire.granted := false;\n        acquire.remaining_us := 0;\n        PERFORM FROM locks l WHERE l.name = p_name FOR UPDATE;\n"},
	}, integration, "^TestI13_"},
	{"I13 losers wait for the row", []edit{
		{queue, "AND l.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;", "AND l.expires_at <= clock_timestamp() FOR UPDATE;"},
	}, integration, "^TestI13_RefusedTryWaits"},
	{"I15 acquire again computes before the wait", []edit{
		{queue, "        expires_at = clock_timestamp() + p_ttl, ended_at = NULL", "        expires_at = now() + p_ttl, ended_at = NULL"},
	}, integration, "^TestI15_|^TestTrap3_Transaction"},
	{"I15 trap 3: renewal without locking first", []edit{
		{speed, "  PERFORM FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id FOR NO KEY UPDATE;\n", ""},
	}, integration, "^TestI15_|^TestTrap3_Renewal"},
	{"I16 trap 10: no idle_in_transaction_session_timeout", []edit{
		{queue, "set_config('idle_in_transaction_session_timeout', p_ms::text, true)", "''"},
	}, integration, "^TestI16_"},
	{"I16 trap 10: no statement_timeout", []edit{
		{queue, "set_config('statement_timeout', p_ms::text, true)", "''"},
	}, integration, "^TestI16_"},
	{"I16 no lock_timeout", []edit{
		{queue, "set_config('lock_timeout', p_ms::text, true)", "''"},
	}, integration, "^TestI16_Wait|^TestI16_FenceBounds"},
	{"I17 an unanswered COMMIT is called a failure", []edit{
		{"fencedstore/store.go", "\treturn s.resolve(ctx, xact, err)\n", "\treturn err\n"},
	}, integration, "^TestI17_"},
	{"I17 a commit without its standby is called done", []edit{
		{"fencedstore/store.go", "case err == nil && unconfirmed:", "case err == nil && unconfirmed && false:"},
	}, integration, "^TestI17_Cancelled"},
	{"I17 a grant without its standby is answered", []edit{
		{"pglock/pgstore.go", "\t\treturn errUnconfirmed\n", "\t\treturn nil\n"},
	}, integration, "^TestI17_Grant"},
	{"I19 no explicit READ COMMITTED", []edit{
		{protocol, "IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN", "IF false THEN"},
		{"pglock/client.go", "store.explicit.Store(isolation != \"read committed\")", "_ = isolation"},
		{"pglock/pgstore.go", "!transient(err) || attempt == attempts", "true || attempt == attempts"},
	}, integration, "^TestI19_"},
	{"I21 prune without the table lock", []edit{
		{queue, "  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;\n", ""},
	}, integration, "^TestI21_"},
	{"I24 release turns synchronous_commit off by itself", []edit{
		{speed, "      RETURNING true, l.watched_until > clock_timestamp() INTO released, watched;\n    IF FOUND THEN\n",
			"      RETURNING true, l.watched_until > clock_timestamp() INTO released, watched;\n    IF FOUND THEN\n      PERFORM set_config('synchronous_commit', 'off', true);\n"},
	}, integration, "^TestI24_ReleaseLeaves"},
	{"I24 release waits for the disk", []edit{
		{"pglock/queries.go", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END", "NULL::text"},
	}, integration, "^TestI24_ReleaseIs"},
	{"I25 acquire advances the fence", []edit{
		{queue, "      IF ended > '-infinity' THEN", "      UPDATE fences SET last_token = acquire.token WHERE resource = p_name;\n      IF ended > '-infinity' THEN"},
	}, integration, "^TestI25_"},
	{"trap 8: a late renewal revives", []edit{
		{"pglock/lease.go", "\tif l.ended != nil {\n\t\treturn\n\t}\n", "\tl.ended = nil\n"},
	}, library, "^TestTrap8_"},
	{"trap 9: a cancelled acquire keeps the grant", []edit{
		{"pglock/acquire.go", "\t\tc.giveBack(q.request, q.grantID) // it may have been granted, or may yet be: nobody would know that they hold it\n", ""},
	}, integration, "^TestTrap9_CancelledAcquire"},
}
