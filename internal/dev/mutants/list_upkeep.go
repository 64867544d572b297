package main

// ofUpkeep are the faults of what operators do: pruning, migrating, looking.
var ofUpkeep = []mutant{
	{"I21 prune takes no lock of the table", []edit{
		{schema, "  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;\n", ""},
	}, integration, "^TestI21_PruneNever|^TestI21_PruneWaits|^TestI21_PruneBeside|^TestI21_PruneKeeps"},
	{"I21 prune forgets the greatest token", []edit{
		{schema, "  UPDATE installation i SET epoch = next_epoch(i.epoch, top, drawn) WHERE top > (i.epoch << 36) + " +
			"drawn;\n", ""},
	}, integration, "^TestI21_PruneKeeps"},
	{"I21 prune removes a lock that was granted while it waited for the table", []edit{
		{schema, "AND l.ended <= since AND", "AND"},
	}, command, "^TestI21_PruneLeaves"},
	{"I21 prune removes a lock that is queued for", []edit{
		{schema, " WHERE (SELECT q.name FROM waiters q WHERE q.name = m.name LIMIT 1) IS NULL AND l.n", " WHERE l.n"},
	}, integration, "^TestI21_PruneLeaves"},
	{"I21 prune removes a lock with readers", []edit{
		{schema, "max(GREATEST(o.ended_at, o.expires_at)) AS ended", "min(GREATEST(o.ended_at, o.expires_at)) AS " +
			"ended"},
	}, integration, "^TestI21_PruneLeaves"},
	{"I21 prune forgets grant IDs that were given up", []edit{
		{schema, "max(GREATEST(o.spent_until, o.watched_until)) AS", "max(o.watched_until) AS"},
	}, integration, "^TestI21_PruneLeaves"},
	{"prune removes a lock that somebody watches", []edit{
		{schema, "max(GREATEST(o.spent_until, o.watched_until)) AS", "max(o.spent_until) AS"},
	}, integration, "^TestI21_PruneLeaves"},
	{"I4 prune removes a lock of which one slot has a COMMIT under way", []edit{
		{
			schema,
			"AND l.n = m.n AND",
			"AND",
		},
	}, integration, "^TestI21_PruneLeaves"},
	{"I25 prune writes before it locks the table", []edit{
		{schema, "  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;\n", "  PERFORM settle(n) FROM unnest(names) n;\n  " +
			"LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;\n"},
	}, integration, "^TestI25_PrunesAtOnce"},
	{"prune goes through the names from the beginning again", []edit{
		{schema, "    next := names[p_limit];", "    next := p_after;"},
	}, command, "^TestPruneGoesOn|^TestPruneTakesTheTable"},
	{"sweep removes keys on the day they are kept no longer", []edit{
		{schema, "('done_keys', '1 day',", "('done_keys', '0',"},
	}, integration, "^TestOnceForgets"},
	{"a client's sweep reads all receipts", []edit{
		{schema, "o.ctid >= $3 AND o.ctid < $4 AND ", ""},
	}, integration, "^TestASweepOfAClient"},
	{"a client's sweep looks at the same receipts as the last", []edit{
		{schema, "p_limit * floor(random() *", "p_limit * floor(0 *"},
	}, integration, "^TestASweepOfAClient"},
	{"I25 sweep waits for what others have locked", []edit{
		{schema, "WHERE %2$s LIMIT $2 FOR UPDATE SKIP LOCKED))'", "WHERE %2$s LIMIT $2 FOR UPDATE))'"},
	}, integration, "^TestI25_Sweeping"},
	{"I25 sweep waits for whoever has locked the history", []edit{
		{schema, "      LOCK TABLE events IN ROW EXCLUSIVE MODE NOWAIT;\n      total", "      total"},
	}, integration, "^TestI25_Sweeping"},
	{"the doctor passes over a transaction that has written", []edit{
		{schema, "AND (a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname",
			"AND (a.backend_xmin IS NOT NULL AND a.datname"},
	}, integration, "^TestDoctorSees"},
	{"a migration does not look whether there is anything to do", []edit{
		{"migrations/session.go", "\tfor done := current(there); !done; {\n", "\tfor done := current(there) && " +
			"false; !done; {\n"},
	}, migrating, "^TestUpOfACurrent"},
	{"a migration does not look again when its turn has come", []edit{
		{"migrations/session.go", "\t\t\tif done = current(there); done {\n\t\t\t\treturn there.version, nil\n" +
			"\t\t\t}\n\t\t\tif there.version", "\t\t\tif there.version"},
	}, migrating, "^TestManyProcesses|^TestFifty"},
	{"a time limit of the user ends the wait for another migration", []edit{
		{"migrations/session.go", `tx.Exec(ctx, fmt.Sprintf(setLimits, "'0'"), limits)`, `tx.Exec(ctx, "SELECT")`},
	}, migrating, "^TestProgramsTakeTurns"},
	{"a migration goes on without the time limits of its user", []edit{
		{"migrations/session.go", `fmt.Sprintf(setLimits, "value"), limits)`, `"SELECT")`},
	}, migrating, "^TestProgramsTakeTurns"},
	{"a schema is made that no user may use", []edit{
		{schema, "IF NOT has_schema_privilege(here.oid, 'USAGE WITH GRANT OPTION') AND EXISTS (",
			"IF false AND EXISTS ("},
	}, migrating, "^TestUpRefusesASchemaThatIt"},
	{"a member with NOINHERIT is told to become a member", []edit{
		{"migrations/state.go", "e.Role, e.Member = \"pglock_user\", f.member", "e.Role = \"pglock_user\""},
	}, migrating, "^TestAMemberThat"},
	{"a client starts on a schema that serves it no more", []edit{
		{"pglock/backend.go", "found.version < SchemaVersion || servesFrom > SchemaVersion",
			"found.version < SchemaVersion"},
	}, library, "^TestClientRefusesASchema"},
	{"a client refuses a newer schema that serves it", []edit{
		{"pglock/backend.go", "found.version < SchemaVersion || servesFrom > SchemaVersion",
			"found.version != SchemaVersion"},
	}, library, "^TestClientWorksWithANewerSchema"},
	{"I20 a connection of a pooler is marked as a heartbeat's", []edit{
		{schema, " AND p_backend_pid IS NOT DISTINCT FROM pg_backend_pid()", ""},
	}, "./lockadmin", "^TestConnectionThatEnds"},
	{"everybody sees what the owner sees of the server's processes", []edit{
		{schema, "LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT\nSET plan_cache_mode = force_generic_plan " +
			"SET jit = off\nAS $$\n#variable_conflict use_column\nBEGIN\n  RETURN QUERY WITH RECURSIVE ours AS",
			"LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT AS $$\n#variable_conflict " +
				"use_column\nBEGIN\n  RETURN QUERY WITH RECURSIVE ours AS"},
	}, "./lockadmin", "^TestBackendsSay"},
	{"the client of Open leaves its pool open", []edit{
		{"pglock/close.go", "pool.Close(); ", ""},
	}, library, "^TestOpenedClientGrants"},
	{"a mark of a connection that fails leaves its lock", []edit{
		{schema, "  mine boolean := me IS NOT NULL AND p_backend_pid IS NOT DISTINCT FROM pg_backend_pid();\n",
			"  mine boolean := me IS NOT NULL AND p_backend_pid IS NOT DISTINCT FROM pg_backend_pid()\n    AND " +
				"pg_try_advisory_lock_shared(key);\n"},
		{schema, "      own := pg_try_advisory_lock_shared(key) AND (", "      own := ("},
	}, administration, "^TestMarkOfAConnectionThatFails"},
	{"a connection is marked with each beat", []edit{
		{"internal/server/own.go", "if e := earsOf(conn); !s.wasTold(e) {", "if e := earsOf(conn); e != nil {"},
	}, "./lockadmin", "^TestConnectionIsMarked"},
	{"a name that is shown steers a shell", []edit{
		{"internal/shown/shown.go", "|| strings.Contains(name, `\\`) || !AllPrint(name) {\n",
			"|| strings.Contains(name, `\\`) {\n"},
	}, command, "^TestANameThatIsShown"},
	{"a name that is shown is taken for a flag", []edit{
		{"internal/shown/shown.go", "\tif name == \"\" || strings.HasPrefix(name, \"-\") ||", "\tif name == \"\" ||"},
	}, command, "^TestANameThatIsShown|^TestEveryName"},
}
