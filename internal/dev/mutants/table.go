package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
)

// printTable prints what became of each mutant. The promise that a mutant breaks is the sentence that the name of the
// test is which kills it.
func printTable(w io.Writer, verdicts []verdict) {
	_, _ = fmt.Fprintf(w, "\n| mutant | promise | killed by | seconds |\n| --- | --- | --- | --- |\n")
	for _, v := range verdicts {
		by, promise := "`"+v.KilledBy+"`", sentence(v.KilledBy)
		switch {
		case v.Unfit != "":
			by, promise = "**could not be tried**", ""
		case v.KilledBy == "":
			by, promise = "**survives**", ""
		case !strings.HasPrefix(v.KilledBy, "Test"):
			by, promise = v.KilledBy, ""
		}
		_, _ = fmt.Fprintf(w, "| %s | %s | %s | %.1f |\n", cell(v.Mutant), cell(promise), cell(by), v.Seconds)
	}
}

func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }

var (
	numbers = regexp.MustCompile(`^(?:(?:I|A|Trap)\d+_|Hole_)+`)
	within  = regexp.MustCompile(`([\p{Ll}\d])(\p{Lu})|(\p{Lu})(\p{Lu}\p{Ll})`)
)

// sentence spells a test's name: TestI9_NobodyOvertakes is "I9: nobody overtakes".
func sentence(test string) string {
	name, _, _ := strings.Cut(strings.TrimPrefix(test, "Test"), "/")
	of := numbers.FindString(name)
	name = strings.TrimPrefix(name, of)
	words := strings.Fields(within.ReplaceAllString(within.ReplaceAllString(name, "$1$3 $2$4"), "$1$3 $2$4"))
	for i, word := range words {
		if word != strings.ToUpper(word) || len(word) == 1 {
			words[i] = strings.ToLower(word)
		}
	}
	said := strings.Join(words, " ")
	if of != "" {
		of = strings.ReplaceAll(strings.ReplaceAll(of, "Trap", "trap "), "Hole", "hole")
		said = strings.ReplaceAll(strings.TrimSuffix(of, "_"), "_", ", ") + ": " + said
	}
	return said
}
