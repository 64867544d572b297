package cli

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// wordFlag is a flag that is one of some words.
type wordFlag struct {
	value *string
	words []string
}

func (f wordFlag) String() string {
	if f.value == nil {
		return ""
	}
	return *f.value
}

func (f wordFlag) Set(s string) error {
	if !slices.Contains(f.words, s) {
		return errors.New("it must be " + f.rule())
	}
	*f.value = s
	return nil
}

func (wordFlag) Type() string { return "word" }

func (f wordFlag) rule() string {
	last := len(f.words) - 1
	return strings.Join(f.words[:last], ", ") + " or " + f.words[last]
}

// WordVar defines a flag that is one of some words, which the shell completes.
func WordVar(cmd *cobra.Command, value *string, name, usage string, words ...string) {
	f := wordFlag{value, words}
	cmd.Flags().Var(f, name, usage+f.rule())
	// fails only if the flag is missing
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}
