package main

// ofAdvisory are the faults of the bridge from advisory locks.
var ofAdvisory = []mutant{
	{"advisory: the lock is not taken", []edit{
		{"advisory/session.go", "err = s.conn.QueryRow(ctx, \"SELECT \"+call, args...).Scan(&locked)\n\treturn " +
			"locked, err",
			"_, _ = call, args\n\treturn true, err"},
	}, bridging, "^TestOldAndNew|^TestEveryKey"},
	{"advisory: a hash is widened without its sign", []edit{
		{"advisory/key.go", "number{bigint: int64(hash)}", "number{bigint: int64(uint32(hash))}"},
	}, bridging, "^TestEveryKey"},
	{"advisory: readers lock as writers", []edit{
		{"advisory/session.go", "\tif s.shared {\n\t\treturn prefix", "\tif s.shared && false {\n\t\treturn prefix"},
	}, bridging, "^TestReaders"},
	{"advisory: a wait does not step back", []edit{
		{"advisory/session.go", "round = 500 * time.Millisecond", "round = time.Minute"},
	}, bridging, "^TestAWaitingBridge"},
	{"advisory: a failed wait keeps the lease", []edit{
		{"advisory/bridge.go", "also := lease.Release(giving)", "also := giving.Err()"},
	}, bridging, "^TestAWaitThatEnds"},
	{"advisory: a write whose context has ended closes the session", []edit{
		{"advisory/held.go", "if err := ctx.Err(); err != nil { // and", "if err := h.Err(); err != nil { // and"},
		{"advisory/write.go", "if err = ctx.Err(); err == nil { //", "if err == nil { //"},
	}, bridging, "^TestAWriteWhoseContextHasEnded"},
	{"advisory: a release has the limit twice", []edit{
		{"advisory/held.go", "\terr := h.releaseLease(telling)\n",
			"\terr := h.lease.Release(context.WithoutCancel(ctx))\n"},
		{"advisory/held.go", "errors.Join(err, h.releaseLease(telling))", "errors.Join(err, " +
			"h.lease.Release(context.WithoutCancel(ctx)))"},
	}, bridging, "^TestAReleaseInSilence"},
	{"advisory: a wait outlives its lease", []edit{
		{"advisory/bridge.go", "defer context.AfterFunc(lease.Context(), func() { cancel(lease.Err()) })()",
			"_ = cancel"},
	}, bridging, "^TestALeaseThatIsLost"},
	{"advisory: a pooler is not noticed", []edit{
		{"advisory/session.go", "if !pooled && ", "if pooled && "},
	}, bridging, "^TestAPooler"},
	{"advisory: a lock on a standby is taken for one", []edit{
		{"advisory/session.go", "\tif standby { //", "\tif standby && false { //"},
	}, integration, "^TestABridgeRefusesAStandby"},
	{"advisory: a lock of another database is taken for one", []edit{
		{"advisory/session.go", "\tif !atHome {", "\tif false {"},
	}, bridging, "^TestAConnectionToAnotherDatabase"},
	{"advisory: a write within a write waits for itself", []edit{
		{"advisory/write.go", "refuse.If(is && !over.Load(), ", "refuse.If(is && over.Load(), "},
	}, bridging, "^TestAWriteAndAReleaseWithin"},
	{"advisory: nobody reads", []edit{
		{"advisory/held.go", "_, err := h.session.conn.WaitForNotification(ctx)",
			"err := error(nil)\n\t\t<-ctx.Done()"},
	}, bridging, "^TestATerminated"},
	{"advisory: nobody pings", []edit{
		{"advisory/held.go", "err = h.ping()", "err = nil"},
	}, bridging, "^TestACut|^TestALostAdvisory"},
	{"advisory: a lost session keeps the lease", []edit{
		{"advisory/held.go", "\t\t_ = h.lease.Release(context.WithoutCancel(h.ctx)) //", "\t\t//"},
	}, bridging, "^TestATerminated"},
	{"advisory: a lost lease keeps the session", []edit{
		{"advisory/held.go", "context.WithCancelCause(lease.Context())",
			"context.WithCancelCause(context.WithoutCancel(lease.Context()))"},
	}, bridging, "^TestABroken|^TestAClosed"},
	{"advisory: a release that cuts a write short says that the lock was lost", []edit{
		{"advisory/session.go", "\tif s.cut {\n", "\tif false {\n"},
	}, bridging, "^TestAReleaseThat"},
	{"advisory: a cancelled unlock says that the lock was lost", []edit{
		{"advisory/session.go", "\t\tcase protocol.Transient(err) && ctx.Err() == nil: // somebody has cancelled the " +
			"statement\n\t\tcase err != nil || !is:", "\t\tcase err != nil || !is:"},
	}, bridging, "^TestACancelledUnlock"},
	{"advisory: the server ends a quiet session before the lease", []edit{
		{"advisory/bridge.go", "return lasts + lasts/2 + every(ttl)", "return lasts/2 + 0*every(ttl)"},
	}, integration, "^TestAPausedBridge"},
	{"advisory: the server never ends a session", []edit{
		{"advisory/bridge.go", "return lasts + lasts/2 + every(ttl)", "return 0 * (lasts + every(ttl))"},
	}, integration, "^TestAPausedBridge"},
	{"advisory: an extended lease outlives its session", []edit{
		{"advisory/bridge.go", "lasts := max(ttl, time.Until(lease.Deadline()))",
			"lasts := max(ttl, 0*time.Until(lease.Deadline()))"},
	}, integration, "^TestAPausedBridge"},
	{"advisory: a write does not look for the lock", []edit{
		{"advisory/write.go", "if err := h.Guard(ctx, tx); err != nil {", "if err := h.Err(); err != nil {"},
	}, bridging, "^TestAWriteIsRefused"},
	{"advisory: a write passes no fence", []edit{
		{"advisory/write.go", "if guarded, err = fencedstore.Guard(ctx, tx, w.fence, w.opts...); err != nil {",
			"if err = h.Err(); err != nil {"},
		{"advisory/write.go", "if err := guarded.Seal(ctx); err != nil {",
			"if err := h.Err(); err != nil {"},
	}, bridging, "^TestAWriteIsUnder"},
	{"advisory: a guard refuses nobody", []edit{
		{"advisory/write.go", "\tif !holds {\n\t\treturn h.session.lost(nil)\n\t}\n", "\t_ = holds\n"},
	}, bridging, "^TestGuardRefuses"},
	{"advisory: the watch goes on while a write has the session", []edit{
		{"advisory/held.go", "\t\tcase <-h.turn:\n\t\tcase <-h.ctx.Done():\n\t\t\treturn nil\n\t\t}\n\t\terr := " +
			"h.listen(quiet)",
			"\t\tdefault:\n\t\t}\n\t\terr := h.listen(quiet)"},
		{"advisory/held.go", "\t\th.turn <- struct{}{}\n\t\tif err != nil || h.ctx", "\t\tif err != nil || h.ctx"},
	}, bridging, "^TestWritesAndRelease"},
	{"advisory: Do does not release", []edit{
		{"advisory/bridge.go", "switch lost := held.Release(ctx); {", "switch lost := held.Err(); {"},
	}, bridging, "^TestDoReleases"},
}
