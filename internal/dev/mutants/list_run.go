package main

// ofRuns are the faults of a command that runs under a lock, and of jobs that run once for each planned time.
var ofRuns = []mutant{
	{"I7 run: nobody warns a command before its lease ends", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "} else if !m.warned && now.Until(m.deadline) <= " +
			"m.killAfter {",
			"} else if false {"},
	}, command, "^TestI7_ACommand"},
	{"I7 run: a command outlives the deadline", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "if !m.killed && now.Reached(m.deadline) {",
			"if !m.killed && now.Reached(m.deadline.Add(time.Minute)) {"},
	}, command, "^TestI7_ACommand"},
	{"I7 run: nobody moves the deadline", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\t\t\t\tr.group.Trust(deadline)\n", ""},
	}, command, "^TestACommandRuns"},
	{"run: the minder lets the group live when run is gone", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "\t\t\tif !alive {\n\t\t\t\tm.kill()\n",
			"\t\t\tif !alive {\n"},
	}, command, "^TestNothingOutlives"},
	{"run: what started the command alone dies with it", []edit{
		{"cmd/pglock-admin/internal/minder/system_linux.go", "_ = unix.Prctl(unix.PR_SET_PDEATHSIG, " +
			"uintptr(unix.SIGKILL), 0, 0, 0)",
			"_ = unix.SIGKILL"},
	}, command, "^TestTheCommandDies"},
	{"run: what is killed by the kernel is a thread that the command leaves", []edit{
		{"cmd/pglock-admin/internal/minder/gate_unix.go", "\truntime.LockOSThread()", "\t_ = runtime.LockOSThread"},
		{"cmd/pglock-admin/internal/minder/gate_unix.go", "\tdieWithParent()", "\tasked := make(chan bool)\n\tgo " +
			"func() { runtime.LockOSThread(); dieWithParent(); asked <- true; select {} }()\n\t<-asked"},
	}, command, "^TestTheCommandDies"},
	{"run: a command goes on without its minder", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\tif r.pid != 0 {\n\t\t_ = syscall.Kill(",
			"\tif r.pid < 0 {\n\t\t_ = " +
				"syscall.Kill("},
	}, command, "^TestTheCommandIsKilledWhenItsMinderIs"},
	{"run: a command begins before run knows its group", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "\tsend(m.socket, Event{Kind: Started, Pid: " +
			"m.pid})\n\tgate.open()\n",
			"\tgate.open()\n\tsend(m.socket, Event{Kind: Started, Pid: m.pid})\n"},
	}, minding, "^TestACommandBegins"},
	{"run: a minder that was stopped keeps a command alive", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\t\t\t\tr.group.Kill(r.pid)\n", ""},
	}, command, "^TestACommandIsKilledByRun"},
	{"run: the lock is free while the command's children live", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "if m.ended != nil && m.gone() {", "if m.ended != nil {"},
	}, command, "^TestWhatTheCommandLeaves"},
	{"run: orphans stay in the group", []edit{
		{"cmd/pglock-admin/internal/minder/system_linux.go", "_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)",
			"_ = unix.PR_SET_CHILD_SUBREAPER"},
	}, command, "^TestOrphans"},
	{"run: a second request to end is passed on like the first", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "if r.request != 0 {", "if r.request == syscall.SIGKILL {"},
	}, command, "^TestRunPassesSignalsOn"},
	{"run: a request to end that timeout sends twice kills", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "s == r.request && now.Sub(r.requested) < sameRequest",
			"false"},
	}, command, "^TestRunPassesSignalsOn"},
	{"run: a command that was stopped cannot take TERM", []edit{
		{"cmd/pglock-admin/internal/minder/mind_unix.go", "\t\t_ = syscall.Kill(-m.pid, syscall.SIGCONT)\n", ""},
	}, command, "^TestRunPassesSignalsOn"},
	{"run: a hangup that nohup holds off reaches the command", []edit{
		{"cmd/pglock-admin/internal/cli/signals.go", "slices.DeleteFunc(slices.Clone(signals), signal.Ignored)",
			"slices.Clone(signals)"},
	}, command, "^TestRunGivesItsCommand"},
	{"run: nobody asks whether the key is done", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\tif err := heeding(ctx, r.signals, r.isDone); err != nil {",
			"\tif err := heeding(ctx, r.signals, r.isDone); err != nil && err == nil {"},
	}, command, "^TestAKey"},
	{"run: nobody hears a signal while run asks whether the key is done", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\tif err := heeding(ctx, r.signals, r.isDone); err != nil {",
			"\tif err := r.isDone(ctx); err != nil {"},
	}, command, "^TestASignalEndsTheQuestion"},
	{"run: a key is done when its command has failed", []edit{
		{"cmd/pglock-admin/internal/run/runner_unix.go", "\tcase r.ended.Signal != 0:\n\t\treturn cli.Silent(",
			"\tcase r.errand.marks && r.mark(ctx) != nil, r.ended.Signal != 0:\n\t\treturn cli.Silent("},
	}, command, "^TestAKey"},
	{"run: a loss that is noticed at the release is kept quiet", []edit{
		{"cmd/pglock-admin/internal/run/run_unix.go", "\t\treturn r.lost(released)\n", "\t\treturn err\n"},
	}, command, "^TestARunWhoseLock"},
	{"run: a note that could not be written is kept quiet", []edit{
		{"cmd/pglock-admin/internal/run/run_unix.go", "\tif err == nil || errors.As(err, &done)",
			"\tif err == nil || err != nil " +
				"|| errors.As(err, &done)"},
	}, command, "^TestASuccess|^TestAKeyIsNotNoted"},
	{"schedulers: a job runs once in each time zone", []edit{
		{"schedulers/slots.go", "slot.UTC().Format(", "slot.Format("},
	}, scheduling, "^TestWorkThatFailsLeaves"},
	{"schedulers: work that says that something else is done counts as done", []edit{
		{"schedulers/slots.go", "errors.Is(err, fencedstore.ErrDone) && own == nil {",
			"errors.Is(err, fencedstore.ErrDone) {"},
	}, scheduling, "^TestWorkThatFailsLeaves"},
}
