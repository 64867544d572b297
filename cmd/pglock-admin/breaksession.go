package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/lockadmin"
)

type breakSessionView struct {
	Session string             `json:"session"`
	Broken  []lockadmin.Broken `json:"broken"` // leases, and places in queues, which have a ticket
	Reason  string             `json:"reason"`
	By      string             `json:"by"`
}

// breakSession ends all leases and tickets of a client, after a question if somebody can answer it.
func (o *options) breakSession(cmd *cobra.Command, b breaking) error {
	if !b.yes && asks(cmd) {
		var seen []lockadmin.Session
		err := o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) (err error) {
			seen, err = lockadmin.Collect(admin.Sessions(ctx, lockadmin.WithSession(b.session)))
			if err == nil && (len(seen) == 0 || seen[0].Leases+seen[0].Tickets == 0) {
				err = o.noSuchSession(b.session)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := agreed(cmd.Context(), cmd, "End all of this?", func(w *page) {
			drawSessionToBreak(w, o, seen[0])
		}); err != nil {
			return err
		}
	}
	return o.withAdmin(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
		broken, err := admin.BreakSession(ctx, b.session, b.reason, lockadmin.WithActor(b.by))
		switch {
		case errors.Is(err, lockadmin.ErrNotHeld):
			return o.noSuchSession(b.session)
		case err != nil && len(broken) > 0:
			return &advised{text: fmt.Sprintf("%d leases and tickets were broken, and then it failed", len(broken)),
				err: err, code: exitFailure, hint: again + ", which goes on from there"}
		case err != nil:
			return o.breakFailed(err, "pglock-admin list --session "+b.session+o.same()+
				", and for each lock pglock-admin why NAME"+o.same(),
				"pglock-admin sessions --session "+b.session+o.same()+", to see what it has left")
		}
		view := breakSessionView{b.session, broken, b.reason, b.by}
		return o.changed(cmd, view, func(w *page) { drawBrokenSession(w, view) })
	})
}

func (o *options) noSuchSession(id string) error {
	return &advised{text: "session " + printable(id) + " holds nothing and waits for nothing; nothing was broken",
		code: exitNotHeld,
		hint: "pglock-admin sessions" + o.same() + " to see every session"}
}

func drawSessionToBreak(w *page, o *options, s lockadmin.Session) {
	fmt.Fprintf(w, "at %s\n", o.at.now())
	state := string(s.Life)
	switch s.Life {
	case lockadmin.LifeAlive:
		state += ": it will go on, without these leases, and queue again"
	case lockadmin.LifeUnknown, lockadmin.LifeSilent:
		state += ": if it lives, it goes on, without these leases, and queues again"
	}
	drawFields(w, [][2]string{
		{"session", s.ID},
		{"holder", printable(s.Holder)},
		{"state", state},
		{"heartbeat", age(s.Silent) + " ago"},
		{"leases", fmt.Sprint(s.Leases)},
		{"tickets", fmt.Sprint(s.Tickets)},
	})
}

func drawBrokenSession(w *page, v breakSessionView) {
	leases := 0
	var rows [][]string
	for _, b := range v.Broken {
		what, next := fmt.Sprintf("ticket %d", b.Ticket), "-"
		if b.Token != 0 {
			leases++
			what, next = fmt.Sprintf("token %d", int64(b.Token)), fmt.Sprint(int64(b.NewToken))
		}
		rows = append(rows, []string{shellName(b.Name), what, next, printable(b.Holder)})
	}
	fmt.Fprintf(w, "broke %s and %s of session %s\n\n", counted(leases, "lease"),
		counted(len(v.Broken)-leases, "ticket"), v.Session)
	drawTable(w, []string{"LOCK", "ENDED", "NEW TOKEN", "HOLDER"}, rows, 2)
	fmt.Fprintf(w, "\n%s\n", wrapped(stillRuns, textWidth(w)))
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
