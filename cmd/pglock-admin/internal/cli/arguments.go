package cli

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/internal/shown"
)

// Arguments lets each command take what its use says: nothing, a NAME, or a NAME that may be left out. Of commands that
// group others it lets somebody choose one.
func Arguments(root *cobra.Command) {
	for _, c := range withItsCommands(root) {
		words := strings.Fields(c.Use)
		switch {
		case c.HasSubCommands():
			c.Args, c.RunE = NoArguments, needsSubcommand
		case c.Args != nil:
		case len(words) == 1 || words[1][0] == '-':
			c.Args = NoArguments
		case words[1] == "NAME":
			c.Args = OneName
		case words[1] == "[NAME]":
			c.Args = Takes("the name of one lock", true)
		}
	}
}

func needsSubcommand(cmd *cobra.Command, _ []string) error {
	return UsageErrorf(cmd.CommandPath()+" --help", "%s needs a command", cmd.CommandPath())
}

var OneName = Takes("the name of one lock", false)

// Takes lets a command have one argument, or none if it is optional.
func Takes(what string, optional bool) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		takes := fmt.Sprintf("takes %s, not %d arguments", what, len(args))
		right := len(args) == 1
		if optional {
			takes = fmt.Sprintf("takes %s or none, not %q", what, args)
			right = len(args) == 0 || right && args[0] != ""
		}
		if right {
			return nil
		}
		return UsageErrorf(strings.TrimSuffix(cmd.UseLine(), " [flags]")+"; a name with spaces needs quotes", "%s %s",
			strings.TrimPrefix(cmd.CommandPath(), "pglock-admin "), takes)
	}
}

// NoArguments checks commands that take only flags, and commands that only group others.
func NoArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		text := "there is no command " + strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "pglock-admin")+" "+
			shown.Argument(shown.Lines(args[0])))
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return UsageErrorf(cmd.CommandPath()+" "+strings.Join(near, ", or "+cmd.CommandPath()+" "), "%s", text)
		}
		return UsageErrorf(cmd.CommandPath()+" --help", "%s", text)
	}
	return UsageErrorf(cmd.CommandPath()+" --help", "%s takes no arguments, and got %q", cmd.CommandPath(), args)
}

// FlagError names the flag, its value and the rule.
func FlagError(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help"
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &missing):
		return UsageErrorf(help, "--%s needs a value: %s", missing.GetFlag().Name, kindOf(missing.GetFlag()))
	case errors.As(err, &invalid):
		rule := "it must be " + kindOf(invalid.GetFlag())
		switch invalid.GetFlag().Value.(type) {
		case DurationFlag, wordFlag:
			rule = errors.Unwrap(invalid).Error()
		}
		return UsageErrorf(help, "--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), rule)
	}
	return UsageErrorf(help, "%v", err)
}

// kinds are the types of flags in words.
var kinds = map[string]string{"int": "a whole number", "int64": "a whole number", "uint64": "a whole number from 0",
	"bool": "true or false", "string": "a text"}

func kindOf(f *pflag.Flag) string {
	if word, is := f.Value.(wordFlag); is {
		return word.rule()
	}
	return cmp.Or(kinds[f.Value.Type()], "a "+f.Value.Type())
}

// OptionalName reads the name of a lock that a command may have.
func OptionalName(cmd *cobra.Command, args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	return NameOf(cmd, args, 0)
}
