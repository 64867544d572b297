package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

// What the shell waits for at most when it completes a word, and how many words it gets.
const (
	completing = time.Second
	Completed  = 300
)

// Completes lets the shell complete the names of locks, wherever a command takes one, and the formats of the output.
func (o *Options) Completes(root *cobra.Command) {
	// fails only if the flag is missing
	_ = root.RegisterFlagCompletionFunc("output", func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion,
		cobra.ShellCompDirective) {
		if cmd.Annotations["tree"] != "" {
			return append(slices.Clone(Outputs), OutputTree), cobra.ShellCompDirectiveNoFileComp
		}
		return Outputs, cobra.ShellCompDirectiveNoFileComp
	})
	for _, c := range withItsCommands(root) {
		words := strings.Fields(c.Use)
		switch {
		case c.ValidArgsFunction != nil:
		case len(words) > 1 && strings.Trim(words[1], "[]") == "NAME":
			c.ValidArgsFunction = o.nameArgument
		case !c.HasSubCommands():
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
	}
}

// nameArgument completes the arguments of a command that takes a NAME.
func (o *Options) nameArgument(cmd *cobra.Command, args []string, word string) ([]cobra.Completion,
	cobra.ShellCompDirective) {
	switch {
	case len(args) == 0:
		return o.names(cmd, word, cmd.Name() != "break" && cmd.Name() != "waiters")
	case cmd.Name() == "run":
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// withItsCommands gives a command and all below it.
func withItsCommands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, sub := range c.Commands() {
		all = append(all, withItsCommands(sub)...)
	}
	return all
}

// CompleteFlags lets the shell complete the flags of a list that name a lock or a session.
func (o *Options) CompleteFlags(cmd *cobra.Command) {
	complete := func(flag string, f cobra.CompletionFunc) {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, f) // fails only if the flag is missing
		}
	}
	names := func(cmd *cobra.Command, _ []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return o.names(cmd, word, true)
	}
	complete("session", o.sessionIDs)
	switch cmd.Name() {
	case "sessions":
		complete("after", o.sessionIDs)
	case "list", "waiters":
		complete("after", names)
		complete("prefix", names)
	}
}

// names gives the names of locks that a word may become. A shell quotes what it inserts, so a name stands here as NAME
// arguments are read, without the shell's quotes. Whatever fails, there is just nothing to complete.
func (o *Options) names(cmd *cobra.Command, word string, free bool) (found []cobra.Completion,
	directive cobra.ShellCompDirective) {
	o.complete(cmd, func(ctx context.Context, admin *lockadmin.Admin) {
		q := lockadmin.LocksQuery{Free: free, PageSize: Completed}
		if word != "" && !strings.HasPrefix(word, `"`) {
			q.Prefix = word
		}
		last := ""
		for lock, err := range admin.Locks(ctx, q) {
			if err != nil || len(found) == Completed {
				return
			}
			if lock.Name == last {
				continue
			}
			last = lock.Name
			holder := shown.Either(lock.Held, short(shown.Text(lock.Holder)), "free")
			found = append(found, cobra.CompletionWithDesc(argumentOf(lock.Name), holder))
		}
	})
	return startingWith(found, word), cobra.ShellCompDirectiveNoFileComp
}

func (o *Options) sessionIDs(cmd *cobra.Command, _ []string, word string) (found []cobra.Completion,
	directive cobra.ShellCompDirective) {
	o.complete(cmd, func(ctx context.Context, admin *lockadmin.Admin) {
		for s, err := range admin.Sessions(ctx, lockadmin.SessionsQuery{Limit: Completed}) {
			if err != nil {
				return
			}
			found = append(found, cobra.CompletionWithDesc(s.ID, short(shown.Text(s.Holder))))
		}
	})
	return startingWith(found, word), cobra.ShellCompDirectiveNoFileComp
}

// complete runs f with a lockadmin.Admin for as long as a person would wait for a completion.
func (o *Options) complete(cmd *cobra.Command, f func(context.Context, *lockadmin.Admin)) {
	if o.Aim(cmd) != nil {
		return
	}
	o.Timeout = completing
	// a shell has no place for an error
	_ = o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		f(ctx, admin)
		return nil
	})
}

func startingWith(all []cobra.Completion, word string) []cobra.Completion {
	return slices.DeleteFunc(all, func(c cobra.Completion) bool { return !strings.HasPrefix(c, word) })
}

// argumentOf writes a name as NAME arguments are read.
func argumentOf(name string) string {
	if pasted := shown.Name(name); strings.HasPrefix(pasted, `'"`) {
		return strings.Trim(pasted, "'")
	}
	return name
}

// short cuts a description to one that fits beside a name.
func short(s string) string { return ansi.Truncate(s, 40, "…") }
