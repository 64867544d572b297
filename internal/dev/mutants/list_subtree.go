package main

// ofSubtrees break what keeps a subtree's lease and leases below it apart, in order, and awake.
var ofSubtrees = []mutant{
	{"subtree: grants under way are not waited out", []edit{
		{schema, "RETURN under; END IF; PERFORM pg_sleep(pause);", "RETURN '{}'; END IF; PERFORM pg_sleep(pause);"},
	}, integration, "^TestASubtreeWaitsForGrants"},
	{"subtree: a free lock is granted without a look at what is above", []edit{
		{schema, "AND (NOT i.subtrees OR NOT {{schema}}.is_below(p_name))", ""},
	}, integration, "^TestAGrantLocksTheTable"},
	{"subtree: free locks are granted together without a look at what is above", []edit{
		{schema, "AND (NOT (SELECT i.subtrees FROM installation i) OR NOT is_below(a.name))", ""},
	}, integration, "^TestAGrantLocksTheTable"},
	{"subtree: a new lock is granted without a look at what is above", []edit{
		{schema, "WHERE NOT (SELECT i.subtrees FROM installation i) OR NOT is_below(w.name)", ""},
	}, integration, "^TestAGrantLocksTheTable"},
	{"subtree: a newcomer does not see that a free lock has a queue", []edit{
		{schema, " AND NOT p_queued", ""},
	}, integration, "^TestI9_NobodyOvertakesThose"},
	{"subtree: a free lock does not say that it has a queue", []edit{
		{schema, "UPDATE locks l SET queued = true WHERE", "UPDATE locks l SET queued = false WHERE"},
	}, integration, "^TestI9_NobodyOvertakesThose"},
	{"subtree: a dead ticket above is passed over and kept", []edit{
		{schema, "WHERE o.name = a.name AND o.ticket = a.ticket FOR UPDATE SKIP LOCKED)); IF NOT FOUND THEN",
			"WHERE false)); IF false THEN"},
	}, integration, "^TestADeadTicketInTheTree"},
	{"subtree: a dead ticket below is passed over and kept", []edit{
		{schema, "AND q.ticket < w.ticket); RETURN waited", "AND q.ticket < w.ticket AND " +
			"session_alive(q.session_id)); RETURN " +
			"waited"},
		{schema, "WHERE o.name = ANY (p_names) AND o.ticket < w.ticket AND NOT EXISTS (", "WHERE false AND NOT " +
			"EXISTS ("},
	}, integration, "^TestADeadTicketInTheTree"},
	{"I4 subtree: a COMMIT under way above is not waited for", []edit{
		{schema, "ELSIF NOT settled(a.name, a.slot, a.token) THEN", "ELSIF false THEN"},
	}, integration, "^TestI4_ACommitUnderWayKeeps"},
	{"I4 subtree: a COMMIT under way below is not waited for", []edit{
		{schema, "WHERE l.name = ANY (p_names) AND NOT is_over(l.expires_at, l.ended_at) AND (l.owner_id",
			"WHERE l.name = ANY (p_names) AND is_running(l.expires_at, l.ended_at) AND (l.owner_id"},
	}, integration, "^TestI4_ACommitUnderWayKeeps"},
	{"subtree: who asks below waits for later tickets too", []edit{
		{schema, "AND (w.ticket = 0 OR s.ticket < w.ticket))", ")"},
	}, integration, "^TestI9_ATreeIsServed"},
	{"subtree: a subtree overtakes lower tickets below", []edit{
		{schema, "WHERE q.name = ANY (p_names) AND (w.ticket = 0 OR q.ticket < w.ticket) AND (q.owner_id",
			"WHERE false AND (q.owner_id"},
	}, integration, "^TestI9_ATreeIsServed|^TestADeadTicketInTheTree"},
	{"I8 subtree: the end of a lease below is not told", []edit{
		{schema, "WHERE s.name = ANY (ancestors(p_name)); IF EXISTS", "WHERE false; IF EXISTS"},
	}, integration, "^TestI8_TheEndOfWhat"},
	{"I8 subtree: the end of a subtree is not told", []edit{
		{schema, "WHERE q.name = p_name OR q.name >= p_name || '/' AND q.name < p_name || '0'", "WHERE false"},
	}, integration, "^TestI8_TheEndOfWhat"},
	{"I8 subtree: no lease below is watched", []edit{
		{schema, "GREATEST(first.until, clock_timestamp()) + interval '1 minute')", "NULL)"},
	}, integration, "^TestI8_TheEndOfWhat"},
	{"I1 subtree: a restart hides prepared grants", []edit{
		{schema, " OR k.pid IS NULL));", "));"},
	}, integration, "^TestI1_ASubtreeWaitsForAPrepared"},
	{"I9 subtree: later grants elsewhere hold up a subtree", []edit{
		{schema, "s.under := wait_out(s.under);", "s.under := wait_out(NULL);"},
	}, integration, "^TestI9_LaterGrants"},
	{"subtree: refusals tell those who wait around a subtree to ask", []edit{
		{schema, "AND (p_handed IS NOT NULL OR p_head.watched_until < 'infinity')", ""},
	}, integration, "^TestARefusalTellsNobody"},
	{"I8 subtree: news that comes during a question is lost", []edit{
		{"internal/queue/queue.go", "again := t.news.AskAgain && a.Ticket == t.number", "again := false"},
	}, "./internal/queue", "^TestNewsThatComes"},
	{"subtree: its owner waits below it", []edit{
		{schema, "IS TRUE AND in_tree(w) AND holds_above(w)", "IS TRUE AND false"},
	}, integration, "^TestTheOwnerOfASubtree"},
	{"I3 subtree: its lease passes any fence", []edit{
		{schema, " AND (NOT r.subtree OR {{schema}}.is_covered(r.resource, p_name, r.slot));", ";"},
	}, integration, "^TestASubtreePasses"},
	{"I3 subtree: the fence of a name above opens a row for any lease", []edit{
		{schema, "AND l.subtree AND l.grant_id = f.grant_id) THEN", "AND l.grant_id = f.grant_id) THEN"},
	}, integration, "^TestGuardsAcceptTheSubtree"},
	{"I3 subtree: the ID of an old transaction opens a row below", []edit{
		{schema, "AND f.advanced_at >= transaction_timestamp() AND l.subtree", "AND l.subtree"},
	}, integration, "^TestGuardsAcceptTheSubtree"},
	{"subtree: a lock below is handed out of it", []edit{
		{schema, "WHEN may_follow(w, head.owner_id) AND (NOT locked OR claim", "WHEN (NOT locked OR claim"},
	}, integration, "^TestHandOversInATree"},
	{"subtree: several are taken in the order of their bytes", []edit{
		{"pglock/subtree.go", `slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))`, "strings.Compare(a, b)"},
	}, integration, "^TestAcquireAllOfSubtrees"},
	{"subtree: circles through it are not found", []edit{
		{schema, "FROM obstacles(q.w) o WHERE in_tree(q.w)", "FROM obstacles(q.w) o WHERE false"},
	}, integration, "^TestCirclesThroughSubtrees"},
	{"subtree: circles behind one that waits are not found", []edit{
		{schema, "IF w.subtree THEN RETURN QUERY SELECT b.name, b.token,", "IF false THEN RETURN QUERY SELECT " +
			"b.name, b.token,"},
	}, integration, "^TestCirclesThroughSubtrees"},
	{"subtree: nobody looks for one that is being written", []edit{
		{schema, "LOCK TABLE subtrees IN SHARE MODE NOWAIT;", ""},
	}, integration, "^TestWhatSubtreesLeave"},
	{"I11 subtree: a name may have empty parts", []edit{
		{schema, "SELECT CASE WHEN '' = ANY (string_to_array(p_name, '/'))", "SELECT CASE WHEN false"},
	}, integration, "^TestI11_WhatCannotBe"},
	{"I1 subtree: who grants looks before the table is locked", []edit{
		{schema, "LOCK TABLE locks IN ROW EXCLUSIVE MODE; -- before any look: see wait_out", ""},
	}, integration, "^TestI1_ASubtreeWaitsForAGrant"},
	{"I1 subtree: who hands over looks before the table is locked", []edit{
		{schema, "LOCK TABLE locks IN ROW EXCLUSIVE MODE; -- as in fits_tree", ""},
	}, integration, "^TestI1_ASubtreeWaitsForAHandOver"},
	{"subtree: it is granted over what somebody has below a subtree that ended", []edit{
		{schema, "FROM below(w, NULL) b LIMIT 1;", "FROM below(w, NULL) b WHERE false LIMIT 1;"},
	}, integration, "^TestSubtreeIsNotGrantedOver"},
	{"subtree: a lock is handed out of one that its owner waits for", []edit{
		{schema, "WHERE a.token IS NOT NULL OR a.owner_id = p_owner_id);", "WHERE a.token IS NOT NULL);"},
	}, integration, "^TestNobodyHandsOverBelow"},
	{"subtree: each request leaves its row to the sweep", []edit{
		{schema, "FROM ended_requests(w.name, 100) e", "FROM ended_requests('', 0) e"},
	}, integration, "^TestASubtreeLeavesNoTrail"},
	{"I1 subtree: a statement for many draws tickets unseen", []edit{
		{schema, "LOCK TABLE locks IN ROW EXCLUSIVE MODE; -- grant_set has undone its own.", "--"},
	}, integration, "^TestI1_ASubtreeWaitsForAStatement"},
	{"I4 subtree: what ends many leases marks one of them", []edit{
		{schema, " AND current_setting('pglock.ends_many', true) IS DISTINCT FROM 'true' FOR", " FOR"},
	}, integration, "^TestI4_AWriteDoesNotOutlive"},
	{"subtree: a request without a ticket is watched for ever", []edit{
		{schema, "IF p_wait AND (p_taken OR p_head.expires_at > '-infinity' OR p_head.top_slot > 0 OR p_head.queued) " +
			"THEN ok := NOT w.subtree OR watch_subtree(w.name);",
			"ok := NOT w.subtree OR watch_subtree(w.name); IF p_wait AND (p_taken OR p_head.expires_at > " +
				"'-infinity' OR p_head.top_slot > 0 OR p_head.queued) THEN"},
	}, integration, "^TestARequestForASubtreeWithoutATicket"},
	{"subtree: a try for a free one gives up when somebody joins", []edit{
		{"pglock/acquire.go", "err == nil && q.isFree(a); n++", "err == nil && q.isFree(a) && false; n++"},
	}, integration, "^TestATryForAFreeSubtree"},
	{"I9 subtree: its owner passes the queue when it has ended", []edit{
		{schema, "NOT fits_tree(nxt, p_own)", "NOT fits_tree(nxt)"},
	}, integration, "^TestI9_TheOwnerOfASubtreeThatEnds"},
	{"subtree: an attempt waits for the head with a row locked that its holder changes", []edit{
		{schema, "AND NOT r.waited FOR UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED"},
	}, integration, "^TestAnAttemptForASubtree"},
	{"subtree: whoever is granted a lock below its own keeps its ticket", []edit{
		{schema, "IF g.token IS NOT NULL AND own THEN", "IF false THEN"},
	}, integration, "^TestAGrantBelowItsOwn"},
	{"I1 I6 subtree: whoever is granted a lock below its own is granted it by its ticket, too", []edit{
		{schema, "ELSIF g.token IS NOT NULL AND nxt.grant_id = p_grant_id THEN", "ELSIF false THEN"},
	}, integration, "^TestAGrantBelowItsOwn"},
	{"subtree: its owner queues behind those who wait for it", []edit{
		{schema, "take_head(w.name, own AND stays AND NOT p_joined, true)", "take_head(w.name, false, true)"},
		{schema, "IF own AND (p_wait OR NOT p_taken) THEN RAISE", "IF false THEN RAISE"},
	}, integration, "^TestTheOwnerOfASubtreeQueues"},
	{"I8 subtree: a ticket below its owner's own is not told to ask", []edit{
		{schema, "CASE WHEN is_own(m) THEN 0", "CASE WHEN false THEN 0"},
	}, integration, "^TestATicketBelowItsOwn"},
	{"subtree: a waiter for one's own closes a circle", []edit{
		{schema, "e.ticket < q.ticket AND NOT is_own(q.w)", "e.ticket < q.ticket"},
	}, integration, "^TestATicketBelowItsOwn"},
	{"subtree: circles behind a waiter for one's own are not found", []edit{
		{schema, "OR in_tree(e) AND (SELECT i.subtrees FROM installation i) AND EXISTS", "OR false AND EXISTS"},
	}, integration, "^TestCircleBehindAWaiter"},
	{"subtree: a waiter behind one's own ticket above closes a circle", []edit{
		{schema, "(a.token IS NOT NULL OR a.owner_id IS DISTINCT FROM q.owner_id)", "true"},
	}, integration, "^TestAWaiterBehindOnesOwn"},
	{"subtree: a waiter that one will pass by one's own ticket above closes a circle", []edit{
		{schema, "AND NOT (q.nested AND in_tree(e)", "AND NOT (false AND in_tree(e)"},
	}, integration, "^TestAWaiterThatOnesOwn"},
	{"subtree: a shared ticket above, by which one passes nobody, hides a circle", []edit{
		{schema, "q.mode = 'shared' OR (SELECT s.mode FROM subtrees s WHERE s.ticket = a.ticket) = 'exclusive'",
			"true"},
	}, integration, "^TestAWaiterThatOnesOwn"},
	{"I8 subtree: a ticket that is given up beside a holder is not announced", []edit{
		{schema, "AND (head.name IS NOT NULL OR l.watched_until = 'infinity')", "AND head.name IS NOT NULL"},
	}, integration, "^TestASubtreesTicket"},
	{"I4 subtree: what ends many leases locks the row of one above", []edit{
		{schema, "current_setting('pglock.ends_many', true) IS DISTINCT FROM 'true' AND is_own(w) THEN",
			"is_own(w) THEN"},
	}, integration, "^TestI4_AWriteDoesNotOutliveASubtree"},
	{"I4 subtree: a lease ends after a mark that an earlier end has left on it", []edit{
		{schema, "marked := FOUND AND set_config('pglock.kept', 'true', true) IS NOT NULL;", "marked := FOUND;"},
	}, integration, "^TestI4_AWriteDoesNotOutliveLeases"},
	{"I4 subtree: one ends after an earlier end has locked its row", []edit{
		{schema, "RETURN FOUND AND set_config('pglock.kept', 'true', true) IS NOT NULL;", "RETURN FOUND;"},
	}, integration, "^TestI4_AWriteDoesNotOutliveASubtree"},
	{"I4 subtree: a lease ends after a sweep that has marked it", []edit{
		{schema, "PERFORM set_config('pglock.kept', 'true', true) WHERE heads <> '{}';", ""},
	}, integration, "^TestI4_ALeaseDoesNotEndAfterASweep"},
	{"I8 subtree: its end is told to the dead", []edit{
		{schema, "CROSS JOIN next_waiter(h.name, h.served) w",
			"JOIN waiters w ON w.ticket = (SELECT min(o.ticket) FROM waiters o WHERE o.name = h.name)"},
	}, integration, "^TestI8_TheEndOfASubtree"},
	{"subtree: one that runs out meanwhile keeps the ticket of a grant below", []edit{
		{schema, "IF g.token IS NOT NULL AND own THEN", "IF g.token IS NOT NULL AND is_own(w) THEN"},
	}, integration, "^TestAGrantBelowItsOwn"},
	{"I6 subtree: an owner that repeats a try is told that it holds the lock", []edit{
		{schema, "AND l.owner_id = w.owner_id AND l.grant_id <> w.grant_id", "AND l.owner_id = w.owner_id"},
	}, integration, "^TestI6_ARepeatedTry"},
	{"subtree: a look at a hand-over does not look at what is in the way", []edit{
		{schema, "CASE WHEN would_fit(w) THEN 'handed over' END", "'handed over'"},
	}, integration, "^TestALookAtAHandOver"},
	{"subtree: a look hands over to a request that has not waited for grants under way", []edit{
		{schema, "OR (SELECT s.waited FROM subtrees s WHERE s.ticket = w.ticket) IS TRUE AND", "OR"},
	}, integration, "^TestALookAtAHandOver"},
	{"subtree: a look hands over what somebody has below", []edit{
		{schema, "AND NOT EXISTS (SELECT FROM below(w, NULL) b WHERE b.until > clock_timestamp()) $$;", "$$;"},
	}, integration, "^TestALookAtAHandOver"},
	{"subtree: its sweep ends a watch that somebody has asked for", []edit{
		{schema, "clock_timestamp() + interval '24 hours' WHERE l.name = ANY (heads)",
			"clock_timestamp() + interval '1 minute' WHERE l.name = ANY (heads)"},
	}, integration, "^TestTheSweepOfASubtreeEndsNoWatch"},
	{"subtree: its mark stays for ever where its head was locked", []edit{
		{schema, "AND (s.name = ANY (heads) OR NOT EXISTS (", "AND (true OR NOT EXISTS ("},
	}, integration, "^TestTheMarkOfASubtree"},
	{"subtree: a shared one is watched no longer than a sweep says", []edit{
		{schema, "watched_until = CASE WHEN p_batch[1].subtree THEN 'infinity' ELSE l.watched_until END",
			"watched_until = l.watched_until"},
	}, integration, "^TestASharedSubtreeIsWatched"},
}
