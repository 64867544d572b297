package main

import (
	"bytes"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/dev/screens"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/shown"
)

// badName is a name that would clear the screen, turn the rest of the line around and be bold in a page.
const badName = "evil\x1b[2J\u202e<b>\n$(id)"

// stillLife is a database that looks the same at any time: everything in it is days old, and lasts for days.
func stillLife(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.Database(t)
	key := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	acquire := func(name, holder, mode string, limit *int, session int, wait bool) {
		t.Helper()
		execute(t, db,
			`SELECT pglock.acquire_lease($1, gen_random_uuid(), $2::text::uuid, $3, '24 h', '{"job": 1}', p_mode => $4, p_capacity => $5, p_wait => $6, p_session_ttl => '24 h')`,
			name, key(session), holder, mode, limit, wait)
	}
	two := 2
	acquire("nightly-report", "app-1/reporter[4711]", "exclusive", nil, 1, false)
	acquire("gpu", "app-3/train[51]", "limit", &two, 2, false)
	acquire("gpu", "app-4/train[52]", "limit", &two, 3, false)
	acquire("catalogue of the year", "app-5/read[8]", "shared", nil, 4, false)
	acquire(badName, badName, "exclusive", nil, 5, false)
	acquire("free", "app-1/reporter[4711]", "exclusive", nil, 1, false)
	acquire("nightly-report", "app-2/reporter[963]", "exclusive", nil, 6, true)
	acquire("nightly-report", badName, "shared", nil, 7, true)
	acquire("gpu", "dead/train[53]", "limit", &two, 8, true)
	execute(t, db,
		`SELECT pglock.fence(l.name, l.token, l.grant_id) FROM pglock.locks l WHERE l.mode = 'exclusive' AND l.token > 0 AND l.expires_at > clock_timestamp()`)
	execute(t, db, `SELECT pglock.break_lock('free', $1, 'alice@ops')`, "host is down\x1b[31m")
	execute(t, db,
		`UPDATE pglock.locks SET acquired_at = clock_timestamp() - interval '50 h', renewed_at = clock_timestamp() - interval '24 h',
		ttl = '4 days', expires_at = CASE WHEN expires_at = '-infinity' THEN expires_at ELSE clock_timestamp() + interval '72 h' END`)
	execute(t, db, `UPDATE pglock.waiters SET enqueued_at = clock_timestamp() - interval '48 h'`)
	execute(t, db, `UPDATE pglock.sessions SET seen_at = clock_timestamp() - interval '30 h', version = 'v1.0.0',
		alive_until = clock_timestamp() + CASE WHEN holder LIKE 'dead%' THEN interval '-24 h' ELSE interval '72 h' END`)
	execute(t, db, `INSERT INTO pglock.sessions (session_id, holder, alive_until, seen_at, version)
		SELECT session_id, holder, clock_timestamp(), clock_timestamp() + interval '72 h', 'v1.0.0' FROM pglock.locks WHERE holder LIKE 'app-3%' OR holder LIKE 'app-5%'`)
	execute(t, db,
		`UPDATE pglock.events SET at = at - interval '26 h', granted_at = clock_timestamp() - interval '76 h', ended_at = clock_timestamp() - interval '26 h'`)
	execute(t, db, "CREATE TABLE public.accounts (id bigint PRIMARY KEY)")
	return db
}

// still replaces what differs from run to run by something of the same width.
func still(db *pgtest.DB, text string) string {
	config, err := pgx.ParseConfig(db.URL())
	if err != nil {
		return err.Error()
	}
	address := server.Addresses(config)[0]
	text = strings.NewReplacer(
		address+", database "+db.Name(), "127.0.0.1:5432, database app",
		address, "127.0.0.1:5432", db.Name(), "app",
		runtime.Version()+" "+runtime.GOOS+"/"+runtime.GOARCH, "go1.26 linux/amd64", runtime.Version(), "go1.26",
		cli.Actor(), "me@host",
	).Replace(text)
	for _, one := range []struct{ pattern, text string }{
		{`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC`, "2026-11-21 13:25:17.645 UTC"},
		{`\b\d\d:\d\d:\d\d UTC`, "13:25:17 UTC"},
		{`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`, "2026-11-21T13:25:17.645Z"},
		{`("?(remaining|held_for|silent|waiting|slowest_renewal|longest_wait)_ms"?: )\d+`, "${1}1000"},
		{`(?m)^(revision +)[0-9a-f]{40}.*$`, "${1}0123456789abcdef0123456789abcdef01234567"},
		{`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`, "3b241101-e2bb-4255-8caf-4136c566a962"},
	} {
		text = regexp.MustCompile(one.pattern).ReplaceAllString(text, one.text)
	}
	return text
}

// onPaper runs a command line whose output is a terminal with so many columns, or none with 0, and gives what it shows.
func onPaper(t *testing.T, url string, columns int, args ...string) string {
	t.Helper()
	getenv := func(name string) string {
		if name == "DATABASE_URL" {
			return url
		}
		return ""
	}
	var stdout, stderr bytes.Buffer
	if columns == 0 {
		code := obey(t.Context(), args, getenv, &stdout, &stderr)
		return fmt.Sprintf("%s%s= %d\n", stdout.String(), stderr.String(), code)
	}
	master, slave := pseudoTerminal(t)
	raw, err := slave.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if err := unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ,
			&unix.Winsize{Col: uint16(columns), Row: 40}); err != nil { //nolint:gosec // 40 or 120
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _, _ = io.Copy(&stdout, master) }() // until the slave is closed
	code := obey(t.Context(), args, getenv, slave, &stderr)
	_ = slave.Close()
	<-done
	text := strings.ReplaceAll(stdout.String(), "\r\n", "\n")
	if bytes.ContainsAny(stdout.Bytes(), "\x1b\u202e") || bytes.ContainsAny(stderr.Bytes(), "\x1b\u202e") {
		t.Errorf("%q writes to the terminal what the terminal would obey: %q", args, text)
	}
	return fmt.Sprintf("%s%s= %d\n", text, stderr.String(), code)
}

// Every command writes what its file has: without a terminal, on a narrow one and on a wide one.
func TestEveryCommandWritesWhatItsFileHas(t *testing.T) {
	t.Parallel()
	db := stillLife(t)
	lines := [][]string{
		{"list"}, {"list", "--all"}, {"list", "--order", "waiting", "--limit", "2"}, {"list", "--match", "nothing"},
		{"list", "-o", "json"}, {"list", "-o", "yaml"},
		{"why"}, {"why", "-o", "yaml"},
		{"waiters"}, {"waiters", "nightly-report"}, {"waiters", "--order", "age", "--limit", "1"},
		{"waiters", "gpu", "-o", "yaml"},
		{"sessions"}, {"sessions", "--order", "leases", "-o", "json"},
		{"fences"}, {"fences", "nightly-report", "-o", "yaml"},
		{"show", "nightly-report"}, {"show", "gpu"}, {"show", "free"}, {"show", badName}, {"show", "gpu", "-o", "yaml"},
		{"history"}, {"history", "free", "-o", "yaml"}, {"verify"}, {"record"},
		{"break", "gpu", "--reason", "r"}, {"break", "nothing", "--reason", "r"},
		{"break", "nightly-report", "--reason", "r", "--token", "99"},
		{"guard", "add", "accounts", "--key", "id"}, {"guard", "list"}, {"guard", "drop", "accounts"},
		{"migrate", "version"}, {"migrate", "up"}, {"prune"}, {"version"},
		{"list", "--order", "size"}, {"nonsense"}, {"show"},
	}
	for _, line := range lines {
		name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.Join(line, "-"), "-")
		var paper strings.Builder
		for _, columns := range []int{0, 40, 120} {
			where := fmt.Sprintf("%d columns", columns)
			if columns == 0 {
				where = "no terminal"
			} else if strings.Contains(name, "-json") || strings.Contains(name, "-yaml") {
				continue // it has no width
			}
			fmt.Fprintf(&paper, "# %s: pglock-admin %s\n%s\n", where, strings.Join(quoted(line), " "),
				still(db, onPaper(t, db.URL(), columns, line...)))
		}
		screens.Compare(t, filepath.Join("testdata", "commands", strings.Trim(name, "-")+".golden"), paper.String())
	}
}

func quoted(args []string) (all []string) {
	for _, a := range args {
		if shown.AllPrint(a) {
			all = append(all, shown.Argument(a))
		} else {
			all = append(all, shown.Name(a))
		}
	}
	return all
}

// A break can be shown only once, so each width has a lock of its own.
func TestBreakWritesWhatItsFileHas(t *testing.T) {
	t.Parallel()
	for _, line := range [][]string{
		{"break", "nightly-report", "--reason", "stuck since 3:00", "--token", "1"},
		{"break", "nightly-report", "--reason", "stuck since 3:00", "-o", "yaml"},
		{"break", "--session", "", "--reason", "its host is gone"},
	} {
		name := regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.Join(line, "-"), "-")
		var paper strings.Builder
		for _, columns := range []int{0, 40, 120} {
			db := stillLife(t)
			if line[1] == "--session" {
				if err := db.Conn(t).QueryRow(t.Context(), "SELECT session_id::text FROM "+
					"pglock.list_sessions(p_match => 'app-1')").Scan(&line[2]); err != nil {
					t.Fatal(err)
				}
			}
			fmt.Fprintf(&paper, "# %d columns\n%s\n", columns, still(db, onPaper(t, db.URL(), columns, line...)))
		}
		screens.Compare(t, filepath.Join("testdata", "commands", name+".golden"), paper.String())
	}
}
