package look

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/internal/shown"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

type ShowView struct {
	Lock     LockView                 `json:"lock"`     // of several holders the one with the lowest slot
	Holders  []LockView               `json:"holders"`  // every lease that is held
	Backends []lockadmin.Backend      `json:"backends"` // null without the right to see any, and on a standby
	Waiters  []lockadmin.Waiter       `json:"waiters"`  // the queue in order, up to --waiters; lock.waiting counts all
	Fences   []lockadmin.FenceInfo    `json:"fences"`
	Events   []lockadmin.HistoryEntry `json:"events"`         // newest first; null without the right to read them
	Note     string                   `json:"note,omitempty"` // why there are no events

	BackendsNote string `json:"backends_note,omitempty"` // why there are no backends

	Verdict lockadmin.Severity `json:"verdict,omitempty"` // as list has it; "" without the right to judge, or if time was short
	Why     string             `json:"why,omitempty"`
}

const fencesShown = 1000

func NewShow(o *cli.Options) *cobra.Command {
	var events, waiters int
	cmd := &cobra.Command{
		Use:   "show NAME",
		Short: "Show everything about one lock",
		Long: `Show one lock, held or free: its holders or its last one, fencing tokens and leases, the queue from its head to its
end, the fences that its tokens have passed, and its last breaks and takeovers. To see these you need the role
pglock_admin. The verdict, and whether a holder is silent or dead, are those of pglock-admin list.

For a holder it also shows the processes of the server that work for it: the one of its heartbeat, and open transactions that have
passed a fence of the lock. They lead to the program: by its address, and by its application_name, which is
"pglock host/program[pid]" unless the program has its own. At the end it says how to end the holder.`,
		Example:     `  pglock-admin show nightly-report`,
		Annotations: cli.UsesDatabase,
		RunE: func(cmd *cobra.Command, args []string) error {
			if events < 1 || events > 10000 {
				return cli.UsageErrorf("--events 10", "--events is %d: it must be from 1 to 10000", events)
			}
			if waiters < 1 || waiters > 10000 {
				return cli.UsageErrorf("--waiters 20", "--waiters is %d: it must be from 1 to 10000", waiters)
			}
			name, err := cli.NameOf(cmd, args, 0)
			if err != nil {
				return err
			}
			return o.Looking(cmd.Context(), func(ctx context.Context, admin *lockadmin.Admin) error {
				view, err := Look(ctx, admin, name, events, waiters)
				if err == nil {
					err = view.judge(ctx, admin)
				}
				if err != nil {
					return NoSuchLock(o, name, err)
				}
				if o.Standby != nil {
					view.Backends, view.BackendsNote = nil, "A standby does not see the server's processes of the "+
						"primary."
				}
				return o.Show(cmd, view, func(w *cli.Page) { drawShow(w, o, view) })
			})
		},
	}
	cmd.Flags().IntVar(&events, "events", 10, "show at most this `number` of the last events")
	cmd.Flags().IntVar(&waiters, "waiters", 20, "show at most this `number` of waiters")
	return cmd
}

// NoSuchLock names the lock that does not exist. It returns other errors as they are.
func NoSuchLock(o *cli.Options, name string, err error) error {
	if !errors.Is(err, lockadmin.ErrNotFound) {
		return err
	}
	return cli.Errorf(cli.ExitNotHeld, "pglock-admin list --all"+o.Same()+" to see every name",
		"lock %s does not exist", shown.Name(name))
}

// Look reads all about one lock, with at most so many events and waiters.
func Look(ctx context.Context, admin *lockadmin.Admin, name string, events, waiters int) (ShowView, error) {
	infos, err := admin.Holders(ctx, name)
	if err != nil {
		return ShowView{}, err
	}
	leases, err := withLives(ctx, admin, infos)
	if err != nil {
		return ShowView{}, err
	}
	view := ShowView{Lock: leases[0]}
	view.Holders = slices.DeleteFunc(leases, func(l LockView) bool { return !l.Held })
	backends, err := admin.Backends(ctx, name)
	switch {
	case errors.Is(err, pglock.ErrPermission):
		view.BackendsNote = "the server's processes are left out: this user may not read pg_stat_activity"
	case err != nil:
		return ShowView{}, err
	default:
		view.Backends = append([]lockadmin.Backend{}, backends...)
	}
	queue := lockadmin.WaitersQuery{Lock: name, Limit: waiters}
	if view.Waiters, err = lists.All(admin.Waiters(ctx, queue)); err != nil {
		return ShowView{}, err
	}
	fences := lockadmin.FencesQuery{Lock: name, Limit: fencesShown}
	if view.Fences, err = lists.All(admin.Fences(ctx, fences)); err != nil {
		return ShowView{}, err
	}
	view.Events, err = lists.All(admin.History(ctx, lockadmin.HistoryQuery{Lock: name, Limit: events}))
	switch {
	case errors.Is(err, pglock.ErrPermission):
		view.Note = "the events are not shown: they need the role pglock_admin"
	case err != nil:
		return ShowView{}, err
	}
	return view, nil
}

// judge says how the lock is.
func (v *ShowView) judge(ctx context.Context, admin *lockadmin.Admin) error {
	verdicts, err := admin.Summaries(ctx, []pglock.LockInfo{v.Lock.LockInfo})
	if errors.Is(err, pglock.ErrPermission) && v.BackendsNote != "" {
		return nil // why takes the same right
	}
	if err == nil {
		v.Verdict, v.Why = verdicts[0].Severity, verdicts[0].Kind
	}
	return err
}

func HeldViews(infos []pglock.LockInfo) []LockView {
	views := []LockView{}
	for _, i := range infos {
		if i.Held {
			views = append(views, ViewOf(i))
		}
	}
	return views
}

func drawShow(w *cli.Page, o *cli.Options, v ShowView) {
	if len(v.Holders) > 1 || v.Lock.Held && v.Lock.Slot > 0 {
		cli.DrawFields(w, [][2]string{{"lock", shown.Name(v.Lock.Name)}, {"verdict", cli.Mark(v.Verdict)},
			{"mode", ModeText(v.Lock.Mode, v.Lock.Limit, v.Lock.Subtree)},
			{"state", "held by " + strconv.Itoa(len(v.Holders))}})
		fmt.Fprintln(w)
		drawHolders(w, v.Holders)
	} else {
		drawLease(w, v)
	}
	drawBackends(w, v)
	drawQueue(w, o, v)
	if len(v.Fences) > 0 {
		fmt.Fprintln(w)
		t := fenceTable(v.Fences)
		t.Draw(w)
	}
	if len(v.Events) > 0 {
		fmt.Fprintln(w)
		t := cli.Table{Titles: []string{"WHEN", "EVENT", "WHAT"}}
		for _, e := range v.Events {
			t.Rows = append(t.Rows, []string{cli.Moment(e.At), shown.Text(string(e.Kind)), Tell(e)})
		}
		t.Draw(w)
	}
	if v.Note != "" {
		fmt.Fprintf(w, "\n%s\n", v.Note)
	}
	if o.Standby == nil && (len(v.Backends) > 0 || len(v.Holders) > 0) {
		drawEndings(w, o, v)
	}
}

func drawLease(w *cli.Page, v ShowView) {
	i := v.Lock.LockInfo
	state, lease, ttl, holder := "FREE", "", shown.Duration(i.TTL), "last holder"
	if i.Held {
		state, lease, ttl, holder = "held for "+shown.Age(lists.HeldFor(i)), fmt.Sprintf("%s %s of %s left",
			LeaseCell(i, v.Lock.Life, 10), shown.Age(i.Remaining), ttl), "", "holder"
	}
	metadata := string(i.Metadata)
	metadata = shown.Either(shown.AllPrint(metadata), metadata, shown.Text(metadata))
	cli.DrawFields(w, [][2]string{{"lock", shown.Name(i.Name)}, {"verdict", cli.Mark(v.Verdict)}, {"state", state},
		{"lease", lease}, {"ttl", ttl}, {holder, shown.Text(i.Holder)},
		{"mode", ModeText(i.Mode, i.Limit, i.Subtree)}, {"session", i.Session},
		{"token", strconv.FormatInt(int64(i.Token), 10)}, {"acquired", cli.Moment(i.AcquiredAt)},
		{"renewed", cli.Moment(i.RenewedAt)}, {"expires", cli.Moment(i.ExpiresAt)}, {"ended", cli.Moment(i.EndedAt)},
		{"metadata", metadata}})
}

func drawHolders(w *cli.Page, holders []LockView) {
	t := cli.Table{Titles: []string{"SLOT", "HOLDER", "TOKEN", "HELD-FOR", "EXPIRES-IN", "LEASE"},
		Right: []string{"SLOT", "TOKEN", "HELD-FOR", "EXPIRES-IN"}}
	for _, h := range holders {
		t.Rows = append(t.Rows, []string{strconv.Itoa(h.Slot), shown.Text(h.Holder),
			strconv.FormatInt(int64(h.Token), 10), shown.Age(lists.HeldFor(h.LockInfo)),
			shown.Age(h.LockInfo.Remaining), LeaseCell(h.LockInfo, h.Life, 10)})
	}
	t.Draw(w)
}

func drawQueue(w *cli.Page, o *cli.Options, v ShowView) {
	if len(v.Waiters) == 0 {
		return
	}
	fmt.Fprintf(w, "\nQUEUE, next first\n\n")
	if len(v.Holders) == 0 {
		fmt.Fprintf(w, "○ nobody holds it%s\n", inTheWay(v.Waiters))
	}
	for _, h := range v.Holders {
		fmt.Fprintf(w, "● %s has token %d\n", shown.Text(h.Holder), int64(h.Token))
	}
	fmt.Fprintln(w, "│")
	more := v.Lock.LockInfo.Waiting - len(v.Waiters)
	var rows [][4]string
	var width [4]int
	for _, q := range v.Waiters {
		row := [4]string{strconv.Itoa(q.Place), strconv.FormatInt(q.Ticket, 10),
			ModeText(q.Mode, q.Limit, q.Subtree), shown.Age(q.Waiting)}
		for i, cell := range row {
			width[i] = max(width[i], len(cell))
		}
		rows = append(rows, row)
	}
	for n, q := range v.Waiters {
		arm := shown.Either(n == len(v.Waiters)-1 && more <= 0, "└─", "├─")
		dead := shown.Either(q.Alive, "", "  ("+passedOver(o)+")")
		r := rows[n]
		fmt.Fprintf(w, "%s %*s. ticket %-*s  %-*s  %*s  %s%s\n", arm, width[0], r[0], width[1], r[1], width[2], r[2],
			width[3], r[3],
			shown.Text(q.Holder), dead)
	}
	if more > 0 {
		fmt.Fprintf(w, "└─ and %d more: pglock-admin waiters %s%s\n", more, shown.Name(v.Lock.Name), o.Same())
	}
}

// inTheWay says which other lock keeps the first waiter from a lock that nobody holds.
func inTheWay(queue []lockadmin.Waiter) string {
	for _, q := range queue {
		if q.BehindLock != "" {
			return fmt.Sprintf("; %s of %s is in the way", shown.Name(q.BehindLock), shown.Text(q.Behind))
		}
	}
	return ""
}

// Tell writes an event in words.
func Tell(e lockadmin.HistoryEntry) string {
	holder, actor, reason := shown.Text(e.Holder), shown.Text(e.Actor), shown.Text(e.Reason)
	held := shown.Age(e.HeldFor())
	lease := fmt.Sprintf("token %d of %s", e.Token, holder)
	next := fmt.Sprintf("%s has token %d", actor, e.NewToken)
	operator := fmt.Sprintf("%s (user %s)", actor, shown.Text(e.DBUser))
	switch e.Kind {
	case lockadmin.EventBreak:
		return fmt.Sprintf("%s broke the lease of %s with token %d: %s", operator, holder, e.Token, reason)
	case lockadmin.EventTakeover:
		return lease + " expired; " + next
	case lockadmin.EventExpired:
		return lease + " expired; nobody asked for the lock until it was pruned"
	case lockadmin.EventRelease:
		return lease + " released after " + held
	case lockadmin.EventHandover:
		return lease + " handed over after " + held + "; " + next
	case lockadmin.EventOverlap:
		return fmt.Sprintf("token %d was granted to %s before the lease of %s with token %d was over, which must "+
			"never happen", e.NewToken, actor, holder, e.Token)
	case lockadmin.EventLevel:
		return operator + " set the history to " + reason
	case lockadmin.EventEpoch:
		return fmt.Sprintf("%s made every token from then on greater than %d: %s", operator, e.Token, reason)
	case lockadmin.EventBypass:
		tables := shown.Either(e.Resource == "", "no guarded table", shown.Text(e.Resource))
		return operator + " wrote past the guards, to " + tables + ": " + reason
	}
	return fmt.Sprintf("token %d, new token %d", e.Token, e.NewToken)
}
