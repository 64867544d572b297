package main

// ofGuards are the faults of guarded tables, and of rights.
var ofGuards = []mutant{
	{"I3 the fence of any resource opens a guarded table", []edit{
		{schema, "WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at",
			"WHERE f.fenced_xact = mine AND f.advanced_at"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the fence of any transaction opens a guarded table", []edit{
		{schema, "WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at >= " +
			"transaction_timestamp() " +
			"UNION", "WHERE f.resource = p_resource UNION"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the ID of an old transaction opens a guarded table", []edit{
		{schema, "AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp() UNION",
			"AND f.fenced_xact = mine UNION"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"a guard does not tell the loss of a subtree's lease", []edit{
		{schema, "    PERFORM refuse_lease(lost.lock_name, lost.last_token, lost.grant_id, lost.slot);", "    NULL;"},
	}, store, "^TestAGuardTellsTheLoss"},
	{"I3 a bypass outlives its transaction", []edit{
		{schema, "WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();",
			"WHERE b.kind = 'bypass';"},
	}, integration, "^TestI3_I18_OnlyThis|Bypass"},
	{"I3 the fence of any resource opens a guarded table with one", []edit{
		{schema, "FROM {{schema}}.fences f -- require_fence, written out\n    WHERE f.resource " +
			"OPERATOR(pg_catalog.=) TG_ARGV[0];", "FROM {{schema}}.fences f WHERE f.fenced_xact " +
			"OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned() LIMIT 1;"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the fence of any transaction opens a guarded table with one resource", []edit{
		{schema, "  IF (passed OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned() AND since OPERATOR",
			"  IF (since OPERATOR"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the ID of an old transaction opens a guarded table with one resource", []edit{
		{schema, "  IF (passed OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned() AND since " +
			"OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp()) IS NOT TRUE",
			"  IF (passed OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()) IS NOT TRUE"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the guard of rows can be replaced", []edit{
		{schema, "'CONSTRAINT TRIGGER pglock_guard AFTER INSERT", "'TRIGGER pglock_guard AFTER INSERT"},
		{schema, "THEN t.tgtype = 29 AND t.tgconstraint <> 0", "THEN t.tgtype = 29"},
	}, library, "^TestI3_TheRight"},
	{"I3 a table on which others may make triggers is guarded", []edit{
		{schema, "      IF g.name IS NULL THEN\n        CONTINUE WHEN NOT c.owned;", "      IF g.name IS NULL THEN\n " +
			"       CONTINUE;"},
	}, library, "^TestI3_TheRight"},
	{"I3 a trigger that calls something else passes for the guard", []edit{
		{schema, "           t.tgfoid = g.oid AND t.tgqual IS NULL", "           t.tgqual IS NULL"},
	}, integration, "^TestTheListTells"},
	{"I3 the guard of TRUNCATE may ask for another fence", []edit{
		{schema, "         r.sound AND r.args = coalesce(r.of_rows, r.args), r.tgenabled",
			"         r.sound, r.tgenabled"},
	}, library, "^TestI3_AGuardOfTruncate"},
	{"why does not know the guards of a lock", []edit{
		{"lockadmin/verdicts.go", "	l.guardVerdict()\n", ""},
	}, command, "^TestGuardThatOthers"},
	{"I3 to unguard a parent drops the guard that a child has of its own", []edit{
		{schema, "AND (b.oid = p_table OR g.args IN (SELECT o.args FROM made_triggers(ARRAY[p_table]) o))", ""},
	}, integration, "^TestUnguardingAParent"},
	{"a text is a key that an index takes for another", []edit{
		{schema, "IF NOT (SELECT l.collisdeterministic FROM", "IF false AND (SELECT l.collisdeterministic FROM"},
	}, store, "^TestAKeyWithANondeterministic"},
	{"what changes while a guard waits for the table is not seen", []edit{
		{schema, "RETURN n + CASE WHEN mended THEN guard_table(p_table, p_resource, p_key) ELSE 0 END;", "RETURN n;"},
	}, store, "^TestGuardTableLooksAgain"},
	{"what changes while a guard waits to enable a trigger is not seen", []edit{
		{schema, "RETURN n + CASE WHEN mended THEN guard_table(", "RETURN n + CASE WHEN n > 0 THEN guard_table("},
	}, store, "^TestGuardTableLooksAgain"},
	{"of two that guard a table at once the second does not look again", []edit{
		{schema, "EXCEPTION WHEN duplicate_object OR undefined_object THEN IF g.mend IN",
			"EXCEPTION WHEN division_by_zero THEN IF g.mend IN"},
	}, store, "^TestTwoGuardATable"},
	{"I3 session_replication_role opens a guarded table", []edit{
		{schema, "guard_write(%6$s);\n                 ALTER TABLE %3$s ENABLE ALWAYS TRIGGER %1$s'",
			"guard_write(%6$s)'"},
	}, integration, "^TestI3_EveryWayToWrite|^TestI3_EveryWayInto"},
	{"I3 only the key that a row had before is guarded", []edit{
		{schema, "    AND (after IS NULL OR require_fence(p_resource || '/' || after,", "    AND (before IS NOT NULL " +
			"OR after IS NULL OR require_fence(p_resource || '/' || after,"},
	}, integration, "^TestI3_AMovedRow"},
	{"I3 a virtual column is a key", []edit{
		{schema, "format(CASE WHEN a.attgenerated = 'v' THEN NULL WHEN b.oid IN", "format(CASE WHEN b.oid IN"},
	}, store, "^TestGeneratedColumns"},
	{"I5 the guard of rows takes what is no column of the table", []edit{
		{schema, "AND NOT a.attisdropped; IF sorted >= 16384::oid", "AND NOT a.attisdropped;\n  reading := " +
			"coalesce(reading, format('SELECT format(''%%s'', ($1).%I)', p_column)); IF sorted >= 16384::oid"},
	}, integration, "^TestGuardOfRowsFails"},
	{"I5 the guard of rows goes through a cast of the table's owner", []edit{
		{schema, "WHEN b.typtype = 'e' OR b.oid = ANY ('{int2,int4,int8,numeric,text,varchar,uuid}'::regtype[])",
			"WHEN true"},
		{schema, "THEN pg_catalog.format(''%%s'', ($1).%1$I) END' END, a.attname)", "THEN ($1).%1$I::text END' END, " +
			"a.attname)"},
	}, library, "^TestI5_CodeOf|^TestI5_NoFunction"},
	{"I5 a function lends the rights of the schema's owner to the code of its caller", []edit{
		{schema, "CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT " +
			"NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SET", "CREATE FUNCTION guard_table(p_table regclass, " +
			"p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SECURITY " +
			"DEFINER SET"},
	}, library, "^TestI5_NoFunction|^TestOwnersGuard"},
	{"I5 a function finds its tables where its caller says", []edit{
		{schema, "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE plpgsql STABLE SECURITY DEFINER SET " +
			"search_path FROM CURRENT", "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE plpgsql STABLE " +
			"SECURITY DEFINER"},
	}, library, "^TestFunctionsThatUsersCall|^TestI5_NoFunction"},
	{"I11 an age may be longer than time", []edit{
		{schema, "p_value BETWEEN interval '0' AND interval '1000 years' AND GREATEST(",
			"p_value >= interval '0' AND GREATEST("},
	}, library, "^TestI11_NoArgument"},
	{"I1 an age may have a negative part", []edit{
		{schema, "12)) < 128 THEN true", "12)) < 256 THEN true"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a list may have less than no length", []edit{
		{schema, "is_count('limit', p_value, 1, 1000000) $$;", "is_count('limit', p_value, -2147483648, 1000000) $$;"},
	}, library, "^TestI11_NoArgument"},
	{"I11 a sweep has no bound", []edit{
		{schema, "AND is_count('limit', p_limit, 1, 100000) AND (p_every", "AND (p_every"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a break of a session has no bound", []edit{
		{schema, "AND is_count('limit', p_limit, 1, 10000); head locks;", "; head locks;"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a step of a prune of locks has no bound", []edit{
		{
			schema,
			"AND is_age('idle', p_idle) AND is_count('limit', p_limit, 1, 100000); since",
			"AND is_age('idle', p_idle); since",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a prune takes any age", []edit{
		{
			schema,
			"AND is_age('idle', p_idle) AND is_count('limit', p_limit, 1, 100000); since",
			"AND is_count('limit', p_limit, 1, 100000); since",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a prune of the history takes any age", []edit{
		{
			schema,
			"AND (p_older IS NULL OR is_age('older', p_older)) AND is_count('limit', p_limit, 1, 100000); upto",
			"AND is_count('limit', p_limit, 1, 100000); upto",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a step of a prune of the history has no bound", []edit{
		{
			schema,
			"AND (p_older IS NULL OR is_age('older', p_older)) AND is_count('limit', p_limit, 1, 100000); upto",
			"AND (p_older IS NULL OR is_age('older', p_older)); upto",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a list takes any age", []edit{
		{
			schema,
			"'be ' || p_orders) END AND (p_older IS NULL OR is_age('older', p_older))", "'be ' || p_orders) END",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 an order has no bound", []edit{
		{
			schema,
			"THEN is_count('limit', p_limit, 1, 10000) ELSE", "THEN true ELSE",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 numbers are told of any number of locks", []edit{
		{schema, "SELECT is_count('top', p_top, 0, 100000);", "SELECT p_top;"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a place may be any number", []edit{
		{schema, "AND (p_after_place IS NULL OR is_count('after_place', p_after_place, 0, 1000000000000));", ";"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 a renewal may wait for any time", []edit{
		{schema, "IF p_wait NOT BETWEEN interval '0' AND interval '24 hours' THEN", "IF false THEN"},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"I11 the history is kept for any time", []edit{
		{
			schema,
			"AND (p_keep IS NULL OR p_keep BETWEEN interval '1 day' AND interval '36525 days' AND is_age('keep', " +
				"p_keep) OR refuse('keep', p_keep::text, 'be from 1 day to 36525 days'));",
			";",
		},
	}, library, "^TestI11_RefusedSQLCallsChange"},
	{"users may call what decides", []edit{
		{schema, "'{schema_version, database_id, start_client,", "'{settle, schema_version, database_id, " +
			"start_client,"},
	}, library, "^TestUserMayCall"},
	{"I5 default privileges on sequences stay", []edit{
		{schema, "AND c.relname = o.name AND c.relkind IN ('r', 'v', 'S') WHERE o.kind = 'class'",
			"AND c.relname = o.name AND c.relkind IN ('r', 'v') WHERE o.kind = 'class'"},
	}, "migrations", "^TestI5_Default"},
	{"I5 what others own in a shared schema loses its rights", []edit{
		{schema, "        AND NOT 'c' || c.oid = ANY (current_setting", "        AND NOT 'none' = ANY " +
			"(current_setting"},
	}, "migrations", "^TestI5_Default|^TestMigrationGives"},
	{"doctor calls a check inside COMMIT always on that a replica's session skips", []edit{
		{schema, "f.armed IS NOT DISTINCT FROM 'A', CASE f.armed", "f.armed IN ('A', 'O'), CASE f.armed"},
	}, integration, "^TestDoctorSeesThatTheCheck"},
	{"doctor does not see rights on columns", []edit{
		{schema, "FROM objects o JOIN pg_attribute c ON c.attrelid = o.oid AND o.class = 'pg_class'::regclass",
			"FROM objects o JOIN pg_attribute c ON false"},
	}, "migrations", "^TestDoctorNames"},
	{"I5 everybody may make objects in the schema", []edit{
		{schema, "    WHERE pg_has_role(p.oid, current_user, 'MEMBER') IS NOT TRUE ORDER BY o.n",
			"    WHERE false ORDER BY o.n"},
	}, "migrations", "^TestI5_Up"},
	{"I5 a process that takes a session's lock passes for its heartbeat", []edit{
		{schema, "AND k.objsubid = 1 AND k.pid = s.pid AND (k.classid", "AND k.objsubid = 1 AND k.pid > 0 AND " +
			"(k.classid"},
	}, administration, "^TestI5_NobodyPoses"},
	{"I5 the ID of a session determines the mark of its heartbeat", []edit{
		{schema, "left(replace(gen_random_uuid()::text, '-', ''), 16))::bit(64)::bigint;",
			"left(replace(me::text, '-', ''), 16))::bit(64)::bigint;"},
		{schema, "own := pg_try_advisory_lock_shared(key)", "own := pg_try_advisory_lock(key)"},
	}, administration, "^TestI5_NobodyPoses"},
	{"I5 a circle shows owners", []edit{
		{schema, "pg_catalog.jsonb_build_object('lock', e.lock, 'waiter',", "pg_catalog.to_jsonb(e) || " +
			"pg_catalog.jsonb_build_object('lock', e.lock, 'waiter',"},
	}, library, "^TestI5_NobodyReadsTheOwners"},
	{"I5 a list of locks that are left has the tickets of others in its plans", []edit{
		{schema, "p_over timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE SET plan_cache_mode = " +
			"force_generic_plan", "p_over timestamptz) RETURNS boolean LANGUAGE plpgsql STABLE"},
	}, library, "^TestI5_NoPlanShows"},
	{"I5 a break has the rows of others in its plans", []edit{
		{schema, "SET lock_timeout = '5s' SET plan_cache_mode = force_generic_plan AS $$ #variable_conflict " +
			"use_column DECLARE ok boolean := require_read_committed() AND require_unrenewed() AND " +
			"require_durable_commit() AND has_bytes(",
			"SET lock_timeout = '5s' AS $$ #variable_conflict use_column DECLARE ok boolean := " +
				"require_read_committed() AND require_unrenewed() AND require_durable_commit() AND has_bytes("},
	}, library, "^TestI5_NoPlanShows"},
	{"statistics reads the schema's name as if it had no quotes", []edit{
		{schema, "AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema()) AND " +
			"r.database", "AND c.relnamespace = current_schema()::regnamespace AND r.database"},
	}, library, "^TestEveryFunctionWorks"},
	{"I5 a better match in the schema is called", []edit{
		{schema, "  said text := pg_catalog.concat_ws(' ',", "  said text := concat_ws(' ',"},
	}, library, "^TestI5_NoCall"},
}
