package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
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
	for _, c := range commands(newRoot(&cli.Options{})) {
		flags := append([]*pflag.Flag{}, flagsOf(c.LocalFlags())...)
		for _, f := range flags {
			kind, usage := pflag.UnquoteUsage(f)
			if f.Value.Type() != "bool" && !slices.Contains(kinds, kind) || usage == "" || len(f.Usage) > 120 {
				t.Errorf("%s --%s takes %q: %s", c.CommandPath(), f.Name, kind, usage)
			}
			if _, is := f.Value.(cli.DurationFlag); is != (kind == "duration") ||
				strings.HasSuffix(f.DefValue, "m0s") ||
				strings.HasSuffix(f.DefValue, "h0m") {
				t.Errorf("%s --%s is a %s by default %s", c.CommandPath(), f.Name, kind, f.DefValue)
			}
		}
	}
	admin(t, "prune", "--help").want(t, cli.ExitOK, "--events duration ", "as long as the history is kept",
		"--idle duration ", "(default 1d)", "--timeout duration ", "(default 10s)")
	admin(t, "list", "--help").want(t, cli.ExitOK, "--limit number ", "--prefix text ")
	admin(t, "break", "--help").want(t, cli.ExitOK, "--token number ", "--reason text ", "--by name ")
	admin(t, "--help").want(t, cli.ExitOK, "90d or 2w", `    pglock-admin show -- "$name"`)
}

func flagsOf(set *pflag.FlagSet) (all []*pflag.Flag) {
	set.VisitAll(func(f *pflag.Flag) { all = append(all, f) })
	return all
}

func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	for _, c := range commands(newRoot(&cli.Options{})) {
		a := admin(t, append(strings.Fields(c.CommandPath())[1:], "--help")...).want(t, cli.ExitOK)
		_, examples, _ := strings.Cut(a.stdout, "\nExamples:\n") // can be copied as they are
		examples, _, _ = strings.Cut(examples, "\n\n")
		answer{stdout: strings.Replace(strings.Split(a.stdout, "\nUse \"")[0], examples, "", 1)}.narrow(t)
		if b := admin(t, append([]string{"help"}, strings.Fields(c.CommandPath())[1:]...)...).want(t,
			cli.ExitOK); b.stdout != a.stdout {
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
