package main

import (
	"context"
	"errors"
	"fmt"
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

// breaking is what a command line of break asks for.
type breaking struct {
	name, session string
	reason, by    string
	token         pglock.Token // 0: the lock's only lease
	given, yes    bool         // the token is given; no question is asked
}

func newBreak(o *options) *cobra.Command {
	var b breaking
	var token int64
	cmd := &cobra.Command{
		Use:   "break NAME --reason TEXT",
		Short: "End the lease of a holder that is stuck",
		Long: `End somebody else's lease at once. The lock goes to the next in the queue, or becomes free. A greater fencing token
replaces the old one, so that the old holder's next fenced write, renewal and release fail. The history records who did
it, when, and why.

At a terminal it first shows the holder and asks. If the lock has gone to somebody else when you answer, nothing
is broken. With --yes, or without a terminal, it asks nothing.

If the lock has several holders, choose one with --token. --session ID, instead of a NAME, ends every lease and every
place in a queue of one client; pglock-admin sessions shows the IDs. Up to a thousand locks are one transaction.

You need the role pglock_admin. This does not stop the old holder: whatever it writes without a fence still arrives.`,
		Example: `  pglock-admin break nightly-report --reason "stuck since 3:00, host is down"
  pglock-admin break nightly-report --reason "as seen in list" --token 42
  pglock-admin break --session 3b241101-e2bb-4255-8caf-4136c566a962 --reason "its host is gone"`,
		Args: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("session") {
				return oneName(cmd, args)
			}
			if len(args) > 0 {
				return usageErrorf("pglock-admin break --session ID --reason TEXT",
					"break takes a NAME or --session, not both")
			}
			return nil
		},
		Annotations: forOperators,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			what := "--session " + shellQuote(escapeText(b.session))
			if !cmd.Flags().Changed("session") {
				if b.name, err = nameOf(cmd, args, 0); err != nil {
					return err
				}
				what = shellName(b.name)
			}
			if strings.TrimSpace(b.reason) == "" {
				return usageErrorf(fmt.Sprintf("pglock-admin break %s --reason \"why\"%s", what, o.same()),
					"--reason is empty: the history must say why the lease was ended")
			}
			if b.by == "" {
				b.by = actor()
			}
			b.token, b.given = pglock.Token(token), cmd.Flags().Changed("token")
			if cmd.Flags().Changed("session") {
				if b.given {
					return usageErrorf("no --token", "--token does not go with --session")
				}
				return o.breakSession(cmd, b)
			}
			return o.breakLock(cmd, b)
		},
	}
	cmd.Flags().StringVar(&b.reason, "reason", "", "`text` that says why, for the history; required")
	cmd.Flags().Int64Var(&token, "token", 0, "`number` of the token to break; leases with another token are left alone")
	cmd.Flags().StringVar(&b.session, "session", "",
		"break everything of the session with this `ID`, instead of a lock")
	cmd.Flags().StringVar(&b.by, "by", "", "`name` of whoever does it, for the history (default user@host)")
	cmd.Flags().BoolVar(&b.yes, "yes", false, "ask no question")
	o.completeFlags(cmd)
	return cmd
}

// breakLock breaks one lease, after a question if somebody can answer it.
func (o *options) breakLock(cmd *cobra.Command, b breaking) error {
	asked := !b.yes && asks(cmd)
	if asked {
		var seen lockView
		err := o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) (err error) {
			seen, err = o.toBreak(ctx, admin, b)
			return err
		})
		if err != nil {
			return err
		}
		b.token, b.given = seen.Token, true
		if err := agreed(cmd.Context(), cmd, "End this lease?", func(w *page) { drawToBreak(w, o, seen) }); err != nil {
			return err
		}
	}
	opts := []lockadmin.BreakOption{lockadmin.WithActor(b.by)}
	if b.given {
		opts = append(opts, lockadmin.WithToken(b.token))
	}
	return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		broken, err := admin.Break(ctx, b.name, b.reason, opts...)
		switch {
		case errors.Is(err, pglock.ErrInvalid) && !b.given:
			return o.nameOneOf(ctx, admin, b.name, b.reason, err)
		case errors.Is(err, lockadmin.ErrNotHeld):
			err := o.nothingBroken(ctx, admin, b.name, int64(b.token))
			var own *advised
			if asked && errors.As(err, &own) {
				own.text = "the lock has moved on since the question: " + own.text
			}
			return err
		case err != nil:
			return o.lockFailed(err, b.name)
		}
		view := breakView{Broken: broken, Reason: b.reason, By: b.by}
		if infos, err := admin.Holders(ctx, b.name); err == nil { // the break is done, even if this fails
			view.Now = heldViews(infos)
		}
		return o.changed(cmd, view, func(w *page) { drawBroken(w, o, view) })
	})
}

// breakFailed says what became of a break whose answer is an error. why is the command that names whoever is in its
// way, see the one that shows whether it was done.
func (o *options) breakFailed(err error, why, see string) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), stateOf(err) == "57014":
		return &advised{code: exitFailure, text: fmt.Sprintf("nothing was broken within %s (--timeout): a "+
			"transaction keeps the lease from being broken until it ends", durationText(o.timeout)),
			hint: why + ", which names that transaction's process and how to end it\n" +
				"  If it names none: psql -c 'SELECT 1' shows whether the server hangs"}
	case unknownOutcome(err):
		return unknownBreak(err, see)
	}
	return err
}

func unknownBreak(err error, see string) error {
	return &advised{text: "it is unknown whether the lease was broken", err: err, code: exitUnreachable, hint: see}
}

// lockFailed is breakFailed for one lock.
func (o *options) lockFailed(err error, name string) error {
	return o.breakFailed(err, "pglock-admin why "+shellName(name)+o.same(), o.seeWhether(name))
}

func (o *options) seeWhether(name string) string {
	return "pglock-admin show " + shellName(name) + o.same() + ", to see whether it was broken"
}

// toBreak is the lease that a break would end.
func (o *options) toBreak(ctx context.Context, admin *lockadmin.Admin, b breaking) (lockView, error) {
	infos, err := admin.Holders(ctx, b.name)
	if err != nil {
		return lockView{}, o.noSuchLock(b.name, err)
	}
	holders := heldViews(infos)
	if b.given {
		for _, h := range holders {
			if h.Token == b.token {
				return h, nil
			}
		}
		return lockView{}, o.nothingBroken(ctx, admin, b.name, int64(b.token))
	}
	switch len(holders) {
	case 0:
		return lockView{}, o.nothingBroken(ctx, admin, b.name, 0)
	case 1:
		return holders[0], nil
	}
	return lockView{}, o.nameOneOf(ctx, admin, b.name, b.reason, lockadmin.ErrNotHeld)
}

func drawToBreak(w *page, o *options, l lockView) {
	fmt.Fprintf(w, "at %s\n", o.at.now())
	waiting := "nobody"
	if l.LockInfo.Waiting > 0 {
		waiting = fmt.Sprint(l.LockInfo.Waiting)
	}
	drawFields(w, [][2]string{
		{"lock", shellName(l.Name)},
		{"holder", printable(l.Holder)},
		{"token", fmt.Sprint(int64(l.Token))},
		{"held for", age(heldFor(l.LockInfo))},
		{"lease", fmt.Sprintf("%s of %s left", age(l.LockInfo.Remaining), durationText(l.LockInfo.TTL))},
		{"waiting", waiting},
	})
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
	return &advised{code: exitUsage, hint: hint, text: fmt.Sprintf("lock %s has %d holders, with the tokens %s: name "+
		"the one to break with --token; nothing was broken",
		shellName(name), len(holders), strings.Join(tokens, ", "))}
}

// unbroken explains why a break of the lease with that token has failed; 0 stands for any.
func (o *options) unbroken(ctx context.Context, admin *lockadmin.Admin, name string, token int64, err error) error {
	if errors.Is(err, lockadmin.ErrNotHeld) {
		return o.nothingBroken(ctx, admin, name, token)
	}
	return o.lockFailed(err, name)
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
		text, why = fmt.Sprintf("lock %s is held with another token than %d", shellName(name),
			token), "who holds it, and with which token"
	}
	return &advised{text: text + "; nothing was broken", code: exitNotHeld, hint: "pglock-admin show " +
		shellName(name) + o.same() + " to see " + why}
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
	fmt.Fprintf(w, "%s\nThe history has it: pglock-admin history %s%s\n", wrapped(stillRuns, textWidth(w)),
		shellName(v.Name), o.same())
}

const stillRuns = "The old holder's next fenced write, renewal and release fail. What it writes without a fence is " +
	"not stopped: end that process if it still runs."

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
