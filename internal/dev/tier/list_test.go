package tier

import (
	"flag"
	"testing"
)

func TestTheListChoosesTheTestsUnlessTheCommandLineDoes(t *testing.T) {
	text = "# a comment\none\n\tTestA\n\tTestB\n\ncmd/two\n\tTestC\nnone\n"
	const one = "the short tier has 1 of these tests, -tags whole all"
	const two = "the short tier has 2 of these tests, -tags whole all"
	for _, c := range []struct{ path, arg, run, says string }{
		{"one.test", "-test.v", "^(TestA|TestB|Example.*|Fuzz.*)$", two},
		{"cmd/two", "-test.v", "^(TestC|Example.*|Fuzz.*)$", one},
		{"none.test", "-test.v", "^(Example.*|Fuzz.*)$", "the short tier has 0 of these tests, -tags whole all"},
		{"one.test", "-test.run=X", "X", ""},
		{"one.test", "-test.run=", "", ""},
		{"one.test", "-test.list=X", "", ""},
		{"three.test", "-test.v", "", ""},
	} {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		run := flags.String("test.run", "", "")
		flags.String("test.list", "", "")
		flags.Bool("test.v", false, "")
		if err := flags.Parse([]string{c.arg}); err != nil {
			t.Fatal(err)
		}
		if says := choose(flags, module+c.path); says != c.says || *run != c.run {
			t.Errorf("%s of %s: %q and -run %q, want %q and %q", c.arg, c.path, says, *run, c.says, c.run)
		}
	}
}
