package main

// ofGuards are the faults of guarded tables, and of rights.
var ofGuards = []mutant{
	{"I3 the fence of any resource opens a guarded table", []edit{
		{schema, "WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at", "WHERE f.fenced_xact = mine AND f.advanced_at"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the fence of any transaction opens a guarded table", []edit{
		{schema, "WHERE f.resource = p_resource AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp())", "WHERE f.resource = p_resource)"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 the ID of an old transaction opens a guarded table", []edit{
		{schema, "AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp())\n     OR bypassed", "AND f.fenced_xact = mine)\n     OR bypassed"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 a bypass outlives its transaction", []edit{
		{schema, "WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();", "WHERE b.kind = 'bypass';"},
	}, integration, "^TestI3_I18_OnlyThis|Bypass"},
	{"I3 session_replication_role opens a guarded table", []edit{
		{schema, "      EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', rel.name, g.name);", "      PERFORM 1;"},
	}, integration, "^TestI3_EveryWayToWrite|^TestI3_EveryWayInto"},
	{"I3 only the key that a row had before is guarded", []edit{
		{schema, "    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,", "    AND (before IS NOT NULL OR after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,"},
	}, integration, "^TestI3_AMovedRow"},
	{"I5 the guard of rows takes what is no column of the table", []edit{
		{schema, "  IF FOUND THEN\n    RETURN format(CASE base", "  IF true THEN\n    RETURN format(CASE base"},
	}, integration, "^TestGuardOfRowsFails"},
	{"I5 the guard of rows goes through a cast of the table's owner", []edit{
		{schema, "can_be_key(a.atttypid);\n  IF FOUND THEN\n", "true;\n  IF FOUND THEN\n"},
		{schema, "THEN format(''%%s'', ($1).%1$I) END' END, p_column);", "THEN ($1).%1$I::text END' END, p_column);"},
	}, library, "^TestI5_CodeOf|^TestI5_NoFunction"},
	{"I5 a function lends the rights of the schema's owner to the code of its caller", []edit{
		{schema, "CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SET", "CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET"},
	}, library, "^TestI5_NoFunction|^TestOwnersGuard"},
	{"I5 a function finds its tables where its caller says", []edit{
		{schema, "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT", "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE sql STABLE SECURITY DEFINER"},
	}, library, "^TestFunctionsThatUsersCall|^TestI5_NoFunction"},
	{"users may call what decides", []edit{
		{schema, "        'schema_version', 'database_id', 'start_client',", "        'grant_head', 'schema_version', 'database_id', 'start_client',"},
	}, library, "^TestUserMayCall"},
}
