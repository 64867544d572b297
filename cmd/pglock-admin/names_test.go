package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/pglock"
)

// awkward are names that have tricked somebody, or could.
var awkward = []string{
	"jobs/a", "nightly-report", "my job", " ", " a ", "it's", `say "hi"`, `"quoted"`, `"half`, `"`, "'", `\`, `a\b`,
	`a\\b`, `\x41`, `"\x41"`,
	"-", "--", "-rf", "--help", "--reason=x", "-- a", "~", "~root", "#1", "a#1", "!!", "!$", "a!b", "*", "?", "[ab]",
	"{a,b}", "=ls", "a=b", "%1",
	"$HOME", "${HOME}", "$(touch pwned)", "`touch pwned`", "; touch pwned", "a;touch pwned", "|touch pwned", "&",
	">pwned", "<pwned", "'; touch pwned; '", "\n touch pwned\n",
	"a\nb", "a\tb", "a\rb", "a\x1b[2Jb", "\x1b]0;x\a", "a\x7fb", "\u009b1m", "a\u0085b", "\u202egpj.exe", "\u200b",
	"a\u00a0b", "\u2028", "\ufeff", "\U000e0041",
	"größe", "ключ", "名前", "🔒", "e\u0301", "\u0301", `$'\x1b'`, "(a)", "a,b", "x@y:z+1%", "\\n", "^a", "a  b",
}

// anyName is a name of awkward pieces.
func anyName(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(6) {
		switch r.IntN(4) {
		case 0:
			b.WriteRune(rune(1 + r.IntN(0x7f)))
		case 1:
			b.WriteRune([]rune{'\'', '"', '\\', '$', '`', '-', ' ', '\n', '!', '\x1b', '\u202e', 'ü', '\u009b',
				'\U000e0041'}[r.IntN(14)])
		case 2:
			b.WriteString(awkward[r.IntN(len(awkward))])
		default:
			b.WriteString([]string{"a", "jobs/", "7", "\\x", "\\u00", "'\\''"}[r.IntN(6)])
		}
	}
	return b.String()
}

// read is how the command takes words that stand behind it.
func read(words ...string) (name string, err error) {
	cmd := &cobra.Command{Use: "show", SilenceErrors: true, SilenceUsage: true, Args: cli.OneName,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			name, err = cli.NameOf(cmd, args, 0)
			return err
		}}
	cmd.SetArgs(words)
	return name, cmd.Execute()
}

func safe(s string) bool {
	for _, r := range s {
		if r < ' ' || r >= 0x7f && r < 0xa0 || !shown.AllPrint(string(r)) {
			return false
		}
	}
	return utf8.ValidString(s)
}

func TestANameThatIsShownCanBePastedIntoAnyShell(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // names, not secrets
	names := awkward
	for range 2000 {
		names = append(names, anyName(r))
	}
	var script strings.Builder
	for _, name := range names {
		shown := shown.Name(name)
		if !safe(shown) {
			t.Errorf("%q is shown as %q, which a terminal would not show so", name, shown)
		}
		fmt.Fprintf(&script, "printf '%%s\\0' %s\n", shown)
	}
	for _, shell := range []string{"sh", "bash", "dash", "zsh", "ksh", "fish"} {
		path, err := exec.LookPath(shell)
		if err != nil && shell != "sh" {
			continue
		}
		dir := t.TempDir()
		cmd := exec.CommandContext(t.Context(), path)
		cmd.Dir, cmd.Stdin = dir, strings.NewReader(script.String())
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("seed %d: %s: %v", seed, shell, err)
		}
		words := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
		if len(words) != len(names) {
			t.Fatalf("seed %d: %s gave %d words for %d names", seed, shell, len(words), len(names))
		}
		for i, word := range words {
			if name, err := read(word); err != nil || name != names[i] {
				t.Errorf("seed %d: %q is shown as %s, from which %s gives %q, which is read as %q, %v", seed, names[i],
					shown.Name(names[i]), shell, word, name, err)
			}
		}
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("seed %d: %s was tricked: %v", seed, shell, left)
		}
	}
}

// For a script that has a name in a variable.
func TestANameBehindTwoDashesIsTakenAsItIs(t *testing.T) {
	t.Parallel()
	for _, name := range awkward {
		if got, err := read("--", name); err != nil || got != name {
			t.Errorf("-- %q is read as %q, %v", name, got, err)
		}
	}
	for _, wrong := range []string{`"`, `"a`, `"a\"`, `"\q"`, `"a"b`} {
		if name, err := read(wrong); err == nil || !strings.Contains(err.Error(), "NAME is") {
			t.Errorf("%s is read as %q, %v", wrong, name, err)
		}
	}
}

// What the real program shows of real locks, given back to it by a real shell.
func TestEveryNameThatIsShownLeadsBackToItsLock(t *testing.T) {
	db := pgtest.Parallel(t)
	self := must.Get(os.Executable())(t)
	shell := func(line string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), asProgram+"=1", "DATABASE_URL="+db.URL(), "PROGRAM="+self)
		out, err := cmd.Output()
		if left, _ := os.ReadDir(cmd.Dir); err != nil || len(left) > 0 {
			t.Errorf("%s: %v, %v", line, err, left)
		}
		return string(out)
	}
	names := []string{"plain", "my job", "it's $(touch pwned)", `"\x41"`, "-rf", "a\x1b[2J\nb", "größe"}
	for _, name := range names {
		hold(t, db, "holder", name)
		await(t, db, "waiter", name, pglock.ModeExclusive, 0)
	}
	words := func(command string) (texts []string) {
		for line := range strings.Lines(in(t, db.URL(), command).want(t, cli.ExitOK).stdout) {
			if text, rest, found := strings.Cut(line, "  "); found && !strings.HasPrefix(line, "LOCK") &&
				strings.Contains(rest, "holder") {
				texts = append(texts, text)
			}
		}
		return texts
	}
	for _, command := range []string{"list", "waiters"} {
		seen := map[string]bool{}
		for _, text := range words(command) {
			seen[decode[look.ShowView](t, shell(`"$PROGRAM" show -o json `+text)).Lock.Name] = true
		}
		for _, name := range names {
			if !seen[name] {
				t.Errorf("%s does not lead to %q", command, name)
			}
		}
	}
	odd := shown.Name("a\x1b[2J\nb")
	if a := in(t, db.URL(), "show", "--", "a\x1b[2J\nb").want(t, cli.ExitOK); !strings.Contains(a.stdout,
		"\nlock      "+odd+"\n") {
		t.Errorf("show does not name the lock as %s:\n%s", odd, a.stdout)
	}
	broken := shell(`"$PROGRAM" break --reason r ` + odd)
	if !strings.Contains(broken, "broke the lease of lock "+odd+"\n") ||
		!strings.Contains(broken, "pglock-admin history "+odd+"\n") {
		t.Errorf("break of %s says %s", odd, broken)
	}
	if v := decode[look.ShowView](t, shell(`"$PROGRAM" show -o json `+odd)); v.Lock.Holder != "waiter" {
		t.Errorf("after the break of %s %q has it", odd, v.Lock.Holder)
	}
}
