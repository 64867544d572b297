package main

// ofTheQueue are the faults of waiting: of tickets, the order of the queue, hints and circles.
var ofTheQueue = []mutant{
	{"I8 trap 7: a ticket is written without the head's lock", []edit{
		{schema, "LIMIT 1 FOR KEY SHARE); EXIT WHEN head.name", "LIMIT 1); EXIT WHEN head.name"},
	}, integration, "^TestI8_"},
	{"I8 who asks again has the ticket that was passed over", []edit{
		{
			schema,
			"ELSIF r.ticket > p_head.served THEN enqueue.ticket := r.ticket; EXIT; END IF;",
			"ELSE enqueue.ticket := r.ticket; EXIT; END IF;",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I8 a look that misses a ticket is not told", []edit{
		{"internal/queue/looks.go", "\t\t\tt.tell(News{AskAgain: true}) // granted, or skipped\n", ""},
	}, integration, "^TestI8_LostHints"},
	{"I8 whoever rests goes on resting while others are served", []edit{
		{"internal/queue/queue.go", "t.Owner.Nested() || s.Served != t.served {", "t.Owner.Nested() {"},
	}, library, "^TestWaiterBehindTwo|^TestI8_WaiterThatRests"},
	{"I8 whoever is near rests", []edit{
		{"internal/queue/queue.go", "if s.Ahead < restAhead || !t.alone ||", "if !t.alone ||"},
	}, library, "^TestWaiterBehindTwo"},
	{"I8 whoever asks for a short lease rests", []edit{
		{"internal/queue/queue.go", "!t.alone || t.ttl < restTTL ||", "!t.alone ||"},
	}, library, "^TestWaiterBehindTwo"},
	{"I8 whoever belongs to a crowd rests", []edit{
		{"internal/queue/queue.go", "s.Ahead < restAhead || !t.alone ||", "s.Ahead < restAhead ||"},
	}, library, "^TestWaiterBehindTwo"},
	{"whoever holds a lock rests", []edit{
		{"internal/queue/queue.go", "t.ttl < restTTL || t.Owner.Nested() ||", "t.ttl < restTTL ||"},
	}, library, "^TestWaiterBehindTwo"},
	{"nobody rests", []edit{
		{"internal/queue/queue.go", "t.rests = t.still >= restAfter", "t.rests = false"},
	}, library, "^TestWaiterBehindTwo"},
	{"I8 whoever stops to rest waits for the next look of its rest", []edit{
		{"internal/queue/looks.go", "\tif rested && q.polls() {", "\tif rested && false {"},
	}, library, "^TestI8_TheWayFromFar"},
	{"I8 whoever stops to rest does not listen", []edit{
		{
			"internal/queue/looks.go",
			"\t\t\tif t.notice(s, now) {\n\t\t\t\tt.signal()\n\t\t\t}\n", "\t\t\tt.notice(s, now)\n",
		},
	}, library, "^TestI8_WaiterThatRests|^TestWaiterBehindTwo"},
	{"I8 whoever rests looks as one that is deaf", []edit{
		{"internal/queue/queue.go", "return !q.hears && !q.rests", "return !q.hears"},
	}, library, "^TestI8_WaiterThatRests"},
	{"I8 whoever rests looks without regard to its lease", []edit{
		{"internal/queue/queue.go", "restLook, q.ttl, t.ttl/3)", "restLook, q.ttl)"},
	}, library, "^TestWaiterFarFrom"},
	{"I8 whoever rests looks without regard to its session", []edit{
		{"internal/queue/queue.go", "restLook, q.ttl, t.ttl/3)", "restLook, t.ttl/3)"},
	}, library, "^TestWaiterFarFrom"},
	{"I8 whoever rests looks less often at once", []edit{
		{"internal/queue/queue.go", "min(t.still/restPart, restLook,", "min(restLook,"},
	}, library, "^TestWaiterFarFrom"},
	{"I8 a session that rests dies between two looks", []edit{
		{"internal/queue/looks.go", "\t\tl.Alive += q.rest\n", ""},
	}, library, "^TestI8_LookThatHangs"},
	{"I8 a look that hangs while its client rests is repeated late", []edit{
		{"internal/queue/looks.go", "now.Add(min(every, q.slowest))", "now.Add(every)"},
	}, "./internal/queue", "^TestALookThatRests"},
	{"whoever rests looks every second after all", []edit{
		{"internal/queue/looks.go", "\t\tq.next = l.next\n", ""},
	}, library, "^TestWaiterFarFrom"},
	{"every client sweeps", []edit{
		{schema, "BETWEEN clock_timestamp() - p_every AND clock_timestamp() FROM swept_seq",
			"BETWEEN clock_timestamp() AND clock_timestamp() FROM swept_seq"},
	}, integration, "^TestWhoeverSweeps"},
	{"what a sweep has left waits for a minute", []edit{
		{"pglock/heartbeat.go", "\t\t\t\th.sweepIn(sweepOn)\n\t\t\t\th.left.Store(true)\n", ""},
	}, library, "^TestClientThatLeaves"},
	{"whoever goes on sweeping leaves it to itself", []edit{
		{"pglock/heartbeat.go", "lately = sweepOn", "lately = sweptLately"},
	}, library, "^TestClientThatLeaves"},
	{"who has nothing but short work does not sweep", []edit{
		{"pglock/leases.go", "\tc.worked.Store(true)\n", ""},
	}, library, "^TestClientWithShortWork"},
	{"a sweep without the history counts as one", []edit{
		{schema, "IF p_history AND p_every IS NOT NULL AND p_limit", "IF p_limit"},
	}, integration, "^TestWhoeverSweeps"},
	{"who sweeps a row at a time keeps all clients from it", []edit{
		{schema, "AND p_limit >= 1000 THEN", "THEN"},
	}, integration, "^TestWhoeverSweeps"},
	{"a clock that was set back ends all sweeping", []edit{
		{schema, "BETWEEN clock_timestamp() - p_every AND clock_timestamp() FROM swept_seq",
			"> clock_timestamp() - p_every FROM swept_seq"},
	}, integration, "^TestWhoeverSweeps"},
	{"I8 a look seldom writes that the session lives for longer", []edit{
		{schema, "until >= clock_timestamp() + p_session_ttl - LEAST(p_session_ttl * 0.3, interval '3 s')",
			"until >= clock_timestamp() + p_session_ttl * 0.7"},
	}, integration, "^TestI8_ALookKeepsASession"},
	{"I8 a request shortens the life of a session that rests", []edit{
		{schema, "alive_until = GREATEST(s.alive_until, clock_timestamp() + p_session_ttl)",
			"alive_until = clock_timestamp() + p_session_ttl"},
	}, integration, "^TestI8_ALookKeepsASession"},
	{"I8 a look does not say that it could not keep the session", []edit{
		{schema, "FOR NO KEY UPDATE SKIP LOCKED); END IF; RETURN FOUND;",
			"FOR NO KEY UPDATE SKIP LOCKED); END IF; RETURN true;"},
	}, integration, "^TestI8_ALookKeepsASession"},
	{"I8 whoever rests trusts a look that could not keep the session", []edit{
		{"internal/queue/looks.go", " && kept(found) {", " {"},
	}, "./internal/queue", "^TestALookThatRests"},
	{"circles: a look that takes long hides that the next must come at once", []edit{
		{"internal/queue/queue.go", "len(q.tickets) == 1 || t.Owner.Nested() || next", "len(q.tickets) == 1 || next"},
	}, "./internal/queue", "^TestATicketThatMayClose"},
	{"I8 a look under way hides that the next must come sooner", []edit{
		{"internal/queue/looks.go", " && q.rest == l.rest &&", " &&"},
	}, "./internal/queue", "^TestALookThatRests"},
	{"the client that sweeps leaves it to others", []edit{
		{"pglock/heartbeat.go", "lately := sweptLately", "lately := sweepEvery + time.Second"},
	}, library, "^TestClientWithAHeartbeatSweeps"},
	{"whoever finds that another sweeps asks as often", []edit{
		{"pglock/heartbeat.go", "h.sweepIn(sweepEvery + rand.N(othersSweep-sweepEvery))", "h.sweepIn(sweepEvery)"},
	}, library, "^TestClientThatFinds"},
	{"I8 a look does not tell whether the queue moves", []edit{
		{schema, "n.nests)) END, m.upto, alive", "n.nests)) END, 0::bigint, alive"},
	}, integration, "^TestI8_ALookTells"},
	{"I7 the time in which a request waits for the pool counts", []edit{
		{"pglock/request.go", "\t\t\tq.Asked = q.Asked.Add(a.Waited)\n", ""},
	}, integration, "^TestI7_TrustInAGrantBegins"},
	{"I8 the first in the queue has no timer", []edit{
		{"internal/queue/queue.go", "\tif t.first {\n\t\twait =", "\tif t.first && false {\n\t\twait ="},
	}, integration, "^TestI8_Crashed"},
	{"I9 last come, first served", []edit{
		{schema, "AND q.ticket > p_served ORDER BY q.ticket LIMIT 1;", "AND q.ticket > p_served ORDER BY q.ticket " +
			"DESC LIMIT 1;"},
	}, integration, "^TestI9_Waiters"},
	{"I9 trap 7: a release wakes all who wait", []edit{
		{schema, "n := n + 1; ok := pg_notify(", "n := n + 1; PERFORM pg_notify('pglock_' || " +
			"replace(q.session_id::text, '-', ''), 'free') FROM waiters q WHERE q.name = r.name; ok := pg_notify("},
	}, integration, "^TestI9_Trap7_"},
	{"I9 a newcomer overtakes the queue", []edit{
		{
			schema,
			"nxt := next_waiter(p_head.name, upto); IF p_own",
			"nxt := next_waiter(p_head.name, upto); IF w.ticket IS NOT NULL",
		},
	}, integration, "^TestI9_NoWay|^TestI9_Newcomer"},
	{"I8 I9 who has joined queues for a lock that was released meanwhile", []edit{
		{
			schema,
			"IF p_wait AND (p_taken OR p_head.expires_at > '-infinity' OR p_head.top_slot > 0 OR p_head.queued) THEN",
			"IF p_wait THEN",
		},
	}, integration, "^TestI8_NoTicket"},
	{"I9 a ticket is below those that were served", []edit{
		{schema, "  IF t <= p_served THEN\n    PERFORM FROM installation", "  IF false THEN\n    PERFORM FROM " +
			"installation"},
	}, integration, "^TestI9_Tickets"},
	{"I9 a ticket is before others when the sequence catches up", []edit{
		{schema, "  IF t <= p_served THEN\n    PERFORM FROM installation", "  IF t <= p_served THEN\n    RETURN " +
			"p_served + t;\n    PERFORM FROM installation"},
	}, integration, "^TestI9_Tickets"},
	{"I9 who has a ticket is served twice", []edit{
		{
			schema,
			"CASE WHEN NOT own AND ( SELECT q.ticket FROM waiters q WHERE q.grant_id = w.grant_id) > " +
				"p_head.served THEN NULL ELSE w END,",
			"w,",
		},
	}, library, "^TestI6_WaiterThatAsks"},
	{"I9 every acquisition asks twice", []edit{
		{"pglock/wait.go", "left >= q.TTL/2, nil", "left >= 2*q.TTL, nil"},
	}, integration, "^TestI9_OneRequest"},
	{"I9 who comes during the last COMMIT waits in the server", []edit{
		{schema, "LIMIT 1 FOR KEY SHARE); EXIT WHEN head.name", "LIMIT 1 FOR UPDATE); EXIT WHEN head.name"},
	}, integration, "^TestI9_Whoever"},
	{"I9 who comes during the last COMMIT is refused", []edit{
		{
			schema,
			"IF p_wait AND (p_taken OR p_head.expires_at > '-infinity' OR p_head.top_slot > 0 OR p_head.queued) THEN",
			"IF p_wait AND EXISTS (SELECT FROM locks l WHERE l.name = w.name AND is_running(l.expires_at, " +
				"l.ended_at)) THEN",
		},
	}, integration, "^TestI9_Whoever"},
	{"I14 who queues is in the way of the holder's renewals", []edit{
		{schema, "LIMIT 1 FOR KEY SHARE); EXIT WHEN head.name", "LIMIT 1 FOR NO KEY UPDATE); EXIT WHEN head.name"},
	}, integration, "^TestI14_Whoever|^TestI13_NobodyHolds"},
	{"I14 a newcomer takes the head of a lock that is held", []edit{
		{
			schema,
			"CASE WHEN own OR NOT p_joined AND NOT (stays AND is_held(w, head)) THEN take_head(w.name, own AND " +
				"stays AND NOT p_joined, true) END, " +
				"p_wait, true);",
			"take_head(w.name, false, true), p_wait, true);",
		},
	}, integration, "^TestI14_Whoever|^TestI13_NobodyHolds"},
	{"I8 I9 who has joined grants", []edit{
		{
			schema,
			"IF p_taken AND NOT is_running(p_head.expires_at, p_head.ended_at) THEN",
			"IF NOT is_running(p_head.expires_at, p_head.ended_at) THEN",
		},
	}, integration, "^TestI8_NoTicket"},
	{"I8 a release of a slot does not take the head", []edit{
		{schema, "head := take_head(p_name, true, false); mine := (", "mine := ("},
	}, integration, "^TestI8_Trap7_|^TestI8_WhoeverEnds"},
	{"I8 who takes the head waits for nobody who has joined", []edit{
		{schema, "LIMIT 1 FOR UPDATE); ELSE head := (", "LIMIT 1 FOR NO KEY UPDATE); ELSE head := ("},
	}, integration, "^TestI8_WhoeverEnds"},
	{"I9 who serves the queue waits for a ticket that is being taken back", []edit{
		{
			schema,
			"LIMIT pg_catalog.cardinality(p_batch) + 1000 FOR UPDATE SKIP LOCKED)) RETURNING q.ticket)",
			"LIMIT pg_catalog.cardinality(p_batch) + 1000 FOR UPDATE)) RETURNING q.ticket)",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 a ticket that is being taken back is served", []edit{
		{schema, "WHERE b.ticket = ANY (got)); END $$;", "); END $$;"},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 the queue stops at a writer's ticket that is being taken back", []edit{
		{
			schema,
			"batch := claim(ARRAY[nxt], upto); IF batch",
			"batch := claim(ARRAY[nxt], upto); EXIT WHEN batch IS NULL; IF batch",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 the queue stops at the ticket for a slot that is being taken back", []edit{
		{
			schema,
			"ELSE ARRAY[nxt] END, upto); END IF; IF batch",
			"ELSE ARRAY[nxt] END, upto); EXIT WHEN batch IS NULL; END IF; IF batch",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 the lock is handed over to whoever is leaving", []edit{
		{
			schema,
			"(NOT locked OR claim(ARRAY[w], w.ticket - 1) IS NOT NULL)",
			"(NOT locked OR coalesce(claim(ARRAY[w], w.ticket - 1), ARRAY[w]) IS NOT NULL)",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 the lock is handed over to whoever was passed over", []edit{
		{
			schema,
			"AND q.ticket > coalesce(w.ticket, head.served) AND q.holder = p_to",
			"AND q.ticket > coalesce(w.ticket, 0) AND q.holder = p_to",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"a break of a session waits for a ticket that is being taken back", []edit{
		{
			schema,
			"AND o.ticket > head.served FOR UPDATE SKIP LOCKED)) RETURNING n,",
			"AND o.ticket > head.served FOR UPDATE)) RETURNING n,",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I25 a statement for many waits for what it has passed", []edit{
		{schema, "IF p_name COLLATE \"C\" < p_locked THEN", "IF false THEN"},
	}, integration, "^TestI25_AStatementForManyDoesNotWait"},
	{"I9 grants in slots forget how far the queue was served", []edit{
		{schema, "IF exclusive = 0 AND upto > p_head.served THEN", "IF false THEN"},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I9 a grant of the head forgets how far the queue was served", []edit{
		{
			schema,
			"p_head.expires_at > '-infinity', GREATEST(upto, nxt.ticket));",
			"p_head.expires_at > '-infinity', 0);",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"I8 a look tells whoever was passed over that it is queued", []edit{
		{schema, "unnest(n.ws) m WHERE m.ticket > s.upto)", "unnest(n.ws) m)"},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"who was passed over is listed as a waiter", []edit{
		{schema, "ON h.name = q.name AND h.slot = 0 AND q.ticket > h.served;", "ON h.name = q.name AND h.slot = 0;"},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"who was passed over is counted as a waiter", []edit{
		{
			schema,
			"WHERE q.name = l.name AND q.ticket > h.served ORDER BY q.ticket LIMIT 1000000) w)",
			"WHERE q.name = l.name ORDER BY q.ticket LIMIT 1000000) w)",
		},
	}, integration, "^TestI9_ATicketThatIsBeingTakenBack"},
	{"those who died in the queue are read again and again", []edit{
		{schema, "upto := GREATEST(upto, (SELECT s.last_value FROM ticket_seq s WHERE", "upto := GREATEST(upto, " +
			"(SELECT " +
			"upto FROM ticket_seq s WHERE"},
	}, integration, "^TestThoseWhoDied"},
	{"tickets of the dead stay when those behind them are served", []edit{
		{
			schema,
			"AND o.ticket > p_served AND o.ticket <= top ORDER BY",
			"AND o.ticket >= p_batch[1].ticket AND o.ticket <= top ORDER BY",
		},
	}, integration, "^TestI9_ReleaseServes"},
	{"I8 whoever takes the head does not knock", []edit{
		{schema, "IF p_wait THEN PERFORM knock(p_name, 0); END IF; LOOP IF p_wait THEN", "LOOP IF p_wait THEN"},
		{schema, "BEGIN PERFORM knock(p_name, 0); IF current_setting('lock_timeout')",
			"BEGIN IF current_setting('lock_timeout')"},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"whoever takes rows that nobody has locked knocks", []edit{
		{schema, "IF FOUND OR NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = p_slot AND " +
			"(p_grant_id IS NULL OR l.grant_id = p_grant_id AND is_running(l.expires_at, l.ended_at))) THEN",
			"IF false THEN"},
	}, integration, "^TestWhoeverEndsThousands"},
	{"whoever has no lease any more locks its row", []edit{
		{schema, "AND (p_grant_id IS NULL OR l.grant_id = p_grant_id AND is_running(l.expires_at, l.ended_at)) FOR " +
			"UPDATE", "AND (p_grant_id IS NULL OR l.grant_id = p_grant_id) FOR UPDATE"},
	}, integration, "^TestI4_AnEndThatIsTooLate|^TestWhoeverHasNoLease"},
	{"I8 whoever spends does not knock", []edit{
		{schema, "BEGIN PERFORM knock(p_name, 0); IF current_setting('lock_timeout')",
			"BEGIN IF current_setting('lock_timeout')"},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 a release does not knock", []edit{
		{schema, "IF p_at IS NULL THEN PERFORM knock(p_name, 0, p_grant_id);", "IF p_at IS NULL THEN"},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 a hand-over does not knock", []edit{
		{
			schema,
			"PERFORM knock(p_name, 0, p_grant_id); PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 AND",
			"PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 AND",
		},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 a break does not knock", []edit{
		{schema, "PERFORM knock(p_name, coalesce(p_slot, 0)); IF await_row(p_name, coalesce(p_slot, 0))",
			"IF await_row(p_name, coalesce(p_slot, 0))"},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 whoever queues gives no way", []edit{
		{schema, "ok := p_locked OR give_way(w.name, p_many);", ""},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 many who queue give no way", []edit{
		{schema, "ok := p_locked OR give_way(w.name, p_many);", "ok := p_many OR give_way(w.name, false);"},
		{schema, "  ok      boolean := give_way(p_requests[1].name, true);", "  ok      boolean;"},
	}, integration, "^TestI8_WhoeverEndsALeaseIsNotPassed"},
	{"I8 each of many gives way again", []edit{
		{schema, "ok := p_locked OR give_way(w.name, p_many);", "ok := give_way(w.name, p_many);"},
	}, integration, "^TestI8_AStatementForMany"},
	{"I8 of many only those who queue have locked the head", []edit{
		{schema, "AND (p_waits[i] OR p_retries[i]);", "AND p_waits[i];"},
	}, integration, "^TestI8_AStatementForMany"},
	{"I8 of many those who were granted a lock give way for it", []edit{
		{schema, "locked := locked OR answers[i].granted;", ""},
	}, integration, "^TestI8_AStatementForMany"},
	{"I8 of many those behind a try that was refused give no way", []edit{
		{schema, "locked := locked OR answers[i].granted;", "locked := true;"},
	}, integration, "^TestI8_AStatementForMany"},
	{"I4 whoever has joined a head takes it", []edit{
		{schema, "CASE WHEN own OR NOT p_joined AND NOT (stays", "CASE WHEN own OR NOT (stays"},
	}, integration, "^TestI4_OfManyForOneLock"},
	{"I14 who leaves the queue of a held lock takes its head", []edit{
		{
			schema,
			"head := CASE WHEN mine OR NOT is_running(head.expires_at, head.ended_at) THEN take_head(p_name, mine OR " +
				"(head.top_slot > 0 OR is_over(head.expires_at, head.ended_at)) AND await_to_leave(p_name), " +
				"false) END;",
			"head := take_head(p_name, true, false);",
		},
	}, integration, "^TestI14_Whoever"},
	{"who leaves the queue stays in it while somebody keeps the head locked", []edit{
		{schema, "AND await_to_leave(p_name), false)", "AND true, false)"},
	}, integration, "^TestI8_WhoeverLeavesBeside"},
	{"many who leave one queue stay in it while somebody keeps the head locked", []edit{
		{schema, "ok := p_names[1] = ALL (p_names) OR", "ok := pg_catalog.cardinality(p_names) = 1 OR"},
	}, integration, "^TestI8_WhoeverLeavesBeside"},
	{"I14 a session that ends takes the heads of its queues", []edit{
		{
			schema,
			"DELETE FROM waiters q WHERE q.session_id = session_of(p_session_key);",
			"PERFORM FROM locks l WHERE l.slot = 0 AND l.name IN ( SELECT q.name FROM waiters q WHERE " +
				"q.session_id = session_of(p_session_key)) FOR UPDATE; DELETE FROM waiters q WHERE q.session_id " +
				"= session_of(p_session_key);",
		},
	}, integration, "^TestI14_Whoever"},
	{"I13 a request that waits may be idle for ever afterwards", []edit{
		{schema, "END IF; ok := p_many OR bound_rest(p_alone);", "END IF;"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 requests for many may be idle for ever afterwards", []edit{
		{schema, "ok := bound_rest(p_alone); END $$; -- check_request", "END $$; -- check_request"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a release may be idle for ever afterwards", []edit{
		{
			schema,
			"IF p_alone IS NOT TRUE THEN ok := {{schema}}.bound_rest(false); END IF;",
			"",
		},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a release of many may be idle for ever afterwards", []edit{
		{schema, "ok := bound_rest(p_alone); END $$; -- release_otherwise", "END $$; -- release_otherwise"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a hand-over may be idle for ever afterwards", []edit{
		{schema, "ok := bound_rest(false); g := tell(", "g := tell("},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 whoever leaves the queue may be idle for ever afterwards", []edit{
		{schema, "ok := bound_rest(p_alone); END $$; -- give_up_all", "END $$; -- give_up_all"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a watch may be idle for ever afterwards", []edit{
		{schema, "ok := bound_rest(false); END IF; RETURN QUERY", "END IF; RETURN QUERY"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a prune may be idle for ever afterwards", []edit{
		{schema, "next := names[p_limit]; END IF; ok := bound_rest(false);", "next := names[p_limit]; END IF;"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a try that is granted may be idle for ever afterwards", []edit{
		{schema, "IF p_alone IS NOT TRUE AND (a.granted OR late) THEN", "IF late THEN"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a try that is refused limits the rest of the transaction", []edit{
		{
			schema,
			"IF p_alone IS NOT TRUE AND (a.granted OR late) THEN ok := {{schema}}.bound_rest(a.granted); END IF;",
			"IF NOT p_alone THEN ok := {{schema}}.bound_rest(true); END IF;",
		},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a renewal may be idle for ever afterwards", []edit{
		{
			schema,
			"FOR NO KEY UPDATE) h; END IF; ok := p_alone OR bound_rest(true) AND",
			"FOR NO KEY UPDATE) h; END IF; ok := p_alone OR",
		},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 a statement may last for ever after one that has locked", []edit{
		{schema, "AND (p_idle OR bound_timeout('statement_timeout', 1000) AND", "AND (p_idle OR"},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"I13 what locks raises a lower limit of the user", []edit{
		{
			schema,
			"SELECT CASE WHEN current_setting(p_setting) = '0' OR extract(epoch FROM (current_setting(p_setting) || " +
				"CASE WHEN current_setting(p_setting) ~ '^[0-9]+$' THEN ' ms' ELSE '' END)::interval) * 1000 " +
				"> p_ms THEN",
			"SELECT CASE WHEN true THEN",
		},
	}, integration, "^TestI13_WhoeverHasLocked"},
	{"sessions: dead waiters are served", []edit{
		{schema, "  RETURN EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > " +
			"clock_timestamp());", "  RETURN true;"},
	}, integration, "^TestDeadWaiters"},
	{"I7 a hint tells the TTL instead of what is left", []edit{
		{schema, "hint(r.ticket, r.token, r.slot, microseconds_until(r.expires_at), r.grant_id",
			"hint(r.ticket, r.token, r.slot, (extract(epoch FROM r.ttl) * 1000000)::bigint, r.grant_id"},
	}, integration, "^TestI7_Trust"},
	{"I7 a hint of an earlier ticket revives trust", []edit{
		{"internal/queue/queue.go", "\tif a.Ticket != t.number || t.news.Hint == nil {", "\tif t.news.Hint == nil {"},
	}, library, "^TestI7_LateHint"},
	{"I7 the hint of an abandoned call counts from its answer", []edit{
		{"pglock/takeback.go", "q.Name, a.Handed, new(q.Asked.Add(a.Waited)))", "q.Name, a.Handed, new(c.now()))"},
	}, library, "^TestI7_HintOfAnAbandoned"},
	{"I8 a release whose call has left tells nobody", []edit{
		{"internal/server/server.go", "released(r.Claim, e, err) }\n", "_ = released }\n"},
	}, library, "^TestI8_AReleaseWhose"},
	{"I8 a hand-over whose call has left tells nobody", []edit{
		{"internal/server/server.go", "\ts.handOvers.Abandoned = handedOver\n", "\t_ = handedOver\n"},
	}, library, "^TestI8_AReleaseWhose"},
	{"I8 an end whose answer is lost is not announced", []edit{
		{"pglock/lease.go", "\t\tl.client.tellUnconfirmed(ctx, l.name, l.slot)\n", ""},
		{"pglock/handover.go", "\t\t\t\tl.client.tellUnconfirmed(ctx, l.name, l.slot)\n", ""},
		{"pglock/close.go", "; lost && !e.Released {", "; false {"},
		{"pglock/takeback.go", "; u.Lost {", "; false {"},
	}, library, "^TestWhoeverGetsALockByAnAnswer"},
	{"I8 an end that is lost after its call has left is not announced", []edit{
		{"pglock/takeback.go", "	case server.AnswerLost(err):\n\t\tc.tell", "	case false:\n\t\tc.tell"},
	}, library, "^TestWhoeverGetsALockByALate"},
	{"I8 Close forgets an answer that is lost beside a refusal", []edit{
		{"pglock/close.go", "\t\t\t\tlost = lost || server.AnswerLost(err)\n", ""},
	}, library, "^TestCloseAnnounces"},
	{"a plain release travels with an announcement", []edit{
		{"internal/server/server.go", "\t\ttogether = s.announced\n", ""},
	}, "./internal/server", "^TestAReleaseWaitsForNoAnnouncement"},
	{"I7 a hint is for whichever call waits", []edit{
		{"internal/queue/hint.go", "\tt := q.tickets[h.ticket]\n\tif t == nil {\n",
			"\tt := q.tickets[h.ticket]\n\tfor _, any := range q.tickets {\n\t\tt = any\n\t}\n\tif t == nil {\n"},
	}, library, "^TestI7_LateHint"},
	{"a hint is believed whoever tells it", []edit{
		{"internal/queue/hint.go", "\tif proof != digest(said, t.grantID) {\n\t\treturn\n\t}\n", ""},
	}, library, "^TestForged"},
	{"I20 the server's hints have another digest than the client's", []edit{
		{schema, "convert_to(said, 'UTF8') || uuid_send(p_grant_id)", "uuid_send(p_grant_id) || convert_to(said, " +
			"'UTF8')"},
	}, library, "Digests"},
	{"circles: an owner may wait for itself", []edit{
		{schema, "AND l.owner_id = w.owner_id AND l.grant_id <> w.grant_id AND is_running(l.expires_at, l.ended_at) " +
			"LIMIT 1;", "AND false LIMIT 1;"},
	}, integration, "^TestSelfDeadlock"},
	{"circles: a refused try of an owner that holds the lock does not say so", []edit{
		{schema, "  ok   boolean := NOT w.nested OR refuse_own(w);                        -- whose lease may be in " +
			"any slot", "  ok   boolean := true;"},
	}, integration, "^TestSelfDeadlock"},
	{"circles: only the exclusive holder is told that it holds the lock", []edit{
		{schema, "  ok   boolean := NOT w.nested OR refuse_own(w);                        -- whose",
			"  ok   boolean := NOT (held AND w.nested) OR refuse_own(w);                        -- whose"},
	}, integration, "^TestAnOwnerIsTold"},
	{"circles: an owner is told that it holds what it holds no more", []edit{
		{"pglock/request.go", " && !q.owner.holds(q.Name)", " && false"},
	}, library, "^TestOwnerWaitsForALease"},
	{"circles: a lease that has ended is a circle", []edit{
		{"pglock/wait.go", " || q.owner.holds(q.Name)):", " || true):"},
	}, library, "^TestCircleOfOne"},
	{"I8 a waiter stays far from the front for ever", []edit{
		{"internal/queue/looks.go", "\t\t\tq.restless(q.restOf(t), now)\n", ""},
		{"internal/queue/looks.go", "\t\tq.rest = min(q.rest, q.restOf(t))\n", ""},
	}, library, "^TestWaiterFarFrom"},
	{"I8 a new ticket near the front is looked at like those far from it", []edit{
		{"internal/queue/queue.go", "\tq.rest = min(q.rest, q.restOf(t))\n", ""},
	}, library, "^TestOneTicketNear"},
	{"I8 dead waiters keep others far from the front", []edit{
		{schema, "q.ticket < o.ticket AND EXISTS (\n            SELECT FROM sessions s WHERE s.session_id = " +
			"q.session_id AND s.alive_until > clock_timestamp())\n          ORDER", "q.ticket < o.ticket\n          " +
			"ORDER"},
	}, integration, "^TestI8_ALookCounts"},
	{"I7 looks of a short lease are too rare to trust its hint", []edit{
		{"internal/queue/queue.go", "min(farLook, q.ttl/4, t.ttl/4)", "min(farLook, q.ttl/4)"},
	}, library, "^TestWaiterFarFrom"},
	{"I8 a session that waits far from the front is not looked after in time", []edit{
		{"internal/queue/queue.go", "min(farLook, q.ttl/4, t.ttl/4)", "min(farLook, t.ttl/4)"},
	}, library, "^TestWaiterFarFrom"},
	{"circles: one that a grant closes far from the front is found late", []edit{
		{"pglock/leases.go", "if c.queue.Held(at) || beatSooner {", "if beatSooner {"},
	}, library, "^TestOwnerThatIsGranted"},
	{"a listener that never heard itself counts on others", []edit{
		{"internal/listener/listener.go", "\t} else if !s.waiting && s.proven {\n\t\ts.plan()",
			"\t} else if !s.waiting || !s.proven {\n\t\ts.trust()"},
	}, listening, "^TestListenerThatHearsOnly"},
	{"a listener counts on others for ever", []edit{
		{"internal/listener/listener.go", "min(s.now()+probeEvery-rand.N(probeEvery/2), s.trusts)",
			"s.now() + probeEvery - rand.N(probeEvery/2)"},
	}, listening, "^TestListenerThatHearsOnly"},
	{"the probes of others make a deaf listener connect again and again", []edit{
		{"internal/listener/listener.go", "s.heard = s.heard || own || channel != probes", "s.heard = true"},
	}, listening, "^TestListenerThatHearsOnly"},
	{"a listener does not hear what has just arrived", []edit{
		{"internal/listener/listener.go", "errors.Is(err, ErrQuiet) && s.lost() {", "false {"},
	}, listening, "^TestListenerHearsAProbeThat"},
	{"I8 a look that fails far from the front is repeated late", []edit{
		{"internal/queue/looks.go", "\tq.restless(q.slowest, now)\n\tif now.Mono", "\tif now.Mono"},
	}, "./internal/queue", "^TestFarFromTheFront"},
	{"I8 whoever is behind a ticket that is being taken back learns late that it is near", []edit{
		{"internal/queue/looks.go", "if len(strays)+len(q.strays) > 0 {", "if len(strays)+len(q.strays) < 0 {"},
	}, "./internal/queue", "^TestFarFromTheFront"},
	{"listeners that start together prove together ever after", []edit{
		{"internal/listener/listener.go", "s.now() + ownEvery - rand.N(ownEvery/2)",
			"s.now() + ownEvery + 0*rand.N(ownEvery/2)"},
	}, listening, "^TestListenersThatStart"},
	{"every listener proves for itself", []edit{
		{"internal/listener/listener.go", "\t} else if !s.waiting && s.proven {\n", "\t} else if false {\n"},
	}, listening, "^TestListenersCountOn"},
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
	{"locks begin without pages", []edit{
		{schema, "FROM generate_series(1, 20) n", "FROM generate_series(1, 0) n"},
	}, integration, "^TestPlansOfEmpty"},
	{"sessions begin without pages", []edit{
		{schema, "FROM generate_series(1, 40); INSERT INTO waiters", "FROM generate_series(1, 0); INSERT INTO waiters"},
	}, integration, "^TestPlansOfEmpty"},
	{"the history is read for a write without a fence", []edit{
		{schema, "SET search_path FROM CURRENT SET enable_seqscan = off SET jit = off AS $$ DECLARE mine xid8",
			"SET search_path FROM CURRENT AS $$ DECLARE mine xid8"},
	}, integration, "^TestPlansOfEmpty"},
	{"former marks of a connection pile up", []edit{
		{schema, "was.pid IS DISTINCT FROM p_backend_pid\n        OR", "true\n        OR"},
	}, administration, "^TestAConnectionThatIsMarkedAgain"},
	{"all sessions are read to mark a connection", []edit{
		{
			schema,
			"FROM sessions o WHERE o.session_id = me FOR NO KEY UPDATE SKIP LOCKED; IF FOUND",
			"FROM sessions o WHERE o.session_id::text = me::text FOR NO KEY UPDATE SKIP LOCKED; IF FOUND",
		},
	}, integration, "^TestPlansOfEmpty"},
	{"all sessions are read to find the processes of a lock", []edit{
		{schema, "SELECT o.pid, o.mark FROM sessions o WHERE o.session_id = l.session_id OFFSET 0) s",
			"SELECT o.pid, o.mark FROM sessions o WHERE o.session_id = l.session_id) s"},
	}, integration, "^TestPlansOfEmpty"},
	{"all locks are read to remove some", []edit{
		{schema, "WHERE l.name = ANY (ARRAY(SELECT i.name FROM idle i)) RETURNING", "USING idle WHERE l.name = " +
			"idle.name RETURNING"},
	}, integration, "^TestPlansOfEmpty"},
	{"the queue begins with as few pages as the others", []edit{
		{schema, "FROM generate_series(1, 340) n", "FROM generate_series(1, 90) n"},
	}, integration, "^TestPlansOfEmpty"},
	{"notes of given-up grants begin without pages", []edit{
		{schema, "FROM generate_series(1, 2600)", "FROM generate_series(1, 0)"},
	}, integration, "^TestPlansOfEmpty"},
	{"fences begin without pages", []edit{
		{schema, "FROM generate_series(1, 40) n", "FROM generate_series(1, 0) n"},
	}, integration, "^TestPlansOfEmpty"},
	{"keys of work done once begin without pages", []edit{
		{schema, "repeat('.', 1500), 0, now() FROM generate_series(1, 90) n", "repeat('.', 1500), 0, now() FROM " +
			"generate_series(1, 0) n"},
	}, integration, "^TestPlansOfEmpty"},
	{"a vacuum takes the empty pages away", []edit{
		{schema, "autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);\nCREATE INDEX",
			"autovacuum_vacuum_cost_delay = 0);\nCREATE INDEX"},
	}, integration, "^TestPlansOfEmpty"},
	{"the server may read all tickets for their order in all queues", []edit{
		{schema, "CREATE INDEX waiters_session ON waiters (session_id);", "CREATE INDEX waiters_session ON waiters " +
			"(session_id, ticket);"},
	}, integration, "^TestPlansOfEmpty"},
	{"a look reads the whole queue", []edit{
		{schema, "SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$",
			"SET plan_cache_mode = force_generic_plan AS $$"},
	}, integration, "^TestTheWorkGrows"},
	{"all sessions are read to extend one", []edit{
		{
			schema,
			"seen_at = clock_timestamp(), seen_by = " +
				"pg_backend_pid() WHERE s.session_id = ( SELECT o.session_id FROM sessions o WHERE o.session_id = " +
				"p_session_id FOR NO KEY UPDATE SKIP LOCKED);",
			"seen_at = clock_timestamp(), seen_by = " +
				"pg_backend_pid() FROM ( SELECT o.session_id FROM sessions o WHERE o.session_id = p_session_id FOR " +
				"NO KEY UPDATE SKIP LOCKED) o WHERE s.session_id = o.session_id;",
		},
	}, integration, "^TestPlansOfEmpty"},
	{"all locks are read to find those of a queue", []edit{
		{schema, "WHERE l.name = q.name AND l.slot = 0 OFFSET 0) h", "WHERE l.name = q.name AND l.slot = 0) h"},
	}, integration, "^TestPlansOfEmpty"},
	{"a place in a long queue is counted to its end", []edit{
		{schema, "AND q.ticket < enqueue.ticket\n      ORDER BY q.ticket LIMIT 99) ahead;",
			"AND q.ticket < enqueue.ticket) ahead;"},
	}, integration, "^TestTheWorkGrows"},
	{"the places of those that leave are counted to the end of the queue", []edit{
		{schema, "coalesce(head.served, 0) ORDER BY q.ticket LIMIT 99));", "coalesce(head.served, 0)));"},
	}, integration, "^TestTheWorkGrows"},
	{"of several that leave each hears the place of one", []edit{
		{schema, "WHERE t < gone.ticket AND t > coalesce", "WHERE t < w.ticket AND t > coalesce"},
	}, integration, "^TestGiveUp_EachOf"},
}

// ofModes are the faults of readers, and of limits.
var ofModes = []mutant{
	{"modes: a refused reader hears of another reader, and not of the writer before it", []edit{
		{schema, "ELSIF fits THEN", "ELSIF false THEN"},
	}, integration, "^TestTheErrorOfAReader"},
	{"modes: a reader that gives up hears of another reader", []edit{
		{schema, "WHERE h.fits IS NOT TRUE ORDER BY", "ORDER BY"},
	}, integration, "^TestTheErrorOfAReader"},
	{"modes: readers overtake a waiting writer", []edit{
		{
			schema,
			"nxt := CASE WHEN nxt.ticket IS NULL THEN w ELSE nxt END; RETURN",
			"nxt := CASE WHEN nxt.ticket IS NULL OR w.mode = 'shared' THEN w ELSE nxt END; RETURN",
		},
		{
			schema,
			"RETURN ((next_waiter(w.name, p_head.served)).ticket IS NOT NULL AND NOT is_own(w) " +
				"OR free_at(",
			"RETURN (w.mode <> 'shared' AND (next_waiter(w.name, p_head.served)).ticket IS NOT NULL AND NOT " +
				"(w.nested AND is_own(w)) OR free_at(",
		},
		{
			schema,
			"nxt := next_waiter(p_head.name, upto); IF p_own",
			"nxt := next_waiter(p_head.name, upto); IF w.mode = 'shared'",
		},
	}, integration, "^TestShared"},
	{"modes: a limit has one holder too many", []edit{
		{schema, "LEAST(nxt.capacity - limited, CASE", "LEAST(nxt.capacity - limited + 1, CASE"},
		{schema, "LEAST(top + p_most - coalesce(pg_catalog.cardinality(slots), 0), p_capacity)));",
			"top + p_most - coalesce(cardinality(slots), 0)));"},
	}, integration, "^TestLimitIs|^TestI1_ASemaphore"},
	{"modes: slots go beyond the limit", []edit{
		{schema, "LEAST(top + p_most - coalesce(pg_catalog.cardinality(slots), 0), p_capacity)));",
			"top + p_most - coalesce(cardinality(slots), 0)));"},
	}, integration, "^TestNoSlotIsAbove"},
	{"modes: a slot above the limit is used again", []edit{
		{schema, "AND l.slot > 0 AND l.slot <= coalesce(p_capacity, l.slot) AND CASE", "AND l.slot > 0 AND CASE"},
	}, integration, "^TestNoSlotIsAbove"},
	{"I1 a slot is granted without its row's lock", []edit{
		{schema, "    ORDER BY l.slot LIMIT GREATEST(p_most, 0) FOR UPDATE SKIP LOCKED) f;",
			"    ORDER BY l.slot LIMIT GREATEST(p_most, 0)) f;"},
	}, integration, "^TestI13_ASlot"},
	{"I1 what is decided about slots goes by the clock alone", []edit{
		{schema, "FROM (SELECT l.slot, l.mode, l.capacity, l.token, NOT is_over(l.expires_at, l.ended_at) AS held FROM",
			"FROM (SELECT l.slot, l.mode, l.capacity, l.token, is_running(l.expires_at, l.ended_at) AS held FROM"},
	}, integration, "^TestI1_NoGrant|^TestI1_ASemaphore"},
	{"I1 two limits are in use at once", []edit{
		{
			schema,
			"IF w.mode = 'limit' AND p_head.limit_named IS DISTINCT FROM w.capacity THEN PERFORM name_limit(w); END " +
				"IF;",
			"",
		},
	}, integration, "^TestI1_TwoLimits|^TestLimitMust"},
	{"I1 two limits that were queued for at once are granted together", []edit{
		{schema, "      IF (nxt.capacity <> in_use) IS NOT TRUE THEN", "      IF true THEN"},
	}, integration, "^TestI1_TwoLimitsThat"},
	{"I1 two limits that were queued for at once are granted one after the other", []edit{
		{schema, "SELECT s.* INTO exclusive, shared,", "SELECT s.exclusive, s.shared, s.limited, NULL, s.above " +
			"INTO exclusive, shared,"},
	}, integration, "^TestI1_TwoLimitsThat"},
	{"I1 the head does not note the limit that was granted", []edit{
		{schema, "    limit_named = coalesce(p_batch[1].capacity, l.limit_named)\n",
			"    limit_named = l.limit_named\n"},
	}, integration, "^TestI1_TwoLimitsThat"},
	{"I1 the limit is read before whoever names another has ended", []edit{
		{
			schema,
			"PERFORM FROM locks l WHERE l.name = w.name AND l.slot = 0 FOR NO KEY UPDATE; IF refuse_limit",
			"IF refuse_limit",
		},
	}, integration, "^TestI1_TwoLimits"},
	{"I21 a request goes on without the head that was pruned", []edit{
		{schema, "EXIT WHEN head.name IS NOT NULL OR NOT p_make OR NOT p_wait AND EXISTS (SELECT FROM locks l " +
			"WHERE l.name = p_name AND l.slot = 0);", "EXIT WHEN true;"},
	}, integration, "^TestI21_PruneBeside|^TestShared"},
	{"I9 grants in slots are not announced", []edit{
		{"pglock/announce.go", "others.Add(name, h.Slots,", "others.Add(name, nil,"},
	}, integration, "^TestI9_Readers"},
	{"I13 a release without a lease takes the head", []edit{
		{schema, "WHERE l.name = p_name AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token AND " +
			"is_running(l.expires_at, l.ended_at)) THEN", "WHERE l.name = p_name) THEN"},
	}, integration, "^TestI13_NobodyHolds"},
	{"what a waiting call learned long ago is told as new", []edit{
		{"pglock/wait.go", "\theld.Age = age\n", "\theld.Age = 0 * age\n"},
	}, library, "^TestHeldErrorSays"},
}
