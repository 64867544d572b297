package main

// ofOverview are the faults of the overview: which locks are not well.
var ofOverview = []mutant{
	{"a sign of life names no locks", []edit{
		{"pglock/sign.go", "\twho.Holds, who.Names = c.leases.longest(sent.Mono)\n",
			"\twho.Holds, _ = c.leases.longest(sent.Mono)\n"},
	}, library, "^TestASignNames"},
	{"a sign of life names those that are held for the shortest", []edit{
		{"pglock/sign.go", "cmp.Compare(b.left, a.left)", "cmp.Compare(a.left, b.left)"},
	}, library, "^TestASignNames"},
	{"a renewal takes back the names of the last sign of life", []edit{
		{schema, "names = coalesce(p_names, s.names),", "names = p_names,"},
	}, administration, "^TestASignOfLifeNames"},
	{"a sign of life may name any number of locks", []edit{
		{schema, "pg_catalog.cardinality(p_names) > 20 OR octet_length", "octet_length"},
	}, administration, "^TestASignOfLifeNames"},
	{"the overview does not look at locks that silent clients have named", []edit{
		{schema, "AND (p_old <> '{}' OR s.seen_at < clock_timestamp() - interval '15 s')", "AND p_old <> '{}'"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview does not look at locks of living clients for open transactions", []edit{
		{schema, "AND (p_old <> '{}' OR s.seen_at < clock_timestamp() - interval '15 s')",
			"AND s.seen_at < clock_timestamp() - interval '15 s'"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview does not see whose fence is open", []edit{
		{schema, "UNION ALL (SELECT f.xmax, f.xmin, NULL FROM fences f WHERE f.lock_name = p_name LIMIT 100)", ""},
		{schema, "UNION ALL SELECT f.xmax, f.xmin, NULL FROM fences f WHERE f.resource = p_name) r", ") r"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview does not see who passes a fence for the first time", []edit{
		{schema, "RETURN hashtext(p_name)::oid = ANY (p_marks) OR EXISTS", "RETURN EXISTS"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview does not see who has locked a lock's row", []edit{
		{schema, "SELECT l.xmax AS by, l.xmin AS wrote", "SELECT '0'::xid AS by, l.xmin AS wrote"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview puts holders that wait themselves before the dead", []edit{
		{schema, "WHEN s.waits OR s.dead OR s.passed THEN 2 ELSE 3 END AS rank",
			"WHEN s.waits OR s.dead OR s.passed THEN 0 ELSE 3 END AS rank"},
	}, administration, "^TestTheOverviewFills"},
	{"the overview is full of locks that are well", []edit{
		{"lockadmin/overview.go", "a.suspects(r, nil, min(overviewMost, 3*limit+20))", "a.suspects(r, nil, limit)"},
	}, administration, "^TestTheOverviewFills"},
	{"the overview does not find the row that nobody waits for", []edit{
		{schema, "UNION SELECT o.name FROM locked o", ""},
	}, administration, "^TestTheOverviewFindsWho"},
	{"the overview forgets what was broken", []edit{
		{schema, "WHERE e.kind IN ('break', 'takeover') AND e.at", "WHERE e.kind = 'takeover' AND e.at"},
	}, administration, "^TestTheOverviewFinds"},
	{"the overview does not see that a lock is lost again and again", []edit{
		{schema, "(e.kind = 'break' OR pg_catalog.count(*) >= 3)", "e.kind = 'break'"},
	}, administration, "^TestTheOverviewShows"},
	{"the overview of few locks does not look at all of them", []edit{
		{schema, "WHERE (SELECT pg_catalog.count(*) FROM known) <= 1000),", "WHERE false),"},
	}, administration, "^TestTheOverviewOfFew"},
	{"the overview puts those first that nobody waits for", []edit{
		{schema, "array_agg(b.name ORDER BY b.rank, b.since, b.name)", "array_agg(b.name ORDER BY b.rank, b.since " +
			"DESC, b.name)"},
	}, administration, "^TestTheOverviewFinds"},
	{"the list says of a lock what nobody has looked at", []edit{
		{"lockadmin/overview.go", "s := Summary{Lock: found.names[n], Hidden: true}",
			"s := Summary{Lock: found.names[n], Severity: SeverityOK}"},
	}, administration, "^TestSummaries"},
	{"a holder that waits for another lock is well", []edit{
		{schema, "WHERE s.ails OR s.waits OR s.dead", "WHERE s.ails OR s.dead"},
	}, command, "^TestWhySaysWhatTheTroubleIs"},
}
