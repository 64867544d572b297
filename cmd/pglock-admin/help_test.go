package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// commands are all of them, with what they hold.
func commands(c *cobra.Command) (all []*cobra.Command) {
	all = []*cobra.Command{c}
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "completion" {
			all = append(all, commands(sub)...)
		}
	}
	return all
}

func TestEveryFlagSaysWhatItTakesAndWhatItHasByDefault(t *testing.T) {
	t.Parallel()
	kinds := []string{"number", "text", "name", "duration", "string", "format", "column", "label", "ID", "word",
		"kinds", "level"}
	for _, c := range commands(newRoot(&options{})) {
		flags := append([]*pflag.Flag{}, flagsOf(c.LocalFlags())...)
		for _, f := range flags {
			kind, usage := pflag.UnquoteUsage(f)
			if f.Value.Type() != "bool" && !slices.Contains(kinds, kind) || usage == "" || len(f.Usage) > 120 {
				t.Errorf("%s --%s takes %q: %s", c.CommandPath(), f.Name, kind, usage)
			}
			if _, is := f.Value.(durationFlag); is != (kind == "duration") || strings.HasSuffix(f.DefValue, "m0s") ||
				strings.HasSuffix(f.DefValue, "h0m") {
				t.Errorf("%s --%s is a %s by default %s", c.CommandPath(), f.Name, kind, f.DefValue)
			}
		}
	}
	admin(t, "prune", "--help").want(t, exitOK, "--events duration ", "as long as the history is kept",
		"--idle duration ", "(default 1d)", "--timeout duration ", "(default 10s)")
	admin(t, "list", "--help").want(t, exitOK, "--limit number ", "--prefix text ")
	admin(t, "break", "--help").want(t, exitOK, "--token number ", "--reason text ", "--by name ")
	admin(t, "--help").want(t, exitOK, "90d or 2w", `    pglock-admin show -- "$name"`)
}

func flagsOf(set *pflag.FlagSet) (all []*pflag.Flag) {
	set.VisitAll(func(f *pflag.Flag) { all = append(all, f) })
	return all
}

func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	for _, c := range commands(newRoot(&options{})) {
		a := admin(t, append(strings.Fields(c.CommandPath())[1:], "--help")...).want(t, exitOK)
		_, examples, _ := strings.Cut(a.stdout, "\nExamples:\n") // can be copied as they are
		examples, _, _ = strings.Cut(examples, "\n\n")
		answer{stdout: strings.Replace(strings.Split(a.stdout, "\nUse \"")[0], examples, "", 1)}.narrow(t)
		if b := admin(t, append([]string{"help"}, strings.Fields(c.CommandPath())[1:]...)...).want(t,
			exitOK); b.stdout != a.stdout {
			t.Errorf("help of %s is not its --help:\n%s", c.CommandPath(), b.stdout)
		}
	}
}

func TestATextIsWrappedAnewByParagraphs(t *testing.T) {
	t.Parallel()
	const text = "one two three\nfour five\n\n  0  done and\n  1  failed for a reason that is long enough to be " +
		"wrapped\nsix seven"
	want := "one two three four\nfive\n\n  0  done and\n  1  failed for a reason that is long enough to be " +
		"wrapped\nsix seven"
	if got := reflow(text, 20); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	want = "one two three four five\n\n  0  done and\n  1  failed for a reason\n     that is long enough to\n     be " +
		"wrapped\nsix seven"
	if got := reflow(text, 28); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func heldLock(name string) lockView {
	now := time.Now()
	return viewOf(pglock.LockInfo{Name: name, Held: true, Holder: "host/worker[4711]", Token: 12, TTL: time.Minute,
		Remaining:  45 * time.Second,
		AcquiredAt: now, ExpiresAt: now.Add(45 * time.Second), Mode: pglock.ModeLimit, Limit: 3, Slot: 2})
}

func TestATableThatIsTooWideForTheTerminalIsDrawnOtherwise(t *testing.T) {
	t.Parallel()
	drawn := func(width int) string {
		p := &page{width: width}
		drawList(p, listView{Locks: []listedLock{{lockView: heldLock("report")}, {lockView: heldLock("my job")}}},
			listFlags{order: "name"})
		return p.String()
	}
	for width, want := range map[int][]string{
		0:   {"LOCK      VERDICT  MODE", "LEASE", "'my job'  "},
		120: {"LOCK      VERDICT  MODE", "LEASE", "'my job'  "},
		80:  {"LOCK      VERDICT  MODE", "EXPIRES-IN  WAITING\n", "'my job'  "},
		40: {"LOCK        report\nVERDICT     ?\nMODE        limit 3 #2\nHOLDER      host/worker[4711]\n",
			"WAITING     -\n\nLOCK        'my job'\n"},
	} {
		text := drawn(width)
		answer{stdout: text}.inOrder(t, want...)
		for line := range strings.Lines(text) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); width > 0 && n > width {
				t.Errorf("at %d: %d columns: %s", width, n, line)
			}
		}
	}
	if strings.Contains(drawn(80), "HELD-FOR") {
		t.Errorf("at 80 one column is left out, which show tells:\n%s", drawn(80))
	}
}

// At any width doctor says everything, in lines that fit.
func TestDoctorFitsANarrowTerminal(t *testing.T) {
	t.Parallel()
	f := lockadmin.Finding{Item: "client_connection_check_interval", Level: lockadmin.FindingOK,
		Value: "can be set on this server",
		Meaning: "A client that is gone is noticed while its statement runs, so that nobody waits for what it has " +
			"locked."}
	v := doctorView{Findings: []lockadmin.Finding{f, {Item: "epoch", Level: lockadmin.FindingDepends, Value: "7",
		Meaning: "short"}}}
	for width, lines := range map[int]int{40: 9, 60: 7, 80: 6} { // at least so many
		p := &page{width: width}
		drawDoctor(p, v)
		said := p.String()
		if n := strings.Count(said, "\n"); n < lines {
			t.Errorf("at %d it has %d lines, want %d:\n%s", width, n, lines, said)
		}
		words := func(s string) string { return strings.Join(strings.Fields(s), "") } // a long one may be broken
		if want := strings.Join([]string{"ok", f.Item, f.Value, f.Meaning, "–epoch 7 short", v.summary()},
			" "); words(said) != words(want) {
			t.Errorf("at %d it says\n%s\nwant\n%s", width, said, want)
		}
		for line := range strings.Lines(said) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > width {
				t.Errorf("at %d: %d columns: %s", width, n, line)
			}
		}
	}
}
