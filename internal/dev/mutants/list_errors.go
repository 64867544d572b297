package main

// ofErrors are the faults of what errors say, and of connections that a transaction leaves behind.
var ofErrors = []mutant{
	{"a loss is taken for a timeout of the caller's", []edit{
		{"pglock/errors.go", "func (e *LostError) Is(target error) bool { return target == ErrLost }",
			"func (e *LostError) Is(target error) bool { return target == ErrLost || errors.Is(e.Err, target) }"},
	}, integration, "^TestLossIsNot"},
	{"a call under a lost lease says only that a context has ended", []edit{
		{"internal/failure/failure.go", "\tcase says && !knows:\n", "\tcase says && !knows && false:\n"},
	}, integration, "^TestCallUnder|^TestCallThatWaits"},
	{"a call that knows of the loss does not say that its context has ended", []edit{
		{"internal/failure/failure.go", "\tcase knows && !says:\n", "\tcase knows && !says && false:\n"},
	}, integration, "^TestCallUnder|^TestCallThatWaits"},
	{"a callback that ends with its context hides why", []edit{
		{"fencedstore/write.go", "return failure.OfContext(ctx, o.observeRefusal(ctx, theirs.error))",
			"return o.observeRefusal(ctx, theirs.error)"},
	}, integration, "^TestCallThatWaits"},
	{"errors inside an error name their packages again", []edit{
		{"internal/failure/failure.go", "\t\t\t*text = strings.Replace(*text, whole, rest, 1)\n", "\t\t\t_ = rest\n"},
	}, integration, "^TestErrorOfAnExported"},
	{"an unknown outcome is taken for a timeout of the caller's", []edit{
		{"fencedstore/outcome.go", "errors.Join(cause, failure.OfOurs(err))", "errors.Join(cause, err)"},
	}, drivers, "^TestI17_Outcome"},
	{"I17 a crash is told by pgx alone", []edit{
		{"internal/protocol/failures.go", "{ return Field(err, FieldSeverity) }", "{\n\tif e := " +
			"(*pgconn.PgError)(nil); errors.As(err, &e) {\n\t\treturn e.SeverityUnlocalized\n\t}\n\treturn \"\"\n}"},
	}, drivers, "^TestI17_APanic"},
	{"I17 the one severity of a pooler is not read", []edit{
		{"internal/protocol/failures.go", `{"SeverityUnlocalized", "Severity"}`, `{"SeverityUnlocalized"}`},
	}, protocol, "^TestALackOfSlots"},
	{"I17 an error whose severity nobody knows is a refusal", []edit{
		{"internal/protocol/failures.go", `(severity(err) == "ERROR" || strings.HasPrefix(State(err), "LK"))`, "true"},
	}, store, "^TestI17_AnErrorAtCommit"},
	{"the fields of other drivers' errors are not read", []edit{
		{"internal/protocol/failures.go", "\tv := reflect.Indirect(reflect.ValueOf(e))\n", "\tpgx, _ := " +
			"errors.AsType[*pgconn.PgError](err)\n\tv := reflect.Indirect(reflect.ValueOf(pgx))\n"},
	}, store, "^TestNoLeaseIsBlamed"},
	{"the first of several fences is blamed", []edit{
		{"fencedstore/opening.go", `return o.fences[0], name == "" && len(o.fences) == 1`, "return o.fences[0], true"},
	}, store, "^TestNoLeaseIsBlamed"},
	{"a write's lease is blamed for another's loss", []edit{
		{"fencedstore/opening.go", `name == "" && len(o.fences) == 1`, "len(o.fences) == 1"},
	}, store, "^TestAWriteDoesNotCall"},

	{"a connection that overran its limits goes back to the pool", []edit{
		{"fencedstore/write.go", "w.conn.giveBack(ctx, w.late || w.pass.overran())", "w.conn.giveBack(ctx, false)"},
	}, store, "^TestTransactionThatOverran"},
	{"database/sql gets a connection back that nobody may use", []edit{
		{"fencedstore/sqlconn.go", "return driver.ErrBadConn })", "return nil })"},
	}, store, "^TestTransactionThatOverran"},

	{"a wait for a lock may take as long as its statement", []edit{
		{schema, "LEAST(GREATEST(20, p_ms OPERATOR(pg_catalog./) 20), p_ms OPERATOR(pg_catalog./) 4, 1000)",
			"0::bigint"},
	}, store, "^TestWaitForALock"},
	{"a write in line is told of the one before it", []edit{
		{schema, "WHERE o.root = p_pid AND o.by <@ '{0}' AND o.pid <> p_pid) c", "WHERE o.root = p_pid AND " +
			"o.pid = ANY (pg_blocking_pids(p_pid))) c"},
	}, store, "^TestEveryWriteInLine"},
	{"a write at its fence is not told for whom it waits", []edit{
		{"fencedstore/lookout.go", "lease: o.fences[0].Lease, resources: o.resources()}", "lease: o.fences[0].Lease}"},
	}, store, "^TestWriteThatWaitsAtItsFence"},
	{"a look after the end hides for whom a write waited", []edit{
		{"fencedstore/lookout.go", "if w != nil || l.none {", "if w != nil || true {"},
	}, store, "^TestOneLookWithoutAWait"},
	{"whom a write waited for long ago stays", []edit{
		{"fencedstore/lookout.go", "if w != nil || l.none {", "if w != nil {"},
	}, store, "^TestOneLookWithoutAWait"},
	{"SERIALIZABLE writes look for the rows of their fences", []edit{
		{schema, "WHERE reads AND f.resource", "WHERE f.resource"},
	}, integration, "^TestI19_SerializableWrites"},
	{"SERIALIZABLE writes look for keys of work done once", []edit{
		{
			schema,
			"IF old OR pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.<>) " +
				"'serializable' THEN",
			"IF true THEN",
		},
	}, integration, "^TestI19_SerializableWrites"},
	{"a seal of several fences reads all fences", []edit{
		{
			schema,
			"unnest(p_resources) r LEFT JOIN LATERAL ( -- each by its key SELECT o.lock_name, o.slot FROM " +
				"fences o WHERE o.resource = r OFFSET 0) k ON true",
			"unnest(p_resources) r LEFT JOIN fences k ON k.resource = r",
		},
	}, integration, "^TestI19_SerializableWrites"},
	{"a write waits at its fence for as long as its client believes in the lease", []edit{
		{"fencedstore/write.go", "w.pass.At.Add(w.longest()+lateBy)", "w.pass.At.Add(w.pass.Limit+lateBy)"},
	}, integration, "^TestAWriteIsNotLate"},
	{"a connection that database/sql closes meanwhile ends the program", []edit{
		{"fencedstore/sqlconn.go", "\t\tif recover() != nil {\n", "\t\tif false {\n"},
	}, store, "^TestAConnectionThatDatabaseSQL"},
	{"a write waits for ever for the answer of its fence", []edit{
		{
			"fencedstore/write.go",
			"context.WithDeadline(ctx, w.pass.At.Add(w.longest()+lateBy))", "context.WithCancel(ctx)",
		},
	}, integration, "^TestAWriteOverASilent"},
	{"SERIALIZABLE writes look for their receipts", []edit{
		{schema, "WHERE reads AND o.receipt_id", "WHERE o.receipt_id"},
	}, integration, "^TestI19_SerializableWrites"},
	{"every write asks for whom it waits", []edit{
		{"fencedstore/lookout.go", "\tfirst := p.lockLimit() * 3 / 4\n", "\tfirst := time.Duration(0)\n"},
	}, store, "^TestWriteThatIsNotSlow"},
	{"a wait behind a lock asks for more time", []edit{
		{"fencedstore/timelimit.go", "\tcase e.Setting == \"lock_timeout\":\n",
			"\tcase e.Setting == \"lock_timeout\" && false:\n"},
	}, store, "^TestWriteBehindALockThatNobody"},
}
