package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// needsSubcommand refuses a command that only groups others.
func needsSubcommand(cmd *cobra.Command, _ []string) error {
	return usageErrorf(cmd.CommandPath()+" --help", "%s needs a command", cmd.CommandPath())
}

// oneName checks the arguments of commands about one lock.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageErrorf("pglock-admin "+cmd.Use+`; a name with spaces needs quotes`, "%s takes the name of one "+
			"lock, not %d arguments", cmd.Name(), len(args))
	}
	return nil
}

// upToOneName checks commands that take the name of a lock or none.
func upToOneName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return oneName(cmd, args)
}

// noArguments checks commands that take only flags, and commands that only group others.
func noArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case cmd.HasSubCommands():
		text := "there is no command " + strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), "pglock-admin")+" "+
			shellQuote(escapeText(args[0])))
		cmd.SuggestionsMinimumDistance = 2
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return usageErrorf(cmd.CommandPath()+" "+strings.Join(near, ", or "+cmd.CommandPath()+" "), "%s", text)
		}
		return usageErrorf(cmd.CommandPath()+" --help", "%s", text)
	}
	return usageErrorf(cmd.CommandPath()+" --help", "%s takes no arguments, and got %q", cmd.CommandPath(), args)
}

// flagError names the flag, its value and the rule.
func flagError(cmd *cobra.Command, err error) error {
	help := cmd.CommandPath() + " --help"
	var invalid *pflag.InvalidValueError
	var missing *pflag.ValueRequiredError
	switch {
	case errors.As(err, &missing):
		return usageErrorf(help, "--%s needs a value: %s", missing.GetFlag().Name, kindOf(missing.GetFlag()))
	case errors.As(err, &invalid):
		rule := "it must be " + kindOf(invalid.GetFlag())
		switch invalid.GetFlag().Value.(type) {
		case durationFlag, wordFlag:
			rule = errors.Unwrap(invalid).Error()
		}
		return usageErrorf(help, "--%s is %q: %s", invalid.GetFlag().Name, invalid.GetValue(), rule)
	}
	return usageErrorf(help, "%v", err)
}

// kindOf names the kind of a flag's value.
func kindOf(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number"
	case "uint64":
		return "a whole number from 0"
	case "bool":
		return "true or false"
	case "string":
		return "a text"
	case "word":
		return f.Value.(wordFlag).rule()
	}
	return "a " + f.Value.Type()
}

// optionalName reads the name of a lock that a command may have.
func optionalName(cmd *cobra.Command, args []string) (string, error) {
	if len(args) == 0 {
		return "", nil
	}
	return nameOf(cmd, args, 0)
}

// atMostOneName checks the arguments of commands about one lock or all.
func atMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) > 1 || len(args) == 1 && args[0] == "" {
		return usageErrorf("pglock-admin "+cmd.Use+"; a name with spaces needs quotes", "%s takes the name of one "+
			"lock or none, not %q", cmd.Name(), args)
	}
	return nil
}
