package main

// ofSigns are the faults of signs of life, and of what people conclude from them.
var ofSigns = []mutant{
	{"a holder gives no sign of life", []edit{
		{"pglock/leases.go", "if sign != never && h.hasRoom(now, signing) {", "if false && h.hasRoom(now, signing) {"},
	}, library, "^TestAHolderGivesASign"},
	{"renewals in time are no signs of life", []edit{
		{"pglock/renew.go", "\tsign := l.fresh + signEvery - now.Mono\n", "\tsign := time.Duration(0)\n"},
		{"pglock/renew.go", "\t\tsign = never\n", ""},
	}, library, "^TestRenewalsInTime"},
	{"a sign of life is given beside looks", []edit{
		{"pglock/heartbeat.go", "\tc.leases.signed(sent.Mono-lookShows, nil)\n", ""},
	}, library, "^TestLooksAreSigns"},
	{"a look counts as a sign that the server has not noted", []edit{
		{"pglock/heartbeat.go", "c.leases.signed(sent.Mono-lookShows, nil)", "c.leases.signed(sent.Mono, nil)"},
	}, library, "^TestLooksAreSigns"},
	{"a sign of life that has failed is repeated at once", []edit{
		{"pglock/sign.go", "c.now().Mono + signPause/2 + rand.N(signPause/2)", "0 * rand.N(signPause)"},
	}, library, "^TestASignThatFails"},
	{"nobody hears for how long a lease was extended", []edit{
		{"pglock/renew.go", "\t\t\tsign = 0\n", "\t\t\tsign = never\n"},
	}, library, "^TestAnExtendedLeaseIsTold"},
	{"sessions show who has ended and holds nothing", []edit{
		{schema, "AND (o.leases + o.tickets > 0 OR o.seen_at > clock_timestamp() - interval '1 min' OR o.mark",
			"AND (true OR o.mark"},
	}, administration, "^TestSessionsDoNotShow"},
	{"a sign of life makes tickets count", []edit{
		{
			schema,
			"UPDATE sessions s SET seen_at = clock_timestamp(), seen_by = pg_backend_pid(), version",
			"UPDATE sessions s SET alive_until = clock_timestamp() + interval '10 s', seen_at = clock_timestamp(), " +
				"seen_by = pg_backend_pid(), version",
		},
	}, administration, "^TestASignOfLifeKeeps"},
	{"a look at a long session is no sign of life", []edit{
		{schema, " AND seen >= clock_timestamp() - interval '5 s' THEN", " THEN"},
	}, administration, "^TestLooksAreNoted"},
	{"a grant is a sign of life", []edit{
		{schema, "CASE WHEN o.slowest IS NOT NULL THEN o.renewed_at END AS signed", "o.renewed_at AS signed"},
	}, administration, "^TestLifeOfAHolderThatGave"},
	{"whoever's connection has just ended is alive", []edit{
		{schema, "THEN CASE WHEN p_connected IS FALSE AND p_over_it THEN 'unknown' ELSE 'alive' END", "THEN 'alive'"},
	}, administration, "^TestLifeFollows"},
	{"whoever's tickets count no more is alive", []edit{
		{schema, "WHEN p_signed_at > clock_timestamp() - interval '15 s' AND p_counts",
			"WHEN p_signed_at > clock_timestamp() - interval '15 s'"},
	}, administration, "^TestLifeFollows"},
	{"I23 a standby calls a client silent", []edit{
		{schema, "AND p_counts OR pg_is_in_recovery() THEN 'unknown'", "AND p_counts THEN 'unknown'"},
	}, integration, "^TestI23_NothingIsDecided"},
	{"a dead holder is forgotten while it holds", []edit{
		{schema, "GREATEST(o.alive_until, o.seen_at, o.holds_until) <", "GREATEST(o.alive_until, o.seen_at) <"},
	}, administration, "^TestLifeOfAHolderThatIsKilled"},
	{"a heartbeat does not say for how long it holds", []edit{
		{"pglock/renew.go", "\twho.Holds = holdsFor(longest)\n", "\t_ = holdsFor(longest)\n"},
	}, administration, "^TestLifeOfAHolderThatIsKilled"},
	{"why: a holder is alive until a renewal is late", []edit{
		{"lockadmin/verdicts_life.go", "if p == onTime && !quiet {", "if p == onTime {"},
	}, administration, "^TestVerdict"},
	{"why: a connection that cannot be seen has ended", []edit{
		{"lockadmin/verdicts_life.go", "\tcase gone(h):\n", "\tcase heart == nil:\n"},
	}, administration, "^TestVerdict"},
	{"why: a connection that has just ended goes unsaid", []edit{
		{"lockadmin/verdicts.go", "case h.Life == LifeUnknown && gone(h):", "case false:"},
	}, administration, "^TestVerdict"},
}
