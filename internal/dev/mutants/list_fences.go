package main

// ofThisTransaction is where the last check of one fence asks whose it is.
const ofThisTransaction = "AND o.fenced_xact OPERATOR(pg_catalog.=) pg_catalog.pg_current_xact_id_if_assigned()\n" +
	"        AND o.advanced_at OPERATOR(pg_catalog.>=) pg_catalog.transaction_timestamp();"

// ofFences are the faults of fenced writes: of the fence, the check inside COMMIT, the outcome of a write, and
// operations outside the database.
var ofFences = []mutant{
	{"I4 the last check of one fence takes that of any transaction", []edit{
		{schema, ofThisTransaction, ";"},
	}, integration, "^TestWriteThatLeft|^TestI4_Callback"},
	{"I4 the last check of one fence holds nothing", []edit{
		{schema, "l.slot OPERATOR(pg_catalog.=) f.slot FOR KEY SHARE;", "l.slot OPERATOR(pg_catalog.=) f.slot;"},
	}, integration, "^TestI4_Seal|^TestI4_Trap3_A5"},
	{"I4 the last check of one fence takes whatever lease there is", []edit{
		{schema, "AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at                -- " +
			"as fence_commit", ", l.expires_at"},
	}, integration, "^TestI1_I4_I6_AClock"},
	{"I17 a COMMIT that ended the connection counts as refused", []edit{
		{"internal/protocol/failures.go", " && severity(err) != \"FATAL\":", ":"},
	}, "./fencedstore", "^TestI17_AConnectionThatEnds"},
	{"I17 an advisory write is told as done that the standby may not have", []edit{
		{"advisory/write.go", "\tif err == nil && protocol.Unconfirmed(h.session.conn) {", "\tif false {"},
	}, integration, "^TestI17_CancelledStandbyWaitOfAn"},
	{"I3 I4 a fence's first row is older than its transaction where the clock was set back", []edit{
		{schema, "            GREATEST(clock_timestamp(), statement_timestamp(), transaction_timestamp()))",
			"            GREATEST(clock_timestamp(), statement_timestamp()))"},
	}, integration, "^TestI3_I4_AClockThatIsSetBack"},
	{"I3 I4 a fence's row is older than its transaction where the clock was set back", []edit{
		{schema, "pg_catalog.statement_timestamp(),  -- see fence_commit\n        " +
			"pg_catalog.transaction_timestamp())", "pg_catalog.statement_timestamp())"},
	}, integration, "^TestI3_I4_AClockThatIsSetBack"},
	{"the fence asks for a timeout that the server does not know", []edit{
		{schema, "LEAST(GREATEST(0, r.seconds OPERATOR(pg_catalog.*) 1000), 2147483000)",
			"GREATEST(0, r.seconds OPERATOR(pg_catalog.*) 1000)"},
	}, integration, "^TestTheFenceIsPassedWhere"},
	{"I17 a COMMIT whose answer is lost late counts as ended by the time limit", []edit{
		{"fencedstore/guard.go", "late := g.pass.explain(err, false)", "late := g.pass.explain(err, saysClosed(err))"},
	}, "./fencedstore", "^TestI17_Explain"},
	{"Explain blames the fence for the application's own errors", []edit{
		{"fencedstore/guard.go", "explained := g.o.explainOwn(err)", "explained := g.o.explain(err)"},
	}, "./fencedstore", "^TestExplainLeaves|^TestExplainTranslates"},
	{"nobody tells of the role that a write has taken", []edit{
		{"fencedstore/pgxconn.go", "if err = ofSeal(err); err == nil {", "if err == nil {"},
	}, "./fencedstore", "^TestATransactionThatHasTaken"},
	{"nobody tells of the role that a write through database/sql has taken", []edit{
		{"fencedstore/sqlconn.go", "return ofSeal(err)", "return err"},
	}, "./fencedstore", "^TestATransactionThatHasTaken"},
	{"a rollback in silence outlasts its context", []edit{
		{"internal/pause/afterwards.go", "const Soon = 150 * time.Millisecond", "const Soon = time.Minute"},
	}, "./fencedstore", "^TestAWriteReturnsSoon"},
	{"a callback's own commit is taken for its error", []edit{
		{"fencedstore/write.go", "if !ended || err == nil {", "if !ended || err != nil {"},
	}, "./fencedstore", "^TestWhateverTheCallbackReturns"},
	{"the receipt of a prepared transaction is used again", []edit{
		{"fencedstore/write.go", "\t\tw.doubt = w.doubt || ended ", "\t\t"},
	}, "./fencedstore", "^TestAPreparedTransactionOf"},
	{"a write waits for itself", []edit{
		{"fencedstore/store.go", "\t\terr = o.refuseWithin(ctx)\n", ""},
	}, "./fencedstore", "^TestAWriteThatWould"},
	{"whatever outlives a callback may not write", []edit{
		{"fencedstore/write.go", "\tdefer inside.over.Store(true)\n", ""},
	}, "./fencedstore", "^TestAWriteThatWaitsForNothing"},
	{"a write within one of another database is refused", []edit{
		{"fencedstore/around.go", "a.over.Load() || a.home() != o.home()", "a.over.Load()"},
	}, "./fencedstore", "^TestAWriteThatWaitsForNothing"},
	{"a failed extension is a time limit of zero", []edit{
		{"fencedstore/timelimit.go", "p.At.IsZero() || ", ""},
	}, "./fencedstore", "^TestNoTimeLimitEnds"},
	{"I3 a token passes the fence again", []edit{
		{schema, "(f.last_token OPERATOR(pg_catalog.<) p_token\n", "(f.last_token OPERATOR(pg_catalog.<=) p_token\n"},
	}, integration, "^TestI3_NoWrite"},
	{"I3 every token passes the fence", []edit{
		{schema, "      WHERE f.last_token < p_token\n         OR p_allow_same_token AND f.last_token = p_token AND " +
			"f.grant_id = p_grant_id;", ";"},
	}, integration, "^TestI3_NoWrite"},
	{"I3 the fence does not look again after it has waited", []edit{
		{schema, "  IF NOT FOUND THEN\n    PERFORM {{schema}}.refuse_lease(p_name, p_token, p_grant_id, p_slot);",
			"  IF false THEN\n    PERFORM {{schema}}.refuse_lease(p_name, p_token, p_grant_id, p_slot);"},
	}, integration, "^TestI16_Wait|^TestI3_Fence"},
	{"I4 I18 trap 5: COMMIT reads the lease plainly", []edit{
		{schema, "      WHERE l.name OPERATOR(pg_catalog.=) NEW.lock_name AND l.slot OPERATOR(pg_catalog.=) NEW.slot " +
			"FOR KEY SHARE;", "      WHERE l.name OPERATOR(pg_catalog.=) NEW.lock_name AND l.slot " +
			"OPERATOR(pg_catalog.=) NEW.slot;"},
	}, integration, "^TestI4_I10_I18_Trap5_"},
	{"I4 COMMIT reads the lease plainly: a release slips in", []edit{
		{schema, "      WHERE l.name OPERATOR(pg_catalog.=) NEW.lock_name AND l.slot OPERATOR(pg_catalog.=) NEW.slot " +
			"FOR KEY SHARE;", "      WHERE l.name OPERATOR(pg_catalog.=) NEW.lock_name AND l.slot " +
			"OPERATOR(pg_catalog.=) NEW.slot;"},
	}, integration, "^TestI4_NoTakeover|^TestI4_I18_Release"},
	{"I4 session_replication_role switches the check inside COMMIT off", []edit{
		{schema, "ALTER TABLE fences ENABLE ALWAYS TRIGGER fence_commit;", ""},
	}, integration, "^TestI4_I18_|^TestI4_A5_Nothing"},
	{"I4 trap 3: COMMIT goes by the time at which it began", []edit{
		{schema, "    IF (held AND ends OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()\n        AND NEW.",
			"    IF (held AND ends OPERATOR(pg_catalog.>) pg_catalog.now()\n        AND NEW."},
	}, integration, "^TestI4_I18_|^TestI4_A5_Late"},
	{"I3 any token passes the fence with the right grant ID", []edit{
		{schema, "coalesce(p_slot, 2147483647)\n      AND l.grant_id OPERATOR(pg_catalog.=) p_grant_id AND l.token " +
			"OPERATOR(pg_catalog.=) p_token", "coalesce(p_slot, 2147483647)\n      AND l.grant_id " +
			"OPERATOR(pg_catalog.=) p_grant_id"},
		{schema, "OPERATOR(pg_catalog.=) r.slot\n      AND l.grant_id OPERATOR(pg_catalog.=) p_grant_id AND l.token " +
			"OPERATOR(pg_catalog.=) p_token", "OPERATOR(pg_catalog.=) r.slot\n      AND l.grant_id " +
			"OPERATOR(pg_catalog.=) p_grant_id"},
	}, integration, "^TestI5_I7_Only"},
	{"I4 I10 COMMIT takes whatever lease there is", []edit{
		{schema, "    SELECT l.grant_id OPERATOR(pg_catalog.=) NEW.grant_id AND l.token OPERATOR(pg_catalog.=) " +
			"NEW.last_token\n           AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, l.expires_at",
			"    SELECT true, l.expires_at"},
	}, integration, "^TestI4_I10_I18_"},
	{"I4 trap 3: COMMIT reads the clock before it waits for the lease's row", []edit{
		{schema, "NEW.last_token\n           AND (l.ended_at OPERATOR(pg_catalog.=) l.expires_at) IS NOT TRUE, " +
			"l.expires_at    -- is_running, written out\n      INTO held, ends FROM",
			"NEW.last_token AND l.expires_at > clock_timestamp(), 'infinity'\n      INTO held, ends FROM"},
	}, integration, "^TestI4_Trap3_A5"},
	{"I4 trap 3: the last check reads the clock before it waits for the lease's row", []edit{
		{schema, "l.token = f.last_token\n           AND NOT is_over(l.expires_at, l.ended_at), l.expires_at\n      " +
			"INTO held, ends FROM", "l.token = f.last_token AND is_running(l.expires_at, l.ended_at), 'infinity'\n   " +
			"   INTO held, ends FROM"},
		{schema, "IS NOT TRUE, l.expires_at                -- as fence_commit", "IS NOT TRUE AND l.expires_at " +
			"OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(), 'infinity' --"},
	}, integration, "^TestI4_Trap3_A5"},
	{"I4 what was deferred before the fence is done after the check", []edit{
		{schema, "OR {{schema}}.check_again(r.resource);", "OR true;"},
	}, integration, "^TestI4_"},
	{"I4 the last check holds nothing", []edit{
		{schema, "    SELECT l.grant_id = f.grant_id AND l.token = f.last_token\n           AND NOT " +
			"is_over(l.expires_at, l.ended_at), l.expires_at\n      INTO held, ends FROM locks l WHERE l.name = " +
			"f.lock_name AND l.slot = f.slot FOR KEY SHARE;   -- as fence_commit\n    IF (held AND ends > " +
			"clock_timestamp())", "    IF true"},
		{schema, "l.slot OPERATOR(pg_catalog.=) f.slot FOR KEY SHARE;", "l.slot OPERATOR(pg_catalog.=) f.slot;"},
	}, integration, "^TestI4_Seal|^TestI4_Constraints"},
	{"I4 the last check takes the fence of any transaction", []edit{
		{schema, "      WHERE o.resource = res AND o.fenced_xact = pg_current_xact_id_if_assigned()\n        AND " +
			"o.advanced_at >= transaction_timestamp();", "      WHERE o.resource = res;"},
		{schema, ofThisTransaction, ";"},
	}, integration, "^TestWriteThatLeft|^TestI4_Callback"},
	{"I4 the last check takes what a callback has said for the fence's row", []edit{
		{schema, "    IF NOT FOUND THEN\n      RAISE EXCEPTION 'the transaction is not under",
			"    CONTINUE WHEN NOT FOUND;\n    IF NOT FOUND THEN\n      RAISE EXCEPTION 'the transaction is not under"},
	}, integration, "^TestWriteThatLeft|^TestI4_Callback"},
	{"I25 the last check holds leases as they are named", []edit{
		{schema, "\n      ORDER BY k.lock_name NULLS FIRST, k.slot);", ");"},
	}, integration, "^TestI25_CommitOfMany|^TestI25_NoDeadlock"},
	{"I25 fences are taken as they are named", []edit{
		{schema, "    ORDER BY 6\n", ""},
	}, integration, "^TestI25_FencesAreTaken"},
	{"I16 trap 10: a transaction may be idle for ever", []edit{
		{schema, "pg_catalog.set_config('idle_in_transaction_session_timeout', p_ms::pg_catalog.text, true)", "''"},
	}, integration, "^TestI16_"},
	{"I16 trap 10: a statement may last for ever", []edit{
		{schema, "pg_catalog.set_config('statement_timeout', p_ms::pg_catalog.text, true)", "''"},
	}, integration, "^TestI16_"},
	{"I16 the wait at the fence is not bounded", []edit{
		{schema, "pg_catalog.set_config('lock_timeout', (p_ms OPERATOR(pg_catalog.-) " +
			"{{schema}}.sooner(p_ms))::pg_catalog.text,\n           true)", "''"},
	}, integration, "^TestI16_FenceBounds|^TestI16_WaitAt"},
	{"I16 a fence raises a lower limit of the user", []edit{
		{schema, "OPERATOR(pg_catalog.=) '000000'", "IS NOT NULL"},
	}, integration, "^TestI16_"},

	{"I3 the same token of another grant passes the fence's row again", []edit{
		{schema, "f.last_token OPERATOR(pg_catalog.=) p_token\n         AND f.grant_id OPERATOR(pg_catalog.=) " +
			"p_grant_id);", "f.last_token OPERATOR(pg_catalog.=) p_token);"},
	}, integration, "^TestI3_TheSameToken"},

	// The outcome of a write.
	{"I11 a receipt that is there takes no write for one", []edit{
		{schema, "OPERATOR(pg_catalog.=) p_receipt_id AND p_write_id IS NOT NULL;",
			"OPERATOR(pg_catalog.=) p_receipt_id;"},
	}, integration, "^TestI11_I17_AReceipt"},
	{"I17 a second write leaves the receipt of the first", []edit{
		{schema, "SET write_id = p_write_id, at = pg_catalog.clock_timestamp()\n      WHERE reads",
			"SET at = pg_catalog.clock_timestamp()\n      WHERE reads"},
	}, integration, "^TestI17_|^TestI11_I17"},
	{"I17 a write leaves no receipt", []edit{
		{schema, "  IF p_receipt_id IS NOT NULL THEN\n    UPDATE", "  IF false THEN\n    UPDATE"},
	}, integration, "MeetsAFault/^Write/I17"},
	{"I17 a write of many fences leaves no receipt", []edit{
		{schema, "    ok := {{schema}}.write_receipt(p_receipt_id, p_write_id);\n", "    NULL;\n"},
	}, integration, "^TestI17_ManyFences"},
	{"I17 any receipt is that of the write", []edit{
		{schema, "  RETURN found_ = p_write_id;", "  RETURN found_ IS NOT NULL;"},
	}, integration, "^TestI17_ACrash|^TestI17_WriteLost"},
	{"I17 an outcome is told while the transaction is open", []edit{
		{schema, "  INSERT INTO receipts AS r (receipt_id, write_id, at) VALUES (p_receipt_id, gen_random_uuid(), " +
			"clock_timestamp())\n    ON CONFLICT (receipt_id) DO UPDATE SET at = clock_timestamp() RETURNING " +
			"r.write_id INTO found_;\n  RETURN found_ = p_write_id;", "  SELECT r.write_id INTO found_ FROM receipts " +
			"r WHERE r.receipt_id = p_receipt_id;\n  RETURN coalesce(found_ = p_write_id, false);"},
	}, store, "^TestOutcome"},
	{"I17 another database answers for a receipt", []edit{
		{schema, "  ok := require_database(p_database_id, 'the receipt', 'Ask in the database and the schema of the " +
			"write.');\n", ""},
	}, store, "^TestI17_AReceiptIsRefused"},
	{"I17 a receipt does not name its database", []edit{
		{"fencedstore/store.go", "receipt.DatabaseID == uuid.Nil", "false"},
	}, store, "^TestOutcomeEnds"},
	{"I17 an unanswered COMMIT is called a failure", []edit{
		{"fencedstore/write.go", "\tover, err := resolve(ctx, receipt, err, db.lookBy(o.fences[0].Lease))\n",
			"\tover := false\n"},
	}, integration, "MeetsAFault/^Write/I17"},
	{"I17 a later write overwrites the receipt of an unknown outcome", []edit{
		{"fencedstore/write.go", "\t\tw.doubt = true\n\t\terr = errors.New(", "\t\terr = errors.New("},
	}, integration, "^TestI17_CancelledStandby"},
	{"I17 a grant without its standby is answered", []edit{
		{"internal/protocol/execute.go", "\t\tif Unconfirmed(conn) && err == nil {\n\t\t\treturn " +
			"ErrUnconfirmed\n\t\t}\n", "\t\t_ = Unconfirmed(conn)\n"},
	}, integration, "^TestI17_GrantWaits"},
	{"I17 a commit without its standby is called done", []edit{
		{"fencedstore/write.go", "unconfirmed := err == nil && w.conn.unconfirmed()", "unconfirmed := false"},
	}, integration, "^TestI17_Cancelled"},
	{"I17 a driver's own end of the wait for the standby is a confirmation", []edit{
		{"fencedstore/write.go", "err = committing.Err() // the driver", "// the driver"},
	}, integration, "^TestI17_AWaitForTheStandby"},
	{"I17 so it is when the outcome is asked for", []edit{
		{"fencedstore/outcome.go", "switch err = cmp.Or(err, ctx.Err()); {", "switch err = cmp.Or(err); {"},
	}, integration, "^TestI17_AWaitForTheStandby"},
	{"I17 a COMMIT that was cancelled was rolled back", []edit{
		{"internal/protocol/failures.go", `Refused(err) && State(err) != "57014"`, "Refused(err)"},
	}, integration, "^TestI17_ACancelledCommit"},
	{"I17 so it is of a write under an advisory lock", []edit{
		{"advisory/write.go", "err != nil && !protocol.RolledBack(err) {", "protocol.ConnectionLost(err) {"},
	}, integration, "^TestI17_ACancelledCommit"},
	{"I11 a call whose COMMIT was cancelled is repeated", []edit{
		{"internal/protocol/execute.go", "if committed && Refused(err) {", "if false {"},
	}, integration, "^TestI11_ACallWhoseCommit"},
	{"a pooler's answer to the COMMIT of a migration is the server's", []edit{
		{"migrations/session.go", `SeverityUnlocalized == "ERROR" && pgErr.Code`, "Code"},
	}, migrating, "^TestAnAnswerOfAPooler"},
	{"I17 a commit of the application is taken for the write's", []edit{
		{"fencedstore/write.go", "\t_ = w.conn.unconfirmed() // of a commit that was the application's own\n", ""},
	}, integration, "^TestI17_Unconfirmed"},
	{"I17 a refused write wastes the row of its receipt", []edit{
		{"fencedstore/write.go", "\tif !w.doubt {\n", "\tif !w.doubt && !w.pass.At.IsZero() && w.holds != nil {\n"},
	}, store, "^TestRefusedWritesUse"},
	{"an outcome is asked for ever", []edit{
		{"fencedstore/outcome.go", "server.Lasting(err), err.Error() == closedDB:", "server.Lasting(err) && false, " +
			"err.Error() == closedDB:"},
	}, store, "^TestOutcomeEnds"},
	{"the outcome of a receipt that is none is rolled back", []edit{
		{"fencedstore/store.go", "receipt.ID == uuid.Nil || receipt.Write == uuid.Nil", "receipt.ID == uuid.Nil && " +
			"receipt.Write == uuid.Nil"},
	}, store, "^TestOutcomeEnds"},
	{"the keys of another database are those of the lease", []edit{
		{schema, "    IF FOUND OR old THEN\n", "    IF false THEN\n"},
	}, store, "^TestAKeyThatIsDone"},
	{"I3 the same key is done twice", []edit{
		{schema, "  once.is_first := FOUND;", "  once.is_first := true;"},
	}, integration, "^TestOnce"},
	{"a key that this very transaction has noted is done", []edit{
		{schema, "    IF mine THEN\n      ok := {{schema}}.refuse('key', pg_catalog.quote_literal(p_key), own);\n    " +
			"ELSIF FOUND", "    IF FOUND"},
	}, store, "^TestAKeyOfThis"},
	{"at SERIALIZABLE a key that this very transaction has noted is done", []edit{
		{schema, "    IF mine THEN\n      ok := {{schema}}.refuse('key', pg_catalog.quote_literal(p_key), own);\n    " +
			"END IF;\n", ""},
	}, store, "^TestAKeyOfThis"},
	{"a key that was forgotten is done again", []edit{
		{schema, "ELSIF old THEN", "ELSIF false THEN"},
	}, integration, "^TestOnceRefuses"},

	// What is fenced, and how.
	{"the work of a key passes the first of several fences", []edit{
		{"fencedstore/once.go", "if n := len(o.fences); n > 1 {", "if n := len(o.fences); n > maxFences {"},
	}, store, "^TestI11_Options"},
	{"options change the store that they are given to", []edit{
		{"fencedstore/store.go", "{ return &Store{s.of().with(opts)} }", "{ s.w = s.of().with(opts); return s }"},
	}, store, "^TestWithLeaves"},

	// Outside the database.
	{"I7 an operation waits for a deadline that the heartbeat moves", []edit{
		{operation, "\tfor wait := firstPause; time.Until(by) > 0; wait",
			"\tfor wait := firstPause; time.Until(lease.Deadline()) > 0; wait"},
		{operation, "min(lease.TTL()/3, checking, time.Until(by)))\n",
			"min(lease.TTL()/3, checking, time.Until(lease.Deadline())))\n"},
		{operation, "\t\tpause.Exactly(ctx, min(wait, time.Until(by)))\n", "\t\tpause.Exactly(ctx, wait)\n"},
		{operation, "\tby := lease.Deadline()\n", ""},
	}, outside, "^TestI7_OperationIsUndone"},
	{"an operation that the server does not confirm stands", []edit{
		{operation, "\tif err := confirm(working, lease); err != nil {\n",
			"\tif err := confirm(working, lease); errors.Is(err, pglock.ErrLost) {\n"},
	}, outside, "^TestI7_Operation|^TestOperation|^TestEnd"},
}
