package main

// ofHistory are the faults of the history and of its check.
var ofHistory = []mutant{
	{"a level that is not changed in time is not said to be in use", []edit{
		{"lockadmin/level.go", "inUse && (ctx.Err() != nil || pause.OutOfTime(ctx))", "inUse && ctx.Err() != nil"},
	}, "./lockadmin", "^TestATableInUse"},
	{"history: a release is not recorded", []edit{
		{schema, "      NEW.grants = OLD.grants AND NEW.token = OLD.token AND NEW.expires_at = '-infinity'\n      OR ",
			"      "},
	}, administration, "^TestAtLevelAll"},
	{"history: a break is recorded twice", []edit{
		{schema, "NEW.grants = OLD.grants AND NEW.token = OLD.token AND NEW.expires_at = '-infinity'",
			"NEW.grants = OLD.grants AND NEW.expires_at = '-infinity'"},
	}, administration, "^TestAtLevelAll"},
	{"history: a takeover is recorded twice", []edit{
		{schema, "OR NEW.grants <> OLD.grants AND OLD.ended_at IS DISTINCT FROM OLD.expires_at",
			"OR NEW.grants <> OLD.grants"},
	}, administration, "^TestAtLevelAll"},
	{"history: a hand-over looks like an overlap", []edit{
		{schema, "    ended_at = CASE WHEN p_handed THEN clock_timestamp() ELSE l.ended_at END,\n", ""},
	}, administration, "^TestAtLevelAll"},
	{"history: every grant looks like a hand-over", []edit{
		{schema, "    ended_at = CASE WHEN p_handed THEN clock_timestamp() ELSE l.ended_at END,\n",
			"    ended_at = clock_timestamp(),\n"},
		{schema, "granted AND NEW.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at;", "granted;"},
	}, administration, "^TestVerifyFindsWhatABrokenServer"},
	{"history: a hand-over ends after its grant", []edit{
		{schema, "CASE WHEN handed THEN NEW.acquired_at WHEN", "CASE WHEN handed THEN NEW.acquired_at + interval '1 " +
			"us' WHEN"},
	}, administration, "^TestAtLevelAll|^TestVerifyFindsNothing"},
	{"history: a takeover ends with the next grant", []edit{
		{schema, "l.acquired_at,\n        l.expires_at, l.grants, l.subtree\n      FROM locks l WHERE l.ctid = p_at",
			"l.acquired_at,\n        clock_timestamp(), l.grants, l.subtree\n      FROM locks l WHERE l.ctid = p_at"},
	}, administration, "^TestTheTenureOf"},
	{"history: a lease that expired goes with its row", []edit{
		{schema, "FROM gone g WHERE g.expires_at > '-infinity')", "FROM gone g WHERE false)"},
	}, administration, "^TestAtTheDefault"},
	{"history: the default records everything", []edit{
		{schema, "ALTER TABLE locks DISABLE TRIGGER note_tenure;", ""},
	}, administration, "^TestAtTheDefault"},
	{"history: a release fails with its record", []edit{
		{schema, "EXCEPTION WHEN OTHERS THEN\n  RAISE WARNING 'the history lacks", "EXCEPTION WHEN division_by_zero " +
			"THEN\n  RAISE WARNING 'the history lacks"},
	}, administration, "^TestAReleaseGoesOn"},
	{"a grant that a failover has lost was released", []edit{
		{schema, "l.token > p_token AND l.token >> 36 = p_token >> 36;", "l.token > p_token;"},
	}, library, "^TestGrantThatAFailover"},
	{"history: a lost lease waits for it as long as it is locked", []edit{
		{schema, "SET plan_cache_mode = force_custom_plan SET lock_timeout = '100ms'\nAS $$",
			"SET plan_cache_mode = force_custom_plan\nAS $$"},
	}, library, "^TestLostLeaseWhoseEnd"},
	{"history: each lost lease of a statement waits for it", []edit{
		{schema, "  IF current_setting('pglock.history_locked', true) = statement_timestamp()::text THEN\n    RETURN " +
			"'unread';\n  END IF;\n", ""},
	}, library, "^TestStatementWaitsOnce"},
	{"history: each release of a statement waits for it", []edit{
		{schema, "  IF current_setting('pglock.history_locked', true) = statement_timestamp()::text THEN\n    LOCK " +
			"TABLE events IN ROW EXCLUSIVE MODE NOWAIT;\n  END IF;\n  INSERT", "  INSERT"},
	}, library, "^TestReleasesAndGrants"},
	{"history: a release waits for it to grant over a lease of the head", []edit{
		{schema, " OR p_grant_id IS NULL AND p_head.expires_at > '-infinity' AND NOT history_open();", ";"},
	}, library, "^TestEndGoesOn"},
	{"history: a release waits for it to grant over a slot's lease", []edit{
		{schema, "THEN (SELECT NOT p_ended OR history_open()) ELSE", "THEN true ELSE"},
	}, library, "^TestEndGoesOn"},
	{"history: who sets the mark keeps a release out of it", []edit{
		{schema, "    LOCK TABLE events IN ROW EXCLUSIVE MODE NOWAIT;\n  END IF;\n  INSERT",
			"    RETURN NULL;\n  END IF;\n  INSERT"},
	}, administration, "^TestNobodyKeepsARelease"},
	{"history: a grant of slots waits for it without an entry", []edit{
		{schema, "  IF EXISTS (SELECT FROM locks l WHERE l.name = lock AND l.slot = ANY (p_slots) AND l.expires_at > " +
			"'-infinity') THEN\n", "  IF true THEN\n"},
	}, library, "^TestReleasesAndGrants"},
	{"history: a slot's grants are not counted", []edit{
		{schema, "metadata = EXCLUDED.metadata, grants = l.grants + 1,", "metadata = EXCLUDED.metadata,"},
	}, administration, "^TestAtLevelAll"},
	{"history: the first statement counts no grants", []edit{
		{schema, "grants = l.grants OPERATOR(pg_catalog.+) 1, slowest = NULL", "slowest = NULL"},
	}, administration, "^TestLocksTell"},
	{"history: the slowest renewal is the last", []edit{
		{schema, "UPDATE locks l SET renewed_at = clock_timestamp(), slowest = GREATEST(l.slowest, clock_timestamp() " +
			"- l.renewed_at),",
			"UPDATE locks l SET renewed_at = clock_timestamp(), slowest = clock_timestamp() - l.renewed_at,"},
	}, administration, "^TestLocksTell"},
	{"history: a grant keeps the slowest renewal", []edit{
		{
			schema,
			"metadata = w.metadata, grants = l.grants + 1, slowest = NULL, queued",
			"metadata = w.metadata, grants = l.grants + 1, queued",
		},
	}, administration, "^TestLocksTell"},
	{"history: a step of pruning has no bound", []edit{
		{schema, "      WHERE e.at <= clock_timestamp() ORDER BY e.id LIMIT p_limit) p;",
			"      WHERE e.at <= clock_timestamp()) p;"},
	}, administration, "^TestTheHistoryIsPruned"},
	{"history: what is pruned leaves no mark while somebody has locked the record", []edit{
		{schema, "IF (SELECT i.history_pruned >= upto FROM installation i) IS NOT TRUE THEN", "IF false THEN"},
	}, administration, "^TestNoEntryGoes"},
	{"history: a prune that finds nothing old locks the record", []edit{
		{schema, "removed := 0; IF aged IS NULL THEN RETURN; END IF;", "removed := 0;"},
	}, administration, "^TestAPruneThatFindsNothing"},
	{"history: entries of a time to come hold up all others", []edit{
		{schema, "      WHERE e.at <= clock_timestamp() ORDER BY e.id", "      ORDER BY e.id"},
	}, administration, "^TestEntriesOfATimeToCome"},
	{"history: clients do not prune", []edit{
		{schema, "IF p_history THEN BEGIN", "IF false THEN BEGIN"},
	}, administration, "^TestTheHistoryIsPruned"},
	{"history: a change of the level waits for everybody", []edit{
		{schema, "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = " +
			"'100ms'\nAS $$\nDECLARE\n  ok  boolean", "LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path " +
			"FROM CURRENT SET lock_timeout = 0\nAS $$\nDECLARE\n  ok  boolean"},
	}, administration, "^TestTheLevelIsChanged"},
	{"verify: an overlap is passed over", []edit{
		{"lockadmin/replay.go", "return !o.EndedAt.After(t.GrantedAt) })", "return true })"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: one more than the limit is within it", []edit{
		{"lockadmin/replay.go", "if limited >= limit && limited > 0 {", "if limited > limit && limited > 0 {"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: readers may share a slot", []edit{
		{"lockadmin/replay.go", "t.Mode == pglock.ModeShared && o.Slot != t.Slot:", "t.Mode == pglock.ModeShared:"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: a row's order tells nothing", []edit{
		{"lockadmin/replay.go", "case known && t.ID < before.ID && t.Number <= before.Number:", "case false:"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: a clock that was set back is an overlap", []edit{
		{"lockadmin/replay.go", "return s.id > after && ", "return false && s.id > after && "},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: any step of the clock explains everything", []edit{
		{"lockadmin/replay.go", "return s.id > after && s.id <= id && !s.from.Before(moment) && s.to.Before(moment)",
			"return s.id != after+id+moment.Unix()"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: a step of the clock explains what was granted later", []edit{
		{"lockadmin/replay.go", "t.after = before.ID", "t.after = 0"},
	}, administration, "^TestVerifyFindsWhatIsWrong"},
	{"verify: gaps are not counted", []edit{
		{"lockadmin/replay.go", "	r.found.GapCount++\n", "	return\n"},
	}, administration, "^TestVerify"},
	{"verify: every gap has a good cause", []edit{
		{"lockadmin/replay.go", "		return GapUnknown\n", "		return GapLevel\n"},
	}, administration, "^TestVerifyExplainsGaps"},
	{"verify: the present does not count", []edit{
		{schema, "CASE WHEN l.expires_at = '-infinity' THEN 'free' WHEN l.expires_at <= now() THEN 'over' ELSE " +
			"'held' END", "'free'"},
	}, administration, "^TestVerifyCompares"},
	{"verify: the present is not beside the next page", []edit{
		{"lockadmin/verify.go", "		for _, last = range page {\n", "		r.active = nil\n		for _, last " +
			"= range page {\n"},
	}, administration, "^TestVerifyComparesTenuresOfDifferentPages"},
}
