package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest/tiers"
)

// A mutant whose text is no longer in the code would break nothing, and would seem to survive.
func TestEveryMutantFitsTheCode(t *testing.T) {
	for _, m := range all {
		if _, err := m.apply("../../.."); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestEveryMutantHasANameOfItsOwn(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range all {
		if seen[m.name] {
			t.Errorf("there are two of the name %q", m.name)
		}
		seen[m.name] = true
	}
}

func TestEveryPromiseAndEveryTrapHasAMutant(t *testing.T) {
	for of, numbers := range map[string]int{"I": 25, "trap ": 12} {
		for n := range numbers {
			name := fmt.Sprint(of, n+1)
			if !slices.ContainsFunc(all, func(m mutant) bool {
				return regexp.MustCompile(`\b` + name + `\b`).MatchString(m.name)
			}) {
				t.Errorf("no mutant is of %s", name)
			}
		}
	}
}

// What is broken must be what was meant: a text that is there twice, or not at all, is refused, and so is a mutant that
// does not compile, or whose test is not there.
func TestAMutantThatDoesNotFitIsNotTakenForKilled(t *testing.T) {
	root := must.Get(filepath.Abs("../../.."))(t)
	b := must.Get(newBench(root))(t)
	defer b.close() //nolint:errcheck // a temporary folder
	const file = "internal/pause/pause.go"
	for what, m := range map[string]mutant{
		"has the text 0 times": {"", []edit{{file, "no such text", ""}}, "./internal/pause", "."},
		"has the text 2 times": {"", []edit{{file, "pause", ""}}, "./internal/pause", "."},
		"syntax error":         {"", []edit{{file, "package pause", "package pause\nfunc"}}, "./internal/pause", "."},
		"no test ran":          {"", nil, "./internal/argument", "^TestOfAnotherName$"},
	} {
		if v := b.try(t.Context(), m); !strings.Contains(v.Unfit, what) || v.KilledBy != "" {
			t.Errorf("%s: %+v", what, v)
		}
	}
}

// A test that does not end has noticed nothing yet: the verdict says that it was the clock.
func TestATimeoutIsNotTakenForAPanic(t *testing.T) {
	for name, want := range map[string]string{"Hangs": "a timeout", "Panics": "a panic or a leak"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^Test"+name+"OnPurpose$", "-test.v",
			"-test.timeout=2s")
		cmd.Env = append(os.Environ(), onPurpose+"=1")
		var v verdict
		must.Do(t, watch(cmd, &v))
		if v.KilledBy != want {
			t.Errorf("%s: %+v, want %q", name, v, want)
		}
	}
}

const onPurpose = "PGLOCK_MUTANTS_ON_PURPOSE"

func TestHangsOnPurpose(*testing.T) {
	if os.Getenv(onPurpose) != "" {
		select {}
	}
}

func TestPanicsOnPurpose(*testing.T) {
	if os.Getenv(onPurpose) != "" {
		os.Exit(3) // as a panic of another goroutine ends it
	}
}

func TestPartsOfTheListAreTheWholeList(t *testing.T) {
	count := 0
	for _, shard := range []string{"1/3", "2/3", "3/3"} {
		part, err := choose(all, nil, shard)
		if err != nil || len(part) < len(all)/3 {
			t.Errorf("part %s has %d of %d mutants, %v", shard, len(part), len(all), err)
		}
		count += len(part)
	}
	if count != len(all) {
		t.Errorf("the parts have %d mutants, the list has %d", count, len(all))
	}
	if some, err := choose(all, []string{all[0].name}, "1/1"); err != nil || some[0].name != all[0].name {
		t.Errorf("%v, %v", some, err)
	}
	for _, bad := range []string{"", "0/1", "2/1", "1", "1/2/3", "1/x"} {
		if _, err := choose(all, nil, bad); err == nil {
			t.Errorf("the part %q is taken", bad)
		}
	}
	if _, err := choose(all, []string{"no such mutant"}, "1/1"); err == nil {
		t.Error("a word that no name has is taken")
	}
}

// After an interrupt only those are tried that have no verdict yet, or survived; and all of them when the code has
// changed.
func TestARecordKeepsTheVerdictsOfItsCode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "record")
	killed, alive := mutant{name: "killed"}, mutant{name: "alive"}
	passes, fails := mutant{name: untouched + "a"}, mutant{name: untouched + "b"}
	write := func(code string) {
		r := must.Get(openRecord(path, "../../.."))(t)
		defer r.close() //nolint:errcheck // nothing is lost
		r.code = code
		for _, m := range []mutant{killed, fails} {
			r.add(m, verdict{Mutant: m.name, KilledBy: "TestX", Seconds: 1})
		}
		for _, m := range []mutant{alive, passes} {
			r.add(m, verdict{Mutant: m.name})
		}
	}
	known := func(code string) (names []string) {
		r := must.Get(openRecord(path, "../../.."))(t)
		defer r.close() //nolint:errcheck // nothing is lost
		r.code = code
		for _, m := range []mutant{killed, alive, passes, fails} {
			if v, has := r.of(m); has && v.Mutant == m.name {
				names = append(names, m.name)
			}
		}
		return names
	}
	write("as it was")
	if got, want := known("as it was"), []string{"killed", untouched + "a"}; !slices.Equal(got, want) {
		t.Errorf("known: %q, want %q", got, want)
	}
	if got := known("changed"); len(got) != 0 {
		t.Errorf("of other code these are known: %q", got)
	}
	killed.test = "another"
	if got := known("as it was"); slices.Contains(got, "killed") {
		t.Error("the verdict of another test is taken")
	}
}

func TestATestsNameIsReadAsASentence(t *testing.T) {
	for name, want := range map[string]string{
		"TestReleasedLockIsGrantedAgain":           "released lock is granted again",
		"TestI4_I10_I18_NoTakeoverBeforeTheCommit": "I4, I10, I18: no takeover before the commit",
		"TestTrap9_ACancelledCall/with TTL":        "trap 9: a cancelled call",
		"TestI15_ATTLHasNoDays":                    "I15: ATTL has no days",
	} {
		if got := sentence(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// A test that has got another name would kill nothing.
func TestEveryMutantNamesTestsThatAreThere(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	tests := make(map[string][]string)
	for _, m := range all {
		if tests[m.pkg] != nil {
			continue
		}
		files := must.Get(filepath.Glob(filepath.Join("../../..", m.pkg, "*_test.go")))(t)
		for _, f := range files {
			text := must.Get(os.ReadFile(f))(t)
			for _, found := range declared.FindAllSubmatch(text, -1) {
				tests[m.pkg] = append(tests[m.pkg], string(found[1]))
			}
		}
	}
	for _, m := range all {
		for _, one := range strings.Split(strings.SplitN(m.test, "/", 2)[0], "|") {
			if !slices.ContainsFunc(tests[m.pkg], regexp.MustCompile(one).MatchString) {
				t.Errorf("%s: %s has no test %s", m.name, m.pkg, one)
			}
		}
	}
}

// Whoever breaks a line that a mutant breaks is to see it in the short tier, so that has a test of every mutant.
func TestEveryMutantHasATestInTheShortTier(t *testing.T) {
	tests := must.Get(tiers.Sources("../../.."))(t)
	for _, m := range all {
		names := regexp.MustCompile(strings.SplitN(m.test, "/", 2)[0])
		if !slices.ContainsFunc(tests, func(s tiers.Source) bool {
			return s.Short && s.Dir == filepath.ToSlash(filepath.Clean(m.pkg)) && names.MatchString(s.Name)
		}) {
			t.Errorf("%s: %s has none of %s in the short tier", m.name, m.pkg, m.test)
		}
	}
}
