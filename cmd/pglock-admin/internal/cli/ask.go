package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/charmbracelet/x/term"
	"github.com/spf13/cobra"
)

// Asks says whether somebody can answer a question: they read what goes to standard error, and type.
func Asks(cmd *cobra.Command) bool {
	return IsTerminal(cmd.InOrStdin()) && IsTerminal(cmd.ErrOrStderr())
}

// Agreed shows what is about to happen, and lets somebody agree to it. The error says that nothing was done.
func Agreed(ctx context.Context, cmd *cobra.Command, question string, draw func(*Page)) error {
	p := &Page{Width: Columns(cmd.ErrOrStderr())}
	draw(p)
	fmt.Fprintf(p, "\n%s [y/N] ", question)
	if _, err := io.WriteString(cmd.ErrOrStderr(), p.String()); err != nil {
		return err
	}
	answered := make(chan string, 1)
	// ends with the answer; without one it ends with the program, because nothing interrupts a read of a terminal
	go func() {
		line, _ := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		answered <- line
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(cmd.ErrOrStderr())
		return Errorf(ExitInterrupted, Again, "interrupted: nothing was broken")
	case line := <-answered:
		answer := strings.ToLower(strings.TrimSpace(line))
		if strings.HasSuffix(line, "\n") && (answer == "y" || answer == "yes") {
			return nil
		}
		if !strings.HasSuffix(line, "\n") { // Ctrl-D
			fmt.Fprintln(cmd.ErrOrStderr())
		}
		return Errorf(ExitFailure, Again+"; --yes asks no question", "nothing was broken: the answer was not y")
	}
}

// IsTerminal reports whether a stream leads to a terminal that can show a screen.
func IsTerminal(stream any) bool {
	f, is := stream.(*os.File)
	return is && term.IsTerminal(f.Fd())
}
