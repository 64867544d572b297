package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
)

const NamesHelp = `You can paste a NAME as it is shown: plain, or in '…' where a shell needs that. A name that begins with - or ", or
that holds a backslash or something that does not print, is shown and read as '"…"' with escapes such as \x1b and \n.
After -- a NAME is taken as it is, which is what scripts need:

    pglock-admin show -- "$name"`

// NameOf reads the nth argument of a command as the name of a lock.
func NameOf(cmd *cobra.Command, args []string, n int) (string, error) {
	arg := args[n]
	if dash := cmd.ArgsLenAtDash(); dash >= 0 && n >= dash || !strings.HasPrefix(arg, `"`) {
		return arg, nil
	}
	name, err := Unquoted(arg)
	if err != nil {
		return "", UsageErrorf(fmt.Sprintf("%s -- %s, for a name that really begins so", cmd.CommandPath(),
			shown.Argument(shown.Lines(arg))),
			`NAME is %s: a name that begins with " must be quoted as in the output of list`, shown.Quoted(arg))
	}
	return name, nil
}

// Unquoted reads a name as it is shown.
func Unquoted(name string) (string, error) {
	if !strings.HasPrefix(name, `"`) {
		return name, nil
	}
	return strconv.Unquote(name)
}
