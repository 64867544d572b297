package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type breakView struct {
	lockadmin.Broken
	Reason string     `json:"reason"`
	By     string     `json:"by"`
	Now    []lockView `json:"now"` // who holds the lock after the break; null when that could not be read
}

func newBreak(o *options) *cobra.Command {
	var reason, by string
	var token int64
	cmd := &cobra.Command{
		Use:   "break NAME --reason TEXT",
		Short: "End the lease of a holder that is stuck",
		Long: `End somebody else's lease at once. The lock goes to the next in the queue, or becomes free. A greater fencing token
replaces the old one, so that the old holder's next fenced write, renewal and release fail. The audit records who did
it, when, and why.

If the lock has several holders, choose one with --token.

You need the role pglock_admin. This does not stop the old holder: whatever it writes without a fence still arrives.`,
		Example: `  pglock-admin break nightly-report --reason "stuck since 3:00, host is down"
  pglock-admin break nightly-report --reason "as seen in list" --token 42`,
		Args:        oneName,
		Annotations: usesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := nameOf(cmd, args, 0)
			if err != nil {
				return err
			}
			if strings.TrimSpace(reason) == "" {
				return usageErrorf(fmt.Sprintf("pglock-admin break %s --reason \"why\"%s", shellName(name), o.same()),
					"--reason is empty: the audit must say why the lease was ended")
			}
			if by == "" {
				by = actor()
			}
			opts := []lockadmin.BreakOption{lockadmin.WithActor(by)}
			if cmd.Flags().Changed("token") {
				opts = append(opts, lockadmin.WithToken(pglock.Token(token)))
			}
			return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				broken, err := admin.Break(ctx, name, reason, opts...)
				switch {
				case errors.Is(err, pglock.ErrInvalid) && !cmd.Flags().Changed("token"):
					return o.nameOneOf(ctx, admin, name, reason, err)
				case err != nil:
					return o.unbroken(ctx, admin, name, token, err)
				}
				view := breakView{Broken: broken, Reason: reason, By: by}
				if infos, err := admin.Holders(ctx, name); err == nil { // the break is done, even if this fails
					view.Now = heldViews(infos)
				}
				return o.changed(cmd, view, func(w *page) { drawBroken(w, o, view) })
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "`text` that tells the audit why; required")
	cmd.Flags().Int64Var(&token, "token", 0, "`number` of the token to break; leases with another token are left alone")
	cmd.Flags().StringVar(&by, "by", "", "`name` of whoever does it, for the audit (default user@host)")
	return cmd
}

// nameOneOf refuses to break a lock with several holders, and lists their tokens.
func (o *options) nameOneOf(ctx context.Context, admin *lockadmin.Admin, name, reason string, refused error) error {
	infos, err := admin.Holders(ctx, name)
	if err != nil {
		return refused
	}
	holders := heldViews(infos)
	if len(holders) < 2 {
		return refused
	}
	const most = 10
	var tokens []string
	hint := fmt.Sprintf("pglock-admin break %s --reason %s%s", shellName(name), shellQuote(reason), o.same())
	for n, h := range holders[:min(most, len(holders))] {
		if n > 0 {
			hint += "\n  or"
		}
		tokens = append(tokens, fmt.Sprint(int64(h.Token)))
		hint += fmt.Sprintf(" --token %d  # %s", int64(h.Token), printable(h.Holder))
	}
	if len(holders) > most {
		tokens = append(tokens, "…")
		hint += fmt.Sprintf("\n  or another: pglock-admin show %s%s", shellName(name), o.same())
	}
	return &advised{code: exitUsage, hint: hint, text: fmt.Sprintf("lock %s has %d holders, with the tokens %s: name the one to break with --token; nothing was broken",
		shellName(name), len(holders), strings.Join(tokens, ", "))}
}

// unbroken explains why a break of the lease with that token has failed; 0 stands for any.
func (o *options) unbroken(ctx context.Context, admin *lockadmin.Admin, name string, token int64, err error) error {
	switch {
	case errors.Is(err, lockadmin.ErrNotHeld):
		return o.nothingBroken(ctx, admin, name, token)
	case errors.Is(err, context.DeadlineExceeded):
		return &advised{code: exitFailure, text: fmt.Sprintf("nothing was broken within %s (--timeout): a transaction keeps the lease from being broken until it ends", durationText(o.timeout)),
			hint: "find that transaction: SELECT * FROM pg_prepared_xacts; and\n" +
				"  SELECT pid, application_name, state, xact_start, query FROM pg_stat_activity WHERE xact_start IS NOT NULL;\n" +
				"  It is committing, prepared, or past its last check. If there is none: psql -c 'SELECT 1' shows whether the server hangs"}
	case unknownOutcome(err):
		return o.unknownBreak(name, err)
	}
	return err
}

func (o *options) unknownBreak(name string, err error) error {
	return &advised{text: "it is unknown whether the lease was broken", err: err, code: exitUnreachable,
		hint: "pglock-admin show " + shellName(name) + o.same() + ", to see whether it was broken"}
}

// unknownOutcome reports whether a break may have been done although it has failed.
func unknownOutcome(err error) bool { return lost(err) || errors.Is(err, pglock.ErrOutcomeUnknown) }

// nothingBroken says why there was nothing to break. The lock may be held again by now.
func (o *options) nothingBroken(ctx context.Context, admin *lockadmin.Admin, name string, token int64) error {
	infos, err := admin.Holders(ctx, name)
	if err != nil {
		return o.noSuchLock(name, err)
	}
	text, why := fmt.Sprintf("lock %s is not held", shellName(name)), "what became of it"
	if holders := heldViews(infos); len(holders) > 0 && token != 0 {
		text, why = fmt.Sprintf("lock %s is held with another token than %d", shellName(name), token), "who holds it, and with which token"
	}
	return &advised{text: text + "; nothing was broken", code: exitNotHeld, hint: "pglock-admin show " + shellName(name) + o.same() + " to see " + why}
}

func drawBroken(w *page, o *options, v breakView) {
	fmt.Fprintf(w, "broke the lease of lock %s\n\n", shellName(v.Name))
	drawFields(w, [][2]string{
		{"holder", printable(v.Holder)},
		{"old token", fmt.Sprint(int64(v.Token))},
		{"new token", fmt.Sprint(int64(v.NewToken))},
		{"would have ended", moment(v.Broken.ExpiresAt)},
		{"broken by", printable(v.By)},
	})
	switch {
	case v.Now == nil:
		fmt.Fprintln(w)
	case len(v.Now) == 0:
		fmt.Fprintf(w, "\nThe lock is free; its next grant has a token above %d.\n", int64(v.NewToken))
	default:
		fmt.Fprintf(w, "\nThe lock is held now:\n\n")
		drawHeldNow(w, v)
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, `The old holder's next fenced write, renewal and release fail. What it writes
without a fence is not stopped: end that process if it still runs.
The audit: pglock-admin show %s%s
`, shellName(v.Name), o.same())
}

// drawHeldNow tells who holds the lock after the break: whoever was next in the queue, and other holders as before.
func drawHeldNow(w *page, v breakView) {
	for _, h := range v.Now {
		since := "as before"
		if h.Token > v.NewToken {
			since = "was next in the queue"
		}
		fmt.Fprintf(w, "● %s has token %d (%s)\n", printable(h.Holder), int64(h.Token), since)
	}
}

// actor names whoever runs this program: user@host.
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
