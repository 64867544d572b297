package main

// ofExtensions are the faults of leases that last for longer than their TTL, of time limits, and of writes through
// database/sql.
var ofExtensions = []mutant{
	{"extension: a renewal shortens it", []edit{
		{schema, "          CASE WHEN l.extended AND l.expires_at IS DISTINCT FROM h.no_longer THEN l.expires_at END),",
			"          NULL),"},
	}, library, "^TestServerKeeps"},
	{"extension: any expiry undoes it", []edit{
		{schema, "          CASE WHEN l.extended AND l.expires_at IS DISTINCT FROM h.no_longer THEN l.expires_at END),",
			"          CASE WHEN l.extended AND h.no_longer IS NULL THEN l.expires_at END),"},
	}, library, "^TestServerKeeps"},
	{"extension: the row does not remember it", []edit{
		{schema, "        extended = coalesce(h.lasting > l.ttl, false)", "        extended = false"},
	}, library, "^TestServerKeeps"},
	{"extension: the next plain grant keeps it", []edit{
		{schema, "subtree = false, extended = false, session_id = pg_catalog.encode(",
			"subtree = false, session_id = pg_catalog.encode("},
	}, integration, "^TestAnExtensionEnds"},
	{"extension: the next grant of several keeps it", []edit{
		{schema, "subtree = false, extended = false, session_id = me,", "subtree = false, session_id = me,"},
	}, integration, "^TestAnExtensionEnds"},
	{"extension: the next grant in turn keeps it", []edit{
		{schema, "queued = false, extended = false,", "queued = false,"},
	}, integration, "^TestAnExtensionEnds"},
	{"extension: the next grant of a slot keeps it", []edit{
		{schema, "slowest = NULL, extended = false,", "slowest = NULL,"},
	}, integration, "^TestAnExtensionEnds"},
	{"extension: any length will do", []edit{
		{schema, "            AND (SELECT bool_and(g IS NULL OR is_ttl('lasting', g)) FROM " +
			"pg_catalog.unnest(p_lasting) g) IS NOT FALSE);", "            );"},
	}, library, "^TestI11_ExtensionsThat"},
	{"extension: the deadline does not follow", []edit{
		{"pglock/extend.go", "\tl.trust(lasts, sent, v, sooner)", "\tl.trust(l.ttl, sent, v, sooner)"},
	}, library, "^TestExtendedLease"},
	{"I7 extension: a late answer revives trust in one that is taken back", []edit{
		{"pglock/extend.go", "\tif sent.Mono < l.shrunk {", "\tif false {"},
	}, library, "^TestI7_LateAnswer"},
	{"I7 extension: its end trusts the later of two clocks", []edit{
		{"pglock/extend.go", "l.deadline.Earlier(trust.Deadline(now, left, left)); deadline != l.deadline {",
			"trust.Deadline(now, left, left); deadline.Mono < l.deadline.Mono {"},
	}, library, "^TestI7_EndOfAnExtension"},
	{"extension: its end is not told", []edit{
		{"pglock/extend.go", "\t\tl.tooLong, l.due = true, now\n", "\t\t_ = now\n"},
	}, library, "^TestRenewalsDoNot|^TestLongest"},
	{"extension: the lease is trusted for longer than the server keeps it", []edit{
		{"pglock/extend.go", "\t\tl.deadline = deadline\n", ""},
	}, library, "^TestRenewalsDoNot"},
	{"I7 extension: a later answer that says less is not believed", []edit{
		{"pglock/extend.go", "\tl.heed(now, v.Remaining-l.grace)\n", ""},
	}, library, "^TestI7_AnExtended"},
	{"I7 extension: one that was lost is not asked for again", []edit{
		{"pglock/extend.go", " || l.tooLong || l.tooShort {\n\t\tr.claim", " || l.tooLong {\n\t\tr.claim"},
	}, library, "^TestI7_AnExtended"},
	{"I6 extension: a lease that is lost goes on at the server", []edit{
		{"pglock/lease.go", "lost.Reason == ReasonExpired && (l.strays || l.isExtended())", "false && lost == nil"},
	}, library, "^TestI6_AnExtended"},
	{"I6 extension: taking it back eats the grace", []edit{
		{"pglock/extend.go", "\tif l.grace == 0 {\n\t\tback()", "\tif true {\n\t\tback()"},
	}, library, "^TestI6_AnExtended"},
	{"extension: its end takes another's", []edit{
		{"pglock/extend.go", "\t\tr.lasts = max(r.lasts, now.Until(h.until))\n", "\t\tif len(r.holds) > 0 " +
			"{\n\t\t\tr.lasts = max(r.lasts, now.Until(h.until))\n\t\t}\n"},
	}, library, "^TestLongest"},
	{"extension: one that comes late stays", []edit{
		{"pglock/extend.go", "\tl.tooLong = v.Remaining > l.needs(sent)+l.grace\n", "\tl.tooLong = false\n"},
	}, library, "^TestExtensionThatComes|^TestExtensionWhose"},
	{"extension: it waits for the next beat", []edit{
		{"pglock/lease.go", " && !l.isUrgent() {", " {"},
	}, library, "^TestExtensionDoesNot"},
	{"extension: a locked row loses it", []edit{
		{"pglock/renew.go", "RenewWaiting(ctx, limit/2, r.claim, ", "RenewWaiting(ctx, limit/2, l.claim(), "},
	}, library, "^TestExtensionWaits"},
	{"extension: it eats the grace", []edit{
		{"pglock/extend.go", "min(r.lasts+l.grace, MaxTTL)", "min(r.lasts, MaxTTL)"},
	}, library, "^TestExtensionComes"},
	{"extension: it needs a connection of the pool", []edit{
		{"pglock/extend.go", "\tselect {\n\tcase <-h.done:\n\t\treturn func", "\tif _, err := l.Check(ctx); err != " +
			"nil {\n\t\treturn nil, err\n\t}\n\tselect {\n\tcase <-h.done:\n\t\treturn func"},
	}, library, "^TestExtendAndCheckNeed"},

	{"I16 a time limit is not told", []edit{
		{"fencedstore/opening.go", "\tif o.limit > 0 {\n\t\tlimit =", "\tif o.limit < 0 {\n\t\tlimit ="},
	}, store, "^TestI16_TimeLimit"},
	{"I16 the server does not go by the time limit", []edit{
		{schema, "CASE WHEN p_time_limit IS NULL THEN ms ELSE", "CASE WHEN true THEN ms ELSE"},
	}, store, "^TestI16_TimeLimit"},
	{"I16 many fences have no time limit", []edit{
		{schema, "p_database_id, a.slot, NULL, NULL, p_time_limit);", "p_database_id, a.slot);"},
	}, store, "^TestI16_TimeLimit"},
	{"a time limit extends no lease", []edit{
		{"fencedstore/timelimit.go", "\t\tif o.limit+spare > stays && ", "\t\tif o.limit < stays && o.limit < 0 && "},
	}, store, "^TestWorkLonger"},
	{"a time limit extends one lease of many", []edit{
		{"fencedstore/timelimit.go", "\t\tif o.limit+spare > stays && ", "\t\tif len(short) == 0 && o.limit+spare > " +
			"stays && "},
	}, store, "^TestTimeLimitExtends"},
	{"a time limit is short with the end of another write", []edit{
		{"fencedstore/timelimit.go", "stays := min(f.Lease.TTL(), time.Until(f.Lease.Deadline()))",
			"stays := time.Until(f.Lease.Deadline())"},
	}, store, "^TestTimeLimitOfOneWrite"},
	{"a lease is long after its write", []edit{
		{"fencedstore/write.go", "\tfor _, drop := range w.holds {\n\t\tdrop()\n\t}\n}", "}"},
	}, store, "^TestWorkLonger|^TestTimeLimitExtends"},
	{"a lower limit of the user is called the time limit", []edit{
		{"fencedstore/timelimit.go", " ||\n\t\ttime.Since(p.At) < least-least/100 {", " || least < 0 {"},
	}, store, "^TestLowerLimit"},
	{"a connection that was closed by a limit is not told", []edit{
		{"fencedstore/sqlconn.go", "\t\tc.dead = c.dead || isPgx && conn.Conn().IsClosed() || says && " +
			"!valid.IsValid()\n", "\t\t_, _, _, _ = conn, isPgx, valid, says\n"},
		{"fencedstore/sqlconn.go", "\t\tc.dead = c.dead || saysClosed(err)\n\t\tc.rollback(ctx)\n\t\treturn false, err",
			"\t\treturn false, err"},
	}, drivers, "^TestI16_TimeLimit"},
	{"I18 a guard with a time limit takes an older snapshot", []edit{
		{"fencedstore/guard.go", "\tif err == nil && left+time.Since", "\tif err == nil && left < 0 && " +
			"left+time.Since"},
	}, store, "^TestI18_TimeLimit"},
	{"I18 a guard of work that is done once takes an older snapshot", []edit{
		{"fencedstore/once.go", "\t\tp.left = time.Duration(protocol.OrZero(left)) * time.Microsecond\n",
			"\t\tp.left = pglock.MaxTTL\n"},
	}, store, "^TestGuardsRefuseALimit"},
	{"a write takes the connection that its lease needs", []edit{
		{"fencedstore/write.go", "\t\tholds, err := w.extend(ctx, spare)\n\t\tw.holds = append(w.holds, " +
			"holds...)\n\t\tif err == nil {\n\t\t\tw.conn, err = w.db.lend(ctx)\n\t\t}\n",
			"\t\tconn, err := w.db.lend(ctx)\n\t\tif err != nil {\n\t\t\treturn err\n\t\t}\n\t\tw.conn = " +
				"conn\n\t\tholds, err := w.extend(ctx, spare)\n\t\tw.holds = append(w.holds, holds...)\n"},
	}, store, "^TestALeaseIsExtendedBefore"},
	{"a wait for a connection takes from the time limit", []edit{
		{"fencedstore/write.go", "took <= spare ||", "took > 0 ||"},
	}, store, "^TestAWaitForAConnection"},
	{"a time limit counts as it was given, whatever the lease had left", []edit{
		{"fencedstore/timelimit.go", "\tsetting, least := limitOf(err), p.Limit\n", "\tp.Limit = cmp.Or(p.Given, " +
			"p.Limit)\n\tsetting, least := limitOf(err), p.Limit\n"},
	}, store, "^TestATransactionThatGotLess"},
	{"an error names the time that was left for the limit that was given", []edit{
		{"fencedstore/timelimit.go", "Limit: cmp.Or(p.Given, p.Limit)", "Limit: p.Limit"},
	}, store, "^TestATransactionThatGotLess"},

	{"I4 a write through database/sql has no last check", []edit{
		{"fencedstore/sqlconn.go", "c.tx.ExecContext(ctx, protocol.Seal(o.schema()), arrayText(o.resources()))",
			"c.tx.ExecContext(ctx, \"SELECT\")"},
	}, store, "^TestWritesThrough"},
	{"I17 an unanswered COMMIT of a driver is called a failure", []edit{
		{"fencedstore/write.go", "\tover, err := resolve(ctx, receipt, err, db.lookBy(o.fences[0].Lease))\n",
			"\tover := false\n"},
	}, drivers, "^TestI17_Lost"},
	{"I17 a COMMIT of a driver that hangs is waited for", []edit{
		{"fencedstore/sqlconn.go", "\t\t\tc.cut()\n", ""},
	}, drivers, "^TestI17_Outcome"},
	{"a write through database/sql ends at a dead connection", []edit{
		{"fencedstore/write.go", "openingAgain + w.db.idle()", "openingAgain"},
	}, drivers, "^TestWriteReplacesDead"},
	{"once through database/sql is more than once", []edit{
		{"fencedstore/store.go", "\treturn s.of().write(ctx, fenced, inSQL(fn), WithKey(key))\n", "\tall, _ := " +
			"listed(fenced)\n\tall[0].SameToken = true\n\treturn s.of().write(ctx, all, inSQL(fn))\n"},
	}, store, "^TestWorkOfAKey"},
	{"I17 a guard leaves no receipt", []edit{
		{"fencedstore/guard.go", "\t\treceipt = &g.receipt\n", "\t\t_ = receipt\n"},
	}, store, "^TestI17_Transaction"},
	{"I7 a Renew asks for no extension", []edit{
		{"pglock/lease.go", "\tr := l.renewal(sent)\n", "\tr := renewal{claim: l.claim(), lasts: l.ttl}\n"},
	}, library, "^TestI7_ExtendReturns"},
	{"a call that asks again outlives Close", []edit{
		{"internal/server/own.go", "if err != nil && ctx.Err() == nil && s.life.Err() != nil {",
			"if err != nil && ctx.Err() == nil && s.life.Err() != nil && false {"},
	}, "./internal/server", "^TestWhoTakesBack"},
}
