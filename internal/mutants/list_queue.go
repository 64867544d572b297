package main

// ofTheQueue are the faults of waiting: of tickets, turns in the queue, hints and circles.
var ofTheQueue = []mutant{
	{"I8 trap 7: a ticket is written without the head's lock", []edit{
		{schema, "LIMIT 1 FOR NO KEY UPDATE;\n    ELSE", "LIMIT 1;\n    ELSE"},
	}, integration, "^TestI8_"},
	{"I8 the head does not say that somebody queues", []edit{
		{schema, "    UPDATE locks l SET queued = true WHERE l.name = w.name AND l.slot = 0;\n    enqueue.place", "    enqueue.place"},
	}, integration, "^TestI8_Release|^TestI9_NoWay"},
	{"I8 who finds that all of the queue is dead queues unseen", []edit{
		{schema, "      r := enqueue(w, p_head.served, g.queued);", "      r := enqueue(w, p_head.served, p_head.queued);"},
	}, library, "^TestI8_I9_"},
	{"I8 a look that misses a ticket is not told", []edit{
		{"internal/queue/looks.go", "\t\t\tt.tell(News{AskAgain: true}) // granted, or skipped\n", ""},
	}, integration, "^TestI8_LostHints"},
	{"I8 the first in the queue has no timer", []edit{
		{"internal/queue/queue.go", "\tif t.first {\n\t\twait =", "\tif t.first && false {\n\t\twait ="},
	}, integration, "^TestI8_Crashed"},
	{"I9 last come, first served", []edit{
		{schema, "AND q.ticket > p_served ORDER BY q.ticket LIMIT 1;", "AND q.ticket > p_served ORDER BY q.ticket DESC LIMIT 1;"},
	}, integration, "^TestI9_Waiters"},
	{"I9 a newcomer overtakes the queue", []edit{
		{schema, "    IF nxt.ticket IS NULL THEN\n      g.queued := false; ", "    IF nxt.ticket IS NULL OR w.ticket IS NOT NULL THEN\n      g.queued := g.queued AND nxt.ticket IS NOT NULL; "},
	}, integration, "^TestI9_NoWay|^TestI9_Newcomer"},
	{"I9 a free lock is granted over the queue", []edit{
		{schema, " AND NOT h.queued AND h.top_slot", " AND h.top_slot"},
	}, integration, "^TestI9_NoWay|^TestI8_"},
	{"I9 a ticket is below those that were served", []edit{
		{schema, "  w.ticket := CASE WHEN w.ticket > p_served THEN w.ticket ELSE p_served + w.ticket END;\n", ""},
	}, integration, "^TestI9_Tickets"},
	{"I9 who has a ticket is served twice", []edit{
		{schema, "CASE WHEN NOT g.queued OR NOT EXISTS (SELECT FROM waiters q WHERE q.grant_id = w.grant_id)\n                                    THEN w END,  ", "w,  "},
	}, library, "^TestI6_WaiterThatAsks"},
	{"I9 every acquisition asks twice", []edit{
		{"pglock/wait.go", "left >= q.TTL/2, nil", "left >= 2*q.TTL, nil"},
	}, integration, "^TestI9_OneRequest"},
	{"I9 who comes during the last COMMIT waits in the server", []edit{
		{schema, "LIMIT 1 FOR NO KEY UPDATE;\n    ELSE", "LIMIT 1 FOR UPDATE;\n    ELSE"},
	}, integration, "^TestI9_Whoever"},
	{"I9 who comes during the last COMMIT is refused", []edit{
		{schema, "    IF p_wait THEN\n      r := enqueue", "    IF p_wait AND EXISTS (SELECT FROM locks l WHERE l.name = w.name AND l.expires_at > clock_timestamp()) THEN\n      r := enqueue"},
	}, integration, "^TestI9_Whoever"},
	{"sessions: dead waiters are served", []edit{
		{schema, "  RETURN EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp());", "  RETURN true;"},
	}, integration, "^TestDeadWaiters"},
	{"I7 a hint tells the TTL instead of what is left", []edit{
		{schema, "hint(r.ticket, r.token, r.slot, microseconds_until(r.expires_at), r.first_token", "hint(r.ticket, r.token, r.slot, (extract(epoch FROM r.ttl) * 1000000)::bigint, r.first_token"},
	}, integration, "^TestI7_Trust"},
	{"I7 a hint of an earlier ticket revives trust", []edit{
		{"internal/queue/queue.go", "\tif a.Ticket != t.number || t.news.Hint == nil {", "\tif t.news.Hint == nil {"},
	}, library, "^TestI7_LateHint"},
	{"I7 a hint is for whichever call waits", []edit{
		{"internal/queue/hint.go", "\tt := q.tickets[h.ticket]\n\tif t == nil {\n", "\tt := q.tickets[h.ticket]\n\tfor _, any := range q.tickets {\n\t\tt = any\n\t}\n\tif t == nil {\n"},
	}, library, "^TestI7_LateHint"},
	{"a hint is believed whoever tells it", []edit{
		{"internal/queue/hint.go", "\tif proof != digest(said, t.grantID) {\n\t\treturn\n\t}\n", ""},
	}, library, "^TestForged"},
	{"I20 the server's hints have another digest than the client's", []edit{
		{schema, "convert_to(said, 'UTF8') || uuid_send(p_grant_id)", "uuid_send(p_grant_id) || convert_to(said, 'UTF8')"},
	}, library, "Digests"},
	{"circles: an owner may wait for itself", []edit{
		{schema, "AND l.owner_id = p_owner_id AND l.expires_at > clock_timestamp() LIMIT 1;", "AND false LIMIT 1;"},
	}, integration, "^TestSelfDeadlock"},
	{"circles: a refused try of an owner that holds the lock does not say so", []edit{
		{schema, "  ok   boolean := NOT (held AND w.nested) OR refuse_own(w.name, w.owner_id);", "  ok   boolean := true;"},
	}, integration, "^TestSelfDeadlock"},
	{"circles: nobody looks for them", []edit{
		{"internal/queue/looks.go", "\t\t\tl.Nested = append(l.Nested, number)\n", "\t\t\t_ = number\n"},
	}, integration, "^TestCircle"},
	{"circles: one stuck holder of a semaphore is enough", []edit{
		{schema, "q.mode = 'limit' AND l.mode = 'limit' AND NOT b.behind AS any_of", "false AS any_of"},
	}, integration, "^TestHolderOfASemaphore"},
	{"circles: readers behind a writer without locks wait for nobody", []edit{
		{schema, "l.mode = 'shared' AND NOT b.behind)", "l.mode = 'shared')"},
		{schema, "l.mode = 'limit' AND NOT b.behind AS any_of", "l.mode = 'limit' AS any_of"},
	}, integration, "^TestCircleThroughAWriter"},
	{"a place in a long queue is counted to its end", []edit{
		{schema, "AND q.ticket < enqueue.ticket\n      ORDER BY q.ticket LIMIT 99) ahead;", "AND q.ticket < enqueue.ticket) ahead;"},
	}, integration, "^TestEveryFunctionReads"},
	{"the place of each that leaves is counted to the end of the queue", []edit{
		{schema, "AND q.ticket < t ORDER BY q.ticket LIMIT 99) ahead) END;", "AND q.ticket < t) ahead) END;"},
	}, integration, "^TestTheWorkGrows"},
}

// ofModes are the faults of readers, and of limits.
var ofModes = []mutant{
	{"modes: readers overtake a waiting writer", []edit{
		{schema, "    IF nxt.ticket IS NULL THEN\n      g.queued := false; ", "    IF nxt.ticket IS NULL OR w.mode = 'shared' THEN\n      g.queued := g.queued AND nxt.ticket IS NOT NULL; "},
	}, integration, "^TestShared"},
	{"modes: a limit has one holder too many", []edit{
		{schema, "ELSE nxt.capacity - limited END);", "ELSE nxt.capacity - limited + 1 END);"},
		{schema, "LEAST(top + p_most - coalesce(cardinality(slots), 0), p_capacity)));", "top + p_most - coalesce(cardinality(slots), 0)));"},
	}, integration, "^TestLimitIs|^TestI1_ASemaphore"},
	{"modes: slots go beyond the limit", []edit{
		{schema, "LEAST(top + p_most - coalesce(cardinality(slots), 0), p_capacity)));", "top + p_most - coalesce(cardinality(slots), 0)));"},
	}, integration, "^TestNoSlotIsAbove"},
	{"modes: a slot above the limit is used again", []edit{
		{schema, "AND l.slot > 0 AND l.slot <= coalesce(p_capacity, l.slot) AND is_over", "AND l.slot > 0 AND is_over"},
	}, integration, "^TestNoSlotIsAbove"},
	{"I1 a slot is granted without its row's lock", []edit{
		{schema, "    ORDER BY l.slot LIMIT GREATEST(p_most, 0) FOR UPDATE SKIP LOCKED) f;", "    ORDER BY l.slot LIMIT GREATEST(p_most, 0)) f;"},
	}, integration, "^TestI1_ASemaphore|^TestI1_NoGrant|^TestI4_|^TestI1_I13_"},
	{"I1 what is decided about slots goes by the clock alone", []edit{
		{schema, "FROM (SELECT l.slot, l.mode, l.token, NOT is_over(l.expires_at, l.ended_at) AS held FROM", "FROM (SELECT l.slot, l.mode, l.token, l.expires_at > clock_timestamp() AS held FROM"},
	}, integration, "^TestI1_NoGrant|^TestI1_ASemaphore"},
	{"I1 two limits are in use at once", []edit{
		{schema, "    IF w.mode = 'limit' AND p_head.limit_named IS DISTINCT FROM w.capacity\n      AND refuse_limit(w.name, w.capacity, true) THEN", "    IF false THEN"},
	}, integration, "^TestI1_TwoLimits|^TestLimitMust"},
	{"I1 the limit is read before the head is locked", []edit{
		{schema, "    IF w.mode = 'limit' AND p_head.limit_named IS DISTINCT FROM w.capacity\n      AND refuse_limit(w.name, w.capacity, true) THEN", "    IF w.mode = 'limit' AND p_head.limit_named IS DISTINCT FROM w.capacity THEN"},
	}, integration, "^TestI1_TwoLimits"},
	{"I21 a request goes on without the head that was pruned", []edit{
		{schema, "    EXIT WHEN FOUND OR NOT p_make OR NOT p_wait AND EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0);", "    EXIT WHEN true;"},
	}, integration, "^TestI21_PruneBeside|^TestShared"},
	{"I9 grants in slots are not announced", []edit{
		{"internal/server/server.go", "\t\tif s != 0 {\n\t\t\tothers", "\t\tif false {\n\t\t\tothers"},
	}, integration, "^TestI9_Readers"},
}
