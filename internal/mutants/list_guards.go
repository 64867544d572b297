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
		{schema, "AND f.fenced_xact = mine AND f.advanced_at >= transaction_timestamp()) THEN", "AND f.fenced_xact = mine) THEN"},
	}, integration, "^TestI3_I18_OnlyThis"},
	{"I3 a bypass outlives its transaction", []edit{
		{schema, "WHERE b.xact = mine AND b.kind = 'bypass' AND b.at >= transaction_timestamp();", "WHERE b.kind = 'bypass';"},
	}, integration, "^TestI3_I18_OnlyThis|Bypass"},
	{"I3 session_replication_role opens a guarded table", []edit{
		{schema, "guard_write(%6$s);\n                 ALTER TABLE %3$s ENABLE ALWAYS TRIGGER %1$s'", "guard_write(%6$s)'"},
	}, integration, "^TestI3_EveryWayToWrite|^TestI3_EveryWayInto"},
	{"I3 only the key that a row had before is guarded", []edit{
		{schema, "    AND (after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,", "    AND (before IS NOT NULL OR after IS NULL OR require_fence(TG_ARGV[0] || '/' || after,"},
	}, integration, "^TestI3_AMovedRow"},
	{"I5 the guard of rows takes what is no column of the table", []edit{
		{schema, "AND NOT a.attisdropped;\nEND $$;\n\n-- guard_triggers", "AND NOT a.attisdropped;\n  reading := coalesce(reading, format('SELECT format(''%%s'', ($1).%I)', p_column));\nEND $$;\n\n-- guard_triggers"},
	}, integration, "^TestGuardOfRowsFails"},
	{"I5 the guard of rows goes through a cast of the table's owner", []edit{
		{schema, "WHEN b.typtype = 'e' OR b.oid = ANY ('{int2,int4,int8,numeric,text,varchar,uuid}'::regtype[])", "WHEN true"},
		{schema, "THEN format(''%%s'', ($1).%1$I) END' END, a.attname)", "THEN ($1).%1$I::text END' END, a.attname)"},
	}, library, "^TestI5_CodeOf|^TestI5_NoFunction"},
	{"I5 a function lends the rights of the schema's owner to the code of its caller", []edit{
		{schema, "CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SET", "CREATE FUNCTION guard_table(p_table regclass, p_resource text DEFAULT NULL, p_key text DEFAULT NULL) RETURNS int\nLANGUAGE plpgsql VOLATILE SECURITY DEFINER SET"},
	}, library, "^TestI5_NoFunction|^TestOwnersGuard"},
	{"I5 a function finds its tables where its caller says", []edit{
		{schema, "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT", "CREATE FUNCTION database_id() RETURNS uuid\nLANGUAGE sql STABLE SECURITY DEFINER"},
	}, library, "^TestFunctionsThatUsersCall|^TestI5_NoFunction"},
	{"users may call what decides", []edit{
		{schema, "'{schema_version, database_id, start_client,", "'{settle, schema_version, database_id, start_client,"},
	}, library, "^TestUserMayCall"},
}
