package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/pglock"
)

type breakView struct {
	pglock.Broken
	Reason string `json:"reason"`
	By     string `json:"by"`
}

func newBreak(o *options) *cobra.Command {
	var reason, by string
	var token int64
	cmd := &cobra.Command{
		Use:   "break NAME --reason TEXT",
		Short: "End the lease of a holder that is stuck",
		Long: `End somebody else's lease at once. The lock is free, and a new fencing token is drawn, so that the old holder's next
fenced write, renewal and release fail. The audit keeps who did it, when, and why.

It needs the role pglock_admin. It cannot stop the old holder: what that one writes without a fence still arrives.`,
		Example: `  pglock-admin break nightly-report --reason "stuck since 3:00, host is down"
  pglock-admin break nightly-report --reason "as seen in list" --token 42`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if strings.TrimSpace(reason) == "" {
				return usageErrorf(fmt.Sprintf("pglock-admin break %s --reason \"why\"", shellQuote(args[0])),
					"--reason is empty: the audit needs to know why the lease is ended")
			}
			if by == "" {
				by = actor()
			}
			opts := []pglock.BreakOption{pglock.BreakActor(by)}
			if cmd.Flags().Changed("token") {
				opts = append(opts, pglock.BreakToken(pglock.Token(token)))
			}
			return o.withClient(cmd.Context(), func(ctx context.Context, client *pglock.Client) error {
				broken, err := client.Break(ctx, args[0], reason, opts...)
				if err != nil {
					return err
				}
				return o.show(cmd, breakView{broken, reason, by}, func(w io.Writer) { drawBroken(w, o, broken, by) })
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit; `text`, required")
	cmd.Flags().Int64Var(&token, "token", 0, "only the lease with this `token`, so that one granted meanwhile is left alone")
	cmd.Flags().StringVar(&by, "by", "", "`who` does it, for the audit (default user@host)")
	return cmd
}

func drawBroken(w io.Writer, o *options, b pglock.Broken, by string) {
	fmt.Fprintf(w, "broke the lease of lock %s\n\n", printable(b.Name))
	drawFields(w, [][2]string{
		{"holder", printable(b.Holder)},
		{"old token", fmt.Sprint(int64(b.Token))},
		{"new token", fmt.Sprint(int64(b.NewToken))},
		{"would have ended", moment(b.ExpiresAt)},
		{"broken by", printable(by)},
	})
	fmt.Fprintf(w, `
The lock is free; its next grant has a token above %d. The old holder's next fenced write, renewal and
release fail. What it writes without a fence is not stopped: end that process if it still runs.
The audit: pglock-admin show %s%s
`, int64(b.NewToken), printable(shellQuote(b.Name)), o.sameDatabase())
}

// actor is who runs this program: user@host.
func actor() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil && h != "" {
		host = h
	}
	who := strings.ToValidUTF8(name+"@"+host, "?")
	for len(who) > pglock.MaxHolderBytes {
		who = strings.ToValidUTF8(who[:pglock.MaxHolderBytes], "")
	}
	return who
}
