package main

// ofTheSchedule are the faults of when leases are renewed, and beside what.
var ofTheSchedule = []mutant{
	{"a statement for long leases holds up a short one", []edit{
		{"pglock/leases.go", "\t\ta.hold = min(a.hold, l.ttl/holdsUp)\n", ""},
	}, library, "^TestThousandsOfLong"},
	{"leases of all TTLs go in one statement", []edit{
		{"pglock/leases.go", "\t\tif l.class != class {\n", "\t\tif false {\n"},
	}, library, "^TestAStatementRenews"},
	{"everything waits for a statement that is silent", []edit{
		{"pglock/leases.go", "\t\twake = max(a.beside, h.last.began+a.hold-now.Mono)\n", "\t\twake = never\n"},
	}, library, "^TestASilentStatement"},
	{"a statement that is late is cut off", []edit{
		{"pglock/heartbeat.go", "max(limit, cutOff)", "limit"},
	}, library, "^TestASlowRenewal"},
	{"a lease is asked for again while the server may still answer", []edit{
		{"pglock/leases.go", "\t\tif c.asked {\n", "\t\tif false {\n"},
	}, library, "^TestALeaseWhoseRenewal"},
	{"a late failure undoes what a later attempt has renewed", []edit{
		{"pglock/renew.go", "\t\tcase !latest: // it was asked for again, and perhaps renewed\n",
			"\t\tcase !latest && false:\n"},
	}, library, "^TestALateFailure"},
	{"clients that fail together come back together", []edit{
		{"pglock/renew.go", "soonest+time.Duration(later*float64(soonest))", "2*soonest"},
	}, library, "^TestClientsThatFail"},
	{"a lost connection fails a request with a grace", []edit{
		{"pglock/grace.go", "\t\tif !protocol.ConnectionLost(err) && ", "\t\tif protocol.ConnectionLost(err) && "},
	}, library, "^TestGraceOutlives"},
}

// ofConnections are the faults of getting a connection, and of leaving nothing behind.
var ofConnections = []mutant{
	{"a server without a free slot is no server", []edit{
		{"internal/protocol/failures.go", ", state == stateNoSlot:", ":"},
		{"internal/protocol/failures.go", "return !slices.ContainsFunc(loginRefusals", "return false && " +
			"!slices.ContainsFunc(loginRefusals"},
	}, integration, "^TestAServerWithoutAFreeSlot"},
	{"idle connections of the pool keep no lease", []edit{
		{"internal/lending/lender.go", "; idle || full || order == OpenOfMany {",
			"; (idle || full || order == OpenOfMany) && false {"},
		{"internal/lending/lender.go", " || l.sparesDials()) && l.idle() {", ") && l.idle() {"},
	}, integration, "^TestAServerWithoutAFreeSlot"},
	{"a release takes no connection but the pool's", []edit{
		{"internal/server/server.go", "releasesWide, errClosed, s.lend,", "releasesWide, errClosed, s.borrow,"},
	}, integration, "^TestAServerWithoutAFreeSlot"},
	{"a check takes no connection but the pool's", []edit{
		{"internal/server/server.go", "checksWide, errClosed, s.lend,", "checksWide, errClosed, s.borrow,"},
	}, library, "^TestExtendAndCheckNeedNoConnection"},
	{"who has lost its connection waits until it has something to say", []edit{
		{"pglock/leases.go", "if waits || len(s.all) > 0 {", "if false {"},
	}, library, "^TestWhoLosesItsConnection"},
	{"clients that lose their connections come back at once", []edit{
		{"pglock/sign.go", "c.now().Mono + rand.N(signPause))", "c.now().Mono)"},
	}, library, "^TestSignsAfterALoss"},
	{"a dial that hangs is waited for", []edit{
		{"internal/lending/lender.go", "\t\t\tlate = true\n", ""},
	}, lendingPackage, "^TestADialThatHangsIsWaited"},
	{"a slow dial is not waited for", []edit{
		{"internal/lending/lender.go", "alone.Reset(head(ctx, dialHeadStart))", "alone.Reset(pause)"},
	}, lendingPackage, "^TestASlowDial"},
	{"an exhausted pool is waited for", []edit{
		{"internal/lending/lender.go", "\t\tdials = l.dial(order, dialled)\n", ""},
	}, lendingPackage, "^TestAnExhaustedPool"},
	{"a dial ends with the time of who waits for it", []edit{
		{"internal/lending/lender.go", "context.WithTimeout(l.Life, l.Limit)", "context.WithTimeout(l.Life, " +
			"headStart/4)"},
	}, lendingPackage, "^TestADialThatComesTooLate"},
	{"a full server is asked for a slot with every statement", []edit{
		{"internal/lending/lender.go", " || !l.refused.IsZero() && time.Since(l.refused) < shyFor", ""},
	}, lendingPackage, "^TestAFullServer"},
	{"every release of a process with an exhausted pool dials", []edit{
		{"internal/lending/lender.go", "\t}\n\tif conn, open := l.take(); open {\n\t\treturn l.own(conn), " +
			"nil\n\t}\n\treturn l.race", "\t}\n\treturn l.race"},
	}, lendingPackage, "^TestAnExhaustedPoolCosts"},
	{"hundreds of callers dial hundreds of connections", []edit{
		{"internal/lending/lender.go", ", order.many() && len(l.lent)+l.dials >= ownMost:", ":"},
	}, lendingPackage, "^TestCallersOfAnExhaustedPool"},
	{"what keeps leases waits behind calls for the only connection", []edit{
		{"internal/lending/own.go", "return other.many && !w.many", "return false"},
	}, lendingPackage, "^TestWhatKeepsLeases"},
	{"a connection is lent while somebody reads what comes over it", []edit{
		{"internal/lending/own.go", "\tif s.end(); !l.Usable(s.conn) {", "\tif !l.Usable(s.conn) {"},
	}, lendingPackage, "^TestWhatComesIsWaitedFor"},
	{"a connection that was lost in nobody's use is lent", []edit{
		{"internal/lending/own.go", "\tif s.end(); !l.Usable(s.conn) {", "\tif s.end(); false {"},
	}, lendingPackage, "^TestASpareConnectionThatWasLost"},
	{"an idle heartbeat closes the connection that listens", []edit{
		{"internal/lending/own.go", "!l.keeps && s.conn != l.listens)", "!l.keeps)"},
	}, lendingPackage, "^TestTheConnectionThatListens"},
	{"the connection that listens is closed for another", []edit{
		{"internal/lending/own.go", "l.spare == nil && l.keeps || conn == l.listens)", "l.spare == nil && (l.keeps " +
			"|| conn == l.listens))"},
	}, lendingPackage, "^TestTheConnectionThatListens"},
	{"a claim gets another connection", []edit{
		{"internal/lending/own.go", "return w.only == conn || w.only == *new(C) })", "return true })"},
	}, lendingPackage, "^TestAClaimGets"},
	{"a claim waits for a connection that was closed", []edit{
		{"internal/lending/own.go", "\t\t\tclose(w.got)\n", ""},
	}, lendingPackage, "^TestAClaimEnds"},
	{"a connection that comes as its waiter leaves stays lent", []edit{
		{"internal/lending/own.go", "\t\tif open {\n\t\t\tl.put(conn)\n", "\t\tif open && false {\n" +
			"\t\t\tl.put(conn)\n"},
	}, lendingPackage, "^TestAConnectionThatComesAs"},
	{"those who come together dial each", []edit{
		{"internal/lending/lender.go", "\tcase l.dials > 0:\n", "\tcase false:\n"},
	}, lendingPackage, "^TestThoseWhoComeTogether"},
	{"what listens takes a connection of the pool", []edit{
		{"internal/lending/lender.go", "\t\tif order <= Own || borrowed", "\t\tif borrowed"},
	}, lendingPackage, "^TestOnesOwnIsNever"},
	{"what comes during a statement is lost", []edit{
		{"internal/server/listen.go", "\tconfig.OnNotification = func(", "\tconfig.OnNotice, _ = nil, func("},
	}, integration, "^TestNotificationsComeBetween"},
	{"whoever takes the connection has its waiting cancelled by the server", []edit{
		{"internal/server/own.go", "\tconfig.BuildContextWatcherHandler = func(", "\t_ = func("},
	}, integration, "^TestNotificationsComeBetween"},
	{"nobody reads what comes over a connection that nobody uses", []edit{
		{"internal/server/own.go", "Usable: usable, Hang: s.hang, Attend: s.attend,\n\t})\n}\n\n// newDirect",
			"Usable: usable, Hang: s.hang,\n\t})\n}\n\n// newDirect"},
	}, integration, "^TestALostConnectionIsNoticed"},
	{"a connection to a standby is kept", []edit{
		{"internal/protocol/execute.go", "if ReadOnly(err) { // a standby", "if false { // a standby"},
	}, library, "^TestConnectionsToAStandbyAreGivenUp"},
	{"a waiting call loses its place to a standby", []edit{
		{"pglock/request.go", "case q.queued && protocol.ReadOnly(err):", "case false:"},
	}, library, "^TestAWaitingCallKeepsItsPlaceWhile"},
	{"a call meets the pool's connections to a standby one by one", []edit{
		{"internal/server/server.go", "old > 0 && protocol.ReadOnly(err); old--", "false; old--"},
	}, library, "^TestACallPasses"},
	{"a silent server holds up the others", []edit{
		{"internal/server/connect.go", "hosts := apart(config)", "hosts := apart(config)[:1]"},
	}, "./internal/server", "^TestASilentServerHoldsUp"},
	{"a slow primary leads to a standby where any server will do", []edit{
		{"internal/server/connect.go", "len(hosts) == 1 || config.ValidateConnect == nil", "len(hosts) == 1"},
	}, "./internal/server", "^TestHostsKeepTheirOrder"},
	{"a standby is not asked again while another server is silent", []edit{
		{"internal/server/connect.go", "} else if s.mayAskAgain() {", "} else if false {"},
	}, "./internal/server", "^TestASilentServerHoldsUp"},
	{"a silent leader is waited for", []edit{
		{"internal/server/server.go", "\ts.executor.Watch = s.watch\n", ""},
	}, "./internal/server", "^TestASilentLeader"},
	{"LISTEN waits for a silent leader", []edit{
		{"internal/server/listen.go", "if h.lender == h.server.lender {", "if false {"},
	}, "./internal/server", "^TestASilentLeader"},
	{"I23 a standby that refuses SERIALIZABLE is not known as one", []edit{
		{"internal/protocol/failures.go", `"GetSerializableTransactionSnapshot", `, ""},
	}, integration, "^TestI23_NothingIsDecided"},
	{"a silent connection that only listens stays", []edit{
		{"internal/server/moved.go", "if has != nil && conn != nil && !has[", "if false && !has["},
	}, "./internal/server", "^TestASilentConnectionThatOnly"},
	{"a slow leader is left", []edit{
		{"internal/server/moved.go", "one.asked && !has[one.pid]", "one.asked"},
	}, "./internal/server", "^TestASlowLeader"},
	{"a slow leader is asked again and again", []edit{
		{"internal/server/moved.go", "if s.slow++; moved {", "if s.slow++; true {"},
	}, "./internal/server", "^TestASlowLeader"},
	{"whoever asks the pool waits for a silent connection", []edit{
		{"internal/server/moved.go", "for limit := protocol.Patience; s.pool.Stat().IdleConns() > 0; {",
			"for limit := protocol.Patience; s.pool.Stat().IdleConns() > 1000; {"},
	}, "./internal/server", "^TestASilentLeader"},
	{"a slow network closes connections of the pool", []edit{
		{"internal/server/moved.go", "min(3*p.about, allowed)", "0"},
	}, "./internal/server", "^TestASlowNetwork"},
	{"one slow answer is a slow network", []edit{
		{"internal/server/moved.go", "p.longer == inARow {", "true {"},
	}, "./internal/server", "^TestASlowAnswer"},
	{"answers that were slow together are a slow network", []edit{
		{"internal/server/moved.go", "p.longer > 0 && asked.Before(p.last)", "false"},
	}, "./internal/server", "^TestASlowAnswer"},
	{"a slow network holds up a failover", []edit{
		{"internal/server/moved.go", "min(3*p.about, allowed)", "3*p.about"},
	}, "./internal/server", "^TestASlowAnswer"},
	{"the leader is asked over a connection that may be silent", []edit{
		{"internal/lending/lender.go", "\tif order == Fresh {\n\t\treturn l.race(ctx, order)\n\t}\n", ""},
	}, lendingPackage, "^TestAFresh"},
	{"a listener on the server itself waits for its proof", []edit{
		{"internal/listener/listener.go", "!s.proven && conn.Certain() &&", "false &&"},
	}, listening, "^TestCertain"},
	{"a listener believes a connection after one that was deaf", []edit{
		{"internal/listener/listener.go", "conn.Certain() && !s.doubts", "conn.Certain()"},
	}, listening, "^TestCertain"},
	{"a connection that brings nothing is kept", []edit{
		{"internal/server/listen.go", "h.ears.heard = !works, false, nil", "h.ears.heard = false, false, nil"},
	}, integration, "^TestAConnectionThatBringsNothing"},
	{"what a connection listens to stays with the next listener", []edit{
		{"internal/server/listen.go", "\"UNLISTEN *\"", "\"SELECT\""},
	}, integration, "^TestAConnectionThatBringsNothing"},
	{"I8 looks go over the connection that listens", []edit{
		{"internal/server/own.go", "if s.lender.Listens() {", "if false {"},
		{"pglock/heartbeat.go", "\t\t\th.last.until = now.Mono + beside // its connection may be dead\n", ""},
	}, integration, "^TestI8_AConnectionThatDies"},
	{"I8 whoever asks again waits for the pool", []edit{
		{"internal/server/server.go", "s.again = gathering(s, waitsWide, errClosed, s.lend,",
			"s.again = gathering(s, waitsWide, errClosed, s.borrow,"},
	}, integration, "^TestI8_AConnectionThatDies"},
	{"I8 a look waits for one that is not answered", []edit{
		{"pglock/heartbeat.go", "max(lookAgain, slowLook*look.Took)", "max(limit, slowLook*look.Took)"},
	}, integration, "^TestI8_AConnectionThatDies"},
	{"a silent server is looked at again and again", []edit{
		{"pglock/heartbeat.go", "n == 0 && (late < 2 || kind >= 0)", "n == 0"},
	}, library, "^TestASilentServerIsNotFlooded"},
	{"looks hurry however long a server is silent", []edit{
		{"pglock/heartbeat.go", "limit, beside = patience, patience", "_ = 0"},
	}, library, "^TestASilentServerIsLooked"},
	{"who has dialled for another dials no more", []edit{
		{"internal/lending/lender.go", "\t\tif err == nil {\n\t\t\tl.put(conn)\n\t\t}\n\t\tended <- err\n",
			"\t\tif err == nil {\n\t\t\tl.put(conn)\n\t\t\treturn\n\t\t}\n\t\tended <- err\n"},
	}, lendingPackage, "^TestWhoseDialHasServed"},
	{"a connection of the pool that came too late is kept", []edit{
		{"internal/lending/lender.go", "\t\t\tif err == nil {\n\t\t\t\tgive()\n\t\t\t}\n", ""},
	}, lendingPackage, "^TestWhatNobodyReceives"},
	{"Close leaves a session", []edit{
		{"pglock/close.go", "\tif c.mayBeKnown.Load() {\n", "\tif c.mayBeKnown.Load() && false {\n"},
	}, library, "^TestCloseLeavesNoSession"},
	{"Close does not know that a wait makes a session", []edit{
		{"pglock/request.go", "if q.Wait || q.Subtree {\n", "if q.Subtree {\n"},
	}, library, "^TestCloseLeavesNoSession"},
	{"Close does not know that a try for a subtree makes a session", []edit{
		{"pglock/request.go", "if q.Wait || q.Subtree {\n", "if q.Wait {\n"},
	}, library, "^TestCloseLeavesNoSession"},
	{"Close ends a session that a look then brings back", []edit{
		{"pglock/close.go", "\tc.land(ctx)\n", "\tdefer c.land(ctx)\n"},
	}, library, "^TestCloseEndsTheSession"},
}
