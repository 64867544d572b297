package main

// ofLists are the faults of what people look at.
var ofLists = []mutant{
	{"a list's limit lifts a lower limit of the session", []edit{
		{"internal/protocol/execute.go", "interval OPERATOR(pg_catalog.>) '%[1]d ms'",
			"interval OPERATOR(pg_catalog.>) '0 ms'"},
	}, "./internal/protocol", "^TestALimit"},
	{"lists: the last text with a prefix needs a character of UTF-8", []edit{
		{schema, "repeat(chr(CASE getdatabaseencoding() WHEN 'UTF8' THEN 1114111 ELSE 65 END), 128)",
			"repeat(chr(1114111), 128)"},
	}, library, "^TestEverythingWorksInADatabase"},
	{"a lock's channel needs a name in UTF-8", []edit{
		{schema, "convert_to(p_name, getdatabaseencoding())", "convert_to(p_name, 'UTF8')"},
	}, library, "^TestNameThatIsNotUTF8"},
	{"a refusal has its time in the session's TimeZone", []edit{
		{schema, "'expires_at', json_time(until)", "'expires_at', until"},
	}, library, "^TestEverythingWorksUnderOddSessionSettings"},
	{"a caller with a month asks for a timeout that the server does not know", []edit{
		{"internal/protocol/execute.go", "d.Milliseconds()), math.MaxInt32)", "d.Milliseconds()), math.MaxInt64)"},
	}, "./lockadmin", "^TestACallMayHaveAMonth"},
	{"what is missing in a list arrives as the word NULL", []edit{
		{"internal/protocol/queries.go", "return \"pg_catalog.array_replace(\" + array + \", \" + value + \", NULL)\"",
			"return array"},
	}, "./internal/protocol", "^TestWhatIsMissing"},
	{"lists: a page ends in the middle of a lock", []edit{
		{schema, "FETCH FIRST p_limit ROWS WITH TIES;", "FETCH FIRST p_limit ROWS ONLY;"},
	}, administration, "^TestFirstLocks|^TestLocksAre"},
	{"lists: the first page again and again", []edit{
		{schema, "WHERE (coalesce(p_after, '') = '' OR l.name > p_after) AND (coalesce(p_prefix, '') = '' OR l.name",
			"WHERE (coalesce(p_prefix, '') = '' OR l.name"},
	}, administration, "^TestLocksAre"},
	{"lists: a part of a label does not count", []edit{
		{schema, "OR strpos(p_name, p_match) > 0 OR strpos(p_in_holder, p_match) > 0)",
			"OR strpos(p_name, p_match) > 0)"},
	}, administration, "^TestLocksAre"},
	{"lists: signs of a pattern are no letters", []edit{
		{schema, "strpos(p_in_holder, p_match) > 0)", "p_in_holder LIKE '%' || p_match || '%')"},
	}, administration, "^TestLocksAre"},
	{"lists: a part of a holder is the holder", []edit{
		{schema, "OR p_in_holder = p_holder)", "OR starts_with(p_in_holder, p_holder))"},
	}, administration, "^TestLocksAre"},
	{"lists: every session", []edit{
		{schema, "(p_session_id IS NULL OR p_in_session = p_session_id)", "true"},
	}, administration, "^TestLocksAre"},
	{"lists: every mode", []edit{
		{schema, "(coalesce(p_mode, '') = '' OR p_in_mode = p_mode)", "true"},
	}, administration, "^TestLocksAre"},
	{"lists: the younger ones", []edit{
		{schema, "p_since <= clock_timestamp() - p_older)", "p_since > clock_timestamp() - p_older)"},
	}, administration, "^TestLocksAre"},
	{"lists: those that nobody waits for too", []edit{
		{schema, "AND (p_queued IS NOT TRUE OR q.waits)", "AND (true OR q.waits)"},
	}, administration, "^TestLocksAre"},
	{"lists: the order by waiting is that by age", []edit{
		{schema, "CASE p_order WHEN 'waiting' THEN w.since", "CASE p_order WHEN 'waiting' THEN l.acquired_at"},
	}, administration, "^TestLocksAre"},
	{"lists: the last one's wait counts", []edit{
		{
			schema,
			"AND q.ticket > h.served ORDER BY q.ticket LIMIT 1) AS longest_wait_us",
			"AND q.ticket > h.served ORDER BY q.ticket DESC LIMIT 1) AS longest_wait_us",
		},
	}, administration, "^TestLocksTellHowLong"},
	{"lists: free locks have run out first", []edit{
		{schema, "WHEN 'expiry' THEN nullif(l.expires_at, '-infinity') END", "WHEN 'expiry' THEN l.expires_at END"},
	}, administration, "^TestLocksAre"},
	{"lists: a waiter's place begins anew on each page", []edit{
		{schema, "THEN coalesce(p_after_place, (", "THEN coalesce(0, ("},
	}, administration, "^TestWaitersAre|^TestEveryList"},
	{"lists: waiters in the order of their names", []edit{
		{schema, "ORDER BY a.enqueued_at, a.name, a.ticket LIMIT p_limit", "ORDER BY a.name, a.ticket LIMIT " +
			"p_limit"},
	}, administration, "^TestWaitersAre"},
	{"lists: the fences that were passed last", []edit{
		{schema, "WHEN 'age' THEN f.advanced_at END, f.resource LIMIT", "WHEN 'age' THEN f.advanced_at END DESC, " +
			"f.resource LIMIT"},
	}, administration, "^TestFencesAre"},
	{"top: by wait goes by the number of waiters", []edit{
		{"cmd/pglock-admin/internal/live/rows.go", "cmp.Compare(b.LongestWait, a.LongestWait)",
			"cmp.Compare(b.Waiting, a.Waiting)"},
	}, screens, "^TestTheChosenLock"},
	{"why: the first passage of a fence leaves no mark", []edit{
		{schema, "ok    boolean := length(marks) >= 8 OR", "ok    boolean := true OR"},
	}, administration, "^TestBackendsTellTheFirst"},
	{"why: a transaction marks as many fences as it passes first", []edit{
		{schema, "ok    boolean := length(marks) >= 8 OR", "ok    boolean := false OR"},
	}, administration, "^TestTransactionThatPassesMany"},
	{"why: whoever waits for a first passage has passed", []edit{
		{schema, "WHERE e.mark = f.mark AND n.pid = f.pid AND NOT n.granted)", "WHERE false)"},
	}, administration, "^TestBackendsTellTheFirst"},
	{"why: whoever waits for one that passed first waits at its fence", []edit{
		{schema, "m.objsubid = 2 AND m.objid = o.mark))", "true))"},
	}, administration, "^TestBackendsTellTheFirst"},
	{"why: whoever was stopped before its first renewal cannot be let go on", []edit{
		{"lockadmin/verdicts_life.go", "l.find(h, l.ifDead(h)+\" \"+l.ifStopped(h))",
			"l.find(h, l.ifDead(h))"},
	}, administration, "^TestVerdict"},
	{"why: a write has as much time as the lease", []edit{
		{"lockadmin/verdicts_write.go", "left := min(most, h.TTL) - since", "left := min(most, h.TTL, h.Remaining)"},
	}, administration, "^TestVerdict|^TestWhatIsLeft"},
	{"why: a write that nobody renews for has the whole TTL", []edit{
		{"lockadmin/verdicts_write.go", "left := min(most, h.TTL) - since", "left := h.TTL - since"},
	}, administration, "^TestVerdict"},
	{"why: the present holder's lease limits the write of a former one", []edit{
		{"lockadmin/verdicts_write.go", "!present || len(l.Holders) != 1 || b.Hidden {",
			"!present && false || len(l.Holders) != 1 || b.Hidden {"},
	}, administration, "^TestVerdict"},
	{"why: a queue that the lock is handed past is in order", []edit{
		{"lockadmin/explain.go", "= l.granted > first.Ticket;", "= l.granted > first.Ticket+1000000;"},
	}, administration, "^TestExplainSaysThatTheLockIsHanded"},
	{"why: whoever waits is handed past", []edit{
		{"lockadmin/explain.go", "= l.granted > first.Ticket;", "= l.granted >= 0;"},
	}, administration, "^TestExplainSaysThatTheLockIsHanded"},
	{"why: a history without hand-overs says how many there were", []edit{
		{"lockadmin/explain.go", "&n, &all); all {", "&n, &all); true {"},
	}, administration, "^TestExplainSaysThatTheLockIsHanded"},
	{"why: what was read late is older than what was read before", []edit{
		{"lockadmin/reckon.go", "*age-at.Sub(l.At)", "*age"},
	}, administration, "^TestTheAgesOfALook"},
	{"why: a healthy write is ended, and whoever waits for its table is not", []edit{
		{"lockadmin/verdicts_table.go", "\tif !t.last() {\n", "\tif false {\n"},
	}, administration, "^TestWhoeverWaitsForAWholeTable"},
	{"why: a label has somebody end process 1", []edit{
		{"lockadmin/verdicts.go", "err != nil || n < 2 {", "err != nil {"},
	}, administration, "^TestWhatProgramALabelNames"},
	{"why: the next in the queue is to blame for a history that is locked", []edit{
		{"lockadmin/verdicts_table.go", "if n < 0 || since", "if n < 1 || since"},
	}, administration, "^TestExplainNamesWhoeverKeepsTheHistory"},
	{"why: a grant that waits is to be ended", []edit{
		{"lockadmin/verdicts_server.go", "\t\t\tcause = ends[0]\n", ""},
	}, administration, "^TestExplainNamesWhoeverKeepsThose"},
	{"each look at a lock waits for a history that is locked", []edit{
		{"lockadmin/explain_closed.go", "l.past.closed, l.past.by = true,", "l.past.closed, l.past.by = false,"},
	}, administration, "^TestALookAtManyLocks"},
	{"why: a lock that is well takes a screen", []edit{
		{"cmd/pglock-admin/internal/explain/why_screen.go", "\tif IsWell(e) || isSoon(e) {\n",
			"\tif isSoon(e) && !IsWell(e) {\n"},
	}, command, "^TestWhyTakesThreeLines"},
	{"why: a lock with dead waiters is told in three lines", []edit{
		{"cmd/pglock-admin/internal/explain/why_screen.go", "return len(e.Verdicts) == 1 && e",
			"return e"},
	}, command, "^TestWhyTakesThreeLines"},
	{"why: a lock that others wait for since a moment takes a screen", []edit{
		{"cmd/pglock-admin/internal/explain/why_screen.go", "\tif IsWell(e) || isSoon(e) {\n", "\tif IsWell(e) {\n"},
	}, command, "^TestWhyTakesThreeLines"},
	{"why: a client that waits for its own lock goes unsaid", []edit{
		{"lockadmin/verdicts.go", "return h.Session == first.Session", "return false"},
	}, administration, "^TestVerdict"},
	{"why: a writer that waits before readers goes unsaid", []edit{
		{"lockadmin/verdicts.go", "if h.Mode == pglock.ModeShared && first.Mode", "if false && first.Mode"},
	}, administration, "^TestVerdict"},
	{"why: whoever renews late is stopped", []edit{
		{"lockadmin/verdicts_life.go", "case !quiet: //", "case p == late && !quiet: //"},
	}, administration, "^TestVerdict"},
	{"why: another lock that the program waits for goes unsaid", []edit{
		{"lockadmin/verdicts_lock.go", "return w.Holds == l.Lock && !w.SameOwner && !w.inTurn() && w.Waiting >= " +
			"unremarkable", "return false"},
	}, administration, "^TestVerdict"},
	{"why: a wait of the same program is that of the same work", []edit{
		{"lockadmin/verdicts_lock.go", "if w.Holds != l.Lock || !w.SameOwner || w.Waiting < unremarkable {",
			"if w.Holds != l.Lock || w.Waiting < unremarkable {"},
	}, administration, "^TestVerdict"},
	{"why: a circle may end at another holder", []edit{
		{"lockadmin/circle.go", "name && last.HolderSession == way[0].Session:", "name:"},
	}, administration, "^TestCircle"},
	{"why: programs whose locks change hands are perhaps in a deadlock", []edit{
		{"lockadmin/circle.go", "w.Waiting > standing && w.HeldFor > standing", "true"},
	}, administration, "^TestCircle"},
	{"why: goroutines of one program are perhaps in a deadlock", []edit{
		{"lockadmin/circle.go", "return w.Session != w.HolderSession && ", "return "},
	}, administration, "^TestCircle"},
	{"why: one place of several closes a circle", []edit{
		{schema, "(n.many AND h.name = n.wanted) IS TRUE", "false"},
	}, administration, "^TestOwnersThatWait"},
	{"why: one stuck holder of several places is enough", []edit{
		{"lockadmin/circle.go", "len(places) > 0 && !open && len(leases) < holdersRead", "len(places) > 0"},
	}, administration, "^TestCircleThrough"},
	{"why: a lock below a subtree is stuck", []edit{
		{"lockadmin/verdicts_lock.go", "if len(l.Obstacles) > 0 {\n\t\tl.treeVerdict()",
			"if false {\n\t\tl.treeVerdict()"},
	}, administration, "^TestWhyNames"},
	{"a lock is stuck as soon as a subtree has ended", []edit{
		{schema, "GREATEST(s.over, s.clear)", "s.over"},
	}, administration, "^TestALockIsStuck"},
	{"verify compares a lock with the last subtree above alone", []edit{
		{"lockadmin/replay_tree.go", "\t\t\tc.until[at] = later(c.until[at], c.until[at-1])\n", ""},
	}, administration, "^TestVerifyComparesSub"},
	{"why: a dead connection is called stopped", []edit{
		{"lockadmin/verdicts_life.go", "\tcase heart != nil:\n", "\tcase h.Renewed || heart != nil:\n"},
	}, administration, "^TestVerdict"},
	{"why: a label may have a command", []edit{
		{"lockadmin/verdicts.go", " || shown.Argument(parts[1]) != parts[1] {", " {"},
	}, administration, "^TestWhatProgram"},
	{"serve: whoever may not break serves a page that does", []edit{
		{"cmd/pglock-admin/internal/serve/serve.go", "if err == nil && breaks {", "if false {"},
	}, command, "^TestServeNeeds"},
	{"serve: other handlers have no headers", []edit{
		{"dashboard/auth.go", "\t\tdistrust(w.Header())\n", ""},
	}, "./dashboard", "^TestProtect"},
	{"dashboard: another site may break a lock", []edit{
		{"dashboard/break.go", "d.origins.Check(r); err != nil {", "error(nil); err != nil {"},
	}, "./dashboard", "^TestRequestsFromOtherSites"},
	{"dashboard: a form may break a lock", []edit{
		{"dashboard/break.go", `; err != nil || kind != "application/json" {`, `; err != nil || kind == "" {`},
	}, "./dashboard", "^TestRequestsFromOtherSites"},
	{"dashboard: a page breaks a lease of another database", []edit{
		{"dashboard/read.go", "&& !i.AcquiredAt.Equal(r.AcquiredAt) {", "&& false {"},
	}, "./dashboard", "^TestABreakOfALeaseInAnother"},
}
