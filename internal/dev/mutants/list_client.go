package main

// ofTrust are the faults of a holder's trust in its lease.
var ofTrust = []mutant{
	{"I7 trust counts from the answer", []edit{
		{"pglock/acquire.go", "\tl.extend(g.seen, protocol.Verdict{", "\tl.extend(c.now(), protocol.Verdict{"},
	}, library, "^TestI7_"},
	{"I7 the wall clock is ignored", []edit{
		{"internal/trust/trust.go", "return i.Mono >= t.Mono || !i.Wall.Before(t.Wall)", "return i.Mono >= t.Mono"},
		{"internal/trust/trust.go", "return min(t.Mono-i.Mono, t.Wall.Sub(i.Wall))", "return t.Mono - i.Mono"},
	}, library, "^TestI7_"},
	{"I7 a lease is valid until somebody has noticed its end", []edit{
		{"pglock/lease.go", "if ended == nil && expired {", "if ended == nil && expired && false {"},
	}, library, "^TestI7_"},
	{"I7 a holder believes in its grace", []edit{
		{"pglock/lease.go", "trust.Deadline(sent, lasts, v.Remaining-l.grace)", "trust.Deadline(sent, lasts+l.grace, " +
			"v.Remaining)"},
	}, library, "Grace"},
	{"I22 a grant after a failover does not wait for its grace", []edit{
		{"pglock/grace.go", "case !changed || left <= 0:", "case changed || !changed:"},
	}, library, "Grace"},
	{"trap 8: a late renewal revives", []edit{
		{"pglock/lease.go", "\tif l.ended == nil {\n\t\tl.trust(", "\tif l.ended = nil; true {\n\t\tl.trust("},
		{"pglock/extend.go", "\tif l.ended != nil {\n\t\treturn g\n\t}\n\tl.still", "\tl.ended = nil\n\tl.still"},
	}, library, "^TestTrap8_"},
	{"a release says after a loss that it has released", []edit{
		{"pglock/lease.go", "func (l *Lease) howEnded() error {\n\tl.mu.Lock()\n\tdefer l.mu.Unlock()\n\treturn " +
			"cmp.Or(l.lost, l.ended)", "func (l *Lease) howEnded() error {\n\tl.mu.Lock()\n\tdefer " +
			"l.mu.Unlock()\n\treturn cmp.Or(l.ended, l.lost)"},
	}, library, "^TestErrorOfALease|^TestRelease"},
	{"a release that is repeated after a lost answer hears of no loss", []edit{
		{"pglock/lease.go", "\tcase reason == ReasonReleased && own:\n", "\tcase own:\n"},
	}, library, "^TestRelease"},
	{"a release after a hand-over of unknown outcome is a loss", []edit{
		{"pglock/lease.go", "own := repeated || l.handing > 0", "own := repeated"},
	}, library, "^TestReleaseAfter"},
	{"a release guesses why the lease was gone", []edit{
		{"pglock/lease.go", "\tfor protocol.ConnectionLost(err) && ", "\tfor false && "},
	}, library, "^TestReleaseAfter"},
}

// ofRequests are the faults of asking the server, and of taking requests back.
var ofRequests = []mutant{
	{"I6 each retry has a grant ID of its own", []edit{
		{"pglock/request.go", "\t\tif patience.IsZero() {\n",
			"\t\tq.GrantID, _ = newGrantID()\n\t\tif patience.IsZero() {\n"},
	}, integration, "MeetsAFault/^TryAcquire/lost"},
	{"I6 a refused retry forgets the attempt before", []edit{
		{"pglock/acquire.go", "\tif q.lost {\n\t\tc.takeBack(q", "\tif err != nil && !errors.Is(err, ErrHeld) && " +
			"q.lost {\n\t\tc.takeBack(q"},
	}, library, "^TestI6_"},
	{"I6 a grant ID that is replaced is not spent", []edit{
		{"pglock/request.go", "\t\t\t\tc.takeBack(q.RequestID, true, q.TTL)\n", ""},
	}, library, "^TestI6_AGrantIDThatIsReplaced"},
	{"I11 a retry that is refused hides the attempt before", []edit{
		{"pglock/request.go", "q.lost && !decided {", "q.lost && !decided && protocol.ConnectionLost(err) {"},
	}, library, "^TestI11_ARetryThatIsRefused"},
	{"a call takes the end of another client for that of its own", []edit{
		{"pglock/request.go", "asking.Err() != nil || c.isClosed():",
			"asking.Err() != nil || errors.Is(err, ErrClosed):"},
	}, library, "^TestAnotherClientsErrClosed"},
	{"a wait for a row that is locked for long is not called held", []edit{
		{"pglock/request.go", "\t\t\tq.taken, q.told = true, c.now()\n", ""},
	}, library, "^TestWaitingCallBearsARow"},
	{"I11 the client does not check the name", []edit{
		{"pglock/request.go", "\tif err := checkText(\"name\", name, MaxNameBytes); err != nil {\n\t\treturn " +
			"request{}, err\n\t}\n", ""},
	}, library, "^TestI11_"},
	{"I11 the server does not check the TTL", []edit{
		{schema, "  SELECT CASE WHEN p_value BETWEEN interval '100 ms' AND interval '24 hours'\n",
			"  SELECT CASE WHEN true\n"},
	}, library, "^TestI11_"},
	{"I15 a TTL may have days", []edit{
		{schema, "      AND substr(interval_send(p_value), 9) = decode('0000000000000000', 'hex') THEN true",
			"      THEN true"},
		{schema, "    AND pg_catalog.substr(pg_catalog.interval_send(p_ttl), 9)                                   -- " +
			"no days, no months\n        OPERATOR(pg_catalog.=) pg_catalog.decode('0000000000000000', 'hex')\n", ""},
	}, library, "^TestI15_ATTLHasNoDays"},
	{"I15 the TTL of a session may have days", []edit{
		{schema, "    AND pg_catalog.substr(pg_catalog.interval_send(p_session_ttl), 9)\n        " +
			"OPERATOR(pg_catalog.=) pg_catalog.decode('0000000000000000', 'hex')\n", ""},
	}, library, "^TestI15_ATTLHasNoDays"},
	{"I11 a mode is what the caller's collation takes for it", []edit{
		{schema, `p_mode COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) 'exclusive'`,
			"p_mode OPERATOR(pg_catalog.=) 'exclusive'"},
	}, library, "^TestI11_AModeIs"},
	{"a limit that has run out stays in the way", []edit{
		{schema, "  IF p_locked THEN\n    PERFORM settle(p_name);\n  END IF;\n", ""},
	}, library, "^TestALimitThatHasRunOut"},
	{"a slot that is not the lease's is called expired", []edit{
		{schema, "    WHERE l.name = p_name AND l.slot = coalesce(p_slot, l.slot) AND l.grant_id = p_grant_id\n      " +
			"AND l.token = p_token;\n  IF FOUND THEN\n    RETURN CASE", "    WHERE l.name = p_name AND l.grant_id = " +
			"p_grant_id\n      AND l.token = p_token;\n  IF FOUND THEN\n    RETURN CASE"},
	}, library, "^TestALeaseInAnotherSlot"},
	{"trap 9: a cancelled call keeps the grant that was under way", []edit{
		{"pglock/takeback.go", "\tc.takeBack(q.RequestID, err != nil || q.Retry, q.TTL)\n", ""},
	}, integration, "MeetsAFault/^TryAcquire/Trap9|ThatMeetAFault/^TryAcquire/Trap9"},
	{"trap 9: a cancelled wait keeps its ticket", []edit{
		{"pglock/wait.go", "\tif !answered && !q.lost {\n", "\tif true || !answered && !q.lost {\n"},
	}, integration, "MeetsAFault/^Acquire,_queued/Trap9_cancelled_while_it_waits"},
	{"trap 9: requests whose attempts may be on their way are not spent", []edit{
		{"internal/takeback/takeback.go", "Spend: spend, Done:", "Spend: false, Done:"},
	}, library, "^TestRequestsAre|^TestTrap9_"},
	{"requests are taken back one by one", []edit{
		{"internal/takeback/takeback.go", "func New() *List { return &List{most: Most} }",
			"func New() *List { return &List{most: 1} }"},
		{"internal/takeback/takeback.go", "min(2*l.most, Most), 0\n", "1, 0\n"},
		{"internal/takeback/takeback.go", "l.take(spend, Most)", "l.take(spend, 1)"},
	}, library, "^TestRequestsAre|^TestCloseLeaves"},
	{"a request that could not be taken back is forgotten", []edit{
		{"internal/takeback/takeback.go", "\t\t\tl.waiting = append(l.waiting, r)\n", "\t\t\t_ = r\n"},
	}, library, "^TestWhatCannot"},
	{"a refused request is given up before its lease may have ended", []edit{
		{"internal/takeback/takeback.go", "max(ttl, refusedFor)}", "refusedFor + 0*ttl}"},
	}, "./internal/takeback", "^TestRefusalIsGivenUp"},
	{"one request that cannot be taken back keeps the others", []edit{
		{"pglock/takeback.go", "\tcase protocol.ConnectionLost(err) || protocol.ReadOnly(err) || ctx.Err() != nil:\n",
			"\tdefault:\n"},
	}, library, "^TestOneRequestThat"},
	{"each attempt begins with the rows that somebody has locked", []edit{
		{"pglock/takeback.go", "\t\treturn nil, all, err\n", "\t\treturn all, nil, err\n"},
	}, library, "^TestRequestsWhoseRows|^TestCloseReleasesWhat"},
	{"a request waits for those before it whose rows are locked", []edit{
		{"internal/takeback/takeback.go", "\t\tr.refused = true\n", "\t\tr.refused = false\n"},
	}, library, "^TestRequestsWhoseRows"},
	{"grants that a taking back makes possible are not told", []edit{
		{"pglock/takeback.go", "\t\tc.send(ctx, others, c.backend.AnnounceOwn)\n", ""},
	}, library, "^TestGrantsThat"},
	{"a call that gives up waits for the server", []edit{
		{"pglock/wait.go", "\tcase <-time.After(leavePatience):\n", ""},
	}, library, "^TestQueueIsLeft"},
	{"trap 9: a ticket of a call that is about to hear of it is taken back", []edit{
		{"internal/queue/looks.go", "\t\tif again && since.Mono < answered {\n", "\t\tif again || !again {\n"},
	}, library, "^TestTrap9_TicketThat"},
	{"trap 9: a ticket of a call that asks again is taken back", []edit{
		{"pglock/wait.go", "\t\t\tc.calls.asksAgain(q, c.now())\n", ""},
	}, library, "^TestTrap9_TicketOfACall"},
	{"trap 9: a ticket that nobody waits for stays", []edit{
		{"pglock/heartbeat.go", "\tc.takeBackStrays(ctx, c.queue.Looked(look, sightings, sent, c.now(), answered))\n",
			"\tc.queue.Looked(look, sightings, sent, c.now(), answered)\n"},
	}, library, "^TestTrap9_TicketThat"},
	{"AcquireAll that fails keeps what it has", []edit{
		{"pglock/acquireall.go", "\t\tif l != nil && l.end(ErrReleased) {\n", "\t\tif l != nil && l.end(ErrReleased) " +
			"&& false {\n"},
	}, library, "^TestAcquireAllThatFails"},
	{"AcquireAll that fails waits until all is given back", []edit{
		{"pglock/acquireall.go", "context.WithTimeout(c.ctx, leavePatience)",
			"context.WithTimeout(c.ctx, 100*leavePatience)"},
	}, library, "^TestAcquireAllComesBack"},
	{"a statement that was lost is asked for by its name again", []edit{
		{"internal/protocol/names.go", "\tn.unusableUntil.Store(",
			"\t_ = (func(int64))(nil)\n\tnew(names).unusableUntil.Store("},
	}, protocol, "^TestStatementsGo"},
	{"statements go by their names behind a pooler that loses them", []edit{
		{"internal/protocol/names.go", " && time.Now().UnixNano() >= n.unusableUntil.Load()\n", "\n"},
	}, protocol, "^TestStatementsGo"},
	{"a watch that cannot go on ends without a word", []edit{
		{"pglock/watch.go", "server.Lasting(err):\n\t\t\treturn c.unseen(name, err)\n",
			"server.Lasting(err):\n\t\t\treturn nil\n"},
	}, library, "^TestWatchThatIsRefused"},
	{"a watch looks as often as somebody notifies", []edit{
		{"pglock/watch.go", "\tpause.For(ctx, min(next, againPause))\n", ""},
	}, library, "^TestAStorm"},
	{"a waiter asks as often as somebody repeats a hint", []edit{
		{"internal/queue/hint.go", "AskAgain: true, Heard: true}", "AskAgain: true}"},
	}, library, "^TestAStorm"},
	{"a watch ends with an error that passes", []edit{
		{"pglock/watch.go", "\t\tcase looking.Err() == nil && server.Lasting(err):\n", "\t\tcase looking.Err() == " +
			"nil && (server.Lasting(err) || true):\n"},
	}, library, "^TestWatchThatCannot"},
}

// ofTheBeat are the faults of renewing.
var ofTheBeat = []mutant{
	{"every lease wakes the heartbeat", []edit{
		{"pglock/leases.go", "\twake = min(wake, stillTo(now, s.nextBeat))\n", ""},
	}, library, "^TestLeasesThatComeAndGo"},
	{"every lease wakes the watch of the deadlines", []edit{
		{"pglock/leases.go", "\tnext = min(next, stillTo(now, s.nextDeadline))\n", ""},
	}, library, "^TestLeasesThatComeAndGo"},
	{"a lease whose row is locked is not asked for by itself", []edit{
		{"pglock/renew.go", "\t\t\tbusy = append(busy, l)\n", "\t\t\tl.renewLater(later, errBusy)\n"},
	}, library, "^TestBusyRow"},
	{"a locked row holds up the renewals of other leases", []edit{
		{"pglock/renew.go", "min(hold, busyWait))\n", "limit)\n"},
	}, library, "^TestLockedRow|^TestBeatWaits"},
	{"a lease that the server calls lost goes on", []edit{
		{"pglock/renew.go", "\t\t\tl.end(&LostError{Lock: l.name, Token: l.token, Reason: Reason(v.Outcome)})\n",
			"\t\t\tl.renewLater(later, errBusy)\n"},
	}, library, "^TestLossThatTheServer"},
	{"a renewal that hangs takes the time of the next", []edit{
		{"pglock/renew.go", "max(left/2, ttl/holdsUp)", "max(left, ttl/holdsUp)"},
	}, library, "^TestRenewalThatHangs"},
}

// ofClose are the faults of closing a client.
var ofClose = []mutant{
	{"Close says nothing of what it could not take back", []edit{
		{"pglock/close.go", "\t\tunended(backs, errs[:len(backs)],", "\t\tunended(backs, nil,"},
	}, library, "^TestClose"},
	{"Close says nothing of leases that it could not release", []edit{
		{"pglock/close.go", "\t\tunended(leases, errs[len(backs):],", "\t\tunended(leases, nil,"},
	}, library, "^TestClose"},
	{"a coalescer that is shut waits for a connection", []edit{
		{"internal/coalesce/coalescer.go", "\tg.rest()\n\twaiting := g.waiting\n", "\twaiting := g.waiting\n"},
	}, coalescing, "^TestCoalescerThatIsShut"},
	{"a try fails with the first that waits for a connection", []edit{
		{"internal/coalesce/coalescer.go", "c.came.Add(g.Patience)", "c.came"},
	}, coalescing, "^TestCallsThatComeLater"},
	{"who has waited too long for a connection leaves its wait behind", []edit{
		{"internal/coalesce/coalescer.go", "\t\tclose(c.done)\n\t}\n\tg.rest()\n",
			"\t\tclose(c.done)\n\t}\n"},
	}, coalescing, "^TestCallsThatHaveWaited"},
	{"the failure that earlier calls met is told to later ones", []edit{
		{"internal/coalesce/coalescer.go", "[]*time.Timer{g.timer, g.late}", "[]*time.Timer{g.timer}"},
	}, coalescing, "^TestACallHearsOfNoFailure"},
	{"a call under an ended context goes into a statement", []edit{
		{"internal/coalesce/coalescer.go", "\tif err := ctx.Err(); err != nil {", "\tif err := ctx.Err(); false {"},
	}, coalescing, "^TestCallUnderAnEndedContext"},
	{"the token of a lease that has ended stays known", []edit{
		{"pglock/leases.go", "if delete(s.all, l); s.byToken[l.token] == l {", "if delete(s.all, l); false {"},
	}, library, "^TestAcquireAllThatFailsHoldsNothing"},
	{"nobody is told that the holder is the client itself", []edit{
		{"pglock/acquire.go", "c.leases.since(Token(a.Token))", "c.leases.since(0)"},
	}, library, "^TestAClientIsToldThatItHolds"},
	{"a lease that has ended is looked after", []edit{
		{"pglock/leases.go", "if err := l.ended; err != nil || s.closed {", "if err := l.ended; s.closed {"},
	}, library, "^TestALeaseThatEndsBefore"},
	{"work that winds down cannot extend its lease", []edit{
		{"pglock/extend.go", "case <-l.life.Done():", "case <-l.ctx.Done():"},
	}, library, "^TestDoKeepsTheLeaseExtensible"},
	{"work that winds down cannot write", []edit{
		{"fencedstore/write.go", "life := hooks.Of(f.Lease).Life()\n", "life := f.Lease.Context()\n\t\t_ = hooks.Of\n"},
	}, store, "^TestWorkThatWindsDown"},
	{"a new owner is the context's", []edit{
		{"pglock/options.go", "\t\tr.owner, err = newOwner()\n", ""},
	}, library, "^TestWorkOfItsOwn"},
	{"a call without a connection does not say so", []edit{
		{"internal/server/server.go", "if NeverSent(err) && !a.Retry && ctx.Err() != nil {", "if false {"},
	}, library, "^TestACallWithoutAConnection"},
	{"a call waits for a pool that is closed", []edit{
		{"pglock/request.go", "errors.Is(err, puddle.ErrClosedPool)", "errors.Is(err, puddle.ErrClosedPool) && false"},
	}, library, "^TestACallOnAClosedPool"},
	{"each renewal tells of a lease that is held for long", []edit{
		{"pglock/observing.go", "\ts.long = true\n", ""},
	}, library, "^TestTheObserverHearsOnceOfALease"},
	{"a pause of the program is not noticed", []edit{
		{"pglock/expiry.go", "length < overslept:", "true:"},
	}, library, "^TestALeaseThatExpiresInAPause"},
	{"every call asks a server that refuses connections", []edit{
		{"internal/server/refusals.go", "forAll, err := s.refusals.enter(ctx, open)\n",
			"forAll, err := new(refusals).enter(ctx, open)\n"},
	}, library, "^TestAServerThatRefuses"},
	{"a refusal is not shared by those who wait for the attempt", []edit{
		{"internal/server/refusals.go", "\t\tover.refusal = err\n", ""},
	}, "./internal/server", "^TestAfterARefusal"},
	{"an attempt that hangs holds up the next", []edit{
		{"internal/server/refusals.go", "case <-timer.C:", "case <-(chan int)(nil):"},
	}, "./internal/server", "^TestAnAttemptThatHangs"},
	{"who marks a connection waits for whoever changes its session's row", []edit{
		{schema, "WHERE NOT EXISTS (SELECT FROM sessions o WHERE o.session_id = me) ON CONFLICT", "ON CONFLICT"},
	}, "./internal/server", "^TestTheServerKnows"},
	{"a pause explains every later loss", []edit{
		{"pglock/expiry.go", " && p.ended.Mono > l.fresh", ""},
	}, library, "^TestALeaseThatExpiresInAPause"},
	{"a pause of the machine is one of the program", []edit{
		{"pglock/expiry.go", "case since-(now.Mono-p.last.Mono) > overslept:", "case false:"},
	}, library, "^TestALeaseThatExpiresInAPause"},
	{"a TTL that is too short is not named", []edit{
		{"pglock/expiry.go", "l.took > l.ttl/3", "false"},
	}, library, "^TestATTLThatIsTooShort"},
	{"the server goes on to know a connection that is gone", []edit{
		{"internal/server/own.go", "\t\ts.unknown.Add(1)\n", ""},
	}, "./internal/server", "^TestTheServerKnows"},
	{"a connection whose session's row was locked is never marked", []edit{
		{"internal/server/own.go", "if err != nil || marked == nil {", "if e.told.Store(told); err != nil || marked " +
			"== nil {"},
	}, "./internal/server", "^TestTheServerKnows"},
	{"a grant by notification is a slow request", []edit{
		{"pglock/acquire.go", "if g.asked {", "if true {"},
	}, library, "^TestAGrantByNotification"},
	{"why: who has not renewed yet gives no sign", []edit{
		{"lockadmin/verdicts_life.go", "(!h.Renewed || h.SinceRenewal-h.Silent > time.Second)", "h.Renewed"},
	}, administration, "^TestASignOfLifeIsBelieved"},
	{"why: who has lost its tickets is silent", []edit{
		{"lockadmin/verdicts_life.go", " && (h.SignedAt.IsZero() || h.Silent > 15*time.Second)", ""},
	}, administration, "^TestASignOfLifeIsBelieved"},
	{"an application's advisory lock passes a fence", []edit{
		{schema, "m.marks AND m.mode = 'ShareLock' AND", "m.marks AND"},
	}, administration, "^TestAnApplicationsAdvisoryLock"},
	{"every sender stays", []edit{
		{"internal/coalesce/coalescer.go", "g.shut || g.idle == g.Width", "g.shut"},
	}, coalescing, "^TestAsManySendersStay"},
	{"no sender stays", []edit{
		{"internal/coalesce/coalescer.go", "g.shut || g.idle == g.Width", "true"},
	}, coalescing, "^TestAsManySendersStay"},
	{"what is tried until its context ends does not say so", []edit{
		{"pglock/close.go", "err != nil && ended != nil && !errors.Is(err, ended)", "false && err != nil && ended != " +
			"nil"},
	}, library, "^TestWhatIsTried"},
	{"Close takes for lost what the heartbeat's connection did not say", []edit{
		{"pglock/close.go", "\t\tif again > 0 && pause.For(ctx, again) {\n", "\t\tif false && again > 0 && " +
			"pause.For(ctx, again) {\n"},
	}, library, "^TestCloseTriesAgain"},
	{"Close waits for no row", []edit{
		{"pglock/close.go", "case protocol.ConnectionLost(err) || protocol.Transient(err):\n",
			"case protocol.ConnectionLost(err) || protocol.Transient(err) && !protocol.LockedOut(err):\n"},
	}, library, "^TestCloseWaitsForWhoever"},
	{"Close repeats nothing that the server has undone", []edit{
		{"pglock/close.go", "case protocol.ConnectionLost(err) || protocol.Transient(err):\n",
			"case protocol.ConnectionLost(err) || protocol.LockedOut(err):\n"},
	}, library, "^TestCloseTriesAgain"},
	{"Close releases leases while it cannot take its waits back", []edit{
		{"pglock/close.go", "\t\t\tif away {", "\t\t\tif away && false {"},
	}, library, "^TestCloseReleasesNothing"},
	{"I6 the release of a lease with a lost attempt leaves its grant ID to that", []edit{
		{"pglock/lease.go", "\tif l.strays {\n\t\tsent := ", "\tif l.strays && false {\n\t\tsent := "},
	}, library, "^TestI6_TheEnd"},
	{"I6 Close leaves the grant ID of a lease with a lost attempt to that", []edit{
		{"pglock/close.go", "\t\t\tif l.strays {\n", "\t\t\tif l.strays && false {\n"},
	}, library, "^TestI6_TheEnd"},
	{"I6 a hand-over leaves the grant ID to a lost attempt", []edit{
		{"pglock/handover.go", "\t\t\tl.spend()\n", ""},
	}, library, "^TestI6_TheEnd"},
	{"I6 a loss leaves the grant ID to a lost attempt", []edit{
		{"pglock/lease.go", "\tswitch {\n\tcase goesOn:\n", "\tswitch {\n\tcase true:\n\tcase goesOn:\n"},
	}, library, "^TestI6_TheEnd"},
	{"I6 a hand-over that a renewal tells leaves the grant ID to a lost attempt", []edit{
		{"pglock/lease.go", "cause != ErrReleased || l.handed\n", "cause != ErrReleased\n"},
	}, library, "^TestI6_HandOverThatARenewal"},
	{"I6 what AcquireAll takes back leaves its grant ID to a lost attempt", []edit{
		{"pglock/acquireall.go", "l.requestID(), l.strays, l.ttl", "l.requestID(), false, l.ttl"},
	}, library, "^TestI6_WhatAcquireAll"},
	{"I1 a connection takes names for others", []edit{
		{"internal/protocol/execute.go", "CheckEncoding(conn); err != nil {", "CheckEncoding(conn); err != nil && " +
			"false {"},
	}, library, "^TestI1_AConnectionOfAnother"},
	{"I6 what a server did that ends a connection counts as undone", []edit{
		{"internal/protocol/failures.go", "severity(err) == \"PANIC\":", "false:"},
	}, library, "^TestTrap9_GrantOfACancelled"},
	{"I17 a grant that no standby has is announced", []edit{
		{"internal/protocol/queries.go", "'synchronous_standby_names') OPERATOR(pg_catalog.=) ''",
			"'synchronous_standby_names') IS NOT NULL"},
	}, integration, "^TestI17_AnnouncedGrant"},
	{"I17 a session silences the warning of a COMMIT without its standby", []edit{
		{schema, "(pg_catalog.=) 'error' THEN", "(pg_catalog.=) 'none' THEN"},
	}, integration, "^TestI17_CancelledStandbyWaitIs"},
}
