package main

// ofLeaders are the faults of hand-overs to a named waiter, and of elections.
var ofLeaders = []mutant{
	{"I9 whoever queued before a named waiter loses its place", []edit{
		{schema, "head.token, false, 0, true), ARRAY[w]", "head.token, false, w.ticket, true), ARRAY[w]"},
	}, library, "^TestHandOverGrants"},
	{"I9 the last of a label is named instead of the first", []edit{
		{
			schema,
			"AND session_alive(q.session_id) ORDER BY q.ticket LIMIT 1; hand_over.outcome",
			"AND session_alive(q.session_id) ORDER BY q.ticket DESC LIMIT 1; hand_over.outcome",
		},
	}, library, "^TestHandOverMeans"},
	{"a dead waiter is named", []edit{
		{schema, "AND q.mode = 'exclusive'\n      AND session_alive(q.session_id)", "AND q.mode = 'exclusive'"},
	}, library, "^TestHandOverMeans"},
	{"a reader is granted the lock alone", []edit{
		{schema, "AND q.holder = p_to AND q.mode = 'exclusive'", "AND q.holder = p_to"},
	}, library, "^TestHandOverToNobody"},
	{"asking whether somebody waits hands over", []edit{
		{schema, "IF p_look OR hand_over.outcome <> 'handed over' THEN", "IF hand_over.outcome <> 'handed over' THEN"},
	}, library, "^TestHandOverGrants"},
	{"a named waiter keeps its ticket", []edit{
		{schema, "AND (NOT locked OR claim(ARRAY[w], w.ticket - 1) IS NOT NULL) THEN", "THEN"},
	}, library, "^TestHandOverGrants"},
	{"I5 whoever knows no grant ID hands over", []edit{
		{schema, "hand_over.outcome := lost_reason(p_name, p_token, p_grant_id, 0);", "hand_over.outcome := NULL;"},
	}, library, "^TestHandOverByWhoever"},
	{"a renewal that a hand-over overtakes is a loss", []edit{
		{"pglock/lease.go", "lost.Reason == ReasonReleased && l.handing > 0", "lost.Reason == " +
			"ReasonReleased && false"},
	}, library, "^TestHandOverThatARenewal"},
	{"a renewal that does not know what a hand-over has done ends the lease as lost", []edit{
		{"pglock/lease.go", "&& l.hopes > 0 && l.ended", "&& false && l.ended"},
	}, library, "^TestHandOverThatARenewal"},
	{"a loss after a hand-over to nobody is hidden", []edit{
		{"pglock/handover.go", "\t\t\tl.endHanding(true)\n\t\t\tif err = l.notHandedOver(",
			"\t\t\tif err = l.notHandedOver("},
	}, library, "^TestHandOverToNobodyHides"},
	{"I17 a hand-over whose answer is lost is a loss", []edit{
		{"pglock/handover.go", "repeated && next.Outcome == string(ReasonReleased)", "false"},
	}, integration, "MeetsAFault/^HandOver/lost"},
	{"I17 a hand-over takes another call's release for its own", []edit{
		{"pglock/handover.go", "(earlier || !first && l.endedByCall())", "first && false"},
	}, library, "^TestI17_HandOverBeside"},
	{"I17 a hand-over that finds nobody forgets the one before", []edit{
		{"pglock/handover.go", "return l.handing > 1", "return false"},
	}, library, "^TestI17_HandOverAfter"},
	{"I17 a hand-over of unknown outcome is called a failure", []edit{
		{"pglock/handover.go", "\t\t\tif repeated {\n", "\t\t\tif repeated && false {\n"},
	}, library, "^TestHandOverOfUnknown"},

	{"a watch does not tell that a held lock is gone", []edit{
		{"pglock/watch.go", "gone && i.Held && kind == \"\" {", "gone && i.Held && kind != \"\" {"},
	}, library, "^TestWatchTellsWhat"},

	{"a leader releases the lock before its work has stopped", []edit{
		{"leader/candidate.go", "func() { stop(context.Cause(ctx)) }", "func() { stop(context.Cause(ctx)); _ = " +
			"lease.Release(ctx) }"},
	}, electing, "^TestNobodyElseLeads"},
	{"a hand-over to nobody disturbs the work", []edit{
		{"leader/stepdown.go", "return hooks.Of(lease).CanHandOver(ctx, to)", "return nil"},
	}, electing, "^TestHandOverToNobody"},
	{"a leader that found nobody to hand over to steps down", []edit{
		{"leader/candidate.go", "errors.Is(end, pglock.ErrNoWaiter) && ctx.Err() == nil",
			"errors.Is(end, pglock.ErrNoWaiter) && ctx.Err() != nil"},
	}, electing, "^TestHandOverToACandidateThatLeaves"},
	{"what fn returns by itself is taken for an order", []edit{
		{"leader/candidate.go", "told = working.Err() != nil; told &&", "told = true; told &&"},
	}, electing, "^TestWhatFnReturnsByItself"},
	{"the error of a fence that refuses a deposed leader ends Run", []edit{
		{"leader/candidate.go", "lost := err != nil && errors.Is(end, pglock.ErrLost)", "lost := false"},
	}, electing, "^TestAnErrorOfALeader"},
	{"a loss that fn alone knows of ends Run", []edit{
		{"leader/candidate.go", " || end != nil && tellsOfLoss(err, lease)\n", "\n"},
	}, electing, "^TestALossThatAFence"},
	{"a loss that only the successor's write tells of ends Run", []edit{
		{"leader/candidate.go", "return e.Token == lease.Token() && e.LastToken > e.Token", "return false"},
	}, electing, "^TestALossThatAFence"},
	{"the loss of another lock ends no Run", []edit{
		{"leader/candidate.go", "e.Token == lease.Token() && e.Lock == lease.Name()", "e != nil"},
	}, electing, "^TestTheLossOfAnotherLock"},
	{"a panic of fn keeps the lock", []edit{
		{"leader/candidate.go", "\t\tif !given { // fn has panicked, or called Goexit\n",
			"\t\tif !given && false {\n"},
	}, electing, "^TestAPanic"},
	{"a candidate whose ctx has ended leads", []edit{
		{"leader/candidate.go", "\tfor ctx.Err() == nil {\n\t\ttold, err", "\tfor {\n\t\ttold, err"},
	}, electing, "^TestCtxThatEndsWithTheGrant"},
	{"a campaign ends when the server is away", []edit{
		{"leader/candidate.go", "\t\tcase lasting(err):\n", "\t\tcase lasting(err) || true:\n"},
	}, electing, "^TestCampaignGoesOn"},
	{"a leader is deposed since it was asked to stop", []edit{
		{"leader/health.go", "s.State, s.Since = StateDeposed, c.ended", "s.State, s.Since = StateDeposed, c.told"},
	}, electing, "^TestDeposedCounts"},
	{"a deposed leader that works on is healthy", []edit{
		{"leader/health.go", "s.State == StateDeposed && time.Since", "s.State == StateIdle && time.Since"},
	}, electing, "^TestHealthFails"},
	{"a leader that stops is unhealthy", []edit{
		{"leader/health.go", "s.State == StateDeposed && time.Since", "(s.State == StateDeposed || s.State == " +
			"StateStopping) && time.Since"},
	}, electing, "^TestHealthBears"},
	{"one look opens a connection that listens", []edit{
		{"pglock/watch.go", "\tif !tell(change(ChangeState, before, before)) { // a loop that wants no more needs no " +
			"listener\n\t\treturn nil\n\t}\n", ""},
		{"pglock/watch.go", "\tsignal(w.wake) // look again, now that we receive the notifications of this channel\n",
			"\tsignal(w.wake)\n\tif !tell(change(ChangeState, before, before)) {\n\t\treturn nil\n\t}\n"},
	}, library, "^TestOneLook"},
	{"I7 two leaders act while one is cut off", []edit{
		{"internal/trust/trust.go", "left - min(left/20, time.Second)", "left + time.Second"},
	}, "./internal/trust", "^TestI7_DeadlineIsTheTTL"},
}
