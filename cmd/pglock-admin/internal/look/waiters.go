package look

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type WaitersView struct {
	Waiters []lockadmin.Waiter `json:"waiters"`
	More    bool               `json:"more"` // --limit left some out
}

// PassedOver is said of a waiter whose ticket counts no more. The page says it in the same words.
const PassedOver = "passed over: no sign of life"

func NewWaiters(o *cli.Options) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:   "waiters [NAME]",
		Short: "Show who waits for which lock, in order",
		Long: `Show who waits for one lock, or for all. A line has the place in the queue, the ticket, the mode (exclusive, shared or
limit; "exclusive subtree" wants all names below, too), the waiter, how long it has waited, and what it waits for: the
holder, the waiter before it, or another lock above or below that is in the way, with its holder. A waiter whose client
gives no sign of life is passed over. --order age shows those first who have waited longest.`,
		Example: `  pglock-admin waiters
  pglock-admin waiters nightly-report -o json
  pglock-admin waiters --order age --limit 10      the ten who have waited longest`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, err := flags.read(cmd, args)
			if err != nil {
				return err
			}
			if name != "" && flags.after != "" {
				return cli.UsageErrorf("no --after", "--after does not go with a NAME")
			}
			limit, page := flags.ends()
			q := lockadmin.WaitersQuery{Lock: name, Prefix: flags.prefix, Match: flags.match, Holder: flags.holder,
				Session: flags.session, Mode: pglock.Mode(flags.mode), Older: flags.older,
				Order: lockadmin.Order(flags.order), After: flags.after, Limit: limit, PageSize: page}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				waiters, more, err := lists.First(flags.limit, admin.Waiters(ctx, q))
				if err == nil && len(waiters) == 0 && name != "" {
					_, err = admin.Get(ctx, name) // tells an empty queue from a lock that does not exist
				}
				if err != nil {
					return NoSuchLock(o, name, err)
				}
				view := WaitersView{Waiters: waiters, More: more}
				return o.Show(cmd, view, func(w *cli.Page) { drawWaiters(w, view, name, flags, passedOver(o)) })
			})
		},
	}
	flags.add(o, cmd, map[string]string{
		"prefix":  "show only the queues of locks whose names begin with this `text`",
		"match":   "show only waiters with this `text` in the name of the lock or in their label",
		"holder":  "show only waiters with this `label`",
		"session": "show only waiters of the session with this `ID`",
		"mode":    "show only waiters of this mode, a `word`: ",
		"older":   "show only those who have waited for longer than this `duration`",
		"after":   "begin after the queue of the lock with this `name`",
	}, lockadmin.OrderName, lockadmin.OrderAge)
	return cmd
}

func drawWaiters(w *cli.Page, view WaitersView, name string, flags listFlags, silent string) {
	t := cli.Table{Titles: []string{"LOCK", "PLACE", "TICKET", "MODE", "HOLDER", "WAITING", "WAITS-FOR"},
		Right: []string{"PLACE", "TICKET", "WAITING"}}
	for _, q := range view.Waiters {
		t.Rows = append(t.Rows, []string{shown.Name(q.Lock), strconv.Itoa(q.Place), strconv.FormatInt(q.Ticket, 10),
			ModeText(q.Mode, q.Limit, q.Subtree), shown.Text(q.Holder), shown.Age(q.Waiting), waitsFor(q, silent)})
	}
	nothing := "nobody waits for a lock"
	if name != "" {
		nothing = "nobody waits for lock " + shown.Name(name)
		t.Without("LOCK")
	}
	flags.draw(w, t, "waiter", nothing, view.More, "") // it may end in the middle of a queue
}

// passedOver says of a waiter that its client gives no sign of life. A standby may not have the sign yet.
func passedOver(o *cli.Options) string {
	return shown.Either(o.Standby != nil, "unknown: no sign of life has arrived on this standby", PassedOver)
}

// waitsFor tells what a waiter waits for, or silent.
func waitsFor(q lockadmin.Waiter, silent string) string {
	switch {
	case !q.Alive:
		return silent
	case q.Before != 0:
		return fmt.Sprintf("ticket %d %s", q.Before, shown.Text(q.Behind))
	case q.BehindLock != "":
		return shown.Name(q.BehindLock) + " of " + shown.Text(q.Behind)
	case q.Behind != "":
		return "holder " + shown.Text(q.Behind)
	}
	return "nobody: its turn has come"
}

// ModeText writes a mode in words: "exclusive", "shared", "limit 3", "exclusive subtree".
func ModeText(m pglock.Mode, limit int, subtree bool) string {
	switch {
	case m == pglock.ModeLimit:
		return fmt.Sprintf("limit %d", limit)
	case subtree:
		return string(m) + " subtree"
	}
	return string(m)
}
