package main

func init() { all = append(all, ofTheQueue...) }

// ofTheQueue are the faults of waiting: of tickets, hints, modes and circles.
var ofTheQueue = []mutant{
	{"I8 trap 7: a ticket is written without the head's lock", []edit{
		{queue, "AND l.top_slot = 0 FOR SHARE;", "AND l.top_slot = 0;"},
		{queue, "SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR SHARE;", "SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0;"},
	}, integration, "^TestI8_Release|^TestI8_WaiterLooks"},
	{"I8 a release does not wait for a ticket that is being written", []edit{
		{speed, "          AND current_setting('transaction_isolation') = 'read committed'\n        FOR UPDATE) f;", "          AND current_setting('transaction_isolation') = 'read committed'\n        FOR KEY SHARE) f;"},
	}, integration, "^TestI8_"},
	{"I8 a release of a slot does not wait for a ticket that is being written", []edit{
		{queue, "  IF p_slot > 0 THEN\n    PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;\n  END IF;\n", ""},
	}, integration, "^TestI8_Release"},
	{"I8 a look that misses a ticket is not told", []edit{
		{"pglock/queue.go", "\t\t\tw.tell(news{ask: true}) // granted, or passed over\n", ""},
	}, integration, "^TestI8_LostHints"},
	{"I8 the first in the queue has no timer", []edit{
		{"pglock/queue.go", "\tif !w.first {\n\t\treturn n, never", "\tif !w.first || true {\n\t\treturn n, never"},
	}, integration, "^TestI8_Crashed"},
	{"I7 a hint tells the TTL instead of what is left", []edit{
		{speed, "hint(l.grant_id, l.token, l.slot, l.expires_at - clock_timestamp(), l.block) AS payload", "hint(l.grant_id, l.token, l.slot, l.ttl, l.block) AS payload"},
	}, integration, "^TestI7_Trust"},
	{"I9 last come, first served", []edit{
		{speed, "(SELECT min(o.ticket) FROM waiters o WHERE o.name = p_name AND", "(SELECT max(o.ticket) FROM waiters o WHERE o.name = p_name AND"},
	}, integration, "^TestI9_Waiters"},
	{"I9 a newcomer overtakes the queue", []edit{
		{queue, "                               OR EXISTS (SELECT FROM waiters q WHERE q.name = p_name)) THEN", "                               ) THEN"},
	}, integration, "^TestNewcomer"},
	{"I9 every acquisition asks twice", []edit{
		{"pglock/wait.go", "left >= q.ttl/2 {", "left >= 2*q.ttl {"},
	}, integration, "^TestI9_OneRequest"},
	{"I14 a ticket keeps the holder's row locked over a flush", []edit{
		{queue, "AND l.top_slot = 0 FOR SHARE;", "AND l.top_slot = 0 FOR NO KEY UPDATE;"},
		{speed, "      FOR SHARE OF l;", "      FOR NO KEY UPDATE OF l;"},
		{"pglock/queries.go", "THEN pg_catalog.set_config('synchronous_commit', 'off', true) END\n\t\t\tFROM {{schema}}.acquire_lease(", "THEN NULL::text END\n\t\t\tFROM {{schema}}.acquire_lease("},
		{"pglock/queries.go", "THEN pg_catalog.set_config('synchronous_commit', 'off', true) END\n\t\t\tFROM {{schema}}.acquire_each(", "THEN NULL::text END\n\t\t\tFROM {{schema}}.acquire_each("},
	}, integration, "^TestI14_"},
	{"I20 a release changes its session", []edit{
		{"pglock/queries.go", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', false) END"},
	}, integration, "^TestI20_"},
	{"I12 a hand-over does not wait for the disk", []edit{
		{"pglock/queries.go", "CASE WHEN r.hints IS NULL AND r.handed IS NULL THEN pg_catalog.set_config('synchronous_commit', 'off', true) END", "pg_catalog.set_config('synchronous_commit', 'off', true)"},
	}, integration, "^TestI12_HandOver"},
	{"trap 9: who leaves keeps a grant that came at that moment", []edit{
		{queue, "  IF FOUND THEN\n    SELECT e.released, e.handed", "  IF false THEN\n    SELECT e.released, e.handed"},
	}, integration, "^TestLeaveAgainst"},
	{"trap 9: a late ticket is not refused", []edit{
		{queue, "  ELSIF EXISTS (SELECT FROM spent_grants s", "  ELSIF false AND EXISTS (SELECT FROM spent_grants s"},
	}, integration, "^TestTrap9_LateTicket"},
	{"trap 9: a ticket that is being written is not waited for", []edit{
		{queue, "clock_timestamp())\n    ON CONFLICT (grant_id) DO NOTHING;\n  SELECT e.ended", "clock_timestamp() + NULL)\n    ON CONFLICT (grant_id) DO NOTHING;\n  SELECT e.ended"},
	}, integration, "^TestTrap9_LateTicket"},
	{"modes: one holder too many", []edit{
		{queue, "CASE WHEN count(*) >= p_capacity", "CASE WHEN count(*) > p_capacity"},
	}, integration, "^TestLimitIsNever"},
	{"modes: readers overtake a waiting writer", []edit{
		{queue, "until := free_at(p_name, coalesce(nxt.mode, p_mode), CASE WHEN nxt.name IS NULL THEN p_capacity ELSE nxt.capacity END);", "until := free_at(p_name, p_mode, p_capacity);"},
		{queue, "IF NOT FOUND AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name) AND free_at(", "IF NOT FOUND AND free_at("},
	}, integration, "^TestShared"},
	{"modes: a writer that gives up keeps readers waiting", []edit{
		{queue, "    IF unblocks THEN\n      SELECT h.handed", "    IF false THEN\n      SELECT h.handed"},
		{"pglock/queue.go", "\t\t\t\tif w.askAt = now.add(s.remaining); !was {\n", "\t\t\t\tif w.askAt = now.add(time.Hour); !was {\n"},
	}, integration, "^TestReadersBehind"},
	{"circles: an owner may wait for itself", []edit{
		{queue, "l.owner_id = p_owner_id AND l.expires_at > clock_timestamp() LIMIT 1;", "false LIMIT 1;"},
	}, integration, "^TestSelfDeadlock"},
	{"circles: nobody looks for them", []edit{
		{"pglock/queue.go", "\t\t\tl.nested = append(l.nested, ticket)\n", "\t\t\t_ = ticket\n"},
	}, integration, "^TestCircle"},
	{"circles: one stuck holder of a semaphore is enough", []edit{
		{queue, "p_mode = 'limit' AND l.mode = 'limit' AND NOT b.behind, false\n", "false, false\n"},
	}, integration, "^TestHolderOfASemaphore"},
	{"circles: readers behind a writer without locks wait for nobody", []edit{
		{queue, "l.mode = 'shared' AND NOT b.behind)", "l.mode = 'shared')"},
		{queue, "l.mode = 'limit' AND NOT b.behind, false", "l.mode = 'limit', false"},
	}, integration, "^TestCircleThroughAWriter"},
	{"I1 I21 a request goes on without the head that was pruned", []edit{
		{queue, "      IF NOT FOUND THEN\n        acquire_in_turn.granted := NULL;\n        RETURN;\n      END IF;\n", ""},
	}, integration, "^TestI21_PruneBeside"},
	{"I9 grants in slots are not announced on suspicion", []edit{
		{"pglock/statements.go", "if h.watched = false; told > 0 {", "if h.watched = false; told >= 0 {"},
	}, integration, "^TestI9_Readers"},
	{"circles: the search reads at different moments", []edit{
		{queue, "RETURNS TABLE (owner_id uuid, holder text, any_of boolean, queued boolean)\nLANGUAGE sql STABLE", "RETURNS TABLE (owner_id uuid, holder text, any_of boolean, queued boolean)\nLANGUAGE sql VOLATILE"},
		{queue, "LANGUAGE plpgsql STABLE SET jit = off   -- the planner", "LANGUAGE plpgsql VOLATILE SET jit = off   -- the planner"},
	}, integration, "^TestHandOversDuring"},
	{"sessions: dead waiters are served", []edit{
		{queue, "RETURNING (SELECT s.alive_until > clock_timestamp() FROM", "RETURNING (SELECT true FROM"},
		{speed, "AND EXISTS (SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp())", ""},
	}, integration, "^TestDeadWaiters|^TestI9_ShortRelease"},
	{"sessions: dead waiters are served in the short way", []edit{
		{speed, "AND EXISTS (SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp())", ""},
	}, integration, "^TestDeadWaiters|^TestI9_ShortRelease"},
}
