package act

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type breakSessionView struct {
	Session string             `json:"session"`
	Broken  []lockadmin.Broken `json:"broken"` // leases, and places in queues, which have a ticket
	Reason  string             `json:"reason"`
	By      string             `json:"by"`
}

// breakSession ends all leases and tickets of a client, after a question if somebody can answer it.
func breakSession(o *cli.Options, cmd *cobra.Command, b breaking) error {
	_, err := b.agreed(o, cmd, "End all of this?",
		func(ctx context.Context, admin *lockadmin.Admin) ([][2]string, error) {
			seen, err := lists.All(admin.Sessions(ctx, lockadmin.SessionsQuery{Session: b.session}))
			if err != nil {
				return nil, err
			}
			if len(seen) == 0 || seen[0].Leases+seen[0].Tickets == 0 {
				return nil, noSuchSession(o, b.session)
			}
			return sessionToBreak(seen[0]), nil
		})
	if err != nil {
		return err
	}
	return o.WithAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		broken, err := admin.BreakSession(ctx, b.session, b.reason, lockadmin.BreakOptions{Actor: b.by})
		switch {
		case errors.Is(err, lockadmin.ErrNotHeld):
			return noSuchSession(o, b.session)
		case err != nil && len(broken) > 0:
			err = cli.Because(ctx, o.WithRights(ctx, o.Pool, err))
			return partlyBroken(cmd.Context(), o, len(broken), err)
		case err != nil:
			return breakFailed(o, err, "pglock-admin list --session "+b.session+o.Same()+
				", and for each lock pglock-admin why NAME"+o.Same(),
				"pglock-admin sessions --session "+b.session+o.Same()+", to see what it has left")
		}
		view := breakSessionView{b.session, broken, b.reason, b.by}
		return o.Changed(cmd, view, func(w *cli.Page) { drawBrokenSession(w, view) })
	})
}

// partlyBroken says what was broken before the error. Without an answer, what it ended may be broken, too.
func partlyBroken(ctx context.Context, o *cli.Options, broken int, err error) error {
	text := fmt.Sprintf("at least %d leases and tickets were broken", broken)
	on := cli.Again + ", which goes on from there"
	code, hint := o.Advice(ctx, err)
	switch code {
	case cli.ExitInterrupted:
		return cli.Errorf(code, on, "interrupted; %s", text)
	case cli.ExitFailure:
		hint = on
	}
	return &cli.Advised{Text: text + ", and then it failed", Err: err, Code: code, Hint: hint}
}

func noSuchSession(o *cli.Options, id string) error {
	return cli.Errorf(cli.ExitNotHeld, "pglock-admin sessions"+o.Same()+" to see every session",
		"session %s holds nothing and waits for nothing; nothing was broken", shown.Text(id))
}

func sessionToBreak(s lockadmin.Session) [][2]string {
	state := string(s.Life)
	switch s.Life {
	case lockadmin.LifeAlive:
		state += ": it will go on, without these leases, and queue again"
	case lockadmin.LifeUnknown, lockadmin.LifeSilent:
		state += ": if it lives, it goes on, without these leases, and queues again"
	}
	return [][2]string{
		{"session", s.ID},
		{"holder", shown.Text(s.Holder)},
		{"state", state},
		{"heartbeat", shown.Age(s.Silent) + " ago"},
		{"leases", fmt.Sprint(s.Leases)},
		{"tickets", fmt.Sprint(s.Tickets)},
	}
}

func drawBrokenSession(w *cli.Page, v breakSessionView) {
	leases := int64(0)
	t := cli.Table{Titles: []string{"LOCK", "ENDED", "NEW TOKEN", "HOLDER"}, Right: []string{"NEW TOKEN"}}
	for _, b := range v.Broken {
		what, next := fmt.Sprintf("ticket %d", b.Ticket), "-"
		if b.Token != 0 {
			leases++
			what, next = fmt.Sprintf("token %d", int64(b.Token)), fmt.Sprint(int64(b.NewToken))
		}
		t.Rows = append(t.Rows, []string{shown.Name(b.Name), what, next, shown.Text(b.Holder)})
	}
	fmt.Fprintf(w, "broke %s and %s of session %s\n\n", cli.Count(leases, "lease"),
		cli.Count(int64(len(v.Broken))-leases, "ticket"), v.Session)
	t.Draw(w)
	fmt.Fprintf(w, "\n%s\n", cli.Wrapped(stillRuns, cli.TextWidth(w)))
}
