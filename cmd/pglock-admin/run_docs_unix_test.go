//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/run"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// blocks are the examples of docs/run.md that begin with ``` and this.
func blocks(t *testing.T, kind string) (all []string) {
	t.Helper()
	text := must.Get(os.ReadFile("../../docs/run.md"))(t)
	for rest, found := string(text), true; found; {
		if _, rest, found = strings.Cut(rest, "\n```"+kind+"\n"); found {
			block, after, _ := strings.Cut(rest, "\n```\n")
			all, rest = append(all, block), after
		}
	}
	if len(all) == 0 {
		t.Fatalf("docs/run.md has no example %q", kind)
	}
	return all
}

// fromDocs is the file of that name in docs/run.md.
func fromDocs(t *testing.T, file string) string {
	t.Helper()
	return blocks(t, "sql "+file)[0] + "\n"
}

// byHand runs a script as somebody would type it, where pglock-admin and report are programs. It gives how often report
// ran.
func byHand(t *testing.T, url, script string) (reports int, output string) {
	t.Helper()
	bin := t.TempDir()
	file := must.Get(os.Executable())(t)
	must.Do(t, os.Symlink(file, filepath.Join(bin, "pglock-admin")))
	if err := os.WriteFile(filepath.Join(bin, "report"), []byte("#!/bin/sh\necho \"$PGLOCK_NAME\" >> \"$REPORTS\"\n"),
		0o700); err != nil {
		t.Fatal(err)
	}
	// The day does not change between two runs of a script: the first answer of date is that of all.
	date := must.Get(exec.LookPath("date"))(t)
	today := "#!/bin/sh\nfile=$(dirname \"$0\")/today$#\n" +
		"test -f \"$file\" || " + date + " \"$@\" > \"$file\"\ncat \"$file\"\n"
	must.Do(t, os.WriteFile(filepath.Join(bin, "date"), []byte(today), 0o700))
	log := filepath.Join(bin, "log")
	cmd := exec.CommandContext(t.Context(), "sh", "-e", "-c", script)
	cmd.Dir = bin
	cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+url, "REPORTS="+log, "PATH="+bin+":"+
		os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s\n%v: %s", script, err, out)
	}
	text, _ := os.ReadFile(log) // there is none where report did not run
	return strings.Count(string(text), "\n"), string(out)
}

func TestTheExamplesOfTheDocsRun(t *testing.T) {
	t.Parallel()
	for _, script := range blocks(t, "sh") {
		db := pgtest.Database(t)
		n, out := byHand(t, db.URL(), script)
		if want := strings.Count(script, "-- report") + strings.Count(script, "'report"); n != want {
			t.Errorf("%d reports, want %d: %s\n%s", n, want, script, out)
		}
		in(t, db.URL(), "list").want(t, cli.ExitOK, "no lock is held")
	}
}

func TestTheCronLinesOfTheDocsRunOnceEach(t *testing.T) {
	t.Parallel()
	ran := 0
	for line := range strings.Lines(blocks(t, "crontab")[0]) {
		fields := strings.SplitN(strings.Join(strings.Fields(line), " "), " ", 6)
		if len(fields) < 6 {
			continue // a variable
		}
		command := strings.ReplaceAll(fields[5], `\%`, "%")
		db := pgtest.Database(t)
		n, out := byHand(t, db.URL(), command+"\n"+command)
		if n != 1 || out != "" {
			t.Errorf("%d reports of %s\n%s", n, command, out)
		}
		ran++
	}
	if ran == 0 {
		t.Error("docs/run.md has no line of a crontab")
	}
}

// A start may be late, as of a cron that catches up.
func TestTheKeysOfTheCronLinesAreThoseOfThePlannedTimes(t *testing.T) {
	t.Parallel()
	date := must.Get(exec.LookPath("date"))(t)
	bin := t.TempDir()
	fake := "#!/bin/sh\ntest \"$2\" = -d || set -- -d \"$NOW\" \"$@\"\nexec " + date + " \"$@\"\n"
	must.Do(t, os.WriteFile(filepath.Join(bin, "date"), []byte(fake), 0o700))
	text := strings.ReplaceAll(blocks(t, "crontab")[0], `\%`, "%")
	keys := regexp.MustCompile(`--once ("\$\(.*\)") `).FindAllStringSubmatch(text, -1)
	for now, want := range map[string][]string{
		"2026-11-22T12:05:00Z": {"2026-11-22", "2026-11-22T12:05Z"},
		"2026-11-22T12:09:59Z": {"2026-11-22", "2026-11-22T12:05Z"},
		"2026-11-22T12:10:00Z": {"2026-11-22", "2026-11-22T12:10Z"},
		"2026-03-29T00:15:00Z": {"2026-03-29", "2026-03-29T00:15Z"}, // 01:15, before summer time begins
		"2026-03-29T23:15:00Z": {"2026-03-30", "2026-03-29T23:15Z"}, // 01:15, the next night
		"2026-10-25T00:30:00Z": {"2026-10-25", "2026-10-25T00:30Z"}, // 02:30
		"2026-10-25T01:30:00Z": {"2026-10-25", "2026-10-25T01:30Z"}, // 02:30 again
	} {
		var got []string
		for _, key := range keys {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+key[1])
			cmd.Env = append(os.Environ(), "NOW="+now, "TZ=CET-1CEST,M3.5.0,M10.5.0/3",
				"PATH="+bin+":"+os.Getenv("PATH"))
			got = append(got, string(must.Get(cmd.Output())(t)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("at %s the keys are %q, want %q", now, got, want)
		}
	}
}

func TestTheUnitAndTheCronJobOfTheDocsRunOnceEach(t *testing.T) {
	t.Parallel()
	_, unit, _ := strings.Cut(blocks(t, "ini")[0], "ExecStart=/bin/sh -c '")
	unit, _, _ = strings.Cut(unit, "'\n")
	_, words, _ := strings.Cut(blocks(t, "yaml")[0], "command: ")
	var job []string
	must.Do(t, json.Unmarshal([]byte(words), &job))
	for _, script := range []string{strings.NewReplacer("$$", "$", "%%", "%").Replace(unit), job[2]} {
		db := pgtest.Database(t)
		script = "(" + script + "); (" + script + ") || test $? = 118"
		if n, out := byHand(t, db.URL(), script); n != 1 || strings.Count(out, "was done at") != 1 {
			t.Errorf("%d reports of %s\n%s", n, script, out)
		}
	}
}

func TestTheFenceOfTheDocsRefusesACommandThatHasLostItsLock(t *testing.T) {
	t.Parallel()
	psqlOrSkip(t)
	db := pgtest.Database(t)
	execute(t, db, "CREATE TABLE accounts (id int, balance int); INSERT INTO accounts VALUES (16, 0)")
	file := filepath.Join(t.TempDir(), "fence.sql")
	must.Do(t, os.WriteFile(file, []byte(fromDocs(t, "fence.sql")), 0o600))
	psql := `psql -X -q -d "$DATABASE_URL" -f ` + file
	running(t, db.URL(), append([]string{"accounts/16"}, sh(psql)...)...).ends(t, 0)
	p := running(t, db.URL(), append([]string{"accounts/16", "--ttl", "1h"}, sh("echo ready; read line; "+psql)...)...)
	p.says(t, "ready")
	in(t, db.URL(), "break", "accounts/16", "--reason", "test").want(t, cli.ExitOK)
	p.goesOn(t)
	p.ends(t, run.ExitLost, "is lost: broken", "COMMAND has ended with exit code 3")
	if balance := ask[int](t, db, "SELECT balance FROM accounts"); balance != 60 {
		t.Errorf("the balance is %d", balance)
	}
}
