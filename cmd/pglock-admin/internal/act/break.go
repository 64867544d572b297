package act

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type BreakView struct {
	lockadmin.Broken
	Reason string          `json:"reason"`
	By     string          `json:"by"`
	Now    []look.LockView `json:"now"` // who holds the lock after the break; null when that could not be read
}

// breaking is what a command line of break asks for.
type breaking struct {
	name, session string
	reason, by    string
	token         pglock.Token // 0: the lock's only lease
	given, yes    bool         // the token is given; no question is asked
}

func NewBreak(o *cli.Options) *cobra.Command {
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
				return cli.OneName(cmd, args)
			}
			if len(args) > 0 {
				return cli.UsageErrorf("pglock-admin break --session ID --reason TEXT",
					"break takes a NAME or --session, not both")
			}
			return nil
		},
		Annotations: cli.ForOperators,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if cmd.Flags().Changed("token") && token < 1 {
				return cli.UsageErrorf("--token 42", "--token is %d: it must be greater than 0", token)
			}
			what := "--session " + shown.Argument(shown.Lines(b.session))
			if !cmd.Flags().Changed("session") {
				if b.name, err = cli.NameOf(cmd, args, 0); err != nil {
					return err
				}
				what = shown.Name(b.name)
			}
			if strings.TrimSpace(b.reason) == "" {
				return cli.UsageErrorf(fmt.Sprintf("pglock-admin break %s --reason \"why\"%s", what, o.Same()),
					"--reason is empty: the history must say why the lease was ended")
			}
			b.by = cmp.Or(b.by, cli.Actor())
			b.token, b.given = pglock.Token(token), cmd.Flags().Changed("token")
			if cmd.Flags().Changed("session") {
				if b.given {
					return cli.UsageErrorf("no --token", "--token does not go with --session")
				}
				return breakSession(o, cmd, b)
			}
			return breakLock(o, cmd, b)
		},
	}
	cmd.Flags().StringVar(&b.reason, "reason", "", "`text` that says why, for the history; required")
	cmd.Flags().Int64Var(&token, "token", 0, "`number` of the token to break; leases with another token are left alone")
	cmd.Flags().StringVar(&b.session, "session", "",
		"break everything of the session with this `ID`, instead of a lock")
	cmd.Flags().StringVar(&b.by, "by", "", "`name` of whoever does it, for the history (default user@host)")
	cmd.Flags().BoolVar(&b.yes, "yes", false, "ask no question")
	o.CompleteFlags(cmd)
	return cmd
}

// agreed asks whether to break what see has found, if somebody can answer. The error says that nothing was done.
func (b breaking) agreed(o *cli.Options, cmd *cobra.Command, question string,
	see func(context.Context, *lockadmin.Admin) (facts [][2]string, err error)) (asked bool, err error) {
	if b.yes || !cli.Asks(cmd) {
		return false, nil
	}
	var facts [][2]string
	err = o.WithAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) (err error) {
		facts, err = see(ctx, admin)
		return err
	})
	if err != nil {
		return true, err
	}
	return true, cli.Agreed(cmd.Context(), cmd, question, func(w *cli.Page) {
		fmt.Fprintf(w, "at %s\n", shown.Line(o.At.Now().String()))
		cli.DrawFields(w, facts)
	})
}

func breakLock(o *cli.Options, cmd *cobra.Command, b breaking) error {
	asked, err := b.agreed(o, cmd, "End this lease?",
		func(ctx context.Context, admin *lockadmin.Admin) ([][2]string, error) {
			seen, err := toBreak(ctx, o, admin, b)
			b.token, b.given = seen.Token, true
			return factsToBreak(seen), err
		})
	if err != nil {
		return err
	}
	opts := lockadmin.BreakOptions{Actor: b.by}
	if b.given {
		opts.Token = &b.token
	}
	return o.WithAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		broken, err := admin.Break(ctx, b.name, b.reason, opts)
		switch {
		case errors.Is(err, pglock.ErrInvalid) && !b.given:
			return nameOneOf(ctx, o, admin, b.name, b.reason, err)
		case err != nil:
			why := Unbroken(ctx, o, admin, b.name, int64(b.token), err)
			if own, is := errors.AsType[*cli.Advised](why); is && asked && errors.Is(err, lockadmin.ErrNotHeld) {
				own.Text = "the lock has moved on since the question: " + own.Text
			}
			return why
		}
		view := BreakView{Broken: broken, Reason: b.reason, By: b.by}
		if infos, err := admin.Holders(ctx, b.name); err == nil { // the break is done, even if this fails
			view.Now = look.HeldViews(infos)
		}
		return o.Changed(cmd, view, func(w *cli.Page) { drawBroken(w, o, view) })
	})
}

// breakFailed says what became of a break whose answer is an error. why is the command that names whoever is in its
// way, see the one that shows whether it was done.
func breakFailed(o *cli.Options, err error, why, see string) error {
	pgErr, of := errors.AsType[*pgconn.PgError](err)
	switch {
	case of && pgErr.Code == "55P03" && pgErr.Hint != "" && shown.AllPrint(pgErr.Hint): // how to end that transaction
		return &cli.Advised{Err: err, Code: cli.ExitFailure,
			Hint: cli.Again + strings.TrimRight(strings.TrimPrefix(pgErr.Hint, "Try again"), ".;")}
	case of && pgErr.Code == "55P03" && pgErr.Hint == "": // not the lock's row, which the server would name
		return &cli.Advised{Text: "nothing was broken", Err: err, Code: cli.ExitFailure,
			Hint: why + ", which names whoever has locked a whole table, or waits to\n  If it names nobody: " +
				o.Psql() + " -c " + shown.Query(whoHasTables)}
	case cli.StateOf(err) == "57014": // the server undid it
		return cli.Errorf(cli.ExitFailure, why+", which names that transaction's process\n  If it names none: "+
			o.WhetherItHangs(), "nothing was broken within %s (--timeout): a transaction keeps the lease from being "+
			"broken until it ends", shown.Duration(o.Timeout))
	case errors.Is(err, context.DeadlineExceeded): // in the way of the break, or of its COMMIT, which is not undone
		return UnknownBreak(err, see+"\n  If it was not: "+why+", which names the process of a transaction in "+
			"the way\n  If it names none: "+o.WhetherItHangs())
	case UnknownOutcome(err):
		return UnknownBreak(err, see)
	}
	return err
}

// whoHasTables is the SQL that finds who has locked a whole table of this database, or waits to.
const whoHasTables = "SELECT l.pid, l.mode, l.relation::regclass, " + prepared + " FROM pg_locks l WHERE l.mode IN " +
	"('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareLock') AND l.relation IS NOT NULL AND " +
	inThisDatabase

// UnknownBreak says that nobody knows whether a lease was broken; see is the command that shows it.
func UnknownBreak(err error, see string) error {
	return &cli.Advised{Text: "it is unknown whether the lease was broken", Err: err, Code: cli.ExitUnreachable,
		Hint: see}
}

// SeeWhether is the command that shows whether a lease was broken.
func SeeWhether(o *cli.Options, name string) string {
	return "pglock-admin show " + shown.Name(name) + o.Same() + ", to see whether it was broken"
}

func toBreak(ctx context.Context, o *cli.Options, admin *lockadmin.Admin, b breaking) (look.LockView, error) {
	infos, err := admin.Holders(ctx, b.name)
	if err != nil {
		return look.LockView{}, look.NoSuchLock(o, b.name, err)
	}
	holders := look.HeldViews(infos)
	if b.given {
		for _, h := range holders {
			if h.Token == b.token {
				return h, nil
			}
		}
		return look.LockView{}, nothingBroken(ctx, o, admin, b.name, int64(b.token))
	}
	switch len(holders) {
	case 0:
		return look.LockView{}, nothingBroken(ctx, o, admin, b.name, 0)
	case 1:
		return holders[0], nil
	}
	return look.LockView{}, nameOneOf(ctx, o, admin, b.name, b.reason, lockadmin.ErrNotHeld)
}

func factsToBreak(l look.LockView) [][2]string {
	return [][2]string{
		{"lock", shown.Name(l.Name)},
		{"holder", shown.Text(l.Holder)},
		{"token", fmt.Sprint(int64(l.Token))},
		{"held for", shown.Age(lists.HeldFor(l.LockInfo))},
		{"lease", fmt.Sprintf("%s of %s left", shown.Age(l.LockInfo.Remaining), shown.Duration(l.LockInfo.TTL))},
		{"waiting", shown.Either(l.LockInfo.Waiting > 0, fmt.Sprint(l.LockInfo.Waiting), "nobody")},
	}
}

// nameOneOf refuses to break a lock with several holders, and lists their tokens.
func nameOneOf(ctx context.Context, o *cli.Options, admin *lockadmin.Admin, name, reason string, refused error) error {
	infos, err := admin.Holders(ctx, name)
	if err != nil {
		return refused
	}
	holders := look.HeldViews(infos)
	if len(holders) < 2 {
		return refused
	}
	const most = 10
	var tokens []string
	hint := fmt.Sprintf("pglock-admin break %s --reason %s%s", shown.Name(name), shown.Argument(reason), o.Same())
	for n, h := range holders[:min(most, len(holders))] {
		if n > 0 {
			hint += "\n  or"
		}
		tokens = append(tokens, fmt.Sprint(int64(h.Token)))
		hint += fmt.Sprintf(" --token %d  # %s", int64(h.Token), shown.Text(h.Holder))
	}
	if len(holders) > most {
		tokens = append(tokens, "…")
		hint += fmt.Sprintf("\n  or another: pglock-admin show %s%s", shown.Name(name), o.Same())
	}
	return cli.UsageErrorf(hint, "lock %s has %d holders, with the tokens %s: name the one to break with --token; "+
		"nothing was broken", shown.Name(name), len(holders), strings.Join(tokens, ", "))
}

// Unbroken explains why a break of the lease with that token has failed; 0 stands for any.
func Unbroken(ctx context.Context, o *cli.Options, admin *lockadmin.Admin, name string, token int64, err error) error {
	if errors.Is(err, lockadmin.ErrNotHeld) {
		return nothingBroken(ctx, o, admin, name, token)
	}
	return breakFailed(o, err, "pglock-admin why "+shown.Name(name)+o.Same(), SeeWhether(o, name))
}

// UnknownOutcome reports whether a break may have been done although it has failed.
func UnknownOutcome(err error) bool {
	return cli.Lost(err) || errors.Is(err, pglock.ErrOutcomeUnknown) ||
		errors.Is(err, context.DeadlineExceeded) && cli.StateOf(err) != "57014"
}

// nothingBroken says why there was nothing to break. The lock may be held again by now.
func nothingBroken(ctx context.Context, o *cli.Options, admin *lockadmin.Admin, name string, token int64) error {
	infos, err := admin.Holders(ctx, name)
	if err != nil {
		return look.NoSuchLock(o, name, err)
	}
	how, why := "not held", "what became of it"
	if holders := look.HeldViews(infos); len(holders) > 0 && token != 0 {
		how, why = fmt.Sprintf("held with another token than %d", token), "who holds it, and with which token"
	}
	return cli.Errorf(cli.ExitNotHeld, "pglock-admin show "+shown.Name(name)+o.Same()+" to see "+why,
		"lock %s is %s; nothing was broken", shown.Name(name), how)
}

func drawBroken(w *cli.Page, o *cli.Options, v BreakView) {
	fmt.Fprintf(w, "broke the lease of lock %s\n\n", shown.Name(v.Name))
	cli.DrawFields(w, [][2]string{
		{"holder", shown.Text(v.Holder)},
		{"old token", fmt.Sprint(int64(v.Token))},
		{"new token", fmt.Sprint(int64(v.NewToken))},
		{"would have ended", cli.Moment(v.Broken.ExpiresAt)},
		{"broken by", shown.Text(v.By)},
	})
	switch {
	case v.Now == nil:
		fmt.Fprintln(w)
	case len(v.Now) == 0:
		fmt.Fprintf(w, "\nThe lock is free; its next grant has a token above %d.\n", int64(v.NewToken))
	default:
		fmt.Fprintf(w, "\nThe lock is held now:\n\n")
		for _, h := range v.Now {
			since := shown.Either(h.Token > v.NewToken, "was next in the queue", "as before")
			fmt.Fprintf(w, "● %s has token %d (%s)\n", shown.Text(h.Holder), int64(h.Token), since)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%s\nThe history has it: pglock-admin history %s%s\n", cli.Wrapped(stillRuns, cli.TextWidth(w)),
		shown.Name(v.Name), o.Same())
}

const stillRuns = "The old holder's next fenced write, renewal and release fail. What it writes without a fence is " +
	"not stopped: end that process if it still runs."
