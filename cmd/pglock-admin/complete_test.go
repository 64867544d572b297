package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// offered is what a shell offers after a command line.
func offered(t *testing.T, url string, line ...string) (words []string) {
	t.Helper()
	a := in(t, url, append([]string{"__complete"}, line...)...).want(t, cli.ExitOK)
	lines := strings.Split(strings.TrimSuffix(a.stdout, "\n"), "\n")
	if directive := lines[len(lines)-1]; directive != ":4" { // no files
		t.Errorf("%q: directive %s", line, directive)
	}
	for _, line := range lines[:len(lines)-1] {
		word, _, _ := strings.Cut(line, "\t")
		words = append(words, word)
	}
	return words
}

func TestTheShellIsOfferedNamesSessionsModesAndOrders(t *testing.T) {
	db := pgtest.Parallel(t)
	for _, name := range []string{"jobs/a", "jobs/b c", "-x", `"q"`, "esc\x1b[31m", "bidi\u202e", "tab\there", "<b>"} {
		execute(t, db, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), $2, '1 hour',
			p_session_ttl => '1 hour')`, name, "holder\x1b of "+name[:1])
	}
	must.Do(t, hold(t, db, "gone", "free").Release(t.Context()))
	session := ask[string](t, db, "SELECT session_id::text FROM pglock.get_lock('jobs/a')")
	odd := []string{`"\x22q\x22"`, `"-x"`, "<b>", `"bidi\u202e"`, `"esc\x1b[31m"`}
	for _, tc := range []struct {
		line []string
		want []string
	}{
		{[]string{"show", ""}, slices.Concat(odd, []string{"free", "jobs/a", "jobs/b c", `"tab\there"`})},
		{[]string{"break", ""}, slices.Concat(odd, []string{"jobs/a", "jobs/b c", `"tab\there"`})},
		{[]string{"show", "jobs/"}, []string{"jobs/a", "jobs/b c"}},
		{[]string{"show", `"e`}, []string{`"esc\x1b[31m"`}},
		{[]string{"show", "jobs/a", ""}, nil},
		{[]string{"fences", "jobs/b"}, []string{"jobs/b c"}},
		{[]string{"list", "--after", "j"}, []string{"jobs/a", "jobs/b c"}},
		{[]string{"list", "--mode", ""}, []string{"exclusive", "shared", "limit"}},
		{[]string{"sessions", "--order", ""}, []string{"name", "age", "leases", "waiting"}},
		{[]string{"list", "-o", ""}, []string{"table", "json", "yaml", "tree"}},
		{[]string{"show", "-o", ""}, []string{"table", "json", "yaml"}},
		{[]string{"break", "--session", session[:8]}, []string{session}},
		{[]string{"doctor", ""}, nil},
		{[]string{"list", "--schema", "nothing", "--after", ""}, nil},
	} {
		var got []string
		for range 10 { // a busy machine may take longer than a shell waits, and then nothing is offered
			if got = offered(t, db.URL(), tc.line...); len(got) > 0 || len(tc.want) == 0 {
				break
			}
		}
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%q: %q, want %q", tc.line, got, tc.want)
		}
	}
	if a := in(t, db.URL(), "__complete", "run", "jobs/a", "--", ""); strings.HasSuffix(a.stdout, ":4\n") {
		t.Errorf("run offers no files: %q", a.stdout)
	}
}

func TestTheShellIsOfferedAFewHundredOfManyNames(t *testing.T) {
	db := pgtest.Parallel(t)
	execute(t, db,
		`SELECT pglock.acquire_lease('lock-' || i, gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour') FROM generate_series(1, 1000) i`)
	n := 0
	for range 10 {
		if n = len(offered(t, db.URL(), "show", "")); n > 0 {
			break
		}
	}
	if n != cli.Completed {
		t.Errorf("%d names, want %d", n, cli.Completed)
	}
}

func TestTheShellIsOfferedNothingAndSoonWhenTheServerCannotBeAsked(t *testing.T) {
	t.Parallel()
	silent := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	for _, url := range []string{"postgres://me:hush@" + closedPort(t) + "/db", "postgres://[", "postgres://me@" +
		silent.Addr().String() + "/db?sslmode=disable", pgtest.EmptyDatabase(t).URL()} {
		began := time.Now()
		if got := offered(t, url, "show", ""); len(got) != 0 {
			t.Errorf("%q", got)
		}
		if took := time.Since(began); took > 9*time.Second { // less than --timeout, which is what others wait
			t.Errorf("%s: it took %s", url, took)
		}
	}
}

// The script that people load is asked, and what it inserts is read again by the shell.
func TestBashInsertsANameThatNamesTheSameLock(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("there is no bash")
	}
	program := must.Get(os.Executable())(t)
	db := pgtest.Database(t)
	names := []string{"a b", "c'd", `e"f`, "$(touch g)", "h;i", "`j`", "k*", "-l", `"m"`, "n\x1b[31m", "o\nP", "q\\r",
		"~s", "!t", "u:v=w", "x\u202ey", "é", "&"}
	for _, name := range names {
		execute(t, db, `SELECT pglock.acquire_lease($1, gen_random_uuid(), gen_random_uuid(), 'holder', '1 hour')`,
			name)
	}
	folder := t.TempDir()
	script := `
		pglock-admin() { "$RUN" "$@"; }
		source <(pglock-admin completion bash)
		_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} words=("${COMP_WORDS[@]}") cword=$COMP_CWORD; }
		COMP_TYPE=9
		try() { COMP_WORDS=(pglock-admin show "$1"); COMP_CWORD=2; COMP_LINE="pglock-admin show $1"; COMPREPLY=(); __start_pglock-admin; }
		for start in "$@"; do
			for (( n = 0; n < 10; n++ )); do # a busy machine may offer nothing
				try "$start"
				(( ${#COMPREPLY[@]} )) && break
			done
			(( ${#COMPREPLY[@]} == 1 )) || { echo "$start: ${#COMPREPLY[@]} completions"; continue; }
			eval "pglock-admin list --after ${COMPREPLY[0]}" >/dev/null || echo "list after $start"
			eval "set -- ${COMPREPLY[0]}"
			printf '%s\0' "$1"
		done`
	// What somebody types before Tab, quoted as a shell needs it.
	typed := []string{"a", "c", "e", `\$`, "h", "\\`", "k", `\"-`, `\"\\x22`, `\"n`, `\"o`, `\"q`, `\~`, `\!`, "u",
		`\"x`, "é", `\&`}
	cmd := exec.CommandContext(t.Context(), bash, append([]string{"--norc", "-c", script, "bash"}, typed...)...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+db.URL(), "RUN="+program, "COMP_WORDBREAKS= ")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	var meant []string
	for _, argument := range got {
		name, err := cli.Unquoted(argument)
		if err != nil {
			name = fmt.Sprint(argument, ": ", err)
		}
		meant = append(meant, name)
	}
	if !slices.Equal(meant, names) {
		t.Errorf("the shell passes\n%q, want\n%q", meant, names)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("a name was executed: %v, %v", left, err)
	}
}
