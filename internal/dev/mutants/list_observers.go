package main

// ofObservers are the faults of what observers are told, and of what they may hold up.
var ofObservers = []mutant{
	{"observers: a call waits for the observer", []edit{
		{"pglock/observing.go", "\tcase o.waiting >= observedMost:\n\t\to.dropped++\n", ""},
	}, library, "^TestBlockingObserver"},
	{"observers: what is dropped is not counted", []edit{
		{"pglock/observing.go", "\t\to.dropped++\n", ""},
	}, library, "^TestBlockingObserver"},
	{"observers: Close waits for ever", []edit{
		{"pglock/observing.go", "\tcase <-time.After(observedLast):\n\t}\n\to.mu.Lock()", "\t}\n\to.mu.Lock()"},
	}, library, "^TestCloseWaitsASecond"},
	{"observers: after Close the rest is told", []edit{
		{"pglock/observing.go", "\to.left = true\n", ""},
	}, library, "^TestCloseWaitsASecond"},
	{"observers: Close does not join the goroutine", []edit{
		{"pglock/close.go", "errors.Join(err, c.observing.close())", "err"},
	}, library, "^TestCloseTells"},
	{"observers: a panic is not told", []edit{
		{"pglock/observing.go", "\t\t\to.panics++\n", ""},
	}, library, "^TestPanickingObserver"},
	{"observers: an event ends with its call", []edit{
		{"pglock/observing.go", "observed{context.WithoutCancel(ctx), e}", "observed{ctx, e}"},
	}, library, "^TestEventsHaveTheValues"},
	{"observers: a release is told before its outcome", []edit{
		{"pglock/observing.go", "\tif cause != ErrReleased || handed {\n", "\tif true {\n"},
	}, library, "^TestEachLossIsObserved"},
	{"observers: an end is told twice", []edit{
		{"pglock/observing.go", "\ts.over = true\n", ""},
	}, library, "^TestEachLossIsObserved|^TestGrantOfAFree|^TestEventsOfALease"},
	{"observers: a lease that was never granted is lost", []edit{
		{"pglock/observing.go", "if s == nil || !s.held || s.over {", "if s == nil || s.over {"},
	}, library, "^TestFailedCall"},
	{"observers: a release is told after what it has granted", []edit{
		{"pglock/lease.go", "\t\t\tif e.Released {\n\t\t\t\tl.released(ctx, nil)\n\t\t\t}\n", ""},
	}, library, "^TestEachWayOfALock"},
	{"observers: the work of a lost lease is not told", []edit{
		{"pglock/lease.go", "\t\tl.outlived(ctx)\n", ""},
	}, library, "^TestEachLossIsObserved|^TestWorkThatOutlives"},
	{"observers: an extended lease is late", []edit{
		{"pglock/observing.go", " && len(l.holds) == 0}", "}"},
	}, library, "^TestRenewalOfAnExtended"},
	{"observers: hand-overs of Close are not told", []edit{
		{"pglock/close.go", "\tc.send(ctx, others, c.backend.AnnounceOwn)\n", "\t_ = others\n"},
	}, library, "^TestEachWayOfALock"},
	{"observers: a new heartbeat connection is not told", []edit{
		{"internal/server/own.go", "\tcase !lost && !since.IsZero() && ", "\tcase false && "},
	}, library, "^TestNewConnections"},
	{"observers: lost names are not told", []edit{
		{"internal/protocol/execute.go", "e.Unnamed != nil", "false"},
	}, library, "^TestLostStatementNames"},
	{"observers: a listener that nobody wants is deaf", []edit{
		{"internal/listener/listener.go", "\tif len(l.wants()) == 0 || l.Life.Err() != nil {\n\t\treturn\n\t}\n", ""},
	}, listening, "^TestListenerThatNobodyWants"},
	{"observers: a probe that cannot be sent is not told", []edit{
		{"internal/listener/listener.go", "\t\t\tif !s.proven {\n", "\t\t\tif false {\n"},
	}, listening, "^TestListenerThatCannotSend"},
	{"observers: SlogObserver repeats what lasts", []edit{
		{"pglock/slog.go", "\t\t\to.failing = &e\n", ""},
	}, library, "^TestSlogObserverTellsOnce"},
	{"observers: SlogObserver logs all losses", []edit{
		{"pglock/slog.go", "\t\tif l.count++; l.count > loggedMost {\n", "\t\tif l.count++; false {\n"},
	}, library, "^TestSlogObserverCounts"},
	{"observers: a write whose callback panics is told as committed", []edit{
		{"fencedstore/write.go", "\tbegan := time.Now()\n\terr := o.lost()\n", "\tbegan := time.Now()\n\tdefer " +
			"o.observeWrite(ctx, time.Hour)\n\terr := o.lost()\n"},
	}, store, "^TestWriteWhoseCallback|^TestEachEndOfAWrite"},
	{"observers: a write that is not begun is not told", []edit{
		{"fencedstore/write.go", "\terr := o.lost()\n\tif err == nil {\n", "\terr := o.lost()\n\tif err != nil " +
			"{\n\t\treturn err\n\t}\n\tif err == nil {\n"},
	}, store, "^TestEachEndOfAWrite"},
	{"observers: Explain tells again of what Guard has told", []edit{
		{"fencedstore/guard.go", "kindOf(err) == \"\" && !errors.Is(err, ErrStaleToken)",
			"kindOf(err) == \"\" || errors.Is(err, ErrStaleToken)"},
	}, store, "^TestEachEndOfAWrite"},
	{"observers: a panic of a verifier's observer passes", []edit{
		{"fencedhttp/verifier.go", "\t\tif panicked := recover(); panicked != nil {\n",
			"\t\tif panicked := any(nil); panicked != nil {\n"},
	}, services, "^TestPanicOfAnObserver"},
	{"observers: a stale token at a verifier is refused like any other", []edit{
		{"fencedhttp/verifier.go", "\t\te.Kind = pglock.EventStale\n", ""},
	}, services, "^TestEachRefusal"},
}
