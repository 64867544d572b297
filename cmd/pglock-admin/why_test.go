//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/explain"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/internal/dev/troubles"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// whys are the first verdicts about the prepared troubles.
var whys = map[string]string{
	"crashed-holder": "gone", "stopped-holder": "stopped", "blocked-holder": "blocked",
	"idle-holder": "idle", "deadlock": "circle", "prepared-transaction": "prepared",
	"long-queue": "slow", "wrong-database": "another database",
	"handed-past": "handed past", "writer-first": "slow", "stopped-early": "silent",
	"idle-psql": "blocked", "first-psql": "blocked", "row-psql": "row",
	"fence": "idle", "fence-psql": "blocked", "waits": "waits", "waits-unsaid": "slow",
	"own-queue": "slow", "subtree-above": "subtree", "subtree-below": "subtree", "subtree-before": "subtree",
	"healthy": "held", "free": "free", "broken": "broken",
	"limit":   "held",
	"similar": "unknown", "pooler": "held", "table": "table", "table-wanted": "table",
}

// Each trouble is prepared on a real server, and its screen says what it is: at 100 columns, at 40, and in JSON.
func TestWhySaysWhatTheTroubleIs(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"max_prepared_transactions": "10", "max_connections": "300"})
	for _, trouble := range troubles.All() {
		if strings.HasPrefix(trouble.Name, "wrong-database") || trouble.Name == "similar" {
			continue // which other databases are in use is a question to the whole server
		}
		if !pgtest.Among(trouble.Name, "deadlock", "waits") {
			continue // these are found and mended in different ways; lockadmin has the verdicts
		}
		t.Run(trouble.Name, func(t *testing.T) {
			t.Parallel()
			checkWhy(t, trouble.Name, freshDatabase(t, server.URL(), strings.ReplaceAll(trouble.Name, "-", "_")))
		})
	}
}

func TestWhyFindsTheRightDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, nil)
	at := freshDatabase(t, server.URL(), "ci")
	checkWhy(t, "wrong-database", at)
	checkWhy(t, "similar", freshDatabase(t, server.URL(), "ci2"))
	stage := prepare(t, "wrong-database-empty", at)
	defer stage.Close()
	a := in(t, stage.URL, "why", stage.Lock).want(t, cli.ExitSchema, "probably the wrong database", "database app",
		"why nightly-report", "/app?")
	all := in(t, stage.URL, "why").want(t, cli.ExitSchema, "probably the wrong database", "pglock-admin why", "/app?")
	if strings.Contains(a.stderr+all.stderr, "migrate up") {
		t.Errorf("whoever looks into the wrong database is told to make the schema there:\n%s", a.stderr)
	}
	for _, command := range []string{"list", "waiters", "waiters " + stage.Lock, "sessions", "fences", "show a",
		"history", "verify", "guard list"} {
		b := in(t, stage.URL, strings.Fields(command)...).want(t, cli.ExitSchema, "probably the wrong database",
			"database app", `/app?`, "; pglock-admin "+command+"\n")
		if strings.Contains(b.stderr, "migrate up") {
			t.Errorf("%s, in the wrong database, advises to make the schema there:\n%s", command, b.stderr)
		}
	}
	config := must.Get(pgxpool.ParseConfig(at))(t)
	there := pastedURL(t, a.stderr, stage.URL, config.ConnConfig.Password)
	in(t, there, "why", stage.Lock).want(t, cli.ExitOK, "is held by app-1/reporter[4711]")
	b := in(t, "", "why", stage.Lock, "--database-url", stage.URL).want(t, cli.ExitSchema, "--database-url ",
		"set PGPASSWORD to the password first")
	if strings.Contains(b.stderr, config.ConnConfig.Password) {
		t.Error("the password is shown")
	}
}

// pastedURL has a shell read the command that a screen advises, and returns the connection string that it sets.
func pastedURL(t *testing.T, screen, url, password string) string {
	t.Helper()
	command := regexp.MustCompile(`export DATABASE_URL="[^"]+"; pglock-admin why nightly-report`).FindString(screen)
	if command == "" || strings.Contains(screen, password) {
		t.Fatalf("no command, or the password:\n%s", screen)
	}
	shell := exec.Command("sh", "-c", strings.Replace(command, "pglock-admin why nightly-report",
		`sh -c 'printf %s "$DATABASE_URL"'`, 1))
	shell.Env = append(os.Environ(), "DATABASE_URL="+url)
	out := must.Get(shell.Output())(t)
	return string(out)
}

// freshDatabase makes a database with pglock's schema on a test's own server.
func freshDatabase(t *testing.T, server, name string) string {
	t.Helper()
	conn := must.Get(pgx.Connect(t.Context(), server))(t)
	defer conn.Close(t.Context())
	must.Get(conn.Exec(t.Context(), "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()))(t)
	at := strings.Replace(server, "/postgres?", "/"+name+"?", 1)
	must.Do(t, migrations.Up(t.Context(), at))
	return at
}

func prepare(t *testing.T, name, at string) *troubles.Stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stage := must.Get(troubles.Prepare(ctx, name, at))(t)
	return stage
}

func checkWhy(t *testing.T, name, at string) {
	t.Helper()
	stage := prepare(t, name, at)
	defer stage.Close()
	config := must.Get(pgxpool.ParseConfig(stage.URL))(t)
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	defer pool.Close()
	admin := must.Get(lockadmin.New(t.Context(), pool))(t)
	e, err := admin.Explain(t.Context(), stage.Lock) // at once: what has lasted for a second must not last for ten
	if err != nil {
		t.Fatal(err)
	}
	in(t, stage.URL, "why", stage.Lock).want(t, cli.ExitOK,
		map[bool]string{true: "OK  ", false: "WHAT TO DO NEXT"}[explain.IsWell(e)])
	if e.Verdicts[0].Kind != whys[name] || e.Severity != e.Verdicts[0].Severity {
		t.Errorf("the verdict is %q, want %q: %s", e.Verdicts[0].Kind, whys[name], e.Verdicts[0].Text)
	}
	checkOverview(t, admin, e)
	verdict := e.Verdicts[0]
	verdict.Steps = slices.Clone(verdict.Steps)
	defer mend(t, admin, stage, verdict)
	steady(&e)
	o := &cli.Options{Schema: cli.DefaultSchema, Config: config, Getenv: func(string) string { return stage.URL }}
	for _, width := range []int{100, 40} {
		p := &cli.Page{Width: width}
		explain.DrawWhy(p, o, e)
		goldenWhy(t, fmt.Sprintf("%s.%d.txt", name, width), p.String())
		checkScreen(t, width, p.String())
	}
	var b strings.Builder
	must.Do(t, cli.WriteData(&b, cli.OutputJSON, explain.Pasteable(o, e)))
	goldenWhy(t, name+".json", b.String())
}

// checkOverview checks that the overview and the list say of the lock what why says: one state has one word.
func checkOverview(t *testing.T, admin *lockadmin.Admin, e lockadmin.Explanation) {
	t.Helper()
	all := must.Get(admin.Overview(t.Context(), 20))(t)
	want, lock := e.Verdicts[0], e.Lock
	if want.Kind == "table" {
		lock = ""
	}
	ill := !explain.GoesOn(want.Severity) && e.State != lockadmin.LockUnknown
	n := slices.IndexFunc(all.Locks, func(s lockadmin.Summary) bool { return s.Lock == lock })
	if ill != (n >= 0) || ill && (all.Locks[n].Kind != want.Kind || all.Locks[n].Severity != want.Severity ||
		all.Locks[n].Text == "" || all.Locks[n].Who == "" || all.Locks[n].Since.IsZero()) {
		t.Errorf("why says %s, %q; the overview has %+v", want.Severity, want.Kind, all)
	}
	if want.Kind == "table" {
		next, first := all.Locks[n].Next, slices.IndexFunc(want.Steps, func(s lockadmin.Step) bool {
			return s.Command != ""
		})
		if first < 0 || next.Command != want.Steps[first].Command || next.Do == "" || all.Locks[n].Who != want.Who {
			t.Errorf("the overview names %+v, and %s; why %+v, and %s", next, all.Locks[n].Who, want.Steps, want.Who)
		}
		return
	}
	var leases []pglock.LockInfo
	for l, err := range admin.Locks(t.Context(), lockadmin.LocksQuery{Free: true, Prefix: lock}) {
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, l)
	}
	list := must.Get(admin.Summaries(t.Context(), leases))(t)
	for _, s := range list {
		if s.Lock == lock && (s.Severity != want.Severity || s.Kind != want.Kind || s.Hidden) {
			t.Errorf("why says %s, %q; the list says %+v", want.Severity, want.Kind, s)
		}
	}
}

// mends are the steps of the screens that mend the troubles, by their beginnings.
var mends = map[string]string{
	"crashed-holder": "break ", "stopped-holder": "break ", "deadlock": "break ",
	"blocked-holder": "SELECT pg_cancel_backend", "idle-holder": "SELECT pg_terminate_backend",
	"prepared-transaction": "ROLLBACK PREPARED", "stopped-early": "break ", "idle-psql": "SELECT pg_terminate_backend",
	"first-psql": "SELECT pg_terminate_backend", "row-psql": "SELECT pg_terminate_backend",
	"fence": "SELECT pg_terminate_backend", "fence-psql": "SELECT pg_terminate_backend",
	"table": "SELECT pg_terminate_backend", "table-wanted": "SELECT pg_terminate_backend",
}

// mend does what the screen advises, and checks that the trouble goes.
func mend(t *testing.T, admin *lockadmin.Admin, stage *troubles.Stage, verdict lockadmin.Verdict) {
	t.Helper()
	_, trouble, _ := strings.Cut(t.Name(), "/")
	begins := mends[trouble]
	if begins == "" {
		return
	}
	for _, s := range verdict.Steps {
		if !strings.HasPrefix(s.Command, begins) {
			continue
		}
		if s.Run == lockadmin.RunAdmin {
			words := must.Get(exec.Command("sh", "-c", "printf '%s\\n' "+s.Command).Output())(t)
			in(t, stage.URL, strings.Split(strings.TrimSpace(string(words)), "\n")...).want(t, cli.ExitOK)
		} else {
			conn := must.Get(pgx.Connect(t.Context(), stage.URL))(t)
			defer conn.Close(t.Context())
			if _, err := conn.Exec(t.Context(), s.Command, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Errorf("%s: %v", s.Command, err)
			}
		}
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			now := must.Get(admin.Explain(t.Context(), stage.Lock))(t)
			if !slices.ContainsFunc(now.Verdicts, func(v lockadmin.Verdict) bool { return v.Kind == verdict.Kind }) {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("after %q it is still so: %s", s.Command, now.Verdicts[0].Text)
				return
			}
		}
	}
	t.Errorf("no step begins with %q", begins)
}

// checkScreen checks that the text fits, but for commands, which are pasted.
func checkScreen(t *testing.T, width int, screen string) {
	t.Helper()
	lines := strings.Split(strings.Trim(screen, "\n"), "\n")
	if width == 100 && len(lines) > 42 {
		t.Errorf("the screen has %d lines", len(lines))
	}
	if width == 100 && strings.HasPrefix(lines[0], "OK ") && len(lines) > 2+
		max(1, strings.Count(screen, "\n  holder ")) {
		t.Errorf("nothing is to be done, and the screen has %d lines", len(lines))
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > width && !strings.Contains(line, "pglock-admin ") &&
			!strings.Contains(line, "psql ") && strings.Contains(strings.TrimSpace(line), " ") {
			t.Errorf("%d columns, not %d: %s", n, width, line)
		}
	}
}

// goldenWhy compares a screen with its file, but for the address of the server.
func goldenWhy(t *testing.T, file, text string) {
	t.Helper()
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "127.0.0.1:5432")
	screens.Compare(t, filepath.Join("testdata", "why", file), text)
}

// steady replaces what is different in each run: numbers of processes, moments, durations of seconds, the machine's
// name.
func steady(e *lockadmin.Explanation) {
	host, _ := os.Hostname()
	pids := map[string]string{}
	if m := regexp.MustCompile(regexp.QuoteMeta(host) + `/reporter\[(\d+)\]`).FindStringSubmatch(e.Verdicts[0].Text +
		fmt.Sprint(e.Last)); m != nil {
		pids[m[1]] = "4711" // the worker
	}
	if e.Last != nil {
		if _, pid, found := strings.Cut(strings.TrimSuffix(e.Last.Holder, "]"), host+"/reporter["); found {
			pids[pid] = "4711"
		}
	}
	for n, b := range e.Processes {
		if p := strconv.Itoa(b.PID); b.PID != 0 && pids[p] == "" {
			pids[p] = strconv.Itoa(20001 + n)
		}
	}
	text := func(s string) string {
		s = strings.ReplaceAll(s, host+"/reporter[", "app-1/reporter[")
		s = strings.ReplaceAll(s, "on host "+host+".", "on host app-1.")
		// whichever was the last of the two
		s = strings.ReplaceAll(s, "it gave a sign of life ", "it renewed ")
		s = regexp.MustCompile(`\b\d connections\b`).ReplaceAllString(s, "4 connections") // or one more, for a moment
		s = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}`).ReplaceAllString(s, "dfd7ac05-c5ed-4085-9172-adfd63f7298b")
		s = regexp.MustCompile(`\d{2,}`).ReplaceAllStringFunc(s, func(n string) string {
			if to, known := pids[n]; known {
				return to
			}
			return n
		})
		return regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`).ReplaceAllStringFunc(s, func(d string) string {
			took, err := time.ParseDuration(d)
			if err != nil {
				return d
			}
			if took == 0 {
				took = time.Second
			}
			return shown.Age(rounded(took))
		})
	}
	at := time.Date(2026, 11, 22, 3, 16, 0, 0, time.UTC)
	var walk func(v reflect.Value)
	walk = func(v reflect.Value) {
		switch {
		case v.Type() == reflect.TypeFor[time.Duration]():
			v.SetInt(int64(rounded(time.Duration(v.Int()))))
		case v.Type() == reflect.TypeFor[time.Time]():
			if !v.Interface().(time.Time).IsZero() {
				v.Set(reflect.ValueOf(at))
			}
		case v.Kind() == reflect.String:
			v.SetString(text(v.String()))
		case v.Kind() == reflect.Int:
			if to, known := pids[strconv.FormatInt(v.Int(), 10)]; known && v.Int() > 100 {
				n, _ := strconv.Atoi(to)
				v.SetInt(int64(n))
			}
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				if v.Field(i).CanSet() {
					walk(v.Field(i))
				}
			}
		case v.Kind() == reflect.Pointer && !v.IsNil():
			walk(v.Elem())
		case v.Kind() == reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		}
	}
	ago := make([]time.Duration, len(e.Events))
	for i, ev := range e.Events {
		ago[i] = rounded(e.At.Sub(ev.At))
	}
	walk(reflect.ValueOf(e).Elem())
	for i, b := range e.Processes {
		if b.Use == lockadmin.BackendHeartbeat { // it works now and then
			e.Processes[i].State, e.Processes[i].WaitsFor = "idle", ""
			e.Processes[i].InState, e.Processes[i].Query = time.Second, time.Second
		}
	}
	for i := range e.Elsewhere {
		e.Elsewhere[i].Connections = 4
	}
	if e.Last != nil { // a short lease may or may not have been renewed
		e.Last.Renewed, e.Last.SlowestRenewal = false, 0
	}
	for i := range e.Events {
		e.Events[i].At = at.Add(-ago[i])
	}
}

// rounded makes what lasts some seconds one second, what lasts nearly half a minute just that, and leaves out seconds
// of minutes.
func rounded(d time.Duration) time.Duration {
	switch {
	case d <= 0:
		return d
	case d < 11*time.Second && d != 10*time.Second:
		return time.Second
	case d >= 11*time.Second && d <= 18*time.Second:
		return 12 * time.Second
	case d > 18*time.Second && d <= 31*time.Second:
		return 30 * time.Second
	case d >= 55*time.Minute && d < 61*time.Minute:
		return time.Hour
	case d >= time.Minute:
		return (d + 20*time.Second).Truncate(time.Minute)
	}
	return d
}
