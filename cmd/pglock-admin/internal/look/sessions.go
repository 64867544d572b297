package look

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
)

type sessionsView struct {
	Sessions []lockadmin.Session `json:"sessions"`
	More     bool                `json:"more"` // --limit left some out
}

func NewSessions(o *cli.Options) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "Show the clients that hold locks or wait for them",
		Long: `Show the clients: the label of each, the version of its library, how many leases and tickets it has, when the server last
heard of it, and the process of the server that serves its heartbeat. VERSION and PID come with the first sign of life; no
PID behind a pooler such as PgBouncer. A client that holds or waits gives a sign of life every ten seconds or more often.
STATE says what follows from that:

  alive    it gave a sign within 15 seconds, and its tickets count
  silent   it gave none: it is stopped or cut off; or dead, if its connection cannot be seen, as behind a pooler
  dead     it gave none, and its connection has ended
  unknown  nobody can tell yet: its lease is younger than 15 seconds, its connection has just ended, or a standby has no sign of it
  idle     it holds nothing and waits for nothing, so it gives no sign`,
		Example: `  pglock-admin sessions
  pglock-admin sessions --order age                          the longest silent first
  pglock-admin break --session ID --reason "its host is gone"`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := flags.read(cmd, args); err != nil {
				return err
			}
			limit, page := flags.ends()
			q := lockadmin.SessionsQuery{Match: flags.match, Holder: flags.holder, Session: flags.session,
				Older: flags.older, Order: lockadmin.Order(flags.order), After: flags.after, Limit: limit,
				PageSize: page}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				sessions, more, err := lists.First(flags.limit, admin.Sessions(ctx, q))
				if err != nil {
					return err
				}
				view := sessionsView{Sessions: sessions, More: more}
				return o.Show(cmd, view, func(w *cli.Page) { drawSessions(w, view, flags) })
			})
		},
	}
	flags.add(o, cmd, map[string]string{
		"match":   "show only sessions with this `text` in their label or ID",
		"holder":  "show only sessions with this `label`",
		"session": "show only the session with this `ID`",
		"older":   "show only sessions that have been silent for this `duration`",
		"after":   "begin after the session with this `ID`",
	}, lockadmin.OrderName, lockadmin.OrderAge, lockadmin.OrderLeases, lockadmin.OrderWaiting)
	return cmd
}

func drawSessions(w *cli.Page, view sessionsView, flags listFlags) {
	t := cli.Table{
		Titles: []string{"SESSION", "HOLDER", "VERSION", "STATE", "LEASES", "TICKETS", "HEARTBEAT", "PID", "CLIENT",
			"APPLICATION"},
		Right: []string{"LEASES", "TICKETS", "HEARTBEAT", "PID"},
		Spare: []string{"APPLICATION", "CLIENT", "VERSION"}, // JSON has them
	}
	last := ""
	for _, s := range view.Sessions {
		t.Rows = append(t.Rows, []string{s.ID, shown.Text(s.Holder), orDash(s.Version), string(s.Life),
			strconv.Itoa(s.Leases), strconv.Itoa(s.Tickets), shown.Age(s.Silent) + " ago", PidText(s.PID),
			orDash(s.Client), orDash(s.Application)})
		last = s.ID
	}
	flags.draw(w, t, "session", "nobody holds a lock or waits for one", view.More, last)
}

func orDash(s string) string { return shown.Either(s == "", "-", shown.Text(s)) }
