package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/shown"
)

// The widths of a help text: when the terminal's is unknown, and the greatest that still reads well.
const (
	helpWidth     = 80
	mostHelpWidth = 100
)

// help writes the help of a command, as wide as the terminal.
func help(cmd *cobra.Command, _ []string) {
	out := cmd.OutOrStdout()
	width := min(cmp.Or(cli.Columns(out), helpWidth), mostHelpWidth)
	usage := cmd.UsageString()
	for _, flags := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		if all := strings.TrimRight(flags.FlagUsages(), "\n"); all != "" {
			usage = strings.Replace(usage, all, strings.TrimRight(flags.FlagUsagesWrapped(width), "\n"), 1)
		}
	}
	fmt.Fprintf(out, "%s\n\n%s", reflow(cmp.Or(cmd.Long, cmd.Short), width), usage)
}

// reflow wraps the paragraphs of a text to a width. A line that begins with a space is a paragraph.
func reflow(text string, width int) string {
	var lines []string
	var paragraph []string
	end := func() {
		if paragraph != nil {
			lines = append(lines, cli.Wrapped(strings.Join(paragraph, " "), width))
		}
		paragraph = nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if line == "" || line[0] == ' ' {
			end()
			lines = append(lines, hanging(line, width))
			continue
		}
		paragraph = append(paragraph, line)
	}
	end()
	return strings.Join(lines, "\n")
}

// hanging wraps a line of a list, and indents the rest to where the text of the line begins: after its last two spaces.
func hanging(line string, width int) string {
	indent := strings.LastIndex(line, "  ") + 2
	if len(line) <= width || indent < 2 || width-indent < 20 {
		return line
	}
	return line[:indent] + cli.Indented(cli.Wrapped(line[indent:], width-indent), indent)
}

// newHelp is cobra's help command, which also refuses an unknown topic.
func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return cli.UsageErrorf("pglock-admin --help", "there is no command %s",
					shown.Lines(strings.Join(args, " ")))
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}
